# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A consumer group: its offset, its time to live, its consumers and its pending entries.

A group may have millions of pending entries, so they are plain records in ID order, in chunks of up
to 64. There is no second index by time. Each chunk has lower bounds of the times at which one of
its records is due for a retry, expires, or was last delivered, and heaps order the chunks by these
bounds. A bound may be too low, because an acknowledgement does not raise it; code that finds such a
bound at the root of a heap computes it again. Therefore the cost of finding due entries grows with
the due entries, not with the pending ones.

A snapshot shares the chunks instead of copying them. While the snapshot holds a chunk, the chunk is
copied before it changes.

Most records of a group have the same retry and expire times, so a record has the number of a pair
that is stored once. Consumer 0 means no owner: deliveries of TREAD have no owner, nor do entries
that XNACK released, whose last delivery is 0. The few delivery counts that are too large for a
record are stored separately.

A stream may have very many groups, and most of them are small. A group therefore allocates its
parts when they are first needed: pending entries, consumers, retry pairs.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove
cimport cython

from millstream.entry_id cimport id_less

from collections import OrderedDict

from millstream.errors import CommandError
from millstream.storage.blocks.lazyfree import discard_items, discard_pending, is_deferring

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* address) nogil

cdef enum:
    CHUNK_MAX = 64
    # The number of records around a guess that are checked first.
    NEAR = 3
    LINE_BYTES = 64
    # The first chunk of a group begins small, since most groups of very many have little pending.
    CHUNK_FIRST = 1
    # Maximum of numbered deliveries of a group, whose IDs do not define their order.
    ORDER_MAX = 1024
    KINDS = 4
    KNOWN_NAMES_MAX = 256
    KNOWN_NAME_BYTES_MAX = 64
    ABSENT = 0xffffffffu
    NOBODY = 0xffffffffu
    # The widths of a record's fields.
    DELIVERIES_MAX = 0xffffff
    CONSUMERS_MAX = 0xffffff
    RETRY_TIMES_MAX = 0xffff
    # A group with more consumers has a dict of them.
    FEW_CONSUMERS = 8
    # If a deleted group has more chunks, they are freed later.
    FREED_AT_ONCE = 256
    # For MEMORY USAGE: the size of a group with its name and its item in the stream, of a consumer
    # with its name and items, and of the objects for the first consumer. And the number of sampled
    # chunks.
    GROUP_BYTES = 200
    CONSUMER_BYTES = 170
    DETAILS_BYTES = 200
    CHUNKS_LOOKED_AT = 64

cdef int64_t COUNT_MAX = 0x7fffffffffffffff
cdef uint64_t TIME_MAX = 0xffffffffffffULL
cdef uint64_t FIRST_DELIVERY_MAX = 0x7fffffffffffULL
cdef uint64_t NEVER = 0xffffffffffffffffULL
cdef list NO_MEMBERS = [None]
# Names of groups and consumers that many streams have: one object for all of them.
cdef dict KNOWN_NAMES = {}
# Constant, except that 0 may be added to its `work_counter`.
cdef Pendings NOTHING_PENDING
NOTHING_PENDING.unowned = 0
NOTHING_PENDING.chunks = NULL
NOTHING_PENDING.chunk_first_ids = NULL
NOTHING_PENDING.chunk_count = NOTHING_PENDING.chunk_capacity = 0
NOTHING_PENDING.retry_times = NULL
NOTHING_PENDING.retry_times_count = NOTHING_PENDING.retry_times_capacity = 0
NOTHING_PENDING.has_gone = False
NOTHING_PENDING.work_counter = 0
PENDING_SIZE = sizeof(Pending)
CHUNK_RECORDS = CHUNK_MAX


cdef inline uint64_t saturating_add(uint64_t moment_ms, uint64_t span_ms) noexcept nogil:
    """moment + span, or NEVER on overflow."""
    return NEVER if moment_ms > NEVER - span_ms else moment_ms + span_ms


cdef bytes known_name(bytes name):
    """The same name, as an object that other groups share while there are few different names."""
    cdef bytes known = KNOWN_NAMES.get(name)
    if known is not None:
        return known
    if len(name) <= KNOWN_NAME_BYTES_MAX:
        if len(KNOWN_NAMES) >= KNOWN_NAMES_MAX:
            KNOWN_NAMES.clear()
        KNOWN_NAMES[name] = name
    return name


cdef inline Chunk** heap_of(Pendings* pendings, int kind) noexcept nogil:
    """The chunks that have something to come, the earliest at the root, and by id where moments are
    equal."""
    return pendings.chunks + <size_t>pendings.chunk_capacity * (1 + kind)


cdef inline Chunk* first_of(Pendings* pendings, int kind) noexcept nogil:
    return heap_of(pendings, kind)[0] if pendings.heap_counts[kind] else NULL


cdef Chunk* resized(Chunk* chunk, uint32_t capacity) except NULL:
    cdef Chunk* moved = <Chunk*>realloc(chunk, sizeof(Chunk) + (capacity - 1) * sizeof(Pending))
    cdef int kind
    if moved == NULL:
        raise MemoryError("no memory for pending entries")
    if chunk == NULL:
        moved.used = 0
        moved.holders = 1
        for kind in range(KINDS):
            moved.bounds[kind] = NEVER
            moved.heap_at[kind] = ABSENT
    moved.capacity = capacity
    return moved


cdef inline void release_chunk(Chunk* chunk) noexcept:
    chunk.holders -= 1
    if chunk.holders == 0:
        free(chunk)


cdef inline void begin_record(Pending* record, uint64_t ms, uint64_t seq, uint64_t now_ms,
                              uint32_t consumer, uint32_t policy) noexcept:
    """Initialize the record of a first delivery."""
    record.ms = ms
    record.seq = seq
    record.first_delivery_ms = min(now_ms, FIRST_DELIVERY_MAX)
    record.last_delivery_ms = min(now_ms, TIME_MAX)
    record.gone = 0
    record.deliveries = 1
    record.consumer = consumer
    record.policy = policy


cdef inline bint is_before(const Chunk* a, const Chunk* b, int kind) noexcept:
    """Whether a comes first. Chunks never overlap, so their first IDs stay in order."""
    if a.bounds[kind] != b.bounds[kind]:
        return a.bounds[kind] < b.bounds[kind]
    return id_less(a.items[0].ms, a.items[0].seq, b.items[0].ms, b.items[0].seq)


cdef inline bint due_less(const Due* a, const Due* b) noexcept:
    if a.moment != b.moment:
        return a.moment < b.moment
    if a.order != b.order:
        return a.order < b.order
    return id_less(a.ms, a.seq, b.ms, b.seq)


cdef inline uint32_t search_near(const char* ids, size_t stride, uint32_t count, uint32_t guess,
                                 uint64_t ms, uint64_t seq) noexcept nogil:
    """The index of the first ID of at least ms-seq among `count` ascending IDs that are `stride`
    bytes apart. The search starts at a guess and uses growing steps."""
    cdef const EntryId* entry
    cdef uint32_t low = 0
    cdef uint32_t high = count
    cdef uint32_t step = NEAR
    cdef uint32_t middle = min(guess, count - 1)
    while low < high:
        entry = <const EntryId*>(ids + middle * stride)
        if id_less(entry.ms, entry.seq, ms, seq):
            low = middle + 1
            middle = low + step
        else:
            high = middle
            middle = high - step if high > step else 0
        if step < count:
            step *= 4
        if middle < low or middle >= high:
            middle = (low + high) // 2
    return low


cdef inline uint32_t share(uint64_t ms, uint64_t start, uint64_t end, uint32_t count) noexcept nogil:
    """The number of the part that contains ms, if the time from start to end is divided into
    `count` equal parts; the nearest part if ms is outside. This is a guess: the result may be
    `count`."""
    if ms <= start:
        return 0
    if ms >= end:
        return count - 1
    return <uint32_t>(<double>(ms - start) / <double>(end - start) * count)


cdef class DeliveryOrder:
    """The order of deliveries in the same millisecond, where the IDs do not define it.

    Deliveries are mostly in order of time and, within a millisecond, of ID. A delivery out of this
    order gets a number and comes after the deliveries without a number. Only the latest ORDER_MAX
    numbers are kept, and none survives a restart; after it the IDs define the order.
    """

    def __init__(self):
        self.numbers = OrderedDict()

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
        self.numbers.pop((ms, seq), None)
        self.numbers[ms, seq] = (at_ms, self.count)
        if len(self.numbers) > ORDER_MAX:
            self.numbers.popitem(last=False)
        return 0

    cdef uint64_t number(self, const Pending* record) except? 0xffffffffffffffff:
        """A record's number among the deliveries at the same time; 0 when it has none."""
        noted = self.numbers.get((record.ms, record.seq))
        return noted[1] if noted is not None and noted[0] == record.last_delivery_ms else 0


cdef class DueHeap:
    """A heap of records that are due, the earliest first."""
    cdef Due* items
    cdef size_t count
    cdef size_t capacity

    def __dealloc__(self):
        free(self.items)

    cdef int push(self, uint64_t moment, uint64_t order, const Pending* record) except -1:
        cdef size_t wanted, at, up
        cdef Due* moved
        cdef Due made
        if self.count == self.capacity:
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

    cdef Due pop(self) noexcept:
        cdef Due first = self.items[0]
        cdef Due last
        cdef size_t at = 0
        cdef size_t down
        self.count -= 1
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


cdef list checked_policies(rows, bytes group_name):
    """The (retry_ms, expire_ms) pairs of a dump, checked. Later reads do not check them again."""
    cdef list pairs = [None if row is None else tuple(row) for row in rows]
    known = [pair for pair in pairs if pair is not None]
    numbers = [n for pair in known for n in pair]
    if not pairs or pairs[0] is not None or len(pairs) > RETRY_TIMES_MAX + 1 or len(
            set(known)) < len(known) or any(
            len(pair) != 2 for pair in known) or any(
            not isinstance(n, int) or not 0 <= n <= NEVER for n in numbers):
        raise ValueError(f"the retry retry_times of group {group_name!r} are malformed")
    return pairs


cdef int64_t deliveries_of(const Pending* record, dict large_counts) except -1:
    """How often an entry was delivered, from the record or from the group's large counts."""
    if record.deliveries < DELIVERIES_MAX:
        return record.deliveries
    # A snapshot from before large counts were stored has none.
    return DELIVERIES_MAX if large_counts is None else large_counts.get(
        (record.ms, record.seq), DELIVERIES_MAX)


cdef inline bint comes_after(const Chunk* chunk, int kind, const Due* due) noexcept:
    """Whether all records of a chunk come after a record that was found due."""
    if chunk.bounds[kind] != due.moment:
        return chunk.bounds[kind] > due.moment
    if due.order:
        return False
    return id_less(due.ms, due.seq, chunk.items[0].ms, chunk.items[0].seq)


@cython.no_gc
cdef class Consumer:
    """A named member of a group (XREADGROUP). Times are unix milliseconds, -1 for never."""

    def __init__(self, bytes name, uint32_t index, int64_t seen_ms, int64_t active_ms):
        self.name = known_name(name)
        self.index = index
        self.seen_ms = seen_ms
        self.active_ms = active_ms


@cython.no_gc
cdef class Details:
    """`consumers` is indexed by number, with None for number 0 and for unused numbers."""

    def __cinit__(self):
        self.consumers = NO_MEMBERS
        self.claim_idle_ms = NEVER

    def __dealloc__(self):
        if self.consumers is not NO_MEMBERS:
            discard_items(self.consumers)
        if self.by_name is not None:
            discard_items(self.by_name)

    cdef uint32_t count(self) noexcept:
        cdef uint32_t unused = 0 if self.free_consumers is None else len(self.free_consumers)
        return len(self.consumers) - 1 - unused

    cdef Consumer find(self, bytes name):
        cdef Consumer consumer
        if self.by_name is not None:
            return self.by_name.get(name)
        for consumer in self.consumers:
            if consumer is not None and consumer.name == name:
                return consumer
        return None

    cdef int add(self, Consumer consumer) except -1:
        """Add a consumer; its number is unused, or the next one."""
        cdef Consumer other
        if self.consumers is NO_MEMBERS:
            self.consumers = [None]
        if consumer.index == len(self.consumers):
            self.consumers.append(consumer)
        else:
            self.consumers[consumer.index] = consumer
        if self.by_name is not None:
            self.by_name[consumer.name] = consumer
        elif len(self.consumers) > FEW_CONSUMERS:
            self.by_name = {}
            for other in self.consumers:
                if other is not None:
                    self.by_name[other.name] = other
        return 0

    cdef int skip_number(self) except -1:
        """Leave the next number unused, while consumers are loaded."""
        if self.consumers is NO_MEMBERS:
            self.consumers = [None]
        self.consumers.append(None)
        return 0

    cdef int remove(self, Consumer consumer) except -1:
        if self.free_consumers is None:
            self.free_consumers = []
        self.free_consumers.append(consumer.index)
        self.consumers[consumer.index] = None
        if self.by_name is not None:
            del self.by_name[consumer.name]
        return 0


@cython.no_gc
cdef class Group:
    """State of one group. `entries_read` is Redis' counter, -1 when it is unknown.

    `ttl_ms` 0 means that the group has no time to live. Otherwise it ends ttl_ms after
    `last_used_ms`, unless `blocked_clients` wait on it. `retry_waiters` of these clients accept
    redeliveries. `claim_idle_ms` is the smallest idle time at which one of them claims an entry.
    `scheduled_ms` is the earliest time for which a timer is scheduled.
    """

    def __cinit__(self):
        self.pendings = &NOTHING_PENDING

    def __init__(self, bytes name, uint64_t offset_ms=0, uint64_t offset_seq=0,
                 uint64_t now_ms=0):
        self.name = known_name(name)
        self.offset_ms = offset_ms
        self.offset_seq = offset_seq
        self.entries_read = -1
        self.last_used_ms = now_ms
        self.scheduled_ms = NEVER

    def __dealloc__(self):
        self.free_pending()

    cdef int free_pending(self) noexcept:
        cdef uint32_t i
        cdef SharedPending later
        if self.pendings == &NOTHING_PENDING:
            return 0
        if self.pendings.chunk_count > FREED_AT_ONCE and is_deferring():
            later = SharedPending.__new__(SharedPending)
            later.take_over(self.pendings)
            discard_pending(later)
        for i in range(self.pendings.chunk_count):
            release_chunk(self.pendings.chunks[i])
        free(self.pendings.chunks)
        free(self.pendings.retry_times)
        free(self.pendings)
        self.pendings = &NOTHING_PENDING
        return 0

    cdef int own_pending(self) except -1:
        """Allocate the pending entries, before the first pending entry or retry pair."""
        if self.pendings == &NOTHING_PENDING:
            self.pendings = <Pendings*>calloc(1, sizeof(Pendings))
            if self.pendings == NULL:
                self.pendings = &NOTHING_PENDING
                raise MemoryError("no memory for pending entries")
        return 0

    cdef Details own_details(self):
        if self.details is None:
            self.details = Details.__new__(Details)
        return self.details

    cdef list members(self):
        """Consumers by number, None for unused numbers; read-only."""
        if self.only_member is not None:
            return [None, self.only_member]
        return NO_MEMBERS if self.details is None else self.details.consumers

    cdef int add_member(self, Consumer consumer) except -1:
        """Add a consumer; its number is unused, or the next one. The first one of a group without
        other numbers needs no list."""
        if consumer.index == 1 and self.only_member is None and (
                self.details is None or self.details.consumers is NO_MEMBERS):
            self.only_member = consumer
            return 0
        self.list_members()
        return self.details.add(consumer)

    cdef int list_members(self) except -1:
        """Put the only consumer into a list."""
        cdef Consumer first = self.only_member
        self.own_details()
        if first is not None:
            self.details.add(first)
            self.only_member = None
        return 0

    cdef int skip_number(self) except -1:
        """Leave the next number unused, while consumers are loaded."""
        self.list_members()
        return self.details.skip_number()

    cdef uint32_t consumer_count(self) noexcept:
        if self.only_member is not None:
            return 1
        return 0 if self.details is None else self.details.count()

    cdef dict large_counts(self):
        """Delivery counts that do not fit into a record, or None."""
        return None if self.details is None else self.details.large_counts

    cdef uint64_t claim_idle(self) noexcept:
        return NEVER if self.details is None else self.details.claim_idle_ms

    @property
    def claim_idle_ms(self) -> int:
        return self.claim_idle()

    @property
    def unowned_count(self) -> int:
        return self.pendings.unowned

    @property
    def work_counter(self) -> int:
        return self.pendings.work_counter

    @property
    def consumers(self) -> dict:
        """Consumers by name, in the order of their numbers."""
        return {(<Consumer>one).name: one for one in self.members() if one is not None}

    # ------------------------------------------------------------ retry_times and consumers

    cpdef uint32_t policy(self, uint64_t retry_ms, uint64_t expire_ms) except? 0:
        """The number of a (retry, expire) pair; 0 means no retry. Use the number before requesting
        another one: when all numbers are used, a pair without records is replaced."""
        cdef uint32_t number
        cdef Details details = self.own_details()
        pair = (retry_ms, expire_ms)
        if details.policy_numbers is None:
            details.policy_numbers = {}
        known = details.policy_numbers.get(pair)
        if known is not None:
            return known
        number = self.free_policy()
        details.policy_numbers[pair] = number
        self.pendings.retry_times[number].retry_ms = retry_ms
        self.pendings.retry_times[number].expire_ms = expire_ms
        self.pendings.retry_times[number].known = True
        return number

    cdef uint32_t free_policy(self) except 0:
        cdef RetryTimes* moved
        cdef uint32_t wanted
        self.own_pending()
        if not self.details.free_retry_times and self.pendings.retry_times_count > RETRY_TIMES_MAX:
            self.free_unused_policies()
            if not self.details.free_retry_times:
                raise CommandError("ERR too many different RETRY pairs are pending in this group")
        if self.details.free_retry_times:
            return self.details.free_retry_times.pop()
        if self.pendings.retry_times_count == self.pendings.retry_times_capacity or self.pendings.retry_times == NULL:
            wanted = max(<uint32_t>4, self.pendings.retry_times_capacity * 2)
            moved = <RetryTimes*>realloc(self.pendings.retry_times, wanted * sizeof(RetryTimes))
            if moved == NULL:
                raise MemoryError("no memory for a retry pair")
            self.pendings.retry_times = moved
            self.pendings.retry_times_capacity = wanted
        if self.pendings.retry_times_count == 0:
            self.pendings.retry_times[0].known = False
            self.pendings.retry_times[0].uses = 0
            self.pendings.retry_times_count = 1
        self.pendings.retry_times[self.pendings.retry_times_count].known = False
        self.pendings.retry_times[self.pendings.retry_times_count].uses = 0
        self.pendings.retry_times_count += 1
        return self.pendings.retry_times_count - 1

    cdef int free_unused_policies(self) except -1:
        cdef Details details = self.details
        cdef RetryTimes* policy
        cdef uint32_t i
        details.free_retry_times = []
        for i in range(self.pendings.retry_times_count - 1, 0, -1):
            policy = &self.pendings.retry_times[i]
            if policy.known and policy.uses == 0:
                del details.policy_numbers[policy.retry_ms, policy.expire_ms]
                policy.known = False
                details.free_retry_times.append(i)
        return 0

    cdef list policy_pairs(self):
        """The pairs by number as [retry, expire], None for unused numbers."""
        cdef uint32_t i
        cdef list pairs = [None]
        for i in range(1, self.pendings.retry_times_count):
            pairs.append([self.pendings.retry_times[i].retry_ms, self.pendings.retry_times[i].expire_ms]
                         if self.pendings.retry_times[i].known else None)
        return pairs

    cdef int set_policies(self, list pairs) except -1:
        """Restore the pairs of a dump in a new group."""
        cdef uint32_t number
        cdef Details details
        if len(pairs) == 1:
            return 0
        details = self.own_details()
        details.policy_numbers = {}
        for pair in pairs[1:]:
            number = self.free_policy()
            if pair is not None:
                self.pendings.retry_times[number].retry_ms, self.pendings.retry_times[number].expire_ms = pair
                self.pendings.retry_times[number].known = True
                details.policy_numbers[pair] = number
        details.free_retry_times = [i for i in range(len(pairs) - 1, 0, -1) if pairs[i] is None]
        return 0

    cpdef Consumer consumer(self, bytes name):
        """The consumer with this name, or None."""
        if self.only_member is not None:
            return self.only_member if self.only_member.name == name else None
        return None if self.details is None else self.details.find(name)

    cpdef Consumer make_consumer(self, bytes name, int64_t now_ms):
        """Add a consumer with a new name."""
        cdef Consumer made
        cdef Details details = self.details
        if self.only_member is None and (details is None or details.consumers is NO_MEMBERS):
            self.only_member = made = Consumer(name, 1, now_ms, -1)
            return made
        self.list_members()
        details = self.details
        if not details.free_consumers and len(details.consumers) > CONSUMERS_MAX:
            raise CommandError("ERR the group has too many consumers")
        index = details.free_consumers.pop() if details.free_consumers else len(details.consumers)
        made = Consumer(name, index, now_ms, -1)
        details.add(made)
        return made

    def delete_consumer(self, bytes name) -> int:
        """Remove a consumer and its pending entries; return their number."""
        cdef Consumer gone = self.consumer(name)
        cdef uint32_t place
        dropped = gone.pending
        if dropped:
            for place in range(self.pendings.chunk_count):
                self.own_chunk(place)  # steps that can fail come before the first change
            for place in range(self.pendings.chunk_count):
                self.sweep_chunk(place, gone.index, 0, NEVER, None)
            self.close_gaps()
        if gone is self.only_member:
            self.only_member = None
        else:
            self.details.remove(gone)
        return dropped

    # ------------------------------------------------------------ pending entries

    cdef inline Pending* record_at(self, PendingAt* at) noexcept:
        """The record at a place, or the next one when the place is a chunk's end."""
        while at.chunk < self.pendings.chunk_count and at.index >= self.pendings.chunks[at.chunk].used:
            at.chunk += 1
            at.index = 0
        if at.chunk >= self.pendings.chunk_count:
            return NULL
        return &self.pendings.chunks[at.chunk].items[at.index]

    cdef Pending* first_at_least(self, uint64_t ms, uint64_t seq, PendingAt* at) noexcept:
        """The first record with an ID of at least ms-seq; `at` becomes its place, or the place
        where it would be."""
        cdef Chunk* chunk
        cdef uint32_t part
        at.chunk = at.index = 0
        if self.pendings.chunk_count == 0:
            return NULL
        at.chunk = self.chunk_with(ms, seq)
        chunk = self.pendings.chunks[at.chunk]
        part = self.part_of(at.chunk, ms)
        self.fetch(chunk, part)
        at.index = search_near(<const char*>chunk.items, sizeof(Pending), chunk.used,
                               part * chunk.used // CHUNK_MAX, ms, seq)
        if at.index < chunk.used:
            return &chunk.items[at.index]
        if at.chunk + 1 < self.pendings.chunk_count:
            return &self.pendings.chunks[at.chunk + 1].items[0]
        return NULL

    cdef inline uint32_t chunk_with(self, uint64_t ms, uint64_t seq) noexcept:
        """The chunk to which an ID belongs: the last one whose floor is not above it, else the
        first."""
        cdef uint32_t last = self.pendings.chunk_count - 1
        cdef uint32_t found = share(ms, self.pendings.chunk_first_ids[0].ms, self.pendings.chunk_first_ids[last].ms, last + 1)
        found = search_near(<const char*>self.pendings.chunk_first_ids, sizeof(EntryId), last + 1, found, ms, seq)
        if found > last or id_less(ms, seq, self.pendings.chunk_first_ids[found].ms, self.pendings.chunk_first_ids[found].seq):
            return found - 1 if found else 0
        return found

    cdef inline uint32_t part_of(self, uint32_t place, uint64_t ms) noexcept:
        """The part, of CHUNK_MAX equal parts of a chunk's time, that contains this time. It is
        computed from chunk_first_ids and gives a record's likely position."""
        if place + 1 == self.pendings.chunk_count:
            return 0
        return share(ms, self.pendings.chunk_first_ids[place].ms, self.pendings.chunk_first_ids[place + 1].ms, CHUNK_MAX)

    cdef inline void fetch(self, const Chunk* chunk, uint32_t part) noexcept:
        """Prefetch the bytes of a chunk that a search in this part will read, because in a large
        group each of them is a cache miss. The fill of the chunk is not in the cache yet, so an
        average chunk is assumed."""
        cdef uint64_t index = part * self.pending_count // self.pendings.chunk_count // CHUNK_MAX
        cdef const char* at = <const char*>&chunk.items[index]
        cdef int i
        prefetch(chunk)
        for i in range(-1, 3):
            prefetch(at + i * LINE_BYTES)

    cdef Pending* find(self, uint64_t ms, uint64_t seq, PendingAt* at) noexcept:
        cdef Pending* record = self.first_at_least(ms, seq, at)
        if record == NULL or record.ms != ms or record.seq != seq:
            return NULL
        return self.record_at(at)

    cdef Pending* after(self, PendingAt* at) noexcept:
        """Advance `at` to the next record and return it."""
        self.record_at(at)
        at.index += 1
        return self.record_at(at)

    cdef Pending* advance(self, PendingAt* at, uint64_t ms, uint64_t seq) noexcept:
        """Like first_at_least, but from `at` on: for ascending IDs."""
        cdef Pending* record
        while at.chunk + 1 < self.pendings.chunk_count and not id_less(
                ms, seq, self.pendings.chunks[at.chunk + 1].items[0].ms,
                self.pendings.chunks[at.chunk + 1].items[0].seq):
            at.chunk += 1
            at.index = 0
        record = self.record_at(at)
        while record != NULL and id_less(record.ms, record.seq, ms, seq):
            record = self.after(at)
        return record

    cdef uint64_t count_between(self, uint64_t ms, uint64_t seq, uint64_t end_ms,
                                uint64_t end_seq) noexcept:
        """The number of records with start <= ID <= end. The time is linear in the number of chunks
        in between."""
        cdef PendingAt at
        cdef PendingAt past
        cdef uint64_t count = self.pending_count
        cdef Pending* record
        if count == 0 or id_less(end_ms, end_seq, ms, seq):
            return 0
        self.first_at_least(ms, seq, &at)
        record = self.first_at_least(end_ms, end_seq, &past)
        if record != NULL and record.ms == end_ms and record.seq == end_seq:
            self.record_at(&past)
            past.index += 1
        count -= at.index
        while at.chunk:
            at.chunk -= 1
            count -= self.pendings.chunks[at.chunk].used
        count += past.index
        while past.chunk < self.pendings.chunk_count:
            count -= self.pendings.chunks[past.chunk].used
            past.chunk += 1
        return count

    cdef uint64_t count_up_to(self, PendingAt at, uint64_t ms, uint64_t seq) noexcept:
        """The number of records from a place on with an ID of at most ms-seq."""
        cdef uint64_t count = 0
        cdef Chunk* chunk
        while at.chunk < self.pendings.chunk_count:
            chunk = self.pendings.chunks[at.chunk]
            if id_less(ms, seq, chunk.items[chunk.used - 1].ms, chunk.items[chunk.used - 1].seq):
                while not id_less(ms, seq, chunk.items[at.index].ms, chunk.items[at.index].seq):
                    at.index += 1
                    count += 1
                return count
            count += chunk.used - at.index
            at.chunk += 1
            at.index = 0
        return count

    cdef int put(self, Pending* record) except -1:
        """Add a record or replace the one with the same ID."""
        cdef PendingAt at
        cdef Pending* old
        old = self.find(record.ms, record.seq, &at)
        if old != NULL:
            self.erase(&at)
        self.first_at_least(record.ms, record.seq, &at)
        return self.insert(&at, record)

    cdef int deliver(self, uint64_t ms, uint64_t seq, uint64_t now_ms, uint32_t consumer,
                     uint32_t policy) except -1:
        """Record the first delivery of an entry."""
        cdef Pending record
        cdef PendingAt at
        cdef Chunk* last
        begin_record(&record, ms, seq, now_ms, consumer, policy)
        if self.pendings.chunk_count == 0:
            at.chunk = at.index = 0
            return self.insert(&at, &record)
        last = self.pendings.chunks[self.pendings.chunk_count - 1]
        if id_less(last.items[last.used - 1].ms, last.items[last.used - 1].seq, ms, seq):
            at.chunk = self.pendings.chunk_count - 1
            at.index = last.used
            return self.insert(&at, &record)
        return self.put(&record)

    cdef size_t deliver_some(self, const EntryId* ids, size_t count, uint64_t now_ms,
                             uint32_t consumer, uint32_t policy) except 0:
        """Record the first delivery of the first of these entries, whose IDs are ascending: of as
        many as fit into a chunk. Return their number. A failure changes nothing."""
        cdef Chunk* chunk
        cdef PendingAt at
        cdef size_t i
        chunk = self.pendings.chunks[self.pendings.chunk_count - 1] if self.pendings.chunk_count else NULL
        if chunk == NULL or not id_less(chunk.items[chunk.used - 1].ms,
                                        chunk.items[chunk.used - 1].seq, ids[0].ms, ids[0].seq):
            self.deliver(ids[0].ms, ids[0].seq, now_ms, consumer, policy)
            return 1
        at.chunk = self.pendings.chunk_count - 1
        at.index = chunk.used
        chunk = self.roomy(&at)
        count = min(count, <size_t>(chunk.capacity - chunk.used))
        for i in range(count):
            begin_record(&chunk.items[chunk.used + i], ids[i].ms, ids[i].seq, now_ms, consumer,
                         policy)
        if at.index == 0:
            self.lower_floor(at.chunk, chunk.items)
        chunk.used += count
        self.pending_count += count
        self.count_owner(consumer, count)
        self.count_policy(policy, count)
        self.move_bounds(chunk, &chunk.items[at.index])  # all have the same times
        return count

    cdef int insert(self, PendingAt* at, Pending* record) except -1:
        cdef Chunk* chunk
        if self.pendings.chunk_count == 0:
            self.new_chunk(0)
        chunk = self.roomy(at)
        if at.index == 0:
            self.lower_floor(at.chunk, record)
        memmove(&chunk.items[at.index + 1], &chunk.items[at.index],
                (chunk.used - at.index) * sizeof(Pending))
        chunk.items[at.index] = record[0]
        chunk.used += 1
        self.pending_count += 1
        self.count_owner(record.consumer, 1)
        self.count_policy(record.policy, 1)
        self.move_bounds(chunk, record)
        return 0

    cdef Chunk* roomy(self, PendingAt* at) except NULL:
        """The chunk for a new record at `at`, not shared and with space for the record."""
        cdef Chunk* chunk = self.own_chunk(at.chunk)
        if chunk.used == CHUNK_MAX:
            return self.split(at)
        if chunk.used == chunk.capacity:
            return self.resize(at.chunk, chunk.capacity * 2)
        return chunk

    cdef inline void lower_floor(self, uint32_t place, const Pending* first) noexcept:
        """Lower the floor of a chunk for a new first record."""
        if id_less(first.ms, first.seq, self.pendings.chunk_first_ids[place].ms, self.pendings.chunk_first_ids[place].seq):
            self.pendings.chunk_first_ids[place].ms = first.ms
            self.pendings.chunk_first_ids[place].seq = first.seq

    cdef Chunk* split(self, PendingAt* at) except NULL:
        """Split a full chunk. At the end of the list, the new chunk is empty."""
        cdef Chunk* chunk = self.pendings.chunks[at.chunk]
        cdef Chunk* added
        cdef uint32_t kept = CHUNK_MAX // 2
        if at.chunk + 1 == self.pendings.chunk_count and at.index == chunk.used:
            self.new_chunk(at.chunk + 1)
            at.chunk += 1
            at.index = 0
            return self.pendings.chunks[at.chunk]
        self.new_chunk(at.chunk + 1)
        added = self.pendings.chunks[at.chunk + 1]
        memcpy(added.items, &chunk.items[kept], (CHUNK_MAX - kept) * sizeof(Pending))
        added.used = CHUNK_MAX - kept
        self.lower_floor(at.chunk + 1, added.items)
        chunk.used = kept
        self.chunk_bounds(chunk)
        self.chunk_bounds(added)
        if at.index > kept:
            at.chunk += 1
            at.index -= kept
        return self.pendings.chunks[at.chunk]

    cdef int new_chunk(self, uint32_t place) except -1:
        """Insert an empty chunk at a place, and ensure space for it in every heap."""
        cdef Chunk* made
        self.own_pending()
        if self.pendings.chunk_count == self.pendings.chunk_capacity:
            self.grow_chunks(max(<uint32_t>1, self.pendings.chunk_capacity * 2))
        made = resized(NULL, CHUNK_FIRST if self.pendings.chunk_count == 0 else CHUNK_MAX)
        memmove(&self.pendings.chunks[place + 1], &self.pendings.chunks[place],
                (self.pendings.chunk_count - place) * sizeof(Chunk*))
        memmove(&self.pendings.chunk_first_ids[place + 1], &self.pendings.chunk_first_ids[place],
                (self.pendings.chunk_count - place) * sizeof(EntryId))
        self.pendings.chunks[place] = made
        self.pendings.chunk_first_ids[place].ms = self.pendings.chunk_first_ids[place].seq = NEVER
        self.pendings.chunk_count += 1
        return 0

    cdef int grow_chunks(self, uint32_t wanted) except -1:
        """Allocate space for `wanted` chunks, and for each of them in every heap."""
        cdef Pendings* pendings = self.pendings
        cdef Chunk** chunks = <Chunk**>malloc(
            wanted * ((1 + KINDS) * sizeof(Chunk*) + sizeof(EntryId)))
        cdef EntryId* chunk_first_ids = <EntryId*>(chunks + <size_t>wanted * (1 + KINDS))
        cdef int kind
        if chunks == NULL:
            raise MemoryError("no memory for pending entries")
        if pendings.chunk_count:
            memcpy(chunks, pendings.chunks, pendings.chunk_count * sizeof(Chunk*))
            memcpy(chunk_first_ids, pendings.chunk_first_ids, pendings.chunk_count * sizeof(EntryId))
        for kind in range(KINDS):
            if pendings.heap_counts[kind]:
                memcpy(chunks + <size_t>wanted * (1 + kind), heap_of(pendings, kind),
                       pendings.heap_counts[kind] * sizeof(Chunk*))
        free(pendings.chunks)
        pendings.chunks = chunks
        pendings.chunk_first_ids = chunk_first_ids
        pendings.chunk_capacity = wanted
        return 0

    cdef Chunk* own_chunk(self, uint32_t place) except NULL:
        """The chunk at a place, for a change: it is copied first if a snapshot holds it."""
        cdef Chunk* chunk = self.pendings.chunks[place]
        cdef Chunk* copy
        if chunk.holders == 1:
            return chunk
        copy = resized(NULL, chunk.capacity)
        memcpy(copy, chunk, sizeof(Chunk) + (chunk.used - 1) * sizeof(Pending))
        copy.holders = 1
        self.pendings.chunks[place] = copy
        self.note_moved(copy)
        release_chunk(chunk)
        return copy

    cdef Chunk* resize(self, uint32_t place, uint32_t capacity) except NULL:
        """Resize the chunk at a place, which is not shared, to `capacity` records."""
        cdef Chunk* moved = resized(self.pendings.chunks[place], capacity)
        self.pendings.chunks[place] = moved
        self.note_moved(moved)
        return moved

    cdef uint32_t place_of(self, Chunk* chunk) noexcept:
        cdef PendingAt at
        self.first_at_least(chunk.items[0].ms, chunk.items[0].seq, &at)
        return at.chunk

    cdef int erase(self, PendingAt* at) except -1:
        """Remove the record at `at`."""
        cdef Chunk* chunk = self.own_chunk(at.chunk)
        self.forget_count(&chunk.items[at.index])
        self.count_owner(chunk.items[at.index].consumer, -1)
        self.count_policy(chunk.items[at.index].policy, -1)
        self.pending_count -= 1
        if chunk.used == 1:
            return self.drop_chunk(at.chunk)
        chunk.used -= 1
        memmove(&chunk.items[at.index], &chunk.items[at.index + 1],
                (chunk.used - at.index) * sizeof(Pending))
        return self.merge_small(at.chunk)

    cdef int drop_chunk(self, uint32_t place) noexcept:
        cdef Chunk* chunk = self.pendings.chunks[place]
        self.leave_heaps(chunk)
        release_chunk(chunk)
        self.pendings.chunk_count -= 1
        memmove(&self.pendings.chunks[place], &self.pendings.chunks[place + 1],
                (self.pendings.chunk_count - place) * sizeof(Chunk*))
        memmove(&self.pendings.chunk_first_ids[place], &self.pendings.chunk_first_ids[place + 1],
                (self.pendings.chunk_count - place) * sizeof(EntryId))
        return 0

    cdef int merge_small(self, uint32_t place) except -1:
        """Join a chunk that is less than a third full with a neighbour that has space, so that few
        remaining records do not need a chunk each. Otherwise release its unused memory."""
        if self.pendings.chunks[place].used * 3 >= CHUNK_MAX:
            return 0
        try:
            if place and self.join_next(place - 1):
                return 0
            if place + 1 < self.pendings.chunk_count and self.join_next(place):
                return 0
            self.shrink(place)
        except MemoryError:
            pass  # the chunk keeps its size
        return 0

    cdef int shrink(self, uint32_t place) except -1:
        cdef Chunk* chunk = self.pendings.chunks[place]
        if chunk.used * 4 <= chunk.capacity and chunk.capacity > CHUNK_FIRST:
            self.resize(place, chunk.capacity // 2)
        return 0

    cdef bint join_next(self, uint32_t place) except -1:
        """Move the next chunk's records into the chunk at a place; False when the joined chunk
        would be so full that the next delivery might split it again."""
        cdef Chunk* next_one = self.pendings.chunks[place + 1]
        cdef Chunk* chunk = self.pendings.chunks[place]
        cdef uint32_t total = chunk.used + next_one.used
        cdef uint32_t wanted
        cdef int kind
        if total * 4 > CHUNK_MAX * 3 or chunk.holders > 1:
            return False
        if chunk.capacity < total:
            wanted = chunk.capacity
            while wanted < total:
                wanted *= 2
            chunk = self.resize(place, wanted)
        memcpy(&chunk.items[chunk.used], next_one.items, next_one.used * sizeof(Pending))
        chunk.used = total
        for kind in range(KINDS):
            if next_one.bounds[kind] < chunk.bounds[kind]:
                self.set_bound(chunk, kind, next_one.bounds[kind])
        self.drop_chunk(place + 1)
        return True

    cdef uint32_t sweep_chunk(self, uint32_t place, uint32_t consumer, uint64_t now_ms,
                              uint64_t limit, list gone) except? 0xffffffff:
        """Remove, in one pass, up to `limit` records of a consumer or (NOBODY) records expired by
        now_ms, whose IDs are added to `gone`. Return their number. The chunk may become empty and
        is then in no heap."""
        cdef Chunk* chunk = self.own_chunk(place)
        cdef Pending* record
        cdef uint32_t kept = 0
        cdef uint32_t removed = 0
        cdef uint32_t i
        cdef list found = []
        self.pendings.work_counter += chunk.used
        if consumer == NOBODY:
            # The only step that can fail comes before the first change.
            found = [(chunk.items[i].ms, chunk.items[i].seq) for i in range(chunk.used)
                     if self.expires_ms(&chunk.items[i]) <= now_ms][:limit]
            gone += found
            limit = len(found)
        for i in range(chunk.used):
            record = &chunk.items[i]
            if removed < limit and (self.expires_ms(record) <= now_ms if consumer == NOBODY
                                    else record.consumer == consumer):
                self.forget_count(record)
                self.count_owner(record.consumer, -1)
                self.count_policy(record.policy, -1)
                removed += 1
                continue
            if kept != i:
                chunk.items[kept] = record[0]
            kept += 1
        self.pending_count -= removed
        if kept == 0:
            self.leave_heaps(chunk)
        chunk.used = kept
        if removed and kept:
            self.chunk_bounds(chunk)
        return removed

    cdef int close_gaps(self) except -1:
        """Remove empty chunks and join small neighbours, in one pass."""
        cdef uint32_t i
        cdef uint32_t kept = 0
        cdef Chunk* chunk
        cdef Chunk* last
        cdef int kind
        for i in range(self.pendings.chunk_count):
            chunk = self.pendings.chunks[i]
            if chunk.used == 0:
                release_chunk(chunk)
                continue
            last = self.pendings.chunks[kept - 1] if kept else NULL
            if last != NULL and (last.used + chunk.used) * 4 <= CHUNK_MAX * 3 and (
                    last.used + chunk.used <= last.capacity and last.holders == 1):
                memcpy(&last.items[last.used], chunk.items, chunk.used * sizeof(Pending))
                last.used += chunk.used
                for kind in range(KINDS):
                    if chunk.bounds[kind] < last.bounds[kind]:
                        self.set_bound(last, kind, chunk.bounds[kind])
                self.leave_heaps(chunk)
                release_chunk(chunk)
                continue
            self.pendings.chunks[kept] = chunk
            self.pendings.chunk_first_ids[kept] = self.pendings.chunk_first_ids[i]
            kept += 1
        self.pendings.chunk_count = kept
        return 0

    cdef inline int count_owner(self, uint32_t consumer, int change) except -1:
        if consumer == UNOWNED:
            self.pendings.unowned += change
        else:
            if self.only_member is not None:
                self.only_member.pending += change
            else:
                (<Consumer>self.details.consumers[consumer]).pending += change
        return 0

    cdef inline void count_policy(self, uint32_t policy, int change) noexcept:
        if policy != NO_POLICY:
            self.pendings.retry_times[policy].uses += change

    cpdef bint acknowledge(self, uint64_t ms, uint64_t seq) except -1:
        """Remove a pending entry; False when it is not pending."""
        cdef PendingAt at
        if self.find(ms, seq, &at) == NULL:
            return False
        self.erase(&at)
        return True

    cdef int redeliver(self, Pending* record, PendingAt* at, uint64_t now_ms, uint32_t policy,
                       bint change_policy) except -1:
        """Record another delivery; the reader's retry pair, if any, replaces the record's. The
        chunk may move: `record` is invalid afterwards."""
        cdef Chunk* chunk = self.own_chunk(at.chunk)
        record = &chunk.items[at.index]
        record.last_delivery_ms = min(now_ms, TIME_MAX)
        if record.deliveries < DELIVERIES_MAX - 1:
            record.deliveries += 1
        else:
            self.set_deliveries(record, min(self.deliveries(record), COUNT_MAX - 1) + 1)
        if change_policy:
            self.count_policy(record.policy, -1)
            self.count_policy(policy, 1)
            record.policy = policy
        self.move_bounds(chunk, record)
        return 0

    cdef int transfer(self, PendingAt* at, uint32_t consumer, uint64_t delivery_ms,
                       int64_t deliveries) except -1:
        """Set owner, time of delivery and count of the record at `at`. Its retry and expiry are
        removed."""
        cdef Chunk* chunk = self.own_chunk(at.chunk)
        cdef Pending* record = &chunk.items[at.index]
        self.set_deliveries(record, deliveries)
        self.count_owner(record.consumer, -1)
        self.count_owner(consumer, 1)
        self.count_policy(record.policy, -1)
        record.consumer = consumer
        record.policy = NO_POLICY
        record.last_delivery_ms = min(delivery_ms, TIME_MAX)
        self.move_bounds(chunk, record)
        return 0

    cpdef int claim(self, uint64_t ms, uint64_t seq, Consumer consumer, uint64_t delivery_ms,
                    bytes count) except -1:
        """Give an entry, pending or not, to a consumer. Its last delivery becomes delivery_ms. Its
        number of deliveries becomes `count`: a number, b"+" for one more, b"=" for no change. An
        entry that was not pending counts as delivered once before."""
        cdef PendingAt at
        cdef Pending* record = self.find(ms, seq, &at)
        cdef int64_t deliveries
        if record == NULL:
            self.deliver(ms, seq, delivery_ms, UNOWNED, NO_POLICY)
            record = self.find(ms, seq, &at)
        deliveries = self.deliveries(record)
        if count == b"+":
            deliveries = min(deliveries, COUNT_MAX - 1) + 1
        elif count != b"=":
            deliveries = int(count)
        return self.transfer(&at, consumer.index, delivery_ms, deliveries)

    def has(self, uint64_t ms, uint64_t seq) -> bool:
        """Whether an entry is pending."""
        cdef PendingAt at
        return self.find(ms, seq, &at) != NULL

    def pending_ends(self) -> tuple | None:
        """The first and the last pending ID; None when there is none."""
        cdef const Chunk* first
        cdef const Chunk* last
        if self.pending_count == 0:
            return None
        first = self.pendings.chunks[0]
        last = self.pendings.chunks[self.pendings.chunk_count - 1]
        return ((first.items[0].ms, first.items[0].seq),
                (last.items[last.used - 1].ms, last.items[last.used - 1].seq))

    def ids_from(self, uint64_t ms, uint64_t seq, uint64_t most) -> list[tuple[int, int]]:
        """The IDs of the first pending entries from an ID on."""
        cdef PendingAt at
        cdef Pending* record = self.first_at_least(ms, seq, &at)
        cdef list found = []
        while record != NULL and <uint64_t>len(found) < most:
            found.append((record.ms, record.seq))
            record = self.after(&at)
        return found

    def redeliver_id(self, uint64_t ms, uint64_t seq, uint64_t now_ms, retry=None) -> None:
        """Record another delivery, if the entry is pending; a pair (retry_ms, expire_ms) replaces
        its own."""
        cdef PendingAt at
        cdef Pending* record = self.find(ms, seq, &at)
        cdef uint32_t policy = NO_POLICY if retry is None else self.policy(retry[0], retry[1])
        if record != NULL:
            self.redeliver(record, &at, now_ms, policy, retry is not None)

    cdef int note_again(self, uint64_t ms, uint64_t seq, uint64_t at_ms, uint64_t now_ms) except -1:
        """Note for DeliveryOrder that a command delivered a pending entry again at at_ms, mostly
        now."""
        if self.order is None:
            self.order = DeliveryOrder()
            # Earlier deliveries in this millisecond are unknown.
            self.order.latest_ms = now_ms
            self.order.numbered = True
        return self.order.note(ms, seq, at_ms)

    cpdef int release(self, uint64_t ms, uint64_t seq, bytes count, uint64_t now_ms) except -1:
        """Remove an entry's owner, or make the entry pending without an owner. Its last delivery
        becomes 0. Its number of deliveries becomes `count`: a number, b"-" for one less, b"=" for
        no change. Its retry does not change."""
        cdef PendingAt at
        cdef Chunk* chunk
        cdef Pending* record = self.find(ms, seq, &at)
        cdef int64_t deliveries = 0
        if record == NULL:
            self.deliver(ms, seq, now_ms, UNOWNED, NO_POLICY)
            record = self.find(ms, seq, &at)
        else:
            deliveries = self.deliveries(record)
        if count == b"-":
            deliveries = max(deliveries - 1, 0)
        elif count != b"=":
            deliveries = int(count)
        chunk = self.own_chunk(at.chunk)
        record = &chunk.items[at.index]
        self.set_deliveries(record, deliveries)
        self.count_owner(record.consumer, -1)
        self.count_owner(UNOWNED, 1)
        record.consumer = UNOWNED
        record.last_delivery_ms = 0
        self.move_bounds(chunk, record)
        return 0

    # ------------------------------------------------------------ counts of deliveries

    cdef int64_t deliveries(self, const Pending* record) except -1:
        """How often an entry was delivered: 0 to the largest signed 64-bit number."""
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
            self.details.large_counts.pop((record.ms, record.seq), None)
        return 0

    # ------------------------------------------------------------ due times

    cdef inline uint64_t moment_of(self, const Pending* record, int kind) noexcept:
        if kind == IDLE:
            return self.claimable_ms(record)
        return self.expires_ms(record) if kind == EXPIRE else self.due_ms(record, kind == RETRY)

    cdef inline uint64_t claimable_ms(self, const Pending* record) noexcept:
        """The last delivery; NEVER when a claim has found that the entry no longer exists."""
        return NEVER if record.gone else record.last_delivery_ms

    cdef int mark_gone(self, uint64_t ms, uint64_t seq) except -1:
        """Mark a record whose entry no longer exists in the stream: claims then ignore it. The next
        claim that opens the chunk updates the bounds."""
        cdef PendingAt at
        if self.find(ms, seq, &at) != NULL:
            self.own_chunk(at.chunk).items[at.index].gone = 1
            self.pendings.has_gone = True
        return 0

    cdef int forget_gone(self) except -1:
        """Remove these marks after a change that allows IDs to be used again."""
        cdef Chunk* chunk
        cdef uint32_t i, j
        if not self.pendings.has_gone:
            return 0
        for i in range(self.pendings.chunk_count):
            chunk = self.own_chunk(i)
            for j in range(chunk.used):
                chunk.items[j].gone = 0
            self.chunk_bounds(chunk)
        self.pendings.has_gone = False
        return 0

    cdef uint64_t due_ms(self, const Pending* record, bint with_zero) noexcept:
        """The time at which the record is due for redelivery; NEVER without a retry (or with retry
        0). Entries released by XNACK are due immediately."""
        cdef uint64_t retry
        if record.policy == NO_POLICY:
            return NEVER
        retry = self.pendings.retry_times[record.policy].retry_ms
        if retry == 0 and not with_zero:
            return NEVER
        if record.last_delivery_ms == 0 and record.consumer == UNOWNED:
            return 0
        return saturating_add(record.last_delivery_ms, retry)

    cdef uint64_t expires_ms(self, const Pending* record) noexcept:
        cdef uint64_t expire
        if record.policy == NO_POLICY:
            return NEVER
        expire = self.pendings.retry_times[record.policy].expire_ms
        return saturating_add(record.first_delivery_ms, expire) if expire else NEVER

    cdef void move_bounds(self, Chunk* chunk, const Pending* record) noexcept:
        """Lower a chunk's bounds to include one of its records."""
        cdef uint64_t moment
        moment = self.claimable_ms(record)
        if moment < chunk.bounds[IDLE]:
            self.set_bound(chunk, IDLE, moment)
        if record.policy == NO_POLICY:
            return
        moment = self.due_ms(record, True)
        if moment < chunk.bounds[RETRY]:
            self.set_bound(chunk, RETRY, moment)
        moment = self.due_ms(record, False)
        if moment < chunk.bounds[WAKE]:
            self.set_bound(chunk, WAKE, moment)
        moment = self.expires_ms(record)
        if moment < chunk.bounds[EXPIRE]:
            self.set_bound(chunk, EXPIRE, moment)

    cdef void chunk_bounds(self, Chunk* chunk) noexcept:
        """Compute a chunk's bounds exactly."""
        cdef uint32_t i
        cdef uint64_t retry = NEVER
        cdef uint64_t wake = NEVER
        cdef uint64_t expire = NEVER
        cdef uint64_t idle = NEVER
        self.pendings.work_counter += chunk.used
        for i in range(chunk.used):
            idle = min(idle, self.claimable_ms(&chunk.items[i]))
            if chunk.items[i].policy != NO_POLICY:
                retry = min(retry, self.due_ms(&chunk.items[i], True))
                wake = min(wake, self.due_ms(&chunk.items[i], False))
                expire = min(expire, self.expires_ms(&chunk.items[i]))
        self.set_bound(chunk, RETRY, retry)
        self.set_bound(chunk, WAKE, wake)
        self.set_bound(chunk, EXPIRE, expire)
        self.set_bound(chunk, IDLE, idle)

    cdef void set_bound(self, Chunk* chunk, int kind, uint64_t moment) noexcept:
        """Set a bound; a chunk with the bound NEVER is not in the heap of that kind."""
        if chunk.bounds[kind] == moment:
            return
        chunk.bounds[kind] = moment
        if moment == NEVER:
            self.leave_heap(kind, chunk)
            return
        if chunk.heap_at[kind] == ABSENT:
            chunk.heap_at[kind] = self.pendings.heap_counts[kind]
            self.pendings.heap_counts[kind] += 1
        self.sift(kind, chunk)

    cdef void sift(self, int kind, Chunk* chunk) noexcept:
        """Restore the heap order for a chunk whose bound changed."""
        cdef Chunk** heap = heap_of(self.pendings, kind)
        cdef uint32_t count = self.pendings.heap_counts[kind]
        cdef uint32_t at = chunk.heap_at[kind]
        cdef uint32_t other
        while at and is_before(chunk, heap[(at - 1) // 2], kind):
            self.pendings.work_counter += 1
            other = (at - 1) // 2
            heap[at] = heap[other]
            heap[at].heap_at[kind] = at
            at = other
        while True:
            self.pendings.work_counter += 1
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

    cdef void leave_heap(self, int kind, Chunk* chunk) noexcept:
        cdef uint32_t at = chunk.heap_at[kind]
        cdef Chunk* last
        if at == ABSENT:
            return
        chunk.heap_at[kind] = ABSENT
        self.pendings.heap_counts[kind] -= 1
        last = heap_of(self.pendings, kind)[self.pendings.heap_counts[kind]]
        if last != chunk:
            last.heap_at[kind] = at
            self.sift(kind, last)

    cdef void leave_heaps(self, Chunk* chunk) noexcept:
        cdef int kind
        for kind in range(KINDS):
            self.leave_heap(kind, chunk)

    cdef void note_moved(self, Chunk* chunk) noexcept:
        """Update the heaps after a chunk has moved to another address."""
        cdef int kind
        for kind in range(KINDS):
            if chunk.heap_at[kind] != ABSENT:
                heap_of(self.pendings, kind)[chunk.heap_at[kind]] = chunk

    cdef uint64_t settle(self, int kind, uint64_t until_ms) noexcept:
        """The earliest time of a kind, exact if it is at most until_ms; NEVER when there is
        none."""
        cdef Chunk* first
        cdef uint64_t moment
        while self.pendings.heap_counts[kind]:
            first = heap_of(self.pendings, kind)[0]
            moment = first.bounds[kind]
            if moment > until_ms:
                return moment
            self.chunk_bounds(first)
            if first.bounds[kind] == moment:
                return moment
        return NEVER

    cdef bint is_due(self, uint64_t now_ms, bint with_zero) noexcept:
        """Whether a record is due for redelivery."""
        return self.settle(RETRY if with_zero else WAKE, now_ms) <= now_ms

    cdef bint has_expired(self, uint64_t now_ms) noexcept:
        return self.settle(EXPIRE, now_ms) <= now_ms

    cdef uint64_t next_wake_ms(self) noexcept:
        """The next time at which a timed retry is due; NEVER when there is none."""
        return self.settle(WAKE, NEVER)

    cdef uint64_t next_expiry_ms(self) noexcept:
        """The next time at which a pending record expires; NEVER when there is none."""
        return self.settle(EXPIRE, NEVER)

    cdef bint is_idle(self, uint64_t now_ms, uint64_t min_idle_ms) noexcept:
        """Whether a record has not been delivered for at least min_idle_ms."""
        return now_ms >= min_idle_ms and self.settle(IDLE, now_ms - min_idle_ms) <= (
            now_ms - min_idle_ms)

    cdef uint64_t claim_bound(self) noexcept:
        """A lower bound of the time at which a waiting claim finds an entry; NEVER when no client
        waits for a claim or no entry is pending. Constant time."""
        cdef uint64_t idle_ms = self.claim_idle()
        return NEVER if idle_ms == NEVER else saturating_add(self.idle_bound(), idle_ms)

    cdef int add_claim_wait(self, uint64_t min_idle_ms, int change) except -1:
        """Add (or subtract) a blocked client that claims entries idle for min_idle_ms."""
        cdef Details details = self.own_details()
        if details.claim_waits is None:
            details.claim_waits = {}
        count = details.claim_waits.get(min_idle_ms, 0) + change
        if count:
            details.claim_waits[min_idle_ms] = count
        else:
            del details.claim_waits[min_idle_ms]
        details.claim_idle_ms = min(details.claim_waits, default=NEVER)
        return 0

    cdef uint64_t idle_bound(self) noexcept:
        """A lower bound of the last deliveries of all pending entries; NEVER when there are none.
        Constant time."""
        return first_of(self.pendings, IDLE).bounds[IDLE] if self.pendings.heap_counts[IDLE] else NEVER

    cdef uint64_t wake_bound(self) noexcept:
        """A lower bound of next_wake_ms, in constant time."""
        return first_of(self.pendings, WAKE).bounds[WAKE] if self.pendings.heap_counts[WAKE] else NEVER

    cdef uint64_t expiry_bound(self) noexcept:
        """A lower bound of next_expiry_ms, in constant time."""
        return first_of(self.pendings, EXPIRE).bounds[EXPIRE] if self.pendings.heap_counts[EXPIRE] else NEVER

    cdef list take_due(self, uint64_t now_ms, uint64_t limit, bint with_zero):
        """Up to `limit` IDs (ms, seq) due now, earliest due first, then by ID."""
        return self.take(RETRY if with_zero else WAKE, now_ms, limit)

    cdef list idle_ids(self, uint64_t now_ms, uint64_t min_idle_ms, uint64_t limit):
        """Up to `limit` IDs (ms, seq) that are idle for at least min_idle_ms, longest idle first,
        then in the order of their deliveries (`DeliveryOrder`)."""
        return [] if now_ms < min_idle_ms else self.take(IDLE, now_ms - min_idle_ms, limit)

    cdef list take(self, int kind, uint64_t until_ms, uint64_t limit):
        """Up to `limit` IDs (ms, seq) whose time is at most until_ms, the earliest first.

        A chunk is opened once, when its bound is before everything found so far. It is removed from
        the heap until the end, and then has exact bounds.
        """
        cdef DueHeap found = DueHeap.__new__(DueHeap)
        cdef list taken = []
        cdef list opened = []
        cdef Chunk* chunk
        cdef Due first
        cdef uint64_t moment, lowest
        cdef uint64_t order = 0
        cdef bint in_order = kind == IDLE and self.order is not None and len(self.order.numbers) > 0
        cdef uint32_t i
        try:
            while <uint64_t>len(taken) < limit:
                chunk = first_of(self.pendings, kind)
                if chunk != NULL and chunk.bounds[kind] <= until_ms and (found.count == 0 or (
                        not comes_after(chunk, kind, &found.items[0]))):
                    lowest = NEVER
                    self.pendings.work_counter += chunk.used
                    for i in range(chunk.used):
                        moment = self.moment_of(&chunk.items[i], kind)
                        lowest = min(lowest, moment)
                        if moment > until_ms:
                            continue
                        if in_order:
                            order = self.order.number(&chunk.items[i])
                        found.push(moment, order, &chunk.items[i])
                    opened.append((<size_t>chunk, lowest))
                    self.set_bound(chunk, kind, NEVER)
                    continue
                if found.count == 0:
                    break
                first = found.pop()
                taken.append((first.ms, first.seq))
        finally:
            for address, lowest in opened:
                self.set_bound(<Chunk*><size_t>address, kind, lowest)
        return taken

    def take_expired(self, uint64_t now_ms, uint64_t limit) -> list[tuple[int, int]]:
        """Remove up to `limit` expired records; return their IDs in no particular order."""
        cdef list gone = []
        cdef Chunk* first = first_of(self.pendings, EXPIRE)
        cdef uint32_t place
        while <uint64_t>len(gone) < limit and first != NULL and first.bounds[EXPIRE] <= now_ms:
            place = self.place_of(first)
            if self.sweep_chunk(place, NOBODY, now_ms, limit - <uint64_t>len(gone), gone) == 0:
                self.chunk_bounds(self.pendings.chunks[place])
            elif self.pendings.chunks[place].used == 0:
                self.drop_chunk(place)
            else:
                self.merge_small(place)
            first = first_of(self.pendings, EXPIRE)
        self.next_expiry_ms()
        return gone

    # ------------------------------------------------------------ for Python

    def pending(self, uint64_t start_ms=0, uint64_t start_seq=0, end=None, limit=None,
                consumer=None) -> list[tuple]:
        """Records in ID order as (ms, seq, consumer name, last_delivery_ms, deliveries,
        first_delivery_ms, retry_ms or None, expire_ms or None); b"" means no owner."""
        cdef PendingAt at
        cdef Pending* record = self.first_at_least(start_ms, start_seq, &at)
        cdef uint64_t end_ms = NEVER
        cdef uint64_t end_seq = NEVER
        cdef list found = []
        if end is not None:
            end_ms, end_seq = end
        while record != NULL and not id_less(end_ms, end_seq, record.ms, record.seq):
            if limit is not None and len(found) >= limit:
                break
            self.pendings.work_counter += 1
            row = self.row(record)
            if consumer is None or consumer == row[2]:
                found.append(row)
            record = self.after(&at)
        return found

    cdef tuple row(self, const Pending* record):
        owner = self.members()[record.consumer]
        pair = (None, None) if record.policy == NO_POLICY else (
            self.pendings.retry_times[record.policy].retry_ms, self.pendings.retry_times[record.policy].expire_ms)
        return (record.ms, record.seq, b"" if owner is None else (<Consumer>owner).name,
                record.last_delivery_ms, self.deliveries(record), record.first_delivery_ms, *pair)

    def idle(self, uint64_t now_ms, uint64_t min_idle_ms,
             uint64_t limit) -> list[tuple[int, int]]:
        """IDs that are idle for at least min_idle_ms, longest idle first, then by ID."""
        return self.idle_ids(now_ms, min_idle_ms, limit)

    def due(self, uint64_t now_ms, uint64_t limit, bint with_zero=True) -> list[tuple[int, int]]:
        """IDs due now, earliest due first, then by ID."""
        return self.take_due(now_ms, limit, with_zero)

    def is_over(self, uint64_t now_ms) -> bool:
        """Whether its time to live has ended."""
        if not self.ttl_ms or self.blocked_clients:
            return False
        return now_ms >= saturating_add(self.last_used_ms, self.ttl_ms)

    @property
    def memory_bytes(self) -> int:
        return self.size_bytes()

    cdef uint64_t size_bytes(self) noexcept:
        """An estimate of the memory used, from a sample of the chunks if there are many."""
        cdef uint32_t looked_at = min(self.pendings.chunk_count, <uint32_t>CHUNKS_LOOKED_AT)
        cdef uint64_t chunks = 0
        cdef uint64_t total = GROUP_BYTES
        cdef uint32_t i
        if self.only_member is not None:
            total += CONSUMER_BYTES
        if self.details is not None:
            total += DETAILS_BYTES + CONSUMER_BYTES * <uint64_t>self.details.count()
        if self.pendings == &NOTHING_PENDING:
            return total
        for i in range(looked_at):
            chunks += sizeof(Chunk) + self.pendings.chunks[i].capacity * sizeof(Pending)
        if looked_at:
            total += chunks * self.pendings.chunk_count // looked_at
        return total + sizeof(Pendings) + 56 * self.pendings.chunk_capacity + (
            self.pendings.retry_times_capacity * sizeof(RetryTimes))

    cdef Group duplicate(self, uint64_t now_ms):
        """A group with the same content for another stream; its TTL runs from now_ms."""
        cdef Group made = Group(self.name, self.offset_ms, self.offset_seq, now_ms)
        cdef Consumer one
        made.gap_floor_ms = self.gap_floor_ms
        made.gap_floor_seq = self.gap_floor_seq
        made.entries_read = self.entries_read
        made.ttl_ms = self.ttl_ms
        for one in self.members():
            if one is not None:
                # Keep the numbers, because records refer to consumers by number.
                made.copy_consumer(one)
        made.free_numbers()
        if self.pendings != &NOTHING_PENDING:
            made.copy_pending(self)
        return made

    cdef int copy_consumer(self, Consumer other) except -1:
        cdef Consumer made = Consumer(other.name, other.index, other.seen_ms, other.active_ms)
        made.pending = other.pending
        while len(self.members()) < <Py_ssize_t>other.index:
            self.skip_number()
        return self.add_member(made)

    cdef int free_numbers(self) except -1:
        """Collect the unused numbers below the largest one."""
        cdef Py_ssize_t i
        cdef list consumers
        if self.details is None:
            return 0
        consumers = self.details.consumers
        unused = [i for i in range(len(consumers) - 1, 0, -1) if consumers[i] is None]
        if unused:
            self.details.free_consumers = unused
        return 0

    cdef int copy_pending(self, Group other) except -1:
        """Copy the pending entries of another group to this group, which has none."""
        self.own_pending()
        self.copy_policies(other)
        self.copy_chunks(other)
        if other.large_counts() is not None:
            self.own_details().large_counts = dict(other.large_counts())
        self.pending_count = other.pending_count
        self.pendings.unowned = other.pendings.unowned
        self.pendings.has_gone = other.pendings.has_gone
        return 0

    cdef int copy_policies(self, Group other) except -1:
        cdef size_t size = other.pendings.retry_times_capacity * sizeof(RetryTimes)
        if not size:
            return 0
        self.pendings.retry_times = <RetryTimes*>malloc(size)
        if self.pendings.retry_times == NULL:
            raise MemoryError("no memory for retry pairs")
        memcpy(self.pendings.retry_times, other.pendings.retry_times, size)
        self.pendings.retry_times_count = other.pendings.retry_times_count
        self.pendings.retry_times_capacity = other.pendings.retry_times_capacity
        self.own_details().policy_numbers = dict(other.details.policy_numbers)
        if other.details.free_retry_times is not None:
            self.details.free_retry_times = list(other.details.free_retry_times)
        return 0

    cdef int copy_chunks(self, Group other) except -1:
        """Copies of another group's chunks, with the same places in the heaps."""
        cdef Chunk* chunk
        cdef Chunk* copy
        cdef uint32_t i
        cdef int kind
        if other.pendings.chunk_count == 0:
            return 0
        self.grow_chunks(other.pendings.chunk_count)
        for i in range(other.pendings.chunk_count):
            chunk = other.pendings.chunks[i]
            copy = resized(NULL, chunk.capacity)
            memcpy(copy, chunk, sizeof(Chunk) + (chunk.used - 1) * sizeof(Pending))
            copy.holders = 1
            self.pendings.chunks[i] = copy
            self.pendings.chunk_first_ids[i] = other.pendings.chunk_first_ids[i]
            self.pendings.chunk_count += 1
            for kind in range(KINDS):
                if copy.heap_at[kind] != ABSENT:
                    heap_of(self.pendings, kind)[copy.heap_at[kind]] = copy
        for kind in range(KINDS):
            self.pendings.heap_counts[kind] = other.pendings.heap_counts[kind]
        return 0

    def dump(self) -> dict:
        """The group as msgpack-able values (docs/formats.md, group)."""
        return self.header(bytes(self.share_pending()))

    def share(self) -> dict:
        """Like dump, but `pending` is a SharedPending, which is converted to bytes later."""
        return self.header(self.share_pending())

    cdef SharedPending share_pending(self):
        cdef SharedPending shared = self.share_chunks(0, self.pendings.chunk_count)
        shared.records = self.pending_count
        return shared

    cdef SharedPending share_chunks(self, uint32_t place, uint32_t count):
        """Like share_pending, for `count` chunks from a place on."""
        cdef SharedPending shared = SharedPending.__new__(SharedPending)
        cdef uint32_t i
        if count == 0:
            return shared
        shared.chunks = <Chunk**>malloc(count * sizeof(Chunk*))
        if shared.chunks == NULL:
            raise MemoryError("no memory to share pending entries")
        memcpy(shared.chunks, &self.pendings.chunks[place], count * sizeof(Chunk*))
        for i in range(count):
            shared.chunks[i].holders += 1
        shared.count = count
        return shared

    cdef dict header(self, pending):
        return {
            "name": self.name,
            "offset": [self.offset_ms, self.offset_seq],
            "gap_floor": [self.gap_floor_ms, self.gap_floor_seq],
            "entries_read": self.entries_read,
            "ttl_ms": self.ttl_ms,
            "consumers": [
                None if c is None else [c.name, c.seen_ms, c.active_ms] for c in self.members()
            ],
            "policies": self.policy_pairs(),
            "large_counts": [[ms, seq, count] for (ms, seq), count in (
                self.large_counts() or {}).items()],
            "pending": pending,
        }

    @staticmethod
    def load(meta, uint64_t now_ms) -> Group:
        """Make a group from the result of `dump`; its TTL starts again at now_ms. ValueError when
        the pending entries are not ascending or refer to a missing consumer or retry pair, or when
        a consumer or retry pair occurs twice."""
        cdef Group group = Group(meta["name"], meta["offset"][0], meta["offset"][1], now_ms)
        cdef bytes packed = meta["pending"]
        group.gap_floor_ms, group.gap_floor_seq = meta["gap_floor"]
        group.entries_read = meta["entries_read"]
        group.ttl_ms = meta["ttl_ms"]
        if len(meta["consumers"]) > CONSUMERS_MAX + 1:
            raise ValueError(f"group {group.name!r} has too many consumers")
        for index, row in enumerate(meta["consumers"]):
            if index == 0:
                continue
            if row is None:
                group.skip_number()
                continue
            if group.consumer(row[0]) is not None:
                raise ValueError(f"group {group.name!r} has consumer {row[0]!r} twice")
            group.add_member(Consumer(row[0], index, row[1], row[2]))
        group.free_numbers()
        group.set_policies(checked_policies(meta["policies"], group.name))
        group.load_pending(packed, len(packed))
        group.load_large_counts(meta.get("large_counts", ()))
        return group

    cdef int load_pending(self, const char* packed, Py_ssize_t size) except -1:
        """Add the records of a dump to a new group with its consumers and retry pairs."""
        cdef list members = self.members()
        cdef Py_ssize_t i
        cdef Pending record, before
        if size % sizeof(Pending):
            raise ValueError(f"pending entries of group {self.name!r} end in the middle of one")
        before.ms = before.seq = 0
        for i in range(0, size, sizeof(Pending)):
            memcpy(&record, packed + i, sizeof(Pending))
            record.gone = 0
            if record.consumer >= <size_t>len(members) or (
                    record.consumer and members[record.consumer] is None):
                raise ValueError(f"a pending entry of group {self.name!r} has an unknown consumer")
            if record.policy != NO_POLICY and (
                    record.policy >= self.pendings.retry_times_count
                    or not self.pendings.retry_times[record.policy].known):
                raise ValueError(f"a pending entry of group {self.name!r} has an unknown policy")
            if i and not id_less(before.ms, before.seq, record.ms, record.seq):
                raise ValueError(f"pending entries of group {self.name!r} do not rise")
            before = record
            self.put(&record)
        return 0

    cdef int load_large_counts(self, rows) except -1:
        """Restore the delivery counts that are stored outside the records."""
        cdef PendingAt at
        cdef Pending* record
        cdef int64_t count
        for ms, seq, number in rows:
            record = self.find(ms, seq, &at)
            count = number
            if record == NULL or record.deliveries != DELIVERIES_MAX or count < DELIVERIES_MAX:
                raise ValueError(
                    f"group {self.name!r} has a count of deliveries that belongs to nothing")
            self.set_deliveries(record, count)
        return 0

    def check(self) -> None:
        """Raise AssertionError when order, counts, bounds or heaps are wrong."""
        cdef uint32_t i, j, up
        cdef int kind
        cdef Chunk* chunk
        cdef Pending* record
        total = 0
        unowned = 0
        large = 0
        before = None
        members = self.consumers
        assert self.consumer_count() == len(members)
        assert all(self.consumer(name) is c for name, c in members.items())
        owned = {c.index: 0 for c in members.values()}
        uses = {}
        in_heaps = [0] * KINDS
        for i in range(self.pendings.chunk_count):
            chunk = self.pendings.chunks[i]
            assert 0 < chunk.used <= chunk.capacity <= CHUNK_MAX
            floor = (self.pendings.chunk_first_ids[i].ms, self.pendings.chunk_first_ids[i].seq)
            assert floor <= (chunk.items[0].ms, chunk.items[0].seq)
            assert i == 0 or before < floor
            for j in range(chunk.used):
                record = &chunk.items[j]
                assert before is None or before < (record.ms, record.seq)
                before = (record.ms, record.seq)
                assert chunk.bounds[RETRY] <= self.due_ms(record, True)
                assert chunk.bounds[WAKE] <= self.due_ms(record, False)
                assert chunk.bounds[EXPIRE] <= self.expires_ms(record)
                assert chunk.bounds[IDLE] <= self.claimable_ms(record)
                if record.deliveries == DELIVERIES_MAX:
                    large += 1
                uses[record.policy] = uses.get(record.policy, 0) + 1
                if record.consumer == UNOWNED:
                    unowned += 1
                else:
                    owned[record.consumer] += 1
            for kind in range(KINDS):
                assert (chunk.heap_at[kind] == ABSENT) == (chunk.bounds[kind] == NEVER)
                if chunk.heap_at[kind] != ABSENT:
                    in_heaps[kind] += 1
                    up = (chunk.heap_at[kind] - 1) // 2 if chunk.heap_at[kind] else 0
                    assert heap_of(self.pendings, kind)[chunk.heap_at[kind]] == chunk
                    assert not is_before(chunk, heap_of(self.pendings, kind)[up], kind)
            total += chunk.used
        # An old snapshot may have records with many deliveries but without their exact count.
        assert len(self.large_counts() or ()) <= large
        assert total == self.pending_count and unowned == self.pendings.unowned
        for c in members.values():
            assert c.pending == owned[c.index]
        for kind in range(KINDS):
            assert in_heaps[kind] == self.pendings.heap_counts[kind]
        free_retry_times = set(() if self.details is None else self.details.free_retry_times or ())
        for i in range(1, self.pendings.retry_times_count):
            assert self.pendings.retry_times[i].uses == uses.get(i, 0)
            assert self.pendings.retry_times[i].known != (i in free_retry_times)


@cython.no_gc
cdef class SharedPending:
    """A point-in-time view of a group's pending entries, for a snapshot or a long reply. bytes()
    returns them in the documented form, on any thread, and lets other threads run meanwhile.
    """

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.count):
            self.release(i)
        free(self.chunks)

    cdef int take_over(self, Pendings* gone) except -1:
        """Take over the chunks of a deleted group."""
        self.chunks = <Chunk**>malloc(gone.chunk_count * sizeof(Chunk*))
        if self.chunks == NULL:
            raise MemoryError("no memory to free pending entries later")
        memcpy(self.chunks, gone.chunks, gone.chunk_count * sizeof(Chunk*))
        self.count = gone.chunk_count
        gone.chunk_count = 0
        return 0

    def free_step(self, uint64_t most) -> bool:
        """Release about `most` chunks; False when none is left."""
        while most and self.count:
            self.count -= 1
            self.release(self.count)
            most -= 1
        return self.count > 0

    cdef void release(self, uint32_t place) noexcept:
        """Release a chunk; its place becomes NULL."""
        if self.chunks[place] != NULL:
            release_chunk(self.chunks[place])
            self.chunks[place] = NULL

    def __bytes__(self) -> bytes:
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, self.records * sizeof(Pending))
        cdef char* at = PyBytes_AS_STRING(packed)
        cdef uint32_t i, k
        cdef size_t size_bytes
        with nogil:
            for i in range(self.count):
                size_bytes = self.chunks[i].used * sizeof(Pending)
                memcpy(at, self.chunks[i].items, size_bytes)
                for k in range(self.chunks[i].used):
                    (<Pending*>at)[k].gone = 0
                at += size_bytes
        return packed
