"""A server is stopped while its journal has failed: it logs which frames are not on disk."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.client import ConnectionClosed
from tests.support.outside import FakeOutside
from tests.support.resp import Error, Simple
from tests.support.server import Server

UNSAVED = "stopping with data that is not on the disk: journal frames 2 to 2"


@pytest.fixture
def server(outside: FakeOutside, tmp_path: Path) -> Iterator[Server]:
    """One whose journal has failed with one write."""
    server = Server(tmp_path / "data", wrapper=outside.wrapper).start()
    with server.client() as client:
        assert client.call("SET", "safe", "1") == Simple("OK")
        outside.break_disk()
        with pytest.raises(ConnectionClosed):
            client.call("SET", "unsure", "1")
    yield server
    if server.is_alive():
        server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_exit_code_1(server: Server, number: signal.Signals) -> None:
    server.signal(number)
    assert server.wait() == 1
    assert UNSAVED in server.log


@pytest.mark.parametrize("way", ["SIGTERM", "SHUTDOWN", "SHUTDOWN NOW"])
def test_it_saves_all_data_when_the_disk_works_again(
    server: Server, outside: FakeOutside, way: str
) -> None:
    outside.free_disk()
    if way == "SIGTERM":
        assert server.stop() == 0
    else:
        with server.client() as client, suppress(ConnectionClosed):
            client.call(*way.split())
        assert server.wait() == 0
    assert UNSAVED not in server.log
    server.start()
    with server.client() as client:
        assert client.call("GET", "safe") == b"1"
        assert client.call("GET", "unsure") == b"1"


def test_shutdown_is_refused_unless_it_is_forced(server: Server) -> None:
    with server.client() as client:
        for words in (["SHUTDOWN"], ["SHUTDOWN", "SAVE"], ["SHUTDOWN", "NOW"]):
            assert client.call(*words) == Error("ERR Errors trying to SHUTDOWN. Check logs.")
        with pytest.raises(ConnectionClosed):
            client.call("SHUTDOWN", "FORCE")
    assert server.wait() == 1
    assert UNSAVED in server.log


def test_shutdown_nosave_does_not_try(server: Server, outside: FakeOutside) -> None:
    outside.free_disk()
    with server.client() as client, pytest.raises(ConnectionClosed):
        client.call("SHUTDOWN", "NOSAVE")
    assert server.wait() == 1
    assert UNSAVED in server.log
