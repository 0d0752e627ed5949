"""A shard on this machine: servers that are members of a cluster whose map is in etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from millstream.server.cluster.cluster_view import ClusterView
from millstream.server.cluster.store.store_opening import StoreSettings, open_store
from millstream.server.cluster.store_cli import create

from .client import ConnectionClosed, RawClient
from .etcd import Etcd
from .namespaces import Machine
from .resp import Error, Reply, Simple
from .server import Server, free_port
from .stored_cluster import cluster_command, stored_view
from .waiting import wait_until

NODE_TIMEOUT_MS = 1000
CHANGE_S = 20.0  # until another primary serves
_numbers = count(1)


class MemberServers:
    """The servers of one shard, each on a machine of its own if there are any. `shards` are those
    of the cluster; `neighbour`: this is the second shard of that one's cluster. The key `probe` is
    one of the shard; "" if its slots move."""

    def __init__(
        self,
        folder: Path,
        etcd: Etcd,
        size: int = 3,
        durable: int = 1,
        machines: Sequence[Machine] = (),
        given: Mapping[str, str] | None = None,
        shards: int = 1,
        neighbour: MemberServers | None = None,
        restored: str = "",
    ) -> None:
        """`restored` names a cluster that is there: its nodes have the data in `folder`."""
        if neighbour is None:
            name = restored or f"members{next(_numbers)}"
            self.settings = StoreSettings(name, etcd.urls)
        else:
            self.settings = neighbour.settings
        if neighbour is None and not restored:
            asyncio.run(create(open_store(self.settings), shards, size, durable))
        self.shard, self.probe = ("s1", "probe") if neighbour is None else ("s2", "a")
        directives = {
            "cluster-name": self.settings.name,
            "cluster-etcd": etcd.urls,
            "cluster-shard": self.shard,
            "cluster-lease": "3",
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            **(given or {}),
        }
        names = [f"s1-{n + 1}" if restored else f"{self.shard}-n{n}" for n in range(size)]
        self.servers = [
            Server(folder / name, directives | {"cluster-zone": f"z{number}"})
            for number, name in enumerate(names)
        ]
        for number, machine in enumerate(machines):
            directives |= {"bind": machine.address, "protected-mode": "no"}
            server = Server(folder / f"{self.shard}-n{number}", directives, wrapper=machine.wrapper)
            server.host = machine.address
            self.servers[number] = server

    def start(self) -> MemberServers:
        """Start all of them. Each one refuses requests until there is a primary."""
        for server in self.servers:
            server.directory.mkdir(parents=True, exist_ok=True)
            server.port = free_port()
            server.launch()
        self.wait_for_followers()
        return self

    def kill(self) -> None:
        for server in self.servers:
            if server.is_alive():
                server.kill()

    def view(self) -> ClusterView:
        return stored_view(self.settings)

    def change(self, *words: str) -> None:
        """Change the members with this command of `millstream cluster`."""
        done = cluster_command(self.settings, *words)
        assert (done.exit_code, done.output) == (0, f"shard {self.shard} has its new members\n")

    def primary(self) -> Server | None:
        """The server that serves as the primary."""
        for server in self.servers:
            if server.is_alive() and self._serves(server):
                return server
        return None

    def _serves(self, server: Server) -> bool:
        if self.probe:
            return ask(server, "SET", self.probe, "1") == Simple("OK")
        role, info = ask(server, "ROLE"), ask(server, "CLUSTER", "INFO")
        is_primary = isinstance(role, list) and role[0] == b"master"
        return is_primary and isinstance(info, bytes) and b"cluster_state:ok" in info

    def wait_for_primary(self, *without: Server) -> Server:
        """The primary, once there is one other than these."""
        found = wait_until(
            self.primary,
            lambda server: server is not None and server not in without,
            "a primary",
            CHANGE_S,
        )
        assert found is not None
        return found

    def wait_for_followers(self, deadline_s: float = CHANGE_S) -> Server:
        """The primary, once all others follow it."""
        return wait_until(self._followed, what="a primary of all", deadline_s=deadline_s)  # type: ignore[return-value]

    def _followed(self) -> Server | None:
        """The primary, if all others follow it."""
        primary = self.primary()
        role = None if primary is None else ask(primary, "ROLE")
        has_all = isinstance(role, list) and len(role) == 3 and isinstance(role[2], list)
        return primary if has_all and len(role[2]) == len(self.servers) - 1 else None

    def others(self, server: Server) -> Iterator[Server]:
        return (one for one in self.servers if one is not server)


def ask(server: Server, *words: str) -> Reply:
    """A reply of a server; an Error also if it cannot be reached, or does not answer soon."""
    try:
        with RawClient(server.port, timeout_s=1.0, host=server.host) as client:
            return client.call(*words)
    except (OSError, ConnectionClosed) as problem:
        return Error(f"ERR {problem}")


def node_id(server: Server) -> str:
    """Its ID. It closes connections when it becomes a replica."""
    found = wait_until(
        lambda: ask(server, "CLUSTER", "MYID"), lambda reply: isinstance(reply, bytes), "the ID"
    )
    assert isinstance(found, bytes)
    return found.decode()
