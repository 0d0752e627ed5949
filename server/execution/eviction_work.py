"""`maxmemory` in the executor: a turn's work before a client's requests, and more in later turns.
Commands that need memory are also refused while an allocation has failed
(memory_reserve).

What the work is, and when commands that need memory are refused, is in server/monitor/eviction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from millstream.memory_reserve import RESERVE

if TYPE_CHECKING:
    from millstream.server.execution.admission import Admission
    from millstream.server.monitor.eviction import Eviction


class LimitedExecutor(Protocol):
    """The owner of turns, which refuses commands that need memory: the executor."""

    admission: Admission
    memory_limit: int
    loading: bool
    loop: Any

    def recheck_limits(self) -> None: ...
    def schedule_tick(self) -> int: ...


class EvictionWork:
    """Brings used memory back within its limit, and tells the admission whether to refuse commands
    that need memory."""

    def __init__(self, executor: LimitedExecutor) -> None:
        self._executor = executor
        self._eviction: Eviction | None = None
        self._is_scheduled = False

    def limit_memory(self, eviction: Eviction) -> None:
        """Use the limit of `eviction`, which may have changed."""
        self._eviction = eviction
        self._executor.memory_limit = eviction.limit_bytes
        self.check_memory()

    def check_memory(self) -> None:
        """Do one turn's work, and continue in the next turns while there is more. This needs no
        request."""
        self._is_scheduled = False
        if self._eviction is None or self._executor.loading:
            return
        self._executor.recheck_limits()
        self.enforce_limit()
        self._executor.schedule_tick()

    def enforce_limit(self) -> None:
        """Do one turn's work."""
        eviction = self._eviction
        assert eviction is not None  # there is a limit
        full = eviction.evict_to_limit()
        self._executor.admission.set_memory(full=full, lacking=RESERVE.is_short)
        if eviction.goes_on and not self._is_scheduled:
            self._is_scheduled = True
            self._executor.loop.call_soon(self.check_memory)

    def tick_second(self) -> None:
        """Measure memory again, which may be free by now."""
        RESERVE.retake()
        if self._executor.memory_limit:
            self.check_memory()
        else:
            self._executor.admission.set_memory(full=False, lacking=RESERVE.is_short)

    def refuse_all(self) -> None:
        """An allocation has failed: refuse commands that need memory."""
        self._executor.admission.set_memory(full=False, lacking=True)
