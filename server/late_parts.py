"""The parts of replication that few servers need: loaded and built with their first use."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from millstream.server.config.directives import Config
from millstream.server.durability.persistence import Persistence
from millstream.storage.keyspace.keyspace import Keyspace

if TYPE_CHECKING:
    from millstream.server.moving.base_conversion import BaseDumper
    from millstream.server.moving.spool_conversion import SpoolConverter
    from millstream.server.replication.link_connection import Connector


class LateParts:
    """`port()` is the port on which this server listens."""

    def __init__(
        self,
        config: Config,
        keyspace: Keyspace,
        persistence: Persistence,
        loop: AbstractEventLoop,
        port: Callable[[], int],
        next_client_id: Callable[[], int],
    ) -> None:
        self._config = config
        self._keyspace = keyspace
        self._persistence = persistence
        self._loop = loop
        self._port = port
        self._next_client_id = next_client_id

    @cached_property
    def connector(self) -> Connector:
        """Connects to a primary."""
        from millstream.server.net.tls_contexts import make_link_context
        from millstream.server.replication.link_connection import Connector, dial

        return Connector(
            self._config,
            self._keyspace,
            self._persistence,
            dial=partial(dial, self._loop, partial(make_link_context, self._config)),
            port=self._port,
            next_client_id=self._next_client_id,
        )

    @cached_property
    def converter(self) -> SpoolConverter:
        """Converts the RDB of a Redis that is followed."""
        from millstream.server.moving.spool_conversion import SpoolConverter

        return SpoolConverter(lambda: self._config.import_memory_limit)

    @cached_property
    def dumper(self) -> BaseDumper:
        """Makes an RDB for a Redis or another program. Not asked for on two threads at once."""
        from millstream.server.moving.base_conversion import BaseDumper

        return BaseDumper()
