from libc.stdint cimport int64_t, uint32_t, uint64_t

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
        uint64_t last_delivery_ms : 48;
        uint32_t deliveries : 24;
        uint32_t consumer : 24;
        uint32_t policy : 16;
    } __attribute__((packed));
    _Static_assert(sizeof(struct Pending) == 36, "bit-fields are packed as docs/formats.md says");
    #endif
    """
    # Bit-fields: Cython reads and assigns them as members of these types.
    # gone: a claim has found that the stream has no such entry any more. Only in memory: it is 0 in
    # what is saved, where the 48 bits are one time.
    cdef struct Pending:
        uint64_t ms
        uint64_t seq
        uint64_t first_delivery_ms
        uint64_t gone
        uint64_t last_delivery_ms
        uint32_t deliveries
        uint32_t consumer
        uint32_t policy


cdef enum:
    UNOWNED = 0
    NO_POLICY = 0


# Of what a chunk keeps bounds: a retry, one with a time, the end of an entry, its last delivery.
cdef enum:
    RETRY = 0
    WAKE = 1
    EXPIRE = 2
    IDLE = 3


# At most `used` records, in id order. A chunk that a SharedPending holds too (holders > 1) is
# copied before its records change; bounds and heap places belong to the group alone.
cdef struct Chunk:
    uint32_t used
    uint32_t capacity
    uint32_t holders
    uint32_t[4] heap_at
    uint64_t[4] bounds
    Pending[1] items


cdef struct RetryTimes:
    uint64_t retry_ms
    uint64_t expire_ms
    uint64_t uses
    bint known


cdef struct Due:
    uint64_t moment
    uint64_t order
    uint64_t ms
    uint64_t seq


cdef class DeliveryOrder:
    cdef uint64_t latest_ms
    cdef EntryId last
    cdef bint numbered
    cdef uint64_t count
    cdef object numbers

    cdef int note(self, uint64_t ms, uint64_t seq, uint64_t at_ms) except -1
    cdef uint64_t number(self, const Pending* record) except? 0xffffffffffffffff


cdef struct PendingAt:
    uint32_t chunk
    uint32_t index


# What a group keeps of its pending entries. Groups in which nothing was ever pending share one.
cdef struct Pendings:
    uint64_t unowned
    # Chunks, the four heaps and chunk_first_ids are parts of one allocation, which begins at
    # `chunks`; each has chunk_capacity items.
    Chunk** chunks
    # Per chunk an id above all in the chunk before and not above its first: side by side, so that
    # a search goes to the chunks themselves only once it knows which.
    EntryId* chunk_first_ids
    uint32_t chunk_count
    uint32_t chunk_capacity
    uint32_t[4] heap_counts
    RetryTimes* retry_times
    uint32_t retry_times_count
    uint32_t retry_times_capacity
    # Whether a record is marked as gone.
    bint has_gone
    # Records and heap places looked at to find out what is due: what the tests hold small.
    uint64_t work_counter


cdef class Consumer:
    cdef readonly bytes name
    cdef readonly uint32_t index
    cdef public int64_t seen_ms
    cdef public int64_t active_ms
    # When it was last written to the journal that it was seen without getting anything.
    cdef public uint64_t noted_ms
    cdef readonly uint64_t pending


cdef class SharedPending


# What a group needs once it has a consumer, a retry pair or a client that waits to claim.
cdef class Details:
    # By name; None while there are few.
    cdef dict by_name
    cdef list consumers
    cdef list free_consumers
    cdef dict policy_numbers
    cdef list free_retry_times
    cdef dict large_counts
    cdef dict claim_waits
    cdef uint64_t claim_idle_ms

    cdef Consumer find(self, bytes name)
    cdef int add(self, Consumer consumer) except -1
    cdef int skip_number(self) except -1
    cdef int remove(self, Consumer consumer) except -1
    cdef uint32_t count(self) noexcept


cdef class Group:
    cdef readonly bytes name
    cdef public uint64_t offset_ms
    cdef public uint64_t offset_seq
    cdef public uint64_t gap_floor_ms
    cdef public uint64_t gap_floor_seq
    cdef public int64_t entries_read
    cdef public uint64_t ttl_ms
    cdef public uint64_t last_used_ms
    cdef public uint64_t scheduled_ms
    cdef public uint32_t blocked_clients
    cdef public uint32_t retry_waiters
    cdef readonly uint64_t pending_count
    cdef Pendings* pendings
    # The only consumer that the group ever had, number 1; otherwise `details` has them.
    cdef Consumer only_member
    cdef Details details
    cdef DeliveryOrder order

    cdef Details own_details(self)
    cdef list members(self)
    cdef int add_member(self, Consumer consumer) except -1
    cdef int list_members(self) except -1
    cdef int skip_number(self) except -1
    cdef uint32_t consumer_count(self) noexcept
    cdef dict large_counts(self)
    cdef uint64_t claim_idle(self) noexcept
    cdef uint64_t size_bytes(self) noexcept
    cdef Group duplicate(self, uint64_t now_ms)
    cdef int copy_pending(self, Group other) except -1
    cdef int copy_chunks(self, Group other) except -1
    cdef int copy_policies(self, Group other) except -1
    cdef int own_pending(self) except -1
    cdef int grow_chunks(self, uint32_t wanted) except -1
    cdef int free_pending(self) noexcept
    cpdef uint32_t policy(self, uint64_t retry_ms, uint64_t expire_ms) except? 0
    cpdef Consumer consumer(self, bytes name)
    cpdef Consumer make_consumer(self, bytes name, int64_t now_ms)
    cdef Pending* find(self, uint64_t ms, uint64_t seq, PendingAt* at) noexcept
    cdef Pending* first_at_least(self, uint64_t ms, uint64_t seq, PendingAt* at) noexcept
    cdef Pending* after(self, PendingAt* at) noexcept
    cdef Pending* advance(self, PendingAt* at, uint64_t ms, uint64_t seq) noexcept
    cdef uint64_t count_between(self, uint64_t ms, uint64_t seq, uint64_t end_ms,
                                uint64_t end_seq) noexcept
    cdef uint64_t count_up_to(self, PendingAt at, uint64_t ms, uint64_t seq) noexcept
    cdef int deliver(self, uint64_t ms, uint64_t seq, uint64_t now_ms, uint32_t consumer,
                     uint32_t policy) except -1
    cdef size_t deliver_some(self, const EntryId* ids, size_t count, uint64_t now_ms,
                             uint32_t consumer, uint32_t policy) except 0
    cdef int put(self, Pending* record) except -1
    cpdef bint acknowledge(self, uint64_t ms, uint64_t seq) except -1
    cpdef int claim(self, uint64_t ms, uint64_t seq, Consumer consumer, uint64_t delivery_ms,
                    bytes count) except -1
    cdef int redeliver(self, Pending* record, PendingAt* at, uint64_t now_ms, uint32_t policy,
                       bint change_policy) except -1
    cdef int64_t deliveries(self, const Pending* record) except -1
    cdef int set_deliveries(self, Pending* record, int64_t deliveries) except -1
    cdef inline int forget_count(self, const Pending* record) except -1
    cdef int transfer(self, PendingAt* at, uint32_t consumer, uint64_t delivery_ms,
                       int64_t deliveries) except -1
    cdef int note_again(self, uint64_t ms, uint64_t seq, uint64_t at_ms, uint64_t now_ms) except -1
    cpdef int release(self, uint64_t ms, uint64_t seq, bytes count, uint64_t now_ms) except -1
    cdef int add_claim_wait(self, uint64_t min_idle_ms, int change) except -1
    cdef bint is_idle(self, uint64_t now_ms, uint64_t min_idle_ms) noexcept
    cdef uint64_t claim_bound(self) noexcept
    cdef inline uint64_t moment_of(self, const Pending* record, int kind) noexcept
    cdef inline uint64_t claimable_ms(self, const Pending* record) noexcept
    cdef uint64_t due_ms(self, const Pending* record, bint with_zero) noexcept
    cdef uint64_t expires_ms(self, const Pending* record) noexcept
    cdef bint is_due(self, uint64_t now_ms, bint with_zero) noexcept
    cdef bint has_expired(self, uint64_t now_ms) noexcept
    cdef uint64_t next_wake_ms(self) noexcept
    cdef uint64_t next_expiry_ms(self) noexcept
    cdef uint64_t idle_bound(self) noexcept
    cdef uint64_t wake_bound(self) noexcept
    cdef uint64_t expiry_bound(self) noexcept
    cdef list take_due(self, uint64_t now_ms, uint64_t limit, bint with_zero)
    cdef list idle_ids(self, uint64_t now_ms, uint64_t min_idle_ms, uint64_t limit)
    cdef int mark_gone(self, uint64_t ms, uint64_t seq) except -1
    cdef int forget_gone(self) except -1
    cdef list take(self, int kind, uint64_t until_ms, uint64_t limit)
    cdef tuple row(self, const Pending* record)
    cdef dict header(self, pending)
    cdef int load_pending(self, const char* packed, Py_ssize_t size) except -1
    cdef int load_large_counts(self, rows) except -1
    cdef int insert(self, PendingAt* at, Pending* record) except -1
    cdef int erase(self, PendingAt* at) except -1
    cdef int merge_small(self, uint32_t place) except -1
    cdef int shrink(self, uint32_t place) except -1
    cdef bint join_next(self, uint32_t place) except -1
    cdef int drop_chunk(self, uint32_t place) noexcept
    cdef inline Pending* record_at(self, PendingAt* at) noexcept
    cdef inline uint32_t chunk_with(self, uint64_t ms, uint64_t seq) noexcept
    cdef inline uint32_t part_of(self, uint32_t place, uint64_t ms) noexcept
    cdef inline void fetch(self, const Chunk* chunk, uint32_t part) noexcept
    cdef Chunk* roomy(self, PendingAt* at) except NULL
    cdef inline void lower_floor(self, uint32_t place, const Pending* first) noexcept
    cdef Chunk* split(self, PendingAt* at) except NULL
    cdef int new_chunk(self, uint32_t place) except -1
    cdef Chunk* own_chunk(self, uint32_t place) except NULL
    cdef Chunk* resize(self, uint32_t place, uint32_t capacity) except NULL
    cdef uint32_t place_of(self, Chunk* chunk) noexcept
    cdef inline int count_owner(self, uint32_t consumer, int change) except -1
    cdef inline void count_policy(self, uint32_t policy, int change) noexcept
    cdef uint32_t sweep_chunk(self, uint32_t place, uint32_t consumer, uint64_t now_ms,
                              uint64_t limit, list gone) except? 0xffffffff
    cdef int close_gaps(self) except -1
    cdef void note_moved(self, Chunk* chunk) noexcept
    cdef void set_bound(self, Chunk* chunk, int kind, uint64_t moment) noexcept
    cdef void move_bounds(self, Chunk* chunk, const Pending* record) noexcept
    cdef void chunk_bounds(self, Chunk* chunk) noexcept
    cdef void sift(self, int kind, Chunk* chunk) noexcept
    cdef void leave_heap(self, int kind, Chunk* chunk) noexcept
    cdef void leave_heaps(self, Chunk* chunk) noexcept
    cdef uint64_t settle(self, int kind, uint64_t until_ms) noexcept
    cdef uint32_t free_policy(self) except 0
    cdef int free_unused_policies(self) except -1
    cdef int copy_consumer(self, Consumer other) except -1
    cdef int free_numbers(self) except -1
    cdef list policy_pairs(self)
    cdef int set_policies(self, list pairs) except -1
    cdef SharedPending share_pending(self)
    cdef SharedPending share_chunks(self, uint32_t place, uint32_t count)


cdef class SharedPending:
    cdef Chunk** chunks
    cdef uint32_t count
    cdef readonly uint64_t records

    cdef int take_over(self, Pendings* gone) except -1
    cdef void release(self, uint32_t place) noexcept


cdef int64_t deliveries_of(const Pending* record, dict large_counts) except -1
cdef list checked_policies(rows, bytes group_name)
