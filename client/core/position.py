"""The start of a stream: an end, a time, or a token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias

from millstream.client.core.packed_token import load_token
from millstream.client.core.token import Token
from millstream.client.errors import InvalidPosition
from millstream.client.ids import BEGINNING, EPOCH, ID, PART_MAX, just_below


class Time(Protocol):
    """A datetime, or anything else whose `timestamp()` is its seconds since 1970."""

    def timestamp(self) -> float: ...


Position: TypeAlias = str | Mapping[str, Any] | Time | ID
"""`trim_horizon` or `earliest`, `latest`, a token, a time or an ID."""
Point: TypeAlias = str | Time | ID
"""A position without a token: of a group, and the end of a stream."""


@dataclass(frozen=True, slots=True)
class Oldest:
    """From the oldest entry on: `trim_horizon`."""


@dataclass(frozen=True, slots=True)
class Newest:
    """From now on: `latest`."""


@dataclass(frozen=True, slots=True)
class Moment:
    """From the first entry of this millisecond on."""

    ms: int

    @property
    def place(self) -> ID:
        """The ID after which to read."""
        return just_below(ID(min(self.ms, PART_MAX))) if self.ms > 0 else BEGINNING


@dataclass(frozen=True, slots=True)
class After:
    """From the entry after this ID on."""

    place: ID


Start: TypeAlias = Oldest | Newest | Moment | After | Token
End: TypeAlias = Newest | Moment | After
"""The last record of a stream: the newest one that there is now, the last one before a time, or the
last one up to an ID."""

NAMES: dict[str, Start] = {"trim_horizon": Oldest(), "earliest": Oldest(), "latest": Newest()}


def parse(position: Any) -> Start:
    """Read a position of any kind; InvalidPosition for everything else."""
    if isinstance(position, ID):
        return After(position)
    if isinstance(position, str):
        known = NAMES.get(position.lower())
        return After(id_of(position)) if known is None else known
    if isinstance(position, Mapping):
        return load_token(position)
    if callable(getattr(position, "timestamp", None)):
        return Moment(milliseconds(position))
    raise InvalidPosition(
        f"{position!r} is not a position: "
        "use 'trim_horizon', 'latest', an ID, an object with a timestamp() or a token"
    )


def id_of(position: str) -> ID:
    """An ID that is given as text."""
    with suppress(InvalidPosition):
        return ID.parse(position)
    if position.lstrip().startswith("{"):
        raise InvalidPosition(
            "the position is text that looks like a token: read it with json.loads first"
        )
    raise InvalidPosition(
        f"{position!r} is not a position: use 'trim_horizon', 'latest', an ID, a time or a token"
    )


def parse_end(end: Any) -> End | None:
    """The end of a stream; None for a stream without an end."""
    if end is None:
        return None
    found = parse(end)
    if isinstance(found, (Newest, Moment, After)):
        return found
    raise InvalidPosition(f"{end!r} is not an end: use 'latest', an ID or a time")


def group_start(position: Any) -> str:
    """The beginning of a group, as a word of a command."""
    start = parse(position)
    if isinstance(start, Oldest):
        return "0"
    if isinstance(start, Newest):
        return "$"
    if isinstance(start, Token):
        raise InvalidPosition(
            "a token is not a position of a group: use 'trim_horizon', 'latest', an ID or a time"
        )
    return str(start.place)


def milliseconds(time: Any) -> int:
    """The first whole millisecond that is not before the time. Without a time zone, the time is
    local."""
    if isinstance(time, datetime):
        microseconds = (_aware(time) - EPOCH) // timedelta(microseconds=1)
    else:
        microseconds = _microseconds(time)
    return -(-microseconds // 1000)


def _aware(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except (OverflowError, OSError, ValueError):  # a local time at an end of the calendar
        return time.replace(tzinfo=UTC)


def _microseconds(time: Any) -> int:
    # A float holds today's seconds to a quarter of a microsecond, so the microsecond is exact.
    try:
        seconds = float(time.timestamp())
    except Exception as error:
        raise InvalidPosition(f"{time!r} is not a time: timestamp() raised {error!r}") from error
    if not math.isfinite(seconds):
        raise InvalidPosition(f"{time!r} is not a time: timestamp() is {seconds}")
    return round(seconds * 1_000_000)
