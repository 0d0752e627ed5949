"""DEBUG RELOAD, LOADAOF and DIGEST: the digest shows that the data is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.client import RawClient
from tests.support.resp import Error, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

OK = Simple("OK")


def fill(client: RawClient) -> None:
    client.call("SET", "str", "v")
    client.call("SET", "going", "v", "EX", "1000")
    for number in range(1, 1001):
        client.call("TAPPEND", "s", "n", str(number))
    client.call("TAPPEV", "s", "COUNT", "900")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "alice", "COUNT", "7", "STREAMS", "s", ">")
    client.call("TREAD", "s", "0", "5", "GROUP", "t", "0", "RETRY", "100000", "0")
    client.call("SELECT", "3")
    client.call("XADD", "other", "1-1", "f", "v")
    client.call("SELECT", "0")


def test_a_digest_covers_every_part(server: Server) -> None:
    changes = [
        ("SET", "str", "w"),
        ("PERSIST", "going"),
        ("XADD", "s", "*", "f", "v"),
        ("XACK", "s", "g", "0-1"),
        ("XREADGROUP", "GROUP", "g", "bob", "COUNT", "1", "STREAMS", "s", ">"),
        ("RENAME", "str", "str2"),
        ("MOVE", "str2", "3"),
    ]
    with server.client() as client:
        empty = client.call("DEBUG", "DIGEST")
        assert empty == Simple("0" * 40)
        fill(client)
        before = client.call("DEBUG", "DIGEST")
        for words in changes:
            client.call(*words)
            after = client.call("DEBUG", "DIGEST")
            assert (after == before) == (words[0] == "XACK"), words
            before = after
        client.call("FLUSHALL")
        assert client.call("DEBUG", "DIGEST") == empty


@pytest.mark.parametrize(
    "words", [("RELOAD",), ("RELOAD", "NOSAVE"), ("LOADAOF",), ("RELOAD", "NOFLUSH", "MERGE")]
)
@pytest.mark.parametrize("mode", ["always", "everysec", "no"])
def test_a_reload_changes_nothing(server: Server, words: tuple[str, ...], mode: str) -> None:
    with server.client() as client:
        assert client.call("CONFIG", "SET", "appendfsync", mode) == OK
        fill(client)
        before = client.call("DEBUG", "DIGEST")
        for _ in range(2):
            assert client.call("DEBUG", *words) == OK
            assert client.call("DEBUG", "DIGEST") == before
        client.call("XADD", "s", "*", "f", "v")
        after = client.call("DEBUG", "DIGEST")
        assert after != before
        assert client.call("DEBUG", "LOADAOF") == OK
        assert client.call("DEBUG", "DIGEST") == after
        assert client.call("CONFIG", "SET", "appendfsync", "always") == OK


def test_a_reload_without_journal_and_save_restores_old_data(
    new_server: Callable[..., Server],
) -> None:
    server = new_server("data", {"appendonly": "no"})
    server.start()
    with server.client() as client:
        client.call("SET", "str", "old")
        assert client.call("DEBUG", "RELOAD") == OK
        assert client.call("GET", "str") == b"old"
        client.call("SET", "str", "new")
        client.call("SET", "more", "v")
        assert isinstance(client.call("DEBUG", "LOADAOF"), Error)
        assert client.call("DEBUG", "RELOAD", "NOSAVE", "NOFLUSH", "MERGE") == OK
        assert client.call("GET", "str") == b"old"
        assert client.call("GET", "more") == b"v"
        assert client.call("DEBUG", "RELOAD", "NOSAVE") == OK
        assert client.call("GET", "more") is None or client.call("EXISTS", "more") == 0


@pytest.mark.parametrize("running", ["BGSAVE", "BGREWRITEAOF"])
@pytest.mark.parametrize("words", [("DEBUG", "RELOAD"), ("DEBUG", "LOADAOF"), ("SAVE",)])
def test_a_running_job_does_not_block_others(
    server: Server, running: str, words: tuple[str, ...]
) -> None:
    with server.client() as client:
        fill(client)
        client.call("DEBUG", "POPULATE", "3000")
        before = client.call("DEBUG", "DIGEST")
        client.send(running)
        client.send(*words)
        assert not isinstance(client.read(), Error)
        saving = words == ("SAVE",) and running == "BGSAVE"
        refusal = Error("ERR Background save already in progress")
        assert client.read() == (refusal if saving else OK)
        assert client.call("DEBUG", "DIGEST") == before
        client.call("SET", "str", "w")
        after = client.call("DEBUG", "DIGEST")
    server.restart("SIGKILL")
    with server.client() as client:
        assert client.call("DEBUG", "DIGEST") == after


def test_the_journal_is_loaded_as_soon_as_it_is_on(new_server: Callable[..., Server]) -> None:
    server = new_server("data", {"appendonly": "no"})
    server.start()
    with server.client() as client:
        fill(client)
        before = client.call("DEBUG", "DIGEST")
        for mode in ("yes", "no", "yes"):
            client.send("CONFIG", "SET", "appendonly", mode)
        client.send("DEBUG", "LOADAOF")
        assert [client.read() for _ in range(4)] == [OK] * 4
        assert client.call("DEBUG", "DIGEST") == before
    server.restart("SIGKILL")
    with server.client() as client:
        assert client.call("DEBUG", "DIGEST") == before


def test_a_snapshot_under_way_does_not_hinder_the_last_one(
    new_server: Callable[..., Server],
) -> None:
    server = new_server("data", {"appendonly": "no", "save": "3600 1"})
    server.start()
    with server.client() as client:
        client.call("DEBUG", "POPULATE", "3000")
        client.send("BGSAVE")
        client.send("SET", "str", "v")
        client.send("SHUTDOWN")
        assert client.read() == Simple("Background saving started")
        assert client.read() == OK
    wait_until(lambda: not server.is_alive())
    server.start()
    with server.client() as client:
        assert client.call("GET", "str") == b"v"


def test_a_watched_key_counts_as_changed_by_a_reload(server: Server) -> None:
    with server.client() as client:
        client.call("SET", "str", "v")
        client.call("WATCH", "str")
        assert client.call("DEBUG", "RELOAD") == OK
        client.call("MULTI")
        client.call("GET", "str")
        assert client.call("EXEC") != [b"v"]


def test_debug_is_refused_unless_it_is_enabled(new_server: Callable[..., Server]) -> None:
    server = new_server("data")
    del server.directives["enable-debug-command"]
    server.start()
    with server.client() as client:
        reply = client.call("DEBUG", "SLEEP", "0")
        assert isinstance(reply, Error)
        assert reply.text.startswith("ERR DEBUG command not allowed. If the enable-debug-command")
