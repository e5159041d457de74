"""The `idiolect` command."""
