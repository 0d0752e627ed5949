"""CLUSTER, and the commands of a cluster's clients: ASKING, READONLY, READWRITE.

Clients read from CLUSTER which node owns which slots. The map is made by `millstream serve
--shards`, or `millstream cluster init`, so the commands with which Redis' tools change a cluster
are refused. Outside a cluster, all of these commands reply that there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from millstream.commands.admin.acl import OutcomeWait
from millstream.commands.generic.databases import KEYS_AT_ONCE, in_parts
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context, Session
from millstream.commands.runtime.replies import (
    OK,
    LongReply,
    Simple,
    Verbatim,
    Wait,
)
from millstream.commands.table.containers import Container, help_lines, unknown_subcommand
from millstream.commands.table.registry import CommandGroup, refuse
from millstream.errors import SYNTAX, CommandError, refused_in_cluster, shown, wrong_arity
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS, cluster_slot_of

if TYPE_CHECKING:
    from millstream.commands.admin.acl import Outcome
    from millstream.commands.later.node_row import NodeRow

T = TypeVar("T")

command = CommandGroup("cluster", "@connection", since="3.0.0")

KEYS_MAX = 100_000  # of one reply
NO_CLUSTER = "ERR This instance has cluster support disabled"
INT64_MAX = 2**63 - 1
UNKNOWN_WORD = "ERR unknown argument"
STILL_ORDERING = "ERR the order has not ended yet: see CLUSTER MIGRATION STATUS ALL"


class NodeView(Protocol):
    """The cluster as this node knows it."""

    id: str

    @property
    def shard_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def lease_ms(self) -> int:
        """The time for which the lease of this node lasts; 0 where there are no leases."""

    @property
    def etcd(self) -> str:
        """The value of `cluster_etcd`: `ok`, `unreachable` or `behind`."""

    @property
    def is_serving(self) -> bool:
        """True if requests run here: on a replica, reads."""

    def count_slots(self) -> tuple[int, int]:
        """The number of slots in the map, and that of the slots whose nodes do not run."""

    def rows(self, session: Session) -> list[NodeRow]:
        """All nodes, by the first slot of their shards, the primaries first."""

    def owns(self, slot: int) -> bool:
        """True if the keys of the slot are here."""

    def note_reader(self, session: Session, reads: bool) -> None:
        """A client has sent READONLY, or READWRITE."""

    def stand(self, is_forced: bool) -> None:
        """Asks for an election of this node. CommandError if that is impossible."""

    @property
    def moving(self) -> SlotMoves | None:
        """The moves of slots to and from its shard; None where slots do not move."""


class SlotMoves(Protocol):
    """Slots that move to and from the shard of this node. An order begins, and when its reply is
    there, the wait of the client ends. CommandError if it is impossible."""

    @property
    def running(self) -> int:
        """The number of moves that have not ended."""

    def status(self, move: str) -> list[dict[bytes, object]]:
        """Descriptions of all moves, or of the one with this ID."""

    def order(self, client_id: int, ranges: tuple[tuple[int, int], ...]) -> Outcome:
        """Moves slots to this shard; the reply is the ID of the move."""

    def cancel(self, client_id: int, move: str) -> Outcome:
        """Ends the move with this ID, or all; the reply is their number."""

    def take_back(self, move: str) -> None:
        """Serves slots again that have left this shard. CommandError if nothing waits for that."""

    def stop_at(self, words: list[str]) -> None:
        """Lets moves and elections stop at these steps, and continue otherwise."""


class ClusterHost(Protocol):
    @property
    def cluster(self) -> NodeView | None: ...


def _node(ctx: Context[ClusterHost]) -> NodeView:
    node = ctx.server.cluster
    if node is None:
        raise CommandError(NO_CLUSTER)
    return node


# ---------------------------------------------------------------- commands of clients


@command("ASKING", "fast")
def asking(ctx: Context[ClusterHost], args: Args) -> object:
    """Signals that a cluster client is following an -ASK redirect.

    The reply is OK. Nothing else happens: slots move as a whole, so no node replies -ASK.
    """
    _node(ctx)
    return OK


@command("READONLY", "loading stale fast")
def readonly(ctx: Context[ClusterHost], args: Args) -> object:
    """Enables read-only queries for a connection to a cluster replica node.

    The reply is OK. Without it, a replica redirects all requests to its primary. The nodes of one
    machine have no replicas, so it changes nothing there.
    """
    _node(ctx).note_reader(ctx.session, True)
    return OK


@command("READWRITE", "loading stale fast")
def readwrite(ctx: Context[ClusterHost], args: Args) -> object:
    """Enables read-write queries for a connection to a cluster replica node.

    The reply is OK.
    """
    _node(ctx).note_reader(ctx.session, False)
    return OK


# ---------------------------------------------------------------- CLUSTER

cluster_command = Container(
    "CLUSTER",
    "cluster",
    "A container for Redis Cluster commands.",
    since="3.0.0",
    tags="stale",
)


@cluster_command("HELP", "loading dataless", since="5.0.0")
def cluster_help(ctx: Context[ClusterHost], args: Args) -> object:
    """Prints this help."""
    _node(ctx)
    return help_lines("CLUSTER")


@cluster_command(
    "SLOTS",
    "loading dataless nondeterministic_output",
    complexity="O(N), N the number of ranges and nodes",
)
def cluster_slots(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the mapping of cluster slots to nodes.

    The reply has a row for each range of slots: [first slot, last slot, [endpoint, port, ID,
    metadata], ..], with the primary first, and then the replicas that are online. The metadata is a
    map with `ip` or `hostname`, where the endpoint is the other one, and with `availability-zone`,
    if the node has one.
    """
    rows = _node(ctx).rows(ctx.session)
    found = []
    for row in rows:
        replicas = [one for one in _replicas_of(row, rows) if one.health == "online"]
        nodes = [
            [*_endpoint(one), one.id.encode(), _metadata(one)]
            for one in ((row, *replicas) if row.ranges else ())
        ]
        found += [(first, [first, last, *nodes]) for first, last in row.ranges]
    return [reply for _, reply in sorted(found, key=lambda pair: pair[0])]


def _replicas_of(row: NodeRow, rows: list[NodeRow]) -> list[NodeRow]:
    """The replicas of a primary."""
    return [one for one in rows if one.primary == row.id]


def _endpoint(row: NodeRow) -> list[object]:
    return [None if row.endpoint is None else row.endpoint.encode(), row.client_port]


def _metadata(row: NodeRow) -> dict[bytes, bytes]:
    """The addresses that are not the endpoint, and the zone."""
    found: dict[bytes, bytes] = {}
    if row.endpoint != row.ip:
        found[b"ip"] = row.ip.encode()
    if row.hostname and row.endpoint != row.hostname:
        found[b"hostname"] = row.hostname.encode()
    return found | _zone(row)


def _zone(row: NodeRow) -> dict[bytes, bytes]:
    return {b"availability-zone": row.zone.encode()} if row.zone else {}


@cluster_command(
    "SHARDS",
    "loading dataless nondeterministic_output",
    since="7.0.0",
    complexity="O(N), N the number of nodes",
)
def cluster_shards(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the mapping of cluster slots to shards.

    The reply has a map for each shard: `slots` [first, last, ..] and `nodes`, a list of maps with
    id, port, tls-port, ip, endpoint, hostname, role, replication-offset and health (online, failed,
    loading). A node has only the ports that it listens on, a hostname if it announces one, and
    last, an availability-zone if it has one (`cluster-zone`). With etcd, a primary knows the
    offsets of its replicas, and a replica that of its primary; those of others are 0.
    """
    shards: dict[str, list[NodeRow]] = {}
    for row in _node(ctx).rows(ctx.session):
        shards.setdefault(row.shard_id, []).append(row)
    return [
        {
            b"slots": [slot for row in rows for pair in row.ranges for slot in pair],
            b"nodes": [_shard_node(row) for row in rows],
        }
        for rows in shards.values()
    ]


def _shard_node(row: NodeRow) -> dict[bytes, object]:
    found: dict[bytes, object] = {b"id": row.id.encode()}
    if row.port:
        found[b"port"] = row.port
    if row.tls_port:
        found[b"tls-port"] = row.tls_port
    found[b"ip"] = row.ip.encode()
    found[b"endpoint"] = None if row.endpoint is None else row.endpoint.encode()
    if row.hostname:
        found[b"hostname"] = row.hostname.encode()
    return found | {
        b"role": b"replica" if row.primary else b"master",
        b"replication-offset": row.offset,
        b"health": row.health.encode(),
        **_zone(row),
    }


@cluster_command(
    "NODES", "dataless nondeterministic_output", complexity="O(N), N the number of nodes"
)
def cluster_nodes(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the cluster configuration for a node.

    The reply is text with a line for each node: ID, address, flags, primary, the time of the last
    ping (always 0), the time of the last sign of life in milliseconds, epoch, state of the link,
    slots. With etcd, a primary knows the last signs of life of its replicas, and a replica that of
    its primary; the others are 0.
    """
    node = _node(ctx)
    lines = [_line(row, node.term) + "\n" for row in node.rows(ctx.session)]
    return Verbatim("".join(lines).encode())


def _line(row: NodeRow, term: int) -> str:
    """A node's line in CLUSTER NODES."""
    port = row.client_port
    name = f",{row.hostname}" if row.hostname else ""
    flags = ("myself," if row.is_self else "") + ("slave" if row.primary else "master")
    has_failed = row.health == "failed"
    slots = " ".join(
        str(first) if first == last else f"{first}-{last}" for first, last in row.ranges
    )
    return (
        f"{row.id} {row.ip}:{port}@{port}{name} {flags}{',fail' if has_failed else ''} "
        f"{row.primary or '-'} 0 {row.pong_ms} {term} "
        f"{'dis' if has_failed else ''}connected {slots}"
    ).rstrip()


@cluster_command("INFO", "dataless nondeterministic_output")
def cluster_info(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns information about the state of a node.

    The reply is text with lines `name:value`. `cluster_state` is `ok` while this node serves its
    slots (a replica: reads). It is `fail` while the node refuses requests with `CLUSTERDOWN The
    cluster is down`; it may serve reads then. `cluster_slots_fail` counts the slots of nodes that
    have failed. `cluster_lease_ms` is the time for which the lease of this node lasts. The value of
    `cluster_etcd` is `ok`, `unreachable`, or `behind` if etcd was restored from an old backup. On
    one machine, without etcd, `cluster_lease_ms` is 0 and `cluster_etcd` is `ok`.
    """
    node = _node(ctx)
    rows = node.rows(ctx.session)
    assigned, failed = node.count_slots()
    fields: dict[str, object] = {
        "state": "ok" if node.is_serving else "fail",
        "slots_assigned": assigned,
        "slots_ok": assigned - failed,
        "slots_pfail": 0,
        "slots_fail": failed,
        "known_nodes": len(rows),
        "size": sum(1 for row in rows if row.ranges),
        "current_epoch": node.epoch,
        "my_epoch": node.term,
        "stats_messages_sent": 0,
        "stats_messages_received": 0,
    }
    ours = {
        "lease_ms": node.lease_ms,
        "etcd": node.etcd,
        "moves": node.moving.running if node.moving else 0,
    }
    lines = [f"cluster_{name}:{value}" for name, value in fields.items()]
    lines.append("total_cluster_links_buffer_limit_exceeded:0")
    lines += [f"cluster_{name}:{value}" for name, value in ours.items()]
    return Verbatim("".join(line + "\r\n" for line in lines).encode())


@cluster_command("MYID", "dataless")
def cluster_myid(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the ID of a node."""
    return _node(ctx).id.encode()


@cluster_command("MYSHARDID", "dataless nondeterministic_output", since="7.2.0")
def cluster_myshardid(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the shard ID of a node."""
    return _node(ctx).shard_id.encode()


# Slots


@cluster_command("KEYSLOT key:string", "dataless", complexity="O(N), N the bytes of the key")
def cluster_keyslot(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the hash slot for a key.

    The slot is the CRC-16 of the key modulo 16,384; of a key with `{tag}`, only the tag counts.
    """
    _node(ctx)
    return cluster_slot_of(args.take())


def _is_shown(ctx: Context[ClusterHost], node: NodeView, slot: int) -> bool:
    """True if the keys of a slot are shown: this node has it, and it does not arrive or leave."""
    return node.owns(slot) and slot not in ctx.keyspace.hidden_slots


@cluster_command("COUNTKEYSINSLOT slot:integer")
def cluster_countkeysinslot(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the number of keys in a hash slot.

    Only the keys of this node count, so the reply is 0 for a slot of another one."""
    node = _node(ctx)
    slot = args.take_int()
    if not 0 <= slot < CLUSTER_SLOTS:
        raise CommandError("ERR Invalid slot")
    return ctx.db.slots.count_in(slot) if _is_shown(ctx, node, slot) else 0


@cluster_command(
    "GETKEYSINSLOT slot:integer count:integer",
    "nondeterministic_output",
    complexity="O(N), N the number of keys in the reply",
)
def cluster_getkeysinslot(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the key names in a hash slot.

    The reply has at most `count` keys, at most 100,000, and none for a slot of another node."""
    node = _node(ctx)
    slot, count = args.take_int(), args.take_int()
    if not 0 <= slot < CLUSTER_SLOTS or count < 0:
        raise CommandError("ERR Invalid slot or number of keys")
    most = min(count, KEYS_MAX) if _is_shown(ctx, node, slot) else 0
    found = ctx.db.slots.keys_in(slot, most)
    return found if len(found) <= KEYS_AT_ONCE else LongReply(in_parts(found))


# Nodes


def _take_node(ctx: Context[ClusterHost], args: Args) -> NodeRow:
    """The node with this ID. CommandError if there is none."""
    rows, name = _node(ctx).rows(ctx.session), args.take()
    for row in rows:
        if row.id.encode() == name:
            return row
    raise CommandError(f"ERR Unknown node {shown(name)}")


@cluster_command(
    "REPLICAS node-id",
    "admin nondeterministic_output dataless",
    since="5.0.0",
    complexity="O(N), N the number of replicas",
)
def cluster_replicas(ctx: Context[ClusterHost], args: Args) -> object:
    """Lists the replica nodes of a master node.

    The reply has a line as in CLUSTER NODES for each replica. The nodes of one machine have
    none."""
    row = _take_node(ctx, args)
    if row.primary:
        raise CommandError("ERR The specified node is not a master")
    node = _node(ctx)
    return [_line(one, node.term).encode() for one in _replicas_of(row, node.rows(ctx.session))]


@cluster_command(
    "SLAVES node-id",
    "admin nondeterministic_output dataless",
    complexity="O(N), N the number of replicas",
)
def cluster_slaves(ctx: Context[ClusterHost], args: Args) -> object:
    """Lists the replica nodes of a master node.

    This is the older name of CLUSTER REPLICAS."""
    return cluster_replicas(ctx, args)


@cluster_command("LINKS", "dataless nondeterministic_output", since="7.0.0")
def cluster_links(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns a list of all TCP links to and from peer nodes.

    The reply is an empty array: there is no bus between the nodes."""
    _node(ctx)
    return []


@cluster_command("COUNT-FAILURE-REPORTS node-id", "admin nondeterministic_output dataless")
def cluster_count_failure_reports(ctx: Context[ClusterHost], args: Args) -> object:
    """Returns the number of active failure reports active for a node.

    The reply is 0: nodes do not report each other."""
    _take_node(ctx, args)
    return 0


@cluster_command("BUMPEPOCH", "admin no_async_loading dataless nondeterministic_output")
def cluster_bumpepoch(ctx: Context[ClusterHost], args: Args) -> object:
    """Advances the cluster config epoch.

    The reply is `STILL` and the epoch, which does not change."""
    return Simple(b"STILL %d" % _node(ctx).epoch)


@cluster_command("SAVECONFIG", "admin no_async_loading dataless")
def cluster_saveconfig(ctx: Context[ClusterHost], args: Args) -> object:
    """Forces a node to save the cluster configuration to disk.

    The reply is OK: the map is always on the disk."""
    _node(ctx)
    return OK


@cluster_command(
    "FAILOVER [options: FORCE | TAKEOVER]",
    "admin no_async_loading dataless audited",
    since="3.0.0",
)
def cluster_failover(ctx: Context[ClusterHost], args: Args) -> object:
    """Forces a replica to perform a manual failover of its master.

    The reply is OK: this replica asks for an election. Its primary stops, and waits until this
    replica has all writes; with FORCE it is not asked to wait. The nodes of one machine are
    primaries, so the reply is an error there."""
    node = _node(ctx)
    if args.option(b"TAKEOVER"):
        raise CommandError(refused_in_cluster("CLUSTER FAILOVER TAKEOVER"))
    is_forced = args.option(b"FORCE")
    if args.remaining:
        raise CommandError(SYNTAX)
    node.stand(bool(is_forced))
    return OK


# Moves of slots


class OrderWait(OutcomeWait):
    """The wait for the reply to an order about moves."""

    unfinished = STILL_ORDERING


@cluster_command(
    "MIGRATION <subcommand: <import: IMPORT start-slot:integer end-slot:integer "
    "[start-slot:integer end-slot:integer ...]> | <cancel: CANCEL <ID task-id [FORCE] | ALL>> | "
    "<status: STATUS [ID task-id | ALL]>>",
    "admin no_async_loading audited nondeterministic_output",
    since="8.4.0",
    complexity="O(N), N the number of slots",
)
def cluster_migration(ctx: Context[ClusterHost], args: Args) -> object:
    """Moves slots between shards while clients use them.

    IMPORT moves slots to the shard of this node, which must be its primary; all of them belong to
    one other shard. The reply is the ID of the move, which begins. CANCEL ends a move, or all, to
    this shard, and replies with their number; slots that have moved stay. FORCE is for the primary
    of the other shard, if `last_error` there says that it waits for this one: it serves the slots
    again. Use it only if this shard is lost for ever: otherwise, both may serve the slots, and
    writes get lost. STATUS replies with a map for the move with this ID, or for each move to and
    from this shard: `id`, `slots`, `source` and `dest` (the primaries), `operation` (import or
    migrate), `state` (planned, copying, handing, moved, completed, canceled, failed), `last_error`,
    `retries`, the times `create_time`, `start_time` and `end_time`, and `write_pause_ms`, for which
    the slots were not served. Of the moves to each shard, the last 32 that have ended are kept.
    Only nodes of clusters in etcd move slots.
    """
    moving = _node(ctx).moving
    if moving is None:
        raise CommandError(refused_in_cluster("CLUSTER MIGRATION"))
    word = args.take().upper()
    if word == b"IMPORT":
        return _ordered(ctx, moving.order, _take_ranges(args))
    if word not in (b"CANCEL", b"STATUS"):
        raise CommandError(UNKNOWN_WORD)
    if args.remaining == 0 and word == b"CANCEL":
        raise wrong_arity("cluster|migration")
    which = args.take().upper() if args.remaining else b"ALL"
    if which not in (b"ID", b"ALL"):
        raise CommandError(UNKNOWN_WORD)
    is_forced = which == b"ID" and word == b"CANCEL" and args.remaining == 2
    if args.remaining != (which == b"ID") + is_forced:
        raise wrong_arity("cluster|migration")
    move = args.take().decode("ascii", "replace") if which == b"ID" else ""
    if is_forced:
        if args.take().upper() != b"FORCE":
            raise CommandError(UNKNOWN_WORD)
        moving.take_back(move)
        return 1
    if word == b"STATUS":
        return moving.status(move) if which == b"ALL" or move else []
    if which == b"ID" and not move:
        return 0
    return _ordered(ctx, moving.cancel, move)


def _ordered(ctx: Context[ClusterHost], order: Callable[[int, T], Outcome], about: T) -> object:
    if not ctx.may_block:
        raise CommandError("ERR slots cannot be moved in a transaction")
    return Wait(OrderWait(order(ctx.session.id, about)), 0)


def _take_ranges(args: Args) -> tuple[tuple[int, int], ...]:
    if args.remaining == 0 or args.remaining % 2:
        raise wrong_arity("cluster|migration")
    found = []
    while args.remaining:
        first, last = args.take(), args.take()
        if not all(word.isdigit() and int(word) < CLUSTER_SLOTS for word in (first, last)):
            raise CommandError("ERR Invalid or out of range slot")
        if int(first) > int(last):
            raise CommandError(
                f"ERR start slot number {int(first)} is greater than end slot number {int(last)}"
            )
        found.append((int(first), int(last)))
    return tuple(found)


# The subcommands with which Redis' tools change a cluster, and those of its nodes, with their
# arity. A request with the wrong number of words is refused before MULTI queues it.
REFUSED = {
    "addslots": -3,
    "addslotsrange": -4,
    "delslots": -3,
    "delslotsrange": -4,
    "flushslots": 2,
    "forget": 3,
    "meet": -4,
    "replicate": 3,
    "reset": -2,
    "set-config-epoch": 3,
    "setslot": -4,
}
UNKNOWN = {"slot-stats": -4, "syncslots": -3}


def cluster_refused(ctx: Context[ClusterHost], args: Args) -> object:
    _node(ctx)
    name = args[1].upper().decode("ascii", "replace")
    raise CommandError(refused_in_cluster(f"CLUSTER {name}"))


def cluster_unknown(ctx: Context[ClusterHost], args: Args) -> object:
    _node(ctx)
    raise unknown_subcommand("CLUSTER", args[1])


for _name, _arity in REFUSED.items():
    refuse("CLUSTER", _name, _arity, cluster_refused)
for _name, _arity in UNKNOWN.items():
    refuse("CLUSTER", _name, _arity, cluster_unknown)
