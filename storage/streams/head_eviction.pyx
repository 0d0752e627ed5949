# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Evicts the oldest entries of a stream, and counts those that its groups had not read."""

from libc.stdint cimport UINT64_MAX as MAX, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.groups.group cimport Group
from millstream.storage.log.trimming cimport (
    HeadRun, evict_all, evict_below, evict_head_run, evict_oldest,
)
from millstream.storage.streams.missed_entries cimport MissedEntries
from millstream.storage.streams.stream cimport Stream
from millstream.storage.streams.stream_groups cimport all_groups, groups_by_name


cdef int prepare(Stream stream, EntryId first, bint all_entries) except -1:
    """Prepare the groups for a trim of the entries below `first`, or of all entries."""
    if stream.missed is None:
        if stream.group_set is None:
            return 0
        stream.missed = MissedEntries.__new__(MissedEntries)
    return stream.missed.before_trim(stream, first, all_entries, stream.group_set)


cpdef uint64_t evict_before(Stream stream, uint64_t ms, uint64_t seq) except? 0xffffffffffffffff:
    """Evict every entry with an ID below ms-seq; returns their number."""
    cdef EntryId first = EntryId(ms, seq)
    cdef uint64_t evicted
    prepare(stream, first, False)
    evicted = evict_below(stream, first, may_free_later(stream))
    if stream.missed is not None:
        stream.missed.after_trim(evicted)
    return evicted


cdef inline bint may_free_later(Stream stream) noexcept:
    """With a limit of bytes, evicted blocks must leave the totals at once."""
    return stream.policy is None or not (stream.policy.max_bytes or stream.policy.hard_bytes)


cdef uint64_t evict_settled(Stream stream, const EntryId* first,
                            const HeadRun* run) except? 0xffffffffffffffff:
    """Evict the entries below `first`, all for NULL; returns their number. No group holds one of them, so
    none is missed. run: these entries, if they were found before."""
    if first == NULL:
        return evict_all(stream)
    if run.has_following and run.following.ms == first.ms and run.following.seq == first.seq:
        return evict_head_run(stream, run)
    return evict_below(stream, first[0], may_free_later(stream))


cdef uint64_t evict_few(Stream stream, uint64_t count) noexcept:
    """Evict the oldest `count` entries in the frequent case of a trim by length; 0, without a
    change, in other cases (`evict_oldest`)."""
    cdef uint64_t evicted
    if stream.missed is None:
        return 0 if stream.group_set is not None else evict_oldest(
            stream, count, EntryId(MAX, MAX))
    evicted = evict_oldest(stream, count, stream.missed.lowest)
    if evicted:
        stream.missed.after_quick_trim(evicted, EntryId(stream.head_ms, stream.head_seq))
    return evicted


cpdef uint64_t evict_every(Stream stream) except? 0xffffffffffffffff:
    """Evict every entry, including one with the largest possible ID; returns their number."""
    cdef uint64_t evicted
    prepare(stream, EntryId(MAX, MAX), True)
    evicted = evict_all(stream)
    if stream.missed is not None:
        stream.missed.after_trim(evicted)
    return evicted


cdef uint64_t missed_by_trim(Stream stream) noexcept:
    """The number of entries that groups had not read when the newest trim evicted them, counted for
    each group."""
    return 0 if stream.missed is None else stream.missed.missed_now


cdef uint64_t lost_by_trim(Stream stream) noexcept:
    """The number of entries that groups held when the newest trim evicted them, counted for each
    group."""
    return 0 if stream.missed is None else stream.missed.missed_now + stream.missed.lost_pending_now


cpdef int note_pending(Stream stream, uint64_t ms, uint64_t seq) noexcept:
    """Note an entry that a group may have made pending again, without reading it."""
    return 0 if stream.missed is None else stream.missed.lower(EntryId(ms, seq))


cpdef uint64_t lost_by(Stream stream, group) noexcept:
    """The number of entries that were evicted while a group of the stream held them."""
    return missed_by(stream, group) + (<Group>group).pending.lost_pending()


cpdef uint64_t missed_by(Stream stream, group) noexcept:
    """The number of entries that were trimmed before a group of the stream read them."""
    cdef Group one = group
    if stream.missed is not None and stream.missed.is_overtaken(group):
        return one.missed + stream.missed.trimmed
    return one.missed


cpdef dict counted_groups(Stream stream):
    """The groups by name; read-only. Their numbers of missed entries are complete until the stream
    changes."""
    if stream.missed is not None:
        stream.missed.settle(stream.group_set)
    return groups_by_name(stream.group_set)


def overtaken_group(Stream stream not None) -> bytes | None:
    """The name of a group that has not moved on since it missed entries."""
    for group in all_groups(stream.group_set):
        if stream.missed is not None and stream.missed.is_overtaken(group) and (
                missed_by(stream, group)):
            return (<Group>group).name
    return None
