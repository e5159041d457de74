"""Tables and pictures, made from plain data: summaries and rows."""
