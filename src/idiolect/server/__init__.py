"""The server: who takes part, what it accepts, how it combines messages and steps."""
