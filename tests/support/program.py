"""An asyncio program that runs on while the server under it is restarted.

The program runs in a thread and the restart happens in the caller's: a server's process ends with
the thread that started it (support/server.py), and the clients are to see the time in between.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from .server import Server

Result = TypeVar("Result")
Restart = Callable[[], Awaitable[None]]

PROGRAM_DEADLINE_S = 60
EXIT_DEADLINE_S = 10


def run_with_restarts(
    server: Server, program: Callable[[Restart], Coroutine[Any, Any, Result]], way: str = "SIGKILL"
) -> Result:
    """Run `program(restart)` to its end; it may await `restart()` as often as it likes."""
    asked: queue.Queue[threading.Event | None] = queue.Queue()

    async def restart() -> None:
        is_done = threading.Event()
        asked.put(is_done)
        await asyncio.to_thread(is_done.wait)

    async def run() -> Result:
        async with asyncio.timeout(PROGRAM_DEADLINE_S):
            return await program(restart)

    result: Future[Result] = Future()

    def in_thread() -> None:
        try:
            result.set_result(asyncio.run(run()))
        except BaseException as error:
            result.set_exception(error)
        finally:
            asked.put(None)

    # A daemon: a library that blocks at its end must not hold up the tests.
    threading.Thread(target=in_thread, daemon=True).start()
    while (is_done := asked.get(timeout=PROGRAM_DEADLINE_S + EXIT_DEADLINE_S)) is not None:
        try:
            server.restart(way)
        finally:
            is_done.set()
    return result.result()
