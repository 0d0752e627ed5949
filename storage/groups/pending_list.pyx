# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The pending entries of a group: their owners, times and numbers of deliveries.

Consumer 0 means no owner: deliveries of TREAD have no owner, nor do entries that XNACK released,
whose last delivery is 0, nor entries that wait after they were given back in a group with rules. The few delivery counts that are too large for a record are stored
separately.
"""

from libc.stdint cimport UINT64_MAX as NEVER, int64_t, uint32_t, uint64_t
cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.consumers cimport Consumer, Details, Members
from millstream.storage.groups.due_index cimport (
    DeliveryOrder, DueIds, bound_of, chunk_bounds, earliest, find_earliest, move_bounds, work,
)
from millstream.storage.groups.pending cimport (
    Chunk, DELIVERIES_MAX, IDLE, NO_RETRY, Pending, PendingAt, Pendings, RETRY, RetryTimes,
    UNOWNED, WAKE, saturating_add,
)
from millstream.storage.groups.pending_chunks cimport (
    SharedPending, allocated, chunk_with_space, erase_record, find_pending, first_pending,
    free_pendings, insert_record, lower_floor, next_pending, nothing_pending, own_chunk,
    share_chunks,
)
from millstream.storage.groups.retry_pairs cimport number_of

cdef int64_t COUNT_MAX = 0x7fffffffffffffff
cdef uint64_t TIME_MAX = 0x7fffffffffffULL


cdef inline void begin_record(Pending* record, uint64_t ms, uint64_t seq, uint64_t now_ms,
                              uint32_t consumer, uint32_t retry_number) noexcept:
    """Initialize the record of a first delivery."""
    record.ms = ms
    record.seq = seq
    record.first_delivery_ms = min(now_ms, TIME_MAX)
    record.last_delivery_ms = min(now_ms, TIME_MAX)
    record.gone = 0
    record.waiting = 0
    record.deliveries = 1
    record.consumer = consumer
    record.retry_number = retry_number


cdef inline Chunk* last_chunk(Pendings* pendings) noexcept:
    return pendings.chunks[pendings.chunk_count - 1] if pendings.chunk_count else NULL


cdef int64_t deliveries_of(const Pending* record, dict large_counts) except -1:
    """The deliveries of an entry, from the record or from the group's large counts."""
    if record.deliveries < DELIVERIES_MAX:
        return record.deliveries
    # A snapshot from before large counts were stored has none.
    return DELIVERIES_MAX if large_counts is None else large_counts.get(
        (record.ms, record.seq), DELIVERIES_MAX)


@cython.no_gc
cdef class PendingList(Members):
    """The pending entries of a group, and the consumers that own them."""

    def __cinit__(self):
        self.records = nothing_pending()

    def __dealloc__(self):
        free_pendings(self.records)

    @property
    def unowned_count(self) -> int:
        return self.records.unowned

    @property
    def waiting_count(self) -> int:
        return self.records.waiting

    @property
    def count(self) -> int:
        return self.records.count

    @property
    def work_counter(self) -> int:
        """The work of all groups (`due_index`)."""
        return work.count

    # ------------------------------------------------------------ deliveries

    cpdef uint32_t retry_number(self, uint64_t retry_ms, uint64_t expire_ms) except? 0:
        """The number of a (retry, expire) pair; 0 means no retry. Use the number before requesting
        another one: when all numbers are used, a pair without records is replaced."""
        self.records = allocated(self.records)
        return number_of(self.records, self.own_details(), retry_ms, expire_ms)

    cdef int put(self, Pending* record) except -1:
        """Add a record or replace the one with the same ID."""
        cdef PendingAt at
        cdef Pending* old
        old = find_pending(self.records, EntryId(record.ms, record.seq), &at)
        if old != NULL:
            self.erase(&at)
        first_pending(self.records, EntryId(record.ms, record.seq), &at)
        return self.insert(&at, record)

    cdef int deliver(self, uint64_t ms, uint64_t seq, uint64_t now_ms, uint32_t consumer,
                     uint32_t retry_number) except -1:
        """Record the first delivery of an entry."""
        cdef Pending record
        cdef PendingAt at
        cdef Chunk* last
        begin_record(&record, ms, seq, now_ms, consumer, retry_number)
        if self.records.chunk_count == 0:
            at.chunk = at.index = 0
            return self.insert(&at, &record)
        last = self.records.chunks[self.records.chunk_count - 1]
        if id_less(last.items[last.used - 1].ms, last.items[last.used - 1].seq, ms, seq):
            at.chunk = self.records.chunk_count - 1
            at.index = last.used
            return self.insert(&at, &record)
        return self.put(&record)

    cdef size_t deliver_some(self, const EntryId* ids, size_t count, uint64_t now_ms,
                             uint32_t consumer, uint32_t retry_number) except 0:
        """Record the first delivery of the first of these entries, whose IDs are ascending: of as
        many as fit into a chunk. Return their number. A failure changes nothing."""
        cdef Chunk* chunk
        cdef PendingAt at
        cdef size_t i
        chunk = last_chunk(self.records)
        if chunk == NULL or not id_less(chunk.items[chunk.used - 1].ms,
                                        chunk.items[chunk.used - 1].seq, ids[0].ms, ids[0].seq):
            self.deliver(ids[0].ms, ids[0].seq, now_ms, consumer, retry_number)
            return 1
        at.chunk = self.records.chunk_count - 1
        at.index = chunk.used
        chunk = chunk_with_space(self.records, &at)
        count = min(count, <size_t>(chunk.capacity - chunk.used))
        for i in range(count):
            begin_record(&chunk.items[chunk.used + i], ids[i].ms, ids[i].seq, now_ms, consumer,
                         retry_number)
        if at.index == 0:
            lower_floor(self.records, at.chunk, chunk.items)
        chunk.used += count
        self.records.count += count
        self.count_owner(consumer, count)
        self.count_retry(retry_number, count)
        move_bounds(self.records, chunk, &chunk.items[at.index])  # all have the same times
        return count

    cdef int insert(self, PendingAt* at, Pending* record) except -1:
        cdef Chunk* chunk
        self.records = allocated(self.records)
        chunk = insert_record(self.records, at, record)
        self.count_owner(record.consumer, 1)
        self.records.waiting += record.waiting
        self.count_retry(record.retry_number, 1)
        move_bounds(self.records, chunk, record)
        return 0

    cdef int erase(self, PendingAt* at) except -1:
        """Remove the record at `at`."""
        cdef Pending* record = &own_chunk(self.records, at.chunk).items[at.index]
        self.forget_count(record)
        self.leave_owner(record)
        self.count_retry(record.retry_number, -1)
        return erase_record(self.records, at)

    # ------------------------------------------------------------ owners, times and counts

    cdef inline int count_owner(self, uint32_t consumer, int change) except -1:
        if consumer == UNOWNED:
            self.records.unowned += change
        elif type(self.owners) is Consumer:
            (<Consumer>self.owners).pending += change
        else:
            (<Consumer>(<Details>self.owners).consumers[consumer]).pending += change
        return 0

    cdef inline int leave_owner(self, Pending* record) except -1:
        """Count a record out of its owner's, or out of those without an owner: it no longer waits."""
        if record.waiting:
            self.end_wait(record)
        return self.count_owner(record.consumer, -1)

    cdef int end_wait(self, Pending* record) except -1:
        """Let a record wait no longer. If it was dead, it is no longer dead."""
        cdef Details details = self.details()
        self.records.waiting -= 1
        record.waiting = 0
        if details is not None and details.dead is not None:
            details.dead.pop((record.ms, record.seq), None)
            details.uncopied.pop((record.ms, record.seq), None)
        return 0

    cdef inline void count_retry(self, uint32_t retry_number, int change) noexcept:
        if retry_number != NO_RETRY:
            self.records.retry_times[retry_number].uses += change

    cpdef bint acknowledge(self, uint64_t ms, uint64_t seq) except -1:
        """Remove a pending entry; False when it is not pending."""
        cdef PendingAt at
        if find_pending(self.records, EntryId(ms, seq), &at) == NULL:
            return False
        self.erase(&at)
        return True

    cdef int redeliver(self, Pending* record, PendingAt* at, uint64_t now_ms, uint32_t retry_number,
                       bint change_retry) except -1:
        """Record another delivery; the reader's retry pair, if any, replaces the record's. The
        chunk may move: `record` is invalid afterwards."""
        cdef Chunk* chunk = own_chunk(self.records, at.chunk)
        record = &chunk.items[at.index]
        record.last_delivery_ms = min(now_ms, TIME_MAX)
        if record.waiting:
            self.end_wait(record)
        if record.deliveries < DELIVERIES_MAX - 1:
            record.deliveries += 1
        else:
            self.set_deliveries(record, min(self.deliveries(record), COUNT_MAX - 1) + 1)
        if change_retry:
            self.count_retry(record.retry_number, -1)
            self.count_retry(retry_number, 1)
            record.retry_number = retry_number
        move_bounds(self.records, chunk, record)
        return 0

    cdef int transfer(self, PendingAt* at, uint32_t consumer, uint64_t delivery_ms,
                       int64_t deliveries, uint32_t retry_number) except -1:
        """Set owner, time of delivery, count and retry pair of the record at `at`."""
        cdef Chunk* chunk = self.set_record(at, consumer, delivery_ms, deliveries, retry_number)
        move_bounds(self.records, chunk, &chunk.items[at.index])
        return 0

    cdef Chunk* set_record(self, PendingAt* at, uint32_t consumer, uint64_t delivery_ms,
                           int64_t deliveries, uint32_t retry_number) except NULL:
        """`transfer`, without the bounds of the record's chunk, which is returned."""
        cdef Chunk* chunk = own_chunk(self.records, at.chunk)
        cdef Pending* record = &chunk.items[at.index]
        self.set_deliveries(record, deliveries)
        self.leave_owner(record)
        self.count_owner(consumer, 1)
        self.count_retry(record.retry_number, -1)
        self.count_retry(retry_number, 1)
        record.consumer = consumer
        record.retry_number = retry_number
        record.last_delivery_ms = min(delivery_ms, TIME_MAX)
        return chunk

    cpdef int claim(self, uint64_t ms, uint64_t seq, Consumer consumer, uint64_t delivery_ms,
                    bytes count, uint32_t retry_number) except -1:
        """Give an entry, pending or not, to a consumer. Its last delivery becomes delivery_ms. Its
        number of deliveries becomes `count`: a number, b"+" for one more, b"=" for no change. An
        entry that was not pending counts as delivered once before."""
        cdef PendingAt at
        cdef Pending* record = find_pending(self.records, EntryId(ms, seq), &at)
        cdef int64_t deliveries
        if record == NULL:
            self.deliver(ms, seq, delivery_ms, UNOWNED, NO_RETRY)
            record = find_pending(self.records, EntryId(ms, seq), &at)
        deliveries = self.deliveries(record)
        if count == b"+":
            deliveries = min(deliveries, COUNT_MAX - 1) + 1
        elif count != b"=":
            deliveries = int(count)
        return self.transfer(&at, consumer.index, delivery_ms, deliveries, retry_number)

    cdef int note_again(self, uint64_t ms, uint64_t seq, uint64_t at_ms, uint64_t now_ms) except -1:
        """Note for DeliveryOrder that a command delivered a pending entry again at at_ms."""
        cdef Details details = self.own_details()
        if details.order is None:
            details.order = DeliveryOrder()
            # Earlier deliveries in this millisecond are unknown.
            details.order.latest_ms = now_ms
            details.order.numbered = True
        return details.order.note(ms, seq, at_ms)

    cpdef int release(self, uint64_t ms, uint64_t seq, bytes count, uint64_t now_ms) except -1:
        """Remove an entry's owner, or make the entry pending without an owner. Its last delivery
        becomes 0. Its number of deliveries becomes `count`: a number, b"-" for one less, b"=" for
        no change. Its retry does not change."""
        cdef PendingAt at
        cdef Chunk* chunk
        cdef Pending* record = find_pending(self.records, EntryId(ms, seq), &at)
        cdef int64_t deliveries = 0
        if record == NULL:
            self.deliver(ms, seq, now_ms, UNOWNED, NO_RETRY)
            record = find_pending(self.records, EntryId(ms, seq), &at)
        else:
            deliveries = self.deliveries(record)
        if count == b"-":
            deliveries = max(deliveries - 1, 0)
        elif count != b"=":
            deliveries = int(count)
        chunk = own_chunk(self.records, at.chunk)
        record = &chunk.items[at.index]
        self.set_deliveries(record, deliveries)
        self.leave_owner(record)
        self.count_owner(UNOWNED, 1)
        record.consumer = UNOWNED
        record.last_delivery_ms = 0
        move_bounds(self.records, chunk, record)
        return 0

    cdef int64_t deliveries(self, const Pending* record) except -1:
        """The number of deliveries of an entry: 0 to the largest signed 64-bit number."""
        return deliveries_of(record, self.large_counts())

    cdef int set_deliveries(self, Pending* record, int64_t deliveries) except -1:
        if deliveries < DELIVERIES_MAX:
            self.forget_count(record)
            record.deliveries = <uint32_t>deliveries
            return 0
        cdef Details details = self.own_details()
        if details.large_counts is None:
            details.large_counts = {}
        details.large_counts[record.ms, record.seq] = deliveries
        record.deliveries = DELIVERIES_MAX
        return 0

    cdef inline int forget_count(self, const Pending* record) except -1:
        """Remove the large count of a record that is removed or whose count fits into it again."""
        if record.deliveries == DELIVERIES_MAX and self.large_counts() is not None:
            self.large_counts().pop((record.ms, record.seq), None)
        return 0

    cdef int mark_gone(self, uint64_t ms, uint64_t seq) except -1:
        """Mark a record whose entry no longer exists in the stream: claims then ignore it. The next
        claim that opens the chunk updates the bounds."""
        cdef PendingAt at
        if find_pending(self.records, EntryId(ms, seq), &at) != NULL:
            own_chunk(self.records, at.chunk).items[at.index].gone = 1
            self.records.has_gone = True
        return 0

    cdef int forget_gone(self) except -1:
        """Remove these marks after a change that allows IDs to be used again."""
        cdef Chunk* chunk
        cdef uint32_t i, j
        if not self.records.has_gone:
            return 0
        for i in range(self.records.chunk_count):
            chunk = own_chunk(self.records, i)
            for j in range(chunk.used):
                chunk.items[j].gone = 0
            chunk_bounds(self.records, chunk)
        self.records.has_gone = False
        return 0

    # ------------------------------------------------------------ due times

    cdef uint64_t claim_bound(self) noexcept:
        """A lower bound of the time at which a waiting claim finds an entry; NEVER when no client
        waits for a claim or no entry is pending. Constant time."""
        cdef uint64_t idle_ms = self.claim_idle()
        return NEVER if idle_ms == NEVER else saturating_add(bound_of(self.records, IDLE), idle_ms)

    cdef DueIds take_due(self, uint64_t now_ms, uint64_t limit, bint with_zero, bint with_waiting=True):
        """Up to `limit` IDs due now, earliest due first, then by ID."""
        return find_earliest(
            self.records, RETRY if with_zero else WAKE, now_ms, limit, self.order(), with_waiting)

    cdef list idle_ids(self, uint64_t now_ms, uint64_t min_idle_ms, uint64_t limit):
        """Up to `limit` IDs (ms, seq) that are idle for at least min_idle_ms, longest idle first,
        then in the order of their deliveries (`DeliveryOrder`)."""
        return [] if now_ms < min_idle_ms else earliest(
            self.records, IDLE, now_ms - min_idle_ms, limit, self.order(), True)

    # ------------------------------------------------------------ for Python and copies

    def has(self, uint64_t ms, uint64_t seq) -> bool:
        """True if an entry is pending."""
        cdef PendingAt at
        return find_pending(self.records, EntryId(ms, seq), &at) != NULL

    def is_waiting(self, uint64_t ms, uint64_t seq) -> bool:
        """True if an entry waits."""
        cdef PendingAt at
        cdef const Pending* record = find_pending(self.records, EntryId(ms, seq), &at)
        return record != NULL and record.waiting

    def ends(self) -> tuple | None:
        """The first and the last pending ID; None when there is none."""
        cdef const Chunk* first
        cdef const Chunk* last
        if self.records.count == 0:
            return None
        first = self.records.chunks[0]
        last = self.records.chunks[self.records.chunk_count - 1]
        return ((first.items[0].ms, first.items[0].seq),
                (last.items[last.used - 1].ms, last.items[last.used - 1].seq))

    def rows(self, uint64_t start_ms=0, uint64_t start_seq=0, end=None, limit=None,
             consumer=None) -> list[tuple]:
        """Records in ID order as (ms, seq, consumer name, last_delivery_ms, deliveries,
        first_delivery_ms, retry_ms or None, expire_ms or None); b"" means no owner."""
        cdef PendingAt at
        cdef Pending* record = first_pending(self.records, EntryId(start_ms, start_seq), &at)
        cdef uint64_t end_ms = NEVER
        cdef uint64_t end_seq = NEVER
        cdef list found = []
        if end is not None:
            end_ms, end_seq = end
        while record != NULL and not id_less(end_ms, end_seq, record.ms, record.seq):
            if limit is not None and len(found) >= limit:
                break
            work.count += 1
            row = self.row(record)
            if consumer is None or consumer == row[2]:
                found.append(row)
            record = next_pending(self.records, &at)
        return found

    cdef tuple row(self, const Pending* record):
        cdef RetryTimes* times
        owner = self.members()[record.consumer]
        times = &self.records.retry_times[record.retry_number]
        pair = (None, None) if record.retry_number == NO_RETRY else (times.retry_ms, times.expire_ms)
        return (record.ms, record.seq, b"" if owner is None else (<Consumer>owner).name,
                record.last_delivery_ms, self.deliveries(record), record.first_delivery_ms, *pair)

    cdef SharedPending share_pending(self):
        cdef SharedPending shared = share_chunks(self.records, 0, self.records.chunk_count)
        shared.records = self.records.count
        return shared
