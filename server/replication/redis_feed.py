"""A Redis, or a program that acts as one, which gets the data of this server as an RDB.

| state | |
|---|---|
| `handshake` | the data waits to be captured, because another snapshot is written |
| `wait_bgsave` | the data is captured, and another process makes an RDB of it |
| `send_bulk` | the RDB is sent, and the commands after it, as fast as the connection takes it |
| `online` | commands are sent at once |
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from millstream.server.durability.snapshots import Job
from millstream.server.durability.workers import Machine
from millstream.server.replication.redis_spool import SpoolFile
from millstream.server.replication.redis_stream import CommandStream, Mark
from millstream.storage.dump.file_writing import TARGETS

log = logging.getLogger("millstream.replication")

_VALKEY = 9  # versions from this one on are Valkey's
_MARKS_MAX = 10_000  # ends of frames that are not acknowledged; a Redis answers every second


class Wanted(NamedTuple):
    """The wish of a program: an RDB that this version of Redis loads, perhaps without keys.
    `uses_psync`: the request was PSYNC, which has an answer before the RDB. `stays`: commands
    follow the RDB."""

    redis: str
    with_keys: bool
    uses_psync: bool
    stays: bool

    @property
    def error_code(self) -> str:
        """A Redis asks again with PSYNC after the first one. After another one it would send SYNC,
        and a link that began with SYNC has no acknowledgements and no partial sync."""
        return "NOMASTERLINK" if self.uses_psync and self.stays else "ERR"


def redis_for(version: str, otherwise: str) -> str:
    """The newest version of Redis whose files this one loads; `otherwise` if it is not known."""
    words = version.split(".")
    if len(words) < 2 or not all(word.isdecimal() for word in words[:2]):
        return otherwise
    theirs = int(words[0]), int(words[1])
    if theirs[0] >= _VALKEY:
        return "7.2"
    fitting = [name for name in TARGETS if tuple(map(int, name.split("."))) <= theirs]
    return fitting[-1] if fitting else otherwise


@dataclass(eq=False, repr=False)
class RedisFeed:
    """`spool` has the commands that come before the feed is online. `acked` is the last frame that
    was acknowledged. `on_end` is called with the client when this server ends the link."""

    machine: Machine
    client: Any
    host: str
    port: int
    wanted: Wanted
    on_end: Callable[[Any], None]
    is_replica: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.state = "handshake"
        self.job: Job | None = None  # captures the data
        self.spool: SpoolFile | None = None
        self._spool_begin = 0
        self.acked = Mark(0, 0, 0)
        self.acked_ms = self.machine.steady_clock()
        self._marks: deque[Mark] = deque(maxlen=_MARKS_MAX)
        self._end = Mark(0, 0, 0)  # of the commands that this feed has
        self.begin_offset = 0  # the RDB has everything up to it
        self._skipped_bytes = 0  # of the spool, before the moment of the RDB
        self.started_ms = self._progress_ms = self.machine.steady_clock()
        self._unread_bytes = 0  # a second ago
        self._rdb: SpoolFile | None = None
        self._rdb_bytes = 0
        self._is_reading = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}" if self.port else str(self.client.address)

    @property
    def is_online(self) -> bool:
        return self.state == "online"

    @property
    def is_over(self) -> bool:
        return bool(self.client.closed) or self.client.feed is not self

    def drop(self, reason: str) -> None:
        """End the link."""
        if not self.client.closed:
            log.warning("the link to %s ends: %s", self.address, reason)
            self.client.close(after_reply=False)
        self.on_end(self.client)

    def refuse(self, sentence: str) -> None:
        """Answer with an error instead of data."""
        if not self.client.closed:
            log.warning("%s gets no data: %s", self.address, sentence)
            self.client.transmit(f"-{self.wanted.error_code} {sentence}\r\n".encode())
            self.client.close(after_reply=True)
        self.on_end(self.client)

    def close(self) -> None:
        """The link is over."""
        if self.job is not None:
            self.job.cancelled = True
        if self.spool is not None:
            self.spool.close()
        if self._rdb is not None:
            self._rdb.close()
            self._rdb = None

    def tick_second(self, timeout_ms: int) -> None:
        """Keep the connection alive, and end it if the client reads nothing for this time. While a
        Redis loads an RDB it reads nothing and acknowledges nothing, but sends empty lines."""
        if self.state in ("handshake", "wait_bgsave"):
            self._send(b"\n")
        now_ms, unread_bytes = self.machine.steady_clock(), self.client.output_bytes
        heard_ms = self.client.last_active_ms
        if not unread_bytes or unread_bytes != self._unread_bytes:
            self._unread_bytes, self._progress_ms = unread_bytes, now_ms
        elif now_ms - max(self._progress_ms, heard_ms) > timeout_ms:
            self.drop(f"it has read nothing for {timeout_ms // 1000} seconds")
        acknowledges = self.is_online and self.wanted.uses_psync
        if acknowledges and now_ms - max(self.acked_ms, heard_ms) > timeout_ms:
            self.drop(f"no data was received from it for {timeout_ms // 1000} seconds")

    def _send(self, data: bytes) -> None:
        if not self.client.closed:
            self.client.transmit(data)

    # The RDB

    def begin_rdb(self, answer: bytes, rdb: SpoolFile) -> None:
        """Send the answer to PSYNC, and the RDB."""
        self.state = "send_bulk"
        self._rdb, self._rdb_bytes = rdb, rdb.size_bytes
        self._send(answer + b"$%d\r\n" % rdb.size_bytes)
        self.pump()

    def pump(self) -> None:
        """Send more, if the connection takes it."""
        if self.state != "send_bulk" or self._is_reading:
            return
        if self.client.closed or self.client.paused:
            return
        if self._rdb is None:
            self._catch_up()
        elif self._rdb.left_bytes:
            self._is_reading = True
            self._rdb.read(self._on_read)
        else:
            self._rdb.close()
            self._rdb = None
            self._rdb_sent()

    def _on_read(self, data: bytes) -> None:
        self._is_reading = False
        if self.is_over:
            return
        if data:
            self._send(data)
            self.pump()
        else:
            self.drop("the RDB cannot be read: it is cut off")

    def _rdb_sent(self) -> None:
        seconds = (self.machine.steady_clock() - self.started_ms) / 1000
        log.info("%s has the RDB: %d bytes in %.2f seconds", self.address, self._rdb_bytes, seconds)
        if self.wanted.stays:
            self.pump()
        else:
            self.client.close(after_reply=True)

    # Commands

    def keep_commands(self, spool: SpoolFile, end: Mark) -> None:
        """Commands after this one go to a file until the RDB is sent."""
        self.spool, self._end = spool, end
        self._spool_begin = end.offset

    def begin_at(self, offset: int) -> None:
        """The RDB has everything up to this offset."""
        self.begin_offset = offset
        self._skipped_bytes = offset - self._spool_begin

    def take(self, data: bytes, end: Mark, spool_limit_bytes: int) -> None:
        """More commands have become durable; the stream ends there now. Before this feed is online,
        at most this many bytes are stored."""
        self._end = end
        if self.is_online:
            self._marks.append(end)
            self._send(data)
        elif data and self.spool is not None:
            self.spool.append(data)
            if self.spool.size_bytes > spool_limit_bytes:
                self.drop(
                    f"the changes during its full sync take {self.spool.size_bytes} bytes on the"
                    f" disk, and replica-redis-spool-limit allows {spool_limit_bytes}"
                )

    def _catch_up(self) -> None:
        """Send what the spool has; after that, commands are sent at once."""
        assert self.spool is not None
        if self.spool.left_bytes:
            self._is_reading = True
            self.spool.read(self._on_spooled)
        else:
            self.spool.close()
            self.spool = None
            self.go_online(self._end)

    def _on_spooled(self, data: bytes) -> None:
        self._is_reading = False
        if not self.is_over:
            skipped = min(self._skipped_bytes, len(data))
            self._skipped_bytes -= skipped
            self._send(data[skipped:])
            self.pump()

    def continue_at(self, stream: CommandStream, offset: int, answer: bytes) -> None:
        """Send the commands after this offset."""
        self._send(answer + stream.after(offset))
        self.go_online(stream.end)

    def go_online(self, end: Mark) -> None:
        self.state = "online"
        self.acked_ms = self.machine.steady_clock()
        self._marks.append(end)
        log.info("%s has everything, and gets commands from now on", self.address)

    def acknowledge(self, offset: int) -> None:
        """It has applied everything up to this offset."""
        self.acked_ms = self.machine.steady_clock()
        while self._marks and self._marks[0].offset <= offset:
            self.acked = self._marks.popleft()
