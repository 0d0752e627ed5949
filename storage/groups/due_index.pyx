# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Due times of pending entries: lower bounds for each chunk, and heaps of chunks by these bounds.

There is no index of records by time. Each chunk has lower bounds of the times at which one of its
records is due for a retry, expires, or was last delivered. A bound may be too low, because an
acknowledgement does not raise it; code that finds such a bound at the root of a heap computes it
again. Therefore the cost of finding due entries grows with the due entries, not with the pending
ones.
"""

from libc.stdint cimport UINT64_MAX as NEVER, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.pending cimport (
    ABSENT, EXPIRE, IDLE, KINDS, NO_RETRY, RETRY, UNOWNED, WAKE, Chunk, Pending, Pendings, first_of,
    has_retry, heap_of, is_at_limit, older_timeout_ms, saturating_add,
)

cdef enum:
    # Numbered deliveries of a group, whose IDs do not define their order: the first size of the
    # table, and its maximum. The latest half of the maximum is always there.
    NOTES_MIN = 16
    NOTES_MAX = 2048


cdef struct Due:
    uint64_t moment
    uint64_t order
    uint64_t ms
    uint64_t seq

cdef bint is_before(const Chunk* a, const Chunk* b, int kind) noexcept:
    """True if a comes first. Chunks never overlap, so their first IDs stay in order."""
    if a.bounds[kind] != b.bounds[kind]:
        return a.bounds[kind] < b.bounds[kind]
    return id_less(a.items[0].ms, a.items[0].seq, b.items[0].ms, b.items[0].seq)


cdef inline bint due_less(const Due* a, const Due* b) noexcept:
    if a.moment != b.moment:
        return a.moment < b.moment
    if a.order != b.order:
        return a.order < b.order
    return id_less(a.ms, a.seq, b.ms, b.seq)


cdef inline bint comes_after(const Chunk* chunk, int kind, const Due* due) noexcept:
    """True if all records of a chunk come after a record that was found due."""
    if chunk.bounds[kind] != due.moment:
        return chunk.bounds[kind] > due.moment
    if due.order:
        return False
    return id_less(due.ms, due.seq, chunk.items[0].ms, chunk.items[0].seq)


cdef struct Note:
    uint64_t ms
    uint64_t seq
    uint64_t at_ms
    uint64_t number
    uint32_t following  # the next note of the same chain, plus 1


cdef class Notes:
    """Numbered deliveries by ID: a hash table that grows to NOTES_MAX. Then a new note replaces an
    old one. A command that claims out of order pays a few nanoseconds for it."""

    cdef Note* items
    cdef uint32_t* chains  # the first note of each chain, plus 1
    cdef uint32_t used
    cdef uint32_t capacity
    cdef uint32_t hand  # where the search for an old note continues

    def __dealloc__(self):
        free(self.items)
        free(self.chains)

    cdef inline uint32_t chain_of(self, uint64_t ms, uint64_t seq) noexcept:
        cdef uint64_t mixed = (ms * <uint64_t>0x9E3779B97F4A7C15 ^ seq) * <uint64_t>0xD6E8FEB86659FD93
        return <uint32_t>(mixed >> 40) & (self.capacity - 1)

    cdef Note* find(self, uint64_t ms, uint64_t seq) noexcept:
        cdef uint32_t at
        if self.used == 0:
            return NULL
        at = self.chains[self.chain_of(ms, seq)]
        while at:
            if self.items[at - 1].ms == ms and self.items[at - 1].seq == seq:
                return &self.items[at - 1]
            at = self.items[at - 1].following
        return NULL

    cdef int put(self, uint64_t ms, uint64_t seq, uint64_t at_ms, uint64_t number) except -1:
        """Set the number of a delivery, which is the greatest."""
        cdef Note* note = self.find(ms, seq)
        cdef uint32_t place
        if note == NULL:
            if self.used < self.capacity or self.capacity < NOTES_MAX:
                if self.used == self.capacity:
                    self.grow()
                place = self.used
                self.used += 1
            else:
                place = self.old_place(number)
                self.unlink(place)
            note = &self.items[place]
            note.ms = ms
            note.seq = seq
            self.link(place)
        note.at_ms = at_ms
        note.number = number
        return 0

    cdef int grow(self) except -1:
        cdef uint32_t wanted = self.capacity * 2 if self.capacity else NOTES_MIN
        cdef uint32_t* chains = <uint32_t*>calloc(wanted, sizeof(uint32_t))
        cdef Note* items = <Note*>realloc(self.items, wanted * sizeof(Note))
        cdef uint32_t place
        if items != NULL:
            self.items = items
        if items == NULL or chains == NULL:
            free(chains)
            raise MemoryError("no memory for the order of deliveries")
        free(self.chains)
        self.chains = chains
        self.capacity = wanted
        for place in range(self.used):
            self.link(place)
        return 0

    cdef uint32_t old_place(self, uint64_t number) noexcept:
        """The place of a note that is not one of the latest NOTES_MAX / 2."""
        cdef uint32_t place
        while True:
            place = self.hand
            self.hand = (self.hand + 1) & (NOTES_MAX - 1)
            if self.items[place].number + NOTES_MAX // 2 <= number:
                return place

    cdef void link(self, uint32_t place) noexcept:
        cdef uint32_t* chain = &self.chains[self.chain_of(self.items[place].ms, self.items[place].seq)]
        self.items[place].following = chain[0]
        chain[0] = place + 1

    cdef void unlink(self, uint32_t place) noexcept:
        cdef uint32_t* at = &self.chains[self.chain_of(self.items[place].ms, self.items[place].seq)]
        while at[0] != place + 1:
            at = &self.items[at[0] - 1].following
        at[0] = self.items[place].following


cdef class DeliveryOrder:
    """The order of deliveries in the same millisecond, where the IDs do not define it.

    Deliveries are mostly in order of time and, within a millisecond, of ID. A delivery out of this
    order gets a number and comes after the deliveries without a number. Only the latest numbers
    are kept (at least NOTES_MAX / 2), and none survives a restart; after it the IDs define the
    order.
    """

    def __init__(self):
        self.numbers = Notes()

    cdef int note(self, uint64_t ms, uint64_t seq, uint64_t at_ms) except -1:
        """Record a delivery as the last one at this time."""
        cdef bint rises = id_less(self.last.ms, self.last.seq, ms, seq)
        if at_ms > self.latest_ms or (
                at_ms == self.latest_ms and rises and not self.numbered):
            self.numbered = False
            self.latest_ms = at_ms
            self.last.ms = ms
            self.last.seq = seq
            return 0
        if at_ms == self.latest_ms:
            self.numbered = True
        self.count += 1
        return (<Notes>self.numbers).put(ms, seq, at_ms, self.count)

    cdef uint64_t number(self, const Pending* record) except? 0xffffffffffffffff:
        """A record's number among the deliveries at the same time; 0 when it has none."""
        cdef const Note* note = (<Notes>self.numbers).find(record.ms, record.seq)
        return note.number if note != NULL and note.at_ms == record.last_delivery_ms else 0


cdef class DueIds:
    """The IDs of records, in an order of time."""

    def __dealloc__(self):
        free(self.items)

    cdef int add(self, uint64_t ms, uint64_t seq) except -1:
        cdef size_t wanted
        cdef EntryId* moved
        if self.count == self.capacity:
            wanted = self.capacity * 2 if self.capacity else 16
            moved = <EntryId*>realloc(self.items, wanted * sizeof(EntryId))
            if moved == NULL:
                raise MemoryError("no memory for what is due")
            self.items = moved
            self.capacity = wanted
        self.items[self.count] = EntryId(ms, seq)
        self.count += 1
        return 0


cdef class DueHeap:
    """A heap of records that are due, the earliest first. Mostly they come in order: then it is an array,
    of which the first `gone` records were removed."""
    cdef Due* items
    cdef size_t count
    cdef size_t capacity
    cdef size_t gone
    cdef bint is_heap

    def __dealloc__(self):
        free(self.items)

    cdef int push(self, uint64_t moment, uint64_t order, const Pending* record) except -1:
        cdef size_t wanted, at, up
        cdef Due* moved
        cdef Due made
        if self.gone + self.count == self.capacity:
            wanted = self.capacity * 2 if self.capacity else 64
            moved = <Due*>realloc(self.items, wanted * sizeof(Due))
            if moved == NULL:
                raise MemoryError("no memory for what is due")
            self.items = moved
            self.capacity = wanted
        made.moment = moment
        made.order = order
        made.ms = record.ms
        made.seq = record.seq
        if not self.is_heap:
            at = self.gone + self.count
            if self.count == 0 or not due_less(&made, &self.items[at - 1]):
                self.items[at] = made
                self.count += 1
                return 0
            self.begin_heap()
        at = self.count
        self.count += 1
        while at:
            up = (at - 1) // 2
            if not due_less(&made, &self.items[up]):
                break
            self.items[at] = self.items[up]
            at = up
        self.items[at] = made
        return 0

    cdef void begin_heap(self) noexcept:
        """Continue as a heap: an array in order is one."""
        memmove(self.items, self.items + self.gone, self.count * sizeof(Due))
        self.gone = 0
        self.is_heap = True

    cdef inline const Due* first(self) noexcept:
        return &self.items[self.gone]

    cdef Due pop(self) noexcept:
        cdef Due first = self.items[self.gone]
        cdef Due last
        cdef size_t at = 0
        cdef size_t down
        self.count -= 1
        if not self.is_heap:
            self.gone += 1
            return first
        last = self.items[self.count]
        while True:
            down = 2 * at + 1
            if down >= self.count:
                break
            if down + 1 < self.count and due_less(&self.items[down + 1], &self.items[down]):
                down += 1
            if not due_less(&self.items[down], &last):
                break
            self.items[at] = self.items[down]
            at = down
        self.items[at] = last
        return first


cdef inline uint64_t moment_of(Pendings* pendings, const Pending* record, int kind) noexcept:
    if kind == IDLE:
        return claimable_ms(pendings, record)
    return ends_ms(pendings, record) if kind == EXPIRE else due_ms(pendings, record, kind == RETRY)


cdef uint64_t claimable_ms(Pendings* pendings, const Pending* record) noexcept:
    """The last delivery; NEVER when the entry waits or is at the limit of deliveries, or when a claim
    has found that it no longer exists."""
    if record.gone or record.waiting or is_at_limit(pendings, record):
        return NEVER
    return record.last_delivery_ms


cdef uint64_t due_ms(Pendings* pendings, const Pending* record, bint with_zero) noexcept:
    """The time at which the record is due for redelivery; NEVER at the limit of deliveries, where
    only a reader with retry 0 ends the delivery."""
    if is_at_limit(pendings, record) and (
            not with_zero or fails_ms(pendings, record, False) != NEVER):
        return NEVER
    return fails_ms(pendings, record, with_zero)


cdef uint64_t fails_ms(Pendings* pendings, const Pending* record, bint with_zero) noexcept:
    """The time at which the last delivery of the record has failed, or its delay is over; NEVER
    without a retry (or with retry 0). Entries released by XNACK are due immediately, and entries that
    wait at the end of their delay, which may be 0. In a managed group, entries without a retry have
    its timeout."""
    cdef uint64_t retry
    if not has_retry(pendings, record):
        return NEVER
    retry = pendings.retry_times[record.retry_number].retry_ms
    if record.waiting:
        return saturating_add(record.last_delivery_ms, retry)
    if retry == 0 and not with_zero:
        return NEVER
    if record.last_delivery_ms == 0 and record.consumer == UNOWNED:
        return 0
    return saturating_add(record.last_delivery_ms, retry)


cdef uint64_t expires_ms(Pendings* pendings, const Pending* record) noexcept:
    cdef uint64_t expire
    if record.retry_number == NO_RETRY:
        return NEVER
    expire = pendings.retry_times[record.retry_number].expire_ms
    return saturating_add(record.first_delivery_ms, expire) if expire else NEVER


cdef uint64_t ends_ms(Pendings* pendings, const Pending* record) noexcept:
    """The time at which the record expires or, at the limit of deliveries, the last delivery has
    failed."""
    cdef uint64_t moment = expires_ms(pendings, record)
    if is_at_limit(pendings, record):
        moment = min(moment, fails_ms(pendings, record, False))
    return moment


cdef void set_limit(Pendings* pendings, uint32_t limit) noexcept:
    """Set the limit of deliveries, 0 for none. Bounds may be too low, so a lower limit needs no look
    at the records."""
    cdef uint32_t before = pendings.limit
    cdef Chunk* chunk
    cdef uint32_t i
    pendings.limit = limit
    for i in range(pendings.chunk_count if limit != before else 0):
        chunk = pendings.chunks[i]
        if limit and (before == 0 or limit < before):
            set_bound(pendings, chunk, EXPIRE, min(chunk.bounds[EXPIRE], chunk.bounds[RETRY]))
        else:
            chunk_bounds(pendings, chunk)


cdef void change_timeout(Pendings* pendings, uint64_t before_ms) noexcept:
    """Adapt the bounds to another timeout of entries without a retry pair. Bounds may be too low, so
    most chunks need no look at their records."""
    cdef uint64_t timeout_ms = older_timeout_ms(pendings)
    cdef uint64_t earliest_ms
    cdef Chunk* chunk
    cdef uint32_t i
    cdef int kind
    for i in range(pendings.chunk_count if timeout_ms else 0):
        chunk = pendings.chunks[i]
        if before_ms > timeout_ms:
            lower_bounds(pendings, chunk, before_ms - timeout_ms)
        elif before_ms == 0 and (
                pendings.has_gone or pendings.limit or chunk.bounds[IDLE] == NEVER):
            chunk_bounds(pendings, chunk)
        elif before_ms == 0:
            earliest_ms = chunk.bounds[IDLE]
            if earliest_ms:  # those released by XNACK are due immediately
                earliest_ms = saturating_add(earliest_ms, timeout_ms)
            for kind in (RETRY, WAKE):
                if earliest_ms < chunk.bounds[kind]:
                    set_bound(pendings, chunk, kind, earliest_ms)


cdef void lower_bounds(Pendings* pendings, Chunk* chunk, uint64_t span_ms) noexcept:
    """Lower the bounds of a chunk that depend on retry times by this time."""
    cdef int kind
    for kind in range(IDLE):
        if chunk.bounds[kind] != NEVER:
            set_bound(pendings, chunk, kind, chunk.bounds[kind] - min(chunk.bounds[kind], span_ms))


cdef void move_bounds(Pendings* pendings, Chunk* chunk, const Pending* record) noexcept:
    """Lower a chunk's bounds to include one of its records."""
    cdef uint64_t moment
    moment = claimable_ms(pendings, record)
    if moment < chunk.bounds[IDLE]:
        set_bound(pendings, chunk, IDLE, moment)
    if not has_retry(pendings, record):
        return
    moment = due_ms(pendings, record, True)
    if moment < chunk.bounds[RETRY]:
        set_bound(pendings, chunk, RETRY, moment)
    moment = due_ms(pendings, record, False)
    if moment < chunk.bounds[WAKE]:
        set_bound(pendings, chunk, WAKE, moment)
    moment = ends_ms(pendings, record)
    if moment < chunk.bounds[EXPIRE]:
        set_bound(pendings, chunk, EXPIRE, moment)


cdef void chunk_bounds(Pendings* pendings, Chunk* chunk) noexcept:
    """Compute a chunk's bounds exactly."""
    cdef uint32_t i
    cdef uint64_t retry = NEVER
    cdef uint64_t wake = NEVER
    cdef uint64_t expire = NEVER
    cdef uint64_t idle = NEVER
    work.count += chunk.used
    for i in range(chunk.used):
        idle = min(idle, claimable_ms(pendings, &chunk.items[i]))
        if has_retry(pendings, &chunk.items[i]):
            retry = min(retry, due_ms(pendings, &chunk.items[i], True))
            wake = min(wake, due_ms(pendings, &chunk.items[i], False))
            expire = min(expire, ends_ms(pendings, &chunk.items[i]))
    set_bound(pendings, chunk, RETRY, retry)
    set_bound(pendings, chunk, WAKE, wake)
    set_bound(pendings, chunk, EXPIRE, expire)
    set_bound(pendings, chunk, IDLE, idle)


cdef void set_bound(Pendings* pendings, Chunk* chunk, int kind, uint64_t moment) noexcept:
    """Set a bound; a chunk with the bound NEVER is not in the heap of that kind."""
    if chunk.bounds[kind] == moment:
        return
    chunk.bounds[kind] = moment
    if moment == NEVER:
        leave_heap(pendings, kind, chunk)
        return
    if chunk.heap_at[kind] == ABSENT:
        chunk.heap_at[kind] = pendings.heap_counts[kind]
        pendings.heap_counts[kind] += 1
    sift(pendings, kind, chunk)


cdef void sift(Pendings* pendings, int kind, Chunk* chunk) noexcept:
    """Restore the heap order for a chunk whose bound changed."""
    cdef Chunk** heap = heap_of(pendings, kind)
    cdef uint32_t count = pendings.heap_counts[kind]
    cdef uint32_t at = chunk.heap_at[kind]
    cdef uint32_t other
    while at and is_before(chunk, heap[(at - 1) // 2], kind):
        work.count += 1
        other = (at - 1) // 2
        heap[at] = heap[other]
        heap[at].heap_at[kind] = at
        at = other
    while True:
        work.count += 1
        other = 2 * at + 1
        if other >= count:
            break
        if other + 1 < count and is_before(heap[other + 1], heap[other], kind):
            other += 1
        if not is_before(heap[other], chunk, kind):
            break
        heap[at] = heap[other]
        heap[at].heap_at[kind] = at
        at = other
    heap[at] = chunk
    chunk.heap_at[kind] = at


cdef void leave_heap(Pendings* pendings, int kind, Chunk* chunk) noexcept:
    cdef uint32_t at = chunk.heap_at[kind]
    cdef Chunk* last
    if at == ABSENT:
        return
    chunk.heap_at[kind] = ABSENT
    pendings.heap_counts[kind] -= 1
    last = heap_of(pendings, kind)[pendings.heap_counts[kind]]
    if last != chunk:
        last.heap_at[kind] = at
        sift(pendings, kind, last)


cdef void leave_heaps(Pendings* pendings, Chunk* chunk) noexcept:
    cdef int kind
    for kind in range(KINDS):
        leave_heap(pendings, kind, chunk)


cdef void note_moved(Pendings* pendings, Chunk* chunk) noexcept:
    """Update the heaps after a chunk has moved to another address."""
    cdef int kind
    for kind in range(KINDS):
        if chunk.heap_at[kind] != ABSENT:
            heap_of(pendings, kind)[chunk.heap_at[kind]] = chunk


cdef uint64_t exact_min(Pendings* pendings, int kind, uint64_t until_ms) noexcept:
    """The earliest time of a kind, exact if it is at most until_ms; NEVER when there is
    none."""
    cdef Chunk* first
    cdef uint64_t moment
    while pendings.heap_counts[kind]:
        first = heap_of(pendings, kind)[0]
        moment = first.bounds[kind]
        if moment > until_ms:
            return moment
        chunk_bounds(pendings, first)
        if first.bounds[kind] == moment:
            return moment
    return NEVER


cdef uint64_t bound_of(Pendings* pendings, int kind) noexcept:
    """A lower bound of the times of a kind; NEVER when there is none. Constant time."""
    return first_of(pendings, kind).bounds[kind] if pendings.heap_counts[kind] else NEVER


cdef bint is_due(Pendings* pendings, uint64_t now_ms, bint with_zero) noexcept:
    """True if a record is due for redelivery."""
    return exact_min(pendings, RETRY if with_zero else WAKE, now_ms) <= now_ms


cdef bint has_expired(Pendings* pendings, uint64_t now_ms) noexcept:
    return exact_min(pendings, EXPIRE, now_ms) <= now_ms


cdef bint is_idle(Pendings* pendings, uint64_t now_ms, uint64_t min_idle_ms) noexcept:
    """True if a record has not been delivered for at least min_idle_ms."""
    return now_ms >= min_idle_ms and exact_min(pendings, IDLE, now_ms - min_idle_ms) <= (
        now_ms - min_idle_ms)


cdef list earliest(Pendings* pendings, int kind, uint64_t until_ms, uint64_t limit,
                   DeliveryOrder order, bint with_waiting):
    """`find_earliest` as a list of IDs (ms, seq)."""
    cdef DueIds found = find_earliest(pendings, kind, until_ms, limit, order, with_waiting)
    cdef size_t i
    return [(found.items[i].ms, found.items[i].seq) for i in range(found.count)]


cdef DueIds find_earliest(Pendings* pendings, int kind, uint64_t until_ms, uint64_t limit,
                          DeliveryOrder order, bint with_waiting):
    """Up to `limit` IDs whose time is at most until_ms, the earliest first. Entries that wait are left
    out unless `with_waiting`.

    A chunk is opened once, when its bound is before everything found so far. It is removed from
    the heap until the end, and then has exact bounds.
    """
    cdef DueHeap found = DueHeap.__new__(DueHeap)
    cdef DueIds taken = DueIds.__new__(DueIds)
    cdef list opened = []
    cdef Chunk* chunk
    cdef Due first
    cdef uint64_t moment, lowest
    cdef uint64_t number = 0
    cdef bint in_order = kind == IDLE and order is not None and (<Notes>order.numbers).used > 0
    cdef uint32_t i
    try:
        while taken.count < limit:
            chunk = first_of(pendings, kind)
            if chunk != NULL and chunk.bounds[kind] <= until_ms and (found.count == 0 or (
                    not comes_after(chunk, kind, found.first()))):
                lowest = NEVER
                work.count += chunk.used
                for i in range(chunk.used):
                    moment = moment_of(pendings, &chunk.items[i], kind)
                    lowest = min(lowest, moment)
                    if moment > until_ms or (
                            chunk.items[i].waiting and not with_waiting):
                        continue
                    if in_order:
                        number = order.number(&chunk.items[i])
                    found.push(moment, number, &chunk.items[i])
                opened.append((<size_t>chunk, lowest))
                set_bound(pendings, chunk, kind, NEVER)
                continue
            if found.count == 0:
                break
            first = found.pop()
            taken.add(first.ms, first.seq)
    finally:
        for address, lowest in opened:
            set_bound(pendings, <Chunk*><size_t>address, kind, lowest)
    return taken
