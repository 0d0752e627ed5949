"""The memory that the server reports is what it uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.client import RawClient, as_bytes
from tests.support.resp import Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.server.monitor.huge_pages import TUNABLES

MEGABYTE = 1 << 20
SIZE_BYTES = 50 * MEGABYTE


def used(client: RawClient) -> int:
    return int(client.info("memory")["used_memory"])


def test_used_memory_rises_with_the_data_and_falls_with_it(
    new_server: Callable[..., Server],
) -> None:
    with new_server().start().client() as client:
        before = used(client)
        for _ in range(SIZE_BYTES // MEGABYTE):  # not in a pipeline, which takes memory itself
            client.call("XADD", "s", "*", "f", "x" * MEGABYTE)
        info = client.info("memory")
        assert SIZE_BYTES * 0.9 < int(info["used_memory"]) - before < SIZE_BYTES * 1.5
        assert int(info["used_memory_rss"]) <= int(info["used_memory_peak"])
        assert int(info["used_memory"]) <= int(info["used_memory_rss"])
        assert int(info["used_memory_dataset"]) > SIZE_BYTES * 0.9
        assert client.call("XTRIM", "s", "MAXLEN", "0") == SIZE_BYTES // MEGABYTE
        wait_until(lambda: used(client), lambda now: now < before + SIZE_BYTES // 5, "less memory")


def test_the_process_returns_the_memory_of_large_values(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def held() -> int:
        return int(client.info("memory")["used_memory_rss"])

    monkeypatch.setenv("GLIBC_TUNABLES", TUNABLES)  # as where huge pages have to be asked for
    with new_server().start().client() as client:
        before = held()
        for size in (5 * MEGABYTE, 3 * MEGABYTE):
            for at in range(2 * SIZE_BYTES // size):
                client.call("XADD", f"s{at % 7}", "*", "f", "x" * size)
            assert held() > before + SIZE_BYTES
            assert client.call("FLUSHALL") == Simple("OK")
            wait_until(held, lambda now: now < before + SIZE_BYTES // 2, "the memory back")


def test_the_memory_of_clients_is_counted(server: Server) -> None:
    with server.client() as client, server.client() as slow:
        before = int(client.info("memory")["mem_clients_normal"])
        assert slow.call("CLIENT", "SETNAME", "slow") == Simple("OK")
        slow.send_raw(b"*2\r\n$4\r\nECHO\r\n$10000000\r\n" + b"x" * 5_000_000)

        def line() -> dict[str, str]:
            text = as_bytes(client.call("CLIENT", "LIST")).decode()
            found = next(row for row in text.splitlines() if "name=slow" in row)
            return dict(pair.split("=", 1) for pair in found.split(" "))

        seen = wait_until(line, lambda row: int(row["qbuf"]) >= 5_000_000, "the half request")
        whole = int(seen["tot-mem"])
        assert int(seen["qbuf"]) + int(seen["qbuf-free"]) <= whole < 20_000_000
        assert int(client.info("memory")["mem_clients_normal"]) - before >= 5_000_000


def test_the_doctor_and_the_statistics_agree_with_info(client: RawClient) -> None:
    reply = client.call("MEMORY", "STATS")
    assert isinstance(reply, list)
    stats = dict(zip(reply[::2], reply[1::2], strict=True))
    info = client.info("memory")
    total = stats[b"total.allocated"]
    assert isinstance(total, int)
    assert abs(total - int(info["used_memory"])) < 5 * MEGABYTE
    assert stats[b"startup.allocated"] == int(info["used_memory_startup"])
    assert b"." in as_bytes(client.call("MEMORY", "DOCTOR"))
