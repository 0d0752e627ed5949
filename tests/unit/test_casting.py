"""Texts cast to the type of a column: the right value or none, with any other values."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.pipeline.casting import cast_texts, time_texts

MOMENTS, TIMES = pa.timestamp("us", "UTC"), pa.timestamp("us")
TYPES = [
    *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.decimal128(9, 2), pa.decimal128(38, 0), pa.decimal128(38, 18), pa.decimal128(38, 38)),
    *(pa.date32(), MOMENTS, TIMES),
]
DAY_US = 86_400_000_000
NO_VALUE = "neither a number nor a time"


def cast(*texts: str | None, to: pa.DataType) -> list[Any]:
    """The values of the column; days and microseconds since 1970 as numbers, because Python's own
    dates do not have all years."""
    made = cast_texts(pa.array(texts, pa.string()), to)
    assert made.type == to
    values: list[Any] = numbers_of(made).to_pylist()
    return values


def numbers_of(column: pa.Array) -> pa.Array:
    if not pa.types.is_temporal(column.type):
        return column
    return column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())


digits = st.text("0123456789", min_size=1, max_size=45)
numbers = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-", "+", " "]),
        st.one_of(digits, st.builds("{}.{}".format, digits, digits), st.just(".5")),
        st.sampled_from(["", "e3", "E-7", "e38", " ", "x", "_1"]),
    ),
)
years = st.one_of(
    st.integers(0, 10001).map("{:04}".format),
    st.integers(-300_000, 300_000).map("{:+05}".format),
    st.sampled_from(["+2024", "-0000", "+0000", "12345", "-290308", "+294247", "+5881580", "-44"]),
)
days = st.builds("{}-{:02}-{:02}".format, years, *map(st.integers, (0, 0), (13, 32)))
hours = st.builds("{:02}:{:02}".format, st.integers(0, 24), st.integers(0, 60))
fractions = st.sampled_from(["", ":05", ":60", ":05.1", ":05.123456", ":05.123456789"])
zones = st.sampled_from(["", "Z", "z", "+01:00", "-0130", "+14:00", "-01", "+24:00", " Z"])
clocks = st.builds("{}{}{}{}".format, st.sampled_from("T "), hours, fractions, zones)
times = st.one_of(days, st.builds("{}{}".format, days, clocks))
words = st.sampled_from(["", " ", "true", "T", "no", "on", "nan", "nan(1)", "0x1F", "\u0661"])


@settings(deadline=None)
@given(text=st.one_of(numbers, times, words), wanted=st.sampled_from(TYPES))
@example(text="007", wanted=pa.decimal128(38, 38))
@example(text="1" * 39, wanted=pa.decimal128(38, 0))
@example(text="1e37", wanted=pa.decimal128(38, 18))
@example(text="NaN(7)", wanted=pa.float64())
@example(text="-nan", wanted=pa.float64())
@example(text="0" * 40 + "7", wanted=pa.int64())
@example(text="0000-01-01", wanted=pa.date32())
@example(text="0000-02-29T00:00", wanted=MOMENTS)
@example(text="0000-01-01T00:00Z", wanted=MOMENTS)
@example(text="0001-01-01T00:00+01:00", wanted=MOMENTS)
@example(text="9999-12-31T23:59-01:00", wanted=MOMENTS)
def test_a_text_has_one_meaning_next_to_valid_and_invalid_ones(
    text: str, wanted: pa.DataType
) -> None:
    """A column without a bad text is cast as a whole by Arrow, another one value by value."""
    (alone,) = cast(text, to=wanted)
    with_others, bad, missing = cast(text, NO_VALUE, None, to=wanted)
    assert repr(alone) == repr(with_others)
    assert repr(cast(text, "2026-10-25T00:30", to=wanted)[0]) == repr(alone)
    assert repr(cast(text, "2026-10-25T00:30Z", to=wanted)[0]) == repr(alone)
    assert bad is None
    assert missing is None


@settings(deadline=None)
@given(text=numbers, scale=st.integers(0, 38))
@example(text="007", scale=38)
def test_a_decimal_is_the_number_rounded_to_its_scale_or_null(text: str, scale: int) -> None:
    (got,) = cast(text, to=pa.decimal128(38, scale))
    try:
        number = Decimal(text.strip().replace("_", "x"))
    except ArithmeticError:
        assert got is None
        return
    context = Context(prec=200, rounding=ROUND_HALF_UP)
    rounded = number.quantize(Decimal(1).scaleb(-scale), context=context)
    assert got == (rounded if rounded.scaleb(scale, context).copy_abs() < 10**38 else None)


def test_times_without_a_zone_are_utc_and_days_are_days() -> None:
    moment = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * 1_000_000
    texts = ("2026-10-25T00:30", "2026-10-25 02:30:00+02:00", " 2026-10-25T00:30:00Z ")
    assert cast(*texts, to=MOMENTS) == [moment] * 3
    assert cast(*texts, to=TIMES) == [moment, None, None]
    assert cast("2026-10-25", to=pa.date32()) == [moment // DAY_US]


def test_texts_of_other_forms_are_no_times() -> None:
    """The casts that docs/spark.md lists as null."""
    assert cast("2026-10-25T00:30Z", "2026-10-25T00:30+01:00", to=TIMES) == [None, None]
    for text in ("2026-10-25T00:30", "2026-10-25 00:30:00", "2026-10-25T00:30Z"):
        assert cast(text, to=pa.date32()) == [None]
    for text in ("12345-06-07", "-44-03-15", "+123-01-01", "-0001-02-29", "+12345-00-07"):
        for wanted in (pa.date32(), TIMES, MOMENTS):
            assert cast(text, to=wanted) == [None]
    for text in ("-290308-12-21T19:59:05.224191", "+294247-01-10T04:00:54.775808", "+999999-01-01"):
        assert cast(text, to=TIMES) == [None]
    assert cast("-5877641-06-22", "+5881580-07-12", to=pa.date32()) == [None, None]


@pytest.mark.parametrize("wanted", TYPES, ids=str)
def test_an_empty_column_and_one_of_nulls_stay_different(wanted: pa.DataType) -> None:
    assert cast(to=wanted) == []
    assert cast(None, None, to=wanted) == [None, None]


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000000"),
        (-1, "1969-12-31T23:59:59.999999"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999"),
        (253_402_300_800_000_000, "+10000-01-01T00:00:00.000000"),
        (9_223_372_036_854_775_000, "+294247-01-10T04:00:54.775000"),
        (-62_135_596_800_000_001, "0000-12-31T23:59:59.999999"),
        (-70_000_000_000_000_000, "-0249-10-15T19:33:20.000000"),
        (-(2**63), "-290308-12-21T19:59:05.224192"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807"),
    ],
)
def test_a_time_of_any_year_is_written_as_iso_has_it(microseconds: int, text: str) -> None:
    moments = pa.array([microseconds, None], pa.timestamp("us", "Europe/Berlin"))
    assert time_texts(moments).to_pylist() == [text + "Z", None]
    assert time_texts(moments.view(TIMES)).to_pylist() == [text, None]
    assert cast(text, None, to=TIMES) == [microseconds, None]
    assert cast(text + "Z", None, to=MOMENTS) == [microseconds, None]


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (2_932_897, "+10000-01-01"),
        (-719_529, "-0001-12-31"),
        (-(2**31), "-5877641-06-23"),
        (2**31 - 1, "+5881580-07-11"),
    ],
)
def test_a_day_of_any_year_is_written_as_iso_has_it(days: int, text: str) -> None:
    assert time_texts(pa.array([days, None], pa.date32())).to_pylist() == [text, None]
    assert cast(text, None, to=pa.date32()) == [days, None]


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1), st.booleans())
def test_times_and_days_that_are_written_are_read(values: list[int | None], is_near: bool) -> None:
    if is_near:
        values = [None if value is None else value // 10**6 for value in values]
    for type_ in (TIMES, MOMENTS, pa.date32()):
        bits = 32 if type_ == pa.date32() else 64
        column = pa.array([None if v is None else v >> (64 - bits) for v in values], type_)
        assert cast_texts(time_texts(column), type_).equals(column)
