from libc.stdint cimport uint64_t

cdef class SteadyClock:
    cdef uint64_t ahead_ms

    cdef uint64_t read(self) noexcept


cdef uint64_t wall_ms() noexcept nogil
cdef uint64_t monotonic_ns() noexcept nogil
cpdef uint64_t wall_clock_ms() noexcept
cpdef uint64_t wall_clock_us() noexcept
