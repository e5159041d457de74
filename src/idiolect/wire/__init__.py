"""Messages as bytes: packing, admission, the account of what was sent."""
