"""`millstream cdc run`: reading the sources, and copying their tables, into millstream."""
