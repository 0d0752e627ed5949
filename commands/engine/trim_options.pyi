# Only compiled modules use what is in here.
