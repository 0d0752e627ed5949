from libc.stdint cimport int64_t, uint64_t
cimport cython

from millstream.storage.groups.pending cimport saturating_add
from millstream.storage.groups.pending_list cimport PendingList


# The rules of a group, as TREAD GROUP and TGROUP set them. A group with a timeout is managed.
@cython.no_gc
cdef class GroupRules:
    cdef readonly uint64_t ttl_ms
    cdef readonly uint64_t last_used_ms
    # A delivery that is not acknowledged within this time has failed; 0: none fails.
    cdef readonly uint64_t timeout_ms
    # The delays after the first failure, the second, and so on; None: no delay.
    cdef readonly tuple backoff_ms


# Without methods in C, so without a pointer to a table of them: there may be millions of groups.
@cython.no_gc
cdef class Group:
    cdef readonly bytes name
    # None for a group without rules.
    cdef readonly GroupRules rules
    # The pending entries, and the consumers that own them.
    cdef readonly PendingList pending
    cdef public uint64_t offset_ms
    cdef public uint64_t offset_seq
    cdef public uint64_t gap_floor_ms
    cdef public uint64_t gap_floor_seq
    cdef public int64_t entries_read
    cdef public uint64_t scheduled_ms
    cdef uint64_t missed


cdef inline uint64_t ttl_ms_of(Group group) noexcept:
    return 0 if group.rules is None else group.rules.ttl_ms


# True if the group's time to live has ended.
cdef inline bint has_ended(Group group, uint64_t now_ms) noexcept:
    return (group.rules is not None and group.rules.ttl_ms and not group.pending.blocked_clients
            and now_ms >= saturating_add(group.rules.last_used_ms, group.rules.ttl_ms))


# 0 for a group that is not managed.
cdef inline uint64_t timeout_ms_of(Group group) noexcept:
    return 0 if group.rules is None else group.rules.timeout_ms


# True if blocked clients of the group accept entries that are due.
cdef inline bint waits_for_due(Group group) noexcept:
    return group.pending.retry_waiters or (
        group.rules is not None and group.rules.timeout_ms and group.pending.blocked_clients)


cdef dict delivery_rules(Group group)
cdef uint64_t delay_after(Group group, int64_t deliveries) except? 0
cdef uint64_t size_bytes_of(Group group) noexcept
