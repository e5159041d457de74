"""Between idiolect and Flower, on the machines of a deployed federation.

A package of its own that imports no torch: what a site runs beside its own process starts quickly
and stays small, and is all of idiolect that touches the network there.

relay (a message to the site's process and back) · node (Flower's SuperNode, the relay at work) ·
link (Flower's SuperLink, closed to all but sites and the server) · clients (their HTTP clients) ·
supervise (processes that are started, restarted and stopped together)
"""
