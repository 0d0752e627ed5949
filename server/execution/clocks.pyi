from collections.abc import Callable

from millstream.server.clock import SteadyClock

class Clocks:
    def __init__(
        self,
        wall_call: Callable[[], int] | None = None,
        steady_clock: SteadyClock | None = None,
        steady_call: Callable[[], int] | None = None,
    ) -> None: ...
    @property
    def ahead_ms(self) -> int: ...
    def follow(self, primary_ahead_ms: int) -> None: ...
    def now(self) -> tuple[int, int]: ...
