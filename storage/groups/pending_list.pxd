from libc.stdint cimport int64_t, uint32_t, uint64_t
cimport cython

from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer, Members
from millstream.storage.groups.due_index cimport DueIds
from millstream.storage.groups.pending cimport Chunk, Pending, PendingAt, Pendings
from millstream.storage.groups.pending_chunks cimport SharedPending


@cython.no_gc
cdef class PendingList(Members):
    cdef Pendings* records

    cpdef uint32_t retry_number(self, uint64_t retry_ms, uint64_t expire_ms) except? 0
    cdef int put(self, Pending* record) except -1
    cdef int deliver(self, uint64_t ms, uint64_t seq, uint64_t now_ms, uint32_t consumer,
                     uint32_t retry_number) except -1
    cdef size_t deliver_some(self, const EntryId* ids, size_t count, uint64_t now_ms,
                             uint32_t consumer, uint32_t retry_number) except 0
    cdef int insert(self, PendingAt* at, Pending* record) except -1
    cdef int erase(self, PendingAt* at) except -1
    cdef int count_owner(self, uint32_t consumer, int change) except -1
    cdef int leave_owner(self, Pending* record) except -1
    cdef int end_wait(self, Pending* record) except -1
    cdef void count_retry(self, uint32_t retry_number, int change) noexcept
    cpdef bint acknowledge(self, uint64_t ms, uint64_t seq) except -1
    cdef int redeliver(self, Pending* record, PendingAt* at, uint64_t now_ms, uint32_t retry_number,
                       bint change_retry) except -1
    cdef int transfer(self, PendingAt* at, uint32_t consumer, uint64_t delivery_ms,
                       int64_t deliveries, uint32_t retry_number) except -1
    cpdef int claim(self, uint64_t ms, uint64_t seq, Consumer consumer, uint64_t delivery_ms,
                    bytes count, uint32_t retry_number) except -1
    cdef int note_again(self, uint64_t ms, uint64_t seq, uint64_t at_ms, uint64_t now_ms) except -1
    cpdef int release(self, uint64_t ms, uint64_t seq, bytes count, uint64_t now_ms) except -1
    cdef int64_t deliveries(self, const Pending* record) except -1
    cdef int set_deliveries(self, Pending* record, int64_t deliveries) except -1
    cdef int forget_count(self, const Pending* record) except -1
    cdef int mark_gone(self, uint64_t ms, uint64_t seq) except -1
    cdef int forget_gone(self) except -1
    cdef uint64_t claim_bound(self) noexcept
    cdef DueIds take_due(self, uint64_t now_ms, uint64_t limit, bint with_zero,
                         bint with_waiting=*)
    cdef list idle_ids(self, uint64_t now_ms, uint64_t min_idle_ms, uint64_t limit)
    cdef tuple row(self, const Pending* record)
    cdef SharedPending share_pending(self)
    cdef Chunk* set_record(self, PendingAt* at, uint32_t consumer, uint64_t delivery_ms,
                           int64_t deliveries, uint32_t retry_number) except NULL


cdef int64_t deliveries_of(const Pending* record, dict large_counts) except -1
