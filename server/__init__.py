"""The process: sockets, configuration, persistence, and the one place where a command runs."""
