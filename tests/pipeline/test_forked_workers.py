"""Python processes of Spark that are forked are what Spark would have started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from tests.support.waiting import wait_until


@contextmanager
def daemon(environment: Mapping[str, str], **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon as Spark starts it, which prints its port; the end of its input ends it."""
    process = subprocess.Popen(
        [environment["PYSPARK_PYTHON"], "-m", "pyspark.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment | {"PYTHON_WORKER_FACTORY_SECRET": "x"} | more,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert int.from_bytes(process.stdout.read(4), "big") > 0
        yield process
        process.stdin.close()
        assert process.wait(30) in (0, 1)


def command(process: subprocess.Popen[bytes]) -> list[str]:
    words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    return [os.fsdecode(word) for word in words[:-1]]


def daemons_of(parent: int) -> list[Path]:
    """The processes that a process has started, as folders of /proc."""
    tasks = Path(f"/proc/{parent}/task").iterdir()
    return [Path("/proc", pid) for task in tasks for pid in (task / "children").read_text().split()]


def test_a_daemon_is_forked_and_has_the_directory_of_its_request(
    spark_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with daemon(spark_environment) as process:
        assert command(process)[1] == "-ISE"  # the launcher waits
        servers = [one for one in daemons_of(os.getpid()) if is_fork_server(one)]
        forked = [child for one in servers for child in daemons_of(int(one.name))]
        # A Spark session of other tests may have daemons, too.
        own = [one for one in forked if (one / "cwd").resolve() == tmp_path]
        assert own
    wait_until(lambda: not any(one.exists() for one in own), what="the end of the daemon")


def is_fork_server(process: Path) -> bool:
    return b"spark_fork_server.py" in (process / "cmdline").read_bytes()


@pytest.mark.parametrize("content", ["archive", "folder"])
def test_a_daemon_of_another_pyspark_is_not_forked(
    spark_environment: dict[str, str], tmp_path: Path, content: str
) -> None:
    place = tmp_path / "pyspark.zip"
    if content == "archive":
        place.write_bytes(b"")
    else:
        place.mkdir()
        copied = place / "pyspark"
        copied.mkdir()
        for file in Path(pyspark.__path__[0]).iterdir():
            (copied / file.name).symlink_to(file)
    with daemon(spark_environment, PYTHONPATH=str(place)) as process:
        assert command(process) == [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]


def test_any_other_program_runs_in_the_interpreter(spark_environment: dict[str, str]) -> None:
    program = "import sys; print(sys.executable, sys.flags.isolated)"
    done = subprocess.run(
        [spark_environment["PYSPARK_PYTHON"], "-c", program], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{sys.executable} 0\n")
