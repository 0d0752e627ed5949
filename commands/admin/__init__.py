"""Connections, clients, pub/sub, transactions, and commands about the server."""
