from libc.stdint cimport UINT64_MAX as NEVER, int64_t, uint64_t
cimport cython

from millstream.entry_id cimport EntryId
from millstream.storage.groups.pending cimport saturating_add
from millstream.storage.groups.key_order cimport KeyOrder
from millstream.storage.groups.pending_list cimport PendingList
from millstream.storage.groups.picking cimport Picking


# The rules of a group, as TREAD GROUP and TGROUP set them. A group with a timeout is managed.
@cython.no_gc
cdef class GroupRules:
    cdef readonly uint64_t ttl_ms
    cdef readonly uint64_t last_used_ms
    # A delivery that is not acknowledged within this time has failed; 0: none fails.
    cdef public uint64_t timeout_ms
    # The delays after the first failure, the second, and so on; None: no delay.
    cdef public tuple backoff_ms
    # An entry that was delivered this number of times has ended when its last delivery fails; 0: no
    # limit. A limit needs a dead letter stream.
    cdef public uint64_t max_deliver
    # The stream for copies of entries that have ended; None: none.
    cdef public bytes dead_letter
    # The steady time at which dead entries are copied next; NEVER: not before the rules change.
    cdef public uint64_t copy_at_ms
    # The number of copies for each reason; None: there were none.
    cdef readonly dict dead_letters
    # The most entries that readers hold; 0: no limit.
    cdef public uint64_t max_in_flight
    # Consumers that hold nothing are removed after this time; 0: never.
    cdef public uint64_t consumer_ttl_ms
    # When they are looked at next.
    cdef public uint64_t consumer_check_ms
    # The number of the consumer at which the look continues.
    cdef public uint64_t consumer_looked
    # Nothing is delivered before this time; UNTIL_RESUMED: until the group is resumed.
    cdef public uint64_t paused_until_ms
    # A Picking if the group has a filter or an order, else None.
    cdef public object picking


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


# True during a pause.
cdef inline bint is_paused(Group group, uint64_t now_ms) noexcept:
    return group.rules is not None and now_ms < group.rules.paused_until_ms


# The number of entries that readers hold, also those whose deadline is over.
cdef inline uint64_t in_flight_of(Group group) noexcept:
    return group.pending.records.count - group.pending.records.waiting


# True if the group has a filter or an order.
cdef inline bint is_picking(Group group) noexcept:
    return group.rules is not None and group.rules.picking is not None


# True if entries are pending, or may be parked.
cdef inline bint holds_read(Group group) noexcept:
    return group.pending.records.count > 0 or is_picking(group)


# The number of entries that reads may bring to readers in addition.
cdef inline uint64_t places_of(Group group) noexcept:
    cdef uint64_t held
    if group.rules is None or group.rules.max_in_flight == 0:
        return NEVER
    held = in_flight_of(group)
    return group.rules.max_in_flight - held if held < group.rules.max_in_flight else 0


# True if the end of a pending entry may bring others to readers.
cdef inline bint is_limited(Group group) noexcept:
    return group.rules is not None and (
        group.rules.max_in_flight > 0 or group.rules.picking is not None)


# True if blocked clients of the group accept entries that are due.
cdef inline bint waits_for_due(Group group) noexcept:
    return group.pending.retry_waiters or (
        group.rules is not None and group.rules.timeout_ms and group.pending.blocked_clients)


# The dead letter stream of a group; None without one.
cdef inline bytes dead_letter_of(Group group):
    return None if group.rules is None else group.rules.dead_letter


cdef dict delivery_rules(Group group)
cdef dict rules_meta(Group group)
cdef dict packable(dict rules_meta)
cdef Picking picking_of(Group group)
cdef KeyOrder keys_of(Group group)
cdef dict recorded_place(Group group)
cdef bint has_passed(Group group) noexcept
cdef int note_recorded(Group group) noexcept
cdef bint first_read_held(Group group, EntryId start, EntryId* held) noexcept
cdef bint is_parked(Group group, EntryId at) noexcept
cdef dict order_meta(Group group)
cdef bint has_delivery_rules(Group group) noexcept
cdef int count_copies(Group group, bytes reason, uint64_t count) except -1
cdef uint64_t delay_after(Group group, int64_t deliveries) except? 0
cdef uint64_t size_bytes_of(Group group) noexcept
