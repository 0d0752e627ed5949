"""Workers on a real server, in both APIs and as programs that are killed."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError
from tests.client.apis import Api
from tests.client.conftest import url_of
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.client import Dead, MillstreamError, Record, Retry, connect

PROGRAM = Path(__file__).with_name("worker_program.py")


def fill(ms: Any, count: int, key: str = "work") -> None:
    for n in range(count):
        ms.tappend(key, {"n": n})


def stop_later(worker: Any, good: Any) -> threading.Thread:
    """Stop a worker when something holds, from another thread."""

    def wait() -> None:
        try:
            wait_until(good, bool, deadline_s=30)
        finally:
            worker.stop()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_jobs_run_at_once_and_are_acknowledged(ms: Any) -> None:
    fill(ms, 20)
    together = threading.Barrier(4, timeout=10)
    done: list[str] = []
    worker = ms.worker("work", "crew", concurrency=4)

    @worker.handler
    def handle(job: Any) -> None:
        together.wait()
        assert isinstance(job, Record)
        done.append(job["n"])

    stop_later(worker, lambda: len(done) == 20)
    worker.run()
    assert Counter(done) == Counter(map(str, range(20)))
    assert ms.xpending("work", "crew")["pending"] == 0
    assert worker.metrics()["done"] == 20
    assert ms.xinfo_consumers("work", "crew") == []


def test_a_failed_job_comes_again_with_the_next_attempt(
    ms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(ms, 1)
    seen: list[tuple[int, float]] = []
    worker = ms.worker("work", "crew", backoff=[0, 60])

    @worker.handler
    def handle(job: Any) -> None:
        seen.append((job.attempt, time.monotonic()))
        if job.attempt == 1:
            raise ValueError("boom")
        if job.attempt == 2:
            raise Retry(delay=0.05)
        worker.stop()

    worker.run()
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert seen[2][1] - seen[1][1] >= 0.05
    [failed] = [record for record in caplog.records if record.exc_info]
    assert "ValueError: boom" in logging.Formatter().format(failed)
    assert "failed, attempt 1" in failed.getMessage()


def test_reasons_are_in_the_dead_letters(ms: Any) -> None:
    fill(ms, 2)
    worker = ms.worker("work", "crew", backoff=[0], max_deliver=2, dead_letter="work:dead")

    @worker.handler
    def handle(job: Any) -> None:
        raise Dead("no such address") if job["n"] == "0" else ValueError("é" * 600)

    stop_later(worker, lambda: worker.metrics()["dead"] == 2)
    worker.run()
    found = {r["n"]: (r["dead_reason"], r["dead_deliveries"]) for r in ms.trange("work:dead")}
    assert found == {"0": ("fatal", "1"), "1": ("failed", "2")}
    assert {r["dead_text"] for r in ms.trange("work:dead")} == {"no such address", "é" * 512}


def test_an_outage_does_not_use_up_the_deliveries(ms: Any) -> None:
    fill(ms, 6)
    rules = {"backoff": [0], "max_deliver": 5, "dead_letter": "work:dead"}
    worker = ms.worker("work", "crew", concurrency=2, breaker=3, **rules)
    over_s = time.monotonic() + 1.5

    @worker.handler
    def handle(job: Any) -> None:
        if time.monotonic() < over_s:
            raise ConnectionError("the database is away")

    stop_later(worker, lambda: worker.metrics()["done"] == 6)
    worker.run()
    assert ms.xlen("work:dead") == 0
    assert ms.xpending("work", "crew")["pending"] == 0


def test_a_job_is_extended_and_another_worker_waits(ms: Any, server: Server) -> None:
    fill(ms, 1)
    done: list[int] = []
    worker = ms.worker("work", "crew", timeout=0.3)

    @worker.handler
    def handle(job: Any) -> None:
        time.sleep(1)
        done.append(job.attempt)
        worker.stop()

    with connect(url_of(server)) as other:
        second = other.worker("work", "crew", timeout=0.3)
        second.handler(lambda job: done.append(-1))
        thread = threading.Thread(target=second.run)
        wait_for_second = stop_later(second, lambda: done)
        first = stop_later(worker, lambda: done)
        wait_until(lambda: ms.exists("work"), bool)
        runner = threading.Timer(0.1, thread.start)
        runner.start()
        worker.run()
        runner.join()
        thread.join()
        wait_for_second.join()
        first.join()
    assert done == [1]


def test_a_job_of_another_consumer_is_lost(ms: Any, server: Server) -> None:
    fill(ms, 1)
    lost: list[bool] = []
    worker = ms.worker("work", "crew", timeout=0.3)

    @worker.handler
    def handle(job: Any) -> None:
        with connect(url_of(server)) as other:
            word = f"{job.id.ms}-{job.id.seq}"
            other.xclaim("work", "crew", "thief", 0, [word])
            keep = ("TEXTEND", "work", "crew", "thief", 600_000, "IDS", 1, word)
            assert other.execute_command(*keep) == [1]
        wait_until(lambda: job.lost, bool)
        lost.append(job.lost)
        worker.stop()

    worker.run()
    assert lost == [True]
    assert worker.metrics()["lost"] == 1
    assert [row["consumer"] for row in ms.xpending_range("work", "crew", "-", "+", 9)] == ["thief"]


def test_stop_ends_a_worker_that_waits(ms: Any) -> None:
    worker = ms.worker("work", "crew")
    worker.handler(print)
    threading.Timer(0.2, worker.stop).start()
    worker.run()
    worker.stop()
    worker.run()  # ends at once


def test_handlers_that_do_not_end_are_left_after_the_drain(ms: Any) -> None:
    fill(ms, 1)
    forever, begun = threading.Event(), threading.Event()
    worker = ms.worker("work", "crew", drain=0.2, backoff=[0])

    @worker.handler
    def handle(job: Any) -> None:
        begun.set()
        forever.wait()

    stop_later(worker, begun.is_set)
    worker.run()
    forever.set()
    assert worker.metrics()["failed"] == 1
    assert ms.xinfo_consumers("work", "crew") == []
    [[entry]] = [ms.xpending_range("work", "crew", "-", "+", 9)]
    assert (entry["consumer"], entry["times_delivered"]) == ("", 1)


def test_a_worker_without_a_handler_does_not_run(ms: Any) -> None:
    worker = ms.worker("work", "crew")
    with pytest.raises(MillstreamError, match="no handler"):
        worker.run()
    with pytest.raises(ValueError, match="must be a function"):
        worker.handler(5)
    worker.handler(print)
    with pytest.raises(ValueError, match="a handler already"):
        worker.handler(print)
    for keys in ([], ["a", "a"], 5):
        with pytest.raises((ValueError, TypeError)):
            ms.worker(keys, "crew")


def test_without_configure_a_group_without_rules_is_refused(ms: Any) -> None:
    fill(ms, 1)
    worker = ms.worker("work", "crew", configure=False)
    worker.handler(print)
    with pytest.raises((MillstreamError, ResponseError)):
        worker.run()
    ms.xgroup_create("work", "crew", "0")
    with pytest.raises(MillstreamError, match="no TIMEOUT"):
        worker.run()


def test_a_worker_continues_after_a_restart_of_the_server(api: Api, durable_server: Server) -> None:
    ms = api.connect(url_of(durable_server))
    fill(ms, 5)
    done: list[str] = []
    worker = ms.worker("work", "crew", timeout=5)

    @worker.handler
    def handle(job: Any) -> None:
        done.append(job["n"])

    def restart() -> None:
        wait_until(lambda: len(done) == 5, bool)
        durable_server.kill()
        durable_server.start()
        with connect(url_of(durable_server)) as other:
            other.tappend("work", {"n": "last"})
        wait_until(lambda: "last" in done, bool, deadline_s=30)
        worker.stop()

    thread = threading.Thread(target=restart)
    thread.start()
    worker.run()
    thread.join()
    assert done[-1] == "last"
    assert worker.metrics()["reconnects"] >= 1


class Workers:
    """Worker programs that are started again when they crash."""

    def __init__(self, server: Server, count: int, concurrency: int) -> None:
        self._words = [sys.executable, str(PROGRAM), url_of(server), str(concurrency)]
        self.processes = [self._start() for _ in range(count)]
        self.crashes = 0
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"  # from then on it handles SIGTERM

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def keep_running(self) -> None:
        for number, process in enumerate(self.processes):
            if process.poll() is not None:
                assert process.returncode in (0, -signal.SIGKILL)
                self.crashes += process.returncode != 0
                self.processes[number] = self._start()

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(timeout=30)


KINDS = [
    *["succeeds"] * 10,
    *["fails", "fails once", "is dead", "comes later"] * 2,
    *["hangs", "hangs once", "crashes once", "takes longer than the timeout"],
]

ENDS = ("done", "work:dead")


def check_doubles(done: list[Any], crashed: list[Any]) -> None:
    """Only a job of the program that was killed may be done twice, if it ended too late to be
    acknowledged. Those that had ended when the crash began are acknowledged before it."""
    [crash] = crashed
    runs: dict[str, list[Any]] = {}
    for record in done:
        runs.setdefault(record["n"], []).append(record)
    assert max(map(len, runs.values())) <= 2
    for n, (first, *again) in runs.items():
        for second in again:
            assert first["pid"] == crash["pid"] != second["pid"], n
            assert int(second["attempt"]) == int(first["attempt"]) + 1
            assert n not in crash["done"].split()


def test_each_job_is_done_once_or_dead_with_its_reason(server: Server) -> None:
    """Over crashes, handlers that hang, and a SIGTERM in the middle."""
    with connect(url_of(server)) as ms:
        for n, kind in enumerate(KINDS):
            ms.tappend("work", {"n": n, "kind": kind})
        workers = Workers(server, 2, 4)
        try:
            wait_until(lambda: ms.xlen("done"), lambda length: length > 2, deadline_s=30)
            workers.processes[0].send_signal(signal.SIGTERM)

            def ended() -> int:
                workers.keep_running()
                return len({record["n"] for key in ENDS for record in ms.trange(key)})

            wait_until(ended, lambda count: count >= len(KINDS), deadline_s=60)
        finally:
            workers.end()
        done = {record["n"]: record["kind"] for record in ms.trange("done")}
        dead = {record["n"]: record for record in ms.trange("work:dead")}
        check_doubles(ms.trange("done"), ms.trange("crashed"))
        assert sorted([*done, *dead], key=int) == [str(n) for n in range(len(KINDS))]
        reasons = {record["kind"]: record["dead_text"] for record in dead.values()}
        assert reasons == {
            "fails": "fails, attempt 4",
            "is dead": "it can never succeed",
            "hangs": "the handler ran for more than 2.5 s",
        }
        assert ms.xpending("work", "crew")["pending"] == 0
        assert workers.crashes == 1


def test_a_job_that_crashes_its_worker_is_dead_by_timeout(server: Server) -> None:
    with connect(url_of(server)) as ms:
        ms.tappend("work", {"n": 0, "kind": "crashes"})
        workers = Workers(server, 1, 1)
        try:

            def dead() -> list[Any]:
                workers.keep_running()
                return ms.trange("work:dead")

            [copy] = wait_until(dead, bool, deadline_s=60)
        finally:
            workers.end()
        assert (copy["dead_reason"], copy["dead_deliveries"]) == ("timeout", "4")
