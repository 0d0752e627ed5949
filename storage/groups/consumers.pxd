from libc.stdint cimport int64_t, uint32_t, uint64_t
cimport cython

from millstream.storage.groups.due_index cimport DeliveryOrder

cdef bytes known_name(bytes name)


cdef class Consumer:
    cdef readonly bytes name
    cdef readonly uint32_t index
    cdef public int64_t seen_ms
    cdef public int64_t active_ms
    # The last time at which the journal recorded a read without new entries (the effect SEEN).
    cdef public uint64_t noted_ms
    cdef readonly uint64_t pending


# What a group needs once it has a second consumer, a retry pair, a claim or a client that waits to
# claim.
cdef class Details:
    # By name; None while there are few.
    cdef dict by_name
    # The one that was found last: a request looks for its consumer more than once.
    cdef Consumer latest
    cdef list consumers
    cdef list free_consumers
    cdef dict retry_numbers
    cdef list free_retry_times
    cdef uint32_t retry_times_count
    cdef uint32_t retry_times_capacity
    cdef dict large_counts
    # The dead entries by ID, (reason, consumer, text) each: those that may be copied, and those that
    # cannot. None before the first one.
    cdef dict dead
    cdef dict uncopied
    cdef dict claim_waits
    cdef DeliveryOrder order
    # The smallest idle time at which a waiting client claims an entry.
    cdef uint64_t claim_idle_ms
    # The entries that were evicted while they were pending.
    cdef uint64_t lost_pending

    cdef Consumer find(self, bytes name)
    cdef int add(self, Consumer consumer) except -1
    cdef int skip_number(self) except -1
    cdef int remove(self, Consumer consumer) except -1
    cdef uint32_t count(self) noexcept


@cython.no_gc
cdef class Members:
    # None, the only consumer that the group ever had, number 1, or Details.
    cdef object owners
    # Clients that wait on the group. `retry_waiters` of them accept redeliveries.
    cdef public uint32_t blocked_clients
    cdef public uint32_t retry_waiters

    cdef Details details(self)
    cdef Details own_details(self)
    cdef list members(self)
    cdef Consumer numbered(self, uint32_t number)
    cdef int add_member(self, Consumer consumer) except -1
    cdef int remove_member(self, Consumer consumer) except -1
    cdef int skip_number(self) except -1
    cdef uint32_t consumer_count(self) noexcept
    cdef dict large_counts(self)
    cdef uint64_t lost_pending(self) noexcept
    cdef DeliveryOrder order(self)
    cdef uint64_t claim_idle(self) noexcept
    cpdef Consumer consumer(self, bytes name)
    cpdef Consumer make_consumer(self, bytes name, int64_t now_ms)
    cdef int copy_consumer(self, Consumer other) except -1
    cdef int free_numbers(self) except -1
    cdef int add_claim_wait(self, uint64_t min_idle_ms, int change) except -1
