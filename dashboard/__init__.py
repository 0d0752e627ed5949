"""A dashboard for browsers: streams, groups, clients and the server, from a separate process."""
