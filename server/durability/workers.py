"""The event loop's interface for persistence, and worker threads.

Disk work runs in order on a separate thread, so no locks are needed: a worker runs one task after
the other, and its results are posted to the loop. Loop and workers are passed in, so a test can run
every step by hand.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from millstream.storage.files.disk import Disk

log = logging.getLogger("millstream.persistence")


class Scheduler(Protocol):
    """The part of an asyncio event loop that persistence uses."""

    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> object: ...
    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> object: ...


class TaskWorker(Protocol):
    """Runs tasks one after the other, outside the event loop."""

    def submit(self, task: Callable[[], None]) -> None: ...
    def drain(self, tell: Callable[[float], None] | None = None) -> None:
        """Return when all tasks submitted so far have run. `tell(seconds)` is called from time to
        time during a long wait."""

    def stop(self) -> None: ...
    def pause(self) -> None:
        """Called inside long tasks: yield the interpreter to the event loop for a moment."""


class ThreadWorker:
    """A thread that runs tasks in order; the first task starts it."""

    # A waiting thread gets the interpreter's lock only when the holder sleeps or after 5 ms.
    _WORK_S = 0.0004
    _REST_S = 0.00005
    _TELL_FIRST_S = 1.0
    _TELL_MAX_S = 30.0

    def __init__(self, name: str, niceness: int = 0) -> None:
        """niceness: how much lower the thread's priority is than the event loop's, 0 to 19."""
        self._niceness = niceness
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._name = name
        self._rested = 0.0
        self._thread: threading.Thread | None = None

    def submit(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def drain(self, tell: Callable[[float], None] | None = None) -> None:
        if self._thread is None:
            return
        done = threading.Event()
        self._tasks.put(done.set)
        started_s = time.monotonic()
        wait_s = self._TELL_FIRST_S
        while not done.wait(wait_s):
            if tell is not None:
                tell(time.monotonic() - started_s)
            wait_s = min(wait_s * 2, self._TELL_MAX_S)

    def stop(self) -> None:
        """Finish the queued tasks and end the thread."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def pause(self) -> None:
        if time.perf_counter() - self._rested > self._WORK_S:
            time.sleep(self._REST_S)
            self._rested = time.perf_counter()

    def _run(self) -> None:
        if self._niceness and sys.platform == "linux":  # where each thread has its own niceness
            with contextlib.suppress(OSError):  # a sandbox may forbid it; tasks still run
                # Not os.nice(0): it sets the priority too, which may be forbidden.
                nice = min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + self._niceness, 19)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("a task of %s failed", self._name)
            del task  # do not keep the task and its objects until the next one arrives


def post(scheduler: Scheduler, callback: Callable[..., object], *args: Any) -> None:
    """Run a callback on the loop, from any thread."""
    try:
        scheduler.call_soon_threadsafe(callback, *args)
    except RuntimeError:  # the loop is closed, so there is no receiver
        log.debug("the event loop is closed")


class Machine(NamedTuple):
    """What persistence uses of the machine. `clock` returns milliseconds since the epoch,
    `steady_clock` milliseconds that never jump; `new_worker(name, niceness)` makes a worker."""

    disk: Disk
    clock: Callable[[], int]
    steady_clock: Callable[[], int]
    scheduler: Scheduler
    new_worker: Callable[[str, int], TaskWorker] = ThreadWorker
