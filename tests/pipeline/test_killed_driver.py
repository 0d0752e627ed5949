"""A streaming query is killed with all its processes, in the middle of reading and of writing, and
continues from its checkpoint: every entry is copied once.

The query starts at the end of the streams. That is the hard case: when it is killed in its first
batch, Spark asks again where it starts, and the end is at another place by then."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.effort import examples
from tests.support.server import Server
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
SPARK_DEADLINE_S = 240.0
KEYS = (b"a", b"b", b"c")
KILLS = examples(1)
ROUNDS = 800  # an entry of each stream; two batches of the query and more


@contextlib.contextmanager
def copying(
    environment: dict[str, str], log: Path, *arguments: object
) -> Iterator[subprocess.Popen[bytes]]:
    """The program of copying.py in its own process group."""
    command = [sys.executable, "-m", "tests.pipeline.copying", *map(str, arguments)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | environment,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(driver: subprocess.Popen[bytes], look: Callable[[], bool], log: Path) -> None:
    """Wait until `look`, unless the driver ends before."""
    wait_until(
        lambda: look() or driver.poll() is not None,
        what=f"a sign of the driver ({log})",
        deadline_s=SPARK_DEADLINE_S,
    )
    assert driver.poll() is None, log.read_text()[-5000:]


def append(client: RawClient, rounds: range) -> None:
    client.pipeline(
        [("TAPPEND", b"in:" + key, "n", str(number)) for number in rounds for key in KEYS]
    )


def has_begun(client: RawClient) -> bool:
    """True if the query knows where it starts: it has asked about every stream."""
    asked = client.info("commandstats").get("cmdstat_tinfo", "calls=0")
    return int(asked.split(",")[0].removeprefix("calls=")) >= len(KEYS)


def copied(client: RawClient) -> int:
    lengths = client.pipeline([("XLEN", b"out:" + key) for key in KEYS])
    return sum(length for length in lengths if isinstance(length, int))


def entries(client: RawClient, key: bytes) -> list[list[bytes]]:
    return [
        [as_bytes(word) for word in as_list(entry)]
        for entry in as_list(client.call("TRANGE", key, "-", "+"))
    ]


@pytest.mark.timeout(900)
def test_every_entry_is_copied_once_when_the_driver_is_killed(
    new_server: Callable[..., Server], spark_environment: dict[str, str], tmp_path: Path
) -> None:
    server = new_server().start()
    url, checkpoint = f"redis://127.0.0.1:{server.port}", tmp_path / "checkpoint"
    chance = random.Random()
    log, marker = tmp_path / "driver.log", tmp_path / "a task has died"
    total = 0
    with server.client() as client:
        append(client, range(-10, 0))  # before the query, which starts at the end
        for kill in range(KILLS):
            with copying(spark_environment, log, url, checkpoint, marker) as driver:
                if kill == 0:
                    wait_for(driver, lambda: has_begun(client), log)
                start = total
                total += ROUNDS
                append(client, range(start, total))
                goal = copied(client) + chance.randrange(1, 2 * ROUNDS)
                wait_for(driver, lambda goal=goal: copied(client) >= goal, log)
        with copying(spark_environment, log, url, checkpoint, marker, "available-now") as process:
            assert process.wait(SPARK_DEADLINE_S) == 0, log.read_text()[-5000:]
        assert marker.exists()
        for key in KEYS:
            originals = entries(client, b"in:" + key)
            originals = [entry for entry in originals if not entry[2].startswith(b"-")]
            got = [entry[1:] for entry in entries(client, b"out:" + key)]
            wanted = [[b"of", entry[0].replace(b".", b"-"), b"n", entry[2]] for entry in originals]
            assert sorted(got) == sorted(wanted)
