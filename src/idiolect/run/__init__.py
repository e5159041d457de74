"""A run: settings in, record out."""
