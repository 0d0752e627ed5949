"""The command table: one row per command, and the commands that describe it."""
