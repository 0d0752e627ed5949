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
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from millstream.storage.files.disk import Disk

log = logging.getLogger("millstream.persistence")


class Scheduler(Protocol):
    """The part of an asyncio event loop that persistence and replication use."""

    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> object: ...
    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> object: ...
    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> object: ...


class TaskWorker(Protocol):
    """Runs tasks one after the other, outside the event loop."""

    def start(self) -> bool:
        """Prepare the worker before it is needed. False when its tasks have to run in the event
        loop."""

    def submit(self, task: Callable[[], None]) -> None: ...
    def drain(self, tell: Callable[[float], None] | None = None) -> None:
        """Return when all tasks submitted so far have run. `tell(seconds)` is called from time to
        time during a long wait."""

    def stop(self) -> None: ...
    def pause(self) -> None:
        """Called inside long tasks: yield the interpreter to the event loop for a moment."""

    def set_urgent(self, urgent: bool) -> None:
        """While it is urgent, tasks run with the priority of the event loop."""


class ThreadWorker:
    """A thread that runs tasks in order. `start` starts it, or else the first task.

    If no thread can be started (a limit of processes or of memory), each task runs at once in the
    thread that submits it, until one can. To everything else, this looks like a very fast worker.
    """

    # A waiting thread gets the interpreter's lock only when the holder sleeps or after 5 ms.
    _WORK_S = 0.0004
    _REST_S = 0.00005
    _TELL_FIRST_S = 1.0
    _TELL_MAX_S = 30.0
    _RETRY_S = 10.0

    def __init__(self, name: str, niceness: int = 0) -> None:
        """niceness: how much lower the thread's priority is than the event loop's, 0 to 19."""
        self._niceness = niceness
        self._is_urgent = False
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._name = name
        self._rested = 0.0
        self._thread: threading.Thread | None = None
        self._retry_at_s = 0.0  # set while no thread can be started
        self._inline: deque[Callable[[], None]] = deque()
        self._is_inline_running = False
        self._lock = threading.RLock()  # held while tasks run inline: other threads wait

    def start(self) -> bool:
        """Start the thread before it is needed. False when that fails, which is logged."""
        with self._lock:
            now_s = time.monotonic()
            if self._thread is not None:
                return True
            if now_s < self._retry_at_s:
                return False
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                self._note_failure(error)
                self._retry_at_s = now_s + self._RETRY_S
                return False
            if self._retry_at_s:
                log.warning("the thread %s is started after all", self._name)
                self._retry_at_s = 0.0
            self._thread = thread
            return True

    def _note_failure(self, error: Exception) -> None:
        if not self._retry_at_s:
            log.warning(
                "the thread %s cannot be started: %s. The event loop does its work, so that all"
                " clients wait for the disk. Check the limits of processes and of memory",
                self._name,
                str(error) or "no memory",
            )

    def submit(self, task: Callable[[], None]) -> None:
        if self._thread is not None:
            self._tasks.put(task)
            return
        with self._lock:
            if not self._is_inline_running and self.start():
                self._tasks.put(task)
                return
            self._inline.append(task)  # a task that runs may submit others, which come after it
            if not self._is_inline_running:
                self._run_inline()

    def drain(self, tell: Callable[[float], None] | None = None) -> None:
        if self._thread is None:
            with self._lock:  # another thread may run tasks
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
        if self._thread is None:
            return  # the event loop itself runs the task
        if time.perf_counter() - self._rested > self._WORK_S:
            time.sleep(self._REST_S)
            self._rested = time.perf_counter()

    def set_urgent(self, urgent: bool) -> None:
        """A thread may lower its priority, and mostly not raise it: another thread takes over after
        the running task."""
        if urgent == self._is_urgent or self._thread is None or not self._niceness:
            return
        if not urgent:
            self._is_urgent = False
            self.submit(self._lower_priority)
            return
        earlier = self._thread
        thread = threading.Thread(
            target=self._run_after, args=(earlier,), name=self._name, daemon=True
        )
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            return  # the earlier thread continues
        self._is_urgent = True
        self._thread = thread
        self._tasks.put(lambda: None)  # the earlier thread may be waiting for a task

    def _run(self) -> None:
        self._lower_priority()
        self._run_tasks()

    def _run_after(self, earlier: threading.Thread) -> None:
        earlier.join()
        self._run_tasks()

    def _run_tasks(self) -> None:
        here = threading.current_thread()
        while (task := self._tasks.get()) is not None:
            self._run_one(task)
            del task  # do not keep the task and its objects until the next one arrives
            if self._thread is not here:
                return  # another thread takes over

    def _lower_priority(self) -> None:
        if self._niceness and sys.platform == "linux":  # where each thread has its own niceness
            with contextlib.suppress(OSError):  # a sandbox may forbid it; tasks still run
                # Not os.nice(0): it sets the priority too, which may be forbidden.
                nice = min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + self._niceness, 19)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)

    def _run_inline(self) -> None:
        self._is_inline_running = True
        try:
            while self._inline:
                self._run_one(self._inline.popleft())
        finally:
            self._is_inline_running = False

    def _run_one(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception:
            log.exception("a task of %s failed", self._name)


def post(scheduler: Scheduler, callback: Callable[..., object], *args: Any) -> None:
    """Run a callback on the loop, from any thread."""
    try:
        scheduler.call_soon_threadsafe(callback, *args)
    except RuntimeError:  # the loop is closed, so there is no receiver
        log.debug("the event loop is closed")


class Machine:
    """The machine for persistence and replication. `clock` returns milliseconds since the
    epoch, `steady_clock` milliseconds that never jump; `new_worker(name, niceness)` makes a
    worker. `thread_s` returns the CPU time of the calling thread, in seconds."""

    def __init__(
        self,
        disk: Disk,
        clock: Callable[[], int],
        steady_clock: Callable[[], int],
        scheduler: Scheduler,
        new_worker: Callable[[str, int], TaskWorker] = ThreadWorker,
        thread_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.steady_clock = steady_clock
        self.scheduler = scheduler
        self.new_worker = new_worker
        self.thread_s = thread_s
