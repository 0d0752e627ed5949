from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_list cimport PendingList


cdef uint64_t rounded_up(uint64_t span_ms) noexcept
cdef uint32_t claim_retry_number(Group group, uint64_t now_ms, uint64_t delivery_ms) except? 0
cdef Pending* held_by(PendingList pending, EntryId at_id, uint32_t consumer, PendingAt* at) noexcept
cdef list ids_held_by(PendingList pending, uint32_t consumer)
cdef int take_back_later(PendingList pending, EntryId at_id) except -1
cdef int take_again(PendingList pending, EntryId at_id, uint32_t owner, uint64_t now_ms,
                    uint32_t retry_number) except -1
cdef int take_next(PendingList pending, EntryId at_id, PendingAt* at, uint32_t owner, uint64_t now_ms,
                   uint32_t retry_number) except -1
cpdef int give_back(PendingList pending, uint64_t ms, uint64_t seq, bytes count, uint64_t now_ms,
                    uint64_t delay_ms) except -1
cdef int give_back_at(PendingList pending, EntryId at_id, PendingAt* at, int64_t deliveries,
                      uint64_t now_ms, uint64_t delay_ms) except -1
cpdef int keep_dead(PendingList pending, uint64_t ms, uint64_t seq, tuple facts) except -1
cpdef int extend(PendingList pending, uint64_t ms, uint64_t seq, uint64_t now_ms,
                 uint64_t span_ms) except -1
