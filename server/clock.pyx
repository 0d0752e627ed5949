# cython: language_level=3
"""The machine's clocks. The executor reads the wall clock once a batch and hands it to commands;
a server under test brings a clock of its own instead."""

from libc.stdint cimport uint64_t

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* out)
    int CLOCK_MONOTONIC
    int CLOCK_REALTIME


cdef uint64_t wall_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t>now.tv_sec * 1000 + <uint64_t>now.tv_nsec // 1000000


cdef uint64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cpdef uint64_t wall_clock_ms() noexcept:
    """Milliseconds since the epoch."""
    return wall_ms()


cpdef uint64_t wall_clock_us() noexcept:
    """Microseconds since the epoch."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t>now.tv_sec * 1000000 + <uint64_t>now.tv_nsec // 1000


cdef class SteadyClock:
    """Milliseconds that never go back and never jump: what has passed by the machine's monotonic
    clock, counted from what the wall clock told when this was made. So the numbers are like unix
    times, and those of one process can be compared with those that an earlier one has recorded."""

    def __init__(self):
        self.ahead_ms = wall_ms() - monotonic_ns() // 1000000

    cdef uint64_t read(self) noexcept:
        return self.ahead_ms + monotonic_ns() // 1000000

    def now_ms(self) -> int:
        return self.read()

    def continue_from(self, uint64_t least_ms) -> None:
        """Go on at `least_ms` if that is later: an earlier process recorded it, and the wall clock
        has gone back since."""
        self.ahead_ms += max(least_ms, self.read()) - self.read()
