"""`spark.readStream.format("millstream")`: tails a live server's streams.

Spark keeps the offsets. The reader determines the end of each batch and divides the batch into
partitions, which `range_reader.RangeReader` reads. Two offsets define a batch: if it is repeated
after a crash it has the same rows, or fails because entries were lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from millstream.pipeline.lag import report, unread
from millstream.pipeline.positions import Offset, Position, Positions
from millstream.pipeline.range_plan import Losses, Planner, Ranges, begin_of
from millstream.pipeline.range_reader import RangeReader
from millstream.pipeline.replica_wait import Lagging, ReplicaWait, not_reached
from millstream.pipeline.schema import arrow_schema
from millstream.pipeline.server_connection import Address, ServerConnection
from millstream.pipeline.source_options import SourceOptions
from millstream.pipeline.start_offsets import LATEST, Bound
from millstream.pipeline.stream_counters import (
    ALL,
    SeekResult,
    StreamChoice,
    StreamCounters,
    seek,
    survey,
)
from millstream.pipeline.trigger_limit import COUNT_MAX, TriggerDelay, share

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


NOWHERE: Positions = {}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs in a process of the driver as long as the query; copies of it read in the workers."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.address = Address.from_options(options)
        self.choice = StreamChoice(options)
        self.starting = Bound(options, "starting", LATEST)
        self.losses = Losses(options.flag("failOnDataLoss", True))
        self.planner = Planner(options, self.losses)
        self.entries_max = options.integer("maxEntriesPerTrigger", 0, 1, COUNT_MAX)
        self.patience = TriggerDelay(options)
        self.replica_wait = ReplicaWait(options)
        self.reader = RangeReader(arrow_schema(schema), options, self.address, self.losses)
        self._target: Positions | None = None
        self._surveyed: dict[bytes, StreamCounters] = {}
        self._planned: Positions = {}
        self._server: ServerConnection | None = None

    @property
    def server(self) -> ServerConnection:
        if self._server is None:
            self._server = self.address.open()
        return self._server

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_server": None, "_surveyed": {}, "_planned": {}}

    def initialOffset(self) -> dict[str, Any]:
        self.starting.check_named(self.choice)
        infos = self._survey()
        found = self.starting.find(self.server, infos, self.losses)
        self._planned = found
        return Offset(found, is_initial=True).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch: the ends of the streams, or as far as the limit allows."""
        begin = Offset.from_json(start)
        infos = self._survey(begin.streams)
        is_whole = self.losses.check_streams(begin.streams, infos, self.choice.wants)
        begins = {key: begin_of(begin.streams.get(key), info.latest) for key, info in infos.items()}
        self._planned = begin.streams
        is_whole &= not any(info.has_evicted_after(begins[key]) for key, info in infos.items())
        if self._waits(begins, infos, limit, is_whole):
            return start
        ends = self._ends(begins, infos, limit)
        if ends == begin.streams:
            return start
        self._planned = ends
        first = begin.streams if begin.is_initial else None
        return Offset(ends, begin=first, division=self.planner.division_at(self.server)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.entries_max:
            return ReadMaxRows(self.entries_max)
        # Spark cannot express both limits. Any limit other than ReadAllAvailable means that
        # latestOffset applies both.
        entries_min = self.patience.entries_min
        return ReadMinRows(entries_min) if entries_min else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The value of `latestOffset` in the query's progress: the lag of the end of the batch that
        was just planned."""
        return report(self.server, self._planned, self._surveyed or self._survey())

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only the entries that exist now: later entries and later streams are ignored."""
        self._target = {key: info.latest for key, info in self._survey().items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = Offset.from_json(end)
        self._planned = last.streams
        # After a crash in the first batch, Spark passes a new initial offset as `start`.
        begin = Offset.from_json(start).streams if last.begin is None else last.begin
        if self._lagging(last.streams).keys:  # planned before a restart, perhaps on another server
            self._survey(last.streams)
        self.reader.address = self.server.known_address
        return self.planner.plan(self.server, begin, last.streams, last.division, self._surveyed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Ranges)
        return self.reader.read(partition)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def _survey(self, reached: Positions = NOWHERE) -> dict[bytes, StreamCounters]:
        """The counters of the streams. A replica gets time to receive what was read up to
        `reached`."""

        def lagging() -> Lagging:
            self._surveyed = survey(self.server, self.choice.find(self.server))
            return self._lagging(reached)

        self.replica_wait.wait(self.server, lagging)
        return self._surveyed

    def _lagging(self, reached: Positions) -> Lagging:
        """The streams that do not have what was read up to `reached`, as far as is known."""
        wanted = {key: at for key, at in reached.items() if self.choice.wants(key)}
        return not_reached(wanted, self._surveyed)

    def _waits(
        self,
        begins: Positions,
        infos: dict[bytes, StreamCounters],
        limit: ReadLimit,
        is_whole: bool,
    ) -> bool:
        """True if there are too few new entries for a batch. Triggers that read the existing
        entries and then end do not wait. Nor does a trigger that finds losses: it reports them, and
        more entries might be lost meanwhile."""
        if (
            not self.patience.entries_min
            or self._target is not None
            or isinstance(limit, ReadAllAvailable)
        ):
            return False
        if not is_whole:
            self.patience.proceed()
            return False
        return self.patience.waits(sum(unread(self.server, begins, infos).values()))

    def _ends(
        self, begins: Positions, infos: dict[bytes, StreamCounters], limit: ReadLimit
    ) -> Positions:
        lasts: Positions = {}
        for key, info in infos.items():
            last = self._last(key, begins[key], info)
            if last is not None:
                lasts[key] = last
        if not isinstance(limit, ReadMaxRows):
            return lasts
        return self._limited(begins, lasts, limit.max_rows)

    def _last(self, key: bytes, begin: Position, info: StreamCounters) -> Position | None:
        """The last position to read in this stream; None if it was created after AvailableNow
        began."""
        last: Position | None = info.latest
        if self._target is not None:
            last = self._target.get(key)
            if last is None or last.incarnation != info.incarnation:
                return begin if begin.added else None
        if begin.is_ahead_of(info.entries_added):
            return last  # the stream was restored to an older state: continue from its end
        return max(begin, last, key=lambda position: position.id)

    def _limited(self, begins: Positions, lasts: Positions, rows_max: int) -> Positions:
        """Ends such that the batch has at most `rows_max` entries. Evicted entries are not part of
        a stream's share: the batch contains their places in any case, so the planner reports
        them."""
        starts = {key: begins[key].id for key, last in lasts.items() if last.id > begins[key].id}
        counted = seek(self.server, {key: [(after, ALL)] for key, after in starts.items()})
        ends = {
            key: _after_losses(begins[key], last, counted.get(key)) if key in starts else last
            for key, last in lasts.items()
        }
        waiting = {key: (seen.sought[0][0], starts[key]) for key, seen in counted.items()}
        shares = share(rows_max, waiting)
        asked = {
            key: [(starts[key], ALL), (starts[key], count)]
            for key, count in shares.items()
            if count
        }
        found = seek(self.server, asked)
        for key in asked:
            seen = found.get(key)
            end = _after_losses(begins[key], lasts[key], seen)
            if seen is not None and seen.info.incarnation == begins[key].incarnation:
                (waits, _), (count, reached) = seen.sought
                if reached is not None:
                    end = _earlier(seen.info.position(reached, waits - count), lasts[key])
            ends[key] = end
        return ends


def _after_losses(begin: Position, last: Position, seen: SeekResult | None) -> Position:
    """The end of a batch without entries of a stream: `begin`, or the end of the evicted entries
    that follow it. If the stream was deleted or replaced since the survey, `last`: the planner
    reports it."""
    if seen is None or seen.info.incarnation != begin.incarnation:
        return last
    if not seen.info.has_evicted_after(begin):
        return begin
    return max(begin, _earlier(seen.info.earliest, last), key=lambda position: position.id)


def _earlier(one: Position, other: Position) -> Position:
    return min(one, other, key=lambda position: position.id)
