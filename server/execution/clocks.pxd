from libc.stdint cimport int64_t, uint64_t


cdef class SteadyClock:
    cdef readonly int64_t ahead_ns

    cdef uint64_t read_ms(self) noexcept


cdef class Clocks:
    cdef object wall_call
    cdef SteadyClock steady_clock
    cdef object steady_call
    cdef readonly int64_t ahead_ms
    cdef int64_t primary_ahead_ms
    cdef bint has_measured

    cdef int read(self, uint64_t* wall, uint64_t* steady) except -1
    cdef int read_again(self, uint64_t* wall, uint64_t* steady) except -1
    cdef uint64_t read_wall(self) except? 0
    cdef uint64_t read_steady(self, uint64_t wall) except? 0
