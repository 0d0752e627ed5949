"""A point-in-time copy of all keys, and restoring it."""
