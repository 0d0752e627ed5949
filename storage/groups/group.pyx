# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A consumer group: its offset, its time to live, its consumers and its pending entries.

A group may have millions of pending entries, so they are plain records in chunks
(`pending_chunks`), without a second index by time (`due_index`). A snapshot shares the chunks instead
of copying them.

A stream may have very many groups, and most of them are small. A group therefore allocates its
parts when they are first needed: pending entries, consumers, retry pairs.
"""

from libc.stdint cimport UINT64_MAX as NEVER, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.consumers cimport Consumer, known_name
from millstream.storage.groups.pending cimport (
    CONSUMERS_MAX, DELIVERIES_MAX, NO_RETRY, Chunk, Pending, PendingAt, Pendings, RetryTimes,
    saturating_add,
)
from millstream.storage.groups.pending_chunks cimport allocated, find_pending, nothing_pending
from millstream.storage.groups.pending_list cimport PendingList
from millstream.storage.groups.retry_pairs cimport checked_pairs, load_pairs, retry_pairs

cdef enum:
    # For MEMORY USAGE: the size of a group with its name and its item in the stream, of a consumer
    # with its name and items, and of the objects for the first consumer. And the number of sampled
    # chunks.
    GROUP_BYTES = 200
    CONSUMER_BYTES = 170
    DETAILS_BYTES = 200
    SAMPLED_CHUNKS = 64

PENDING_SIZE = sizeof(Pending)


@cython.no_gc
cdef class Group(PendingList):
    """State of one group. `entries_read` is Redis' counter, -1 when it is unknown.

    `ttl_ms` 0 means that the group has no time to live. Otherwise it ends ttl_ms after
    `last_used_ms`, unless `blocked_clients` wait on it. `retry_waiters` of these clients accept
    redeliveries. `claim_idle_ms` is the smallest idle time at which one of them claims an entry.
    `scheduled_ms` is the earliest time for which a timer is scheduled.
    """

    def __init__(self, bytes name, uint64_t offset_ms=0, uint64_t offset_seq=0,
                 uint64_t now_ms=0):
        self.name = known_name(name)
        self.offset_ms = offset_ms
        self.offset_seq = offset_seq
        self.entries_read = -1
        self.last_used_ms = now_ms
        self.scheduled_ms = NEVER

    def is_over(self, uint64_t now_ms) -> bool:
        """True if its time to live has ended."""
        if not self.ttl_ms or self.blocked_clients:
            return False
        return now_ms >= saturating_add(self.last_used_ms, self.ttl_ms)

    @property
    def memory_bytes(self) -> int:
        return self.size_bytes()

    cdef uint64_t size_bytes(self) noexcept:
        """An estimate of the memory used, from a sample of the chunks if there are many."""
        cdef uint32_t sampled = min(self.pendings.chunk_count, <uint32_t>SAMPLED_CHUNKS)
        cdef uint64_t chunks = 0
        cdef uint64_t total = GROUP_BYTES
        cdef uint32_t i
        if self.only_member is not None:
            total += CONSUMER_BYTES
        if self.details is not None:
            total += DETAILS_BYTES + CONSUMER_BYTES * <uint64_t>self.details.count()
        if self.pendings == nothing_pending():
            return total
        for i in range(sampled):
            chunks += sizeof(Chunk) + self.pendings.chunks[i].capacity * sizeof(Pending)
        if sampled:
            total += chunks * self.pendings.chunk_count // sampled
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
        if self.pendings != nothing_pending():
            made.copy_pending(self)
        return made

    def dump(self) -> dict:
        """The group as msgpack-able values (docs/formats.md, group)."""
        return self.header(bytes(self.share_pending()))

    def share(self) -> dict:
        """Like dump, but `pending` is a SharedPending, which is converted to bytes later."""
        return self.header(self.share_pending())

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
            "policies": retry_pairs(self.pendings),
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
        group.load_retry_pairs(checked_pairs(meta["policies"], group.name))
        group.load_pending(packed, len(packed))
        group.load_large_counts(meta.get("large_counts", ()))
        return group

    cdef int load_retry_pairs(self, list pairs) except -1:
        """Restore the retry pairs of a dump in a new group."""
        if len(pairs) == 1:
            return 0
        self.pendings = allocated(self.pendings)
        return load_pairs(self.pendings, self.own_details(), pairs)

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
            if record.retry_number != NO_RETRY and (
                    record.retry_number >= self.pendings.retry_times_count
                    or not self.pendings.retry_times[record.retry_number].known):
                raise ValueError(f"a pending entry of group {self.name!r} has an unknown retry pair")
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
            record = find_pending(self.pendings, EntryId(ms, seq), &at)
            count = number
            if record == NULL or record.deliveries != DELIVERIES_MAX or count < DELIVERIES_MAX:
                raise ValueError(
                    f"group {self.name!r} has a count of deliveries that belongs to nothing")
            self.set_deliveries(record, count)
        return 0
