"""A real federation: its server, the sites and their owners, and the network between them."""
