"""Applies the filters that Spark pushes down to the selection of a snapshot's entries.

Keys are known before anything is read, so this module decides any filter on `key` alone exactly.
Filters on `ts`, `ms` and `id` become the bounds of a range of IDs. Spark evaluates all other
filters.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

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
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from millstream.pipeline.selection import NUMBER_MAX, TIME_MS_MAX, EntryId, Key, Selection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN_ID = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)", re.ASCII)

COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda key, value: key == value,
    EqualNullSafe: lambda key, value: key == value,
    GreaterThan: lambda key, value: key > value,
    GreaterThanOrEqual: lambda key, value: key >= value,
    LessThan: lambda key, value: key < value,
    LessThanOrEqual: lambda key, value: key <= value,
    In: lambda key, values: key in values,
    StringStartsWith: lambda key, value: key.startswith(value),
    StringEndsWith: lambda key, value: key.endswith(value),
    StringContains: lambda key, value: value in key,
}


def push(selection: Selection, asked: Filter) -> bool:
    """Apply a filter; True if it is applied completely, so Spark need not evaluate it."""
    path = getattr(asked.child if isinstance(asked, Not) else asked, "attribute", ())
    if path == ("key",):
        return _push_key(selection, asked)
    if path == ("ts",):
        return _push_number(selection, asked, _milliseconds, TIME_MS_MAX)
    if path == ("ms",):
        return _push_number(selection, asked, _number, NUMBER_MAX)
    return path == ("id",) and _push_id(selection, asked)


def _push_key(selection: Selection, asked: Filter) -> bool:
    inner = asked.child if isinstance(asked, Not) else asked
    kind = bytes if selection.key_is_binary else str
    value = getattr(inner, "value", None)
    values = value if isinstance(value, tuple | list) else (value,)
    known = isinstance(inner, IsNull | IsNotNull) or (
        type(inner) in COMPARISONS and all(isinstance(one, kind) for one in values)
    )
    if known:
        selection.want_key(partial(_holds, _hashed(asked)))
    return known


def _push_number(
    selection: Selection, asked: Filter, convert: Callable[[Any], Fraction | None], most: int
) -> bool:
    """Apply a comparison of milliseconds with a number, which may have a fraction."""
    if isinstance(asked, IsNotNull):
        selection.lower_last((most, NUMBER_MAX))
        return True
    if isinstance(asked, In):
        values = [convert(one) for one in asked.value]
        known = [one for one in values if one is not None]
        if known and len(known) == len(values):
            _want_ms(selection, math.ceil(min(known)), math.floor(max(known)))
        return False
    value = convert(getattr(asked, "value", None))
    if value is None:
        return False
    low, high = math.ceil(value), math.floor(value)
    if isinstance(asked, EqualTo | EqualNullSafe):
        _want_ms(selection, low, high)
    elif isinstance(asked, GreaterThanOrEqual):
        _want_ms(selection, low, most)
    elif isinstance(asked, GreaterThan):
        _want_ms(selection, high + 1, most)
    elif isinstance(asked, LessThanOrEqual):
        _want_ms(selection, 0, min(high, most))
    elif isinstance(asked, LessThan):
        _want_ms(selection, 0, min(low - 1, most))
    else:
        return False
    return True


def _want_ms(selection: Selection, low: int, high: int) -> None:
    """Keep only IDs with low <= ms <= high; the bounds may be outside the range of an ID."""
    selection.raise_first((max(low, 0), 0) if low <= NUMBER_MAX else None)
    selection.lower_last((min(high, NUMBER_MAX), NUMBER_MAX) if high >= 0 else None)


def _push_id(selection: Selection, asked: Filter) -> bool:
    """Apply equality of IDs. Texts do not sort as IDs do, so Spark evaluates `<` and similar."""
    if isinstance(asked, IsNotNull):
        return True
    if isinstance(asked, EqualTo | EqualNullSafe | In):
        values = asked.value if isinstance(asked, In) else (asked.value,)
        if not all(isinstance(value, str) for value in values):
            return False
        ids = [id_ for id_ in map(_plain_id, values) if id_ is not None]
        selection.raise_first(min(ids, default=None))
        selection.lower_last(max(ids, default=None))
        return len(ids) < 2
    return False


def _hashed(asked: Filter) -> Filter:
    """The same filter with the values of IN as a set: it is evaluated for each stream."""
    if isinstance(asked, Not):
        return Not(_hashed(asked.child))
    if isinstance(asked, In):
        return In(asked.attribute, frozenset(asked.value))  # type: ignore[arg-type]
    return asked


def _holds(asked: Filter, key: Key) -> bool:
    if isinstance(asked, Not):
        return not _holds(asked.child, key)
    if isinstance(asked, IsNull | IsNotNull):
        return isinstance(asked, IsNotNull)
    return COMPARISONS[type(asked)](key, asked.value)  # type: ignore[attr-defined]


def _plain_id(text: str) -> EntryId | None:
    """The ID whose text in the column `id` is exactly this one; None if there is none."""
    found = _PLAIN_ID.fullmatch(text)
    if found is None:
        return None
    ms, seq = int(found[1]), int(found[2])
    return (ms, seq) if max(ms, seq) <= NUMBER_MAX else None


def _number(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    return Fraction(value) if not isinstance(value, Decimal) or value.is_finite() else None


def _milliseconds(value: Any) -> Fraction | None:
    """A timestamp as milliseconds since the epoch, with its microseconds."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return Fraction((value - _EPOCH) // timedelta(microseconds=1), 1000)
