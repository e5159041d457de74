"""Tables and pictures of plain records."""
