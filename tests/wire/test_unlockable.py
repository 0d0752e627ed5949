"""A data directory on a file system that cannot lock: the lock file keeps a second server out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.resp import Simple
from tests.support.server import Server

from millstream.storage.files.lock_guard import this_process

NewServer = Callable[..., Server]

UNLOCKABLE = """
import errno, fcntl, os

def refuse(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

fcntl.flock = refuse
from {module} import {function}
{function}()
"""
SERVER = UNLOCKABLE.format(module="millstream.server.main", function="server_main")
TOOL = UNLOCKABLE.format(module="millstream.__main__", function="main")


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_second_server_is_refused(new_server: NewServer) -> None:
    first = new_server(program=program(SERVER)).start()
    assert "cannot lock (No locks available)" in first.log
    second = Server(first.directory, program=program(SERVER))
    second.log_path = first.directory.with_name("second.log")
    with pytest.raises(AssertionError, match=rf"used by another server \(process {first.pid}"):
        second.start()
    with first.client() as client:
        assert client.call("SET", "k", "v") == Simple("OK")
    first.kill()
    first.start()  # nothing waits for a process that is gone
    with first.client() as client:
        assert client.call("GET", "k") == b"v"
    assert first.stop() == 0
    assert (first.directory / "lock").read_text() == f"{first.pid}\n"


@pytest.mark.parametrize("mend", [[], ["--repair"]], ids=["check", "repair"])
def test_the_tools_do_not_touch_a_directory_in_use(new_server: NewServer, mend: list[str]) -> None:
    server = new_server(program=program(SERVER)).start()
    words = [*program(TOOL), "check", *mend, str(server.directory)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"(process {server.pid})" in done.stderr
    assert server.stop() == 0
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def foreign_owner() -> bytes:
    return this_process()._replace(process=1, started="1", boot="another").encode(7)


def test_a_young_file_of_another_machine_keeps_a_server_out(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "lock").write_bytes(foreign_owner())
    server = Server(directory, program=program(SERVER))
    with pytest.raises(AssertionError, match="of another machine or container"):
        server.start()
    os.utime(directory / "lock", (1, 1))
    assert server.start().stop() == 0


def test_an_owner_that_was_replaced_ends_without_writing(new_server: NewServer) -> None:
    server = new_server(program=program(SERVER)).start()
    with server.client() as client:
        client.call("SET", "k", "v")
    server.signal(signal.SIGSTOP)
    (server.directory / "lock").write_bytes(foreign_owner())
    server.signal(signal.SIGCONT)
    assert server.wait() == 1
    assert "process 1 has taken the data directory" in server.log
    assert (server.directory / "lock").read_bytes() == foreign_owner()
