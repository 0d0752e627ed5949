"""A link to a Redis or Valkey: what follows from its answers, and when it is not asked any more.

`Link` has the states and the connections, `Following` the data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from millstream.errors import CommandError
from millstream.server.replication.history import Histories
from millstream.server.replication.link_protocol import IsRedis
from millstream.server.replication.receiver import Receiver
from millstream.server.replication.records import LinkError
from millstream.server.replication.redis_conversion import ConversionError, Converter
from millstream.server.replication.redis_following import Following
from millstream.server.replication.redis_obeyed import CannotFollow
from millstream.server.replication.redis_opening import BeginsAgain, Continues, SourceEvent
from millstream.server.replication.redis_replacement import LessDataError
from millstream.storage.keyspace.keyspace import Source

log = logging.getLogger("millstream.replication")

# A second command that cannot run within this time ends the link.
_TROUBLE_MS = 3600 * 1000
_APPLYING = (
    "ERR the commands that have arrived during a full sync are still being applied; INFO"
    " replication shows their number of bytes (source_spool_bytes). Try again when it is 0"
)


class Totals(Protocol):
    """The events on all links of this server."""

    link_errors: int
    kept_data: int
    last_error: str


class Handle(Protocol):
    """The link."""

    @property
    def address(self) -> str: ...
    @property
    def may_lose(self) -> bool:
        """True if a full sync may replace more data with less."""

    @property
    def has_connection(self) -> bool: ...
    def connect(self) -> None: ...
    def connected(self) -> None:
        """The state is CONNECTED."""

    def begin_sync(self) -> None:
        """The state is SYNC."""

    def drop(self, reason: str) -> None: ...
    def sync_failed(self, error: Exception) -> None: ...
    def read_if_below_limit(self) -> None: ...
    def acknowledge_bytes(self, applied: int, stored: int) -> None: ...
    def deliver(self, channel: bytes, message: bytes, is_shard: bool) -> None: ...


class RedisLink:
    """`is_halted`: the source is not asked again until REPLICAOF is sent again."""

    def __init__(
        self,
        link: Handle,
        receiver: Receiver,
        histories: Histories,
        totals: Totals,
        converter: Converter,
        steady_ms: Callable[[], int],
    ) -> None:
        self.is_halted = False
        self.kind = ""
        self.version = ""
        self.following = Following(receiver, converter, self)
        self._link = link
        self._receiver = receiver
        self._histories = histories
        self._totals = totals
        self._steady_ms = steady_ms
        self._asked: Source | None = None  # the position that the source was asked for
        self._trouble_ms = -_TROUBLE_MS

    @property
    def may_ask(self) -> bool:
        """True if the source may be asked for what is next."""
        return not self.is_halted and not self.following.is_draining

    # Events of the connection

    def meet(self, event: IsRedis) -> None:
        """PSYNC was sent to a Redis."""
        self.kind, self.version = event.kind, event.version
        self._asked = self._receiver.keyspace.source

    def take(self, event: SourceEvent) -> None:
        if isinstance(event, Continues):
            self._begin_line()
            self.following.continues(event)
            if self.following.is_open:
                self._link.connected()
                self.send_ack()
        elif isinstance(event, BeginsAgain):
            self._begin_full_sync(event)
        else:
            self.following.take(event)

    def _begin_full_sync(self, event: BeginsAgain) -> None:
        asked = self._asked
        if asked is not None and asked.replid == event.replid:
            log.warning(
                "the source %s does not have the commands after offset %d any more: they were %d"
                " bytes. A larger repl-backlog-size there avoids full syncs",
                self._link.address, asked.offset, event.offset - asked.offset,
            )  # fmt: skip
        self._link.begin_sync()
        log.info(
            "full sync with %s %s at %s, offset %d",
            self.kind, self.version, self._link.address, event.offset,
        )  # fmt: skip
        self.following.begins_again(event, may_lose=self._link.may_lose)

    def _begin_line(self) -> None:
        """The frames that are made of the source's commands are a line of history of this server,
        unless it has begun one already. Without a journal there is none, but the position is kept.
        """
        keyspace = self._receiver.keyspace
        source = keyspace.source
        if not self._histories.newest or self._histories.newest != self._histories.own_line:
            self._histories.begin()
        keyspace.source = source

    def full_sync_ended(self, error: Exception | None) -> None:
        link = self._link
        if error is None:
            self._begin_line()
            self.following.loaded()
            if link.has_connection:
                link.connected()
                self.send_ack()
                link.read_if_below_limit()
            else:
                link.connect()
            return
        self.following.full_sync_failed()
        if isinstance(error, LessDataError):
            self._totals.kept_data += 1
            self._halt(
                f"{error}: nothing is replaced. To keep the data here, send REPLICAOF NO ONE; to"
                f" replace it, send REPLICAOF {link.address.replace(':', ' ')} again"
            )
        elif isinstance(error, ConversionError):
            self._halt(f"{error}. Send REPLICAOF again when the cause is mended")
        else:
            link.sync_failed(error)

    def _halt(self, reason: str) -> None:
        self.is_halted = True
        self._totals.last_error = reason
        log.error("the link to %s stays down: %s", self._link.address, reason)
        self._link.drop("it is not asked again")

    # Events of the data

    def cannot_follow(self, problem: CannotFollow, offset: int) -> None:
        now_ms = self._steady_ms()
        reason = f"{problem.reason} (offset {offset} of the source)"
        self._totals.link_errors += 1
        if problem.is_final or now_ms - self._trouble_ms < _TROUBLE_MS:
            self._halt(reason)
        else:
            self._totals.last_error = reason
            log.error("the source cannot be followed: %s. A full sync follows", reason)
            self._link.drop("a command cannot run here")
        self._trouble_ms = now_ms

    def wrong_bytes(self, error: LinkError) -> None:
        self._totals.link_errors += 1
        self._totals.last_error = str(error)
        self._link.drop(str(error))

    def caught_up(self) -> None:
        if not self._link.has_connection:
            self._link.connect()

    def read_if_below_limit(self) -> None:
        self._link.read_if_below_limit()

    def deliver(self, channel: bytes, message: bytes, is_shard: bool) -> None:
        self._link.deliver(channel, message, is_shard)

    def apply_all(self) -> None:
        """Apply what has arrived, before a promotion. CommandError if that takes longer."""
        if self.following.is_draining and self.following.is_open:
            raise CommandError(_APPLYING)
        self.following.apply_all()

    # Acknowledging

    def send_ack(self) -> None:
        self._link.acknowledge_bytes(self.following.offset, self.following.stored_offset)

    def stored_more(self) -> None:
        """The journal was synced."""
        if self.following.stored_more():
            self.send_ack()
