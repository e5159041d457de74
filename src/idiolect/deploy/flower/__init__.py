"""Between idiolect and Flower, on the machines of a deployed federation.

All but `server` import no torch: what runs next to a site's own process starts quickly, stays
small, and is the only part of idiolect that touches the network there.

relay (a message to the site's process and back) · node (Flower's SuperNode, the relay at work) ·
link (Flower's SuperLink, closed to all but sites and the server) · clients (their HTTP clients) ·
supervise (processes that are started, restarted and stopped together) · server (the server's
process, which carries out runs)
"""
