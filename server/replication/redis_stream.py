"""The stream of commands for Redis servers that follow this one: its ID, offsets and backlog.

Each frame becomes commands in the turn in which it is recorded. They belong to the stream when the
frame is durable, and offsets count its bytes, as in Redis.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Mark(NamedTuple):
    """The end of the commands of a frame: the offset, the number of the frame, and the size of all
    frames up to it."""

    offset: int
    seq: int
    frame_bytes: int


class Waiting(NamedTuple):
    """The commands of a frame that is not durable yet."""

    data: bytes
    mark: Mark


class CommandStream:
    """`end` is the stream's end; `made` is that with the commands of frames that are not durable.
    At most `limit_bytes` of its end are kept for partial syncs."""

    def __init__(self, replid: str, limit_bytes: int, seq: int, frame_bytes: int) -> None:
        self.replid = replid
        self.limit_bytes = limit_bytes
        self.end = Mark(0, seq, frame_bytes)
        self.made = self.end
        self._waiting: deque[Waiting] = deque()
        self._pieces: deque[bytes] = deque()
        self._first = 0  # the offset before the first piece

    @property
    def backlog_bytes(self) -> int:
        return self.end.offset - self._first

    def add(self, data: bytes, seq: int, frame_bytes: int) -> None:
        """Add the commands of a frame."""
        self.made = Mark(self.made.offset + len(data), seq, frame_bytes)
        self._waiting.append(Waiting(data, self.made))

    def add_unframed(self, data: bytes) -> None:
        """Add a command that belongs to no frame."""
        self.add(data, self.made.seq, self.made.frame_bytes)

    def take_durable(self, seq: int) -> bytes:
        """The bytes that belong to the stream from now on, because these frames are durable."""
        taken = []
        while self._waiting and self._waiting[0].mark.seq <= seq:
            data, self.end = self._waiting.popleft()
            taken.append(data)
        data = b"".join(taken)
        if data:
            self._pieces.append(data)
            while self.backlog_bytes > self.limit_bytes and len(self._pieces) > 1:
                self._first += len(self._pieces.popleft())
        return data

    def has(self, offset: int) -> bool:
        """True if everything after this offset is in the backlog."""
        return self._first <= offset <= self.end.offset

    def after(self, offset: int) -> bytes:
        return b"".join(self._pieces)[offset - self._first :]
