"""Servers that tests fork (support/fork_server.py) behave as those that a user starts."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.server import Server, server_program
from tests.support.waiting import wait_until

NewServer = Callable[..., Server]


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])


def files_of(server: Server) -> set[str]:
    """The kinds of the process' descriptors, without numbers and names of files."""
    found = set()
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a file that the server just closed
            name = os.readlink(link).replace(str(server.pid), "PID").split(":")[0]
            found.add("a file" if name.startswith(str(server.directory.parent)) else name)
    return found


@pytest.mark.parametrize("forked", [True, False])
@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9), (signal.SIGABRT, -6)]
)
def test_the_end_is_reported(
    new_server: NewServer, forked: bool, end: signal.Signals, code: int
) -> None:
    server = new_server(program=None if forked else server_program()).start()
    assert server.exit_code is None
    assert server.is_alive()
    server.signal(end)
    assert server.wait() == code
    assert server.exit_code == code
    assert not server.is_alive()


def test_a_refused_start_is_reported(new_server: NewServer) -> None:
    with pytest.raises(AssertionError, match="unknown directive"):
        new_server(directives={"no-such-directive": "1"}).start()


def test_most_servers_are_forked_by_one_process(new_server: NewServer) -> None:
    first, second = new_server("first").start(), new_server("second").start()
    started = new_server("third", program=server_program()).start()
    assert parent_of(first.pid) == parent_of(second.pid) != os.getpid()
    assert parent_of(started.pid) == os.getpid()


def test_a_changed_environment_takes_effect(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_server("before").start()
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    server = new_server("after").start()
    assert b"TZ=Asia/Kolkata" in Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")


def test_a_forked_server_has_no_other_descriptors(new_server: NewServer) -> None:
    new_server("before").start()
    forked = new_server("forked").start()
    started = new_server("started", program=server_program()).start()
    # A server that has just started may have a module open that one of its threads imports.
    wait_until(
        lambda: (files_of(forked), files_of(started)),
        lambda files: files[0] == files[1],
        "a forked server with the descriptors of one that was started",
    )


def test_forked_servers_end_with_the_process_that_forked_them(tmp_path: Path) -> None:
    """As the servers that a test run starts directly end with it."""
    script = (
        "import sys, pathlib; from tests.support.server import Server;"
        f"server = Server(pathlib.Path({str(tmp_path / 'data')!r})).start();"
        "print(server.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [server_program()[0].replace("millstream-server", "python"), "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as run:
        assert run.stdout
        pid = int(run.stdout.readline())
        ended = os.pidfd_open(pid)
        run.kill()
    with open(ended, "rb", buffering=0) as pidfd:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        assert waiting.poll(10_000), "the server still runs"
