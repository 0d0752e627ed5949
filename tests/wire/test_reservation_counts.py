"""INFO counts the open reservations after any change of their keys."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.client import RawClient
from tests.support.resp import Error
from tests.support.server import Server
from tests.support.waiting import wait_until


def pending(client: RawClient) -> int:
    return int(client.info("stats")["reservations_pending"])


def expired(client: RawClient) -> int:
    return int(client.info("stats")["reservations_expired"])


def do(client: RawClient, *lines: str) -> None:
    for line in lines:
        reply = client.call(*line.split())
        assert not isinstance(reply, Error), (line, reply)


def test_open_reservations_are_counted(server: Server, client: RawClient) -> None:
    reserve = "TRESERVE s w COUNT 3 LEASE 600000"
    do(client, reserve)
    assert pending(client) == 3
    do(client, "RENAME s t", "MOVE t 5", "SWAPDB 5 6")
    assert pending(client) == 3
    do(client, "SELECT 6", "COPY t u", "SELECT 0")
    assert pending(client) == 3
    for gone in (
        ("DEL s",),
        ("UNLINK s",),
        ("SET s string", "DEL s"),
        ("TAPPEND other f v", "RENAME other s", "DEL s"),
        ("TAPPEND other f v", "COPY other s REPLACE", "DEL s"),
        ("FLUSHDB",),
        ("PEXPIREAT s 1",),
        ("TABORT s w",),
    ):
        do(client, reserve)
        assert pending(client) == 6, gone
        do(client, *gone)
        assert pending(client) == 3, gone
        do(client, "DEL s other")
    do(client, "FLUSHALL")
    assert pending(client) == 0


def test_expired_reservations_are_counted_and_logged(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    with server.client() as client:
        do(client, "TRESERVE s till-1 COUNT 3 LEASE 1")
        wait_until(lambda: expired(client), lambda count: count == 3)
        assert pending(client) == 0
        do(client, "TRESERVE s till-2 COUNT 2 LEASE 600000")
    server.restart()
    with server.client() as client:
        assert pending(client) == 2
    assert "of writer 'till-1' in stream 's' is over" in server.log
