from millstream.storage.skiplist cimport SkipList

cdef bint is_deferring() noexcept
cdef int discard(SkipList blocks) except -1
cdef int discard_part(SkipList part) except -1
cdef int free_parts(SkipList whole) except -1
cpdef int discard_items(items) except -1
cdef int discard_pending(shared) except -1
cpdef bint has_waste() noexcept
