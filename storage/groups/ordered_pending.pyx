# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The pending entries of a group that orders entries by key.

When a pending entry ends, its key may be free. When an entry is given back, claimed or delivered again,
those after it that came with it in one reply are taken back: they are parked, or wait if one after them
waits, and this delivery does not count.
"""

from libc.stdint cimport uint32_t, uint64_t
cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.due_index cimport due_ms
from millstream.storage.groups.key_order cimport NO_ITEM, KeyOrder
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport find_pending, nothing_pending, record_at
from millstream.storage.groups.pending_list cimport PendingList


@cython.no_gc
cdef class OrderedPending(PendingList):
    """The pending entries of a group, and their keys."""

    cdef int erase(self, PendingAt* at) except -1:
        return end_entry(self, at)


cdef int end_entry(OrderedPending pending, PendingAt* at) except -1:
    """Remove a record: its entry has ended, which may free its key."""
    cdef const Pending* record = record_at(pending.records, at)
    cdef EntryId ended = EntryId(record.ms, record.seq)
    PendingList.erase(pending, at)
    pending.keys.end(ended)
    return 0


cdef bint is_next(OrderedPending pending, EntryId at) except -1:
    """True if a due entry comes before the other pending ones of its key: those that readers hold,
    in ID order, come before those that wait."""
    cdef PendingAt place
    cdef const Pending* record
    cdef bint waits
    cdef EntryId other
    cdef uint32_t number = pending.keys.first_of_key(at, &other)
    if pending.keys.is_alone(at):
        return True
    waits = find_pending(pending.records, at, &place).waiting
    while number != NO_ITEM:
        record = find_pending(pending.records, other, &place)
        if record.waiting < waits or (
                record.waiting == waits and id_less(other.ms, other.seq, at.ms, at.seq)):
            return False
        if not waits and not id_less(other.ms, other.seq, at.ms, at.seq):
            break
        number = pending.keys.next_of_key(number, &other)
    return True


cdef bint may_claim(OrderedPending pending, EntryId at, uint64_t now_ms) except -1:
    """True if an entry is the first pending one of its key, and no other one is with a reader
    before its deadline."""
    cdef PendingAt place
    cdef const Pending* record
    cdef EntryId other
    cdef uint32_t number = pending.keys.first_of_key(at, &other)
    if pending.keys.is_alone(at):
        return True
    if id_less(other.ms, other.seq, at.ms, at.seq):
        return False
    while True:
        number = pending.keys.next_of_key(number, &other)
        if number == NO_ITEM:
            return True
        record = find_pending(pending.records, other, &place)
        if not record.waiting and due_ms(pending.records, record, True) > now_ms:
            return False


cdef bint has_later(OrderedPending pending, EntryId at) except -1:
    """True if readers hold entries of the key after this one."""
    cdef PendingAt place
    cdef EntryId other
    cdef uint32_t number = pending.keys.first_of_key(at, &other)
    while number != NO_ITEM:
        if id_less(at.ms, at.seq, other.ms, other.seq) and not find_pending(
                pending.records, other, &place).waiting:
            return True
        number = pending.keys.next_of_key(number, &other)
    return False


cdef int park_later(OrderedPending pending, EntryId at) except -1:
    """Park the entries of the key after this one that readers hold, and after all that wait."""
    cdef PendingAt place
    cdef uint64_t ms, seq
    for ms, seq in reversed(pending.keys.others(at)):
        if not id_less(at.ms, at.seq, ms, seq) or find_pending(
                pending.records, EntryId(ms, seq), &place).waiting:
            break
        pending.keys.park_again(EntryId(ms, seq))
        PendingList.erase(pending, &place)
    return 0


cdef PendingList pending_with(PendingList pending, KeyOrder keys):
    """Move pending entries to a list with these keys, or without any (None)."""
    cdef PendingList made
    if keys is None:
        made = PendingList.__new__(PendingList)
    else:
        made = OrderedPending.__new__(OrderedPending)
        (<OrderedPending>made).keys = keys
    made.records, pending.records = pending.records, nothing_pending()
    made.owners, pending.owners = pending.owners, None
    made.blocked_clients = pending.blocked_clients
    made.retry_waiters = pending.retry_waiters
    return made


cdef OrderedPending ordered(PendingList pending):
    """The same pending entries if they have keys, else None."""
    return <OrderedPending>pending if type(pending) is OrderedPending else None
