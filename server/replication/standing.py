"""The place of this server among others: the primary that it follows.

This and `role` are loaded at each start; the modules of the link itself with the first REPLICAOF.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.server.replication.link import Link
    from millstream.server.replication.link_connection import Connector
    from millstream.server.replication.receiver import Receiver
    from millstream.server.replication.redis_conversion import Converter
    from millstream.server.replication.redis_dump import Dumper


class Late(Protocol):
    """The parts that are loaded and built with their first use."""

    @property
    def connector(self) -> Connector: ...
    @property
    def converter(self) -> Converter: ...
    @property
    def dumper(self) -> Dumper:
        """Not asked for on two threads at once."""


class Standing:
    """The followed primary: `link` is None on a primary. `becomes_primary`: it is promoted, and
    is a primary when the data that it was receiving is loaded."""

    def __init__(self, make_receiver: Callable[[], Receiver]) -> None:
        self.link: Link | None = None
        self.becomes_primary = False
        self._make_receiver = make_receiver

    @cached_property
    def receiver(self) -> Receiver:
        """The data of a replica. A server that has followed no primary has none before it is
        asked for."""
        return self._make_receiver()

    @property
    def is_replica(self) -> bool:
        return self.link is not None
