"""Real servers that follow each other, each with a redis-py client."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from tests.support.server import Server


class Replicas:
    """Servers by name, each with a redis-py client."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: dict[str, Server] = {}

    def start(self, name: str, **directives: str) -> redis.Redis:
        given = {key.replace("_", "-"): value for key, value in directives.items()}
        self.servers[name] = Server(self.directory / name, given).start()
        return self.client(name)

    def client(self, name: str) -> redis.Redis:
        return redis.Redis(port=self.servers[name].port, decode_responses=True)

    def address(self, name: str) -> str:
        return f"127.0.0.1 {self.servers[name].port}"

    def follow(self, name: str, primary: str) -> None:
        self.client(name).execute_command("REPLICAOF", *self.address(primary).split())

    def stop(self) -> None:
        for server in self.servers.values():
            if server.is_alive():
                server.kill()


def facts(client: redis.Redis, section: str = "replication") -> dict[str, Any]:
    found: dict[str, Any] = client.info(section)
    return found


def is_up(client: redis.Redis) -> bool:
    return facts(client)["master_link_status"] == "up"


def fill(client: redis.Redis, count: int, key: str = "s", text_bytes: int = 50) -> None:
    """Append entries. Their texts differ, so that a sealed block of them is not packed."""
    chance = random.Random(count)
    pipe = client.pipeline(transaction=False)
    for number in range(count):
        pipe.xadd(
            key,
            {"n": str(number), "text": base64.b64encode(chance.randbytes(text_bytes))[:text_bytes]},
        )
    pipe.execute()


def has_same(one: redis.Redis, other: redis.Redis, *keys: str) -> Callable[[], bool]:
    return lambda: all(one.xrange(key) == other.xrange(key) for key in keys)
