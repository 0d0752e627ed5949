"""Sending a replica data that is not in memory: a base as it is on the disk, and old frames.

A worker reads it in pieces, one at a time for each replica, and the event loop sends them. Files
that a rewrite replaces meanwhile stay readable while they are open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from millstream.errors import DataError
from millstream.server.replication.records import (
    PIECE_BYTES,
    Kind,
    encode,
    encode_frame,
    encode_piece,
)
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.journal_reader import frames_from
from millstream.storage.files.manifest import Manifest


class Piece(NamedTuple):
    """Records, and the number of the frame after them."""

    data: bytes
    next_seq: int


class MissingError(DataError):
    """The frames that a replica needs are not in the journals any more."""


class OldData:
    """A base, if wanted, and the frames from `next_seq` to `last_seq` of one manifest's files."""

    def __init__(
        self,
        disk: Disk,
        manifest: Manifest,
        next_seq: int,
        last_seq: int,
        *,
        base: File | None,
        pause: Callable[[], None],
    ) -> None:
        """Open the files. OSError when a rewrite has just removed one: its successor is next.
        `pause` is called often during `next`: it yields the interpreter to the event loop."""
        self._base = base
        self._pause = pause
        self._files: list[File] = []
        self._next_seq = next_seq
        self._last_seq = last_seq
        try:
            for name in manifest.journals:
                self._files.append(disk.read(name))
        except OSError:
            self.close()
            raise
        self._pieces = self._read()

    def next(self) -> Piece | None:
        """The next piece, None at the end. On the worker's thread. OSError, or DataError when a
        file is damaged or a frame is missing."""
        return next(self._pieces, None)

    def close(self) -> None:
        for file in [self._base, *self._files]:
            if file is not None:
                file.close()

    def _read(self) -> Iterator[Piece]:
        if self._base is not None:
            yield from self._read_base(self._base)
        if self._next_seq <= self._last_seq:
            yield from self._read_frames()

    def _read_base(self, base: File) -> Iterator[Piece]:
        for offset in range(0, base.size, PIECE_BYTES):
            data = base.read_at(offset, min(PIECE_BYTES, base.size - offset))
            yield Piece(encode_piece(offset, data), self._next_seq)
        yield Piece(encode(0, Kind.END, b""), self._next_seq)

    def _read_frames(self) -> Iterator[Piece]:
        records: list[bytes] = []
        size_bytes = 0
        due = self._next_seq
        for seq, payload in frames_from(self._files, due, self._last_seq, self._pause):
            records.append(encode_frame(seq, payload))
            size_bytes += len(records[-1])
            due = seq + 1
            if size_bytes >= PIECE_BYTES:
                yield Piece(b"".join(records), due)
                records, size_bytes = [], 0
        if records:
            yield Piece(b"".join(records), due)
        if due == self._next_seq:
            raise MissingError(f"frame {due} is not in the journals")
