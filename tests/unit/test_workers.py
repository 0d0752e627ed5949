"""A worker runs its tasks in order, whatever becomes of one, and keeps nothing of them."""

from __future__ import annotations

import logging
import os
import threading
import weakref

import pytest
from tests.support.waiting import wait_until

from millstream.server.durability.workers import ThreadWorker


class Large:
    """What a task has."""


def test_a_task_that_is_done_is_not_kept() -> None:
    worker = ThreadWorker("test")
    large = Large()
    kept = weakref.ref(large)
    worker.submit(lambda held=large: None)  # type: ignore[misc]
    del large
    try:
        wait_until(lambda: kept() is None, what="the end of what the task had")
    finally:
        worker.stop()


def test_tasks_run_where_a_thread_may_not_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    for name in ("nice", "getpriority", "setpriority"):
        monkeypatch.setattr(os, name, refuse)
    worker = ThreadWorker("test", 10)
    done = threading.Event()
    worker.submit(done.set)
    assert done.wait(10)
    worker.stop()


def test_a_task_that_fails_is_logged_and_the_next_runs(caplog: pytest.LogCaptureFixture) -> None:
    worker = ThreadWorker("test")
    done: list[int] = []
    with caplog.at_level(logging.ERROR):
        worker.submit(lambda: done.append(1 // 0))
        worker.submit(lambda: done.append(2))
        worker.drain()
    worker.stop()
    assert done == [2]
    assert "a task of test failed" in caplog.text
