from libc.stdint cimport uint64_t


cdef enum:
    BOUNDS = 17


cdef class Histogram:
    cdef uint64_t[BOUNDS + 1] counts
    cdef uint64_t sum_ns

    cpdef void add(self, uint64_t ns) noexcept
