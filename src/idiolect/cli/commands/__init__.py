"""The commands: one function of the arguments each."""
