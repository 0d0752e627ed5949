"""This server as a node of a cluster: which slots it serves, and what it tells clients about the
others.

On one machine, the ports of the nodes follow each other, and the supervisor tells each node which
of the others run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from millstream.commands.later.node_row import NodeRow
from millstream.commands.runtime.context import Session
from millstream.errors import CommandError, StartError
from millstream.server.cluster.coverage import Coverage
from millstream.server.cluster.relay import Deliver, Relay
from millstream.server.cluster.slot_map import Shard, SlotMap, read_map, slot_count
from millstream.server.cluster.states import FAILED, LOADING, ONLINE, MemberFigures, NodeState
from millstream.server.config.cluster_directives import BY_HOSTNAME, BY_IP, MAP_NAME
from millstream.server.config.directives import Config
from millstream.server.execution.executor import Executor
from millstream.server.execution.slot_check import SlotCheck
from millstream.storage.keyspace.keyspace import Keyspace

if TYPE_CHECKING:
    from millstream.server.cluster.peers import Peers

log = logging.getLogger("millstream.cluster")

LOCAL = "127.0.0.1"  # the address for clients of a Unix socket
UNKNOWN_HOSTNAME = "?"  # as in Redis
UNSERVED = "CLUSTERDOWN Hash slot not served"
NO_REPLICA = "ERR You should send CLUSTER FAILOVER to a replica"


class ClusterNode:
    """`is_loading` and `last_frame` are those of this server."""

    def __init__(
        self,
        config: Config,
        slot_map: SlotMap,
        shard: Shard,
        is_loading: Callable[[], bool],
        last_frame: Callable[[], int],
    ) -> None:
        self.id = shard.node
        self.shard_id = shard.id
        self.epoch = slot_map.epoch
        self.term = slot_map.term
        self.lease_ms, self.etcd = 0, "ok"  # there are neither
        self.figures: MemberFigures | None = None
        self.moving = None  # slots do not move
        self.slots = SlotCheck(self)
        self.slots.own(shard.slots())
        self.coverage = Coverage(config, self.slots, self.count_slots)
        self._config = config
        self._map = slot_map
        self._shard = shard
        self._owners = slot_map.owners()
        self._is_loading = is_loading
        self.last_frame = last_frame
        self._states: dict[int, NodeState] = {}  # of the other nodes, by number
        self.relay: Relay | None = None  # while the server runs
        self.peers: Peers | None = None  # nodes on other machines

    # Slots

    def owns(self, slot: int) -> bool:
        return self._owners[slot] is self._shard

    def unserved_slot(self, slot: int) -> str | None:
        """The error of a request for a slot without an owner; None if it has one."""
        return UNSERVED if self._owners[slot] is None else None

    def is_primary_of_term(self) -> bool:
        """True if writes for the own slots run here: no node of one machine is a replica."""
        return True

    def foreign_slot(self, session: Session, slot: int) -> str:
        """The error of a request for the slot of another node."""
        owner = self._owners[slot]
        assert owner is not None
        row = self._row(owner, session)
        return f"MOVED {slot} {row.endpoint or ''}:{row.client_port}"

    def may_read(self, session: Session, slot: int) -> bool:
        """True if this replica may serve a read of this client."""
        return False

    def note_reader(self, session: Session, reads: bool) -> None:
        """READONLY, or READWRITE: no node of one machine is a replica."""

    def stand(self, is_forced: bool) -> None:
        raise CommandError(NO_REPLICA)

    def check_keys(self, keyspace: Keyspace) -> None:
        """StartError if the loaded data has keys that this node does not serve."""
        for db in keyspace.databases:
            foreign = [
                slot
                for slot in db.slots.used_cluster_slots()
                if not self.owns(slot) and slot not in keyspace.hidden_slots
            ]
            if len(db) and (db.index or foreign):
                [key] = db.slots.keys_in((foreign or db.slots.used_cluster_slots())[0], 1)
                whose = f"of database {db.index}" if db.index else "of slots of other nodes"
                raise StartError(
                    f"{self._config.dir} has keys {whose}, for example {key!r}. Copy a single "
                    "server's directory with `millstream cluster split`"
                )

    @property
    def is_serving(self) -> bool:
        return not self._is_loading() and not self.slots.is_down

    # The other nodes

    def start(
        self,
        deliver: Deliver,
        sender: Executor,
        loop: asyncio.AbstractEventLoop,
        clients: Mapping[int, Any],
    ) -> None:
        """Deliver messages of the other nodes from now on: the data directory is locked.
        `sender` passes those for the other nodes through the outbox."""
        folder = self._config.dir.resolve()
        others = [one.folder for one in self._map.shards if one is not self._shard]
        self.coverage.start(sender, clients)
        self.relay = Relay(folder, [folder.parent / name for name in others], deliver, loop, sender)
        if sender.keyspace.slot_states:
            loop.call_soon(self.end_moves, sender)  # the journal is open then

    def end_moves(self, executor: Executor) -> None:
        """End the moves in the data of a cluster on many machines that was restored here: the map
        says who has the slots."""
        from millstream.server.cluster.slot_moves.slot_data import end_moves

        try:
            end_moves(executor.keyspace, executor.effects, self.owns)
        except CommandError as problem:  # the disk is full: they end at the next start
            log.error("slots that were moving stay hidden: %s", problem.message)
        executor.schedule_tick()

    def stop(self) -> None:
        if self.relay is not None:
            self.relay.close()
            self.relay = None

    def publish(self, channel: bytes, message: bytes, *, is_shard: bool = False) -> None:
        """Send a message to the subscribers of the other nodes. Those of a shard channel are here:
        this node has no replicas."""
        if self.relay is not None and not is_shard:
            self.relay.publish(channel, message)

    @property
    def dropped_messages(self) -> int:
        return 0 if self.relay is None else self.relay.dropped

    def note_states(self, states: dict[int, NodeState]) -> None:
        self._states = states
        self.coverage.look()

    def look_at_state(self) -> None:
        """The directives may have changed by which the cluster is down, and reads run."""
        self.coverage.look()

    def count_nodes(self) -> dict[str, int]:
        """The number of nodes by their health."""
        counts = dict.fromkeys((ONLINE, LOADING, FAILED), 0)
        for shard in self._map.shards:
            counts[self._state(shard).health] += 1
        return counts

    def count_slots(self) -> tuple[int, int]:
        """The number of slots in the map, and that of the slots whose nodes do not run."""
        shards = self._map.shards
        failed = (one for one in shards if self._state(one).health == FAILED)
        return slot_count(shards), slot_count(failed)

    def _state(self, shard: Shard) -> NodeState:
        if shard is self._shard:
            return NodeState(LOADING if self._is_loading() else ONLINE, 0, self.last_frame())
        return self._states.get(shard.number, NodeState(ONLINE, 0, 0))

    def rows(self, session: Session) -> list[NodeRow]:
        """All nodes as this client sees them, by their first slot."""
        rows = [self._row(shard, session) for shard in self._map.shards]
        return sorted(rows, key=lambda row: list(row.ranges[:1]))

    def _row(self, shard: Shard, session: Session) -> NodeRow:
        config = self._config
        tls = config.tls.port
        further = shard.number - self._shard.number
        port = config.port + further if config.port else 0
        tls_port = tls + further if tls else 0
        if not further:
            port = config.cluster.announce_port or port
            tls_port = config.cluster.announce_tls_port or tls_port
        address, has_tls = local_end(session, tls)
        ip = config.cluster.announce_ip or address
        hostname = config.cluster.announce_hostname
        state = self._state(shard)
        return NodeRow(
            shard.node,
            shard.id,
            shard.ranges,
            ip,
            hostname,
            endpoint_of(config, ip, hostname),
            port_of(has_tls, port, tls_port),
            port,
            tls_port,
            not further,
            state.health,
            state.pong_ms,
            state.offset,
        )


def local_end(session: Session, tls_port: int) -> tuple[str, bool]:
    """This machine's address as the client knows it, and whether the client uses TLS."""
    host, _, port = session.local_address.rpartition(":")
    if not host or port == "0" or "/" in host:  # a Unix socket
        return LOCAL, False
    return host.removeprefix("[").removesuffix("]"), tls_port > 0 and port == str(tls_port)


def endpoint_of(config: Config, ip: str, hostname: str) -> str | None:
    """The address of a node that clients are to use; None: the one to which they have connected."""
    kind = config.cluster.preferred_endpoint_type
    if kind == BY_IP:
        return ip
    return (hostname or UNKNOWN_HOSTNAME) if kind == BY_HOSTNAME else None


def port_of(has_tls: bool, port: int, tls_port: int) -> int:
    """The port of a node that a client is to use, which may have TLS."""
    return tls_port if tls_port and (has_tls or not port) else port


def open_node(
    config: Config, is_loading: Callable[[], bool], last_frame: Callable[[], int]
) -> ClusterNode:
    """This server as a node of the map next to its data directory. StartError if there is none."""
    folder = config.dir.resolve()
    slot_map = read_map(folder.parent)
    if slot_map is None:
        raise StartError(
            f"cluster-enabled: {folder.parent} has no {MAP_NAME}. `millstream serve --shards N` "
            "makes it and starts the nodes"
        )
    for shard in slot_map.shards:
        if shard.folder == folder.name:
            return ClusterNode(config, slot_map, shard, is_loading, last_frame)
    raise StartError(
        f"cluster-enabled: {folder.parent / MAP_NAME} has no node with the directory {folder.name}"
    )
