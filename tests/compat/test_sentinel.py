"""Failover by the real Sentinel, unchanged, with redis-py's Sentinel client."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.sentinel import MasterNotFoundError, Sentinel
from tests.support.server import Server, free_port, redis_program
from tests.support.waiting import wait_until

NAME = "stream"
DEADLINE_S = 60.0


class Sentinels:
    """Three sentinels that watch one primary."""

    def __init__(self, folder: Path, primary: int) -> None:
        self.ports: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for number in range(3):
            port = free_port()
            config = folder / f"sentinel-{number}.conf"
            config.write_text(
                f"port {port}\ndir {folder}\n"
                f"sentinel monitor {NAME} 127.0.0.1 {primary} 2\n"
                f"sentinel down-after-milliseconds {NAME} 1000\n"
                f"sentinel failover-timeout {NAME} 10000\n"
            )
            self._processes.append(
                subprocess.Popen(
                    [*redis_program(), str(config), "--sentinel"],
                    stdout=(folder / f"sentinel-{number}.log").open("wb"),
                )
            )
            self.ports.append(port)
        for port in self.ports:
            wait_until(lambda port=port: _answers(port), deadline_s=DEADLINE_S)  # type: ignore[misc]

    def client(self) -> Sentinel:
        return Sentinel([("127.0.0.1", port) for port in self.ports], socket_timeout=5.0)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


class Group:
    """Three servers, the first of which is the primary, and the sentinels."""

    def __init__(self, folder: Path, directives: dict[str, str]) -> None:
        self.servers = [Server(folder / "server-0", directives).start()]
        follows = directives | {"replicaof": f"127.0.0.1 {self.servers[0].port}"}
        self.servers += [Server(folder / f"server-{n}", follows).start() for n in (1, 2)]
        self.sentinels = Sentinels(folder, self.servers[0].port)

    def server_at(self, port: int) -> Server:
        return next(server for server in self.servers if server.port == port)

    def stop(self) -> None:
        self.sentinels.stop()
        for server in self.servers:
            if server.is_alive():
                server.kill()


@pytest.fixture
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group(tmp_path, getattr(request, "param", {}))
    yield made
    made.stop()


def knows_everything(sentinel: Sentinel) -> bool:
    try:
        return all(
            client.sentinel_master(NAME)["num-other-sentinels"] == 2
            and len(sentinel_slaves(client)) == 2
            for client in sentinel.sentinels
        )
    except RedisError:
        return False


def sentinel_slaves(client: Redis) -> list[dict[str, object]]:
    """The replicas that can be promoted."""
    return [one for one in client.sentinel_slaves(NAME) if one["master-link-status"] == "ok"]


def primary_port(sentinel: Sentinel) -> int:
    try:
        return int(sentinel.discover_master(NAME)[1])
    except (MasterNotFoundError, RedisError):
        return 0


def appended(client: Redis, value: int) -> bool:
    try:
        client.xadd("s", {"n": value})
    except (RedisConnectionError, ReadOnlyError, MasterNotFoundError, RedisError):
        return False
    return True


def test_sentinel_promotes_a_replica_when_the_primary_dies(group: Group) -> None:
    sentinel = group.sentinels.client()
    wait_until(lambda: knows_everything(sentinel), deadline_s=DEADLINE_S)
    client: Redis = sentinel.master_for(NAME, socket_timeout=5.0)
    for number in range(100):
        client.xadd("s", {"n": number})
    assert client.wait(2, 10_000) == 2
    old = group.servers[0]
    old.kill()
    wait_until(lambda: primary_port(sentinel) not in (0, old.port), deadline_s=DEADLINE_S)
    wait_until(lambda: appended(client, 100), deadline_s=DEADLINE_S)
    assert client.xlen("s") >= 101
    assert [fields[b"n"] for _, fields in client.xrange("s", count=100)] == [
        b"%d" % number for number in range(100)
    ]
    old.start()  # Sentinel makes it a replica of the new primary
    back = Redis(port=old.port)
    wait_until(
        lambda: back.info("replication").get("master_link_status") == "up", deadline_s=DEADLINE_S
    )
    wait_until(lambda: back.xrange("s") == client.xrange("s"), deadline_s=DEADLINE_S)


DURABLE = {"replicas-durable": "1", "appendfsync": "always"}
WRITERS = 8


@pytest.mark.parametrize("group", [DURABLE], indirect=True)
def test_a_failover_on_request_loses_nothing_that_was_confirmed(group: Group) -> None:
    """The primary works and has load, and the replica that is promoted may be the slower one."""
    sentinel = group.sentinels.client()
    wait_until(lambda: knows_everything(sentinel), deadline_s=DEADLINE_S)
    client: Redis = sentinel.master_for(NAME, socket_timeout=5.0)
    before = primary_port(sentinel)
    confirmed: list[bytes] = []
    is_over = threading.Event()

    def write() -> None:
        own: Redis = sentinel.master_for(NAME, socket_timeout=5.0)
        while not is_over.is_set():
            try:
                confirmed.append(own.xadd("s", {"n": 1}))
            except RedisError:
                is_over.wait(0.05)

    writers = [threading.Thread(target=write) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        wait_until(lambda: len(confirmed) > 200, deadline_s=DEADLINE_S)
        assert sentinel.sentinels[0].sentinel_failover(NAME)
        wait_until(lambda: primary_port(sentinel) not in (0, before), deadline_s=DEADLINE_S)
        count = len(confirmed)
        wait_until(lambda: len(confirmed) > count + 200, deadline_s=DEADLINE_S)
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    wait_until(lambda: knows_everything(sentinel), deadline_s=DEADLINE_S)
    there = {entry_id for entry_id, _ in client.xrange("s")}
    assert [entry_id for entry_id in confirmed if entry_id not in there] == []
