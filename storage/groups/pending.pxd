# The pending entries of a group: records, chunks of records, and indexes of the chunks.
# `pending_chunks` changes the list of chunks, `due_index` their bounds and heaps, `retry_pairs` the
# retry pairs.
from libc.stdint cimport UINT64_MAX as NEVER, uint8_t, uint16_t, uint32_t, uint64_t

from millstream.entry_id cimport EntryId


cdef extern from *:
    """
    #include <stdint.h>
    #ifndef MILLSTREAM_PENDING
    #define MILLSTREAM_PENDING
    struct Pending {
        uint64_t ms;
        uint64_t seq;
        uint64_t first_delivery_ms : 47;
        uint64_t gone : 1;
        uint64_t last_delivery_ms : 47;
        uint64_t waiting : 1;
        uint32_t deliveries : 24;
        uint32_t consumer : 24;
        uint32_t retry_number : 16;
    } __attribute__((packed));
    _Static_assert(sizeof(struct Pending) == 36, "bit-fields are packed as docs/formats.md says");
    #endif
    """
    # Bit-fields: Cython reads and assigns them as members of these types.
    # gone: a claim has found that the stream no longer has this entry. Only in memory: it is 0 in
    # saved records, where the 48 bits are one time.
    # waiting: given back in a group with rules. It has no owner, and it is due when its retry time
    # has passed since last_delivery_ms, the time at which it was given back.
    cdef struct Pending:
        uint64_t ms
        uint64_t seq
        uint64_t first_delivery_ms
        uint64_t gone
        uint64_t last_delivery_ms
        uint64_t waiting
        uint32_t deliveries
        uint32_t consumer
        uint32_t retry_number


cdef enum:
    UNOWNED = 0
    NO_RETRY = 0


# The times for which a chunk has bounds: any retry, a timed retry, an expiry, the last delivery.
cdef enum:
    RETRY = 0
    WAKE = 1
    EXPIRE = 2
    IDLE = 3


# `used` records in ID order. A chunk that a SharedPending also holds (holders > 1) is copied before
# its records change. Bounds and heap positions are used only by the group. With one record, a chunk
# has 88 bytes, the most that fit into 96 of the allocator: most groups of very many have one.
cdef struct Chunk:
    uint64_t[4] bounds
    uint32_t[4] heap_at
    uint8_t used
    uint8_t capacity
    uint16_t holders
    Pending[1] items


cdef struct RetryTimes:
    uint64_t retry_ms
    uint64_t expire_ms
    uint64_t uses
    bint known


cdef enum:
    CHUNK_MAX = 64
    HOLDERS_MAX = 0xffff
    KINDS = 4
    ABSENT = 0xffffffffu
    FLOOR_WORDS = 2  # a floor takes as many bytes as two pointers
    # The widths of a record's fields.
    DELIVERIES_MAX = 0xffffff
    CONSUMERS_MAX = 0xffffff
    RETRY_TIMES_MAX = 0xffff


cdef struct PendingAt:
    uint32_t chunk
    uint32_t index


# The pending entries of a group. Groups that never had a pending entry share one object.
cdef struct Pendings:
    uint64_t count
    # Chunks, their floors and the four heaps are parts of one allocation, which begins at `chunks`;
    # each has chunk_capacity items. With a capacity of one, there is no allocation: `chunks` points
    # to `only`, which is also the root of each heap, and there is no floor.
    Chunk** chunks
    Chunk* only
    uint32_t chunk_count
    uint32_t chunk_capacity
    uint32_t[4] heap_counts
    # By number; Details has the count. Number 0 is for the entries without a pair: known if the group
    # is managed, and then it has the timeout. They became pending before.
    RetryTimes* retry_times
    # Whether a record is marked as gone.
    bint has_gone
    # The number of records that wait.
    uint32_t waiting
    uint32_t unowned
    # Entries with this number of deliveries are not delivered again, and not claimed; 0: no limit.
    # It is below DELIVERIES_MAX.
    uint32_t limit


cdef inline uint64_t saturating_add(uint64_t moment_ms, uint64_t span_ms) noexcept nogil:
    """moment + span, or NEVER on overflow."""
    return NEVER if moment_ms > NEVER - span_ms else moment_ms + span_ms


cdef inline uint64_t older_timeout_ms(const Pendings* pendings) noexcept nogil:
    """The timeout of entries without a retry pair; 0: they are never due."""
    if pendings.retry_times == NULL or not pendings.retry_times[NO_RETRY].known:
        return 0
    return pendings.retry_times[NO_RETRY].retry_ms


cdef inline bint has_retry(const Pendings* pendings, const Pending* record) noexcept nogil:
    """True if an entry may be due."""
    return record.retry_number != NO_RETRY or older_timeout_ms(pendings) > 0


cdef inline bint is_at_limit(const Pendings* pendings, const Pending* record) noexcept nogil:
    """True if an entry is not delivered again."""
    return pendings.limit and record.deliveries >= pendings.limit


cdef inline bint is_dead(const Pendings* pendings, const Pending* record) noexcept nogil:
    """True if an entry has ended and is not copied yet: it waits, and is never due."""
    return record.waiting and pendings.retry_times[record.retry_number].retry_ms == NEVER


cdef inline EntryId* floors_of(Pendings* pendings) noexcept nogil:
    """The floor of each chunk: an ID above all IDs of the chunk before and not above its own first
    ID. The floors are contiguous, so a search accesses only one chunk. Only for a capacity of more
    than one chunk."""
    return <EntryId*>(pendings.chunks + pendings.chunk_capacity)


cdef inline Chunk** heap_of(Pendings* pendings, int kind) noexcept nogil:
    """The heap of a kind: the chunks with a bound, the earliest at the root, in ID order for equal
    times."""
    if pendings.chunk_capacity == 1:
        return pendings.chunks
    return pendings.chunks + <size_t>pendings.chunk_capacity * (1 + FLOOR_WORDS + kind)


cdef inline Chunk* first_of(Pendings* pendings, int kind) noexcept nogil:
    return heap_of(pendings, kind)[0] if pendings.heap_counts[kind] else NULL
