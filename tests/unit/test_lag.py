"""The lag of a query, compared with a naive server that keeps lists of IDs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_live_planning import NaiveServer, NaiveStream, stream_of

from millstream.pipeline.lag import STREAMS_PER_STEP, metrics, report
from millstream.pipeline.positions import PLAIN_MAX, Position, Positions
from millstream.pipeline.stream_counters import survey

NOW_MS = 5_000_250


class TimedServer(NaiveServer):
    """Knows the time."""

    def call(self, *words: Any) -> list[bytes]:
        assert words == ("TIME",)
        return [b"5000", b"250000"]


def measured(server: NaiveServer, read: Positions) -> dict[str, Any]:
    return metrics(server, read, survey(server, server.streams))  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 5), st.integers(0, 9)),
        max_size=6,
    )
)
def test_lag_is_the_entries_after_the_positions(
    shapes: list[tuple[int, int, int, int]],
) -> None:
    streams: dict[str, NaiveStream] = {}
    read: Positions = {}
    unread: list[list[tuple[int, int]]] = []
    for number, (count, at, deleted, evicted) in enumerate(shapes):
        stream = stream_of(count)
        for _ in range(min(deleted, len(stream.ids))):
            stream.delete(len(stream.ids) // 2)
        stream.evict(min(evicted, len(stream.ids)))
        streams[f"s{number}"] = stream
        read[b"s%d" % number] = Position((at, 0), min(at, count), 1)
        unread.append([id_ for id_ in stream.ids if id_ > (at, 0)])
    found = measured(TimedServer(**streams), read)
    counts = list(map(len, unread))
    assert found["streams"] == len(shapes)
    assert found["streamsBehindLatest"] == sum(map(bool, counts))
    assert found["offsetsBehindLatest"] == sum(counts)
    assert found["maxOffsetsBehindLatest"] == max(counts, default=0)
    assert found["minOffsetsBehindLatest"] == min(counts, default=0)
    oldest = min((ids[0][0] for ids in unread if ids), default=None)
    assert found["oldestEntryAgeMs"] == (None if oldest is None else NOW_MS - oldest)


def test_the_oldest_entry_is_found_outside_the_largest_lag() -> None:
    """The stream with the lowest position may have its next entry late."""
    server = TimedServer(early=NaiveStream(), late=NaiveStream())
    server.streams[b"early"].append((1, 0), (4_000_000, 0))
    server.streams[b"late"].append((3, 0), (7, 0))
    read = {b"early": Position((1, 0), 1, 1), b"late": Position((3, 0), 1, 1)}
    assert measured(server, read)["oldestEntryAgeMs"] == NOW_MS - 7


def test_only_streams_that_may_have_the_oldest_entry_are_read() -> None:
    server = TimedServer(**{f"s{n:04}": NaiveStream() for n in range(10 * STREAMS_PER_STEP)})
    read: Positions = {}
    for number, (key, stream) in enumerate(server.streams.items()):
        stream.append((number, 0), (number, 1))
        read[key] = Position((number, 0), 1, 1)
    infos = survey(server, server.streams)  # type: ignore[arg-type]
    asked = []
    answer = server._answer
    server._answer = lambda *words: asked.append(words[0]) or answer(*words)  # type: ignore[func-returns-value, method-assign]
    assert metrics(server, read, infos)["oldestEntryAgeMs"] == NOW_MS  # type: ignore[arg-type]
    assert asked.count("TSEEK") == STREAMS_PER_STEP


def test_the_lag_of_an_unknown_stream_is_all_of_its_entries() -> None:
    server = TimedServer(a=stream_of(3), b=stream_of(4, incarnation=9))
    found = measured(server, {b"b": Position((4, 0), 4, 1)})
    assert (found["offsetsBehindLatest"], found["minOffsetsBehindLatest"]) == (7, 3)
    assert found["avgOffsetsBehindLatest"] == 3.5


def test_an_entry_with_a_future_time_has_no_negative_age() -> None:
    server = TimedServer(a=NaiveStream())
    server.streams[b"a"].append((NOW_MS + 1000, 0))
    assert measured(server, {})["oldestEntryAgeMs"] == 0


def test_a_report_names_the_streams_only_if_they_are_few() -> None:
    for count, is_named in ((PLAIN_MAX, True), (PLAIN_MAX + 1, False)):
        server = TimedServer(**{f"s{number}": stream_of(1) for number in range(count)})
        made = report(server, {}, survey(server, server.streams))  # type: ignore[arg-type]
        assert made["metrics"]["offsetsBehindLatest"] == count
        assert ("streams" in made) == is_named
