"""Writes a file of Redis' RDB format that an old Redis loads.

A target is the oldest program that has to load the file: it decides the version of the format and
the newest type of a stream. What a type cannot hold is left out, and `losses` names it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from millstream.storage.dump.primitives import length_bytes, string_bytes
from millstream.storage.dump.rdb import STRING, VERSIONS, StreamDump
from millstream.storage.dump.rdb_bytes import crc64
from millstream.storage.dump.stream_reading import (
    STREAM,
    STREAM_2,
    STREAM_3,
    STREAM_4,
    STREAM_5,
)
from millstream.storage.streams.stream import RetentionPolicy, Stream

_PIECE_BYTES = 1 << 20
_AUX, _EXPIRY_MS, _DATABASE, _EOF = b"\xfa", b"\xfc", b"\xfe", b"\xff"
_TARGETS = (
    (STREAM, ("6.2",)),
    (STREAM_2, ("7.0",)),
    (STREAM_3, ("7.2", "7.4", "8.0", "8.2", "8.4")),
    (STREAM_4, ("8.6",)),
    (STREAM_5, ("8.8", "8.10")),
)


class Target(NamedTuple):
    """A version of Redis: the version of its format, and its newest type of a stream."""

    version: int
    kind: int


TARGETS = {name: Target(VERSIONS[kind], kind) for kind, names in _TARGETS for name in names}


def losses(stream: Stream, kind: int) -> list[str]:
    """The parts of a stream that a value of this type leaves out, in words."""
    lost = []
    if stream.policy is not None:
        lost.append(f"its policy (TPOLICY {_policy_words(stream.policy)})")
    if any(group.rules is not None for group in stream.groups.values()):
        lost.append("times to live and rules of groups (TGROUP)")
    if stream.schedule is not None and len(stream.schedule):
        lost.append(f"scheduled entries ({len(stream.schedule)})")
    if stream.idempotence is not None and kind < STREAM_4 and not stream.idempotence.is_blank():
        lost.append("messages of producers (IDMP)")
    if stream.producers is not None:
        lost.append("numbers of producers (TAPPENDONCE)")
    if stream.is_reserving:
        lost.append("reservations and held entries")
    if any(group.pending.unowned_count for group in stream.groups.values()) and kind < STREAM_5:
        lost.append("that pending entries have no owner")
    return lost


def _policy_words(policy: RetentionPolicy) -> str:
    limits = {
        "MAXLEN": policy.max_len,
        "MAXAGE": policy.max_age_ms,
        "MAXBYTES": policy.max_bytes,
        "HARDLEN": policy.hard_len,
        "HARDAGE": policy.hard_age_ms,
        "HARDBYTES": policy.hard_bytes,
    }
    words = [f"{name} {limit}" for name, limit in limits.items() if limit]
    if policy.evict:
        words.append(f"EVICT {('ANY', 'ACKED', 'DONE')[policy.evict]}")
    return " ".join(words + ["EXACT"] * policy.exact)


class RdbWriter:
    """Writes one file: `add_stream` and `add_string` for each key, database by database, then
    `finish`.

    `kind` is the type of streams. Times in the file are wall clock times; the wall clock is ahead
    of the steady clock by `wall_ahead_ms`."""

    def __init__(
        self,
        write: Callable[[bytes], object],
        target: Target,
        unowned: bytes,
        wall_ahead_ms: int = 0,
    ) -> None:
        self.kind = target.kind
        self._write = write
        self._unowned = unowned
        self._wall_ahead_ms = wall_ahead_ms
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._crc = 0
        self._database = -1
        self._put(b"REDIS%04d" % target.version)

    def describe(self, redis: str, now_s: int) -> None:
        """Add the facts about the file, before all keys: the version of Redis that it is for, and
        the time."""
        for name, value in (
            (b"redis-ver", redis.encode() + b".0"),
            (b"redis-bits", b"64"),
            (b"ctime", b"%d" % now_s),
        ):
            self._put(_AUX + string_bytes(name) + string_bytes(value))

    def add_stream(self, database: int, key: bytes, stream: Stream, expires_ms: int | None) -> None:
        dump = StreamDump(stream, self._wall_ahead_ms, kind=self.kind, unowned=self._unowned)
        self._add(database, key, dump.steps(), expires_ms)

    def add_string(self, database: int, key: bytes, value: bytes, expires_ms: int | None) -> None:
        self._add(database, key, (bytes((STRING,)), string_bytes(value)), expires_ms)

    def _add(
        self, database: int, key: bytes, pieces: Iterable[bytes], expires_ms: int | None
    ) -> None:
        """A key; the first byte of its value is the type, which comes before the key."""
        if database != self._database:
            self._database = database
            self._put(_DATABASE + length_bytes(database))
        if expires_ms is not None:
            self._put(_EXPIRY_MS + struct.pack("<q", expires_ms))
        is_first = True
        for piece in pieces:
            if is_first and piece:
                self._put(piece[:1] + string_bytes(key))
                piece, is_first = piece[1:], False
            self._put(piece)

    def _put(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._size_bytes += len(piece)
        if self._size_bytes >= _PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size_bytes = 0
        self._crc = crc64(data, self._crc)
        self._write(data)

    def finish(self) -> None:
        """Write the end with the checksum."""
        self._put(_EOF)
        self._flush()
        self._write(struct.pack("<Q", self._crc))
