"""millstream: an append-only stream server that speaks RESP, the protocol of Redis.

This is the common package: the version, and the small modules (ids, errors, encoding) that every
other package may import. The packages above it are the top-level folders `server/`,
`commands/` and `storage/`, installed as `millstream.server` and so on.
"""

__version__ = "0.1.0"
