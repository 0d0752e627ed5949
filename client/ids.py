"""The ID of an entry."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from millstream.client.errors import InvalidPosition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PART_MAX = 2**64 - 1
_TEXT = re.compile(r"(\d{1,20})(?:[.-](\d{1,20}))?", re.ASCII)


class ID(NamedTuple):
    """The ID of an entry: a time in milliseconds and a counter.

    IDs sort as the server sorts them, and print as `ms.seq`.

    >>> ID(5, 1) < ID(5, 2) < ID(6)
    True
    >>> print(ID.parse("5-1"))
    5.1
    """

    ms: int
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.ms}.{self.seq}"

    @classmethod
    def parse(cls, text: str | bytes) -> ID:
        """Read an ID in one of the forms `ms.seq`, `ms-seq` and `ms`, which means `ms.0`.

        Raises InvalidPosition, a ValueError, for anything else.

        >>> ID.parse("1795170387725.3")
        ID(ms=1795170387725, seq=3)
        """
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        found = _TEXT.fullmatch(shown) if isinstance(shown, str) else None
        if found is not None:
            ms, seq = int(found[1]), int(found[2] or 0)
            if ms <= PART_MAX and seq <= PART_MAX:
                return cls(ms, seq)
        raise InvalidPosition(f"{shown!r} is not an ID: an ID has the form ms.seq")

    @property
    def created_at(self) -> datetime:
        """The time in the ID, in UTC, exact to the millisecond.

        >>> ID(1795170387725).created_at.isoformat()
        '2026-11-20T10:26:27.725000+00:00'
        """
        try:
            return EPOCH + timedelta(milliseconds=self.ms)
        except OverflowError:
            raise OverflowError(
                f"the ID {self} has no time: its milliseconds are beyond the year 9999"
            ) from None


BEGINNING = ID(0, 0)
"""Below every entry."""


def read_id(text: str | bytes) -> ID:
    """An ID in a reply: `ms.seq` or `ms-seq`, which the server wrote, so it is not checked."""
    shown: Any = text
    if type(shown) is bytes:  # faster than isinstance, which matters once for each record
        shown = shown.decode()
    ms, _, seq = shown.partition(".")
    if not seq:
        ms, _, seq = shown.partition("-")
    return _new(ID, (int(ms), int(seq)))


_new = tuple.__new__  # half the time of ID(..), which matters once for each record


def just_below(entry_id: ID) -> ID:
    """The greatest ID below this one."""
    if entry_id.seq:
        return ID(entry_id.ms, entry_id.seq - 1)
    if entry_id.ms:
        return ID(entry_id.ms - 1, PART_MAX)
    return entry_id
