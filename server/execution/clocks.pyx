# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The wall clock and the steady clock, and reading them together. The executor reads them once per
batch and passes the times to commands. Tests replace them with clocks of their own.

Both count in whole milliseconds, but their milliseconds do not begin at the same moment, and one clock
is read after the other. Their difference, taken from two readings, therefore varies by a
millisecond from one pair of readings to the next, and a time that is converted to the other clock
and back would be another time. So the difference is kept until one of the clocks jumps.
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.server.clock cimport monotonic_ns, wall_ms, wall_ns

cdef enum:
    # Two readings of clocks that have not jumped differ by at most this much from the difference
    # that is kept.
    ROUNDING_MS = 1
    NS_PER_MS = 1000000
    # Attempts to read both clocks without an interruption of the process between the readings.
    ATTEMPTS = 10


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return wall_ms()


def wall_clock_us() -> int:
    """Microseconds since the epoch."""
    return wall_ns() // 1000


cdef class SteadyClock:
    """Milliseconds that never go back and never jump: the machine's monotonic clock, shifted so
    that it agrees with the wall clock at the time of creation, to the nanosecond: a millisecond
    begins at the same moment on both clocks. The numbers are therefore like unix times, and can be
    compared with numbers that an earlier process recorded. `ahead_ns` is the difference from the
    monotonic clock."""

    def __init__(self):
        self.ahead_ns = <int64_t>(wall_ns() - monotonic_ns())

    cdef uint64_t read_ms(self) noexcept:
        return (monotonic_ns() + <uint64_t>self.ahead_ns) // NS_PER_MS

    def now_ms(self) -> int:
        return self.read_ms()

    def continue_from(self, uint64_t least_ms) -> None:
        """Continue at `least_ms` if that is later: an earlier process recorded it, and the wall
        clock has gone back since then."""
        cdef uint64_t now_ms = self.read_ms()
        if least_ms > now_ms:
            self.ahead_ns += <int64_t>((least_ms - now_ms) * NS_PER_MS)


cdef class Clocks:
    """`wall_call` returns the time of day, `steady_call` the time of a clock that never jumps.
    None for the first means the machine's wall clock; a `steady_clock` is read without a call.
    With neither steady clock there is only one clock.

    `ahead_ms` is how far the wall clock is ahead of the steady clock: constant until one of them
    jumps, and then the difference that is measured. `primary_ahead_ms` is the wall clock of this
    server's primary minus this one."""

    def __init__(self, wall_call=None, SteadyClock steady_clock=None, steady_call=None):
        self.wall_call = wall_call
        self.steady_clock = steady_clock
        self.steady_call = steady_call

    def follow(self, int64_t primary_ahead_ms) -> None:
        """Keys expire by the clock of the primary, which is ahead of this one; 0 without a primary."""
        self.primary_ahead_ms = primary_ahead_ms

    def now(self) -> tuple[int, int]:
        """The time of day and the time of the steady clock, in milliseconds."""
        cdef uint64_t wall
        cdef uint64_t steady
        self.read(&wall, &steady)
        return wall, steady

    cdef int read(self, uint64_t* wall, uint64_t* steady) except -1:
        """`now`, for compiled modules."""
        cdef int64_t apart_ms
        wall[0] = self.read_wall()
        steady[0] = self.read_steady(wall[0])
        apart_ms = <int64_t>(wall[0] - steady[0]) - self.ahead_ms
        if not self.has_measured or apart_ms < -ROUNDING_MS or apart_ms > ROUNDING_MS:
            self.read_again(wall, steady)
        return 0

    cdef int read_again(self, uint64_t* wall, uint64_t* steady) except -1:
        """Determine whether one of the clocks has jumped, or time passed between the readings; after a
        jump, the difference is measured."""
        cdef int64_t most_ms
        cdef int64_t least_ms
        cdef uint64_t before
        cdef int _
        for _ in range(ATTEMPTS):
            before = self.read_steady(wall[0])
            wall[0] = self.read_wall()
            steady[0] = self.read_steady(wall[0])
            most_ms = <int64_t>(wall[0] - before) + ROUNDING_MS
            least_ms = <int64_t>(wall[0] - steady[0]) - ROUNDING_MS
            if steady[0] == before:
                break
        if not self.has_measured or not least_ms <= self.ahead_ms <= most_ms:
            self.ahead_ms = <int64_t>(wall[0] - steady[0])
            self.has_measured = True
        return 0

    cdef uint64_t read_wall(self) except? 0:
        return wall_ms() if self.wall_call is None else self.wall_call()

    cdef uint64_t read_steady(self, uint64_t wall) except? 0:
        """The steady clock; `wall` if there is only one clock."""
        if self.steady_clock is not None:
            return self.steady_clock.read_ms()
        return wall if self.steady_call is None else self.steady_call()
