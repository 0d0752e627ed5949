"""The machine's clocks. The executor reads the wall clock once a batch and hands it to commands;
a server under test brings a clock of its own instead. Compiled modules read them by clock.pxd."""

from __future__ import annotations

from time import monotonic_ns, time_ns


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time_ns() // 1_000_000


def wall_clock_us() -> int:
    """Microseconds since the epoch."""
    return time_ns() // 1000


class SteadyClock:
    """Milliseconds that never go back and never jump: the time that has passed by the machine's
    monotonic clock, counted from what the wall clock showed when this was made. So the numbers are
    like unix times, and those of one process can be compared with those that an earlier one has
    recorded. `ahead_ms` is how far they are ahead of the monotonic clock."""

    def __init__(self) -> None:
        self.ahead_ms = wall_clock_ms() - _monotonic_ms()

    def now_ms(self) -> int:
        return self.ahead_ms + _monotonic_ms()

    def continue_from(self, least_ms: int) -> None:
        """Go on at `least_ms` if that is later: an earlier process recorded it, and the wall clock
        has gone back since."""
        self.ahead_ms += max(0, least_ms - self.now_ms())


def _monotonic_ms() -> int:
    return monotonic_ns() // 1_000_000
