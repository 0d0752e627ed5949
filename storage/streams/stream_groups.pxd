from libc.stdint cimport uint64_t
cimport cython


@cython.no_gc
cdef class StreamGroups:
    # The Group of a stream that has one; otherwise `by_name` has them, None for no group. Objects,
    # so that a change of Group's declaration recompiles only what uses groups.
    cdef object only
    cdef dict by_name
    cdef bint has_ttl

    cdef uint64_t count(self) noexcept
    cdef list all(self)
    cdef dict by_names(self)
    cdef object find(self, bytes name)
    cdef int add(self, group) except -1
    cdef bint drop(self, bytes name)
    cdef int set_ttl(self, group, uint64_t ttl_ms) except -1
    cdef uint64_t live_count(self, uint64_t now_ms) except? 0xffffffffffffffff
    cdef list due(self, uint64_t now_ms)
    cdef bint is_held(self, uint64_t ms, uint64_t seq) noexcept
    cdef bint has_pending(self, uint64_t ms, uint64_t seq) noexcept
    cdef int forget_gone(self) except -1
    cdef uint64_t size_bytes(self) except? 0xffffffffffffffff


cdef StreamGroups no_groups()
