"""Casts the texts of a field to the type of a column, and times to texts.

A text that cannot be cast becomes null.

Arrow casts whole columns but stops at the first bad value, so a column that Arrow refuses is cast
again value by value. Both ways accept the same texts: numbers, ISO dates and times, and Spark's
words for true and false, with or without blanks around them. A time without a zone is UTC.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,20})", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_NOT_FINITE = {"nan", "inf", "infinity", "+inf", "+infinity", "-inf", "-infinity"}
_TRUE = {"true", "t", "yes", "y", "1"}
_FALSE = {"false", "f", "no", "n", "0"}
_INTEGERS = {
    pa.int8(): 8,
    pa.int16(): 16,
    pa.int32(): 32,
    pa.int64(): 64,
}
# The first of January of the year 1, in days and in microseconds since 1970.
_DAY_MIN = -719_162
_TIME_MIN_US = _DAY_MIN * 86_400_000_000
# The last day of the year 9999, and the last microsecond.
_DAY_MAX = 2_932_896
_TIME_MAX_US = (_DAY_MAX + 1) * 86_400_000_000 - 1
_YEAR = re.compile(r"(-?)([0-9]+)(.*)", re.ASCII)
# Numbers of decimal digits that always fit into 128 and 256 bits.
_DIGITS_OF_128 = 38
_DIGITS_OF_256 = 76

Parse = Callable[[str], Any]


def castable(wanted: pa.DataType) -> bool:
    """Whether texts can be cast to this type."""
    return (
        wanted in _INTEGERS
        or pa.types.is_floating(wanted)
        or pa.types.is_boolean(wanted)
        or pa.types.is_decimal128(wanted)
        or pa.types.is_date32(wanted)
        or pa.types.is_timestamp(wanted)
    )


def cast_texts(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The column as `wanted`; null where a text is null or cannot be cast."""
    try:
        fast = _cast_all(texts, wanted)
    except pa.ArrowInvalid:
        fast = None
    if fast is not None:
        return fast
    parse = _parser(wanted)
    values = [None if text is None else _parsed(parse, text.strip()) for text in texts.to_pylist()]
    return pa.array(values, wanted)


def _cast_all(texts: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Arrow's cast of the whole column; None if Arrow accepts texts that this module refuses. The
    checks cost little compared with the cast."""
    if pa.types.is_boolean(wanted):
        return _booleans(texts)
    if pa.types.is_decimal128(wanted):
        return _decimals(texts, wanted)
    if pa.types.is_timestamp(wanted):
        return _times(texts, wanted)
    if wanted in _INTEGERS and _some_has(texts, b"xX"):
        return None  # Arrow accepts hexadecimal
    made = texts.cast(wanted)
    if pa.types.is_floating(wanted) and pc.any(pc.is_nan(made)).as_py():
        return None  # Arrow accepts nan(1) and -nan
    if pa.types.is_date32(wanted) and _is_below(made.view(pa.int32()), _DAY_MIN):
        return None
    return made


def _some_has(texts: pa.Array, letters: bytes) -> bool:
    """Whether the texts contain one of these letters. All texts are contiguous in one buffer."""
    data = texts.buffers()[2]
    raw = b"" if data is None else data.to_pybytes()
    return any(letter in raw for letter in letters)


def _times(texts: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    naive = texts.cast(pa.timestamp("us"))
    if _is_below(naive.view(pa.int64()), _TIME_MIN_US):
        return None
    return naive.cast(wanted) if wanted.tz is None else pc.assume_timezone(naive, "UTC")


def _is_below(numbers: pa.Array, least: int) -> bool:
    """Whether a day or a time is before the year 1. Arrow accepts the year 0, Python does not."""
    smallest: int | None = pc.min(numbers).as_py()
    return smallest is not None and smallest < least


def _decimals(texts: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Arrow shifts digits to the wanted scale without an overflow check and can return a wrong
    number. Long texts are therefore cast with twice the digits, and longer ones are not given to
    Arrow."""
    if _some_has(texts, b"eE"):
        return None
    digits = (pc.max(pc.binary_length(texts)).as_py() or 0) + wanted.scale
    if digits > _DIGITS_OF_256:
        return None
    wide = wanted if digits <= _DIGITS_OF_128 else pa.decimal256(_DIGITS_OF_256, wanted.scale)
    return texts.cast(wide).cast(wanted)


def _booleans(texts: pa.Array) -> pa.Array:
    lower = pc.ascii_lower(pc.ascii_trim_whitespace(texts))
    true = pc.is_in(lower, pa.array(sorted(_TRUE)))
    false = pc.is_in(lower, pa.array(sorted(_FALSE)))
    return pc.if_else(pc.or_(true, false), true, None)


def _parsed(parse: Parse, text: str) -> Any:
    try:
        return parse(text)
    except (ValueError, OverflowError, InvalidOperation):
        return None


def _parser(wanted: pa.DataType) -> Parse:
    if wanted in _INTEGERS:
        return _integer_parser(_INTEGERS[wanted])
    if pa.types.is_decimal128(wanted):
        return _decimal_parser(wanted.precision, wanted.scale)
    if pa.types.is_date32(wanted):
        return date.fromisoformat
    if pa.types.is_timestamp(wanted):
        return _parse_time if wanted.tz is not None else _parse_time_without_zone
    return _parse_number


def _integer_parser(bits: int) -> Parse:
    end = 1 << (bits - 1)

    def parse(text: str) -> int | None:
        found = _INTEGER.fullmatch(text)
        if found is None:
            return None
        number = int(found[1] + found[2])
        return number if -end <= number < end else None

    return parse


def _decimal_parser(precision: int, scale: int) -> Parse:
    context = Context(prec=precision, rounding=ROUND_HALF_UP)
    unit = Decimal(1).scaleb(-scale)

    def parse(text: str) -> Decimal | None:
        if not _NUMBER.fullmatch(text):
            return None
        return Decimal(text).quantize(unit, context=context)

    return parse


def _parse_number(text: str) -> float | None:
    if _NUMBER.fullmatch(text) or text.lower() in _NOT_FINITE:
        return float(text)
    return None


def _parse_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _parse_time_without_zone(text: str) -> datetime | None:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is None else None


def time_texts(times: pa.Array) -> pa.Array:
    """Dates and times in ISO 8601. Times with a zone are given in UTC,
    `2026-11-20T15:04:05.123456Z`; times without a zone have no Z. A year of more than four digits
    begins with its sign."""
    if pa.types.is_date32(times.type):
        numbers, plain = times.view(pa.int32()), times
        least, most = _DAY_MIN, _DAY_MAX
    else:
        numbers = times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64())
        plain = numbers.view(pa.timestamp("us"))
        least, most = _TIME_MIN_US, _TIME_MAX_US
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or least <= ends["min"] <= ends["max"] <= most:
        texts = pc.replace_substring(plain.cast(pa.string()), " ", "T")
    else:
        texts = _far_texts(plain)
    return pc.binary_join_element_wise(texts, "Z", "") if _has_zone(times.type) else texts


def is_common_time(times: pa.Array) -> bool:
    """Whether the values are times in microseconds, all in the years 1 to 9999."""
    if not pa.types.is_timestamp(times.type) or times.type.unit != "us":
        return False
    ends = pc.min_max(times.view(pa.int64())).as_py()
    return ends["min"] is None or _TIME_MIN_US <= ends["min"] <= ends["max"] <= _TIME_MAX_US


def _has_zone(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is not None


def _far_texts(plain: pa.Array) -> pa.Array:
    """Times of all years as texts. Arrow's own texts have a wrong or no year above 32767."""
    texts = np.datetime_as_string(plain.to_numpy(zero_copy_only=False))
    nulls = plain.is_null().to_pylist()
    return pa.array(
        [None if null else _signed(text) for text, null in zip(texts, nulls, strict=True)],
        pa.string(),
    )


def _signed(text: str) -> str:
    found = _YEAR.fullmatch(text)
    assert found is not None
    sign, year, rest = found.groups()
    return f"{sign or '+' * (len(year) > 4)}{year:0>4}{rest}"
