"""A worker runs its tasks in order, with any outcome, and keeps no reference to them."""

from __future__ import annotations

import logging
import os
import threading
import weakref

import pytest
from tests.support.waiting import wait_until

from millstream.server.durability.workers import ThreadWorker


class Large:
    """The resources of a task."""


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


def test_urgent_tasks_run_with_the_priority_of_the_process() -> None:
    """In order, whether the thread is idle or busy when they become urgent."""
    worker = ThreadWorker("test", 5)
    done: list[tuple[int, int]] = []
    begun, may_end = threading.Event(), threading.Event()

    def note(number: int) -> None:
        done.append((number, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))

    def hold() -> None:
        begun.set()
        may_end.wait()

    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    for number, urgent in enumerate([False, True, False, True, True]):
        worker.set_urgent(urgent)
        worker.submit(lambda number=number: note(number))  # type: ignore[misc]
        worker.drain()
    worker.set_urgent(False)
    worker.submit(hold)
    begun.wait()
    worker.set_urgent(True)
    worker.submit(lambda: note(5))
    may_end.set()
    worker.stop()
    nice = min(own + 5, 19)
    assert done == [(0, nice), (1, own), (2, nice), (3, own), (4, own), (5, own)]


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


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_without_a_thread_tasks_run_at_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_threads(monkeypatch)
    worker = ThreadWorker("test")
    done: list[object] = []

    def first() -> None:
        worker.submit(lambda: done.append("second"))
        worker.drain()
        done.append("first")

    worker.submit(first)
    worker.submit(lambda: done.append(threading.current_thread()))
    assert done == ["first", "second", threading.main_thread()]
    worker.stop()
    assert caplog.text.count("the thread test cannot be started: can't start new thread") == 1


def test_a_thread_starts_later_if_it_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ThreadWorker, "_RETRY_S", 0.0)
    worker = ThreadWorker("test")
    done: list[object] = []
    with monkeypatch.context() as broken:
        refuse_threads(broken)
        assert not worker.start()
        worker.submit(lambda: done.append(1))
    assert done == [1]
    worker.submit(lambda: done.append(threading.current_thread()))
    worker.stop()
    assert done[1] is not threading.main_thread()
    assert "the thread test is started after all" in caplog.text
