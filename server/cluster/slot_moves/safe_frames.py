"""The safe frames of this server, one after the other: those that no election loses.

Frames that are not in memory any more are read from the disk, by a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from millstream.server.durability.directory_loader import FRAME_BYTES
from millstream.server.durability.workers import Machine, post
from millstream.server.replication.backlog import FrameSource, OldData, Piece
from millstream.server.replication.records import Decoder, Record
from millstream.storage.files.journal_writer import PAYLOAD_MAX

_OPEN_TRIES = 5


class Frame(NamedTuple):
    number: int
    payload: bytes


class Mark(NamedTuple):
    """The size of all frames up to this one."""

    number: int
    frame_bytes: int


class SafeFrames:
    """`on_read` is called when frames from the disk are there, `on_error(reason)` if that has
    failed. `next_seq` is the next frame. `read_bytes`: the size of all frames before it, once that
    is known: from `mark` on."""

    def __init__(
        self,
        source: FrameSource,
        machine: Machine,
        next_seq: int,
        mark: Mark,
        on_read: Callable[[], None],
        on_error: Callable[[str], None],
    ) -> None:
        self.next_seq = next_seq
        self.read_bytes: int | None = mark.frame_bytes if next_seq > mark.number else None
        self._source = source
        self._machine = machine
        self._mark = mark
        self._on_read = on_read
        self._on_error = on_error
        self._read: deque[Record] = deque()  # from the disk
        self._old: OldData | None = None
        self._is_reading = False
        self._tries = 0
        self._is_closed = False

    def next(self, last_seq: int) -> Frame | None:
        """The next frame, if it is not after `last_seq`, and is there."""
        number = self.next_seq
        if number > last_seq or self._is_reading:
            return None
        if self._read and self._read[0].number == number:
            payload: bytes | None = self._read.popleft().payload
        else:
            self._read.clear()
            backlog = self._source.backlog
            payload = None if backlog is None else backlog.payload(number)
            if payload is not None:
                self._close_old()
        if payload is None:
            self._read_more()
            return None
        self.next_seq += 1
        if self.read_bytes is not None:
            self.read_bytes += FRAME_BYTES + len(payload)
        elif number == self._mark.number:
            self.read_bytes = self._mark.frame_bytes
        return Frame(number, payload)

    def close(self) -> None:
        self._is_closed = True
        self._read.clear()
        if not self._is_reading:
            self._close_old()

    def _close_old(self) -> None:
        if self._old is not None:
            self._old.close()
            self._old = None

    def _read_more(self) -> None:
        """Read the next frames from the disk."""
        if self._old is None and not self._open():
            return
        self._is_reading = True
        self._source.worker.submit(self._on_worker)

    def _open(self) -> bool:
        try:
            self._old = self._source.open(self.next_seq, None)
        except OSError as error:  # a rewrite replaces the files at this moment
            self._tries += 1
            if self._tries >= _OPEN_TRIES:
                self._on_error(f"the journals cannot be opened: {error}")
            return False
        self._tries = 0
        return True

    def _on_worker(self) -> None:
        assert self._old is not None
        try:
            found: Piece | Exception | None = self._old.next()
        except Exception as error:
            found = error
        post(self._machine.scheduler, self._was_read, found)

    def _was_read(self, found: Piece | Exception | None) -> None:
        self._is_reading = False
        if self._is_closed or found is None or isinstance(found, Exception):
            self._close_old()
        if self._is_closed:
            return
        if isinstance(found, Exception):
            self._on_error(str(found) or type(found).__name__)
            return
        if found is not None:
            decoder = Decoder(PAYLOAD_MAX, self._source.term)
            decoder.feed(found.data)
            while (record := decoder.next()) is not None:
                self._read.append(record)
        self._on_read()
