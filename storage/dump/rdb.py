"""Values in the format of Redis' DUMP: strings and streams, in both directions.

A payload is a type byte, the value, two bytes with the version of the format and an eight-byte
CRC-64. Reading checks everything, because a payload may come from any source: PayloadError means an
invalid value, and no memory is allocated for a length before the bytes are present. Writing uses
the oldest type that can represent the stream, so that the oldest possible Redis accepts the
payload.

Reading and writing work in steps, with pauses for other work. Properties that Redis cannot
represent are left out; docs/commands/dump.md lists them.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, TypeVar

from millstream.clock_offset import shifted_ms
from millstream.errors import PayloadError
from millstream.storage.dump.listpack import count_live_nodes, live_nodes, write_node
from millstream.storage.dump.pending import ids_by_consumer, write_pending
from millstream.storage.dump.primitives import EntryId, id_bytes, length_bytes, string_bytes
from millstream.storage.dump.rdb_bytes import crc64
from millstream.storage.dump.reader import Reader
from millstream.storage.dump.skipping import (
    KEY_METADATA,
    OTHER_TYPES,
    VALKEY_OTHER_TYPES,
    skip_key_metadata,
)
from millstream.storage.dump.stream_reading import (
    STREAM,
    STREAM_2,
    STREAM_3,
    STREAM_4,
    STREAM_5,
    UNKNOWN,
    StreamReader,
    is_stream_type,
)
from millstream.storage.groups.group_snapshot import PENDING_SIZE
from millstream.storage.streams.idempotence import DURATION_S, MAXSIZE
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

STRING = 0
# The version of the format that introduced the type: an older Redis refuses the payload.
VERSIONS = {STRING: 9, STREAM: 9, STREAM_2: 10, STREAM_3: 11, STREAM_4: 13, STREAM_5: 14}
VERSION_MAX = 15  # of Redis 8.10, whose streams are those of 8.8
VALKEY_VERSIONS = (80, 81)  # of Valkey 9; Redis leaves these numbers to it
FOOTER_BYTES = 10
STEP_BYTES = 1 << 18
UNOWNED = b"unowned"  # the consumer that gets pending entries without an owner

Value = bytes | Stream
Result = TypeVar("Result")


def whole(steps: Generator[None, None, Result]) -> Result:
    """Run all steps and return their result."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: Result = done.value
    return result


# ---------------------------------------------------------------- a payload as a whole


def footer(version: int, crc: int) -> bytes:
    """The end of a payload; `crc` is the checksum of all bytes before it."""
    mark = struct.pack("<H", version)
    return mark + struct.pack("<Q", crc64(mark, crc))


def is_intact(payload: bytes) -> Generator[None, None, bool]:
    """True if the checksum is valid and the version is supported; in steps.

    A checksum of 0 means that there is none, as in Redis 8.
    """
    if len(payload) < FOOTER_BYTES:
        return False
    version, wanted = struct.unpack("<HQ", payload[-FOOTER_BYTES:])
    if version > VERSION_MAX and version not in VALKEY_VERSIONS:
        return False
    if wanted == 0:
        return True
    crc, end = 0, len(payload) - 8
    for start in range(0, end, STEP_BYTES):
        crc = crc64(payload, crc, start, min(start + STEP_BYTES, end))
        yield
    return bool(crc == wanted)


class OtherTypeError(PayloadError):
    """A value of a type that millstream does not support."""


class Loaded(NamedTuple):
    """A value, and the type in its payload."""

    value: Value
    kind: int


def load(
    payload: bytes, incarnation: int, now_ms: int, wall_ahead_ms: int = 0
) -> Generator[None, None, Loaded]:
    """The value of an intact payload, in steps; PayloadError when it is invalid.

    Times in a payload are wall clock times; times of the value and `now_ms` are steady clock times.
    The wall clock is ahead by `wall_ahead_ms`.
    """
    reader = Reader(payload, len(payload) - FOOTER_BYTES, wall_ahead_ms)
    is_valkey = int.from_bytes(payload[-FOOTER_BYTES:-8], "little") in VALKEY_VERSIONS
    others = VALKEY_OTHER_TYPES if is_valkey else OTHER_TYPES
    kind = reader.byte()
    try:
        if kind == KEY_METADATA and not is_valkey:
            skip_key_metadata(reader)
            kind = reader.byte()
        if kind == STRING:
            value: Value = reader.string()
        elif is_stream_type(kind, is_valkey):
            value = yield from StreamReader(reader, kind, incarnation, now_ms).read()
        elif kind in others:
            raise OtherTypeError(
                f"the payload holds {others[kind]}; this server has strings and streams"
            )
        else:
            raise PayloadError(f"type {kind} is not known")
    except PayloadError:
        raise
    except OverflowError as error:
        raise PayloadError(f"a number is out of range: {error}") from error
    except ValueError as error:  # from a part that does not load
        raise PayloadError(str(error)) from error
    if reader.at != reader.end:
        raise PayloadError("bytes follow the value")
    return Loaded(value, kind)


# ---------------------------------------------------------------- writing


def _with_pauses(steps: Generator[None, None, Result]) -> Generator[bytes, None, Result]:
    """Like `whole`, with an empty piece at each pause."""
    try:
        while True:
            next(steps)
            yield b""
    except StopIteration as done:
        result: Result = done.value
    return result


class StreamDump:
    """A point-in-time copy of a stream, which is written in steps while the stream changes.

    `version` is the version of the format, for the footer; `steps` yields the bytes before the
    footer. Times are wall clock times; the wall clock is ahead of the steady clock by
    `wall_ahead_ms`. `kind` is the type to write, by default the oldest that holds everything. Types
    below 27 have no pending entries without an owner: a consumer of the name `unowned` gets them.
    """

    def __init__(
        self,
        stream: Stream,
        wall_ahead_ms: int = 0,
        kind: int | None = None,
        unowned: bytes = UNOWNED,
    ) -> None:
        self._unowned = unowned
        self._wall_ahead_ms = wall_ahead_ms
        self._meta, self._blocks = dump_stream(stream, shared=True)
        self._first_id = stream.first_id or (0, 0)
        window = stream.idempotence
        self._window = None if window is None or window.is_blank() else window.share()
        self._kind = self._oldest_kind(stream) if kind is None else kind
        self.version = VERSIONS[self._kind]

    def _oldest_kind(self, stream: Stream) -> int:
        if any(group.pending.unowned_count for group in stream.groups.values()):
            return STREAM_5
        return STREAM_2 if self._window is None else STREAM_4

    def steps(self) -> Iterator[bytes]:
        """The bytes in pieces: a node, a consumer, all pending entries of a group. An empty piece
        marks the end of a step."""
        meta = self._meta
        yield bytes((self._kind,))
        yield from self._nodes(tuple(meta["first_kept"]))
        yield length_bytes(meta["length"]) + id_bytes(meta["last_id"])
        if self._kind >= STREAM_2:
            yield id_bytes(self._first_id) + id_bytes(meta["max_deleted"])
            yield length_bytes(meta["entries_added"])
        yield length_bytes(len(meta["groups"]))
        for group in meta["groups"]:
            yield from self._group(group)
        if self._kind >= STREAM_4:
            yield from self._window_bytes()

    def _nodes(self, first_kept: EntryId) -> Iterator[bytes]:
        count = 0
        for block in self._blocks:
            count += count_live_nodes(block, first_kept)
            yield b""
        yield length_bytes(count)
        for block in self._blocks:
            for entries in live_nodes(block, first_kept):
                listpack = yield from _with_pauses(write_node(entries))
                ms, seq, _ = entries[0]
                yield b"\x10" + struct.pack(">QQ", ms, seq) + string_bytes(listpack)

    def _group(self, group: dict[str, Any]) -> Iterator[bytes]:
        records = bytes(group["pending"])
        yield b""
        yield (
            string_bytes(group["name"])
            + id_bytes(group["offset"])
            + (length_bytes(group["entries_read"] & UNKNOWN) if self._kind >= STREAM_2 else b"")
            + length_bytes(len(records) // PENDING_SIZE)
        )
        yield from write_pending(records, group["large_counts"], self._wall_ahead_ms)
        consumers = group["consumers"]
        ids = yield from _with_pauses(ids_by_consumer(records, len(consumers)))
        if ids[0] and self._kind < STREAM_5:
            consumers, ids = self._with_owner(consumers, ids)
        yield length_bytes(sum(consumer is not None for consumer in consumers))
        for consumer, own in zip(consumers, ids, strict=True):
            if consumer is not None:
                yield self._consumer(*consumer) + length_bytes(len(own) // 16) + own
        if self._kind >= STREAM_5:
            yield length_bytes(len(ids[0]) // 16) + ids[0]

    def _with_owner(
        self, consumers: list[Any], ids: list[bytearray]
    ) -> tuple[list[Any], list[bytearray]]:
        """Consumers and their IDs, in which every pending entry has an owner."""
        for number, consumer in enumerate(consumers):
            if consumer is not None and consumer[0] == self._unowned:
                both = bytes(ids[0] + ids[number])
                own = sorted(both[at : at + 16] for at in range(0, len(both), 16))
                ids[number] = bytearray(b"".join(own))
                return consumers, ids
        return [*consumers, [self._unowned, 0, -1]], [*ids, ids[0]]

    def _consumer(self, name: bytes, seen_ms: int, active_ms: int) -> bytes:
        seen = struct.pack("<q", shifted_ms(seen_ms, self._wall_ahead_ms))
        active = struct.pack("<q", shifted_ms(active_ms, self._wall_ahead_ms))
        return string_bytes(name) + seen + (active if self._kind >= STREAM_3 else b"")

    def _window_bytes(self) -> Iterator[bytes]:
        if self._window is None:
            yield b"".join(map(length_bytes, (DURATION_S, MAXSIZE, 0, 0, 0)))
            return
        facts = self._window.facts
        yield length_bytes(facts["duration_s"]) + length_bytes(facts["maxsize"])
        yield length_bytes(len(self._window.producers))
        for producer, names in self._window.producers:
            yield string_bytes(producer) + length_bytes(len(names))
            for iid, (ms, seq, _) in names.items():
                yield string_bytes(iid) + id_bytes((ms, seq))
        yield length_bytes(facts["added"]) + length_bytes(facts["duplicates"])


class StringDump:
    """Like StreamDump, for a string."""

    version = VERSIONS[STRING]

    def __init__(self, text: bytes) -> None:
        self._text = text

    def steps(self) -> Iterator[bytes]:
        yield bytes((STRING,)) + string_bytes(self._text)
