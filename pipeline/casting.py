"""Casts the texts of a field to the type of a column, and times to texts.

A text that cannot be cast becomes null.

Arrow casts whole columns but stops at the first bad value, so a column that Arrow refuses is cast
again value by value. Both ways accept the same texts: numbers, ISO dates and times, and Spark's
words for true and false, with or without blanks around them. A time without a zone is UTC.

Dates and times may have any year that their column can hold. Python's own have the years 1 to 9999;
others are numbers here.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
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
_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
# The first of January of the year 1, in days and in microseconds since 1970.
_DAY_MIN = -719_162
_TIME_MIN_US = _DAY_MIN * 86_400_000_000
# The last day of the year 9999, and the last microsecond.
_DAY_MAX = 2_932_896
_TIME_MAX_US = (_DAY_MAX + 1) * 86_400_000_000 - 1
_YEAR = re.compile(r"(-?)([0-9]+)(.*)", re.ASCII)
# numpy has no text for the smallest number of microseconds, which Arrow and Spark take for a time.
_SMALLEST_TIME = "-290308-12-21T19:59:05.224192"
_ZONE = re.compile("[Zz+-]")
_FAR_YEAR = re.compile(r"([+-][0-9]{4,7}|0000)(-.*)", re.ASCII)
# The calendar repeats after 400 years, also its days of the week.
_YEARS_OF_CYCLE, _DAYS_OF_CYCLE = 400, 146_097
# The year 2000 is a multiple of 400, so Python's dates have all years of the cycle that it begins.
_NEAR_YEAR = 2000
_EPOCH = datetime(1970, 1, 1)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_NO_OFFSET, _US, _DAY_US = timedelta(), timedelta(microseconds=1), 86_400_000_000
# Numbers of decimal digits that always fit into 128 and 256 bits.
_DIGITS_OF_128 = 38
_DIGITS_OF_256 = 76

Parse = Callable[[str], Any]


def castable(wanted: pa.DataType) -> bool:
    """True if texts can be cast to this type."""
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
    return made


def _some_has(texts: pa.Array, letters: bytes) -> bool:
    """True if the texts contain one of these letters. All texts are contiguous in one buffer."""
    data = texts.buffers()[2]
    raw = b"" if data is None else data.to_pybytes()
    return any(letter in raw for letter in letters)


def _times(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Arrow casts a column in which all times have a zone, or none has. The first one decides:
    Arrow tries all values of a column even if it refuses the first."""
    if wanted.tz is None:
        return texts.cast(wanted)
    first = pc.index(texts.is_valid(), True).as_py()
    if first >= 0 and _ZONE.search(texts[first].as_py(), len("2026-11-20")):
        return texts.cast(wanted)
    return pc.assume_timezone(texts.cast(pa.timestamp("us")), "UTC")


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
        return _parse_date
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


def _parse_date(text: str) -> date | int | None:
    """The date; the days since 1970 if its year is none of Python's."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        near, days = _near(text)
        return _within(date.fromisoformat(near).toordinal() - _EPOCH_ORDINAL + days, 32)


def _parse_time(text: str) -> datetime | int | None:
    """The time, in UTC if it has no zone; microseconds since 1970 if its year is none of
    Python's."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return _parse_far_time(text, takes_zone=True)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _parse_time_without_zone(text: str) -> datetime | int | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return _parse_far_time(text, takes_zone=False)
    return time if time.tzinfo is None else None


def _parse_far_time(text: str, takes_zone: bool) -> int | None:
    near, days = _near(text)
    time = datetime.fromisoformat(near)
    offset = time.utcoffset()
    if offset is not None and not takes_zone:
        return None
    since = time.replace(tzinfo=None) - _EPOCH - (offset or _NO_OFFSET)
    return _within(since // _US + days * _DAY_US, 64)


def _near(text: str) -> tuple[str, int]:
    """The text with a year that Python's dates have, and the number of days to add to its time.
    ValueError if its year is not written as a far one."""
    found = _FAR_YEAR.fullmatch(text)
    if found is None:
        raise ValueError(text)
    cycles, year = divmod(int(found[1]) - _NEAR_YEAR, _YEARS_OF_CYCLE)
    return f"{_NEAR_YEAR + year}{found[2]}", cycles * _DAYS_OF_CYCLE


def _within(number: int, bits: int) -> int | None:
    """The number if an integer of this size can hold it."""
    end = 1 << (bits - 1)
    return number if -end <= number < end else None


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
    """True if the values are times in microseconds, all in the years 1 to 9999."""
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
    found = _YEAR.fullmatch(_SMALLEST_TIME if text == "NaT" else text)
    assert found is not None
    sign, year, rest = found.groups()
    return f"{sign or '+' * (len(year) > 4)}{year:0>4}{rest}"
