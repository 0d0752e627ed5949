"""The threads of a worker that run its handler.

`millstream.client.aio.crew` has the same names for tasks.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

from millstream.client.codecs import Codec
from millstream.client.jobs import Delivery, decode_job
from millstream.client.tracing import Tracing

Finish = Callable[[Delivery, BaseException | None], None]
MakeJob = Callable[[Delivery, str, list[Any]], Any]


class Crew:
    """A fixed number of threads, each of which takes a job when it is free.

    Waking a thread takes longer than a short job, so a thread takes jobs until there is none. It
    wakes another one if jobs are left, unless one is being woken already: while handlers wait for
    something, all jobs begin at once, and short jobs need few threads. For the same reason the
    worker is woken for the results when no job is left, or by the next thread that wakes: there is
    one, because a worker has no more jobs than threads.
    """

    def __init__(
        self,
        size: int,
        handler: Callable[[Any], Any],
        make_job: MakeJob,
        finish: Finish,
        wake: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._make_job = make_job
        self._finish = finish
        self._wake = wake
        self._has_results = False
        """True if the worker was not woken since the last result."""
        self._jobs: deque[tuple[Delivery, Any]] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._waking = False
        self._busy: set[Delivery] = set()
        """Deliveries whose handlers run. A thread whose delivery is not here any more was replaced,
        and ends."""
        self._closed = False
        self._threads = 0
        for _ in range(size):
            self._add_thread()

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(
            target=self._work, name=f"millstream-worker-{self._threads}", daemon=True
        ).start()

    def begin(self, delivery: Delivery, shard: str, entry: list[Any]) -> None:
        """Run the handler in the next free thread."""
        self._jobs.append((delivery, self._make_job(delivery, shard, entry)))
        self._wake_one()

    def _wake_one(self) -> None:
        if not self._waking:
            self._waking = True
            self._wakes.put(None)

    def abandon(self, delivery: Delivery) -> None:
        """A handler does not end: another thread takes the place of its thread."""
        try:
            self._busy.remove(delivery)
        except KeyError:
            return  # it has not begun, or has just ended
        self._add_thread()

    def close(self) -> None:
        """End the threads, those of handlers that run as soon as these have ended."""
        self._closed = True
        for _ in range(self._threads):
            self._wakes.put(None)

    def _work(self) -> None:
        while True:
            self._wakes.get()
            self._waking = False  # before the look for jobs: one that is added later wakes again
            self._hand_in()
            while self._jobs:
                try:
                    delivery, job = self._jobs.popleft()
                except IndexError:
                    break
                if self._jobs:
                    self._wake_one()
                if not delivery.lost and not self._run(delivery, job):
                    return
            self._hand_in()
            if self._closed:
                return

    def _hand_in(self) -> None:
        if self._has_results:
            self._has_results = False
            self._wake()

    def _run(self, delivery: Delivery, job: Any) -> bool:
        """Run the handler. False if this thread was replaced meanwhile."""
        failed: BaseException | None = None
        self._busy.add(delivery)
        try:
            self._handler(job)
        except BaseException as error:
            failed = error
        try:
            self._busy.remove(delivery)
        except KeyError:
            return False
        self._finish(delivery, failed)
        self._has_results = True
        return True


def with_values(
    codec: Codec[Any] | None, tracing: Tracing | None, handler: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """A handler whose jobs have values, with a span for each."""
    if codec is None and tracing is None:
        return handler

    def handle(job: Any) -> None:
        with nullcontext() if tracing is None else tracing.processing(job):
            decode_job(codec, job)
            handler(job)

    return handle


def check_handler(handler: Any) -> None:
    """Raises ValueError for what cannot be called, or must be awaited."""
    if not callable(handler):
        raise ValueError(f"a handler must be a function, not {handler!r}")
    if is_coroutine(handler):
        raise ValueError("a handler that is a coroutine needs the client of millstream.client.aio")


def is_coroutine(handler: Any) -> bool:
    """True for a coroutine function, and for an object that is called like one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004
    )
