"""This server as a node of a cluster on many machines: its parts, and which requests it serves.

The map, the members and their addresses are those of the store (`member_service`). The primary of a
shard serves its slots. A replica sends clients to the primary, except reads of those that have sent
READONLY.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from millstream.commands.admin.cluster_peers import Reason
from millstream.commands.runtime.context import Session
from millstream.errors import CommandError, StartError
from millstream.server.clients import Clients
from millstream.server.cluster.cluster_secret import ClusterSecret
from millstream.server.cluster.cluster_view import ClusterView
from millstream.server.cluster.coverage import Coverage
from millstream.server.cluster.member_actions import Address
from millstream.server.cluster.member_address import announced_record
from millstream.server.cluster.member_handover import MemberHandover
from millstream.server.cluster.member_relay import MemberRelay
from millstream.server.cluster.member_service import MemberService, MemberSettings, steady_ms
from millstream.server.cluster.member_table import NO_ID, MemberTable
from millstream.server.cluster.membership import Part
from millstream.server.cluster.node import NO_REPLICA, UNSERVED
from millstream.server.cluster.peers import Peers
from millstream.server.cluster.promise_request import Asker
from millstream.server.cluster.rare_warnings import RareWarnings
from millstream.server.cluster.relay import Deliver
from millstream.server.cluster.served_slots import ServedSlots
from millstream.server.cluster.slot_map import new_id
from millstream.server.cluster.slot_moves.move_links import MoveLinks
from millstream.server.cluster.slot_moves.slot_moving import SlotMoving
from millstream.server.cluster.states import MemberFigures, NodeState
from millstream.server.cluster.store.seen_store import NAME, SeenStore, cluster_of
from millstream.server.cluster.store.store import Store
from millstream.server.cluster.store.store_opening import configured_store
from millstream.server.cluster.stored_users import StoredUsers
from millstream.server.config.directives import Config
from millstream.server.config.member_rules import check_member
from millstream.server.durability.persistence import Persistence
from millstream.server.execution.access import Access
from millstream.server.execution.executor import Executor
from millstream.server.execution.pubsub import PubSub
from millstream.server.execution.slot_check import DOWN, SlotCheck
from millstream.server.monitor.histogram import Histogram
from millstream.server.net.listeners import Listeners
from millstream.server.net.tls_contexts import make_link_context
from millstream.server.replication.link_connection import dial
from millstream.server.replication.role import Role
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import load_manifest
from millstream.storage.keyspace.keyspace import Keyspace

log = logging.getLogger("millstream.cluster")


class SettingsFile(Protocol):
    """The files that are read again after SIGHUP."""

    renew_secret: Callable[[], object]


class MemberServer(Protocol):
    """The parts of the server that a member of a shard uses."""

    @property
    def replication(self) -> Role: ...
    @property
    def persistence(self) -> Persistence: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def clients(self) -> Clients: ...
    @property
    def access(self) -> Access: ...
    @property
    def listeners(self) -> Listeners: ...
    @property
    def keyspace(self) -> Keyspace: ...
    @property
    def pubsub(self) -> PubSub: ...
    @property
    def settings_file(self) -> SettingsFile: ...


class MemberNode:
    """`is_loading` and `last_frame` are those of this server. `service` is there once it serves.
    StartError if the file with the secret cannot be used."""

    def __init__(
        self,
        node: str,
        config: Config,
        store: Store,
        is_loading: Callable[[], bool],
        last_frame: Callable[[], int],
    ) -> None:
        self.id = node
        self.last_frame = last_frame
        self.table = MemberTable(node, config, lambda: self.service, is_loading, last_frame)
        self.rows, self.count_nodes = self.table.rows, self.table.count_nodes
        self.count_slots = self.table.count_slots
        self.slots = SlotCheck(self)
        self.coverage = Coverage(config, self.slots, self.count_slots)
        self.service: MemberService | None = None
        self.peers: Peers | None = None
        self.users: StoredUsers | None = None
        self.relay: MemberRelay | None = None
        self._secret = ClusterSecret(config)
        self._store = store
        self._server: MemberServer | None = None
        self._config = config
        self._readers: set[int] = set()  # clients that have sent READONLY
        self.moves: MoveLinks | None = None
        self.moving: SlotMoving | None = None
        self._served = ServedSlots(
            self.slots, self.foreign_slot, lambda: config.cluster.handover_timeout * 1000
        )
        # The view that `relay` knows, and the own shard
        self._relayed: tuple[ClusterView, str] | None = None

    # Life

    def check_keys(self, keyspace: Keyspace) -> None:
        """Keys of other shards, which only a directory from elsewhere can have, are not served."""

    def note_states(self, states: dict[int, NodeState]) -> None:
        """There is no supervisor."""

    def publish(self, channel: bytes, message: bytes, *, is_shard: bool = False) -> None:
        """Send a message to the subscribers of the other nodes."""
        if self.relay is not None:
            self.relay.publish(channel, message, is_shard=is_shard, is_primary=self.is_primary)

    @property
    def dropped_messages(self) -> int:
        return 0 if self.relay is None else self.relay.dropped

    def join(self, server: MemberServer) -> None:
        """Give the replication of this server terms. It waits for orders from its start on."""
        config, self._server = self._config, server
        terms = server.replication.join_shard(
            self.id, lambda: config.cluster.node_timeout, steady_ms
        )
        terms.confirming.when_reads_are_shown = self.coverage.end_waits
        server.clients.when_gone(self.forget_client)
        self.users = StoredUsers(self._store, server.access, config)
        self.users.load_first()
        self.look_at_state()

    def start(
        self,
        deliver: Deliver,
        sender: Executor,
        loop: asyncio.AbstractEventLoop,
        clients: Mapping[int, Any],
    ) -> None:
        """The data is loaded, and the replication starts before the loop runs anything else.
        StartError if the address of this server is not known. CLUSTER RELAY delivers the messages
        of other nodes, so `deliver` is not used. `sender` passes those for them through the
        outbox."""
        server = self._server
        assert server is not None
        assert server.replication.terms is not None
        terms = server.replication.terms
        config = self._config
        handover = MemberHandover(
            terms, server.persistence, server.executor, loop.call_later, steady_ms
        )
        make_context = partial(make_link_context, config)
        secret, warnings = self._secret.current, RareWarnings()
        asker = Asker(secret, make_context, warnings)
        settings = MemberSettings(
            announced_record(config, server.listeners.port),
            config.cluster.shard,
            config.cluster.lease,
            config.cluster.node_timeout,
            config.tls.replication,
        )
        seen = SeenStore(Path(config.located(NAME)), config.cluster.name)
        self.service = MemberService(
            self.id, terms, self._store, asker, handover, settings, self.note_change,
            secret=self._secret, seen=seen,
        )  # fmt: skip
        self.moves = MoveLinks(server.replication, secret, partial(dial, loop, make_context))
        self.peers = Peers(
            secret, self.service.check, terms, self.service.describe, self.moves.leaving
        )
        self.moving = SlotMoving(
            self.service, self.moves, self._store, server.access.end_wait,
            lambda: config.cluster.handover_timeout * 1000,
            lambda: config.cluster.move_timeout * 1000,
        )  # fmt: skip
        self.peers.give_back = self.moving.give_back
        self._served.start(server, clients)
        self.coverage.start(sender, clients)
        self.relay = MemberRelay(
            secret, make_context, sender, loop, warnings, checks=self._secret.is_given
        )
        server.settings_file.renew_secret = self.renew_secret
        assert self.users is not None
        self.service.on_contents = self.users.take
        self.service.start()

    def stop(self) -> None:
        if self.service is not None:
            self.service.stop()
        if self.moving is not None:
            self.moving.stop()
        if self.moves is not None:
            self.moves.stop()
        if self.relay is not None:
            self.relay.close()
        if self.users is not None:
            self.users.stop()

    async def give_back(self) -> None:
        """The server has stopped: the other members need not wait for the end of its lease."""
        if self.service is not None:
            await self.service.give_back()

    def renew_secret(self) -> None:
        """Read the file with the secret again. If it has changed, the connections between this node
        and others begin again. StartError if it cannot be used."""
        if not self._secret.renew():
            return
        if self._server is not None and self.peers is not None:
            clients = self._server.clients
            for id in self.peers.admitted:
                found = clients.get(id)
                if found is not None:
                    clients.kill(found)
        if self.relay is not None:
            self.relay.log_in_again()
        log.info("SIGHUP: the secret of the cluster was reread")

    # What the store says

    @property
    def _view(self) -> ClusterView | None:
        return self.table.view

    @property
    def shard(self) -> str:
        """The name of the own shard; "" while there is none."""
        return "" if self.service is None else self.service.member.shard

    @property
    def shard_id(self) -> str:
        view = self._view
        return view.shards[self.shard].record.id if view and self.shard else NO_ID

    @property
    def epoch(self) -> int:
        return self._view.map.epoch if self._view else 0

    @property
    def term(self) -> int:
        return 0 if self.service is None else self.service.member.term

    @property
    def is_primary(self) -> bool:
        return self.service is not None and self.service.member.part is Part.LEADING

    @property
    def lease_ms(self) -> int:
        """The time for which the lease of this node certainly lasts."""
        return 0 if self.service is None else self.service.member.lease.left_ms(steady_ms())

    @property
    def etcd(self) -> str:
        member = None if self.service is None else self.service.member
        if member is None or not member.is_reachable:
            return "unreachable"
        return "behind" if member.is_store_old else "ok"

    def note_change(self) -> None:
        """The store or the part of this node may have changed."""
        view, served = self._view, self.shard if self.is_primary else None
        if view is None:
            return
        if self.relay is not None and (view, self.shard) != self._relayed:
            self._relayed = view, self.shard
            self.relay.set_nodes(*self._other_nodes(view))
        is_kept = self.service is not None and self.service.may_serve
        self._served.note(view.map, self.shard, served, is_kept=is_kept)
        self.coverage.look()

    def look_at_state(self) -> None:
        """The directives may have changed by which the cluster is down, and reads run."""
        self.coverage.look()
        terms = None if self._server is None else self._server.replication.terms
        if terms is not None:
            terms.confirming.allow_reads(self._config.cluster.allow_reads_when_down)

    def _other_nodes(self, view: ClusterView) -> tuple[dict[str, Address], dict[str, Address]]:
        """The addresses of the other members of the own shard, and those of all other shards."""
        assert self.service is not None
        found: tuple[dict[str, Address], dict[str, Address]] = {}, {}
        for name, shard in view.shards.items():
            for node in shard.record.members:
                address = None if node == self.id else self.service.member.address_of(node)
                if address is not None:
                    found[name != self.shard][node] = address
        return found

    # Slots

    def owns(self, slot: int) -> bool:
        """True if the keys of a slot are here, also on a replica."""
        return bool(self.shard) and self._served.owners[slot] == self.shard

    def unserved_slot(self, slot: int) -> str | None:
        """The error of a request for a slot without a known primary; None if it has one."""
        return UNSERVED if self.table.primary_of(self._served.owners[slot]) is None else None

    def is_primary_of_term(self) -> bool:
        """True if this node leads a term. It may end before the slots that it serves are known."""
        return self.service is not None and self.service.terms.is_leading

    def foreign_slot(self, session: Session, slot: int) -> str:
        """The error of a request for the slot of another node, or of this one as long as it is the
        primary in the store, but does not lead."""
        primary = self.table.primary_of(self._served.owners[slot])
        assert primary is not None
        if primary == self.id:
            return DOWN
        row = self.table.row(primary, session)
        return f"MOVED {slot} {row.endpoint or ''}:{row.client_port}"

    def may_read(self, session: Session, slot: int) -> bool:
        """True if this replica may serve a read of this client."""
        return session.id in self._readers and self.owns(slot) and not self._served.hides(slot)

    def note_reader(self, session: Session, reads: bool) -> None:
        """READONLY, or READWRITE."""
        if reads:
            self._readers.add(session.id)
        else:
            self._readers.discard(session.id)

    def forget_client(self, client: Any) -> None:
        """A client has disconnected."""
        self._readers.discard(client.id)
        if self.peers is not None:
            self.peers.forget(client)
        if self.moves is not None:
            self.moves.forget(client)

    # Figures and orders

    @property
    def figures(self) -> MemberFigures | None:
        """Figures for the metrics."""
        service = self.service
        if service is None:
            return None
        confirming = service.terms.confirming_members()
        return MemberFigures(
            self.lease_ms,
            confirming,
            service.member.candidate.elections,
            service.etcd_errors,
            self._served.parked,
            self.moves.moved_bytes if self.moves else 0,
            self.moves.leaving.pauses if self.moves else Histogram(),
        )

    @property
    def is_serving(self) -> bool:
        """True if requests run here: on a replica, reads."""
        terms = None if self.service is None else self.service.terms
        return terms is not None and not terms.is_down and not self.slots.is_down

    def stand(self, is_forced: bool) -> None:
        """CLUSTER FAILOVER: this replica asks for an election at once."""
        if self.is_primary:
            raise CommandError(NO_REPLICA)
        if self.service is None or not self.shard:
            raise CommandError("ERR this node is not a member of a shard yet")
        reason = Reason.FORCE if is_forced else Reason.FAILOVER
        self.service.member.stand(reason, steady_ms())
        self.service.look()


def open_member(
    config: Config, is_loading: Callable[[], bool], last_frame: Callable[[], int]
) -> MemberNode:
    """This server as a node of a cluster in etcd. StartError if the configuration is wrong."""
    check_member(config)
    store = configured_store(config)
    seen, name = cluster_of(Path(config.located(NAME))), config.cluster.name
    if seen not in ("", name):
        raise StartError(
            f"{config.dir} is the directory of a node of the cluster {seen}, not of {name}: give "
            "each cluster a directory of its own"
        )
    return MemberNode(_node_id(config), config, store, is_loading, last_frame)


def _node_id(config: Config) -> str:
    """The ID in the data directory; a new one if there is none."""
    manifest = load_manifest(SystemDisk(config.dir)) if config.dir.exists() else None
    return manifest.node if manifest is not None and manifest.node else new_id()
