"""The machine's clocks. The executor reads the wall clock once per batch and passes the time to
commands. Tests replace it with a clock of their own. Compiled modules use clock.pxd."""

from __future__ import annotations

from time import monotonic_ns, time_ns

NS_PER_MS = 1_000_000


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time_ns() // NS_PER_MS


def wall_clock_us() -> int:
    """Microseconds since the epoch."""
    return time_ns() // 1000


class SteadyClock:
    """Milliseconds that never go back and never jump: the machine's monotonic clock, shifted so
    that it agrees with the wall clock at the time of creation, to the nanosecond: a millisecond
    begins at the same moment on both clocks. The numbers are therefore like unix times, and can be
    compared with numbers that an earlier process recorded. `ahead_ns` is the difference from the
    monotonic clock."""

    def __init__(self) -> None:
        self.ahead_ns = time_ns() - monotonic_ns()

    def now_ms(self) -> int:
        return (self.ahead_ns + monotonic_ns()) // NS_PER_MS

    def continue_from(self, least_ms: int) -> None:
        """Continue at `least_ms` if that is later: an earlier process recorded it, and the wall
        clock has gone back since then."""
        self.ahead_ns += max(0, least_ms - self.now_ms()) * NS_PER_MS
