"""Pauses in which the whole machine stood still, as a virtual machine does while its host gives it
no time.

A client sees such a pause as a slow reply, whatever the server does. On each core a process of
real-time priority wakes every millisecond. If it runs late, the core was not available. The reason
may also be a long system call of the server, so only times without any available core count.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from types import FrameType

STEP_S = 0.001
LATE_S = 0.0005
PRIORITY, CLIENT_PRIORITY = 60, 10

Span = tuple[float, float]


class Pauses:
    """The pauses that `watched_pauses` has found; none before it has ended."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def within(self, began: float, ended: float) -> float:
        """Seconds of pauses between two readings of `time.perf_counter`."""
        return sum(end - start for start, end in common(self.spans, [(began, ended)]))


@contextlib.contextmanager
def watched_pauses(cores: Collection[int]) -> Iterator[Pauses]:
    """Watch these cores. None are found on a single core, and without the right to real-time
    priority."""
    pauses = Pauses()
    command = [sys.executable, "-m", "bench.pauses"]
    watchers: list[subprocess.Popen[str]] = []
    try:
        for core in sorted(cores) if len(cores) > 1 else ():
            watchers.append(
                subprocess.Popen([*command, str(core)], stdout=subprocess.PIPE, text=True)
            )
        for watcher in watchers:
            assert watcher.stdout is not None
            watcher.stdout.readline()  # it watches now
        yield pauses
    finally:
        for watcher in watchers:
            watcher.terminate()
        found = [spans_of(watcher.communicate()[0]) for watcher in watchers]
        pauses.spans = functools.reduce(common, found) if found else []


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """This process runs as soon as it can, before the load on its core, if that is permitted."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(CLIENT_PRIORITY))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, *before)


def common(some: list[Span], others: list[Span]) -> list[Span]:
    """The times that are in both of two lists."""
    pairs = ((max(a, c), min(b, d)) for a, b in some for c, d in others)
    return [(start, end) for start, end in pairs if start < end]


def spans_of(output: str) -> list[Span]:
    return [(float(start), float(end)) for start, end in map(str.split, output.splitlines())]


def watch(core: int) -> None:
    """Watch one core until SIGTERM, then print the times at which it was not available."""
    ended = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    spans: list[Span] = []
    os.sched_setaffinity(0, {core})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        ended = True
    print(flush=True)
    due = time.perf_counter() + STEP_S
    while not ended:
        time.sleep(max(due - time.perf_counter(), 0.0))
        now = time.perf_counter()
        if now - due > LATE_S:
            spans.append((due, now))
        due = now + STEP_S
    for start, end in spans:
        print(start, end)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
