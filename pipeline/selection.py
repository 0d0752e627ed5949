"""The streams and IDs that the options select; `pushdown` adds Spark's filters."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from millstream.glob import matcher
from millstream.ids import parse
from millstream.pipeline.source_options import SourceOptions

NUMBER_MAX = 2**64 - 1
FIRST = (0, 0)
LAST = (NUMBER_MAX, NUMBER_MAX)
# The largest milliseconds of a timestamp, which is signed 64-bit microseconds.
TIME_MS_MAX = (2**63 - 1) // 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EntryId = tuple[int, int]
Key = bytes | str


def after(id_: EntryId) -> EntryId | None:
    """The next ID; None after the last ID."""
    ms, seq = id_
    if seq < NUMBER_MAX:
        return ms, seq + 1
    return (ms + 1, 0) if ms < NUMBER_MAX else None


def before(id_: EntryId) -> EntryId | None:
    """The previous ID; None before the first ID."""
    ms, seq = id_
    if seq > 0:
        return ms, seq - 1
    return (ms - 1, NUMBER_MAX) if ms > 0 else None


@dataclass
class Selection:
    """The selected streams and IDs: first <= ID <= last; nothing when last < first."""

    key_is_binary: bool = False
    first: EntryId = FIRST
    last: EntryId = LAST
    _names: frozenset[bytes] | None = None
    _pattern: str | None = None
    _tests: list[Callable[[Key], bool]] = field(default_factory=list)

    @classmethod
    def of(cls, options: SourceOptions, key_is_binary: bool) -> "Selection":
        """The selection that the options subscribe, subscribePattern, startId, endId,
        startingTimestamp and endingTimestamp make."""
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
        """Exclude IDs below `id_`; None excludes all IDs."""
        if id_ is None:
            self.first, self.last = LAST, FIRST
        else:
            self.first = max(self.first, id_)

    def lower_last(self, id_: EntryId | None) -> None:
        """Exclude IDs above `id_`; None excludes all IDs."""
        if id_ is None:
            self.first, self.last = LAST, FIRST
        else:
            self.last = min(self.last, id_)

    def key_test(self) -> Callable[[bytes], bool]:
        """A function that says whether a key is selected."""
        matches = matcher(self._pattern.encode()) if self._pattern is not None else None
        names, tests, binary = self._names, self._tests, self.key_is_binary

        def wanted(key: bytes) -> bool:
            if names is not None and key not in names:
                return False
            if matches is not None and not matches(key):
                return False
            if not tests:
                return True
            value = key if binary else key.decode("utf-8", "replace")
            return all(test(value) for test in tests)

        return wanted

    def want_key(self, test: Callable[[Key], bool]) -> None:
        """Exclude the streams whose keys fail the test. The test must be picklable."""
        self._tests.append(test)


def take_start(options: SourceOptions) -> EntryId | None:
    """The option `startId`: an ID, or `ms` for the first ID of that millisecond; `(` excludes
    it."""
    text = options.text("startId")
    if text is None or text == "-":
        return FIRST
    if text == "+":
        return LAST
    id_ = _parsed(options, "startId", text.removeprefix("("), 0)
    return after(id_) if text.startswith("(") else id_


def take_end(options: SourceOptions) -> EntryId | None:
    """The option `endId`: like `startId`, but `ms` means the last ID of that millisecond."""
    text = options.text("endId")
    if text is None or text == "+":
        return LAST
    if text == "-":
        return FIRST
    id_ = _parsed(options, "endId", text.removeprefix("("), NUMBER_MAX)
    return before(id_) if text.startswith("(") else id_


def _parsed(options: SourceOptions, name: str, text: str, missing_seq: int) -> EntryId:
    try:
        return parse(text.encode(), True, missing_seq)
    except ValueError:
        raise options.wrong(
            name, "an ID like 1526919030474-55, or its milliseconds, with ( before it to exclude it"
        ) from None


def take_time(options: SourceOptions, name: str, default: int) -> int:
    """A time option in milliseconds since the epoch: a number, or ISO 8601 (UTC without a zone)."""
    text = options.text(name)
    if text is None:
        return default
    ms = time_ms(text, name.startswith("ending"))
    if ms is None:
        raise options.wrong(name, "milliseconds since 1970, or a time like 2026-11-01T12:00:00Z")
    return ms


def time_ms(text: str, is_end: bool) -> int | None:
    """The milliseconds of a time given as a number or as ISO text; None for an invalid text.
    Fractions of a millisecond are rounded down for the end of a range, and up for its beginning."""
    if text.isascii() and text.isdigit() and int(text) <= NUMBER_MAX:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    exact = Fraction((time - _EPOCH) // timedelta(microseconds=1), 1000)
    return max(0, math.floor(exact) if is_end else math.ceil(exact))
