from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group, keys_of, ttl_ms_of
from millstream.storage.groups.pending_chunks cimport SharedPending


cdef struct GroupRow:
    EntryId offset
    EntryId gap_floor
    int64_t entries_read
    uint64_t missed
    uint64_t ttl_ms
    uint64_t pending
    uint32_t consumers
    uint32_t parked


cdef struct MemberRow:
    int64_t seen_ms
    int64_t active_ms
    uint64_t pending


# The consumers of a group, by number: their names (None where there is no consumer) and their data.
cdef class SharedMembers:
    cdef readonly list names
    cdef MemberRow* rows
    cdef uint32_t present

    cdef const MemberRow* find(self, Py_ssize_t number) except NULL


# The data of a group that most groups lack when a stream has very many groups.
cdef class GroupParts:
    cdef readonly SharedMembers members
    cdef readonly SharedPending pending
    cdef list retry_pairs
    cdef dict large_counts
    cdef uint64_t lost_pending


cdef class SharedGroups:
    cdef readonly list names
    cdef readonly list parts
    # `rules_meta` of the groups that have some, by number; None if no group has any.
    cdef dict rules
    cdef GroupRow* rows
    cdef size_t count

    cdef const GroupRow* find(self, size_t i) except NULL
    cdef dict header(self, size_t i, pending)
    cdef dict rules_of(self, size_t i)


cpdef SharedMembers shared_members(Group group)
cdef GroupParts shared_parts(Group group)
cpdef SharedGroups shared_groups(dict groups, bint with_parts, uint64_t now_ms)


cdef inline void group_row(Group group, GroupRow* row) noexcept:
    """Get the figures of a group, which has its complete number of missed entries."""
    row.offset.ms = group.offset_ms
    row.offset.seq = group.offset_seq
    row.gap_floor.ms = group.gap_floor_ms
    row.gap_floor.seq = group.gap_floor_seq
    row.entries_read = group.entries_read
    row.missed = group.missed
    row.ttl_ms = ttl_ms_of(group)
    row.pending = group.pending.records.count
    row.consumers = group.pending.consumer_count()
    row.parked = 0 if keys_of(group) is None else keys_of(group).parked_count


cdef inline void member_row(Consumer consumer, MemberRow* row) noexcept:
    """Get the figures of a consumer."""
    row.seen_ms = consumer.seen_ms
    row.active_ms = consumer.active_ms
    row.pending = consumer.pending
