"""A program that appends through redis-py's client of clusters, until it is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from .background import Background
from .server import Server
from .waiting import wait_until


class ClusterWriter(Background):
    """`confirmed` are the IDs of the entries that were answered."""

    def __init__(self, servers: Sequence[Server], stream: str = "s") -> None:
        self.confirmed: list[bytes] = []
        self.stream = stream
        nodes = [ClusterNode("127.0.0.1", server.port) for server in servers]
        self.client: Any = RedisCluster(startup_nodes=nodes, socket_timeout=2.0)
        super().__init__()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                self.confirmed.append(self.client.xadd(self.stream, {"n": len(self.confirmed)}))
            except (RedisError, RedisClusterException, OSError):
                self._is_stopped.wait(0.01)

    def wait_for_more(self, count: int = 50) -> None:
        wanted = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed), lambda n: n >= wanted, "more entries", 20.0)

    def missing(self) -> set[bytes]:
        """The IDs that were confirmed before this call, and are not in the stream."""
        return set(self.confirmed) - set(self._found())

    def check(self) -> None:
        """Stop, and find everything that was confirmed once, in order."""
        self.stop()
        found = self._found()
        assert set(self.confirmed) - set(found) == set()
        assert found == sorted(set(found), key=lambda one: tuple(map(int, one.split(b"-"))))

    def _found(self) -> list[bytes]:
        return [entry for entry, _ in self.client.xrange(self.stream)]
