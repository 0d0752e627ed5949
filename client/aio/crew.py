"""The tasks of a worker that run its handler.

`millstream.client.threads.crew` has the same names for threads. A handler that is no coroutine
function runs in such threads, so that it does not stop the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from millstream.client.aio.concurrency import Waker
from millstream.client.codecs import Codec
from millstream.client.jobs import Delivery, decode_job
from millstream.client.threads import crew as threads
from millstream.client.tracing import Tracing

CLOSE_S = 1.0
"""The time that cancelled handlers get to end."""


class Crew:
    """A task for each job, or threads for a plain function."""

    def __init__(
        self,
        size: int,
        handler: Callable[[Any], Any],
        make_job: threads.MakeJob,
        finish: threads.Finish,
        waker: Waker,
    ) -> None:
        self._handler = handler
        self._make_job = make_job
        self._finish = finish
        self._wake = waker.wake_here
        self._tasks: dict[Delivery, asyncio.Task[None]] = {}
        self._left: set[asyncio.Task[None]] = set()
        """Cancelled tasks that have not ended."""
        self._threads = (
            None
            if threads.is_coroutine(handler)
            else threads.Crew(size, handler, make_job, finish, waker)
        )

    def attend(self) -> None:
        """The worker decides now."""
        if self._threads is not None:
            self._threads.attend()

    def leave(self) -> bool:
        """The worker is going to wait. True if there are results that it has to look at first."""
        return self._threads is not None and self._threads.leave()

    def begin(self, delivery: Delivery, shard: str, entry: list[Any]) -> None:
        """Run the handler."""
        if self._threads is not None:
            self._threads.begin(delivery, shard, entry)
            return
        job = self._make_job(delivery, shard, entry)
        self._tasks[delivery] = asyncio.create_task(self._run(delivery, job))

    def abandon(self, delivery: Delivery) -> None:
        """Cancel a handler that does not end."""
        if self._threads is not None:
            self._threads.abandon(delivery)
            return
        task = self._tasks.pop(delivery, None)
        if task is not None:
            task.cancel()
            self._left.add(task)
            task.add_done_callback(self._left.discard)

    async def close(self) -> None:
        """End the tasks or threads."""
        if self._threads is not None:
            self._threads.close()
        for delivery in list(self._tasks):
            self.abandon(delivery)
        if self._left:
            await asyncio.wait(self._left, timeout=CLOSE_S)

    async def _run(self, delivery: Delivery, job: Any) -> None:
        failed: BaseException | None = None
        try:
            await self._handler(job)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            failed = error
        if self._tasks.pop(delivery, None) is not None and self._finish(delivery, failed):
            self._wake()


def with_values(
    codec: Codec[Any] | None, tracing: Tracing | None, handler: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """A handler whose jobs have values, with a span for each."""
    if not threads.is_coroutine(handler) or (codec is None and tracing is None):
        return threads.with_values(codec, tracing, handler)

    async def handle(job: Any) -> None:
        with nullcontext() if tracing is None else tracing.processing(job):
            decode_job(codec, job)
            await handler(job)

    return handle


def check_handler(handler: Any) -> None:
    """Raises ValueError for what cannot be called."""
    if not callable(handler):
        raise ValueError(f"a handler must be a function, not {handler!r}")
