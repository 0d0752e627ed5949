from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.groups.pending cimport Chunk, Pending, PendingAt, Pendings


cdef class SharedPending

cdef Pendings* nothing_pending() noexcept
cdef Pending* record_at(Pendings* pendings, PendingAt* at) noexcept
cdef Pending* first_pending(Pendings* pendings, EntryId entry_id, PendingAt* at) noexcept
cdef Pending* find_pending(Pendings* pendings, EntryId entry_id, PendingAt* at) noexcept
cdef Pending* next_pending(Pendings* pendings, PendingAt* at) noexcept
cdef Pending* advance_pending(Pendings* pendings, PendingAt* at, EntryId entry_id) noexcept
cdef uint64_t count_pending(Pendings* pendings, EntryId start, EntryId end) noexcept
cdef uint64_t count_up_to(Pendings* pendings, PendingAt at, EntryId entry_id) noexcept
cdef Chunk* chunk_with_space(Pendings* pendings, PendingAt* at) except NULL
cdef void lower_floor(Pendings* pendings, uint32_t place, const Pending* first) noexcept
cdef Chunk* own_chunk(Pendings* pendings, uint32_t place) except NULL
cdef uint32_t place_of(Pendings* pendings, Chunk* chunk) noexcept
cdef int drop_chunk(Pendings* pendings, uint32_t place) noexcept
cdef int merge_small(Pendings* pendings, uint32_t place) except -1
cdef int close_gaps(Pendings* pendings) except -1
cdef SharedPending share_chunks(Pendings* pendings, uint32_t place, uint32_t count)
cdef int free_pendings(Pendings* pendings) noexcept
cdef Pendings* allocated(Pendings* pendings) except NULL
cdef Chunk* insert_record(Pendings* pendings, PendingAt* at, const Pending* record) except NULL
cdef int erase_record(Pendings* pendings, PendingAt* at) except -1
cdef int copy_chunks(Pendings* pendings, Pendings* other) except -1


cdef class SharedPending:
    cdef Chunk** chunks
    cdef uint32_t count
    cdef readonly uint64_t records

    cdef int take_over(self, Pendings* gone) except -1
    cdef void release(self, uint32_t place) noexcept
