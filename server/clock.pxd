# The machine's clocks for compiled modules; Python modules have them in execution/clocks. Inline: each
# batch and each group of equal commands reads them.

from libc.stdint cimport uint64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec


cdef inline uint64_t wall_ms() noexcept nogil:
    """Milliseconds since the epoch."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t>now.tv_sec * 1000 + <uint64_t>now.tv_nsec // 1000000


cdef inline uint64_t wall_ns() noexcept nogil:
    """Nanoseconds since the epoch."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef inline uint64_t monotonic_ns() noexcept nogil:
    """Nanoseconds, for durations."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec
