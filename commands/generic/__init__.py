"""Keys, databases, expiry, strings, DUMP and RESTORE."""
