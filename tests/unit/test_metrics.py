"""The metrics: labels, the choice of streams, and the figures of groups."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.support.storage_access import deliver_ids

from millstream.commands.engine.group_replies import StreamEnds, group_figures
from millstream.server.metrics import metric_table
from millstream.server.metrics.server_series import Sources
from millstream.server.metrics.stream_series import Place, StreamSeries, WaitingSince, choose
from millstream.server.metrics.text import LABEL_MAX, histogram_lines, label, labels, number
from millstream.server.monitor.clock_watch import ClockWatch
from millstream.server.monitor.histogram import BOUNDS_S, Histogram
from millstream.storage.groups.group import Group
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

# Bytes, and texts that look like escapes of bytes.
values = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=150).map(lambda text: text.encode("utf-8", "replace")),
    st.text(alphabet='\\xf05c"\n\x00é', max_size=12).map(str.encode),
    st.text(alphabet="é", min_size=95, max_size=210).map(str.encode),
)


def parsed(text: str) -> dict[str, str]:
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    return dict(sample.labels)


@given(values, values)
def test_labels_parse_and_differ_when_their_values_differ(first: bytes, second: bytes) -> None:
    texts = [parsed(f"m{labels(key=value)} 1\n")["key"] for value in (first, second)]
    assert (texts[0] == texts[1]) == (first == second)
    for text in texts:
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)


def test_labels_of_plain_names_are_the_names() -> None:
    for name in ("orders", "Füllstände", "a:b {c}", "日本"):
        assert parsed(f"m{labels(key=name)} 1\n")["key"] == name


def test_other_bytes_and_long_values() -> None:
    assert label(b"a\xff") == r"a\\xff"
    assert label(b"\\xff") == r"\\x5cxff"
    long = label(b"x" * 1000)
    assert long.startswith("x" * LABEL_MAX + "...")
    assert len(long) < LABEL_MAX + 30
    assert label(b"x" * LABEL_MAX) == "x" * LABEL_MAX


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (0.5, "0.5"), ("12.50%", "12.50"), ("ok", "1"), ("err", "0"), ("master", None),
     ("", None), (True, "1")],
)  # fmt: skip
def test_values_of_info_as_numbers(value: object, text: str | None) -> None:
    assert number(value) == text


@given(st.lists(st.integers(0, 20_000_000_000), max_size=30))
def test_a_histogram_counts_each_duration_in_its_bucket(durations_ns: list[int]) -> None:
    found = Histogram()
    for ns in durations_ns:
        found.add(ns)
    wanted = [sum(ns <= round(bound * 1e9) for ns in durations_ns) for bound in BOUNDS_S]
    assert found.cumulative() == [*wanted, len(durations_ns)]
    assert found.sum_s == pytest.approx(sum(durations_ns) / 1e9)
    text = "# TYPE m histogram\n" + "".join(
        histogram_lines("m", BOUNDS_S, found.cumulative(), found.sum_s)
    )
    (family,) = text_string_to_metric_families(text)
    assert [s.value for s in family.samples if s.name == "m_bucket"] == found.cumulative()


def keyspace_of(places: Sequence[Place]) -> Keyspace:
    keyspace = Keyspace()
    for index, key in places:
        keyspace.databases[index].make_stream(key, 1)
    keyspace.databases[0].set(b"string", b"value")
    return keyspace


def chosen(keyspace: Keyspace, patterns: Sequence[str], most: int) -> tuple[list[Place], int]:
    *earlier, last = choose(keyspace, patterns, most)
    assert last is not None
    assert earlier == [None] * len(earlier)
    return last.places, last.left_out


@given(
    st.sets(st.tuples(st.integers(0, 2), st.sampled_from([b"a1", b"a2", b"b1", b"b2", b"c"]))),
    st.sampled_from([(), ("*",), ("a*",), ("a*", "?2"), ("none",)]),
    st.integers(0, 6),
)
def test_the_first_streams_in_order_are_chosen(
    places: set[Place], patterns: tuple[str, ...], most: int
) -> None:
    wanted = sorted(
        (index, key)
        for index, key in places
        if "*" in patterns
        or ("a*" in patterns and key.startswith(b"a"))
        or ("?2" in patterns and key[1:] == b"2")
    )
    found = chosen(keyspace_of(sorted(places)), patterns, most)
    assert found == (wanted[:most], max(0, len(wanted) - most))


def test_many_streams_are_selected_in_steps_while_keys_change() -> None:
    keyspace = keyspace_of([(0, b"key:%05d" % number) for number in range(5000)])
    db = keyspace.databases[0]
    steps = choose(keyspace, ("*",), 100)
    assert next(steps) is None
    db.delete(b"key:04999")
    db.make_stream(b"new", 1)
    later = list(steps)
    assert len(later) > 10
    found = later[-1]
    assert found is not None
    assert found.places == [(0, b"key:%05d" % number) for number in range(100)]
    assert keyspace.walks == []


def series_of(keyspace: Keyspace) -> tuple[dict[str, list[str]], Iterator[None]]:
    """The samples of streams, and the steps that add them."""
    sources = SimpleNamespace(
        executor=SimpleNamespace(keyspace=keyspace),
        config=SimpleNamespace(
            metrics=SimpleNamespace(streams=("*",), streams_max=10, consumers=True)
        ),
        persistence=SimpleNamespace(loading=False),
        now_ms=lambda: 0,
        steady_ms=lambda: 0,
    )
    lines: dict[str, list[str]] = defaultdict(list)
    return lines, StreamSeries(cast(Sources, sources)).lines(lines)


def test_entries_added_between_two_steps_do_not_change_the_lag() -> None:
    """The figures of a group and of its stream's ends are of the same moment."""
    keyspace = keyspace_of([(0, b"s")])
    stream = keyspace.databases[0].table[b"s"]
    groups = [stream.make_group(name, 0, 0) for name in (b"first", b"second")]
    for group in groups:
        for member in range(150):
            group.pending.make_consumer(b"%d" % member, 0)
    lines, steps = series_of(keyspace)
    for count, _ in enumerate(steps, 1):
        stream.append_entry(count, 0, [b"f", b"v"], node_entries=100)
        for group in groups:
            stream.move_group(group, count, 0, count)
    lags = lines["redis_stream_group_lag"]
    assert [line.rpartition(" ")[2] for line in lags] == ["0\n", "0\n"]
    assert len(lines["redis_stream_group_consumer_idle_seconds"]) == 300


def test_steps_have_a_limited_number_of_consumers() -> None:
    """Of one group or of several; a few consumers do not need their own step."""
    keyspace = keyspace_of([(0, b"s")])
    stream = keyspace.databases[0].table[b"s"]
    for name, count in ((b"a", 1), (b"b", 60), (b"c", 60), (b"d", 250)):
        group = stream.make_group(name, 0, 0)
        for member in range(count):
            group.pending.make_consumer(b"%d" % member, 0)
    lines, steps = series_of(keyspace)
    added = lines["redis_stream_group_consumer_idle_seconds"]
    sizes = [len(added) for _ in steps]
    assert sorted(set(sizes)) == [0, 100, 200, 300, 371]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.integers(1, 3)),
        st.tuples(st.just("ack"), st.integers(0, 5)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("move"), st.integers(0, 12)),
    ),
    max_size=40,
)


@given(operations)
def test_the_oldest_entry_that_is_pending_or_not_delivered(steps: list[tuple[str, int]]) -> None:
    """Compared with lists of entries and of pending IDs."""
    stream = Stream(1)
    group: Group = stream.make_group(b"g", 0, 0)
    consumer = group.pending.make_consumer(b"c", 0)
    entries: list[tuple[int, int]] = []
    pending: list[tuple[int, int]] = []
    offset, last_ms = (0, 0), 0
    for what, count in steps:
        if what == "append":
            last_ms += count
            for seq in range(count):
                stream.append_entry(last_ms, seq, [b"f", b"v"], node_entries=2)
                entries.append((last_ms, seq))
        elif what == "deliver":
            new = [entry for entry in entries if entry > offset][:count]
            if new:
                deliver_ids(group, new, 1, consumer.name)
                offset = new[-1]
                stream.move_group(group, *offset, -1)
                pending += new
        elif what == "ack" and pending:
            entry = pending.pop(count % len(pending))
            assert group.pending.acknowledge(*entry)
        elif what == "delete" and entries:
            assert stream.delete_id(*entries.pop(count % len(entries)))
        elif what == "move":
            offset = max(offset, (count, 1))
            stream.move_group(group, *offset, -1)
    open_ids = pending + [entry for entry in entries if entry > offset]
    figures = group_figures(group, stream, StreamEnds(stream))
    assert figures[0] == 1
    assert figures[1] == len(set(pending))
    assert figures[2] == offset[0]
    assert figures[5] == min(open_ids, default=(-1, 0))[0]


def test_the_age_of_an_id_of_the_future_is_the_time_it_was_seen() -> None:
    waiting = WaitingSince()

    def age_ms(entry_id: tuple[int, int], now_ms: int, steady_ms: int) -> int:
        waiting.begin_page()
        return waiting.age_ms("g", entry_id, now_ms, steady_ms)

    assert age_ms((900, 0), 1000, 50) == 100
    assert age_ms((9000, 1), 1000, 50) == 0
    assert age_ms((9000, 1), 2000, 1050) == 1000
    assert age_ms((9000, 2), 2500, 1550) == 0, "another entry is the oldest now"
    assert age_ms((9000, 2), 9100, 8150) == 6600, "it stays late when the clock reaches its ID"
    assert age_ms((9000, 3), 9200, 8250) == 200


def test_jumps_of_the_clock_are_logged_and_slewing_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wall_ms, steady_ns = [1_700_000_000_000], [5_000_000_000]
    watch = ClockWatch(lambda: wall_ms[0], lambda: steady_ns[0])
    for jump_ms in (0, 1, -1, 499, 86_400_000, 0, -86_400_000, 0):
        wall_ms[0] += 1000 + jump_ms
        steady_ns[0] += 1_000_000_000
        watch.tick_second()
    assert (watch.jumps, watch.last_jump_ms) == (2, -86_400_000)
    ahead, back = (record.getMessage() for record in caplog.records)
    assert "jumped ahead by 86400.0 s" in ahead
    assert "jumped back by 86400.0 s" in back


def test_every_name_is_once_in_the_table() -> None:
    listed = [family.name for families in metric_table.SECTIONS.values() for family in families]
    assert len(listed) == len(set(listed)) == len(metric_table.FAMILIES)


ROOT = Path(__file__).parents[2]
# The modules that write INFO.
INFO_MODULES = (
    "monitor/info.py", "monitor/memory_info.py", "durability/persistence_info.py",
    "replication/replication_info.py",
)  # fmt: skip


def test_every_field_of_info_is_a_metric_or_has_a_reason() -> None:
    texts = [(ROOT / "server" / name).read_text() for name in INFO_MODULES]
    fields = {field for text in texts for field in re.findall(r'"([a-z_0-9]+):', text)}
    rows = {row.field for row in metric_table.INFO_ROWS}
    left_out = " ".join(metric_table.INFO_LEFT_OUT.values()).split()
    assert len(fields) > 200
    assert fields - rows - set(left_out) == set(), "new fields: give them a row, or a reason"
    assert (rows | set(left_out)) - fields == set()
    assert len(left_out) == len(set(left_out) - rows)
