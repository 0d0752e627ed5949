from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.ids cimport EntryId


cdef enum:
    UNOWNED = 0
    NO_POLICY = 0
    TAKEN = 0x80000000u


cdef struct Pending:
    uint64_t ms
    uint64_t seq
    uint64_t first_delivery_ms
    uint64_t last_delivery_ms
    uint32_t deliveries
    uint32_t consumer
    uint32_t policy
    uint32_t unused


cdef struct Chunk:
    uint32_t used
    uint32_t capacity
    uint64_t retry_min
    uint64_t wake_min
    uint64_t expire_min
    Pending[1] items


cdef struct PendingAt:
    uint32_t chunk
    uint32_t index


cdef class Consumer:
    cdef readonly bytes name
    cdef readonly uint32_t index
    cdef public int64_t seen_ms
    cdef public int64_t active_ms
    cdef readonly uint64_t pending


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
    cdef readonly uint64_t unowned_count
    cdef readonly dict consumers
    cdef list consumer_list
    cdef list policies
    cdef dict policy_numbers
    cdef Chunk** chunks
    cdef uint32_t chunk_count
    cdef uint32_t chunk_capacity
    cdef uint64_t retry_min
    cdef uint64_t wake_min
    cdef uint64_t expire_min

    cpdef uint32_t policy(self, uint64_t retry_ms, uint64_t expire_ms) except? 0
    cpdef Consumer consumer(self, bytes name)
    cpdef Consumer make_consumer(self, bytes name, int64_t now_ms)
    cdef Pending* find(self, uint64_t ms, uint64_t seq, PendingAt* at) noexcept
    cdef Pending* first_at_least(self, uint64_t ms, uint64_t seq, PendingAt* at) noexcept
    cdef Pending* after(self, PendingAt* at) noexcept
    cdef int deliver(self, uint64_t ms, uint64_t seq, uint64_t now_ms, uint32_t consumer,
                     uint32_t policy) except -1
    cdef int put(self, Pending* record) except -1
    cdef bint acknowledge(self, uint64_t ms, uint64_t seq) except -1
    cdef int redeliver(self, Pending* record, PendingAt* at, uint64_t now_ms, uint32_t policy,
                       bint change_policy) except -1
    cdef int give(self, Pending* record, uint32_t consumer) except -1
    cdef uint64_t retry_ms(self, uint32_t policy) noexcept
    cdef uint64_t expire_ms(self, uint32_t policy) noexcept
    cdef uint64_t due_ms(self, const Pending* record, bint with_zero) noexcept
    cdef uint64_t expires_ms(self, const Pending* record) noexcept
    cdef bint is_due(self, uint64_t now_ms, bint with_zero) noexcept
    cdef bint has_expired(self, uint64_t now_ms) noexcept
    cdef uint64_t next_wake_ms(self) noexcept
    cdef uint64_t next_expiry_ms(self) noexcept
    cdef list take_due(self, uint64_t now_ms, uint64_t limit, bint with_zero)
    cdef void release_taken(self, list taken) noexcept
    cdef int move_bounds(self, PendingAt* at) except -1
    cdef int insert(self, PendingAt* at, Pending* record) except -1
    cdef int erase(self, PendingAt* at) except -1
    cdef void chunk_bounds(self, Chunk* chunk) noexcept
    cdef uint64_t scan_min(self, int kind) noexcept
    cdef inline Pending* record_at(self, PendingAt* at) noexcept
    cdef Chunk* split(self, PendingAt* at) except NULL
    cdef int new_chunk(self, uint32_t place) except -1
    cdef inline int count_owner(self, uint32_t consumer, int change) except -1
    cdef inline uint64_t bound(self, Chunk* chunk, int kind) noexcept
    cdef forget_unused_policies(self)
