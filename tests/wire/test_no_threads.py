"""A server that cannot start threads works without them: no command fails after it has changed
something, and the stop saves everything."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable

import pytest
from tests.support.client import RawClient
from tests.support.http import fetch
from tests.support.resp import Simple
from tests.support.server import Server, free_port
from tests.support.waiting import wait_until

NewServer = Callable[..., Server]
OK = Simple("OK")

# The threads fail from the first one on, or from the moment when the server is ready.
FAILING = """
import concurrent.futures, sys, threading
from millstream.server import life, main

def refuse(*_):
    raise RuntimeError("can't start new thread")

def fail():
    threading.Thread.start = refuse

if sys.argv.pop(1) == "at-start":
    fail()
started = life.Server.start

async def start(server):
    await started(server)
    fail()

life.Server.start = start
main.server_main()
"""


@pytest.fixture(params=["at-start", "when-ready"])
def limited(request: pytest.FixtureRequest, new_server: NewServer) -> Callable[..., Server]:
    """Makes servers that cannot start threads."""

    def make(name: str = "data", **directives: str) -> Server:
        program = [sys.executable, "-c", FAILING, request.param]
        return new_server(name, directives, program)

    return make


def finish_saving(client: RawClient) -> None:
    for field in ("rdb_bgsave_in_progress", "aof_rewrite_in_progress"):
        wait_until(lambda name=field: client.info("persistence")[name], lambda value: value == "0")  # type: ignore[misc]


def answers(port: int) -> bool:
    """True if the port is open: that of metrics opens after that of clients."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_every_command_works_without_threads(limited: Callable[..., Server]) -> None:
    port = free_port()
    server = limited(save="3600 1", **{"metrics-port": str(port)}).start()
    wait_until(lambda: answers(port), bool)
    assert fetch(port, "/metrics").status == 200
    with server.client() as client:
        assert client.call("SET", "a", "1") == OK
        assert client.call("BGSAVE") == Simple("Background saving started")
        finish_saving(client)
        assert client.call("BGREWRITEAOF") == Simple(
            "Background append only file rewriting started"
        )
        finish_saving(client)
        assert client.call("DEBUG", "RELOAD") == OK
        assert client.call("GET", "a") == b"1"
        assert client.call("CONFIG", "SET", "appendonly", "no") == OK
        assert client.call("SAVE") == OK
        assert client.call("FLUSHALL") == OK
        assert client.call("CONFIG", "SET", "appendonly", "yes") == OK
        finish_saving(client)
        assert client.call("DBSIZE") == 0
        assert client.call("XADD", "s", "1-1", "f", "v") == b"1-1"
        assert client.call("CONFIG", "SET", "appendfsync", "everysec") == OK
        assert client.call("SET", "b", "2") == OK
        status = client.info("persistence")
        assert (status["rdb_last_bgsave_status"], status["aof_last_bgrewrite_status"]) == (
            "ok",
        ) * 2
    assert server.stop() == 0
    server.start()
    with server.client() as client:
        assert client.call("GET", "b") == b"2"
        assert client.call("XLEN", "s") == 1
        client.send("SHUTDOWN")
        assert server.wait() == 0
    assert "internal error" not in server.log
    assert "Traceback" not in server.log


def test_a_stop_without_threads_saves_a_snapshot(limited: Callable[..., Server]) -> None:
    server = limited(appendonly="no", save="3600 1").start()
    with server.client() as client:
        assert client.call("SET", "a", "1") == OK
    server.signal(signal.SIGHUP)
    wait_until(lambda: "SIGHUP" in server.log, what="the effect of SIGHUP")
    assert server.stop() == 0
    server.start()
    with server.client() as client:
        assert client.call("GET", "a") == b"1"


def test_a_full_sync_without_threads(limited: Callable[..., Server]) -> None:
    primary, replica = limited("primary").start(), limited("replica").start()
    with primary.client() as first, replica.client() as second:
        first.call("SET", "a", "1")
        first.call("BGREWRITEAOF")
        finish_saving(first)
        assert second.call("SET", "old", "1") == OK
        assert second.call("REPLICAOF", "127.0.0.1", str(primary.port)) == OK
        wait_until(
            lambda: second.info("replication")["master_link_status"] == "up", what="the link"
        )
        first.call("SET", "b", "2")
        wait_until(lambda: second.call("GET", "b") == b"2", what="the change")
        assert second.call("EXISTS", "old", "a") == 1
        assert second.call("REPLICAOF", "localhost", str(primary.port)) == OK
        wait_until(lambda: "localhost cannot be looked up" in replica.log, what="the reason")
        assert second.call("REPLICAOF", "NO", "ONE") == OK
    assert (replica.stop(), primary.stop()) == (0, 0)


@pytest.mark.parametrize("limited", ["at-start"], indirect=True)
def test_each_thread_that_is_missing_is_logged_once(limited: Callable[..., Server]) -> None:
    server = limited().start()
    with server.client() as client:
        client.call("BGSAVE")
        finish_saving(client)
    assert server.stop() == 0
    for name in ("millstream-journal", "millstream-snapshot"):
        assert server.log.count(f"the thread {name} cannot be started: can't start new thread") == 1
    assert server.log.count("the thread for signals cannot be started") == 1
