"""The Python client: its core without a socket, and both of its APIs against real servers."""
