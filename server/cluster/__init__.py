"""A cluster: the map of slots, a server as a node, and the supervisor of one machine's nodes."""
