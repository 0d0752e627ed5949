"""Plans Spark's partitions: which entries to read, whether they still exist, and how to divide
them.

Two IDs define a range, the first exclusive and the last inclusive. The numbers of entries between
such IDs define its place in the plan. Therefore the same offsets give the same partitions with the
same rows in the same order, as long as no entry between them is deleted. Streaming writers rely on
this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

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
from millstream.pipeline.server_connection import ServerConnection
from millstream.pipeline.source_options import SourceOptions
from millstream.pipeline.stream_counters import ALL, SeekResult, StreamCounters, seek
from millstream.pipeline.trigger_limit import COUNT_MAX
from millstream.slot_routing import slot_of

log = logging.getLogger(__name__)

# The maximum limits the cost of a task that is retried. The minimum exists because each task costs
# some milliseconds.
ENTRIES_PER_PARTITION_MAX = 1_000_000
ENTRIES_PER_PARTITION_MIN = 10_000
# Minimum number of partitions of a large batch.
PARTITIONS_WANTED = 8
# Cuts requested at once, in a transaction during which the server serves no other client.
CUTS_PER_REQUEST = 1000
NOTHING_KNOWN: Mapping[bytes, StreamCounters] = MappingProxyType({})


class DataLossError(Exception):
    """Entries that should be read no longer exist. The text says how many, and of which stream."""


class Range(NamedTuple):
    """The entries of one stream with after < ID <= until; `entries`: their number at planning
    time."""

    key: bytes
    after: Id
    until: Id
    entries: int
    incarnation: int


@dataclass
class Ranges(InputPartition):
    """The ranges that one task reads, in this order."""

    ranges: list[Range]


class Losses:
    """The reaction to lost entries: the option `failOnDataLoss`. `advice`: how the user sets it."""

    def __init__(
        self, is_fatal: bool, advice: str = "set the option failOnDataLoss to false"
    ) -> None:
        self.is_fatal = is_fatal
        self._advice = advice

    def report(self, what: str) -> None:
        """Raise DataLossError, or log a warning if `failOnDataLoss` is false."""
        if self.is_fatal:
            raise DataLossError(f"{what}. To continue with the remaining entries, {self._advice}")
        log.warning("%s; continuing with the remaining entries", what)

    def check_streams(
        self,
        read: Positions,
        infos: Mapping[bytes, StreamCounters],
        wants: Callable[[bytes], bool],
    ) -> bool:
        """Report the streams that are no longer those that were read; return whether there are
        none."""
        is_whole = True
        for key, at in read.items():
            if key in infos:
                is_whole &= self._check_same(key, at, infos[key])
            elif wants(key):
                self.deleted(key, at.id)
                is_whole = False
            else:
                log.info("the stream %r is no longer requested", key_text(key))
        return is_whole

    def _check_same(self, key: bytes, at: Position, info: StreamCounters) -> bool:
        if info.incarnation != at.incarnation:
            self.made_again(key, at.id)
        elif at.is_ahead_of(info.entries_added):
            self.put_back(key, at, info.entries_added)
        else:
            return True
        return False

    def evicted(self, key: bytes, after: Id, count: int, is_exact: bool) -> None:
        number = str(count) if is_exact else f"up to {count}"
        noun, were = ("entry", "was") if number == "1" else ("entries", "were")
        self.report(
            f"{number} {noun} of {key_text(key)!r} after {id_text(after)} {were} evicted before "
            "they were read"
        )

    def deleted(self, key: bytes, after: Id) -> None:
        self.report(
            f"the stream {key_text(key)!r} was deleted; its entries after {id_text(after)} cannot "
            "be read any more"
        )

    def put_back(self, key: bytes, read: Position, now: int) -> None:
        self.report(
            f"the stream {key_text(key)!r} was restored to an older state: {read.added} entries"
            f" had been added to it up to {id_text(read.id)}, and now it has had {now} in all"
        )

    def ends_early(self, key: bytes, last: Id, wanted: Id) -> None:
        self.report(
            f"the stream {key_text(key)!r} ends at {id_text(last)} on this server, and the query"
            f" needs its entries up to {id_text(wanted)}: the server was restored to an older"
            " state, or promoted without them"
        )

    def made_again(self, key: bytes, after: Id) -> None:
        self.report(
            f"the stream {key_text(key)!r} was deleted and created again; its entries after "
            f"{id_text(after)} can no longer be read"
        )


class Planner:
    """Divides the entries between positions into partitions, according to the options
    `minPartitions` and `maxEntriesPerPartition`."""

    def __init__(self, options: SourceOptions, losses: Losses) -> None:
        self.losses = losses
        self.division = Division(
            options.integer("minPartitions", 0, 1, 1 << 20),
            options.integer("maxEntriesPerPartition", 0, 1, COUNT_MAX),
        )

    def plan(
        self,
        server: ServerConnection,
        start: Positions,
        end: Positions,
        division: Division | None = None,
        infos: Mapping[bytes, StreamCounters] = NOTHING_KNOWN,
    ) -> list[Ranges]:
        """The partitions for the entries between two positions. A stream that is not in `start` is
        read from its first entry. `division`: the division of a batch that is planned again; None:
        as in the options. `infos`: current counters of the streams, which saves requests."""
        ranges = list(self._between(server, start, end, infos))
        return [
            Ranges(part) for part in _divide(server, ranges, division or self.division_at(server))
        ]

    def division_at(self, server: ServerConnection) -> Division:
        """The division of a batch that is planned now."""
        return self.division._replace(by_slot=int(server.is_cluster))

    def _between(
        self,
        server: ServerConnection,
        start: Positions,
        end: Positions,
        infos: Mapping[bytes, StreamCounters],
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
        """The range of a stream whose entries were counted; none if the stream was deleted or
        replaced."""
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
        self, key: bytes, begin: Position, last: Position, count: int, info: StreamCounters
    ) -> None:
        if info.max_evicted_id <= begin.id or begin.added is None or last.added is None:
            return
        lost = last.added - begin.added - count
        if lost > 0:
            # Deleted and evicted entries cannot be distinguished.
            self.losses.evicted(key, begin.id, lost, is_exact=not info.entries_deleted)


def _divide(server: ServerConnection, ranges: list[Range], division: Division) -> list[list[Range]]:
    """Fill partitions one after the other; ranges larger than a partition are cut."""
    ranges = [range_ for range_ in ranges if range_.entries]
    if division.by_slot:
        ranges.sort(key=lambda range_: (slot_of(range_.key), range_.key))
    size = _size(sum(range_.entries for range_ in ranges), division)
    parts: list[list[Range]] = [[]]
    left = size
    for range_ in ranges:
        for piece in _cut(server, range_, left, size):
            if left < piece.entries:
                parts.append([])
                left = size
            parts[-1].append(piece)
            left -= piece.entries
    return [part for part in parts if part]


def _size(total: int, division: Division) -> int:
    """The number of entries in a partition."""
    if not division.partitions_min:
        size = max(ceil(total / PARTITIONS_WANTED), ENTRIES_PER_PARTITION_MIN)
    else:
        size = total // division.partitions_min
    return max(1, min(size, division.entries_max or ENTRIES_PER_PARTITION_MAX))


def _cut(server: ServerConnection, range_: Range, left: int, size: int) -> Iterable[Range]:
    """Cut a range that is larger than a partition. The first piece fills the current partition if
    at least half a partition is free."""
    if range_.entries <= size:
        return [range_]
    cuts = list(range(left if 2 * left >= size else size, range_.entries, size))
    found = _ids_at(server, range_, cuts)
    if len(found) < len(cuts):
        return [range_]  # entries were lost meanwhile: the task that reads the range reports it
    ids = [range_.after, *found, range_.until]
    ends = [*cuts, range_.entries]
    counts = [end - begin for begin, end in zip([0, *cuts], ends, strict=True)]
    return [
        range_._replace(after=after, until=min(until, range_.until), entries=count)
        for after, until, count in zip(ids, ids[1:], counts, strict=False)
    ]


def _ids_at(server: ServerConnection, range_: Range, counts: list[int]) -> list[Id]:
    """The IDs after `counts` entries of a range; fewer when entries were lost."""
    ids: list[Id] = []
    for start in range(0, len(counts), CUTS_PER_REQUEST):
        asked = [(range_.after, count) for count in counts[start : start + CUTS_PER_REQUEST]]
        seen = seek(server, {range_.key: asked}).get(range_.key)
        ids += [id_ for _, id_ in seen.sought if id_ is not None] if seen else []
    return ids


def begin_of(start: Position | None, last: Position) -> Position:
    """The position at which to begin reading a stream: its first entry if it is new or was created
    again."""
    if start is None or start.incarnation != last.incarnation:
        return Position(FIRST, 0, last.incarnation)
    return start
