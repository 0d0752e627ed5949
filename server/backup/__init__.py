"""Backups: what a server sends, and the programs `millstream backup` and `millstream restore`."""
