"""The versions of a history: from what transactions did to a key to the rows that record it.

Without I/O. Times are microseconds since 1970. Nothing depends on a clock: versions begin and end
at the commit times of the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from millstream.cdc.protocol.pgoutput import Value

Values: TypeAlias = Mapping[str, Value]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START, END, DELETED = "kvsz_start", "kvsz_end", "kvsz_deleted"
"""The columns of a history that its source does not have."""
FIRST_TEXT, LAST_TEXT = "1900-01-01", "9999-01-01"
"""The beginning of the versions of a first copy, whose rows may be of any age, and the end of open
versions."""


def time_us(text: str) -> int:
    """
    >>> time_us("1970-01-02T00:00:00.000001Z")
    86400000001
    """
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def time_sql(us: int) -> str:
    """A time as a value in SQL, in UTC.

    >>> time_sql(86400000001)
    '1970-01-02 00:00:00.000001+00'
    """
    return (EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%d %H:%M:%S.%f+00")


LAST_US = time_us(LAST_TEXT + "T00:00:00Z")


@dataclass(slots=True)
class Step:
    """All changes of a key in one transaction. `values` are the row that it left, without those
    that it did not change; None if it left none. A `whole` row has no values of the row before."""

    lsn: int
    at_us: int
    values: Values | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Last:
    """The last version of a key that the target has."""

    start_us: int
    end_us: int

    @property
    def is_open(self) -> bool:
        return self.end_us == LAST_US


@dataclass(slots=True)
class Version:
    """A version to be inserted. Values that are missing come from the target's version that began
    at `base_us`, if there is one."""

    start_us: int
    values: Values
    base_us: int | None
    end_us: int = LAST_US
    deleted: bool = False


@dataclass(slots=True)
class Made:
    """The changes for a key: the end of the target's open version (None: it stays open), and the
    versions that follow."""

    end_us: int | None = None
    deleted: bool = False
    versions: list[Version] = field(default_factory=list)


def together(prior: Step | None, step: Step) -> Step:
    """Two steps of the same transaction as one."""
    if prior is None or prior.values is None or step.values is None or step.whole:
        return step
    return Step(step.lsn, step.at_us, {**prior.values, **step.values}, prior.whole)


def versions_of(steps: Sequence[Step], last: Last | None) -> Made:
    """The versions that steps of one key make, in the order of their transactions."""
    made = Made()
    open_start = last.start_us if last is not None and last.is_open else None
    ended = last.end_us if last is not None and not last.is_open else None
    for step in steps:
        if open_start is None:
            if step.values is None:
                continue
            start = step.at_us if ended is None else max(step.at_us, ended)
            made.versions.append(Version(start, step.values, None))
            open_start = start
            continue
        # A time that is not after the version's start counts as a microsecond after it.
        end = max(step.at_us, open_start + 1)
        before = made.versions[-1] if made.versions else None
        if before is None:
            made.end_us, made.deleted = end, step.values is None
        else:
            before.end_us, before.deleted = end, step.values is None
        if step.values is None:
            open_start, ended = None, end
            continue
        made.versions.append(_next(step, before, open_start, end))
        open_start = end
    return made


def _next(step: Step, before: Version | None, open_start: int, start: int) -> Version:
    """The version after an open one, which is the target's if there is none `before`."""
    values = step.values or {}
    if step.whole:
        return Version(start, values, None)
    if before is None:
        return Version(start, values, open_start)
    return Version(start, {**before.values, **values}, before.base_us)
