# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The pending entries of a managed group, which has a TIMEOUT: entries in flight and entries that wait.

Each record has a retry pair. Of an entry in flight, the retry is its timeout; of an entry that waits,
because it was given back, it is the delay. The entry is due when this time has passed since the last
delivery, or since the entry was given back (`due_index`). A dead entry, which has ended and is not
copied yet, waits forever.
"""

from libc.stdint cimport INT64_MAX, UINT64_MAX as NEVER, int64_t, uint32_t, uint64_t

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.dead_entries cimport set_dead
from millstream.storage.groups.due_index cimport move_bounds
from millstream.storage.groups.group cimport Group, timeout_ms_of
from millstream.storage.groups.ordered_pending cimport OrderedPending, ordered, park_later
from millstream.storage.groups.pending cimport (
    NO_RETRY, UNOWNED, Chunk, Pending, PendingAt, Pendings, saturating_add,
)
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.groups.pending_list cimport PendingList

cdef enum:
    # Shorter times are exact. Longer ones have steps of at most 2 %, so that they need few retry
    # pairs: 450 for each power of ten.
    EXACT_MS = 1000
    STEPS = 50


cdef uint64_t rounded_up(uint64_t span_ms) noexcept:
    """A time as a retry pair has it: exact up to one second, above it at most 2 % longer."""
    cdef uint64_t power = EXACT_MS
    cdef uint64_t step
    if span_ms <= EXACT_MS:
        return span_ms
    while power <= span_ms // 10:
        power *= 10
    step = power // STEPS
    return saturating_add(span_ms, step - 1) // step * step


cdef uint32_t claim_retry_number(Group group, uint64_t now_ms, uint64_t delivery_ms) except? 0:
    """The number of the retry pair of an entry that is claimed now, with this last delivery: in a
    managed group its deadline is a timeout after now, otherwise it has none."""
    cdef uint64_t timeout_ms = timeout_ms_of(group)
    if timeout_ms == 0:
        return NO_RETRY
    if delivery_ms < now_ms:
        timeout_ms = rounded_up(timeout_ms + now_ms - delivery_ms)
    return group.pending.retry_number(timeout_ms, 0)


cdef Pending* find_after(Pendings* pendings, EntryId at_id, PendingAt* at) noexcept:
    """`find_pending`, which is quick for the record after the one at `at`. This may be any place."""
    cdef Chunk* chunk
    cdef Pending* record
    if at.chunk < pendings.chunk_count:
        chunk = pendings.chunks[at.chunk]
        if at.index + 1 < chunk.used:
            record = &chunk.items[at.index + 1]
            if record.ms == at_id.ms and record.seq == at_id.seq:
                at.index += 1
                return record
    return find_pending(pendings, at_id, at)


cdef Pending* held_by(PendingList pending, EntryId at_id, uint32_t consumer, PendingAt* at) noexcept:
    """The record of an entry that this consumer holds, UNOWNED for all readers without a name; NULL
    if it does not. It is quick for the record after the one at `at`, which may be any place."""
    cdef Pending* record = find_after(pending.records, at_id, at)
    if record == NULL or record.consumer != consumer or record.waiting:
        return NULL
    return record


cdef list ids_held_by(PendingList pending, uint32_t consumer):
    """The IDs (ms, seq) of all entries that this consumer holds."""
    cdef const Chunk* chunk
    cdef uint32_t place, i
    cdef list found = []
    for place in range(pending.records.chunk_count):
        chunk = pending.records.chunks[place]
        for i in range(chunk.used):
            if chunk.items[i].consumer == consumer and not chunk.items[i].waiting:
                found.append((chunk.items[i].ms, chunk.items[i].seq))
    return found


cdef inline uint64_t expire_ms_of(PendingList pending, const Pending* record) noexcept:
    """The time after its first delivery at which an entry expires; 0: never."""
    if record.retry_number == NO_RETRY:
        return 0
    return pending.records.retry_times[record.retry_number].expire_ms


cdef int take_again(PendingList pending, EntryId at_id, uint32_t owner, uint64_t now_ms,
                    uint32_t retry_number) except -1:
    """Record another delivery of a pending entry, to this owner or UNOWNED."""
    cdef PendingAt at = PendingAt(0, 0)
    return take_next(pending, at_id, &at, owner, now_ms, retry_number)


cdef int take_next(PendingList pending, EntryId at_id, PendingAt* at, uint32_t owner, uint64_t now_ms,
                   uint32_t retry_number) except -1:
    """`take_again`, which is quick for the record after the one at `at`. This may be any place."""
    cdef const Pending* record = find_after(pending.records, at_id, at)
    cdef int64_t deliveries
    if record == NULL:
        return 0
    deliveries = pending.deliveries(record)
    pending.transfer(at, owner, now_ms, deliveries if deliveries == INT64_MAX else deliveries + 1,
                     retry_number)
    return take_back_later(pending, at_id)


cdef int let_wait(PendingList pending, PendingAt* at, uint64_t now_ms, int64_t deliveries,
                  uint32_t retry_number) except -1:
    """Let a pending entry wait without an owner, from now_ms on for the time of its retry pair."""
    cdef Chunk* chunk = pending.set_record(at, UNOWNED, now_ms, deliveries, retry_number)
    chunk.items[at.index].waiting = 1
    pending.records.waiting += 1
    move_bounds(pending.records, chunk, &chunk.items[at.index])
    return 0


cpdef int give_back(PendingList pending, uint64_t ms, uint64_t seq, bytes count, uint64_t now_ms,
                    uint64_t delay_ms) except -1:
    """Let an entry, pending or not, wait without an owner: it is due after delay_ms. Its number of
    deliveries becomes `count`: a number, b"-" for one less, b"=" for no change. Its expiry does not
    change."""
    cdef PendingAt at
    cdef Pending* record = find_pending(pending.records, EntryId(ms, seq), &at)
    cdef uint64_t expire_ms = 0 if record == NULL else expire_ms_of(pending, record)
    cdef uint32_t retry_number = pending.retry_number(delay_ms, expire_ms)
    cdef int64_t deliveries = 0
    cdef bint is_new = record == NULL
    if is_new:
        pending.deliver(ms, seq, now_ms, UNOWNED, NO_RETRY)
        find_pending(pending.records, EntryId(ms, seq), &at)
    else:
        deliveries = pending.deliveries(record)
    if count == b"-":
        deliveries = max(deliveries - 1, 0)
    elif count != b"=":
        deliveries = int(count)
    let_wait(pending, &at, now_ms, deliveries, retry_number)
    return 0 if is_new else take_back_later(pending, EntryId(ms, seq))


cdef int give_back_at(PendingList pending, EntryId at_id, PendingAt* at, int64_t deliveries,
                      uint64_t now_ms, uint64_t delay_ms) except -1:
    """`give_back` for the pending entry at this place, which then has this number of deliveries."""
    cdef const Pending* record = &pending.records.chunks[at.chunk].items[at.index]
    cdef uint32_t retry_number = pending.retry_number(delay_ms, expire_ms_of(pending, record))
    let_wait(pending, at, now_ms, deliveries, retry_number)
    return take_back_later(pending, at_id)


cdef int take_back_later(PendingList pending, EntryId at_id) except -1:
    """In an ordered group, take back the entries of its key that came with an entry which has another
    owner now, or none. They are parked, but those before an entry that waits also wait: due entries
    come before parked ones, so it would come first."""
    cdef OrderedPending keyed = ordered(pending)
    cdef PendingAt at
    cdef const Pending* record
    cdef uint64_t ms, seq
    if keyed is None or keyed.keys.is_alone(at_id):
        return 0
    park_later(keyed, at_id)
    for ms, seq in keyed.keys.others(at_id):
        record = find_pending(pending.records, EntryId(ms, seq), &at)
        if id_less(at_id.ms, at_id.seq, ms, seq) and not record.waiting:
            let_wait(pending, &at, record.last_delivery_ms, max(pending.deliveries(record) - 1, 0),
                     pending.retry_number(0, expire_ms_of(pending, record)))
    return 0


cpdef int keep_dead(PendingList pending, uint64_t ms, uint64_t seq, tuple facts) except -1:
    """Let a pending entry be dead: it waits without an owner, is never due and does not expire, until
    it is acknowledged or claimed. facts: (reason, consumer, text) for its copy."""
    cdef PendingAt at
    cdef Pending* record = find_pending(pending.records, EntryId(ms, seq), &at)
    cdef uint32_t retry_number
    cdef OrderedPending keyed
    if record == NULL:
        return 0
    retry_number = pending.retry_number(NEVER, 0)
    let_wait(pending, &at, record.last_delivery_ms, pending.deliveries(record), retry_number)
    set_dead(pending, ms, seq, facts, True)
    keyed = ordered(pending)
    if keyed is not None:  # it does not stop its key
        keyed.keys.end(EntryId(ms, seq))
    return 0


cpdef int extend(PendingList pending, uint64_t ms, uint64_t seq, uint64_t now_ms,
                 uint64_t span_ms) except -1:
    """Let an entry in flight be due after span_ms. Its idle time begins now."""
    cdef PendingAt at
    cdef Pending* record = find_pending(pending.records, EntryId(ms, seq), &at)
    cdef uint32_t retry_number
    if record == NULL:
        return 0
    retry_number = pending.retry_number(span_ms, expire_ms_of(pending, record))
    return pending.transfer(&at, record.consumer, now_ms, pending.deliveries(record), retry_number)
