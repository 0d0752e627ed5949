"""Plans of live reading, against a naive server that keeps lists of ids."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from millstream.pipeline.positions import FIRST, Id, Position, id_from_text, id_text
from millstream.pipeline.range_plan import CUTS_PER_REQUEST, DataLossError, Losses, Planner, Range
from millstream.pipeline.source_options import LIVE, STREAM, SourceOptions
from millstream.pipeline.stream_counters import survey
from millstream.pipeline.stream_reader import StreamReader


@dataclass
class NaiveStream:
    ids: list[Id] = field(default_factory=list)
    added: int = 0
    evicted: int = 0
    deleted: int = 0
    last: Id = FIRST
    max_evicted: Id = FIRST
    incarnation: int = 1

    def append(self, *ids: Id) -> None:
        self.ids += ids
        self.added += len(ids)
        self.last = max([self.last, *ids])

    def evict(self, count: int) -> None:
        for id_ in self.ids[:count]:
            self.max_evicted = max(self.max_evicted, id_)
            self.evicted += 1
        del self.ids[:count]

    def delete(self, at: int) -> None:
        del self.ids[at]
        self.deleted += 1


class NaiveServer:
    """Answers TINFO and TSEEK as a server does."""

    address = known_address = "redis://naive"
    is_cluster = False

    def __init__(self, **streams: NaiveStream) -> None:
        self.streams = {key.encode(): stream for key, stream in streams.items()}
        self.longest = 0

    def pipeline(self, commands: Iterable[Any]) -> list[Any]:
        replies = [self._answer(*command) for command in commands]
        self.longest = max(self.longest, len(replies))
        return replies

    def transactions(self, groups: Iterable[Sequence[Any]]) -> list[Any]:
        return self.pipeline(command for group in groups for command in group)

    def checked(self, reply: Any) -> Any:
        return reply

    def _answer(self, name: str, key: bytes, *words: Any) -> Any:
        stream = self.streams.get(key)
        if name == "TINFO":
            return None if stream is None else _facts(stream)
        assert name == "TSEEK"
        after, count = id_from_text(words[0]), words[1]
        found = [id_ for id_ in stream.ids if id_ > after][:count] if stream else []
        return [len(found), id_text(found[-1]).encode() if found else None]


def _facts(stream: NaiveStream) -> list[Any]:
    first = id_text(stream.ids[0]).encode() if stream.ids else None
    facts = {
        b"first-id": first,
        b"last-id": id_text(stream.last).encode(),
        b"max-evicted-id": id_text(stream.max_evicted).encode(),
        b"length": len(stream.ids),
        b"entries-added": stream.added,
        b"entries-evicted": stream.evicted,
        b"entries-deleted": stream.deleted,
        b"incarnation": stream.incarnation,
    }
    return [word for fact in facts.items() for word in fact]


def plan(
    server: NaiveServer, start: dict[bytes, Position], is_fatal: bool = True, **options: int
) -> list[list[Range]]:
    """The plan from `start` to the end as it is now."""
    given_options = SourceOptions({name: str(value) for name, value in options.items()}, LIVE)
    planner = Planner(given_options, Losses(is_fatal))
    infos = survey(server, server.streams)  # type: ignore[arg-type]
    ends = {key: info.latest for key, info in infos.items()}
    return [part.ranges for part in planner.plan(server, start, ends)]  # type: ignore[arg-type]


def stream_of(count: int, incarnation: int = 1) -> NaiveStream:
    stream = NaiveStream(incarnation=incarnation)
    stream.append(*((number, 0) for number in range(1, count + 1)))
    return stream


def rows(server: NaiveServer, ranges: Iterable[Range]) -> list[tuple[bytes, Id]]:
    return [
        (part.key, id_)
        for part in ranges
        for id_ in server.streams[part.key].ids
        if part.after < id_ <= part.until
    ]


@given(
    st.lists(st.integers(0, 60), max_size=6),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 30),
)
def test_partitions_hold_every_entry_once_in_order_within_limits(
    counts: list[int], entries_max: int | None, partitions_min: int | None
) -> None:
    server = NaiveServer(**{f"s{at}": stream_of(count) for at, count in enumerate(counts)})
    wanted = {"maxEntriesPerPartition": entries_max, "minPartitions": partitions_min}
    parts = plan(server, {}, **{name: value for name, value in wanted.items() if value})
    read = [rows(server, part) for part in parts]
    expected = [(key, id_) for key, stream in server.streams.items() for id_ in stream.ids]
    assert [row for part in read for row in part] == expected
    assert [sum(range_.entries for range_ in part) for part in parts] == [
        len(part) for part in read
    ]
    assert all(0 < len(part) <= (entries_max or len(expected)) for part in read)
    assert len(parts) >= min(partitions_min or 0, len(expected))


SHAPES = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 3), st.integers(0, 60))


@given(st.lists(SHAPES, max_size=5), st.booleans())
def test_counts_from_counters_are_those_of_the_server(
    shapes: list[tuple[int, int, int, int]], are_counters_set: bool
) -> None:
    server = NaiveServer()
    start: dict[bytes, Position] = {}
    for number, (read, more, deleted, evicted) in enumerate(shapes):
        stream = server.streams[b"s%d" % number] = stream_of(read)
        start[b"s%d" % number] = survey(server, [b"s%d" % number])[b"s%d" % number].latest  # type: ignore[arg-type]
        stream.append(*((100 + number, 0) for number in range(more)))
        for _ in range(min(deleted, len(stream.ids))):
            stream.delete(len(stream.ids) // 2)
        stream.evict(evicted)
        stream.added += 7 * are_counters_set  # XSETID
    infos = survey(server, server.streams)  # type: ignore[arg-type]
    ends = {key: info.latest for key, info in infos.items()}
    planner = Planner(SourceOptions({"maxEntriesPerPartition": "9"}, LIVE), Losses(False))
    asked = planner.plan(server, start, ends)  # type: ignore[arg-type]
    assert planner.plan(server, start, ends, infos=infos) == asked  # type: ignore[arg-type]


def test_streams_seen_recently_are_not_requested_again() -> None:
    server = NaiveServer(**{f"s{number}": stream_of(5) for number in range(20)})
    infos = survey(server, server.streams)  # type: ignore[arg-type]
    ends = {key: info.latest for key, info in infos.items()}
    server.longest = 0
    planner = Planner(SourceOptions({}, LIVE), Losses(True))
    (part,) = planner.plan(server, {}, ends, infos=infos)  # type: ignore[arg-type]
    assert (len(part.ranges), server.longest) == (20, 0)


def test_a_transaction_stays_short_with_any_number_of_partitions() -> None:
    server = NaiveServer(a=stream_of(2600))
    parts = plan(server, {}, maxEntriesPerPartition=1)
    assert [len(rows(server, part)) for part in parts] == [1] * 2600
    assert server.longest <= 1 + CUTS_PER_REQUEST


def test_the_same_offsets_lead_to_the_same_plan_after_appends() -> None:
    server = NaiveServer(a=stream_of(500), b=stream_of(30))
    planner = Planner(SourceOptions({"maxEntriesPerPartition": "70"}, LIVE), Losses(True))
    ends = {key: info.latest for key, info in survey(server, server.streams).items()}  # type: ignore[arg-type]
    first = planner.plan(server, {}, ends)  # type: ignore[arg-type]
    server.streams[b"a"].append(*((number, 0) for number in range(1000, 1400)))
    assert planner.plan(server, {}, ends) == first  # type: ignore[arg-type]


def test_many_small_streams_share_partitions_without_being_cut() -> None:
    server = NaiveServer(**{f"s{at:05}": stream_of(20) for at in range(3000)})
    parts = plan(server, {})
    assert len(parts) == 6  # 60,000 entries, at least 10,000 each
    assert sum(map(len, parts)) == 3000


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_evicted_entries_are_a_loss_exactly_if_they_were_unread(
    read: int, more: int, evicted: int
) -> None:
    stream = stream_of(read)
    server = NaiveServer(a=stream)
    start = {b"a": survey(server, [b"a"])[b"a"].latest}  # type: ignore[arg-type]
    stream.append(*((100 + number, 0) for number in range(more)))
    stream.evict(evicted)
    lost = min(more, max(0, evicted - read))
    if lost:
        with pytest.raises(DataLossError, match=f"{lost} entr(y|ies) of 'a' after {read}-0 w"):
            plan(server, start)
    else:
        plan(server, start)
    left = [range_ for part in plan(server, start, is_fatal=False) for range_ in part]
    assert len(rows(server, left)) == more - lost


def test_deleted_entries_are_no_loss() -> None:
    stream = stream_of(10)
    server = NaiveServer(a=stream)
    start = {b"a": Position((3, 0), 3, 1)}
    stream.evict(2)
    stream.delete(4)
    assert [range_.entries for part in plan(server, start) for range_ in part] == [6]


def test_entries_evicted_before_their_stream_was_seen_are_a_loss() -> None:
    stream = stream_of(10)
    stream.evict(3)
    with pytest.raises(DataLossError, match="3 entries of 'a' after 0-0 were evicted"):
        plan(NaiveServer(a=stream), {})


def test_a_recreated_stream_is_read_from_its_beginning() -> None:
    server = NaiveServer(a=stream_of(5, incarnation=2))
    parts = plan(server, {b"a": Position((900, 0), 77, 1)})
    assert rows(server, parts[0]) == [(b"a", (number, 0)) for number in range(1, 6)]


def test_a_batch_of_a_deleted_or_recreated_stream_is_a_loss() -> None:
    ends = {b"a": Position((5, 0), 5, 1)}
    planner = Planner(SourceOptions({}, LIVE), Losses(True))
    with pytest.raises(DataLossError, match="'a' was deleted and created again; its entries after"):
        planner.plan(NaiveServer(a=stream_of(9, incarnation=2)), {}, ends)  # type: ignore[arg-type]
    with pytest.raises(DataLossError, match="'a' was deleted; its entries after 0-0"):
        planner.plan(NaiveServer(), {}, ends)  # type: ignore[arg-type]
    careless = Planner(SourceOptions({}, LIVE), Losses(False))
    assert careless.plan(NaiveServer(), {}, ends) == []  # type: ignore[arg-type]


class NaiveQuery:
    """A streaming query that reads the naive server with a checkpoint, as Spark does."""

    def __init__(self, server: NaiveServer, **options: Any) -> None:
        given_options = {"server": "redis://naive", "startingOffsets": "earliest"}
        given_options["subscribe"] = ",".join(key.decode() for key in server.streams)
        texts = given_options | {name: str(value) for name, value in options.items()}
        self.naive = server
        self.reader = StreamReader(
            StructType([StructField("n", StringType())]), SourceOptions(texts, STREAM)
        )
        self.reader._server = server  # type: ignore[assignment]
        self.offset = ""

    def trigger(self) -> list[tuple[bytes, Id]] | None:
        """The rows of the next batch; None if there is no batch."""
        begin = self.offset or json.dumps(self.reader.initialOffset())
        limit = self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(json.loads(begin), limit))
        if end == begin:
            return None
        parts = self.reader.partitions(json.loads(begin), json.loads(end))
        self.offset = end
        return [row for part in parts for row in self._read(part.ranges)]  # type: ignore[attr-defined]

    def _read(self, ranges: list[Range]) -> list[tuple[bytes, Id]]:
        """The rows of a task, which reports a range that has fewer entries than were planned."""
        there = [one for one in ranges if one.key in self.naive.streams]
        found = rows(self.naive, there)
        if len(found) < sum(one.entries for one in ranges):
            raise DataLossError("entries were lost between planning and reading")
        return found

    def read_all(self) -> list[tuple[bytes, Id]]:
        """Everything that exists now, as with the trigger AvailableNow."""
        self.reader.prepareForTriggerAvailableNow()
        found: list[tuple[bytes, Id]] = []
        while (batch := self.trigger()) is not None:
            found += batch
        self.reader._target = None
        return found


TRIGGERS = [NaiveQuery.trigger, NaiveQuery.read_all]
LIMITS = [
    {},
    {"maxEntriesPerTrigger": 1},
    {"maxEntriesPerTrigger": 6},
    {"minOffsetsPerTrigger": 1000},
    {"minOffsetsPerTrigger": 2, "maxEntriesPerTrigger": 3},
]
LOST = "20 entries of 'a' after 5-0 were evicted"


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("more", [0, 30])
def test_the_first_trigger_reports_the_loss_of_all_unread(
    trigger: Any, limits: dict[str, int], more: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = NaiveServer(a=stream_of(5), b=stream_of(5))
    query = NaiveQuery(server, **limits)
    query.read_all()
    query.trigger()  # the first trigger of a process never waits
    server.streams[b"a"].append(*((number, 0) for number in range(6, 26)))
    server.streams[b"a"].evict(25)
    server.streams[b"b"].append(*((100 + number, 0) for number in range(more)))
    before = query.offset
    with pytest.raises(DataLossError, match=LOST):
        trigger(query)
    careless = NaiveQuery(server, failOnDataLoss="false", **limits)
    careless.offset = before
    caplog.set_level(logging.WARNING)
    assert set(trigger(careless)) <= {(b"b", (100 + number, 0)) for number in range(more)}
    assert caplog.text.count(LOST) == 1
    caplog.clear()
    server.streams[b"a"].append((26, 0))
    left = careless.read_all()
    assert (b"a", (26, 0)) in left
    assert careless.read_all() == []
    assert caplog.text == ""


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_stream_without_a_share_of_the_limit_reports_its_loss(limit: int) -> None:
    server = NaiveServer(**{f"s{number}": stream_of(5) for number in range(6)})
    query = NaiveQuery(server, maxEntriesPerTrigger=limit)
    query.read_all()
    for stream in server.streams.values():
        stream.append(*((100 + number, 0) for number in range(50)))
    server.streams[b"s5"].evict(5 + 7)
    with pytest.raises(DataLossError, match="7 entries of 's5' after 5-0 were evicted"):
        query.trigger()


def test_under_a_limit_deleted_entries_are_no_loss() -> None:
    server = NaiveServer(a=stream_of(5))
    query = NaiveQuery(server, maxEntriesPerTrigger=6)
    query.read_all()
    stream = server.streams[b"a"]
    stream.append(*((number, 0) for number in range(6, 9)))
    stream.evict(5)
    for _ in range(3):
        stream.delete(0)
    assert query.trigger() is None
    stream.append((9, 0))
    assert query.read_all() == [(b"a", (9, 0))]


class ChangingServer(NaiveServer):
    """Makes a change before one of the requests that follow `change_before`."""

    requests_left = 0

    def change_before(self, request: int, change: Callable[[NaiveServer], None]) -> None:
        self.requests_left, self._change = request, change

    def pipeline(self, commands: Iterable[Any]) -> list[Any]:
        self.requests_left -= 1
        if self.requests_left == 0:
            self._change(self)
        return super().pipeline(commands)


def _deleted(server: NaiveServer) -> None:
    del server.streams[b"a"]


def _made_again(server: NaiveServer) -> None:
    server.streams[b"a"] = stream_of(3, incarnation=2)


def _emptied(server: NaiveServer) -> None:
    server.streams[b"a"].evict(25)


@pytest.mark.parametrize("request_number", [2, 3])
@pytest.mark.parametrize("change", [_deleted, _made_again, _emptied])
def test_a_stream_that_is_lost_during_planning_is_a_loss(
    change: Callable[[NaiveServer], None], request_number: int
) -> None:
    """The survey is the first request of a trigger; a limit needs two more."""
    server = ChangingServer(a=stream_of(5))
    query = NaiveQuery(server, maxEntriesPerTrigger=6)
    query.read_all()
    server.streams[b"a"].append(*((number, 0) for number in range(6, 26)))
    server.change_before(request_number, change)
    with pytest.raises(DataLossError):
        query.trigger()


def test_a_loss_ends_the_wait_for_enough_entries() -> None:
    server = NaiveServer(a=stream_of(5))
    query = NaiveQuery(server, minOffsetsPerTrigger=100, failOnDataLoss="false")
    assert query.trigger() is not None  # the first trigger does not wait
    stream = server.streams[b"a"]
    stream.append(*((number, 0) for number in range(6, 26)))
    assert query.trigger() is None
    stream.evict(20)
    assert query.trigger() == [(b"a", (number, 0)) for number in range(21, 26)]
    stream.append((26, 0))
    assert query.trigger() is None
    server.streams[b"a"] = stream_of(2, incarnation=2)
    assert query.trigger() == [(b"a", (1, 0)), (b"a", (2, 0))]
