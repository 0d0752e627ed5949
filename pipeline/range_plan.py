"""From positions to Spark's partitions: which entries are to be read, whether they are still there,
and how they are divided.

A range is fixed by two ids, the first exclusive and the last inclusive, and its place in the plan
by the counts of what lies between: so the same offsets give the same partitions with the same rows
in the same order, as long as nothing between them is deleted. Streaming writers rely on that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

from millstream.pipeline.options import Options
from millstream.pipeline.partition import InputPartition
from millstream.pipeline.positions import (
    FIRST,
    Division,
    Id,
    Position,
    Positions,
    id_text,
    key_text,
)
from millstream.pipeline.server import Server
from millstream.pipeline.stream_counters import ALL, Info, SeekResult, seek
from millstream.pipeline.trigger_limit import COUNT_MAX

log = logging.getLogger(__name__)

# Partitions are made at most this large, so that a task that is tried again does not cost much, and
# not smaller than this, because each task costs some milliseconds.
ENTRIES_PER_PARTITION_MAX = 1_000_000
ENTRIES_PER_PARTITION_MIN = 10_000
# Into how many partitions a large batch is divided at least.
PARTITIONS_WANTED = 8
# Cuts requested at once, in a transaction during which the server serves no other client.
CUTS_PER_REQUEST = 1000
NOTHING_KNOWN: Mapping[bytes, Info] = MappingProxyType({})


class DataLossError(Exception):
    """Entries that should be read are gone; says how many of which stream."""


class Range(NamedTuple):
    """The entries of one stream with after < id <= until; `entries`: how many there were when the
    range was planned."""

    key: bytes
    after: Id
    until: Id
    entries: int
    incarnation: int


@dataclass
class Ranges(InputPartition):
    """What one task reads, in this order."""

    ranges: list[Range]


class Losses:
    """What to do when entries are gone: the option `failOnDataLoss`."""

    def __init__(self, is_fatal: bool) -> None:
        self.is_fatal = is_fatal

    def report(self, what: str) -> None:
        """DataLossError, or a warning in the log if reading is to go on without them."""
        if self.is_fatal:
            raise DataLossError(
                f"{what}. To continue with the remaining entries, set the option"
                " failOnDataLoss to false"
            )
        log.warning("%s; continuing with the remaining entries", what)

    def evicted(self, key: bytes, after: Id, count: int, is_exact: bool) -> None:
        number = str(count) if is_exact else f"up to {count}"
        noun, were = ("entry", "was") if number == "1" else ("entries", "were")
        self.report(
            f"{number} {noun} of {key_text(key)!r} after {id_text(after)} {were} evicted before "
            "they were read"
        )

    def deleted(self, key: bytes, after: Id) -> None:
        self.report(
            f"the stream {key_text(key)!r} was deleted; what it had after {id_text(after)} cannot "
            "be read any more"
        )

    def put_back(self, key: bytes, read: Position, now: int) -> None:
        self.report(
            f"the stream {key_text(key)!r} was restored to an older state: {read.added} entries"
            f" had been added to it up to {id_text(read.id)}, and now it has had {now} in all"
        )

    def made_again(self, key: bytes, after: Id) -> None:
        self.report(
            f"the stream {key_text(key)!r} was deleted and created again; what it had after "
            f"{id_text(after)} can no longer be read"
        )


class Planner:
    """Divides what lies between positions into partitions, by the options `minPartitions` and
    `maxEntriesPerPartition`."""

    def __init__(self, options: Options, losses: Losses) -> None:
        self.losses = losses
        self.division = Division(
            options.integer("minPartitions", 0, 1, 1 << 20),
            options.integer("maxEntriesPerPartition", 0, 1, COUNT_MAX),
        )

    def plan(
        self,
        server: Server,
        start: Positions,
        end: Positions,
        division: Division | None = None,
        infos: Mapping[bytes, Info] = NOTHING_KNOWN,
    ) -> list[Ranges]:
        """The partitions of what lies between; a stream that is not in `start` is read from its
        first entry. `division`: as a batch was planned before; None: as the options say. `infos`:
        what was just seen of the streams, which then need not be asked for once more."""
        ranges = list(self._between(server, start, end, infos))
        return [Ranges(part) for part in _divide(server, ranges, division or self.division)]

    def _between(
        self, server: Server, start: Positions, end: Positions, infos: Mapping[bytes, Info]
    ) -> Iterable[Range]:
        begins = {key: begin_of(start.get(key), last) for key, last in end.items()}
        wanted = [key for key, last in sorted(end.items()) if last.id > begins[key].id]
        counts = {
            key: infos[key].count_between(begins[key], end[key]) for key in wanted if key in infos
        }
        asked = [key for key in wanted if counts.get(key) is None]
        found = seek(server, {key: [(begins[key].id, ALL), (end[key].id, ALL)] for key in asked})
        for key in wanted:
            known = counts.get(key)
            if known is not None:
                yield Range(key, begins[key].id, end[key].id, known, end[key].incarnation)
            else:
                yield from self._counted(key, begins[key], end[key], found.get(key))

    def _counted(
        self, key: bytes, begin: Position, last: Position, seen: SeekResult | None
    ) -> Iterable[Range]:
        """What lies between in a stream that was asked; nothing if it is not what it was."""
        if seen is None:
            self.losses.deleted(key, begin.id)
            return
        info, ((from_begin, _), (from_end, _)) = seen
        if info.incarnation != last.incarnation:
            self.losses.made_again(key, begin.id)
            return
        if last.is_ahead_of(info.entries_added):
            self.losses.put_back(key, last, info.entries_added)
        count = from_begin - from_end
        self._check_evicted(key, begin, last, count, info)
        yield Range(key, begin.id, last.id, count, info.incarnation)

    def _check_evicted(
        self, key: bytes, begin: Position, last: Position, count: int, info: Info
    ) -> None:
        if info.max_evicted_id <= begin.id or begin.added is None or last.added is None:
            return
        lost = last.added - begin.added - count
        if lost > 0:
            # What was deleted cannot be told from what was evicted.
            self.losses.evicted(key, begin.id, lost, is_exact=not info.entries_deleted)


def _divide(server: Server, ranges: list[Range], division: Division) -> list[list[Range]]:
    """Fill one partition after the other; ranges larger than a partition are cut."""
    ranges = [range_ for range_ in ranges if range_.entries]
    size = _size(sum(range_.entries for range_ in ranges), division)
    parts: list[list[Range]] = [[]]
    room = size
    for range_ in ranges:
        for piece in _cut(server, range_, room, size):
            if room < piece.entries:
                parts.append([])
                room = size
            parts[-1].append(piece)
            room -= piece.entries
    return [part for part in parts if part]


def _size(total: int, division: Division) -> int:
    """Entries in a partition."""
    if not division.partitions_min:
        size = max(ceil(total / PARTITIONS_WANTED), ENTRIES_PER_PARTITION_MIN)
    else:
        size = total // division.partitions_min
    return max(1, min(size, division.entries_max or ENTRIES_PER_PARTITION_MAX))


def _cut(server: Server, range_: Range, room: int, size: int) -> Iterable[Range]:
    """A range that is larger than a partition, in pieces: the first takes the room that is
    left, if that is worth a piece."""
    if range_.entries <= size:
        return [range_]
    cuts = list(range(room if 2 * room >= size else size, range_.entries, size))
    found = _ids_at(server, range_, cuts)
    if len(found) < len(cuts):
        return [range_]  # gone in the meantime: the task that reads it will report it
    ids = [range_.after, *found, range_.until]
    ends = [*cuts, range_.entries]
    counts = [end - begin for begin, end in zip([0, *cuts], ends, strict=True)]
    return [
        range_._replace(after=after, until=min(until, range_.until), entries=count)
        for after, until, count in zip(ids, ids[1:], counts, strict=False)
    ]


def _ids_at(server: Server, range_: Range, counts: list[int]) -> list[Id]:
    """The ids after `counts` entries of a range; fewer when entries have gone."""
    ids: list[Id] = []
    for start in range(0, len(counts), CUTS_PER_REQUEST):
        asked = [(range_.after, count) for count in counts[start : start + CUTS_PER_REQUEST]]
        seen = seek(server, {range_.key: asked}).get(range_.key)
        ids += [id_ for _, id_ in seen.sought if id_ is not None] if seen else []
    return ids


def begin_of(start: Position | None, last: Position) -> Position:
    """Where to begin a stream: at the beginning, if it is new or was made again."""
    if start is None or start.incarnation != last.incarnation:
        return Position(FIRST, 0, last.incarnation)
    return start
