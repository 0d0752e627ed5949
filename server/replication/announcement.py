"""A promoted server tells its old primary what it is, on a connection of its own.

The replica's link has said so already (`REPLCONF promoted`), and was closed. But it may have broken
before, or the old primary may have restarted since: it would continue to confirm writes that are
lost when it becomes a replica. So the promoted server connects until the old primary has answered.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.server.replication.attempt import Attempt, opening_of
from millstream.server.replication.link import Link, Noted, Refused
from millstream.server.replication.records import LinkError

if TYPE_CHECKING:
    from millstream.server.replication.role import Replication

log = logging.getLogger("millstream.replication")

TELLING_MS = 30_000
_ATTEMPT_MS = 3000


class Announcement:
    """To one server, for TELLING_MS at most."""

    def __init__(self, role: Replication, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._role = role
        self._node = role.node
        self._attempt: Attempt | None = None
        self._began_ms = self._attempt_ms = self._node.steady_ms()
        self._connect()

    @property
    def uses_tls(self) -> bool:
        return self._node.config.tls_replication

    def _connect(self) -> None:
        frames = self._node.persistence
        opening = opening_of(self._node)._replace(
            is_promoted=True, next_seq=min(frames.last_seq, frames.on_disk_seq) + 1
        )
        self._attempt_ms = self._node.steady_ms()
        self._attempt = Attempt(self, Link(opening, 0))
        self._node.connect_link(self.host, self.port, self._attempt)

    def tick_second(self) -> None:
        now_ms = self._node.steady_ms()
        if now_ms - self._began_ms > TELLING_MS:
            log.warning(
                "the old primary %s:%d does not know that this server was promoted. If it works, "
                "send it REPLICAOF with the address of this server", self.host, self.port,
            )  # fmt: skip
            self.stop()
        elif self._attempt is None:
            self._connect()
        elif now_ms - self._attempt_ms > _ATTEMPT_MS:
            self._attempt.drop("it does not answer")

    def stop(self) -> None:
        if self._attempt is not None:
            self._attempt.end()
            self._attempt = None
        self._role.announced()

    # The attempt

    def receive(self, attempt: Attempt, data: bytes) -> None:
        try:
            for event in attempt.link.feed(data):
                if isinstance(event, Noted):
                    log.info("the old primary %s:%d knows of the promotion", self.host, self.port)
                    self.stop()
                    return
                if isinstance(event, Refused):
                    self._refused(attempt, event)
                    return
        except LinkError as error:
            attempt.drop(str(error))
            return
        attempt.flush()

    def _refused(self, attempt: Attempt, event: Refused) -> None:
        if event.is_temporary:
            attempt.drop(event.text)
            return
        log.warning("the old primary %s:%d refuses: %s", self.host, self.port, event.text)
        self.stop()

    def connection_lost(self, attempt: Attempt, reason: str) -> None:
        self.lost(attempt, reason)

    def lost(self, attempt: Attempt, reason: str) -> None:
        attempt.is_over = True
        if attempt is self._attempt:
            self._attempt = None
