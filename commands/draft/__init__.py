"""The T commands. A new module in this folder is found by the command table itself."""
