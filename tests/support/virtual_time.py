"""An event loop whose clock jumps to the next timer as soon as nothing else is left to run."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _NoWait(selectors.SelectSelector):
    """Waits for nothing: the time of the wait has passed at once."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("all tasks wait, and no timer is left")
        self.passed_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For tasks that use timers and each other, but no sockets and no threads."""

    def __init__(self) -> None:
        self._no_wait = _NoWait()
        super().__init__(self._no_wait)

    def time(self) -> float:
        return self._no_wait.passed_s


def run_at_once(main: Coroutine[Any, Any, Result]) -> Result:
    """As asyncio.run, in a VirtualLoop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
