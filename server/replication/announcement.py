"""A server that was promoted tells its old primary."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.replication.link_connection import Connector, LinkConnection
from millstream.server.replication.link_protocol import Noted, Refused
from millstream.server.replication.records import LinkError

log = logging.getLogger("millstream.replication")

TELLING_MS = 30_000
_DIAL_MS = 3000


@dataclass(eq=False, repr=False)
class Announcement:
    """A promoted server reports its role to its old primary, on a connection of its own, for
    TELLING_MS at most.

    The replica's link has said so already (`REPLCONF promoted`), and was closed. But it may have
    broken before, or the old primary may have restarted since: it would continue to confirm writes
    that are lost when it becomes a replica. So the promoted server connects until the old primary
    has answered.
    """

    host: str
    port: int
    connector: Connector
    machine: Machine
    persistence: Persistence
    on_end: Callable[[], None]

    def __post_init__(self) -> None:
        self._steady_ms = self.machine.steady_clock
        self._connection: LinkConnection | None = None
        self._began_ms = self._dialed_ms = self._steady_ms()
        self._connect()

    def _connect(self) -> None:
        commits = self.persistence.commits
        opening = self.connector.opening()._replace(
            is_promoted=True, next_seq=min(commits.last_seq, commits.on_disk_seq) + 1
        )
        self._dialed_ms = self._steady_ms()
        self._connection = self.connector.new(self, opening)
        self.connector.dial(self.host, self.port, self._connection)

    def tick_second(self) -> None:
        now_ms = self._steady_ms()
        if now_ms - self._began_ms > TELLING_MS:
            log.warning(
                "the old primary %s:%d does not know that this server was promoted. If it works, "
                "send it REPLICAOF with the address of this server", self.host, self.port,
            )  # fmt: skip
            self.stop()
        elif self._connection is None:
            self._connect()
        elif now_ms - self._dialed_ms > _DIAL_MS:
            self._connection.drop("it does not answer")

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.end()
            self._connection = None
        self.on_end()

    # The connection

    def receive(self, connection: LinkConnection, data: bytes) -> None:
        try:
            for event in connection.protocol.feed(data):
                if isinstance(event, Noted):
                    log.info("the old primary %s:%d knows of the promotion", self.host, self.port)
                    self.stop()
                    return
                if isinstance(event, Refused):
                    self._refused(connection, event)
                    return
        except LinkError as error:
            connection.drop(str(error))
            return
        connection.flush()

    def _refused(self, connection: LinkConnection, event: Refused) -> None:
        if event.is_temporary:
            connection.drop(event.text)
            return
        log.warning("the old primary %s:%d refuses: %s", self.host, self.port, event.text)
        self.stop()

    def connection_lost(self, connection: LinkConnection, reason: str) -> None:
        self.lost(connection, reason)

    def lost(self, connection: LinkConnection, reason: str) -> None:
        if connection is self._connection:
            self._connection = None
