"""One replica as its primary sees it: its frames, and those that are sent to it next.

A feed is a cursor into the sequence of frames: those in memory and, before them, those on the
disk (`backlog`). It sends only what is durable here, and no more than the connection takes, so
a slow replica costs no memory and is not disconnected for being slow.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from millstream.server.durability.workers import Machine, post
from millstream.server.replication.backlog import FrameSource, OldData, Piece
from millstream.server.replication.records import RecordKind, encode, encode_confirmed
from millstream.storage.files.disk import File

log = logging.getLogger("millstream.replication")

_TURN_BYTES = 1 << 20  # sent to one replica in one turn of the event loop
_OPEN_TRIES = 5
_MESSAGES_MAX = 100  # that wait for the frames before them; only the newest are kept


@dataclass(eq=False, repr=False)
class Feed:
    """`state` is what INFO shows: `handshake` (PSYNC is not answered yet), `wait_bgsave` (a base is
    written first), `send_bulk` or `online`.

    `next_seq` is the next frame to send. `acked_seq`, `synced_seq` and `frame_bytes` are what the
    replica has acknowledged: the last frame applied, the last one on its disk (-1: it has no
    journal), and the size of all frames applied. `node` is the replica's ID as a member of a shard.
    `on_end` is called with the client when this server ends the link.
    """

    source: FrameSource
    machine: Machine
    client: Any
    host: str
    port: int
    on_end: Callable[[Any], None]
    node: str = ""
    is_replica: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.state = "handshake"
        self.next_seq = 0
        self.acked_seq = 0
        self.synced_seq = -1
        self.frame_bytes = 0
        self.acked_ms = self.machine.steady_clock()
        self.common_seq = -1
        # The IDs of servers that the replica was told; None: it wants none.
        self.upstream: bytes | None = None
        self.takes_shard_messages = False  # a replica of an older version ends the link at one
        self._old: OldData | None = None
        self._is_reading = False
        self._piece: Piece | None = None
        self._open_tries = 0
        self._pump_scheduled = False
        self._messages: deque[tuple[int, bytes]] = deque(maxlen=_MESSAGES_MAX)
        self._last: tuple[int, bytes] | None = None  # the record LAST follows this frame
        self._confirmed_seq = 0  # as the replica was told

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_online(self) -> bool:
        return self.state == "online"

    def send(self, data: bytes) -> None:
        if not self.client.closed:
            self.source.sent_bytes += len(data)
            self.client.transmit(data)

    def begin(self, answer: bytes, next_seq: int) -> None:
        """Answer PSYNC; the frames from `next_seq` on follow."""
        self.next_seq = next_seq
        self.send(answer)
        self._go_online()
        self.pump()

    def wait_for_base(self, common_seq: int) -> None:
        """A full sync is due. `common_seq` is the last frame that both servers have; -1: none."""
        self.state = "wait_bgsave"
        self.common_seq = common_seq

    def begin_full_sync(self, answer: bytes, next_seq: int, base: File | None) -> None:
        """Answer PSYNC; the base, if there is one, and the frames from `next_seq` on follow."""
        self.next_seq = next_seq
        self.send(answer)
        self.state = "send_bulk"
        if not self._open(base):  # which has closed the base
            self.drop("the files of the full sync cannot be opened")
        self.pump()

    def _go_online(self) -> None:
        """From now on the replica acknowledges; it could not during a full sync."""
        self.state = "online"
        self.acked_ms = self.machine.steady_clock()

    def acknowledge(self, acked_seq: int, synced_seq: int, frame_bytes: int, now_ms: int) -> None:
        self.acked_seq = max(self.acked_seq, acked_seq)
        self.synced_seq = synced_seq
        self.frame_bytes = frame_bytes
        self.acked_ms = now_ms

    def drop(self, reason: str) -> None:
        """End the link; the replica connects again."""
        if not self.client.closed:
            log.warning("the link to the replica %s ends: %s", self.address, reason)
            self.client.close(after_reply=False)
        self.on_end(self.client)

    def close(self) -> None:
        """The connection was closed."""
        self._piece = None
        if self._old is not None and not self._is_reading:
            self._old.close()
            self._old = None

    def tell_upstream(self, ids: bytes) -> None:
        """Tell the replica the IDs of the servers above it, if it wants them and others were
        told."""
        if self.upstream is not None and self.upstream != ids:
            self.upstream = ids
            self.send(encode(0, RecordKind.UPSTREAM, ids, self.source.term))

    # Sending

    def add_message(self, record: bytes, shown_seq: int) -> None:
        """Send the record of a message, after this frame."""
        self._messages.append((shown_seq, record))
        if shown_seq <= self.source.durable_seq:
            self.pump()

    def _send_messages(self) -> None:
        """Send the messages whose frames were sent."""
        while self._messages and self._messages[0][0] < self.next_seq:
            self.send(self._messages.popleft()[1])

    def send_last(self, record: bytes, seq: int) -> None:
        """The replica is being promoted: send the record LAST when it was sent everything up to
        this frame. It is not a message, of which the oldest are dropped."""
        self._last = (seq, record)
        self.pump()

    def _send_last(self) -> None:
        if self._last is not None and self._last[0] < self.next_seq:
            record, self._last = self._last[1], None
            self.send(record)

    def pump(self) -> None:
        """Send as much as the connection takes; the rest when it takes more, or in a later turn."""
        client = self.client
        left_bytes = _TURN_BYTES
        while not (client.closed or client.paused):
            if left_bytes <= 0:
                self._pump_later()
                return
            data = self._next_data()
            if self._confirmed_seq < self.source.confirmed_seq and self.is_online:
                self._confirmed_seq = self.source.confirmed_seq
                record = encode_confirmed(self._confirmed_seq, self.source.term)
                data = record + data if data else record
            if not data:
                self._send_messages()
                self._send_last()
                return
            left_bytes -= len(data)
            self.send(data)

    def _pump_later(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self.machine.scheduler.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pump_scheduled = False
        self.pump()

    def _next_data(self) -> bytes | None:
        """The next bytes; None when there are none, or when they are being read."""
        if self._piece is not None:
            piece, self._piece = self._piece, None
            self.next_seq = piece.next_seq
            return piece.data
        if self._is_reading or self.state in ("handshake", "wait_bgsave"):
            return None
        if self._old is None:
            if self.next_seq > self.source.durable_seq:
                return None
            records = self.source.take(self.next_seq)
            if records:
                self.next_seq += len(records)
                return b"".join(records)
            if not self._open(None):
                return None
        self._is_reading = True
        self.source.worker.submit(self._read)
        return None

    def _open(self, base: File | None) -> bool:
        """Open the files with the next data. False: the feed retries soon, or has ended."""
        try:
            self._old = self.source.open(self.next_seq, base)
        except OSError as error:  # a rewrite replaces the files at this moment
            self._open_tries += 1
            if self._open_tries >= _OPEN_TRIES:
                self.drop(f"the journals cannot be opened: {error}")
            else:
                self.machine.scheduler.call_later(0.1 * self._open_tries, self.pump)
            return False
        self._open_tries = 0
        return True

    # Reading old data, on the worker

    def _read(self) -> None:
        assert self._old is not None
        try:
            found: Piece | Exception | None = self._old.next()
        except Exception as error:
            found = error
        post(self.machine.scheduler, self._on_read, found)

    def _on_read(self, found: Piece | Exception | None) -> None:
        self._is_reading = False
        if self.client.closed:
            self.close()
        elif isinstance(found, Exception):
            self.close()
            self.drop(str(found) or type(found).__name__)
        elif found is None:
            self.close()
            self._go_online()
            self.pump()
        else:
            self._piece = found
            self.pump()
