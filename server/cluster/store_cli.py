"""`millstream cluster` for nodes on many machines, which share etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import click

from millstream.cli_error import CliError
from millstream.errors import counted
from millstream.server.cluster.slot_map import last_slot, new_id
from millstream.server.cluster.store.records import (
    CONFIG,
    LEASE,
    MAP,
    NODE,
    SHARD,
    VERSION,
    Format,
    Holder,
    NodeRecord,
    RecordError,
    ShardRecord,
    SlotRanges,
    decode,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare, Refused, Store, Unreachable
from millstream.server.cluster.store.store_opening import StoreSettings, open_store

STORED_SHARDS_MAX = 100  # etcd takes 128 changes in a transaction

F = TypeVar("F", bound=Callable[..., Any])
Result = TypeVar("Result")
Record = TypeVar("Record", Holder, NodeRecord)


def store_options(function: F) -> F:
    """The options of a command that names a cluster in etcd. Its parameters are those of
    StoreSettings."""
    for option in (
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


def run_with_store(
    settings: StoreSettings, use: Callable[[Store], Coroutine[Any, Any, Result]]
) -> Result:
    """Run a coroutine with the store. CliError if etcd cannot be used, or has wrong records."""
    if not settings.name or not settings.urls:
        raise CliError("a cluster on many machines needs --name and --etcd")
    try:
        return asyncio.run(use(open_store(settings)))
    except (ValueError, Unreachable, Refused, RecordError) as problem:
        raise CliError(str(problem)) from None


async def create(store: Store, shards: int, members: int, durable: int) -> None:
    """Write the records of a new cluster. CliError if there is one."""
    starts = [0, *(last_slot(number, shards) + 1 for number in range(shards))]
    names = [f"s{number}" for number in range(1, shards + 1)]
    ranges = tuple(
        (first, after - 1, name)
        for first, after, name in zip(starts, starts[1:], names, strict=False)
    )
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
        raise CliError("etcd has a cluster with this name: choose another --name")


async def look(store: Store) -> dict[str, Any]:
    """The shards and their members, for --json."""
    values = (await store.read()).values
    if CONFIG not in values or MAP not in values:
        raise CliError(
            "etcd has no cluster with this name: create it with `millstream cluster init`"
        )
    decode(Format, values[CONFIG].data, CONFIG)
    slots = decode(SlotRanges, values[MAP].data, MAP)

    def record(kind: type[Record], name: str) -> Record | None:
        return decode(kind, values[name].data, name) if name in values else None

    shards = []
    for key in sorted((key for key in values if key.startswith(SHARD)), key=_numbered):
        name = key.removeprefix(SHARD)
        shard = decode(ShardRecord, values[key].data, key)
        has_lease = record(Holder, LEASE + name) == (shard.primary, shard.term)
        members = [(node, record(NodeRecord, NODE + node)) for node in shard.members]
        shards.append(
            {
                "shard": name,
                "term": shard.term,
                "slots": [list(row[:2]) for row in slots.ranges if row[2] == name],
                "size": shard.size,
                "durable": shard.durable,
                "lease": has_lease,
                "members": [_member(node, found, shard.primary) for node, found in members],
            }
        )
    return {"epoch": slots.epoch, "shards": shards}


def _numbered(name: str) -> tuple[int, str]:
    """s10 comes after s9."""
    return len(name), name


def _member(node: str, record: NodeRecord | None, primary: str) -> dict[str, Any]:
    return {
        "node": node,
        "role": "primary" if node == primary else "replica",
        "health": "not running" if record is None else "online",
        "host": record and record.host,
        "port": record and (record.port or record.tls_port),
        "zone": record and record.zone,
        "version": record and record.version,
    }


def has_all(description: dict[str, Any]) -> bool:
    """True if each shard has a primary with the lease, and all of its members run."""
    return all(
        shard["lease"]
        and len(shard["members"]) == shard["size"]
        and all(member["health"] == "online" for member in shard["members"])
        for shard in description["shards"]
    )


def rows_of(description: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of a table."""
    yield ["shard", "term", "role", "health", "address", "zone", "node", "slots"]
    for shard in description["shards"]:
        slots = " ".join(f"{first}-{last}" for first, last in shard["slots"]) or "-"
        for member in shard["members"]:
            health = member["health"]
            if member["role"] == "primary" and health == "online" and not shard["lease"]:
                health = "no lease"
            address = "-" if member["host"] is None else f"{member['host']}:{member['port']}"
            yield [
                *(shard["shard"], str(shard["term"]), member["role"], health, address),
                *(member["zone"] or "-", member["node"], slots),
            ]
        missing = shard["size"] - len(shard["members"])
        if missing > 0:
            wanted = f"{counted(missing, 'member')} missing"
            yield [shard["shard"], str(shard["term"]), "-", wanted, "-", "-", "-", slots]
