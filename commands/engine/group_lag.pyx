# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""How many entries of a stream a group has read, as Redis counts: `entries-read` and `lag`.

Redis counts on with each delivery while nothing in between was deleted, and otherwise estimates from
what is known of the stream's ends; -1 stands for what cannot be known. The counts are signed and
wrap around, as in Redis.
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.ids cimport EntryId, id_less
from millstream.storage.streams.group cimport Group
from millstream.storage.streams.stream cimport Stream

cdef int64_t UNKNOWN = -1


cdef int ends_of(Stream stream, Ends* ends) noexcept:
    """What is counted from, as it is now."""
    ends.empty = not stream.first_entry(&ends.first)
    ends.last.ms = stream.last_ms
    ends.last.seq = stream.last_seq
    ends.deleted.ms = stream.max_deleted_ms
    ends.deleted.seq = stream.max_deleted_seq
    ends.length = stream.length
    ends.added = stream.entries_added
    return 0


cdef int64_t distance(const Ends* ends, EntryId at) noexcept:
    """How many entries were ever added up to this id, -1 when it cannot be known
    (Redis 7.0, streamEstimateDistanceFromFirstEverEntry)."""
    if ends.added == 0:
        return 0
    if ends.empty:
        return -1 if id_less(ends.last.ms, ends.last.seq, at.ms, at.seq) else <int64_t>ends.added
    if (at.ms or at.seq) and id_less(at.ms, at.seq, ends.deleted.ms, ends.deleted.seq):
        return -1
    if at.ms == ends.last.ms and at.seq == ends.last.seq:
        return ends.added
    if id_less(ends.last.ms, ends.last.seq, at.ms, at.seq):
        return -1
    if not id_less(ends.deleted.ms, ends.deleted.seq, ends.first.ms, ends.first.seq):
        return -1
    if id_less(at.ms, at.seq, ends.first.ms, ends.first.seq):
        return ends.added - ends.length
    if at.ms == ends.first.ms and at.seq == ends.first.seq:
        return ends.added - ends.length + 1
    return -1


cdef bint tombstones_from(const Ends* ends, EntryId start) noexcept:
    """Whether an entry at or above this id was deleted (Redis 7.2, streamRangeHasTombstones)."""
    if ends.empty or (ends.deleted.ms == 0 and ends.deleted.seq == 0):
        return False
    if id_less(ends.deleted.ms, ends.deleted.seq, ends.first.ms, ends.first.seq):
        return False
    return not id_less(ends.deleted.ms, ends.deleted.seq, start.ms, start.seq)


cdef bint find_lag(const Ends* ends, EntryId offset, int64_t entries_read,
                   int64_t* lag) noexcept:
    """How many entries a group has not read yet; False when that cannot be known (Redis 8's
    rules)."""
    cdef int64_t read = entries_read
    lag[0] = 0
    if ends.empty:
        return True
    if id_less(offset.ms, offset.seq, ends.first.ms, ends.first.seq) and id_less(
            ends.deleted.ms, ends.deleted.seq, ends.first.ms, ends.first.seq):
        lag[0] = ends.length
        return True
    if read == UNKNOWN or tombstones_from(ends, offset):
        read = distance(ends, offset)
    lag[0] = <int64_t>ends.added - read
    return read != UNKNOWN


cdef int64_t distance_from_first(Stream stream, uint64_t ms, uint64_t seq) noexcept:
    cdef Ends ends
    cdef EntryId at
    at.ms = ms
    at.seq = seq
    ends_of(stream, &ends)
    return distance(&ends, at)


cdef bint has_tombstones(Stream stream, uint64_t ms, uint64_t seq) noexcept:
    cdef Ends ends
    cdef EntryId start
    if stream.max_deleted_ms == 0 and stream.max_deleted_seq == 0:
        return False
    start.ms = ms
    start.seq = seq
    ends_of(stream, &ends)
    return tombstones_from(&ends, start)


def entries_up_to(Stream stream not None, uint64_t ms, uint64_t seq) -> int:
    """How many entries were ever added up to this id, -1 when it cannot be known."""
    return distance_from_first(stream, ms, seq)


cdef bint is_broken(Stream stream, Group group) noexcept:
    """Whether the count of entries read cannot just go on: entries after the group's offset were
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
