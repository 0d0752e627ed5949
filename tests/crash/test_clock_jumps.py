"""The wall clock of a real server jumps: waits end on time, ages and expiries are noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.http import scrape, value
from tests.support.outside import FakeOutside
from tests.support.resp import Null, Simple
from tests.support.server import Server, free_port
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000
RETRIED = ("TREAD", "s", "0", "1", "BLOCK", "0", "GROUP", "g", "0", "RETRY", "300", "86400000")


@pytest.fixture
def server(outside: FakeOutside, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data", wrapper=outside.wrapper).start()
    yield server
    if server.is_alive():
        server.kill()


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, 24 * HOUR_MS])
def test_a_wait_ends_on_time_when_the_clock_jumps(
    server: Server, outside: FakeOutside, jump_ms: int
) -> None:
    with server.client() as reader, server.client() as writer:
        reader.send("XREAD", "BLOCK", "500", "STREAMS", "s", "$")
        writer.wait_blocked(1)
        outside.jump(jump_ms)
        writer.call("PING")
        assert reader.read() is Null.ARRAY


def test_a_retry_is_on_time_when_the_clock_goes_back(server: Server, outside: FakeOutside) -> None:
    with server.client() as reader, server.client() as writer:
        entry_id = writer.call("TAPPEND", "s", "n", "v")
        assert reader.call(*RETRIED) == [[entry_id, b"n", b"v"]]
        reader.send(*RETRIED)
        writer.wait_blocked(1)
        outside.jump(-HOUR_MS)
        assert reader.read() == [[entry_id, b"n", b"v"]]
        writer.call("TAPPEND", "s", "n", "w")  # IDs rise anyway
        first, second = writer.call("XRANGE", "s", "-", "+")  # type: ignore[misc]
        assert first[0].split(b"-")[0] == second[0].split(b"-")[0]


def test_a_retry_survives_a_clock_set_back_between_two_starts(
    server: Server, outside: FakeOutside
) -> None:
    with server.client() as client:
        entry_id = client.call("TAPPEND", "s", "n", "v")
        assert client.call(*RETRIED) == [[entry_id, b"n", b"v"]]
    server.stop()
    outside.jump(-HOUR_MS)
    server.start()
    with server.client() as client:
        assert client.call(*RETRIED) == [[entry_id, b"n", b"v"]]


def test_ages_and_expiries_follow_a_clock_set_forward(server: Server, outside: FakeOutside) -> None:
    with server.client() as client:
        client.call("TAPPEND", "s", "n", "v")
        client.call("TPOLICY", "s", "MAXAGE", str(HOUR_MS))
        assert client.call("SET", "k", "v", "EX", "3600") == Simple("OK")
        assert client.call("DBSIZE") == 2
        outside.jump(24 * HOUR_MS)
        wait_until(lambda: client.call("DBSIZE"), lambda size: size == 1)
        wait_until(lambda: client.call("XLEN", "s"), lambda length: length == 0)


def test_jumps_show_in_the_log_and_metrics(outside: FakeOutside, tmp_path: Path) -> None:
    port = free_port()
    server = Server(tmp_path / "data", {"metrics-port": str(port)}, wrapper=outside.wrapper).start()
    place = {"db": "db0", "stream": "s", "group": "g"}
    age = "millstream_group_oldest_unacked_age_seconds"
    try:
        with server.client() as client:
            client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            outside.jump(24 * HOUR_MS)
            wait_until(lambda: "jumped ahead by 86400." in server.log, what="the first line")
            client.call("XADD", "s", "*", "f", "v")
            outside.jump(0)
            wait_until(lambda: "jumped back by 86400." in server.log, what="the second line")
            client.call("XADD", "s", "*", "f", "v")
        wait_until(
            lambda: (value(scrape(port), age, **place) or 0) > 1, what="an age of an unread entry"
        )
        series = scrape(port)
        assert value(series, "millstream_clock_jumps_total") == 2
        lead_s = value(series, "millstream_id_lead_seconds")
        assert lead_s is not None
        assert 86_000 < lead_s < 86_401
    finally:
        server.kill()
