"""Why a SuperLink lets a node not in: said by `link`, read by `supervise` at the site."""

UNKNOWN_KEY = "idiolect: no node is registered with this key"
CONNECTED = "idiolect: the node with this key could not be activated"
