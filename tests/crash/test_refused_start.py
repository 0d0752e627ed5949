"""A start that cannot work ends with exit code 1 and one sentence that names the cause."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.data_directory import without_privileges
from tests.support.resp import Simple
from tests.support.server import Server, answers_ping, free_port, server_program
from tests.support.waiting import wait_until

START_DEADLINE_S = 30


def start(arguments: Sequence[str], cwd: Path, wrapper: Sequence[str] = ()) -> str:
    """Start, which must be refused; the one sentence on stderr."""
    done = subprocess.run(
        [*wrapper, *server_program(), *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_DEADLINE_S,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert len(lines) == 1, done.stderr
    return lines[0]


def settings(directory: Path, **others: str) -> list[str]:
    values = {"dir": str(directory), "port": str(free_port()), **others}
    return [word for name, value in values.items() for word in ("--" + name, value)]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_port_in_use(tmp_path: Path, taken_port: int) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    sentence = start(settings(directory, port=str(taken_port)), tmp_path)
    assert str(taken_port) in sentence


def test_unknown_directive(tmp_path: Path) -> None:
    sentence = start([*settings(tmp_path), "--no-such-directive", "5"], tmp_path)
    assert "no-such-directive" in sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", "abc"), ("port", "70000"), ("port", "-1"), ("appendfsync", "sometimes")],
)
def test_bad_value_of_a_directive(tmp_path: Path, name: str, value: str) -> None:
    sentence = start(settings(tmp_path, **{name: value}), tmp_path)
    assert name in sentence


def test_unknown_directive_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "millstream.conf"
    file.write_text(f"port {free_port()}\ndir {tmp_path}\nno-such-directive 5\n")
    sentence = start([str(file)], tmp_path)
    assert "no-such-directive" in sentence


def test_missing_configuration_file(tmp_path: Path) -> None:
    sentence = start([str(tmp_path / "missing.conf")], tmp_path)
    assert "missing.conf" in sentence


def test_data_directory_that_does_not_exist_is_made(tmp_path: Path) -> None:
    missing, port = tmp_path / "folder" / "missing", free_port()
    words = settings(missing, port=str(port))
    process = subprocess.Popen([*server_program(), *words], stderr=subprocess.DEVNULL, cwd=tmp_path)
    try:
        wait_until(lambda: process.poll() is not None or answers_ping(port))
        assert process.poll() is None
        assert any(missing.iterdir())
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("below", [".", "below", "below/it"])
def test_data_directory_is_a_file(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    path = file / below
    assert str(path) in start(settings(path), tmp_path)
    assert file.read_text() == ""


@pytest.mark.parametrize("mode", [0o000, 0o500], ids=["unreadable", "not writable"])
@pytest.mark.parametrize("below", [".", "missing"])
def test_data_directory_may_not_be_used(tmp_path: Path, mode: int, below: str) -> None:
    directory = tmp_path / "closed"
    directory.mkdir()
    directory.chmod(mode)
    try:
        sentence = start(settings(directory / below), tmp_path, without_privileges())
    finally:
        directory.chmod(0o700)
    assert str(directory / below) in sentence
    assert list(directory.iterdir()) == []


def test_second_server_on_the_same_directory(
    tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    server = new_server().start()
    with server.client() as client:
        client.call("TAPPEND", "s", "f", "v")
        sentence = start(settings(server.directory), tmp_path)
        assert str(server.directory) in sentence
        assert client.call("PING") == Simple("PONG")
        client.call("TAPPEND", "s", "f", "v")
    server.restart("SIGKILL")
    with server.client() as client:
        assert client.call("XLEN", "s") == 2


def test_a_killed_server_leaves_its_directory_free(new_server: Callable[..., Server]) -> None:
    first = new_server().start()
    first.kill()
    second = new_server()
    second.start()
    assert second.is_alive()
    wait_until(lambda: not first.is_alive())


def test_a_refused_start_leaves_the_data_alone(
    tmp_path: Path, new_server: Callable[..., Server], taken_port: int
) -> None:
    server = new_server().start()
    with server.client() as client:
        client.call("XADD", "s", "1-1", "f", "v")
    server.kill()
    sentence = start(settings(server.directory, port=str(taken_port)), tmp_path)
    assert re.search(rf"\b{taken_port}\b", sentence)
    server.start()
    with server.client() as client:
        assert client.call("TRANGE", "s", "-", "+") == [[b"1.1", b"f", b"v"]]


def test_a_refused_start_makes_no_directory(tmp_path: Path, taken_port: int) -> None:
    start(settings(tmp_path / "below" / "data", port=str(taken_port)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_server_is_refused_without_the_lock_file(
    tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    server = new_server().start()
    (server.directory / "lock").unlink()
    sentence = start(settings(server.directory), tmp_path)
    assert f"the data directory {server.directory} is used by another server" in sentence


def test_a_directory_that_holds_no_files(tmp_path: Path) -> None:
    assert "cannot use the data directory /proc" in start(settings(Path("/proc")), tmp_path)


@pytest.mark.parametrize("name", ["manifest", "journal-1.log"])
def test_a_directory_in_place_of_a_file(
    tmp_path: Path, new_server: Callable[..., Server], name: str
) -> None:
    server = new_server().start()
    server.kill()
    path = server.directory / name
    path.unlink()
    path.mkdir()
    assert str(path) in start(settings(server.directory), tmp_path)


def test_a_full_disk_at_the_first_start_names_the_file(tmp_path: Path) -> None:
    """No file may grow: the error is another one, the way to the sentence the same."""
    limit = shutil.which("prlimit")
    assert limit, "prlimit is missing: apt-get install util-linux"
    sentence = start(settings(tmp_path / "data"), tmp_path, [limit, "--fsize=8"])
    assert str(tmp_path / "data" / "manifest.tmp") in sentence


def test_too_few_files_for_any_client(tmp_path: Path) -> None:
    limit = shutil.which("prlimit")
    assert limit, "prlimit is missing: apt-get install util-linux"
    sentence = start(settings(tmp_path / "data"), tmp_path, [limit, "--nofile=30:30"])
    assert "30 files" in sentence
