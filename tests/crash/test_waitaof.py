"""WAITAOF while the journal is turned off and on: every client that waits gets an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.outside import FakeOutside
from tests.support.resp import Error, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

OK = Simple("OK")
AOF_OFF = Error("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.")


@pytest.fixture
def server(outside: FakeOutside, tmp_path: Path) -> Iterator[Server]:
    options = {"appendfsync": "no"}
    server = Server(tmp_path / "data", options, wrapper=outside.wrapper).start()
    yield server
    outside.free_disk()
    if server.is_alive():
        server.kill()


def wait_for(client: RawClient, section: str, field: str, value: str) -> None:
    wait_until(lambda: client.info(section)[field], lambda found: found == value)


def appendonly(client: RawClient, value: str) -> None:
    assert client.call("CONFIG", "SET", "appendonly", value) == OK


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_in_waitaof_gets_an_error_when_the_journal_ends(
    server: Server, outside: FakeOutside, protocol: int
) -> None:
    with server.client(protocol) as waiting, server.client() as client:
        assert waiting.call("SET", "k", "v") == OK
        outside.stall_disk()
        waiting.send("WAITAOF", "1", "0", "0")
        client.wait_blocked(1)
        appendonly(client, "no")
        client.wait_blocked(0)
        outside.free_disk()
        assert waiting.read() == AOF_OFF
        assert client.info("commandstats")["cmdstat_waitaof"].endswith("failed_calls=1")


@pytest.mark.parametrize("way", ["alone", "in a transaction"])
def test_only_clients_that_wait_for_this_server_get_the_error(server: Server, way: str) -> None:
    with server.client() as both, server.client() as replicas, server.client() as client:
        both.send("WAITAOF", "1", "1", "0")
        replicas.send("WAITAOF", "0", "1", "0")
        client.wait_blocked(2)
        if way == "alone":
            appendonly(client, "no")
        else:
            client.call("MULTI")
            client.call("CONFIG", "SET", "appendonly", "no")
            assert client.call("EXEC") == [OK]
        assert both.read() == AOF_OFF
        client.wait_blocked(1)
        assert client.call("WAITAOF", "1", "0", "0") == AOF_OFF
        assert client.call("WAITAOF", "0", "0", "0") == [0, 0]


def test_a_wait_ends_when_a_journal_turned_on_again_counts(server: Server) -> None:
    with server.client() as client:
        appendonly(client, "no")
        assert client.call("SET", "k", "v") == OK
        appendonly(client, "yes")
        assert client.call("WAITAOF", "1", "0", "0") == [1, 0]
        assert client.info("persistence")["aof_enabled"] == "1"


def test_a_wait_ends_when_a_failed_journal_is_replaced(
    server: Server, outside: FakeOutside
) -> None:
    with server.client() as client, server.client() as waiting:
        assert waiting.call("SET", "k", "v") == OK
        outside.break_disk()
        waiting.send("WAITAOF", "1", "0", "0")
        wait_for(client, "persistence", "aof_last_write_status", "err")
        outside.free_disk()
        assert waiting.read() == [1, 0]
