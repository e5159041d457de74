"""Privacy: what of a client's data its messages can tell, and to whom."""
