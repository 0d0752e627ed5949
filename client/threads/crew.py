"""The threads of a worker that run its handler.

`millstream.client.aio.crew` has the same names for tasks.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, Protocol

from millstream.client.codecs import Codec
from millstream.client.jobs import Delivery, decode_job
from millstream.client.tracing import Tracing

Finish = Callable[[Delivery, BaseException | None], bool]
MakeJob = Callable[[Delivery, str, list[Any]], Any]


class Wakes(Protocol):
    """A waker of either API."""

    def wake(self) -> None: ...


class Crew:
    """A fixed number of threads, each of which takes a job when it is free.

    Waking a thread takes longer than a short job, so a thread takes jobs until there is none. If
    jobs are left when a thread takes one, another thread comes next: while handlers wait for
    something, all jobs begin at once, and short jobs need few threads. The thread wakes that one,
    unless one is being woken already, or the worker attends: it wakes one before it waits.

    For the same reason the worker is woken for the results when no job is left, or by the next
    thread that wakes: there is one, because a worker has no more jobs than threads.
    """

    def __init__(
        self,
        size: int,
        handler: Callable[[Any], Any],
        make_job: MakeJob,
        finish: Finish,
        waker: Wakes,
    ) -> None:
        self._handler = handler
        self._make_job = make_job
        self._finish = finish
        self._wake = waker.wake
        self._has_results = False
        """True if the worker has to look at results and was not woken."""
        self._attended = False
        """True while the worker decides, and looks at the results and the jobs before it waits."""
        self._jobs: deque[tuple[Delivery, Any]] = deque()
        self._turns: list[threading.Lock] = []
        """A lock for each thread, which waits for it."""
        self._idle: list[threading.Lock] = []
        """Those of the threads that wait; the last one to wait is woken first. A SimpleQueue
        for all of them would wake two threads for each job."""
        self._waking = False
        """True from the wake of a thread until it looks for jobs."""
        self._busy: set[Delivery] = set()
        """Deliveries whose handlers run. A thread whose delivery is not here any more was replaced,
        and ends."""
        self._closed = False
        self._threads = 0
        for _ in range(size):
            self._add_thread()

    def _add_thread(self) -> None:
        turn = threading.Lock()
        turn.acquire()
        self._turns.append(turn)
        self._threads += 1
        name = f"millstream-worker-{self._threads}"
        threading.Thread(target=self._work, args=(turn,), name=name, daemon=True).start()

    def attend(self) -> None:
        """The worker decides now."""
        self._has_results = False
        self._attended = True

    def leave(self) -> bool:
        """The worker is going to wait. True if there are results that it has to look at first."""
        self._attended = False  # first: from now on, threads wake others
        if self._jobs:
            self._wake_one()
        return self._has_results

    def begin(self, delivery: Delivery, shard: str, entry: list[Any]) -> None:
        """Run the handler in the next free thread."""
        self._jobs.append((delivery, self._make_job(delivery, shard, entry)))
        self._wake_one()

    def _wake_one(self) -> None:
        if self._waking:
            return
        try:
            turn = self._idle.pop()
            self._waking = True
            turn.release()
        except IndexError:
            pass  # every thread looks for jobs and results before it waits
        except RuntimeError:
            pass  # `close` has released it

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
        for turn in list(self._turns):
            with suppress(RuntimeError):  # the thread does not wait
                turn.release()

    def _work(self, turn: threading.Lock) -> None:
        while self._has_turn(turn):
            self._waking = False  # before the look for jobs: one that is added later wakes again
            self._hand_in()
            while self._jobs:
                try:
                    delivery, job = self._jobs.popleft()
                except IndexError:
                    break
                if (self._jobs or self._has_results) and not self._attended:
                    self._wake_one()
                if not delivery.lost and not self._run(delivery, job):
                    self._turns.remove(turn)
                    return
            self._hand_in()

    def _has_turn(self, turn: threading.Lock) -> bool:
        """Wait until there are jobs or results. False if the crew is closed."""
        self._idle.append(turn)
        # Jobs and results may have come just before: then no thread was woken for them.
        if self._jobs or self._closed or (self._has_results and not self._attended):
            with suppress(ValueError):  # it is being woken
                self._idle.remove(turn)
                return not self._closed
        turn.acquire()
        return not self._closed

    def _hand_in(self) -> None:
        if self._has_results and not self._attended:
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
        if self._finish(delivery, failed):
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
