"""The filters that Spark pushes down, and the selections that they make."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
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

from millstream.pipeline.pushdown import push
from millstream.pipeline.selection import FIRST, LAST, TIME_MS_MAX, Selection
from millstream.pipeline.source_options import SCAN, SourceOptions

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
