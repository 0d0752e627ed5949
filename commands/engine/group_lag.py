"""How many entries of a stream a group has read, as Redis counts: `entries-read` and `lag`.

Redis counts on with each delivery while nothing in between was deleted (`delivery` does that), and
otherwise estimates from what is known of the stream's ends; -1 stands for what cannot be known. The
counts are signed 64-bit numbers and wrap around, as in Redis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

UNKNOWN = -1
NO_ID = (0, 0)


@dataclass(frozen=True, slots=True)
class Ends:
    """What is known of a stream's ends; `first` is None for a stream without entries."""

    first: EntryId | None
    last: EntryId
    deleted: EntryId
    length: int
    added: int


def ends_of(stream: Stream) -> Ends:
    return Ends(
        stream.first_id,
        stream.last_id,
        stream.max_deleted_id,
        len(stream),
        stream.entries_added,
    )


def shown_count(count: int) -> int:
    """A counter as a reply can hold it: a signed number, which wraps around after
    9223372036854775807 as in Redis."""
    return (count + 2**63) % 2**64 - 2**63


def _distance(ends: Ends, at: EntryId) -> int:
    """How many entries were ever added up to this ID, -1 when it cannot be known
    (Redis 7.0, streamEstimateDistanceFromFirstEverEntry)."""
    if ends.added == 0:
        return 0
    if ends.last < at:
        return UNKNOWN
    if ends.first is None:
        return shown_count(ends.added)
    if at != NO_ID and at < ends.deleted:
        return UNKNOWN
    if at == ends.last:
        return shown_count(ends.added)
    if ends.deleted >= ends.first or at > ends.first:
        return UNKNOWN
    return shown_count(ends.added - ends.length + (at == ends.first))


def _has_tombstones(ends: Ends, start: EntryId) -> bool:
    """Whether an entry at or above this ID was deleted (Redis 7.2, streamRangeHasTombstones)."""
    if ends.first is None or ends.deleted == NO_ID:
        return False
    return ends.deleted >= ends.first and ends.deleted >= start


def lag_of(ends: Ends, offset: EntryId, entries_read: int) -> int | None:
    """How many entries a group has not read yet, None when unknown (Redis 8's rules)."""
    if ends.first is None:
        return 0
    if offset < ends.first and ends.deleted < ends.first:
        return shown_count(ends.length)
    read = entries_read
    if read == UNKNOWN or _has_tombstones(ends, offset):
        read = _distance(ends, offset)
    return None if read == UNKNOWN else shown_count(ends.added - read)


def entries_up_to(stream: Stream, ms: int, seq: int) -> int:
    """How many entries were ever added up to this ID, -1 when it cannot be known."""
    return _distance(ends_of(stream), (ms, seq))
