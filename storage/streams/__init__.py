"""Streams, their groups and retention, and the databases that hold them."""
