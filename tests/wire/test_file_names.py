"""Files that directives name: a relative name begins at `dir`, as in Redis, and the pidfile."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.support.resp import Simple
from tests.support.server import Server, redis_program
from tests.support.waiting import wait_until

from millstream.server.config.directives import Config
from millstream.server.net.tls_contexts import make_tls

NewServer = Callable[..., Server]
RELATIVE = {
    "aclfile": "users.acl",
    "logfile": "server.log",
    "unixsocket": "m.sock",
    "pidfile": "server.pid",
}


@pytest.mark.parametrize("program", ["millstream", "redis"])
def test_relative_names_begin_at_dir(tmp_path: Path, program: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "users.acl").write_text("user bob on nopass ~* &* +@all\n")
    server = Server(folder, RELATIVE, redis_program() if program == "redis" else None).start()
    try:
        with server.client() as client:
            assert client.call("ACL", "USERS") == [b"bob", b"default"]
            assert client.call("ACL", "SETUSER", "eve", "on") == Simple("OK")
            assert client.call("ACL", "SAVE") == Simple("OK")
            assert client.call("CONFIG", "GET", "aclfile") == [b"aclfile", b"users.acl"]
        assert "user eve" in (folder / "users.acl").read_text()
        assert (folder / "server.log").stat().st_size > 0
        assert (folder / "m.sock").is_socket()
        assert int((folder / "server.pid").read_text()) == server.pid
    finally:
        server.stop()
    assert not (folder / "m.sock").exists()
    assert not (folder / "server.pid").exists()


def test_relative_names_of_certificates(tmp_path: Path) -> None:
    files = Authority(tmp_path).directives()
    names = {name.replace("-", "_"): Path(path).name for name, path in files.items()}
    assert make_tls(Config(dir=tmp_path, tls_auth_clients="no", **names)).expires_s > 0


def test_there_is_no_pidfile_without_the_directive(new_server: NewServer) -> None:
    server = new_server("data").start()
    assert not list(server.directory.glob("*.pid"))


def test_a_server_that_cannot_start_leaves_anothers_pidfile(
    tmp_path: Path, new_server: NewServer
) -> None:
    path = tmp_path / "server.pid"
    first = new_server("data", {"pidfile": str(path)}).start()
    second = Server(first.directory, {"pidfile": str(path)})
    with pytest.raises(AssertionError, match="did not start"):
        second.start()
    assert int(path.read_text()) == first.pid


def test_a_pidfile_that_cannot_be_written_is_only_logged(
    tmp_path: Path, new_server: NewServer
) -> None:
    """The stock redis.conf names a file that only root may write."""
    path = tmp_path / "none" / "server.pid"
    server = new_server("data", {"pidfile": str(path)}).start()
    assert f"cannot write the pidfile {path}: {os.strerror(2)}" in server.log
    assert server.stop() == 0


STALLED_STOP = """
import time
from millstream.server import main
from millstream.server.replication.role import Role

Role.stop = lambda _: time.sleep(600)
main.server_main()
"""


def test_no_pidfile_is_left_when_a_second_signal_ends_the_stop(new_server: NewServer) -> None:
    server = new_server(
        "data", {"pidfile": "server.pid"}, program=[sys.executable, "-c", STALLED_STOP]
    ).start()
    assert int((server.directory / "server.pid").read_text()) == server.pid
    server.signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in server.log, what="the stop")

    def has_ended() -> bool:  # a signal within 5 ms of the first one is no second one
        server.signal(signal.SIGTERM)
        return not server.is_alive()

    wait_until(has_ended, what="the end of the process")
    assert server.wait() == 1
    assert not (server.directory / "server.pid").exists()
