"""What every handler is given and may return, and the interface of the server for commands."""
