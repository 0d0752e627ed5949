"""The answer of a Redis or Valkey to PSYNC and the full sync after it, without I/O.

After CONTINUE, the commands follow. After FULLRESYNC come newlines while the source prepares an
RDB, then `$size` or `$EOF:mark` in a line, the RDB, the mark if there is one, and the commands.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from enum import Enum, auto
from typing import NamedTuple

from millstream.server.replication.records import LinkError

# Valkey before 9 ends a sync of data that its replica cannot have, by the replica's version.
VERSION = b"9.2.0"
REDIS_CAPABILITIES = b"eof", b"psync2"
NO_POSITION = (b"?", b"-1")

_LINE_MAX = 4096
_MARK_BYTES = 40
_ID = re.compile(r"[0-9a-zA-Z]{40}")


class Continues(NamedTuple):
    """The commands after the position that was asked for follow. `replid` is the new ID of the
    source's stream, "" if it is the same."""

    replid: str


class BeginsAgain(NamedTuple):
    """An RDB with everything up to this offset follows, and then the commands after it."""

    replid: str
    offset: int


class RdbSize(NamedTuple):
    """The RDB begins. -1: its end is known when it is there."""

    size_bytes: int


class RdbPiece(NamedTuple):
    data: bytes


class RdbEnd(NamedTuple):
    """The RDB has arrived."""


class Commands(NamedTuple):
    """Bytes of the stream of commands."""

    data: bytes


class Refusal(NamedTuple):
    """The source's error."""

    text: str


SourceEvent = Continues | BeginsAgain | RdbSize | RdbPiece | RdbEnd | Commands


class _Due(Enum):
    ANSWER = auto()
    HEAD = auto()  # of the RDB
    SIZED = auto()  # an RDB of a known size
    MARKED = auto()  # an RDB up to the mark
    COMMANDS = auto()
    NOTHING = auto()


class RedisOpening:
    """Reads the answer to PSYNC and everything after it."""

    def __init__(self) -> None:
        self._due = _Due.ANSWER
        self._text = b""
        self._left_bytes = 0
        self._mark = b""
        self._tail = b""  # of the RDB: it may be the beginning of the mark

    def feed(self, data: bytes) -> Iterator[SourceEvent | Refusal]:
        """The events that these bytes complete. LinkError if they are not allowed."""
        while data:
            if self._due is _Due.COMMANDS:
                yield Commands(data)
                return
            if self._due is _Due.NOTHING:
                return
            if self._due is _Due.SIZED:
                piece, data = data[: self._left_bytes], data[self._left_bytes :]
                self._left_bytes -= len(piece)
                yield RdbPiece(piece)
                if not self._left_bytes:
                    yield self._end_rdb()
            elif self._due is _Due.MARKED:
                data = yield from self._take_marked(data)
            else:
                data = yield from self._take_line(data)

    def _take_line(self, data: bytes) -> Generator[SourceEvent | Refusal, None, bytes]:
        """Take a line of the answer; returns the bytes after it."""
        line, end, rest = (self._text + data).partition(b"\n")
        if not end:
            if len(line) > _LINE_MAX:
                raise LinkError("the source sent an answer without an end")
            self._text = line
            return b""
        self._text = b""
        line = line.removesuffix(b"\r")
        if not line:
            return rest  # the source is still there
        text = line.decode("utf-8", "replace")
        event = self._answered(text) if self._due is _Due.ANSWER else self._headed(text)
        yield event
        return rest

    def _answered(self, text: str) -> SourceEvent | Refusal:
        if text.startswith("-"):
            self._due = _Due.NOTHING
            return Refusal(text.removeprefix("-"))
        word, *rest = text.split() or [""]
        if word == "+CONTINUE" and len(rest) <= 1 and all(map(_ID.fullmatch, rest)):
            self._due = _Due.COMMANDS
            return Continues("".join(rest))
        if (
            word == "+FULLRESYNC"
            and len(rest) == 2
            and _ID.fullmatch(rest[0])
            and rest[1].isdecimal()
            and len(rest[1]) < 19
        ):
            self._due = _Due.HEAD
            return BeginsAgain(rest[0], int(rest[1]))
        raise LinkError(f"{text[:80]!r} as the answer to PSYNC: the source is no Redis or Valkey")

    def _headed(self, text: str) -> SourceEvent | Refusal:
        if text.startswith("-"):
            self._due = _Due.NOTHING
            return Refusal(text.removeprefix("-"))
        if text.startswith("$EOF:") and len(text) == 5 + _MARK_BYTES:
            self._mark = text[5:].encode()
            self._due = _Due.MARKED
            return RdbSize(-1)
        if text.startswith("$") and text[1:].isdecimal() and len(text) < 20:
            self._left_bytes = int(text[1:])
            if not self._left_bytes:
                raise LinkError("the source sent an RDB of 0 bytes")
            self._due = _Due.SIZED
            return RdbSize(self._left_bytes)
        raise LinkError(f"{text[:80]!r} in place of an RDB")

    def _take_marked(self, data: bytes) -> Generator[SourceEvent | Refusal, None, bytes]:
        """Take bytes of an RDB that ends with the mark; returns the bytes after that."""
        data = self._tail + data
        end = data.find(self._mark)
        if end < 0:
            kept = len(data) - _MARK_BYTES + 1
            self._tail = data[max(kept, 0) :]
            if kept > 0:
                yield RdbPiece(data[:kept])
            return b""
        self._tail = b""
        if end:
            yield RdbPiece(data[:end])
        yield self._end_rdb()
        return data[end + _MARK_BYTES :]

    def _end_rdb(self) -> RdbEnd:
        self._due = _Due.COMMANDS
        return RdbEnd()
