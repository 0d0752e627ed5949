"""A disk that stalls: requests wait, memory is bounded, no data is lost, and requests continue."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.client import ConnectionClosed, RawClient
from tests.support.outside import FakeOutside
from tests.support.resp import Null, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

MEGABYTE = 1 << 20
OFFERED_BYTES = 160 * MEGABYTE
CLIENTS = 8
VALUE_BYTES = 4096
PINGS = 300


@pytest.fixture
def server(outside: FakeOutside, tmp_path: Path) -> Iterator[Server]:
    server = Server(
        tmp_path / "data", {"journal-queue-limit": "32mb"}, wrapper=outside.wrapper
    ).start()
    yield server
    outside.free_disk()
    if server.is_alive():
        server.kill()


def resident_bytes(server: Server) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096


def overwrite(client: RawClient, key: str, found: list[int]) -> None:
    """Far more frames than data."""
    command = ("SET", key, "x" * VALUE_BYTES)
    with suppress(ConnectionClosed):  # the server may be stopped meanwhile
        replies = client.pipeline([command] * (OFFERED_BYTES // CLIENTS // VALUE_BYTES))
        found.append(sum(reply == Simple("OK") for reply in replies))


def begin_load(server: Server) -> tuple[list[threading.Thread], list[int]]:
    """Clients that send more than may wait; how many of their writes are answered."""
    found: list[int] = []
    threads = [
        threading.Thread(
            target=overwrite,
            args=(RawClient(server.port, timeout_s=120), f"k{number}", found),
            daemon=True,
        )
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    return threads, found


def wait_until_full(server: Server) -> None:
    wait_until(lambda: server.log, lambda log: "the disk is slow" in log, deadline_s=60)


def test_a_stalled_disk_takes_bounded_memory_and_evicts_nothing(
    server: Server, outside: FakeOutside
) -> None:
    with server.client() as client:
        entries = [("XADD", "old", "*", "n", "x" * 100)] * 5000
        client.pipeline(entries)
        used = int(client.info("memory")["used_memory"])
        client.call("CONFIG", "SET", "maxmemory-policy", "allstreams-oldest")
        client.call("CONFIG", "SET", "maxmemory", str(used + 28 * MEGABYTE))
    before = resident_bytes(server)
    outside.stall_disk()
    threads, found = begin_load(server)
    wait_until_full(server)
    with server.client() as client:
        for _ in range(PINGS):  # each is at least one turn for all others
            assert client.call("PING") == Simple("PONG")
    grown = resident_bytes(server) - before
    assert not found, "nothing may be answered"
    assert grown < 60 * MEGABYTE, f"{grown} bytes more are held"
    outside.free_disk()
    for thread in threads:
        thread.join(120)
    assert sum(found) == OFFERED_BYTES // VALUE_BYTES
    with server.client() as client:
        assert client.call("XLEN", "old") == 5000
        assert client.info("stats")["evicted_entries"] == "0"


def test_an_operator_is_answered_while_the_disk_stalls(
    server: Server, outside: FakeOutside
) -> None:
    with server.client() as idle:
        idle_id = idle.call("CLIENT", "ID")
        outside.stall_disk()
        threads, found = begin_load(server)
        wait_until_full(server)
        with server.client() as client:
            facts = client.info("persistence")
            assert int(facts["aof_buffer_length"]) > 0
            assert int(facts["journal_queue_stalls"]) == 1
            assert int(client.info("clients")["blocked_clients"]) > 0
            assert b"cmd=set" in client.call("CLIENT", "LIST")
            assert client.call("CONFIG", "GET", "journal-queue-limit")[1] == b"33554432"
            assert client.call("CLIENT", "KILL", "ID", str(idle_id)) == 1
        assert not found, "no write may be answered"
    outside.free_disk()
    for thread in threads:
        thread.join(120)
    assert sum(found) == OFFERED_BYTES // VALUE_BYTES


def test_a_stop_waits_for_a_slow_disk_and_loses_nothing(
    server: Server, outside: FakeOutside
) -> None:
    with server.client() as client:
        assert client.call("SET", "before", "1") == Simple("OK")
    outside.stall_disk()
    begin_load(server)
    wait_until_full(server)
    server.signal(signal.SIGTERM)
    wait_until(lambda: server.log, lambda log: "stopping" in log)
    assert server.is_alive()
    outside.free_disk()
    assert server.wait() == 0
    server.start()
    with server.client() as client:
        assert client.call("GET", "before") == b"1"
        assert client.call("STRLEN", "k0") in (0, VALUE_BYTES)


def test_a_second_signal_ends_a_stop_that_waits_for_the_disk(
    server: Server, outside: FakeOutside
) -> None:
    outside.stall_disk()
    with server.client() as client, server.client() as other:
        client.send("SET", "k", "v")
        wait_until(lambda: other.info("keyspace"), lambda databases: "db0" in databases)
        server.signal(signal.SIGTERM)
        waiting = "journal frames 1 to 1 are not synced (1 in all, "
        wait_until(lambda: server.log, lambda log: waiting in log)
        assert server.is_alive()
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
    assert "stopped by a second signal: journal frames 1 to 1 are not on the disk" in server.log


@pytest.mark.parametrize("words", ["appendfsync no", "appendfsync everysec", "appendonly no"])
def test_changing_the_journal_does_not_wait_for_the_disk(
    server: Server, outside: FakeOutside, words: str
) -> None:
    outside.stall_disk()
    with server.client() as writer, server.client() as client:
        writer.send("SET", "k", "v")
        wait_until(
            lambda: client.info("persistence")["aof_buffer_length"], lambda size: size == "0"
        )
        assert client.call("CONFIG", "SET", *words.split()) == Simple("OK")
        assert client.call("PING") == Simple("PONG")
        outside.free_disk()
        assert writer.read() == Simple("OK")
        assert client.call("GET", "k") == b"v"


def test_blocked_readers_and_timers_continue_after_a_stall(
    server: Server, outside: FakeOutside
) -> None:
    with server.client() as reader, server.client() as writer, server.client() as late:
        writer.call("SET", "short", "v", "PX", "50")
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        writer.wait_blocked(1)
        late.send("XREAD", "BLOCK", "1", "STREAMS", "t", "$")
        outside.stall_disk()
        threads, _ = begin_load(server)
        wait_until_full(server)
        writer.send("XADD", "s", "1-1", "n", "v")
        outside.free_disk()
        for thread in threads:
            thread.join(120)
        assert writer.read() == b"1-1"
        assert reader.read() == [[b"s", [[b"1-1", [b"n", b"v"]]]]]
        assert late.read() is Null.ARRAY
        wait_until(lambda: writer.call("DBSIZE"), lambda size: size == CLIENTS + 1)
