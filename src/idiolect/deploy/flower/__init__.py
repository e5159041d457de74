"""Between idiolect and Flower, on the machines of a deployed federation.

All but `server` and `server_app` import no torch: what runs next to a site's own process starts
quickly, stays small, and is the only part of idiolect that touches the network there.

relay (a message to the site's process and back) · node (what connects a site: Flower's SuperNode
and the relay) · link (Flower's SuperLink, closed to all but sites and the server) · server (the
server's process, which starts runs) · server_app (the ServerApp that carries out a run) · process
(what these processes have in common) · internals (all that is not Flower's public API)
"""
