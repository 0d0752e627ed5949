from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.reservations.held_segments cimport Run, Slot


cdef class SegmentList:
    cdef list items  # a Slot or a Run each; None if dropped
    cdef Py_ssize_t first  # the index of the first segment; those before it are dropped
    cdef Py_ssize_t settled_since  # segments settled since the last compaction
    cdef Py_ssize_t found  # the index at which the last open reservation was found, as a guess
    cdef uint32_t node_entries
    cdef uint32_t node_bytes

    cdef Slot oldest(self)
    cdef bint has_settled_first(self) noexcept
    cdef Py_ssize_t index_of(self, const EntryId* at) noexcept
    cdef Slot find_open(self, const EntryId* at, Py_ssize_t* index)
    cdef Py_ssize_t probable_index(self, const EntryId* at) noexcept
    cdef Slot find_entry(self, const EntryId* at)
    cdef int drop_first(self) except -1
    cdef int compact(self) except -1
    cdef bint is_worth_a_run(self, Py_ssize_t at) except -1
    cdef Run run_of(self, Slot slot)
    cdef int remove_dropped(self) except -1
    cpdef int tidy(self) except -1
    cdef uint64_t memory_bytes(self) noexcept
