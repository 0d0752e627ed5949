"""The frames that replicas may need: the last ones in memory (repl-backlog-size), older ones on the
disk.

A worker reads old frames, and a base as it is on the disk, in pieces, one at a time for each
replica; the event loop sends them. Files that a rewrite replaces meanwhile stay readable while they
are open.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from millstream.errors import DataError
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import TaskWorker
from millstream.server.replication.records import (
    HEAD_BYTES,
    PIECE_BYTES,
    RecordKind,
    encode,
    encode_frame,
    encode_piece,
)
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.journal_reader import frames_from
from millstream.storage.files.manifest import Manifest


class Backlog:
    """Consecutive frames, the oldest of which are dropped when their records exceed `limit_bytes`.
    The last one is always kept, whatever its size. A frame is encoded when it is sent for the first
    time: on a replica without replicas of its own that is never."""

    def __init__(self, limit_bytes: int, next_seq: int) -> None:
        self.limit_bytes = limit_bytes
        self.term = 0  # in the records
        self.first_seq = self.next_seq = next_seq
        self.size_bytes = 0
        self._payloads: dict[int, bytes] = {}  # of the frames that are not encoded
        self._records: dict[int, bytes] = {}

    def append(self, payload: bytes) -> None:
        """Add frame `next_seq`."""
        self._payloads[self.next_seq] = payload
        self.next_seq += 1
        self.size_bytes += HEAD_BYTES + len(payload)
        while self.size_bytes > self.limit_bytes and self.first_seq < self.next_seq - 1:
            self._drop_first()

    def _drop_first(self) -> None:
        record = self._records.pop(self.first_seq, None)
        if record is not None:
            self.size_bytes -= len(record)
        else:
            self.size_bytes -= HEAD_BYTES + len(self._payloads.pop(self.first_seq))
        self.first_seq += 1

    def holds(self, seq: int) -> bool:
        return self.first_seq <= seq < self.next_seq

    def payload(self, seq: int) -> bytes | None:
        """The payload of a frame; None if it is not here."""
        record = self._records.get(seq)
        return self._payloads.get(seq) if record is None else record[HEAD_BYTES:]

    def take(self, seq: int, last_seq: int, most_bytes: int) -> list[bytes]:
        """The records of the frames from `seq` to `last_seq`, about `most_bytes`; at least one if
        there is any."""
        taken: list[bytes] = []
        size_bytes = 0
        for number in range(seq, min(last_seq + 1, self.next_seq)):
            record = self._records.get(number)
            if record is None:
                record = encode_frame(number, self._payloads.pop(number), self.term)
                self._records[number] = record
            if taken and size_bytes + len(record) > most_bytes:
                break
            taken.append(record)
            size_bytes += len(record)
        return taken


class Piece(NamedTuple):
    """Records, and the number of the frame after them."""

    data: bytes
    next_seq: int


class MissingError(DataError):
    """The frames that a replica needs are not in the journals any more."""


class OldData:
    """A base, if wanted, and the frames from `next_seq` to `last_seq` of one manifest's files.
    `at_end` is true if no piece is left."""

    def __init__(
        self,
        disk: Disk,
        manifest: Manifest,
        next_seq: int,
        last_seq: int,
        *,
        base: File | None,
        pause: Callable[[], None],
        term: int = 0,
    ) -> None:
        """Open the files. OSError when a rewrite has just removed one: its successor is next.
        `pause` is called often during `next`: it yields the interpreter to the event loop."""
        self._base = base
        self._pause = pause
        self._term = term
        self._files: list[File] = []
        self._next_seq = next_seq
        self._last_seq = last_seq
        self.at_end = base is None and next_seq > last_seq
        self._pieces = self._read()
        try:
            for name in manifest.journals:
                self._files.append(disk.read(name))
        except OSError:
            self.close()
            raise

    def next(self) -> Piece | None:
        """The next piece, None at the end. On the worker's thread. OSError, or DataError when a
        file is damaged or a frame is missing."""
        piece = next(self._pieces, None)
        if piece is None:
            self.at_end = True
        return piece

    def close(self) -> None:
        """Close the files, not during `next`."""
        # A suspended generator refers to this object and to what it has read: without an end, both
        # would stay in memory until a full garbage collection.
        self._pieces.close()
        for file in [self._base, *self._files]:
            if file is not None:
                file.close()

    def _read(self) -> Generator[Piece, None, None]:
        if self._base is not None:
            yield from self._read_base(self._base)
        if self._next_seq <= self._last_seq:
            yield from self._read_frames()

    def _read_base(self, base: File) -> Iterator[Piece]:
        for offset in range(0, base.size, PIECE_BYTES):
            data = base.read_at(offset, min(PIECE_BYTES, base.size - offset))
            yield Piece(encode_piece(offset, data, self._term), self._next_seq)
        self.at_end = self._next_seq > self._last_seq
        yield Piece(encode(0, RecordKind.END, b"", self._term), self._next_seq)

    def _read_frames(self) -> Iterator[Piece]:
        records: list[bytes] = []
        size_bytes = 0
        due = self._next_seq
        for seq, payload in frames_from(self._files, due, self._last_seq, self._pause):
            records.append(encode_frame(seq, payload, self._term))
            size_bytes += len(records[-1])
            due = seq + 1
            if size_bytes >= PIECE_BYTES:
                self.at_end = due > self._last_seq
                yield Piece(b"".join(records), due)
                records, size_bytes = [], 0
        if records:
            self.at_end = due > self._last_seq
            yield Piece(b"".join(records), due)
        if due == self._next_seq:
            raise MissingError(f"frame {due} is not in the journals")


class FrameSource:
    """The frames of this server, for all of its replicas. `backlog` is None while there are no
    replicas. `worker` reads from the disk. `term` is that of this server as the primary of a shard
    (0: of none), and `confirmed_seq` the last frame that its members have confirmed. While
    `needs_disk`, only frames on the disk here may be sent, also when the journal has failed: a
    primary that restarts in its term must not lack frames of a replica."""

    def __init__(self, persistence: Persistence, worker: TaskWorker) -> None:
        self.backlog: Backlog | None = None
        self.worker = worker
        self.sent_bytes = 0
        self.term = 0
        self.confirmed_seq = 0
        self.needs_disk = False
        self._persistence = persistence

    @property
    def durable_seq(self) -> int:
        """The last frame that may be sent."""
        commits = self._persistence.commits
        if self.needs_disk:
            return min(commits.durable_seq, commits.on_disk_seq)
        return commits.durable_seq

    def take(self, seq: int) -> list[bytes]:
        """The records of durable frames from `seq` on, about as many as one piece has; none if the
        first one is not in memory."""
        if self.backlog is None or not self.backlog.holds(seq):
            return []
        self.backlog.term = self.term
        return self.backlog.take(seq, self.durable_seq, PIECE_BYTES)

    def open(self, next_seq: int, base: File | None) -> OldData:
        """The base, if there is one, and the durable frames from `next_seq` on. OSError when a
        rewrite has just removed a file."""
        files, pause = self._persistence.files, self.worker.pause
        return OldData(
            files.disk,
            files.manifest,
            next_seq,
            self.durable_seq,
            base=base,
            pause=pause,
            term=self.term,
        )
