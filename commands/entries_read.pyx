# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""How many entries of a stream a group has read, as Redis counts: `entries-read` and `lag`.

Redis counts on with each delivery while nothing in between was deleted, and otherwise estimates from
what is known of the stream's ends; -1 stands for what cannot be known. The counts are signed and
wrap around, as in Redis.
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.ids cimport EntryId, id_less
from millstream.storage.group cimport Group
from millstream.storage.stream cimport Stream

cdef int64_t UNKNOWN = -1


cdef int64_t distance_from_first(Stream stream, uint64_t ms, uint64_t seq) noexcept:
    """How many entries were ever added up to this id, -1 when it cannot be known
    (Redis 7.0, streamEstimateDistanceFromFirstEverEntry)."""
    cdef EntryId first
    cdef bint unbroken
    if stream.entries_added == 0:
        return 0
    if stream.length == 0:
        return -1 if id_less(stream.last_ms, stream.last_seq, ms, seq) else (
            <int64_t>stream.entries_added)
    if (ms or seq) and id_less(ms, seq, stream.max_deleted_ms, stream.max_deleted_seq):
        return -1
    if ms == stream.last_ms and seq == stream.last_seq:
        return stream.entries_added
    if id_less(stream.last_ms, stream.last_seq, ms, seq):
        return -1
    stream.first_entry(&first)
    unbroken = id_less(stream.max_deleted_ms, stream.max_deleted_seq, first.ms, first.seq)
    if not unbroken:
        return -1
    if id_less(ms, seq, first.ms, first.seq):
        return stream.entries_added - stream.length
    if ms == first.ms and seq == first.seq:
        return stream.entries_added - stream.length + 1
    return -1


cdef bint has_tombstones(Stream stream, uint64_t ms, uint64_t seq) noexcept:
    """Whether an entry at or above this id was deleted (Redis 7.2, streamRangeHasTombstones)."""
    cdef EntryId first
    if stream.max_deleted_ms == 0 and stream.max_deleted_seq == 0:
        return False
    if not stream.first_entry(&first):
        return False
    if id_less(stream.max_deleted_ms, stream.max_deleted_seq, first.ms, first.seq):
        return False
    return not id_less(stream.max_deleted_ms, stream.max_deleted_seq, ms, seq)


def entries_up_to(Stream stream not None, uint64_t ms, uint64_t seq) -> int:
    """How many entries were ever added up to this id, -1 when it cannot be known."""
    return distance_from_first(stream, ms, seq)


def group_lag(Stream stream not None, Group group not None) -> int | None:
    """Entries a group has not read yet, None when that cannot be known (Redis 8's rules)."""
    cdef int64_t read
    cdef EntryId oldest
    if not stream.first_entry(&oldest):
        return 0
    if id_less(group.offset_ms, group.offset_seq, oldest.ms, oldest.seq) and id_less(
            stream.max_deleted_ms, stream.max_deleted_seq, oldest.ms, oldest.seq):
        return stream.length
    if group.entries_read != UNKNOWN and not has_tombstones(stream, group.offset_ms, group.offset_seq):
        return <int64_t>stream.entries_added - group.entries_read
    read = distance_from_first(stream, group.offset_ms, group.offset_seq)
    return None if read == UNKNOWN else <int64_t>stream.entries_added - read


cdef bint is_broken(Stream stream, Group group) noexcept:
    """Whether the count of entries read cannot just go on: entries behind the group's offset were
    deleted, or evicted unread."""
    cdef EntryId oldest
    return has_tombstones(stream, group.offset_ms, group.offset_seq) or (
        stream.first_entry(&oldest)
        and id_less(group.offset_ms, group.offset_seq, oldest.ms, oldest.seq))


cdef int count_read(Stream stream, Group group, EntryId first, uint64_t given,
                    bint broken) except -1:
    """`given` entries from `first` up to the group's offset were read. What Redis counts entry by
    entry: on from a known count, else from what the first entry's place tells, else the last's."""
    cdef int64_t read = group.entries_read
    if read != UNKNOWN and not broken:
        group.entries_read = read + <int64_t>given
        return 0
    read = distance_from_first(stream, first.ms, first.seq)
    if read != UNKNOWN:
        group.entries_read = read - 1 + <int64_t>given
    else:
        group.entries_read = distance_from_first(stream, group.offset_ms, group.offset_seq)
    return 0


def shown_count(uint64_t count) -> int:
    """A counter of a stream as a reply can hold it: a signed number, which wraps around after
    9223372036854775807 as in Redis."""
    return <int64_t>count


def shown_entries_read(Group group not None) -> int | None:
    """How many entries a group has read; None when that cannot be known."""
    return None if group.entries_read == UNKNOWN else group.entries_read
