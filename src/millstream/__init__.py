"""millstream: an append-only stream server that speaks RESP, the protocol of Redis.

This is the common package: the version, and the small modules (ids, errors, encoding) that every
other package may import. The packages above it are the top-level folders `server/`,
`commands/` and `storage/`, installed as `millstream.server` and so on.

`millstream.connect` is `millstream.client.connect`, imported when it is first used: it needs
redis-py (`pip install "millstream[client]"`), and the server does not.
"""

from __future__ import annotations

# As in typing, which is not imported: it takes longer than the rest of a process that only executes
# itself again (server/monitor/huge_pages).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from millstream.client import connect as connect

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "connect":
        from millstream.client import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
