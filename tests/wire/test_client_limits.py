"""Limits of clients as a whole: maxmemory-clients and user-limits, and settings of the process."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.resp import Error, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

NewServer = Callable[..., Server]
MEGABYTE = 1 << 20
PART = b"*2\r\n$4\r\nECHO\r\n$3145728\r\n" + b"x" * (2 * MEGABYTE)  # of a request of 3 MB


@pytest.fixture
def admin(server: Server) -> Iterator[RawClient]:
    """A client of the user `default`; all limits are removed afterwards."""
    with server.client() as client:
        client.call("CONFIG", "RESETSTAT")
        for name in ("app", "other"):
            client.call("ACL", "SETUSER", name, "on", ">secret", "~*", "+@all")
        yield client
        client.call("CONFIG", "SET", "user-limits", "", "maxmemory-clients", "0", "maxmemory", "0")
        client.call("ACL", "DELUSER", "app", "other")


def connected(server: Server, user: str) -> RawClient:
    client = server.client()
    assert client.call("AUTH", user, "secret") == Simple("OK")
    return client


def is_open(admin: RawClient, client_id: object) -> bool:
    return f"id={client_id} ".encode() in bytes(admin.call("CLIENT", "LIST") or b"")  # type: ignore[arg-type]


def begin_request(client: RawClient) -> object:
    """Send a part of a long request; return the client's ID."""
    number = client.call("CLIENT", "ID")
    client.send_raw(PART)
    return number


def stat(admin: RawClient, name: str) -> str:
    return admin.info("stats")[name]


def test_the_largest_client_is_closed_above_maxmemory_clients(
    server: Server, admin: RawClient
) -> None:
    """A client that has asked for CLIENT NO-EVICT stays."""
    with server.client() as large, server.client() as exempt, server.client() as small:
        exempt.call("CLIENT", "NO-EVICT", "ON")
        kept, number = begin_request(exempt), begin_request(large)
        admin.call("CONFIG", "SET", "maxmemory", str(100 * MEGABYTE), "maxmemory-clients", "4%")
        wait_until(lambda: not is_open(admin, number), what="the end of the largest client")
        assert is_open(admin, kept)
        assert small.call("PING") == Simple("PONG")
        assert stat(admin, "evicted_clients") == "1"
    assert "maxmemory-clients allows 4194304" in server.log


def test_a_user_has_a_limit_of_connections(server: Server, admin: RawClient) -> None:
    """The limit of `*` is one for each user. A login that is repeated needs no place."""
    admin.call("CONFIG", "SET", "user-limits", "app 2 0 * 1 0 default 0 10gb")
    refused = "ERR max number of clients reached for the user 'app': user-limits allows 2"
    first, second, other = (connected(server, name) for name in ("app", "app", "other"))
    with first, second, other, server.client() as third:
        assert third.call("AUTH", "app", "secret") == Error(refused)
        assert third.call("HELLO", "3", "AUTH", "app", "secret") == Error(refused)
        assert third.call("ACL", "WHOAMI") == b"default"
        assert "'other': user-limits allows 1" in str(third.call("AUTH", "other", "secret"))
        assert first.call("AUTH", "app", "secret") == Simple("OK")
        assert first.call("RESET") == Simple("RESET")
        assert third.call("AUTH", "app", "secret") == Simple("OK")
    assert stat(admin, "user_limit_refusals") == "3"


def test_new_connections_of_a_full_default_user_are_refused(
    server: Server, admin: RawClient
) -> None:
    with server.client() as known:
        known.call("AUTH", "app", "secret")
        count = len(bytes(admin.call("CLIENT", "LIST") or b"").splitlines())  # type: ignore[arg-type]
        admin.call("CONFIG", "SET", "user-limits", f"default {count - 1} 0")
        with server.client() as late:
            assert "for the user 'default'" in str(late.read())
        assert known.call("RESET") == Simple("RESET")
        assert known.read_to_end() == b""


def test_a_user_has_a_limit_of_memory(server: Server, admin: RawClient) -> None:
    """Only its own clients are closed."""
    admin.call("CONFIG", "SET", "user-limits", f"app 0 {3 * MEGABYTE}")
    with contextlib.ExitStack() as stack:
        of_app = [stack.enter_context(connected(server, "app")) for _ in range(2)]
        of_other = [stack.enter_context(connected(server, "other")) for _ in range(2)]
        others = [begin_request(client) for client in of_other]
        numbers = [begin_request(client) for client in of_app]
        wait_until(
            lambda: sum(is_open(admin, number) for number in numbers) == 1,
            what="the end of one client",
        )
        assert all(is_open(admin, number) for number in others)
        assert stat(admin, "user_limit_disconnections") == "1"
        assert stat(admin, "evicted_clients") == "0"


def test_the_oom_score_follows_the_directive(server: Server, admin: RawClient) -> None:
    file = Path(f"/proc/{server.pid}/oom_score_adj")
    base = int(file.read_text())
    scores = "oom-score-adj-values", "11 222 333"
    assert admin.call("CONFIG", "SET", *scores, "oom-score-adj", "relative") == Simple("OK")
    assert int(file.read_text()) == min(base + 11, 1000)
    assert admin.call("CONFIG", "GET", "oom-score-adj") == [b"oom-score-adj", b"yes"]
    admin.call("REPLICAOF", "127.0.0.1", "1")
    wait_until(lambda: int(file.read_text()) == min(base + 222, 1000), what="the replica's score")
    admin.call("REPLICAOF", "NO", "ONE")
    admin.call("CONFIG", "SET", "oom-score-adj", "no")
    assert int(file.read_text()) == base


def test_a_directive_without_effect_is_a_warning(server: Server, admin: RawClient) -> None:
    assert admin.call("CONFIG", "SET", "replica-ignore-maxmemory", "no") == Simple("OK")
    assert "replica-ignore-maxmemory no has no effect: a replica evicts nothing" in server.log
    admin.call("CONFIG", "SET", "replica-ignore-maxmemory", "yes")


def test_a_signal_stops_with_the_words_of_its_directive(new_server: NewServer) -> None:
    """nosave loses what SIGTERM would save by default; SIGINT saves with a journal, too."""
    directives = {"appendonly": "no", "save": "3600 1", "shutdown-on-sigterm": "nosave"}
    server = new_server("data", directives).start()
    with server.client() as client:
        client.call("SET", "k", "1")
    assert server.stop() == 0
    server.start()
    with server.client() as client:
        assert client.call("EXISTS", "k") == 0
        client.call("SET", "k", "2")
        client.call("CONFIG", "SET", "shutdown-on-sigterm", "default", "save", "")
        client.call("CONFIG", "SET", "shutdown-on-sigint", "save now")
    server.signal(signal.SIGINT)
    wait_until(lambda: not server.is_alive(), what="the stop")
    server.start()
    with server.client() as client:
        assert client.call("GET", "k") == b"2"
