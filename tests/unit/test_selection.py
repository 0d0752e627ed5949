"""Selections of a snapshot: bounds from options and filters, and a plan that follows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from tests.support.snapshots import Stream, publish, write_base, write_snapshot

from millstream.pipeline import snapshot_plan as planning
from millstream.pipeline.files import Folder
from millstream.pipeline.pushdown import push
from millstream.pipeline.selection import FIRST, LAST, TIME_MS_MAX, Selection
from millstream.pipeline.source_options import SCAN, OptionError, SourceOptions
from millstream.storage.files.manifest import Manifest

MAX = 2**64 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARE = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


def select(**options: str) -> Selection:
    return Selection.of(SourceOptions(options, SCAN), False)


OPTIONS = [
    ({}, FIRST, LAST),
    ({"startId": "5-7"}, (5, 7), LAST),
    ({"startId": "5.7"}, (5, 7), LAST),
    ({"startId": "5"}, (5, 0), LAST),
    ({"startId": "(5"}, (5, 1), LAST),
    ({"startId": f"(5-{MAX}"}, (6, 0), LAST),
    ({"endId": "5"}, FIRST, (5, MAX)),
    ({"endId": "(5"}, FIRST, (5, MAX - 1)),
    ({"endId": "(5-0"}, FIRST, (4, MAX)),
    ({"startId": "+"}, LAST, LAST),
    ({"endId": "-"}, FIRST, FIRST),
    ({"startId": "-", "endId": "+"}, FIRST, LAST),
    ({"startingTimestamp": "5"}, (5, 0), LAST),
    ({"endingTimestamp": "5"}, FIRST, (5, MAX)),
    ({"startingTimestamp": "1970-01-01T00:00:00.0015"}, (2, 0), LAST),
    ({"endingTimestamp": "1970-01-01T01:00:00.0015+01:00"}, FIRST, (1, MAX)),
    ({"startingTimestamp": "7", "startId": "5-7"}, (7, 0), LAST),
]


@pytest.mark.parametrize(("options", "first", "last"), OPTIONS)
def test_options_are_bounds(
    options: dict[str, str], first: tuple[int, int], last: tuple[int, int]
) -> None:
    made = select(**options)
    assert (made.first, made.last) == (first, last)


@pytest.mark.parametrize("options", [{"startId": f"({MAX}-{MAX}"}, {"endId": "(0-0"}])
def test_bounds_beyond_all_ids_select_nothing(options: dict[str, str]) -> None:
    assert select(**options).is_empty


@pytest.mark.parametrize("text", ["", "(", "5-", "-5", "5-7-9", f"{MAX + 1}", "5 ", "((5"])
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="'startId'"):
        select(startId=text)


def naive_bounds(asked: Filter, value: Any, numbers: list[int], of: Any) -> list[int]:
    return [one for one in numbers if COMPARE[type(asked)](of(one), value)]


@given(
    st.sampled_from(sorted(COMPARE, key=str)),
    st.integers(-3_000, 12_000),
    st.sampled_from(["ts", "ms"]),
)
def test_a_pushed_comparison_is_exact(kind: Any, micros: int, column: str) -> None:
    numbers = list(range(12))
    value: Any = EPOCH + timedelta(microseconds=micros)
    of: Any = lambda ms: EPOCH + timedelta(milliseconds=ms)  # noqa: E731
    if column == "ms":
        value, of = Decimal(micros) / 1000, Decimal
    asked = kind((column,), value)
    made = Selection()
    assert push(made, asked)
    kept = [ms for ms in numbers if made.first <= (ms, 0) and (ms, MAX) <= made.last]
    assert kept == naive_bounds(asked, value, numbers, of)


def test_times_that_are_null_are_not_wanted() -> None:
    made = Selection()
    assert push(made, IsNotNull(("ts",)))
    assert made.last == (TIME_MS_MAX, MAX)


@pytest.mark.parametrize(
    "asked",
    [
        Not(EqualTo(("ts",), EPOCH)),
        EqualTo(("ts",), datetime(2020, 1, 1)),
        EqualTo(("ms",), 1.5),
        GreaterThan(("id",), "5-0"),
        EqualTo(("n",), 5),
        IsNull(("ts",)),
        EqualTo(("fields", "key"), "x"),
        EqualTo(("key",), b"x"),
    ],
)
def test_undecidable_filters_are_left_to_spark(asked: Filter) -> None:
    made = Selection()
    assert not push(made, asked)
    assert (made.first, made.last) == (FIRST, LAST)


KEYS = [b"", b"a", b"ab", b"b", b"\xff", "ä".encode()]


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (EqualTo(("key",), "a"), [b"a"]),
        (Not(EqualTo(("key",), "a")), [b"", b"ab", b"b", b"\xff", "ä".encode()]),
        (In(("key",), ("a", "b")), [b"a", b"b"]),
        (StringStartsWith(("key",), "a"), [b"a", b"ab"]),
        (GreaterThan(("key",), "b"), [b"\xff", "ä".encode()]),
        (EqualTo(("key",), "\ufffd"), [b"\xff"]),
        (IsNotNull(("key",)), KEYS),
        (IsNull(("key",)), []),
    ],
)
def test_filters_on_keys_are_decided_as_spark_sees_the_keys(
    asked: Filter, kept: list[bytes]
) -> None:
    made = Selection()
    assert push(made, asked)
    assert list(filter(made.key_test(), KEYS)) == kept


def test_a_list_of_ids_sets_bounds_and_is_filtered_by_spark() -> None:
    made = Selection()
    assert not push(made, In(("id",), ("5-1", "no id", "3-0", "05-9")))
    assert (made.first, made.last) == ((3, 0), (5, 1))


def stream(name: bytes, count: int = 30) -> Stream:
    return Stream(name, {(n, 0): [b"a", b"b"] for n in range(1, count + 1)})


def plan(directory: Path, split_bytes: int = 1 << 20, at_least: int = 1) -> list[Any]:
    return planning.plan(Folder.of(str(directory)), 0, Selection(), split_bytes, at_least)


@pytest.mark.parametrize(
    ("split_bytes", "at_least"), [(1 << 20, 1), (1, 1), (1 << 20, 3), (500, 9)]
)
def test_a_plan_takes_every_chunk_once(tmp_path: Path, split_bytes: int, at_least: int) -> None:
    write_snapshot(tmp_path, [stream(b"%d" % n) for n in range(20)], 60)
    partitions = plan(tmp_path, split_bytes, at_least)
    assert [chunk.number for one in partitions for chunk in one.chunks] == list(range(10))
    assert [one.number for one in partitions] == list(range(len(partitions)))
    assert len(partitions) >= min(at_least, 10)
    assert split_bytes != 1 or len(partitions) == 10


def test_a_snapshot_published_during_planning_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest was read, and then the base it named is gone: there is a newer one."""
    write_snapshot(tmp_path, [stream(b"old")])
    newest = planning._newest

    def publish_after(folder: Folder, manifest: Manifest) -> str:
        name = newest(folder, manifest)
        if name == "base-1.msnap":
            write_base(tmp_path, [stream(b"new")], 2)
            publish(tmp_path, 2)
        return name

    monkeypatch.setattr(planning, "_newest", publish_after)
    (partition,) = plan(tmp_path)
    assert partition.snapshot.file == "base-2.msnap"
    assert [chunk.pieces.keys for chunk in partition.chunks] == [[b"new"]]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_key_is_not_compared_with_each_of_many_values(wanted: bool) -> None:
    class Counted(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)  # type: ignore[no-any-return, unused-ignore]

    one_of = In(("key",), tuple(Counted(n) for n in range(500)))
    selection = select()
    assert push(selection, one_of if wanted else Not(one_of))
    wants = selection.key_test()
    assert [n for n in range(1000) if wants(b"%d" % n)] == [
        n for n in range(1000) if (n < 500) == wanted
    ]
    assert Counted.compared < 5000
