"""`millstream cluster` for nodes on many machines, which share etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import click

from millstream.cli_error import CliError
from millstream.errors import counted
from millstream.server.cluster.cluster_view import ClusterView, by_number, view_of
from millstream.server.cluster.reshaping import reshaped
from millstream.server.cluster.slot_map import even_ranges, new_id
from millstream.server.cluster.slot_moves.move_rules import ENDED, shown_slots
from millstream.server.cluster.store.records import (
    CHANGE,
    CONFIG,
    MAP,
    MEMBERS_MAX,
    SHARD,
    VERSION,
    Format,
    NodeRecord,
    RecordError,
    ShardChange,
    ShardRecord,
    SlotRanges,
    Step,
    encode,
)
from millstream.server.cluster.store.store import (
    Change,
    Compare,
    Grant,
    Refused,
    Store,
    Unreachable,
)
from millstream.server.cluster.store.store_opening import StoreSettings, open_store

STORED_SHARDS_MAX = 100  # etcd takes 128 changes in a transaction
ORDER_S = 30  # how long an order lasts after its command line was last heard
AGAIN_S = 0.3
ETCD_OLD = "etcd is old"
NAME_TAKEN = "etcd has a cluster with this name: choose another --name"

F = TypeVar("F", bound=Callable[..., Any])
Result = TypeVar("Result")


def store_options(function: F) -> F:
    """The options of a command that names a cluster in etcd. Its parameters are those of
    StoreSettings."""
    for option in (
        click.option(
            "--etcd-key", "key_file", default="", metavar="FILE",
            help="Key of this certificate, in PEM.",
        ),
        click.option(
            "--etcd-cert", "certificate_file", default="", metavar="FILE",
            help="Certificate of this client of etcd, in PEM.",
        ),
        click.option(
            "--etcd-cacert", "authority_file", default="", metavar="FILE",
            help="Authorities of etcd's certificates, in PEM [default: those of the system].",
        ),
        click.option(
            "--etcd-password-file", "password_file", default="", metavar="FILE",
            help="File with the password of this user.",
        ),
        click.option("--etcd-user", "user", default="", metavar="USER", help="User of etcd."),
        click.option(
            "--etcd", "urls", default="", metavar="URLS",
            help="URLs of etcd, with commas between them.",
        ),
        click.option("--name", default="", metavar="NAME", help="Name of the cluster in etcd."),
    ):  # fmt: skip
        function = option(function)
    return function


def members_option(title: str, default: int | None = None) -> Callable[[F], F]:
    return click.option(
        "--members", type=click.IntRange(1, MEMBERS_MAX), default=default,
        show_default=default is not None, metavar="M", help=title,
    )  # fmt: skip


def durable_option(default: str) -> Callable[[F], F]:
    return click.option(
        "--durable", type=click.IntRange(0, MEMBERS_MAX - 1), metavar="D",
        help="Number of nodes, in addition to the primary, that must have a write on disk before "
        f"it is confirmed [default: {default}].",
    )  # fmt: skip


def require_enough(members: int, durable: int) -> None:
    """CliError unless a shard of `members` nodes has `durable` others than its primary."""
    if durable >= members:
        raise CliError(
            f"--durable {durable} needs more than {counted(members, 'member')}: the primary does "
            "not count"
        )


def run_with_store(
    settings: StoreSettings, use: Callable[[Store], Coroutine[Any, Any, Result]]
) -> Result:
    """Run a coroutine with the store. CliError if etcd cannot be used, or has wrong records;
    UsageError without its options."""
    if not settings.name or not settings.urls:
        raise click.UsageError("A cluster on many machines needs --name and --etcd.")
    try:
        return asyncio.run(use(open_store(settings)))
    except (ValueError, Unreachable, Refused, RecordError) as problem:
        raise CliError(str(problem)) from None


def given(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """An ID of a node. Every ID begins with "", which a script may give by mistake."""
    if not text:
        raise click.BadParameter("it is empty")
    return text


async def create(store: Store, shards: int, members: int, durable: int) -> None:
    """Write the records of a new cluster. CliError if there is one."""
    names = [f"s{number}" for number in range(1, shards + 1)]
    ranges = tuple((*pair, name) for pair, name in zip(even_ranges(shards), names, strict=True))
    changes = [
        Change(CONFIG, encode(Format(VERSION))),
        Change(MAP, encode(SlotRanges(1, ranges))),
        *(
            Change(SHARD + name, encode(ShardRecord(new_id(), 0, "", (), members, durable)))
            for name in names
        ),
    ]
    commit = await store.commit([Compare(change.name, 0) for change in changes], changes)
    if not commit.done:
        raise CliError(NAME_TAKEN)


async def look(store: Store) -> dict[str, Any]:
    """The shards and their members, for --json."""
    view = view_of(await store.read())
    shards = []
    for name in sorted(view.shards, key=by_number):
        shard = view.shards[name].record
        holder = view.holders.get(name)
        shards.append(
            {
                "shard": name,
                "term": shard.term,
                "slots": [list(row[:2]) for row in view.map.ranges if row[2] == name],
                "size": shard.size,
                "durable": shard.durable,
                "lease": holder is not None and holder.record == (shard.primary, shard.term),
                "members": [_member(node, view, shard.primary) for node in shard.members],
            }
        )
    return {
        "epoch": view.map.epoch,
        "shards": shards,
        "waiting": _waiting(view),
        "moves": [
            {
                "move": move,
                "slots": [list(pair) for pair in found.record.slots],
                "from": found.record.source,
                "to": found.record.target,
                "state": found.record.step.value,
                "reason": found.record.reason,
            }
            for move, found in sorted(view.moves.items(), key=lambda one: one[1].record.created_ms)
        ],
    }


def _waiting(view: ClusterView) -> list[dict[str, Any]]:
    """The nodes that run and are members of no shard."""
    names = sorted(node for node in view.nodes if view.shard_of(node) is None)
    return [_member(node, view, "") for node in names]


def _member(node: str, view: ClusterView, primary: str) -> dict[str, Any]:
    found = view.nodes.get(node)
    record = None if found is None else found.record
    role = "replica" if view.shard_of(node) else "-"
    return {
        "node": node,
        "role": "primary" if node == primary else role,
        "health": _health(record),
        "host": record and record.host,
        "port": record and (record.port or record.tls_port),
        "zone": record and record.zone,
        "version": record and record.version,
    }


def _health(record: NodeRecord | None) -> str:
    if record is None:
        return "not running"
    return ETCD_OLD if record.is_ahead else "online"


def _count_ahead(description: dict[str, Any]) -> int:
    """The number of nodes that ignore etcd."""
    members = [one for shard in description["shards"] for one in shard["members"]]
    return sum(one["health"] == ETCD_OLD for one in (*members, *description["waiting"]))


def has_all(description: dict[str, Any]) -> bool:
    """True if each shard with slots has a primary with the lease, and all of its members run; and
    no node ignores etcd."""
    if _count_ahead(description):
        return False
    return all(
        shard["lease"]
        and len(shard["members"]) == shard["size"]
        and all(member["health"] == "online" for member in shard["members"])
        for shard in description["shards"]
        if shard["slots"]
    )


def warnings_of(description: dict[str, Any]) -> Iterator[str]:
    """Nodes that ignore etcd; the shards that the loss of one zone would end."""
    ahead = _count_ahead(description)
    if ahead:
        have = "has" if ahead == 1 else "have"
        yield (
            f"etcd has an older state than {counted(ahead, 'node')} {have} seen: it was "
            "restored from a backup, and is ignored. Write the records again with `millstream "
            "cluster init --from-nodes`"
        )
    for shard in description["shards"]:
        zones = {member["zone"] for member in shard["members"]}
        if len(shard["members"]) > 1 and len(zones) == 1 and all(zones):
            yield f"all members of shard {shard['shard']} are in zone {zones.pop()}"


def rows_of(description: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of a table."""
    yield ["shard", "term", "role", "health", "address", "zone", "node", "slots"]
    for shard in description["shards"]:
        slots = " ".join(f"{first}-{last}" for first, last in shard["slots"]) or "-"
        for member in shard["members"]:
            is_held = member["role"] != "primary" or shard["lease"]
            yield [shard["shard"], str(shard["term"]), *_texts(member, is_held=is_held), slots]
        missing = shard["size"] - len(shard["members"])
        if missing > 0:
            wanted = f"{counted(missing, 'member')} missing"
            yield [shard["shard"], str(shard["term"]), "-", wanted, "-", "-", "-", slots]
    for member in description["waiting"]:
        yield ["-", "-", *_texts(member, is_held=True), "-"]


def moves_of(description: dict[str, Any]) -> Iterator[str]:
    """A line for each move that has not ended."""
    for move in description["moves"]:
        if Step(move["state"]) not in ENDED:
            reason = f" ({move['reason']})" if move["reason"] else ""
            yield (
                f"slots {shown_slots(move['slots'])} from {move['from']} to {move['to']}: "
                f"{move['state']}{reason}"
            )


def _texts(member: dict[str, Any], *, is_held: bool) -> list[str]:
    health = member["health"] if is_held or member["health"] != "online" else "no lease"
    address = "-" if member["host"] is None else f"{member['host']}:{member['port']}"
    return [member["role"], health, address, member["zone"] or "-", member["node"]]


# Other members


async def reshape(store: Store, change: ShardChange, shard: str, timeout_s: float) -> str:
    """Order a change of the members of a shard (""; that of the node which leaves), and wait until
    its primary has carried it out; the name of the shard. CliError if it does not."""
    view = view_of(await store.read())
    change = ShardChange(*(_node_of(view, text) for text in change))
    shard = shard or view.shard_of(change.remove) or ""
    found = view.shards.get(shard)
    if found is None:
        known = ", ".join(sorted(view.shards, key=by_number))
        raise CliError(
            f"there is no shard {shard}: the cluster has {known}"
            if shard
            else f"the node {change.remove} is not a member of a shard"
        )
    if change.add and change.add not in view.nodes:
        raise CliError(f"the node {change.add} does not run: start it first")
    try:
        reshaped(found.record, change, view.shards)
    except ValueError as problem:
        raise CliError(f"shard {shard}: {problem}") from None
    lease = await store.grant(ORDER_S)
    try:
        compares = [Compare(SHARD + shard, found.version), Compare(CHANGE + shard, 0)]
        order = Change(CHANGE + shard, encode(change), lease.id)
        commit = await store.commit(compares, [order])
        if not commit.done:
            raise CliError(f"shard {shard} is being changed at this moment: try again")
        await _wait_for(store, change, shard, commit.revision, lease, timeout_s)
    finally:
        with suppress(Unreachable, Refused):
            await store.revoke(lease.id)
    return shard


def _node_of(view: ClusterView, text: str) -> str:
    """The ID of a node that begins with this text; "" for ""."""
    known = {*view.nodes, *(one for found in view.shards.values() for one in found.record.members)}
    fitting = sorted(node for node in known if node.startswith(text.lower()))
    if text and len(fitting) != 1:
        few = f"{len(fitting)} nodes have" if fitting else "no node of the cluster has"
        raise CliError(f"{few} an ID that begins with {text}")
    return fitting[0] if text else ""


async def _wait_for(
    store: Store, change: ShardChange, shard: str, version: int, lease: Grant, timeout_s: float
) -> None:
    """Keep the order alive until it is carried out."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    kept_s = loop.time()
    while True:
        view = view_of(await store.read())
        if shard not in view.changes:
            members = view.shards[shard].record.members
            if change.remove in members or (change.add and change.add not in members):
                raise CliError(f"the primary of shard {shard} has refused this: see its log")
            return
        if loop.time() > end_s:
            break
        if loop.time() - kept_s > lease.ttl_s / 4:
            kept_s = loop.time()
            await store.keep_alive(lease.id)
        await asyncio.sleep(AGAIN_S)
    removal = Change(CHANGE + shard, None)
    if (await store.commit([Compare(CHANGE + shard, version)], [removal])).done:
        raise CliError(
            f"nothing has changed: within {timeout_s:g} s, the members of shard {shard} that stay "
            "or join did not have everything that was confirmed"
        )
    await _wait_for(store, change, shard, version, lease, timeout_s)
