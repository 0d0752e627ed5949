"""Keeps a folder of Parquet files up to date with the streams of a server, in rounds.

A round exports the entries that exist when it begins. Entries wait in the server until their round,
so the memory of this program is bounded by a page of a stream and the rows of one row group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.pipeline.batch_maker import DROPMALFORMED, BatchMaker
from millstream.pipeline.exported_folder import ExportedFolder, FolderError, PartFile
from millstream.pipeline.exporting import ExportRequest, live_options, selection_of
from millstream.pipeline.positions import FIRST, Division, Id, Position, Positions
from millstream.pipeline.range_plan import Losses, Planner, Range, begin_of
from millstream.pipeline.range_reader import RangePages, RangeReader, opened
from millstream.pipeline.replica_wait import Lagging, ReplicaWait, not_reached
from millstream.pipeline.selection import before
from millstream.pipeline.server_connection import Address, ServerConnection, Unreachable
from millstream.pipeline.stream_counters import ALL, KeyPatterns, StreamCounters, seek, survey
from millstream.pipeline.trigger_limit import COUNT_MAX

if TYPE_CHECKING:
    import pyarrow as pa

# One range for each stream: files end where they are large enough.
UNDIVIDED = Division(1, COUNT_MAX)


@dataclass
class Round:
    """The files that a round has written. `streams`: the number of streams that the server has."""

    streams: int = 0
    files: list[str] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    def add(self, part: PartFile, folder: ExportedFolder) -> None:
        self.files.append(str(part.path.relative_to(folder.path)))
        self.rows += part.rows
        self.size_bytes += part.path.stat().st_size


class FolderExport:
    """Exports into a folder. `is_stopping`, asked after each page of a stream, ends the file and
    the round."""

    def __init__(
        self,
        request: ExportRequest,
        folder: ExportedFolder,
        losses: Losses,
        file_bytes_max: int,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        options = live_options(request)
        self.address = Address.from_options(options)
        self._folder = folder
        self._losses = losses
        self._file_bytes_max = file_bytes_max
        self._is_stopping = is_stopping
        self._keys = KeyPatterns(request.key)
        self._reader = RangeReader(folder.schema, options, self.address, losses)
        self._planner = Planner(options, losses)
        self._replica_wait = ReplicaWait(options)
        self._first = before(selection_of(request).first) or FIRST
        self._patterns = sorted(request.key)
        self._positions = folder.positions()
        # Streams that the last export with these patterns would have found are new.
        self._has_looked = folder.keys == self._patterns

    def round(self, server: ServerConnection) -> Round:
        """Export the entries that exist now. DataLossError if some do not exist any more."""
        infos = self._survey(server)
        made = Round(len(infos))
        begins = {key: self._begin(key, info) for key, info in infos.items()}
        ends = {key: info.latest for key, info in infos.items() if info.last_id > begins[key].id}
        parts = self._planner.plan(server, begins, ends, UNDIVIDED, infos)
        for group, ranges in self._grouped(range_ for part in parts for range_ in part.ranges):
            for part in self._parts(server, group, ranges, ends):
                made.add(part, self._folder)
            if self._is_stopping():
                return made
        self._positions |= ends  # also of streams that have no entries left
        for key, info in infos.items():
            if info.first_id is None:  # what was evicted before is no loss
                self._positions.setdefault(key, info.latest)
        self._folder.finish_round(self._patterns, self._positions)
        self._has_looked = True
        return made

    def _grouped(self, ranges: Iterable[Range]) -> list[tuple[str, list[Range]]]:
        """The ranges by the group of files to which they belong. A key that cannot be the name of a
        folder is a bad value."""
        groups: dict[str, list[Range]] = {}
        for range_ in ranges:
            try:
                groups.setdefault(self._folder.group(range_.key), []).append(range_)
            except FolderError:
                if self._reader.mode != DROPMALFORMED:
                    raise
        return list(groups.items())

    def _survey(self, server: ServerConnection) -> dict[bytes, StreamCounters]:
        """The counters of the streams. A replica gets time to receive what was exported. Reports
        streams that are not those that were exported; if that is no error, they begin again."""
        infos: dict[bytes, StreamCounters] = {}

        def lagging() -> Lagging:
            nonlocal infos
            infos = survey(server, self._keys.find(server))
            return not_reached(self._wanted(), infos)

        self._replica_wait.wait(server, lagging)
        if not self._losses.check_streams(self._wanted(), infos, self._keys.wants):
            self._begin_again(infos)
        return infos

    def _begin_again(self, infos: dict[bytes, StreamCounters]) -> None:
        for key, at in self._wanted().items():
            info = infos.get(key)
            if info is None:
                del self._positions[key]
                continue
            begin = begin_of(at, info.latest)
            is_older = begin.is_ahead_of(info.entries_added)
            self._positions[key] = info.latest if is_older else begin

    def _wanted(self) -> Positions:
        return {key: at for key, at in self._positions.items() if self._keys.wants(key)}

    def _begin(self, key: bytes, info: StreamCounters) -> Position:
        """The position at which to continue or begin: entries that were evicted before the first
        export are no loss."""
        at = self._positions.get(key)
        is_found_late = at is None and not self._has_looked
        begin = info.earliest if is_found_late else begin_of(at, info.latest)
        if begin.id >= self._first:
            return begin
        return Position(self._first, None, info.incarnation)

    def _parts(
        self, server: ServerConnection, group: str, ranges: list[Range], ends: Positions
    ) -> Iterator[PartFile]:
        """Write the files of a group, one after the other."""
        while ranges and not self._is_stopping():
            with self._folder.new_part(group) as part:
                reached, ranges = self._fill(server, part, ranges, ends)
                part.commit(reached if group else self._positions | reached)
            self._positions |= reached
            yield part

    def _fill(
        self, server: ServerConnection, part: PartFile, ranges: list[Range], ends: Positions
    ) -> tuple[Positions, list[Range]]:
        """Write the entries of ranges until the file is full. The positions after the last
        entries, and the ranges that are left."""
        maker = BatchMaker(self._folder.schema, self._reader.mode)
        reached: Positions = {}
        rest: list[Range] = []
        for number, (range_, reading) in enumerate(opened(server, ranges), 1):
            position, left = self._read(server, part, maker, range_, reading, ends[range_.key])
            reached[range_.key] = position
            rest = ([] if left is None else [left]) + ranges[number:]
            if left is not None or self._is_over(part):
                break
        _write(part, maker.finish())
        return reached, rest

    def _read(
        self,
        server: ServerConnection,
        part: PartFile,
        maker: BatchMaker,
        range_: Range,
        reading: RangePages,
        end: Position,
    ) -> tuple[Position, Range | None]:
        """Write the entries of a range, or its first pages if the file becomes full. The position
        after the last entry, and the rest of the range."""
        entries_before = maker.entries
        for page in self._reader.pages(server, range_, reading):
            _write(part, page.batches(range_.key, maker))
            if page.next_id is None:
                continue
            _write(part, maker.finish())  # its rows count for the size
            if self._is_over(part):
                cut = before(page.next_id) or FIRST
                return self._cut(server, range_, cut, end, maker.entries - entries_before)
        self._reader.check_loss(range_, reading, maker.entries - entries_before)
        return end, None

    def _is_over(self, part: PartFile) -> bool:
        return part.size_bytes >= self._file_bytes_max or self._is_stopping()

    def _cut(
        self, server: ServerConnection, range_: Range, cut: Id, end: Position, entries: int
    ) -> tuple[Position, Range | None]:
        """The position at an ID, up to which `entries` entries of a range were read, and the rest
        of the range. Reports entries of the range that were evicted meanwhile."""
        seen = seek(server, {range_.key: [(cut, ALL), (range_.until, ALL)]}).get(range_.key)
        if seen is None or seen.info.incarnation != range_.incarnation:
            lose = self._losses.deleted if seen is None else self._losses.made_again
            lose(range_.key, cut)
            return Position(cut, None, range_.incarnation), None
        (after_cut, _), (after_end, _) = seen.sought
        left = after_cut - after_end
        lost = range_.entries - entries - left
        if lost > 0 and seen.info.max_evicted_id > range_.after:
            self._losses.evicted(range_.key, range_.after, lost, is_exact=False)
        assert end.added is not None
        position = Position(cut, end.added - left, range_.incarnation)
        return position, range_._replace(after=cut, entries=left) if left else None


def _write(part: PartFile, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        part.write(batch)


def follow(
    export: FolderExport,
    server: ServerConnection,
    age_s: float,
    wait: Callable[[float], bool],
    report: Callable[[Round], None],
    warn: Callable[[str], None],
) -> None:
    """Export in rounds that begin every `age_s` seconds until `wait`, which waits for some seconds,
    returns True. A server that does not answer is asked again in the next round."""
    is_reached = True
    while True:
        start_s = time.monotonic()
        try:
            report(export.round(server))
            is_reached = True
        except Unreachable as problem:
            if is_reached:
                warn(f"{problem}; trying again")
            is_reached = False
        if wait(max(0.0, start_s + age_s - time.monotonic())):
            return
