"""Programs for operators that talk to a running server: `millstream top`, `tail`, `health`."""
