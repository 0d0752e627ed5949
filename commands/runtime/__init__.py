"""Arguments and results of every handler, and the interface of the server for commands."""
