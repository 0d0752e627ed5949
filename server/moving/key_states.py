"""The keys that are compared: which ones, and the state of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Protocol

from millstream.errors import DataError
from millstream.glob import Patterns
from millstream.storage.dump.base_making import no_match
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
    keys: Patterns = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", Patterns(self.patterns))

    def has(self, place: Place) -> bool:
        database, key = place
        if self.databases is not None and database not in self.databases:
            return False
        return self.keys.has(key)

    def unmatched(self) -> list[str]:
        """A sentence for each pattern that has matched no key."""
        return [no_match(pattern) for pattern in self.keys.unmatched]


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
    Redis, which do not say everything. `left_out_consumers`: it has consumers with an empty name,
    which are not in `groups`."""

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
    left_out_consumers: bool = False
    is_replayed: bool = False
    producers: list[bytes] | None = None
    expiry_ms: int | None = None
    is_expiry_exact: bool = True

    @property
    def has_consumers_without_name(self) -> bool:
        return self.left_out_consumers or any(
            b"" in group.consumers for group in self.groups.values()
        )


class Side(Protocol):
    """One side. `name` is for texts; `is_live`: it may change while it is read."""

    name: str
    is_live: bool

    @property
    def replicates_entries_read(self) -> bool:
        """False if a replica of this side may have other numbers of entries read."""

    def states(self, filters: Filters) -> dict[Place, State]:
        """All keys."""

    def state(self, place: Place) -> State | None:
        """One key again; None if it does not exist."""

    def entries(self, place: Place) -> Iterator[Entry]:
        """The entries of a stream in ID order."""


def string_digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=DIGEST_BYTES).digest()
