"""The shards of a cluster in etcd, as the gateway sees them: each is a node at the address of its
primary.

Map, members and addresses come from the store. While it cannot be reached, what was known stays,
and MOVED tells of changes. A store with lower terms or epochs than those seen before was restored
from an old copy, and is ignored.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping

from millstream.server.clients import LOOPBACK
from millstream.server.cluster.cluster_view import ClusterView, addresses_after, by_number, view_of
from millstream.server.cluster.store.records import NodeRecord, RecordError, ShardRecord
from millstream.server.cluster.store.store import (
    Contents,
    Refused,
    Store,
    Unreachable,
    reason_of,
)
from millstream.server.cluster.store.store_follower import StoreFollower
from millstream.server.gateway.machine_nodes import Place
from millstream.server.gateway.routing import Routes
from millstream.server.monitor.log import LOGGER
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS

LOOK_PAUSE_S = 0.2  # between two looks at the store because of a refusal
NOBODY = 0  # the node of a slot that has none
Address = tuple[str, int]


class StoredNodes:
    """`name` is that of the cluster. `tls` is that of the connections to the nodes, or None. With
    `is_protected`, nodes can apply protected mode: those at a loopback address are reached at the
    address of the gateway that the client has used."""

    def __init__(
        self,
        store: Store,
        tls: ssl.SSLContext | None,
        *,
        name: str = "",
        is_protected: bool = True,
    ) -> None:
        self.name, self.repeats = name, True
        self.routes = Routes([NOBODY] * CLUSTER_SLOTS)
        self.all: list[int] = []
        self.failed = {NOBODY}
        self.on_failed: Callable[[int], None] = lambda node: None
        self.on_moved: Callable[[int], None] = lambda node: None
        self.on_rerouted: Callable[[], None] = lambda: None
        self.on_change: Callable[[], None] = lambda: None
        self.etcd_errors = 0
        self._tls = tls
        self._is_protected = is_protected
        self._follower = StoreFollower(store, self.take, self._lose)
        self._task: asyncio.Task[None] | None = None
        self._names = [""]  # of the shards; or the address of a node of which only MOVED tells
        self._addresses: list[Address | None] = [None]
        self._shards: dict[str, ShardRecord] = {}
        self._known: dict[str, NodeRecord] = {}  # also members that do not run
        self._epoch = 0
        self._ranges: tuple[tuple[int, int, str], ...] = ()
        self._lost = ""  # as the log says
        self._portless: set[NodeRecord] = set()  # the same, of nodes without a port for the gateway
        self._looked_s = 0.0

    # Life

    def start(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        self._task = loop.create_task(self._follower.run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            LOGGER.critical("gateway  etcd is not read any more", exc_info=task.exception())

    def begin_serving(self) -> None:
        """There is no supervisor."""

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # The store

    def take(self, contents: Contents) -> None:
        """The contents of the store, which may be those from before."""
        try:
            view = view_of(contents)
        except RecordError as problem:
            self._lose(problem)
            return
        was_lost, self._lost = bool(self._lost), ""
        if was_lost:
            LOGGER.warning("gateway  etcd can be used again")
        if self._is_new(view) or was_lost:
            self._update()

    def _lose(self, problem: Unreachable | Refused | RecordError) -> None:
        self.etcd_errors += 1
        if str(problem) != self._lost:  # attempts continue
            self._lost = str(problem)
            LOGGER.warning("gateway  %s", reason_of(problem))

    def _is_new(self, view: ClusterView) -> bool:
        """Note what the store says, unless it is old; true if anything differs."""
        shards = dict(self._shards)
        for name, found in view.shards.items():
            if name not in shards or found.record.term >= shards[name].term:
                shards[name] = found.record
        known = addresses_after(self._known, view, shards.values())
        is_new = (known, shards) != (self._known, self._shards)
        self._known, self._shards = known, shards
        if view.map.epoch >= self._epoch and view.map != (self._epoch, self._ranges):
            self._epoch, self._ranges = view.map
            is_new = True
        return is_new

    def _update(self) -> None:
        """Give each slot its node, and each shard the address of its primary."""
        nodes = {name: self._node_named(name) for name in sorted(self._shards, key=by_number)}
        slots = [NOBODY] * CLUSTER_SLOTS
        for first, last, shard in self._ranges:
            if shard in nodes:
                slots[first : last + 1] = [nodes[shard]] * (last + 1 - first)
        self.routes.set_nodes(slots)
        self.on_rerouted()
        owners = {name for _, _, name in self._ranges}
        self.all = [node for name, node in nodes.items() if name in owners]
        for name, node in nodes.items():
            record = self._known.get(self._shards[name].primary)
            address = None if record is None else self._address_in(record)
            if record is not None and address is None:
                self._warn_of_port(name, record)
            self._set_address(node, address)
        self.on_change()

    def _warn_of_port(self, shard: str, record: NodeRecord) -> None:
        """Once for each address."""
        if record in self._portless:
            return
        self._portless.add(record)
        has, needed = ("only a port for TLS", "yes") if self._tls is None else ("no tls-port", "no")
        LOGGER.warning(
            "gateway  the primary of shard %s, at %s, has %s: start the gateway with "
            "tls-replication %s", shard, record.host, has, needed,
        )  # fmt: skip

    def _node_named(self, name: str) -> int:
        if name not in self._names:
            self.failed.add(len(self._names))
            self._names.append(name)
            self._addresses.append(None)
        return self._names.index(name)

    def _address_in(self, record: NodeRecord) -> Address | None:
        port = record.port if self._tls is None else record.tls_port
        return (record.host, port) if record.host and port else None

    def _set_address(self, node: int, address: Address | None) -> None:
        if address == self._addresses[node]:
            return
        self._addresses[node] = address
        if address is None:
            self.failed.add(node)
        else:
            self.failed.discard(node)
        LOGGER.info("gateway  %s", self._described(node))
        self.on_moved(node)

    def _described(self, node: int) -> str:
        address = self._addresses[node]
        if address is None:
            return f"shard {self._names[node]} has no primary with a known address"
        return f"the primary of shard {self._names[node]} is at {address[0]}:{address[1]}"

    # The nodes

    def place_of(self, node: int, local: str) -> Place:
        address = self._addresses[node]
        assert address is not None
        host, port = address
        if self._is_protected and host.startswith(LOOPBACK) and not local.startswith(LOOPBACK):
            host = local
        return Place(host, port, self._tls)

    def ports_for(self, *, is_tls: bool) -> Mapping[bytes, int]:
        if is_tls == (self._tls is not None):
            return {}
        ports = {
            node.encode(): record.tls_port if is_tls else record.port
            for node, record in self._known.items()
        }
        return {node: port for node, port in ports.items() if port}

    def unreachable(self, node: int) -> bytes:
        if node == NOBODY:
            return b"-CLUSTERDOWN Hash slot not served\r\n"
        name = self._names[node].encode()
        return b"-CLUSTERDOWN Hash slot not served: shard %s cannot be reached\r\n" % name

    def note_refusal(self, node: int, error: bytes) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked_s > LOOK_PAUSE_S:
            self._looked_s = loop.time()
            self._follower.look_soon()
        if not self._lost:
            return  # the store knows best
        words, asked = error.split(), self._addresses[node]
        if words[0] == b"-MOVED" and len(words) == 3 and asked is not None:
            host, _, port = words[2].decode("latin-1").rpartition(":")
            if words[1].isdigit() and int(words[1]) < CLUSTER_SLOTS and port.isdigit():
                address = host.strip("[]") or asked[0], int(port)
                loop.call_soon(self._move, int(words[1]), address)
        elif error == self.unreachable(node):
            loop.call_soon(self._try_next, node, asked)

    def _move(self, slot: int, address: Address) -> None:
        """A node says that this address has a slot."""
        node = self._node_at(address)
        self.routes.set_node(slot, node)
        self.on_rerouted()
        self._set_address(node, address)

    def _try_next(self, node: int, address: Address | None) -> None:
        """The primary of a shard cannot be reached: another member can say which one it is now."""
        shard = self._shards.get(self._names[node])
        if shard is None or self._addresses[node] != address:
            return
        records = [self._known[one] for one in shard.members if one in self._known]
        addresses = [found for one in records if (found := self._address_in(one)) is not None]
        if addresses:
            at = addresses.index(address) + 1 if address in addresses else 0
            self._set_address(node, addresses[at % len(addresses)])

    def _node_at(self, address: Address) -> int:
        """The shard of which a member has this address; one with its name if there is none."""
        for node, record in self._known.items():
            ports = record.port, record.tls_port
            if address[0] in (record.host, record.hostname) and address[1] in ports:
                for name, shard in self._shards.items():
                    if node in shard.members:
                        return self._node_named(name)
        return self._node_named(f"{address[0]}:{address[1]}")
