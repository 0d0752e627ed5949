# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A consumer group: its offset, its time to live, its consumers and its pending entries.

Pending entries must fit by the million, so they are plain records in id order, in chunks of up to
128. There is no second index by due time: every chunk keeps lower bounds of the moments at which
one of its records is due for a retry or expires, and the group keeps the lowest of those. A record
becomes due rarely compared with how often one is delivered and acknowledged, and the search then
reads one number a chunk. A bound may be too low (an acknowledgement does not raise it); whoever
finds nothing behind it computes it again.

What a redelivery needs (retry and expire times) is the same for most records of a group, so records
name a policy, a pair kept once. Consumer 0 is nobody: deliveries of TREAD are unowned.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset
cimport cython

from millstream.ids cimport EntryId, id_less

cdef enum:
    CHUNK_MAX = 128
    CHUNK_FIRST = 4
    RETRY = 0
    WAKE = 1
    EXPIRE = 2

cdef uint64_t NEVER = 0xffffffffffffffffULL
PENDING_SIZE = sizeof(Pending)


cdef inline uint64_t later(uint64_t moment_ms, uint64_t span_ms) noexcept nogil:
    """moment + span, NEVER instead of wrapping round."""
    return NEVER if moment_ms > NEVER - span_ms else moment_ms + span_ms


cdef Chunk* resized(Chunk* chunk, uint32_t capacity) except NULL:
    cdef Chunk* moved = <Chunk*>realloc(chunk, sizeof(Chunk) + (capacity - 1) * sizeof(Pending))
    if moved == NULL:
        raise MemoryError("no memory for pending entries")
    if chunk == NULL:
        moved.used = 0
        moved.retry_min = moved.wake_min = moved.expire_min = NEVER
    moved.capacity = capacity
    return moved


cdef list checked_policies(rows, bytes group_name):
    """The (retry_ms, expire_ms) pairs of a dump. What is read from them later is not checked."""
    cdef list pairs = [None if row is None else tuple(row) for row in rows]
    known = [pair for pair in pairs if pair is not None]
    numbers = [n for pair in known for n in pair]
    if not pairs or pairs[0] is not None or len(set(known)) < len(known) or any(
            len(pair) != 2 for pair in known) or any(
            not isinstance(n, int) or not 0 <= n <= NEVER for n in numbers):
        raise ValueError(f"the retry policies of group {group_name!r} are malformed")
    return pairs


@cython.no_gc
cdef class Consumer:
    """A named member of a group (XREADGROUP). Times are unix milliseconds, -1 for never."""

    def __init__(self, bytes name, uint32_t index, int64_t seen_ms, int64_t active_ms):
        self.name = name
        self.index = index
        self.seen_ms = seen_ms
        self.active_ms = active_ms


@cython.no_gc
cdef class Group:
    """State of one group. `entries_read` is Redis' counter, -1 when it cannot be known.

    `ttl_ms` 0 means the group lives for ever; otherwise it ends ttl_ms after `last_used_ms` unless
    `blocked_clients` wait on it; `retry_waiters` of those take redeliveries. `scheduled_ms` is the
    earliest moment the ticker has noted for it.
    """

    def __init__(self, bytes name, uint64_t offset_ms=0, uint64_t offset_seq=0,
                 uint64_t now_ms=0):
        self.name = name
        self.offset_ms = offset_ms
        self.offset_seq = offset_seq
        self.entries_read = -1
        self.last_used_ms = now_ms
        self.scheduled_ms = NEVER
        self.consumers = {}
        self.consumer_list = [None]
        self.policies = [None]
        self.policy_numbers = {}
        self.retry_min = self.wake_min = self.expire_min = NEVER

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.chunk_count):
            free(self.chunks[i])
        free(self.chunks)

    # ------------------------------------------------------------ policies and consumers

    cpdef uint32_t policy(self, uint64_t retry_ms, uint64_t expire_ms) except? 0:
        """The number of a (retry, expire) pair; 0 stands for no retry at all."""
        pair = (retry_ms, expire_ms)
        known = self.policy_numbers.get(pair)
        if known is not None:
            return known
        if len(self.policies) > 65536:
            self.forget_unused_policies()
        number = len(self.policies)
        for i in range(1, len(self.policies)):
            if self.policies[i] is None:
                number = i
                break
        if number == len(self.policies):
            self.policies.append(pair)
        else:
            self.policies[number] = pair
        self.policy_numbers[pair] = number
        return number

    cdef forget_unused_policies(self):
        cdef uint32_t i, j
        used = set()
        for i in range(self.chunk_count):
            for j in range(self.chunks[i].used):
                used.add(self.chunks[i].items[j].policy & ~<uint32_t>TAKEN)
        for number, pair in enumerate(self.policies):
            if number and pair is not None and number not in used:
                del self.policy_numbers[pair]
                self.policies[number] = None

    cdef uint64_t retry_ms(self, uint32_t policy) noexcept:
        return <uint64_t>(<tuple>self.policies[policy])[0]

    cdef uint64_t expire_ms(self, uint32_t policy) noexcept:
        return <uint64_t>(<tuple>self.policies[policy])[1]

    cpdef Consumer consumer(self, bytes name):
        """The consumer of this name or None."""
        return self.consumers.get(name)

    cpdef Consumer make_consumer(self, bytes name, int64_t now_ms):
        """Add a consumer (the name is new)."""
        cdef Consumer made
        index = len(self.consumer_list)
        for i in range(1, len(self.consumer_list)):
            if self.consumer_list[i] is None:
                index = i
                break
        made = Consumer(name, index, now_ms, -1)
        if index == len(self.consumer_list):
            self.consumer_list.append(made)
        else:
            self.consumer_list[index] = made
        self.consumers[name] = made
        return made

    def consumer_at(self, uint32_t index) -> Consumer | None:
        return self.consumer_list[index]

    def delete_consumer(self, bytes name) -> int:
        """Remove a consumer and its pending entries; returns how many those were."""
        cdef Consumer gone = self.consumers.pop(name)
        cdef PendingAt at
        cdef Pending* record = self.first_at_least(0, 0, &at)
        dropped = gone.pending
        while record != NULL:
            if record.consumer == gone.index:
                self.erase(&at)
                record = self.record_at(&at)
            else:
                record = self.after(&at)
        self.consumer_list[gone.index] = None
        return dropped

    # ------------------------------------------------------------ pending entries

    cdef inline Pending* record_at(self, PendingAt* at) noexcept:
        """The record at a place, or the next one when the place is a chunk's end."""
        while at.chunk < self.chunk_count and at.index >= self.chunks[at.chunk].used:
            at.chunk += 1
            at.index = 0
        if at.chunk >= self.chunk_count:
            return NULL
        return &self.chunks[at.chunk].items[at.index]

    cdef Pending* first_at_least(self, uint64_t ms, uint64_t seq, PendingAt* at) noexcept:
        """The first record with an id of at least ms-seq; `at` becomes where it is or would be."""
        cdef uint32_t low = 0
        cdef uint32_t high = self.chunk_count
        cdef uint32_t middle
        cdef Pending* record
        cdef Chunk* chunk
        while low < high:
            middle = (low + high) // 2
            record = &self.chunks[middle].items[0]
            if id_less(ms, seq, record.ms, record.seq):
                high = middle
            else:
                low = middle + 1
        at.chunk = low - 1 if low else 0
        at.index = 0
        if self.chunk_count == 0:
            return NULL
        chunk = self.chunks[at.chunk]
        low = 0
        high = chunk.used
        while low < high:
            middle = (low + high) // 2
            record = &chunk.items[middle]
            if id_less(record.ms, record.seq, ms, seq):
                low = middle + 1
            else:
                high = middle
        at.index = low
        if low < chunk.used:
            return &chunk.items[low]
        if at.chunk + 1 < self.chunk_count:
            return &self.chunks[at.chunk + 1].items[0]
        return NULL

    cdef Pending* find(self, uint64_t ms, uint64_t seq, PendingAt* at) noexcept:
        cdef Pending* record = self.first_at_least(ms, seq, at)
        if record == NULL or record.ms != ms or record.seq != seq:
            return NULL
        return self.record_at(at)

    cdef Pending* after(self, PendingAt* at) noexcept:
        """The record behind the one at `at`, which moves on."""
        self.record_at(at)
        at.index += 1
        return self.record_at(at)

    cdef int put(self, Pending* record) except -1:
        """Add a record or replace the one with its id."""
        cdef PendingAt at
        cdef Pending* old
        old = self.find(record.ms, record.seq, &at)
        if old != NULL:
            self.erase(&at)
        self.first_at_least(record.ms, record.seq, &at)
        return self.insert(&at, record)

    cdef int deliver(self, uint64_t ms, uint64_t seq, uint64_t now_ms, uint32_t consumer,
                     uint32_t policy) except -1:
        """Note a first delivery of an entry."""
        cdef Pending record
        cdef PendingAt at
        cdef Chunk* last
        record.ms = ms
        record.seq = seq
        record.first_delivery_ms = now_ms
        record.last_delivery_ms = now_ms
        record.deliveries = 1
        record.consumer = consumer
        record.policy = policy
        record.unused = 0
        if self.chunk_count == 0:
            at.chunk = at.index = 0
            return self.insert(&at, &record)
        last = self.chunks[self.chunk_count - 1]
        if id_less(last.items[last.used - 1].ms, last.items[last.used - 1].seq, ms, seq):
            at.chunk = self.chunk_count - 1
            at.index = last.used
            return self.insert(&at, &record)
        return self.put(&record)

    cdef int insert(self, PendingAt* at, Pending* record) except -1:
        cdef Chunk* chunk
        if self.chunk_count == 0:
            self.new_chunk(0)
        chunk = self.chunks[at.chunk]
        if chunk.used == CHUNK_MAX:
            chunk = self.split(at)
        elif chunk.used == chunk.capacity:
            chunk = resized(chunk, min(<uint32_t>CHUNK_MAX, chunk.capacity * 2))
            self.chunks[at.chunk] = chunk
        memmove(&chunk.items[at.index + 1], &chunk.items[at.index],
                (chunk.used - at.index) * sizeof(Pending))
        chunk.items[at.index] = record[0]
        chunk.used += 1
        self.pending_count += 1
        self.count_owner(record.consumer, 1)
        return self.move_bounds(at)

    cdef Chunk* split(self, PendingAt* at) except NULL:
        """Make room in a full chunk: a new one behind it, empty when the list grows at its end."""
        cdef Chunk* chunk = self.chunks[at.chunk]
        cdef Chunk* added
        cdef uint32_t kept = CHUNK_MAX // 2
        if at.chunk + 1 == self.chunk_count and at.index == chunk.used:
            self.new_chunk(at.chunk + 1)
            at.chunk += 1
            at.index = 0
            return self.chunks[at.chunk]
        self.new_chunk(at.chunk + 1)
        added = resized(self.chunks[at.chunk + 1], CHUNK_MAX)
        self.chunks[at.chunk + 1] = added
        memcpy(added.items, &chunk.items[kept], (CHUNK_MAX - kept) * sizeof(Pending))
        added.used = CHUNK_MAX - kept
        chunk.used = kept
        self.chunk_bounds(chunk)
        self.chunk_bounds(added)
        if at.index > kept:
            at.chunk += 1
            at.index -= kept
        return self.chunks[at.chunk]

    cdef int new_chunk(self, uint32_t place) except -1:
        cdef Chunk** moved
        cdef Chunk* made
        cdef uint32_t wanted
        if self.chunk_count == self.chunk_capacity:
            wanted = self.chunk_capacity * 2 if self.chunk_capacity else 2
            moved = <Chunk**>realloc(self.chunks, wanted * sizeof(Chunk*))
            if moved == NULL:
                raise MemoryError("no memory for pending entries")
            self.chunks = moved
            self.chunk_capacity = wanted
        made = resized(NULL, CHUNK_FIRST if self.chunk_count == 0 else CHUNK_MAX)
        memmove(&self.chunks[place + 1], &self.chunks[place],
                (self.chunk_count - place) * sizeof(Chunk*))
        self.chunks[place] = made
        self.chunk_count += 1
        return 0

    cdef int erase(self, PendingAt* at) except -1:
        """Remove the record at `at`, which then names the place of the next."""
        cdef Chunk* chunk = self.chunks[at.chunk]
        self.count_owner(chunk.items[at.index].consumer, -1)
        self.pending_count -= 1
        chunk.used -= 1
        memmove(&chunk.items[at.index], &chunk.items[at.index + 1],
                (chunk.used - at.index) * sizeof(Pending))
        if chunk.used == 0:
            free(chunk)
            self.chunk_count -= 1
            memmove(&self.chunks[at.chunk], &self.chunks[at.chunk + 1],
                    (self.chunk_count - at.chunk) * sizeof(Chunk*))
        return 0

    cdef inline int count_owner(self, uint32_t consumer, int change) except -1:
        if consumer == UNOWNED:
            self.unowned_count += change
        else:
            (<Consumer>self.consumer_list[consumer]).pending += change
        return 0

    cdef bint acknowledge(self, uint64_t ms, uint64_t seq) except -1:
        """Remove an entry from pending; False when it was not there."""
        cdef PendingAt at
        if self.find(ms, seq, &at) == NULL:
            return False
        self.erase(&at)
        return True

    cdef int redeliver(self, Pending* record, PendingAt* at, uint64_t now_ms, uint32_t policy,
                       bint change_policy) except -1:
        """Note another delivery; the retry pair is replaced when the reader brought one."""
        record.last_delivery_ms = now_ms
        record.deliveries += 1
        if change_policy:
            record.policy = (record.policy & TAKEN) | policy
        return self.move_bounds(at)

    cdef int give(self, Pending* record, uint32_t consumer) except -1:
        """Change the owner; a named owner ends retry and expiry."""
        self.count_owner(record.consumer, -1)
        self.count_owner(consumer, 1)
        record.consumer = consumer
        if consumer != UNOWNED:
            record.policy = NO_POLICY
        return 0

    # ------------------------------------------------------------ due times

    cdef uint64_t due_ms(self, const Pending* record, bint with_zero) noexcept:
        """When the record is to be delivered again; NEVER without a retry (or with retry 0)."""
        cdef uint64_t retry
        if record.policy == NO_POLICY or record.policy & TAKEN:
            return NEVER
        retry = self.retry_ms(record.policy)
        if retry == 0 and not with_zero:
            return NEVER
        return later(record.last_delivery_ms, retry)

    cdef uint64_t expires_ms(self, const Pending* record) noexcept:
        cdef uint64_t expire
        if record.policy == NO_POLICY or record.policy & TAKEN:
            return NEVER
        expire = self.expire_ms(record.policy)
        return later(record.first_delivery_ms, expire) if expire else NEVER

    cdef int move_bounds(self, PendingAt* at) except -1:
        """Lower the bounds so that they cover the record at `at`."""
        cdef Chunk* chunk = self.chunks[at.chunk]
        cdef Pending* record = &chunk.items[at.index]
        cdef uint64_t moment
        if record.policy == NO_POLICY:
            return 0
        moment = self.due_ms(record, True)
        chunk.retry_min = min(chunk.retry_min, moment)
        self.retry_min = min(self.retry_min, moment)
        moment = self.due_ms(record, False)
        chunk.wake_min = min(chunk.wake_min, moment)
        self.wake_min = min(self.wake_min, moment)
        moment = self.expires_ms(record)
        chunk.expire_min = min(chunk.expire_min, moment)
        self.expire_min = min(self.expire_min, moment)
        return 0

    cdef void chunk_bounds(self, Chunk* chunk) noexcept:
        cdef uint32_t i
        chunk.retry_min = chunk.wake_min = chunk.expire_min = NEVER
        for i in range(chunk.used):
            chunk.retry_min = min(chunk.retry_min, self.due_ms(&chunk.items[i], True))
            chunk.wake_min = min(chunk.wake_min, self.due_ms(&chunk.items[i], False))
            chunk.expire_min = min(chunk.expire_min, self.expires_ms(&chunk.items[i]))

    cdef inline uint64_t bound(self, Chunk* chunk, int kind) noexcept:
        if kind == RETRY:
            return chunk.retry_min
        return chunk.wake_min if kind == WAKE else chunk.expire_min

    cdef uint64_t scan_min(self, int kind) noexcept:
        """The exact earliest moment of a kind: chunks are recomputed until the lowest holds."""
        cdef uint64_t lowest
        cdef uint32_t i
        cdef Chunk* best
        while True:
            lowest = NEVER
            best = NULL
            for i in range(self.chunk_count):
                if self.bound(self.chunks[i], kind) < lowest:
                    lowest = self.bound(self.chunks[i], kind)
                    best = self.chunks[i]
            if best == NULL:
                return NEVER
            self.chunk_bounds(best)
            if self.bound(best, kind) == lowest:
                return lowest

    cdef bint is_due(self, uint64_t now_ms, bint with_zero) noexcept:
        """Whether a record is to be delivered again now."""
        if with_zero:
            if self.retry_min > now_ms:
                return False
            self.retry_min = self.scan_min(RETRY)
            return self.retry_min <= now_ms
        return self.next_wake_ms() <= now_ms if self.wake_min <= now_ms else False

    cdef bint has_expired(self, uint64_t now_ms) noexcept:
        return self.expire_min <= now_ms and self.next_expiry_ms() <= now_ms

    cdef uint64_t next_wake_ms(self) noexcept:
        """The next moment a timed retry is due, NEVER when there is none."""
        if self.wake_min != NEVER:
            self.wake_min = self.scan_min(WAKE)
        return self.wake_min

    cdef uint64_t next_expiry_ms(self) noexcept:
        """The next moment a pending record expires, NEVER when there is none."""
        if self.expire_min != NEVER:
            self.expire_min = self.scan_min(EXPIRE)
        return self.expire_min

    cdef list take_due(self, uint64_t now_ms, uint64_t limit, bint with_zero):
        """Up to `limit` ids (ms, seq) due now, earliest due first, then by id. They are marked as
        taken, so the same call never gives one twice; `release_taken` ends that."""
        cdef list taken = []
        cdef list found
        cdef int kind = RETRY if with_zero else WAKE
        cdef uint64_t lowest, second, moment
        cdef Chunk* best
        cdef Chunk* chunk
        cdef uint32_t i
        cdef bint second_is_before
        while <uint64_t>len(taken) < limit:
            best = NULL
            lowest = second = NEVER
            second_is_before = False
            for i in range(self.chunk_count):
                moment = self.bound(self.chunks[i], kind)
                if moment < lowest:
                    second = lowest
                    second_is_before = True
                    lowest = moment
                    best = self.chunks[i]
                elif moment < second:
                    second = moment
                    second_is_before = False
            if best == NULL or lowest > now_ms:
                break
            self.chunk_bounds(best)
            if self.bound(best, kind) != lowest:
                continue
            found = []
            for i in range(best.used):
                moment = self.due_ms(&best.items[i], with_zero)
                if moment <= now_ms and (moment < second or (
                        moment == second and not second_is_before)):
                    found.append((moment, best.items[i].ms, best.items[i].seq, i))
            found.sort()
            for moment, ms, seq, index in found[:limit - <uint64_t>len(taken)]:
                best.items[<uint32_t>index].policy |= TAKEN
                taken.append((ms, seq))
            self.chunk_bounds(best)
        return taken

    cdef void release_taken(self, list taken) noexcept:
        cdef PendingAt at
        cdef Pending* record
        for ms, seq in taken:
            record = self.find(ms, seq, &at)
            if record != NULL:
                record.policy &= ~<uint32_t>TAKEN
                self.move_bounds(&at)

    def take_expired(self, uint64_t now_ms, uint64_t limit) -> list[tuple[int, int]]:
        """Drop up to `limit` records whose expiry has come; returns their ids in no order."""
        cdef list gone = []
        cdef PendingAt at
        cdef Chunk* chunk
        at.chunk = 0
        while at.chunk < self.chunk_count and <uint64_t>len(gone) < limit:
            chunk = self.chunks[at.chunk]
            if chunk.expire_min > now_ms:
                at.chunk += 1
                continue
            at.index = 0
            emptied = False
            while at.index < chunk.used and <uint64_t>len(gone) < limit:
                if self.expires_ms(&chunk.items[at.index]) > now_ms:
                    at.index += 1
                    continue
                gone.append((chunk.items[at.index].ms, chunk.items[at.index].seq))
                emptied = chunk.used == 1
                self.erase(&at)
                if emptied:
                    break
            if not emptied:
                self.chunk_bounds(chunk)
                if <uint64_t>len(gone) < limit:
                    at.chunk += 1
        self.expire_min = self.scan_min(EXPIRE)
        return gone

    # ------------------------------------------------------------ Python's view

    def pending(self, uint64_t start_ms=0, uint64_t start_seq=0, end=None, limit=None,
                consumer=None) -> list[tuple]:
        """Records in id order as (ms, seq, consumer name, last_delivery_ms, deliveries,
        first_delivery_ms, retry_ms or None, expire_ms or None); b"" names nobody."""
        cdef PendingAt at
        cdef Pending* record = self.first_at_least(start_ms, start_seq, &at)
        cdef uint64_t end_ms = NEVER
        cdef uint64_t end_seq = NEVER
        found = []
        if end is not None:
            end_ms, end_seq = end
        while record != NULL and not id_less(end_ms, end_seq, record.ms, record.seq):
            if limit is not None and len(found) >= limit:
                break
            owner = self.consumer_list[record.consumer]
            name = b"" if owner is None else (<Consumer>owner).name
            if consumer is None or consumer == name:
                pair = self.policies[record.policy] or (None, None)
                found.append((record.ms, record.seq, name, record.last_delivery_ms,
                              record.deliveries, record.first_delivery_ms, *pair))
            record = self.after(&at)
        return found

    def acknowledge_id(self, uint64_t ms, uint64_t seq) -> bool:
        """Remove one entry from pending."""
        return self.acknowledge(ms, seq)

    def deliver_id(self, uint64_t ms, uint64_t seq, uint64_t now_ms, bytes consumer=b"",
                   retry=None) -> None:
        """Note a first delivery; retry is (retry_ms, expire_ms) or None."""
        index = self.consumers[consumer].index if consumer else UNOWNED
        self.deliver(ms, seq, now_ms, index, self.policy(*retry) if retry else NO_POLICY)

    def redeliver_id(self, uint64_t ms, uint64_t seq, uint64_t now_ms, retry=None) -> bool:
        """Note another delivery of a pending entry; a pair given replaces its own."""
        cdef PendingAt at
        cdef Pending* record = self.find(ms, seq, &at)
        if record == NULL:
            return False
        policy = self.policy(*retry) if retry else NO_POLICY
        self.redeliver(record, &at, now_ms, policy, retry is not None)
        return True

    def due(self, uint64_t now_ms, uint64_t limit, bint with_zero=True) -> list[tuple[int, int]]:
        """Ids due now, earliest due first, then by id."""
        taken = self.take_due(now_ms, limit, with_zero)
        self.release_taken(taken)
        return taken

    def next_event_ms(self) -> int | None:
        """The next moment something happens by itself: a timed retry, an expiry, the TTL's end."""
        cdef uint64_t moment = min(self.next_wake_ms(), self.next_expiry_ms())
        if self.ttl_ms and not self.blocked_clients:
            moment = min(moment, later(self.last_used_ms, self.ttl_ms))
        return None if moment == NEVER else moment

    def is_over(self, uint64_t now_ms) -> bool:
        """Whether its time to live has ended."""
        if not self.ttl_ms or self.blocked_clients:
            return False
        return now_ms >= later(self.last_used_ms, self.ttl_ms)

    @property
    def memory_bytes(self) -> int:
        cdef uint32_t i
        total = 400 + 8 * self.chunk_capacity + 200 * len(self.consumers)
        for i in range(self.chunk_count):
            total += sizeof(Chunk) + self.chunks[i].capacity * sizeof(Pending)
        return total

    def dump(self) -> dict:
        """The group as msgpack-able values (docs/formats.md, group)."""
        cdef uint32_t i
        packed = b"".join([
            (<char*>self.chunks[i].items)[:self.chunks[i].used * sizeof(Pending)]
            for i in range(self.chunk_count)
        ])
        return {
            "name": self.name,
            "offset": [self.offset_ms, self.offset_seq],
            "gap_floor": [self.gap_floor_ms, self.gap_floor_seq],
            "entries_read": self.entries_read,
            "ttl_ms": self.ttl_ms,
            "consumers": [
                None if c is None else [c.name, c.seen_ms, c.active_ms] for c in self.consumer_list
            ],
            "policies": [None if p is None else list(p) for p in self.policies],
            "pending": packed,
        }

    @staticmethod
    def load(meta, uint64_t now_ms) -> Group:
        """Make a group of what `dump` gave; its TTL runs anew from now_ms. ValueError when the
        pending entries refer to a consumer or policy that is not there or do not rise, or when
        consumers or policies are not each given once."""
        cdef Group group = Group(meta["name"], meta["offset"][0], meta["offset"][1], now_ms)
        cdef bytes packed = meta["pending"]
        cdef Py_ssize_t i
        cdef Pending record, before
        cdef Consumer consumer
        group.gap_floor_ms, group.gap_floor_seq = meta["gap_floor"]
        group.entries_read = meta["entries_read"]
        group.ttl_ms = meta["ttl_ms"]
        for index, row in enumerate(meta["consumers"]):
            if index == 0:
                continue
            if row is None:
                group.consumer_list.append(None)
                continue
            if row[0] in group.consumers:
                raise ValueError(f"group {group.name!r} has consumer {row[0]!r} twice")
            consumer = Consumer(row[0], index, row[1], row[2])
            group.consumer_list.append(consumer)
            group.consumers[consumer.name] = consumer
        group.policies = checked_policies(meta["policies"], group.name)
        group.policy_numbers = {p: i for i, p in enumerate(group.policies) if p is not None}
        if len(packed) % sizeof(Pending):
            raise ValueError(f"pending entries of group {group.name!r} end in the middle of one")
        before.ms = before.seq = 0
        for i in range(0, len(packed), sizeof(Pending)):
            memcpy(&record, <char*>packed + i, sizeof(Pending))
            if record.consumer >= <size_t>len(group.consumer_list) or (
                    record.consumer and group.consumer_list[record.consumer] is None):
                raise ValueError(f"a pending entry of group {group.name!r} has an unknown consumer")
            if record.policy >= <size_t>len(group.policies) or (
                    record.policy and group.policies[record.policy] is None):
                raise ValueError(f"a pending entry of group {group.name!r} has an unknown policy")
            if i and not id_less(before.ms, before.seq, record.ms, record.seq):
                raise ValueError(f"pending entries of group {group.name!r} do not rise")
            before = record
            group.put(&record)
        return group

    def check(self) -> None:
        """Raise AssertionError when order, counts or bounds are wrong."""
        cdef uint32_t i, j
        cdef Chunk* chunk
        cdef Pending* record
        total = 0
        unowned = 0
        before = None
        owned = {c.index: 0 for c in self.consumers.values()}
        for i in range(self.chunk_count):
            chunk = self.chunks[i]
            assert 0 < chunk.used <= chunk.capacity <= CHUNK_MAX
            for j in range(chunk.used):
                record = &chunk.items[j]
                assert before is None or before < (record.ms, record.seq)
                before = (record.ms, record.seq)
                assert not record.policy & TAKEN
                assert chunk.retry_min <= self.due_ms(record, True)
                assert chunk.wake_min <= self.due_ms(record, False)
                assert chunk.expire_min <= self.expires_ms(record)
                if record.consumer == UNOWNED:
                    unowned += 1
                else:
                    owned[record.consumer] += 1
            assert self.retry_min <= chunk.retry_min
            assert self.wake_min <= chunk.wake_min
            assert self.expire_min <= chunk.expire_min
            total += chunk.used
        assert total == self.pending_count and unowned == self.unowned_count
        for c in self.consumers.values():
            assert c.pending == owned[c.index]
