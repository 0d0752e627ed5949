"""`millstream cdc apply` as a program: Spark, its workers, and kills of each of them.

The target has no key and the source replica identity full: an entry that is applied twice, or left
out, changes the number of rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.postgres import Postgres
from tests.cdc.appliers import KEYLESS, Applier
from tests.cdc.feeding import Feed, config_text, delete, insert
from tests.cdc.proxies import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until

DEADLINE_S = 240.0

pytestmark = pytest.mark.timeout(900)


class Program:
    """`apply` with its file and its log."""

    def __init__(self, directory: Path, text: str, environment: dict[str, str]) -> None:
        self._file = directory / "cdc.toml"
        self._file.write_text(text)
        self._environment = os.environ | environment
        self.log_path = directory / "apply.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "millstream", "cdc", "--config", str(self._file), "apply"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--master", "local[2]", *words],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment,
            )
        return self.process

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def kill(self) -> None:
        """Kill the driver with its JVM and its workers."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def workers(self) -> list[int]:
        """The processes that apply parts: those that the daemon started."""
        assert self.process is not None
        listed = subprocess.run(
            ["ps", "-ww", "-o", "pid=,ppid=,args=", "-g", str(self.process.pid)],
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        found = [
            line.split(None, 2)
            for line in listed
            if "-m millstream.cdc.applier.spark_daemon" in line
        ]
        daemons = {pid for pid, _, _ in found}
        return [int(pid) for pid, parent, _ in found if parent in daemons]


@pytest.fixture
def program(
    tmp_path: Path, durable_server: Server, destination_cluster: Postgres, spark_environment: Any
) -> Iterator[tuple[Program, Applier, Proxy]]:
    """A program whose destination is reached through a proxy, with a feed for its streams."""
    url = destination_cluster.create_database(tmp_path.name)
    with durable_server.client() as client, Proxy(destination_cluster.port) as proxy:
        applier = Applier(client, url, "t = {}")
        applier.execute(f"CREATE TABLE t ({KEYLESS})")
        text = applier.text.replace(f":{destination_cluster.port}/", f":{proxy.port}/")
        made = Program(tmp_path, text, spark_environment)
        try:
            yield made, applier, proxy
        finally:
            made.kill()
            applier.close()


def feed_rows(feed: Feed, first: int, count: int) -> None:
    for number in range(first, first + count):
        feed.transaction(insert(b"%d" % number, b"x", None), insert(b"%d" % number, b"y", None))
        feed.transaction(delete(b"%d" % number, b"x", None))


def count(applier: Applier) -> int:
    ((found,),) = applier.rows("SELECT count(*) FROM t")
    return int(found)


def is_applied(applier: Applier, rows: int) -> bool:
    """True if every number is there once. Between the two transactions of a number it is there
    twice."""
    return applier.rows("SELECT count(*), count(DISTINCT id) FROM t") == [(str(rows), str(rows))]


def wait_applied(program: Program, applier: Applier, rows: int) -> None:
    process = program.process
    assert process is not None
    wait_until(
        lambda: is_applied(applier, rows) or process.poll() is not None,
        what=f"{rows} rows ({program.log_path})",
        deadline_s=DEADLINE_S,
    )
    assert count(applier) == rows, program.log_path.read_text()[-3000:]


def end_one_that_waits(program: Program) -> None:
    """Another `apply` waits; SIGTERM to all of its processes, as from systemd, ends it quietly."""
    first = program.process
    begun = len(program.log)
    other = program.start()
    program.process = first
    wait_until(
        lambda: "another apply is running" in program.log[begun:],
        what=f"the second apply ({program.log_path})",
        deadline_s=DEADLINE_S,
    )
    os.killpg(other.pid, signal.SIGTERM)
    assert other.wait(DEADLINE_S) == 0
    log = program.log[begun:]
    assert "Traceback" not in log, log
    for noise in ("SPARK_LOCAL_IP", "NativeCodeLoader", "log4j", "default log level"):
        assert noise not in log, log


STARTS_A_CHILD = """
import os, signal, subprocess, sys
from millstream.cdc.applier.spark_start import no_signals_for_children
show = "import signal; print([signal.getsignal(one).name for one in (15, 2)])"
got = []
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
with no_signals_for_children():
    os.kill(os.getpid(), signal.SIGTERM)
    subprocess.run([sys.executable, "-c", show])
    print(len(got), flush=True)
print(len(got))
"""


def test_the_jvm_is_started_without_our_signals() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS_A_CHILD], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["['SIG_IGN', 'SIG_IGN']", "0", "1"], done.stderr


def test_every_change_is_applied_once_after_any_kill(
    program: tuple[Program, Applier, Proxy], durable_server: Server
) -> None:
    made, applier, proxy = program
    feed = applier.feed
    feed.open()
    feed.put_state("t", replace(feed.state(), identity="full"))
    feed.copy([b"0\tcopied\t\\N"])
    made.start()
    wait_applied(made, applier, 1)
    # A worker of Spark is killed.
    before = made.workers()
    assert before
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    feed_rows(feed, 1, 20)
    wait_applied(made, applier, 21)
    # The reply to a COMMIT is lost.
    with proxy.holding_replies_to(b"COMMIT") as held:
        feed_rows(feed, 21, 20)
        wait_until(held.is_set, what="a COMMIT", deadline_s=DEADLINE_S)
    feed_rows(feed, 41, 20)
    wait_applied(made, applier, 61)
    # The server dies and comes back with its data.
    durable_server.kill()
    durable_server.start()
    with durable_server.client() as client:
        feed._client = client
        feed_rows(feed, 61, 20)
        wait_applied(made, applier, 81)
        alive = wait_until(lambda: client.call("GET", "cdc:apply:alive"), what="the status")
        assert isinstance(alive, bytes)
        assert json.loads(alive)["running"] is True
        end_one_that_waits(made)
        # The driver is killed, with entries left to apply; another one continues.
        feed_rows(feed, 81, 20)
        made.kill()
        feed_rows(feed, 101, 20)
        assert made.start("--once").wait(DEADLINE_S) == 0, made.log_path.read_text()[-3000:]
        assert count(applier) == 121
        assert applier.rows("SELECT count(*), count(DISTINCT id) FROM t") == [("121", "121")]


def test_a_missing_setup_is_reported_in_one_line(
    program: tuple[Program, Applier, Proxy], durable_server: Server
) -> None:
    made, applier, _ = program
    applier.execute("DROP TABLE millstream_position")
    assert made.start("--once").wait(DEADLINE_S) == 1
    text = made.log_path.read_text()
    assert "has no table public.millstream_position: millstream cdc setup" in text
    assert "Traceback" not in text


def test_apply_without_java_ends_with_one_line(tmp_path: Path) -> None:
    text = config_text(1, "postgresql://127.0.0.1:1/none")
    program = Program(tmp_path, text, {"JAVA_HOME": str(tmp_path / "nowhere")})
    assert program.start("--once").wait(60) == 1
    log = program.log_path.read_text()
    assert "Traceback" not in log
    assert log.splitlines()[-1].startswith("millstream: Spark cannot be started: ")
    assert "Java 17 or 21" in log
