"""The programs in docs/examples/client work as described, as a user runs them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.client import Job, Millstream, Record, connect

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "client"


DELIVERY = (EXAMPLES.parents[1] / "delivery.md").read_text()


def url(server: Server) -> str:
    return f"redis://localhost:{server.port}"


@pytest.fixture
def ms(server: Server) -> Iterator[Millstream[str]]:
    with connect(url(server)) as client:
        yield client


class Program:
    """An example that runs; its output is in two files."""

    def __init__(self, server: Server, output: Path, name: str, *words: object) -> None:
        self.output = output
        self.errors = output.with_suffix(".errors")
        with output.open("a") as file, self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLES / name, *map(str, words)],
                stdout=file,
                stderr=errors,
                env={**os.environ, "MILLSTREAM_URL": url(server)},
            )

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def wait_for(self, count: int) -> list[str]:
        wait_until(self.lines, lambda lines: len(lines) >= count, deadline_s=30)
        return self.lines()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


def test_a_program_resumes_after_a_kill(
    server: Server, ms: Millstream[str], tmp_path: Path
) -> None:
    place, output = tmp_path / "place.json", tmp_path / "output"
    appended = []
    for run in range(4):
        for number in range(run * 5, run * 5 + 5):
            shard = f"orders:{number % 2}"
            appended.append((ms.tappend(shard, {"n": number}), shard, str(number)))
        program = Program(server, output, "resume.py", place, "orders:0", "orders:1")
        program.wait_for((run + 1) * 5)
        if run % 2:
            assert program.end(signal.SIGTERM) == 0
        else:
            wait_until(lambda: left_after(ms, place), lambda left: left == [])
            program.end(signal.SIGKILL)
    found = [line.split("'")[3] for line in output.read_text().splitlines()]
    # Records with the same ID come by the name of their shard.
    assert found == [number for _, _, number in sorted(appended)]


def test_two_servers_are_merged_into_one_sequence(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    servers = [new_server("first").start(), new_server("second").start()]
    expected = []
    with connect(url(servers[0])) as first, connect(url(servers[1])) as second:
        for number in range(20):
            ms, name = ((first, "orders@first"), (second, "orders@second"))[number % 2]
            expected.append((ms.tappend("orders", {"n": number}), name, number))
        first.tseal("orders")
        second.tseal("orders")
        program = Program(
            servers[0], tmp_path / "output", "merge.py", url(servers[0]), url(servers[1]), "orders"
        )
        assert program.process.wait(timeout=30) == 0
    found = [int(line.split("'")[3]) for line in program.lines()]
    assert len(found) == 20
    assert found == [number for _, _, number in sorted(expected)]


def left_after(ms: Millstream[str], place: Path) -> list[Record[str]] | None:
    """The records that a stream with the stored place still has."""
    if not place.exists():
        return None
    with ms.stream(["orders:0", "orders:1"], json.loads(place.read_text())) as stream:
        return list(iter(stream.__next__, None))


KILLS, ORDERS = 5, 2000


@pytest.mark.parametrize("seed", [1, 2])
def test_the_outbox_agrees_with_the_stream_after_kills(
    new_server: Callable[..., Server], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    server, database = new_server().start(), tmp_path / "orders.db"
    with connect(url(server)) as ms:
        for _ in range(KILLS):
            enough = ms.xlen("orders") + chance.randint(1, 40)
            program = Program(server, tmp_path / "output", "outbox.py", database, ORDERS)
            wait_until(lambda: ms.xlen("orders"), lambda length: length >= enough)  # noqa: B023
            program.end(signal.SIGKILL)
        program = Program(server, tmp_path / "output", "outbox.py", database, 3)
        assert program.process.wait(timeout=60) == 0
        entries = {(str(r.id), r["order"], r["total"]) for r in ms.trange("orders")}
        assert ms.xlen("orders") == len(entries)
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT entry_id, number, total FROM orders").fetchall()
    assert entries == {(entry_id, str(number), str(total)) for entry_id, number, total in rows}


def test_a_job_queue_retries_and_stops_in_order(
    server: Server, ms: Millstream[str], tmp_path: Path
) -> None:
    """The program of the guide."""
    (source,) = re.findall(r"^```python\n(.*?)^```$", DELIVERY, re.MULTILINE | re.DOTALL)
    (tmp_path / "jobs.py").write_text(source)
    for name in ("ann@x", "everybody@example.com", "unknown", "bob@x"):
        ms.tappend("mail", {"to": name})
    program = Program(server, tmp_path / "output", str(tmp_path / "jobs.py"))
    assert program.wait_for(3)[-1] == "to everybody@example.com"
    assert sorted(program.lines()[:2]) == ["to ann@x", "to bob@x"]
    assert program.end(signal.SIGTERM) == 0
    assert ms.xpending("mail", "senders")["pending"] == 0
    assert [copy["dead_text"] for copy in ms.trange("mail:dead")] == ["no such address"]


def test_workers_keep_the_order_of_a_group(server: Server, ms: Millstream[str]) -> None:
    """FIFO per customer, as in the guide, also if a job fails at first."""
    ms.tgroup("orders", "crew", start=0, timeout=30_000, order=("FIELD", "customer"))
    for number in range(30):
        ms.tappend("orders", {"customer": f"c{number % 3}", "n": number})
    worker = ms.worker("orders", "crew", concurrency=8, timeout=30, backoff=[0.01])
    running: set[str] = set()
    done: list[int] = []

    @worker.handler
    def handle(job: Job[str]) -> None:
        assert job["customer"] not in running
        running.add(job["customer"])
        try:
            if job["n"] in ("4", "15") and job.attempt == 1:
                raise ValueError("fails once")
            done.append(int(job["n"]))
        finally:
            running.remove(job["customer"])
        if len(done) == 30:
            worker.stop()

    worker.run()
    for customer in range(3):
        assert [n for n in done if n % 3 == customer] == list(range(customer, 30, 3))


def test_a_service_shares_its_jobs_and_stops_in_order(
    server: Server, ms: Millstream[str], tmp_path: Path
) -> None:
    for number in range(10):
        ms.tappend("jobs", {"name": number})
    programs = [
        Program(server, tmp_path / f"output{number}", "service.py", "jobs", "workers")
        for number in range(2)
    ]
    for program in programs:  # from then on signals are handled
        wait_until(program.errors.read_text, lambda text: "ready" in text, deadline_s=30)

    def done() -> list[str]:
        return sorted(line for program in programs for line in program.lines())

    wait_until(done, lambda lines: len(lines) >= 10, deadline_s=30)
    ms.tappend("jobs", {"name": 10})
    wait_until(done, lambda lines: len(lines) >= 11, deadline_s=30)
    assert [program.end(signal.SIGTERM) for program in programs] == [0, 0]
    assert done() == sorted(f"done: {number}" for number in range(11))
    assert ms.xpending("jobs", "workers")["pending"] == 0
