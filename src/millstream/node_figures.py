"""The nodes of a cluster and their figures, for the tools and the dashboard.

The nodes are those of CLUSTER SHARDS at any node, the figures those of INFO and CLUSTER INFO at
each of them. Redis' clusters work, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from millstream.remote import pairs
from millstream.slot_routing import SLOTS, Address, SlotNodes

UNREACHABLE = "unreachable"
NO_LINK = "no link"


class FoundNode(NamedTuple):
    """A node as CLUSTER SHARDS shows it. `shard` is a number from 1, by the first slots. `ranges`
    are those of a primary; a replica has none. `health` is online, loading or failed."""

    id: str
    address: Address
    shard: int
    is_primary: bool
    ranges: tuple[tuple[int, int], ...]
    health: str

    @property
    def name(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_of_cluster(info: Mapping[str, str]) -> bool:
    """True if INFO is that of a node, or of the gateway of a cluster."""
    return info.get("cluster_enabled") == "1" or is_of_gateway(info)


def is_of_gateway(info: Mapping[str, str]) -> bool:
    return info.get("cluster_gateway") == "1"


def read_shards(reply: Any, asked: Address, *, uses_tls: bool) -> list[FoundNode]:
    """The nodes in a reply to CLUSTER SHARDS, by shard, the primaries first. A node without a name
    has that of the node that was asked."""
    shards = [pairs(one) for one in reply]
    shards.sort(key=lambda shard: shard["slots"][:1] or [SLOTS])
    found = []
    for number, shard in enumerate(shards, 1):
        slots = shard["slots"]
        ranges = tuple(zip(slots[::2], slots[1::2], strict=True))
        nodes = [_node(pairs(one), number, ranges, asked, uses_tls) for one in shard["nodes"]]
        found += sorted(nodes, key=lambda node: (not node.is_primary, node.health != "online"))
    return found


def _node(
    facts: dict[str, Any],
    shard: int,
    ranges: tuple[tuple[int, int], ...],
    asked: Address,
    uses_tls: bool,
) -> FoundNode:
    endpoint = _text(facts.get("endpoint"))
    ports = (facts.get("tls-port"), facts.get("port"))
    port = next(int(one) for one in (ports if uses_tls else ports[::-1]) if one)
    is_primary = facts["role"] == b"master"
    return FoundNode(
        _text(facts["id"]),
        Address(asked.host if endpoint in ("", "?") else endpoint, port),
        shard,
        is_primary,
        ranges if is_primary else (),
        _text(facts["health"]),
    )


def _text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else ""


def slot_nodes(nodes: Sequence[FoundNode]) -> SlotNodes:
    """The node that serves each slot. Of two primaries of a shard, only the one that is online
    counts, which comes first."""
    rows: dict[tuple[int, int], Address] = {}
    for node in nodes:
        for each in node.ranges:
            rows.setdefault(each, node.address)
    return SlotNodes([(first, last, node) for (first, last), node in rows.items()])


class NodeFigures:
    """A node with its replies to INFO and CLUSTER INFO, which are empty if it did not answer;
    `problem` is the reason then. `lag_bytes` is that of a replica, if it is known."""

    def __init__(
        self,
        node: FoundNode,
        info: Mapping[str, str],
        cluster: Mapping[str, str],
        problem: str | None = None,
    ) -> None:
        self.node = node
        self.info = info
        self.cluster = cluster
        self.problem = problem
        self.lag_bytes: int | None = None

    @property
    def is_primary(self) -> bool:
        """By what the node says; it may know of a failover first."""
        role = self.info.get("role")
        return self.node.is_primary if role is None else role == "master"

    @property
    def health(self) -> str:
        """online, loading, failed, or what the node cannot do."""
        if self.problem is not None:
            return self.node.health if self.node.health == "failed" else UNREACHABLE
        if self.info.get("loading") == "1":
            return "loading"
        if not self.is_primary and self.info.get("master_link_status", "up") != "up":
            return NO_LINK
        return "online" if self.cluster.get("cluster_state", "ok") == "ok" else "not serving"

    @property
    def memory_bytes(self) -> int | None:
        return self._number("used_memory")

    @property
    def memory_max_bytes(self) -> int | None:
        return self._number("maxmemory")

    @property
    def clients(self) -> int | None:
        return self._number("connected_clients")

    @property
    def commands_per_s(self) -> int | None:
        return self._number("instantaneous_ops_per_sec")

    @property
    def refuses_writes(self) -> bool:
        return self.info.get("aof_last_write_status") == "err"

    @property
    def term(self) -> int | None:
        return _integer(self.cluster.get("cluster_my_epoch"))

    @property
    def offset_bytes(self) -> int | None:
        return self._number("master_repl_offset" if self.is_primary else "slave_repl_offset")

    def _number(self, name: str) -> int | None:
        return _integer(self.info.get(name))

    def set_lag(self, others: Sequence[NodeFigures]) -> None:
        """Compute what a replica lacks of the data of its primary: as the primary says, or by the
        offsets of both, which are of about the same time."""
        if self.is_primary or self.problem is not None:
            return
        primary = next(
            (one for one in others if one.node.shard == self.node.shard and one.is_primary), None
        )
        newest = None if primary is None else primary.offset_bytes
        if primary is None or newest is None:
            return
        here = primary.replica_offset(self.node.address)
        here = self.offset_bytes if here is None else here
        self.lag_bytes = None if here is None else max(0, newest - here)

    def replica_offset(self, address: Address) -> int | None:
        """The offset that a replica with this address has confirmed to this primary."""
        for name, value in self.info.items():
            if name.startswith("slave") and name[5:].isdigit():
                facts = dict(word.partition("=")[::2] for word in value.split(","))
                if (facts.get("ip"), facts.get("port")) == (address.host, str(address.port)):
                    return _integer(facts.get("offset"))
        return None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


class NodeTotals(NamedTuple):
    """Sums over the nodes that answer. `slots` are those of primaries that serve, `refusing` the
    number of nodes that refuse writes."""

    nodes: int
    online: int
    slots: int
    memory_bytes: int
    clients: int
    commands_per_s: int
    refusing: int


def totals_of(figures: Sequence[NodeFigures]) -> NodeTotals:
    online = [one for one in figures if one.health == "online"]
    served = {each for one in online if one.is_primary for each in one.node.ranges}
    return NodeTotals(
        len(figures),
        len(online),
        sum(last - first + 1 for first, last in served),
        sum(one.memory_bytes or 0 for one in figures),
        sum(one.clients or 0 for one in figures),
        sum(one.commands_per_s or 0 for one in figures),
        sum(one.refuses_writes for one in figures),
    )


def ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
