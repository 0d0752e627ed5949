"""PostgreSQL's replication protocol: the connection to a slot, and decoding its messages."""
