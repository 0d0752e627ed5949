"""All members of a cluster on many machines as one of them sees them: their health, and the rows
that clients get in CLUSTER SLOTS, SHARDS and NODES."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.commands.later.node_row import NodeRow
from millstream.commands.runtime.context import Session
from millstream.server.cluster.cluster_view import ClusterView
from millstream.server.cluster.member_service import MemberService
from millstream.server.cluster.node import endpoint_of, local_end, port_of
from millstream.server.cluster.slot_moves.move_rules import owned_by
from millstream.server.cluster.states import FAILED, LOADING, ONLINE
from millstream.server.cluster.store.records import NodeRecord
from millstream.server.config.directives import Config
from millstream.server.replication.terms import Sign

NO_ID = "0" * 40


class MemberTable:
    """`id`, `is_loading` and `last_frame` are those of this server. `service()` is None until it
    serves; then the table has only this server."""

    def __init__(
        self,
        id: str,
        config: Config,
        service: Callable[[], MemberService | None],
        is_loading: Callable[[], bool],
        last_frame: Callable[[], int],
    ) -> None:
        self._id = id
        self._config = config
        self._service = service
        self._is_loading = is_loading
        self._last_frame = last_frame

    # What the store says

    @property
    def view(self) -> ClusterView | None:
        service = self._service()
        return None if service is None else service.member.view

    @property
    def _known(self) -> Mapping[str, NodeRecord]:
        service = self._service()
        return {} if service is None else service.member.known

    def primary_of(self, shard: str) -> str | None:
        """The ID of the primary of a shard, if its address is known."""
        view = self.view
        found = view.shards.get(shard) if view else None
        primary = found.record.primary if found is not None else ""
        return primary if primary and (primary == self._id or primary in self._known) else None

    # Health

    def count_nodes(self) -> dict[str, int]:
        """The number of nodes by their health."""
        counts = dict.fromkeys((ONLINE, LOADING, FAILED), 0)
        for found in self.view.shards.values() if self.view else ():
            for node in found.record.members:
                counts[self._health(node)] += 1
        return counts

    def count_slots(self) -> tuple[int, int]:
        """The number of slots in the map, and that of the slots whose nodes do not run."""
        count = failed = 0
        for first, last, shard in self.view.map.ranges if self.view else ():
            count += last - first + 1
            primary = self.primary_of(shard)
            if primary is None or self._health(primary) == FAILED:
                failed += last - first + 1
        return count, failed

    def _health(self, node: str) -> str:
        if node == self._id:
            return LOADING if self._is_loading() else ONLINE
        if self.view and node in self.view.nodes:
            return ONLINE
        sign = self._sign_of(node)  # etcd may be gone, also since the start of this node
        return ONLINE if sign is not None and sign.is_recent else FAILED

    def _sign_of(self, node: str) -> Sign | None:
        """The last sign of life of another node, if this one has a link to it."""
        service = self._service()
        return None if service is None else service.terms.sign_of(node)

    # Rows

    def rows(self, session: Session) -> list[NodeRow]:
        """All members with a known address as this client sees them: by the first slot of their
        shard, the primary of each shard first."""
        view = self.view
        if view is None:
            return [self.row(self._id, session)]
        rows = []
        for found in view.shards.values():
            primary = found.record.primary
            for node in sorted(found.record.members, key=lambda one: (one != primary, one)):
                if node == self._id or node in self._known:
                    rows.append(self.row(node, session))
        by_shard = {row.shard_id: list(row.ranges[:1]) for row in rows if not row.primary}
        return sorted(rows, key=lambda row: (by_shard.get(row.shard_id, []), bool(row.primary)))

    def row(self, node: str, session: Session) -> NodeRow:
        """A node with a known address as this client sees it."""
        config, own = self._config, node == self._id
        record = self._own_record(session) if own else self._known[node]
        shard = self.view.shard_of(node) if self.view else None
        found = self.view.shards[shard].record if self.view and shard else None
        primary = found.primary if found is not None else ""
        has_tls = local_end(session, config.tls.port)[1]
        sign = None if own else self._sign_of(node)
        return NodeRow(
            node,
            found.id if found is not None else NO_ID,
            owned_by(self.view.map, shard) if self.view and shard and node == primary else (),
            record.host,
            record.hostname,
            endpoint_of(config, record.host, record.hostname),
            port_of(has_tls, record.port, record.tls_port),
            record.port,
            record.tls_port,
            own,
            self._health(node),
            sign.heard_ms if sign is not None else 0,
            self._last_frame() if own else sign.frame if sign is not None else 0,
            "" if node == primary else primary or NO_ID,
            record.zone,
        )

    def _own_record(self, session: Session) -> NodeRecord:
        """The address of this node, as others are told."""
        service = self._service()
        if service is not None:
            return service.enrollment.record
        host = local_end(session, 0)[0]
        return NodeRecord(host, self._config.port, self._config.tls.port, "", "", "", "")
