"""Engines: they carry bytes between the server and the hosts, and decide when."""
