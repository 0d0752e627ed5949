"""Which streams and which ids are wanted: from the options, and from the filters Spark pushes down.

A stream's key is known before anything is read, so any filter on `key` alone is decided exactly
here. Filters on `ts`, `ms` and `id` become the bounds of a range of ids. What cannot be expressed
that way is left to Spark.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
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

from millstream.glob import matcher
from millstream.ids import parse
from millstream.pipeline.options import Options

NUMBER_MAX = 2**64 - 1
FIRST = (0, 0)
LAST = (NUMBER_MAX, NUMBER_MAX)
# The greatest milliseconds that are a timestamp, whose microseconds hold 64 bits with sign.
TIME_MS_MAX = (2**63 - 1) // 1000
BIGINT_MAX = 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN_ID = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)", re.ASCII)

EntryId = tuple[int, int]
Key = bytes | str

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


def after(id_: EntryId) -> EntryId | None:
    """The id right above; None above the last."""
    ms, seq = id_
    if seq < NUMBER_MAX:
        return ms, seq + 1
    return (ms + 1, 0) if ms < NUMBER_MAX else None


def before(id_: EntryId) -> EntryId | None:
    """The id right below; None below the first."""
    ms, seq = id_
    if seq > 0:
        return ms, seq - 1
    return (ms - 1, NUMBER_MAX) if ms > 0 else None


@dataclass
class Selection:
    """The streams and the ids that are wanted: first <= id <= last, nothing when last < first."""

    key_is_binary: bool = False
    first: EntryId = FIRST
    last: EntryId = LAST
    _names: frozenset[bytes] | None = None
    _pattern: str | None = None
    _filters: list[Filter] = field(default_factory=list)

    @classmethod
    def of(cls, options: Options, key_is_binary: bool) -> "Selection":
        """What the options subscribe, subscribePattern, startId, endId, startingTimestamp and
        endingTimestamp choose."""
        made = cls(key_is_binary)
        names = options.text("subscribe")
        if names is not None:
            made._names = frozenset(name.strip().encode() for name in names.split(","))
        made._pattern = options.text("subscribePattern")
        made.raise_first(take_start(options))
        made.lower_last(take_end(options))
        made.raise_first((take_time(options, "startingTimestamp", 0), 0))
        made.lower_last((take_time(options, "endingTimestamp", NUMBER_MAX), NUMBER_MAX))
        return made

    @property
    def is_empty(self) -> bool:
        return self.last < self.first

    def raise_first(self, id_: EntryId | None) -> None:
        """Want nothing below `id_`; None: nothing at all."""
        if id_ is None:
            self.first, self.last = LAST, FIRST
        else:
            self.first = max(self.first, id_)

    def lower_last(self, id_: EntryId | None) -> None:
        """Want nothing above `id_`; None: nothing at all."""
        if id_ is None:
            self.first, self.last = LAST, FIRST
        else:
            self.last = min(self.last, id_)

    def key_test(self) -> Callable[[bytes], bool]:
        """Whether a stream of this key is wanted."""
        matches = matcher(self._pattern.encode()) if self._pattern is not None else None
        names, filters, binary = self._names, self._filters, self.key_is_binary

        def wanted(key: bytes) -> bool:
            if names is not None and key not in names:
                return False
            if matches is not None and not matches(key):
                return False
            if not filters:
                return True
            value = key if binary else key.decode("utf-8", "replace")
            return all(_holds(one, value) for one in filters)

        return wanted

    def push(self, asked: Filter) -> bool:
        """Take a filter into account; whether that is all of it, so that Spark need not look."""
        path = getattr(asked.child if isinstance(asked, Not) else asked, "attribute", ())
        if path == ("key",):
            return self._push_key(asked)
        if path == ("ts",):
            return self._push_number(asked, _milliseconds, TIME_MS_MAX)
        if path == ("ms",):
            return self._push_number(asked, _number, NUMBER_MAX)
        return path == ("id",) and self._push_id(asked)

    def _push_key(self, asked: Filter) -> bool:
        inner = asked.child if isinstance(asked, Not) else asked
        kind = bytes if self.key_is_binary else str
        value = getattr(inner, "value", None)
        values = value if isinstance(value, tuple | list) else (value,)
        known = isinstance(inner, IsNull | IsNotNull) or (
            type(inner) in COMPARISONS and all(isinstance(one, kind) for one in values)
        )
        if known:
            self._filters.append(asked)
        return known

    def _push_number(
        self, asked: Filter, convert: Callable[[Any], Fraction | None], most: int
    ) -> bool:
        """A comparison of milliseconds with a number, which need not be a whole one."""
        if isinstance(asked, IsNotNull):
            self.lower_last((most, NUMBER_MAX))
            return True
        if isinstance(asked, In):
            values = [convert(one) for one in asked.value]
            known = [one for one in values if one is not None]
            if known and len(known) == len(values):
                self._want_ms(math.ceil(min(known)), math.floor(max(known)))
            return False
        value = convert(getattr(asked, "value", None))
        if value is None:
            return False
        low, high = math.ceil(value), math.floor(value)
        if isinstance(asked, EqualTo | EqualNullSafe):
            self._want_ms(low, high)
        elif isinstance(asked, GreaterThanOrEqual):
            self._want_ms(low, most)
        elif isinstance(asked, GreaterThan):
            self._want_ms(high + 1, most)
        elif isinstance(asked, LessThanOrEqual):
            self._want_ms(0, min(high, most))
        elif isinstance(asked, LessThan):
            self._want_ms(0, min(low - 1, most))
        else:
            return False
        return True

    def _want_ms(self, low: int, high: int) -> None:
        """Want only ids with low <= ms <= high, which may lie outside of what an id can have."""
        self.raise_first((max(low, 0), 0) if low <= NUMBER_MAX else None)
        self.lower_last((min(high, NUMBER_MAX), NUMBER_MAX) if high >= 0 else None)

    def _push_id(self, asked: Filter) -> bool:
        """Equality of ids. Texts do not sort as ids do, so `<` and its kin are left to Spark."""
        if isinstance(asked, IsNotNull):
            return True
        if isinstance(asked, EqualTo | EqualNullSafe | In):
            values = asked.value if isinstance(asked, In) else (asked.value,)
            if not all(isinstance(value, str) for value in values):
                return False
            ids = [id_ for id_ in map(_plain_id, values) if id_ is not None]
            self.raise_first(min(ids, default=None))
            self.lower_last(max(ids, default=None))
            return len(ids) < 2
        return False


def _holds(asked: Filter, key: Key) -> bool:
    if isinstance(asked, Not):
        return not _holds(asked.child, key)
    if isinstance(asked, IsNull | IsNotNull):
        return isinstance(asked, IsNotNull)
    return COMPARISONS[type(asked)](key, asked.value)  # type: ignore[attr-defined]


def _plain_id(text: str) -> EntryId | None:
    """The id of which this is the text as the column `id` has it; None: of none."""
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


def take_start(options: Options) -> EntryId | None:
    """The option `startId`: an id, `ms` for its first id, `(` before it for above it."""
    text = options.text("startId")
    if text is None or text == "-":
        return FIRST
    if text == "+":
        return LAST
    id_ = _parsed(options, "startId", text.removeprefix("("), 0)
    return after(id_) if text.startswith("(") else id_


def take_end(options: Options) -> EntryId | None:
    """The option `endId`: as `startId`, but `ms` is its last id and `(` is for below it."""
    text = options.text("endId")
    if text is None or text == "+":
        return LAST
    if text == "-":
        return FIRST
    id_ = _parsed(options, "endId", text.removeprefix("("), NUMBER_MAX)
    return before(id_) if text.startswith("(") else id_


def _parsed(options: Options, name: str, text: str, missing_seq: int) -> EntryId:
    try:
        return parse(text.encode(), True, missing_seq)
    except ValueError:
        raise options.wrong(
            name, "an id like 1526919030474-55, or its milliseconds, with ( before it to exclude it"
        ) from None


def take_time(options: Options, name: str, default: int) -> int:
    """A time in milliseconds since the epoch, given so or as ISO text; without a zone it is UTC."""
    text = options.text(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and int(text) <= NUMBER_MAX:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise options.wrong(
            name, "milliseconds since 1970, or a time like 2026-11-01T12:00:00Z"
        ) from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    exact = Fraction((time - _EPOCH) // timedelta(microseconds=1), 1000)
    return max(0, math.floor(exact) if name.startswith("ending") else math.ceil(exact))
