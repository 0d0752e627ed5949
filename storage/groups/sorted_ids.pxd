from libc.stdint cimport uint32_t, uint64_t
cimport cython

from millstream.entry_id cimport EntryId

cdef enum:
    CHUNK_IDS = 128


cdef struct IdChunk:
    uint32_t used
    EntryId items[CHUNK_IDS]


@cython.no_gc
cdef class SortedIds:
    cdef IdChunk** chunks
    cdef uint32_t count
    cdef uint32_t capacity

    cdef uint32_t chunk_of(self, EntryId at) noexcept
    cdef IdChunk* insert_chunk(self, uint32_t number) except NULL
    cdef void drop_chunk(self, uint32_t number) noexcept
    cdef void join(self, uint32_t number) noexcept
    cdef int add(self, EntryId at) except -1
    cdef void remove(self, EntryId at) noexcept
    cdef bint first_from(self, EntryId start, EntryId* out) noexcept
    cdef uint64_t size_bytes(self) noexcept
