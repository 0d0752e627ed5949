"""Servers that real Sentinels watch: one primary and two replicas."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError, Sentinel
from tests.support.server import Server, free_port, redis_program
from tests.support.waiting import wait_until

NAME = "stream"
DEADLINE_S = 60.0


class Sentinels:
    """Sentinels that watch one primary. Most of them decide."""

    def __init__(self, folder: Path, primary: int, count: int = 3, login: str = "") -> None:
        """`login` are further lines of their configuration."""
        self.ports: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for number in range(count):
            port = free_port()
            config = folder / f"sentinel-{number}.conf"
            config.write_text(
                f"port {port}\ndir {folder}\n"
                f"sentinel monitor {NAME} 127.0.0.1 {primary} {count // 2 + 1}\n"
                f"sentinel down-after-milliseconds {NAME} 1000\n"
                f"sentinel failover-timeout {NAME} 10000\n{login}"
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

    def __init__(
        self, folder: Path, directives: dict[str, str], sentinels: int = 3, login: str = ""
    ) -> None:
        self.servers = [Server(folder / "server-0", directives).start()]
        follows = directives | {"replicaof": f"127.0.0.1 {self.servers[0].port}"}
        self.servers += [Server(folder / f"server-{n}", follows).start() for n in (1, 2)]
        self.sentinels = Sentinels(folder, self.servers[0].port, sentinels, login)

    def server_at(self, port: int) -> Server:
        return next(server for server in self.servers if server.port == port)

    def stop(self) -> None:
        self.sentinels.stop()
        for server in self.servers:
            if server.is_alive():
                server.kill()


def knows_everything(sentinel: Sentinel) -> bool:
    """True if each Sentinel knows the others, and two replicas that can be promoted."""
    try:
        return all(
            client.sentinel_master(NAME)["num-other-sentinels"] == len(sentinel.sentinels) - 1
            and len(_good_replicas(client)) == 2
            for client in sentinel.sentinels
        )
    except RedisError:
        return False


def _good_replicas(client: Redis) -> list[dict[str, object]]:
    return [one for one in client.sentinel_slaves(NAME) if one["master-link-status"] == "ok"]


def primary_port(sentinel: Sentinel) -> int:
    try:
        return int(sentinel.discover_master(NAME)[1])
    except (MasterNotFoundError, RedisError):
        return 0
