"""Where rounds happen: hosts that own clients, and engines that carry messages between them and the server."""
