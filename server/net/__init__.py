"""Sockets: listening, and one connection per client."""
