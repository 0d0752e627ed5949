"""A new cluster with the data of a backup: data directories, and records in etcd, or the map of one
machine.

All members of a shard get the data. An empty one could be elected otherwise: an election needs
M - N of M members, and only one of them would have what was restored. The nodes, the shards and
the terms are new, and the terms are higher than those of the backup.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from millstream.cli_error import CliError
from millstream.errors import DataError, counted
from millstream.server.backup.backup_cli import (
    Failure,
    Outcome,
    copy_of_directory,
    destination_errors,
    require_outside,
    write_copy,
)
from millstream.server.backup.restore_cli import read_checked
from millstream.server.cluster.cluster_backup import ClusterBackup, numbered, read_backup
from millstream.server.cluster.slot_map import Shard, SlotMap, new_id, write_map
from millstream.server.cluster.store.records import (
    CONFIG,
    MAP,
    SHARD,
    USERS,
    VERSION,
    Format,
    ShardRecord,
    SlotRanges,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare, Store, Unreachable
from millstream.server.cluster.store.store_opening import StoreSettings
from millstream.server.cluster.store_cli import NAME_TAKEN, require_enough, run_with_store
from millstream.server.config.file_replacement import replace_file
from millstream.server.repair.backup_description import directory_id
from millstream.server.repair.destination import USERS_NAME, Destination
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import load_manifest, store_manifest


class Size(NamedTuple):
    """The number of members of each shard, and how many in addition to the primary must have a
    write; None: as in the backup."""

    members: int | None
    durable: int | None


class RestoredNode(NamedTuple):
    """A data directory: its name, its shard, and the ID of its node."""

    folder: str
    shard: str
    node: str


class Plan(NamedTuple):
    """The nodes, and the records in etcd or the map of one machine."""

    nodes: list[RestoredNode]
    records: list[Change]
    map: SlotMap | None


def restore_cluster(
    source: Path, out: Path, size: Size, settings: StoreSettings | None
) -> list[RestoredNode]:
    """Make the new cluster; its nodes. CliError if that is impossible, and then there is none."""
    try:
        with destination_errors(out):
            backup = read_backup(source)
            users = _users_in(source)
            if settings is None:
                plan = _plan_of_machine(backup)
            else:
                plan = _plan_of_store(backup, size, users)
                run_with_store(settings, _require_free)
            require_outside(source, out)
            destination = Destination(out)
            with destination.discarded_on_error():
                for shard in backup.shards:
                    _check(source / shard.state.name, shard.directory)
                for node in plan.nodes:
                    _copy(source / node.shard, destination.folder / node.folder, node.node)
                if plan.map is not None:
                    if users is not None:
                        replace_file(destination.folder / USERS_NAME, users, mode=0o600)
                    write_map(destination.folder, plan.map)
                destination.publish()
    except DataError as problem:
        raise Failure(Outcome.REFUSED, str(problem)) from None
    if settings is not None:
        run_with_store(settings, lambda store: _write(store, plan.records, out))
    return plan.nodes


def _users_in(source: Path) -> bytes | None:
    path = source / USERS_NAME
    return path.read_bytes() if path.exists() else None


def _plan_of_machine(backup: ClusterBackup) -> Plan:
    shards = tuple(
        Shard(shard.state.name, number, new_id(), new_id(), shard.state.ranges)
        for number, shard in numbered(backup.shards)
    )
    term = max(shard.state.term for shard in backup.shards) + 1
    nodes = [RestoredNode(shard.folder, shard.name, shard.node) for shard in shards]
    return Plan(nodes, [], SlotMap(backup.epoch + 1, term, shards))


def _plan_of_store(backup: ClusterBackup, size: Size, users: bytes | None) -> Plan:
    nodes: list[RestoredNode] = []
    changes = [Change(CONFIG, encode(Format(VERSION)))]
    rows: list[tuple[int, int, str]] = []
    for _, shard in numbered(backup.shards):
        state = shard.state
        members = size.members or state.size
        durable = state.durable if size.durable is None else size.durable
        if size.durable is None and durable >= members:
            raise CliError(
                f"shard {state.name} of the backup has --durable {durable}, which needs more than "
                f"{counted(members, 'member')}: give --durable {members - 1}, too, or more members"
            )
        require_enough(members, durable)
        ids = [new_id() for _ in range(members)]
        nodes += [
            RestoredNode(f"{state.name}-{number}", state.name, node)
            for number, node in enumerate(ids, start=1)
        ]
        record = ShardRecord(new_id(), state.term + 1, "", tuple(ids), members, durable)
        changes.append(Change(SHARD + state.name, encode(record)))
        rows += [(*pair, state.name) for pair in state.ranges]
    changes.append(Change(MAP, encode(SlotRanges(backup.epoch + 1, tuple(sorted(rows))))))
    changes += [] if users is None else [Change(USERS, users)]
    return Plan(nodes, changes, None)


async def _require_free(store: Store) -> None:
    if CONFIG in (await store.read()).values:
        raise CliError(NAME_TAKEN)


async def _write(store: Store, changes: list[Change], out: Path) -> None:
    """Write the records; without them, the directories are of no use."""
    try:
        commit = await store.commit([Compare(change.name, 0) for change in changes], changes)
    except Unreachable as problem:
        raise CliError(
            f"{problem}. The data is in {out}. If `millstream cluster status` shows this cluster, "
            "it is restored; otherwise remove the data, and try again"
        ) from None
    if not commit.done:
        shutil.rmtree(out)
        raise CliError(NAME_TAKEN)


def _check(folder: Path, directory: str) -> None:
    """CliError or DataError if this is not the whole backup of a shard."""
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: copy the backup again")
    read_checked(folder, lambda disk, report: None, load=True)
    if directory_id(SystemDisk(folder)) != directory:
        raise DataError(f"{folder} is of another backup or shard: copy the backup again")


def _copy(source: Path, place: Path, node: str) -> None:
    write_copy(
        lambda: Destination(place),
        lambda disk: copy_of_directory(source, disk),
        "files",
        is_described=False,
    )
    disk = SystemDisk(place)
    manifest = load_manifest(disk)
    assert manifest is not None
    store_manifest(disk, manifest._replace(node=node))


def shown(nodes: list[RestoredNode], out: Path) -> Iterator[str]:
    """A line for each node."""
    for node in nodes:
        yield f"{out / node.folder}: shard {node.shard}, node {node.node}"
