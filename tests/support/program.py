"""Runs an asyncio program while its server is restarted.

The program runs in a separate thread, and the restart in the caller's thread: a server's process
ends with the thread that started it (support/server.py), and the clients must experience the time
in between.
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
    """Run `program(restart)` to its end; it may await `restart()` any number of times."""
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

    # A daemon: a library that blocks at its end must not block the tests.
    threading.Thread(target=in_thread, daemon=True).start()
    while (is_done := asked.get(timeout=PROGRAM_DEADLINE_S + EXIT_DEADLINE_S)) is not None:
        try:
            server.restart(way)
        finally:
            is_done.set()
    return result.result()
