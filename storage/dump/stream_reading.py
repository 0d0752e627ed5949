"""Reads a stream of Redis' dump format, from a payload or from a file, in steps.

Everything is checked, because a payload may come from any source. If a part of the value is wrong
but its length is known, the rest is passed over, so the next value of a file can be read. The fault
is raised at the end of the value. CutOffError: the end of the value is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.errors import CommandError, PayloadError
from millstream.storage.blocks.block import Block
from millstream.storage.dump.node_codec import NodeReader, take_sealed
from millstream.storage.dump.pending import PendingReader
from millstream.storage.dump.primitives import EntryId
from millstream.storage.dump.reader import CutOffError, Reader
from millstream.storage.dump.skipping import COMMON_TYPE_MAX, skip_group, skip_window
from millstream.storage.groups.group import Group
from millstream.storage.groups.group_snapshot import load_group_in_steps
from millstream.storage.streams.idempotence import DURATION_S, MAXSIZE, Window
from millstream.storage.streams.stream import Stream

# Each type adds to the one before: first ID, greatest deleted ID, entries added and entries read;
# the active times of consumers; the idempotence window; released entries.
STREAM, STREAM_2, STREAM_3, STREAM_4, STREAM_5 = 15, 19, 21, 26, 27
STREAMS = (STREAM, STREAM_2, STREAM_3, STREAM_4, STREAM_5)


def is_stream_type(kind: int, is_valkey: bool) -> bool:
    """True for a type of streams; Valkey has other types with the numbers of the later ones."""
    return kind in STREAMS and not (is_valkey and kind > COMMON_TYPE_MAX)


LISTPACK_MAX_BYTES = 1 << 30  # as in Redis
# Elements of a node that are read in one step: at most about a quarter of a millisecond's work.
STEP_ELEMENTS = 2048
# Blocks of a stream that is being read, before they are passed on.
BLOCKS_MAX = 64

UNKNOWN = 2**64 - 1  # entries read, if unknown
INT64_MAX = 2**63 - 1
# XSETID sets a count of up to 2^63 - 1. Appends can increase it further, but never to near 2^64.
ENTRIES_ADDED_MAX = 2**63 + 2**62

_FAULTS = (ValueError, OverflowError, CommandError)
T = TypeVar("T")


@dataclass
class Adjusted:
    """Corrections: delivery and seen times after now, and consumers without a name."""

    delivery_times: int = 0
    seen_times: int = 0
    consumers_without_name: int = 0

    def add(self, other: Adjusted) -> None:
        self.delivery_times += other.delivery_times
        self.seen_times += other.seen_times
        self.consumers_without_name += other.consumers_without_name


class StreamReader:
    """Reads one stream of the type `kind` into `stream`. Times after `now_ms` become `now_ms`.

    `take_blocks` gets sealed blocks while later ones are read; without it, the stream has them all.
    """

    def __init__(
        self,
        reader: Reader,
        kind: int,
        incarnation: int,
        now_ms: int,
        take_blocks: Callable[[list[Block]], None] | None = None,
    ) -> None:
        self.stream = Stream(incarnation)
        self.adjusted = Adjusted()
        self.fault_offset = -1  # where the first fault was found
        self._reader = reader
        self._kind = kind
        self._now_ms = now_ms
        self._take_blocks = take_blocks
        self._nodes = NodeReader(self.stream)
        self._fault: Exception | None = None

    @property
    def first_id(self) -> EntryId:
        """The ID of the first entry that was read, 0-0 without one."""
        return self._nodes.first_ms, self._nodes.first_seq

    def read(self) -> Generator[None, None, Stream]:
        """Read everything. PayloadError when the value is invalid."""
        yield from self._read_nodes()
        self._read_counters()
        yield from self._read_groups()
        if self._kind >= STREAM_4:
            yield from self._read_or_skip(self._read_window, lambda: skip_window(self._reader))
        if self._fault is not None:
            raise PayloadError(_in_words(self._fault)) from self._fault
        return self.stream

    def _fail(self, reason: str | Exception) -> None:
        if self._fault is None:
            self.fault_offset = self._reader.offset
            self._fault = PayloadError(reason) if isinstance(reason, str) else reason

    def _attempt(self, read: Callable[[], T]) -> T | None:
        """The result of reading a part whose end is known; None if the part is invalid."""
        try:
            return read()
        except CutOffError:
            raise
        except PayloadError as error:
            self._fail(error)
            return None

    # ------------------------------------------------------------ entries

    def _read_nodes(self) -> Iterator[None]:
        before = b""
        for _ in range(self._reader.length()):
            if self._fault is not None:
                self._reader.skip_string()
                self._reader.skip_string()
                continue
            key = self._attempt(self._reader.string)
            if key is None:
                self._reader.skip_string()
                continue
            if len(key) != 16 or key <= before:
                self._fail("a node's key is malformed, or below the one before")
            before = key
            yield from self._read_node(key)
            yield

    def _read_node(self, key: bytes) -> Iterator[None]:
        listpack = self._attempt(lambda: self._reader.string(LISTPACK_MAX_BYTES))
        if listpack is None or self._fault is not None:
            return
        ms, seq = struct.unpack(">QQ", key)
        try:
            while self._nodes.step(ms, seq, listpack, STEP_ELEMENTS):
                yield
        except _FAULTS as error:
            self._fail(error)
        if self._take_blocks is not None and self.stream.block_count > BLOCKS_MAX:
            self._take_blocks(take_sealed(self.stream))

    def _read_counters(self) -> None:
        reader, stream = self._reader, self.stream
        length, last_id = reader.length(), reader.id()
        if length != stream.length or last_id < stream.last_id:
            self._fail("a stream's length or last id does not match its entries")
        stream.entries_added = length
        if self._kind >= STREAM_2:
            reader.id()  # the first entry's ID, which is known
            stream.max_deleted_ms, stream.max_deleted_seq = reader.id()
            stream.entries_added = reader.length()
            if stream.entries_added < length:
                self._fail("a stream has more entries than were ever added")
            if stream.entries_added > ENTRIES_ADDED_MAX:
                self._fail("an impossible number of entries was added to a stream")
        stream.last_ms, stream.last_seq = last_id

    # ------------------------------------------------------------ groups

    def _read_groups(self) -> Iterator[None]:
        for _ in range(self._reader.length()):
            yield from self._read_or_skip(
                self._read_group, lambda: skip_group(self._reader, self._kind)
            )

    def _read_or_skip(
        self, read: Callable[[], Iterator[None]], skip: Callable[[], None]
    ) -> Iterator[None]:
        """Read a part; if it is invalid, or a part before it was, pass over it by its lengths."""
        if self._fault is None:
            self._reader.mark()
            try:
                yield from read()
                return
            except CutOffError:
                raise
            except _FAULTS as error:
                self._fail(error)
                self._reader.rewind()
            finally:
                self._reader.unmark()
        skip()
        yield

    def _read_group(self) -> Iterator[None]:
        reader = self._reader
        name, offset = reader.string(), reader.id()
        entries_read = reader.length() if self._kind >= STREAM_2 else self._entries_up_to(offset)
        if entries_read > INT64_MAX and entries_read != UNKNOWN:
            raise PayloadError("a group has read an impossible number of entries")
        if self.stream.group(name) is not None:
            raise PayloadError("a group appears twice")
        pending = PendingReader(reader, self._now_ms)
        yield from pending.read(reader.length())
        consumers = yield from self._read_consumers(pending)
        if self._kind >= STREAM_5:
            yield from pending.release(reader.length())
        group = yield from _load_group(name, offset, entries_read, consumers, pending, self._now_ms)
        self.adjusted.delivery_times += pending.adjusted
        self.stream.load_group(group)

    def _entries_up_to(self, offset: EntryId) -> int:
        """The number of entries up to this ID, as Redis computes it for a type without counters:
        known at the ends of the stream only."""
        if self.stream.length == 0:
            return 0
        if offset == self.stream.last_id:
            return self.stream.length
        return UNKNOWN if offset > self.first_id else int(offset == self.first_id)

    def _read_consumers(
        self, pending: PendingReader
    ) -> Generator[None, None, list[list[Any] | None]]:
        reader = self._reader
        consumers: list[list[Any] | None] = [None]
        names = set()
        for count in range(1, reader.length() + 1):
            name, seen_ms = reader.string(), self._not_after_now(reader.moment_ms())
            active_ms = seen_ms
            if self._kind >= STREAM_3:
                active_ms = self._not_after_now(reader.moment_ms())
            number = len(consumers) if name else 0
            yield from pending.give(reader.length(), number)
            names.add(name)
            if len(names) < count:
                raise PayloadError("a consumer appears twice")
            if name:
                consumers.append([name, seen_ms, active_ms])
            else:
                self.adjusted.consumers_without_name += 1
            yield
        return consumers

    def _not_after_now(self, moment_ms: int) -> int:
        if moment_ms <= self._now_ms:
            return moment_ms
        self.adjusted.seen_times += 1
        return self._now_ms

    # ------------------------------------------------------------ messages of producers

    def _read_window(self) -> Iterator[None]:
        self.stream.idempotence = yield from _load_window(self._reader)


def _in_words(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return f"a number is out of range: {error}"
    return str(error)


def _load_group(
    name: bytes,
    offset: EntryId,
    entries_read: int,
    consumers: list[list[Any] | None],
    pending: PendingReader,
    now_ms: int,
) -> Generator[None, None, Group]:
    return (
        yield from load_group_in_steps(
            {
                "name": name,
                "offset": list(offset),
                "gap_floor": [0, 0],
                "entries_read": -1 if entries_read == UNKNOWN else entries_read,
                "ttl_ms": 0,
                "consumers": consumers,
                "policies": [None],
                "large_counts": pending.large_counts,
                "pending": pending.records(),
            },
            now_ms,
        )
    )


def _load_window(reader: Reader) -> Generator[None, None, Window | None]:
    duration_s, maxsize = reader.length(), reader.length()
    producers = []
    for _ in range(reader.length()):
        name, messages = reader.string(), []
        for _ in range(reader.length()):
            iid, (ms, seq) = reader.string(), reader.id()
            messages.append([iid, ms, seq, ms])  # Redis uses the entry's time
        if messages:
            producers.append([name, messages])
        yield
    added, duplicates = reader.length(), reader.length()
    if (duration_s, maxsize, added, duplicates, producers) == (DURATION_S, MAXSIZE, 0, 0, []):
        return None
    return Window.load(
        {
            "duration_s": duration_s,
            "maxsize": maxsize,
            "added": added,
            "duplicates": duplicates,
            "producers": producers,
        }
    )
