"""maxmemory in a real process: used memory stays there, and nearly so what the process holds."""

from __future__ import annotations

from pathlib import Path

from tests.support.client import RawClient, as_list
from tests.support.resp import Reply
from tests.support.server import Server
from tests.support.waiting import wait_until

MEGABYTE = 1 << 20
STREAMS = 20
ROOM_BYTES = 20 * MEGABYTE
WRITTEN_BYTES = 80 * MEGABYTE
VALUE_BYTES = 2000


def used(client: RawClient) -> int:
    return int(client.info("memory")["used_memory"])


def entries(client: RawClient) -> list[Reply]:
    return [client.call("XRANGE", f"s{number}", "-", "+") for number in range(STREAMS)]


def test_the_oldest_entries_are_evicted_and_a_restart_agrees(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", {"appendfsync": "no"}).start()
    try:
        with server.client() as client:
            limit_bytes = used(client) + ROOM_BYTES
            client.call("CONFIG", "SET", "maxmemory-policy", "allstreams-oldest")
            client.call("CONFIG", "SET", "maxmemory", str(limit_bytes))
            value = "x" * VALUE_BYTES
            count = WRITTEN_BYTES // VALUE_BYTES // 1000 * 1000
            for start in range(0, count, 1000):
                client.pipeline(
                    [("XADD", f"s{n % STREAMS}", f"{n + 1}-1", "f", value)
                     for n in range(start, start + 1000)]
                )  # fmt: skip
            wait_until(lambda: used(client), lambda now: now <= limit_bytes, "used memory")
            client.call("CONFIG", "SET", "maxmemory", "0")  # reading takes memory, too
            info = client.info("stats")
            left = entries(client)
            kept = sum(len(as_list(rows)) for rows in left)
            assert int(info["evicted_entries"]) == count - kept
            assert kept * VALUE_BYTES < 1.2 * ROOM_BYTES
            assert kept * VALUE_BYTES > 0.3 * ROOM_BYTES
            oldest = [int(as_list(as_list(rows)[0])[0].split(b"-")[0]) for rows in left]  # type: ignore[union-attr]
            assert max(oldest) - min(oldest) < 0.2 * count
            assert int(client.info("memory")["used_memory_rss"]) < limit_bytes + ROOM_BYTES
        server.restart()
        with server.client() as client:
            assert entries(client) == left
    finally:
        server.stop()
