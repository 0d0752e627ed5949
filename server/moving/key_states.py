"""The keys that are compared: which ones, and the state of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Protocol

from millstream.errors import DataError
from millstream.glob import matcher
from millstream.storage.dump.digests import DIGEST_BYTES, GroupRow

Place = tuple[int, bytes]  # database and key
EntryId = tuple[int, int]
Entry = tuple[EntryId, list[bytes]]


class NotComparable(DataError):
    """A side cannot be read. The text is a sentence."""


@dataclass(frozen=True)
class Filters:
    """The keys that are compared."""

    patterns: tuple[bytes, ...] = ()
    databases: frozenset[int] | None = None
    strings: bool = True

    def has(self, place: Place) -> bool:
        database, key = place
        if self.databases is not None and database not in self.databases:
            return False
        return not self.patterns or any(matcher(pattern)(key) for pattern in self.patterns)


class ConsumerTimes(NamedTuple):
    """Times of a consumer: last seen, and last active, None if the side does not know it."""

    seen_ms: int | None
    active_ms: int | None


UNKNOWN_TIMES = ConsumerTimes(None, None)

INEXACT_MS = 1000  # between two readings of one expiry by PTTL and TIME
Expiry = tuple[int | None, bool]  # in Unix milliseconds, None without one; and if it is exact


def is_same_expiry(ours: Expiry, theirs: Expiry) -> bool:
    """True if two keys expire at the same time, as far as that is known."""
    (one, is_exact), (other, is_too) = ours, theirs
    if one is None or other is None:
        return one is other
    return abs(one - other) <= (0 if is_exact and is_too else INEXACT_MS)


@dataclass
class State:
    """A key. Only a string has `value`, a digest. `is_replayed`: it follows from the commands of a
    Redis, which do not say everything."""

    value: bytes | None = None
    length: int = 0
    first_id: EntryId = (0, 0)
    last_id: EntryId = (0, 0)
    entries_added: int | None = None
    max_deleted_id: EntryId | None = None
    entries: str = ""
    groups: dict[bytes, GroupRow] = field(default_factory=dict)
    consumers: dict[tuple[bytes, bytes], ConsumerTimes] = field(default_factory=dict)
    has_entries_read: bool = True
    is_replayed: bool = False
    producers: list[bytes] | None = None
    expiry_ms: int | None = None
    is_expiry_exact: bool = True


class Side(Protocol):
    """One side. `name` is for texts; `is_live`: it may change while it is read."""

    name: str
    is_live: bool

    def states(self, filters: Filters) -> dict[Place, State]:
        """All keys."""

    def state(self, place: Place) -> State | None:
        """One key again; None if it does not exist."""

    def entries(self, place: Place) -> Iterator[Entry]:
        """The entries of a stream in ID order."""


def string_digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=DIGEST_BYTES).digest()
