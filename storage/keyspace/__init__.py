"""The databases: keys, their values and expiry."""
