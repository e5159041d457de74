"""What every other room stands on: random streams, settings as fields, text, shared types."""
