"""`millstream cluster split`: the data of a directory of nodes, or of a single server, for another
number of nodes.

All data is loaded, each key is given to the shard that owns its slot, and each shard is written as
a base of its own. The source is not changed. The new nodes have new IDs and new lines of history.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from millstream.errors import DataError, counted, readable
from millstream.server.cluster.slot_map import Shard, SlotMap, new_map, read_map, write_map
from millstream.server.config.file_replacement import replace_file
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.repair.checking import load_strictly
from millstream.server.repair.destination import USERS_NAME, Destination, without_data
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.journal_format import ID_SIZE
from millstream.storage.files.manifest import Manifest, base_name, load_manifest, store_manifest
from millstream.storage.files.snapshot_format import BASE_SALT_SIZE
from millstream.storage.files.snapshot_writer import Identity, SnapshotWriter
from millstream.storage.groups.group import Group
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

_CAPTURE_KEYS = 64
_SHOWN = 5  # groups named in an error


class Part(NamedTuple):
    """A shard of the copy, and its data."""

    shard: Shard
    keyspace: Keyspace


def split(source: Path, out: Path, count: int) -> list[int]:
    """Write the copy; the number of keys of each new node. DataError or Unusable if that is
    impossible; then there is no copy."""
    now_ms = time.time_ns() // 1_000_000
    slot_map = new_map(count)
    parts = [Part(shard, _empty(now_ms)) for shard in slot_map.shards]
    owners = slot_map.owners()
    by_name = {part.shard.name: part.keyspace for part in parts}
    with _stopped(source):
        for folder in _folders(source):
            loaded = _load(folder, now_ms)
            _distribute(loaded, [by_name[one.name] for one in owners if one is not None])
    destination = Destination(out)
    with destination.discarded_on_error():
        _copy_users(source, destination.folder)
        _write(destination.folder, slot_map, parts, now_ms)
        destination.publish()
    return [len(part.keyspace.databases[0]) for part in parts]


@contextmanager
def _stopped(source: Path) -> Iterator[None]:
    """No supervisor may start the nodes meanwhile. DataError if one runs: a node of it could be
    between two starts."""
    disk = SystemDisk(source)
    if read_map(source) is not None:
        disk.lock_for("or split what `millstream cluster restore` makes of a backup", alone=False)
    try:
        yield
    finally:
        disk.unlock()


def _empty(now_ms: int) -> Keyspace:
    keyspace = Keyspace(clustered=True)
    keyspace.set_time(now_ms)
    return keyspace


def _folders(source: Path) -> Iterator[Path]:
    """The data directories of the source."""
    slot_map = read_map(source)
    if slot_map is None:
        yield source
        return
    for shard in slot_map.shards:
        yield source / shard.folder


def _load(folder: Path, now_ms: int) -> Keyspace:
    """The data of a directory, without a server. DataError if it cannot be used."""
    disk = SystemDisk(folder)
    disk.lock_for("or split a backup of it", alone=False)
    try:
        manifest = load_manifest(disk)
        if manifest is None:
            raise without_data(disk)
        keyspace = load_strictly(disk, manifest, LoadReport(), now_ms, clustered=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from None
    finally:
        disk.unlock()
    _check(keyspace, folder)
    return keyspace


def _check(keyspace: Keyspace, folder: Path) -> None:
    """DataError if the data cannot be that of a cluster, or slots of it move."""
    keyspace.slot_states.free_now()
    if keyspace.slot_states:
        raise DataError(
            f"{folder} has slots that were moving to another shard: start its nodes once, so that "
            "the moves end"
        )
    used = [db.index for db in keyspace.databases[1:] if len(db)]
    if used:
        raise DataError(
            f"{folder} has keys in database {used[0]}, and a cluster has only database 0: "
            "move them with MOVE or COPY first"
        )
    apart = [
        f"{readable(group.name)} of {readable(key)}"
        for key, value in keyspace.databases[0].table.items()
        if isinstance(value, Stream)
        for group in value.groups.values()
        if _is_apart(key, group)
    ]
    if apart:
        named = ", ".join(apart[:_SHOWN])
        raise DataError(
            f"the dead letter stream of {counted(len(apart), 'group')} is in another slot than the "
            f"stream of the group: {named}. Give it a name with the same {{tag}} "
            "(TGROUP ... DEADLETTER), or none"
        )


def _is_apart(key: bytes, group: Group) -> bool:
    """True if the dead letters of a group would be in another slot than its stream."""
    target = None if group.rules is None else group.rules.dead_letter
    return target is not None and cluster_slot_of(target) != cluster_slot_of(key)


def _distribute(loaded: Keyspace, targets: list[Keyspace]) -> None:
    """Give each key to the keyspace of its slot, and what belongs to no key to all."""
    for keyspace in {id(one): one for one in targets}.values():
        keyspace.incarnation = max(keyspace.incarnation, loaded.incarnation)
        keyspace.note_steady(loaded.newest_steady_ms)
        keyspace.note_promise(loaded.recorded_promise_ms)
        keyspace.has_ordering = keyspace.has_ordering or loaded.has_ordering
        keyspace.has_rules = keyspace.has_rules or loaded.has_rules
    db: Database = loaded.databases[0]
    db.settle_all()
    for key, value in db.table.items():
        to = targets[cluster_slot_of(key)].databases[0]
        if key in to.table:
            raise DataError(f"two nodes have the key {readable(key)}")
        to.put(key, value)
        expiry_ms = db.expiry_ms(key)
        if expiry_ms:
            to.note_expiry(key, expiry_ms)


def _copy_users(source: Path, folder: Path) -> None:
    """Nodes have their users in a file. A single server finds its aclfile by its configuration."""
    users = source / USERS_NAME
    if read_map(source) is not None and users.exists():
        replace_file(folder / USERS_NAME, users.read_bytes(), mode=0o600)


def _write(folder: Path, slot_map: SlotMap, parts: list[Part], now_ms: int) -> None:
    """Write the directories of the nodes, and the map last."""
    for part in parts:
        place = folder / part.shard.folder
        place.mkdir(mode=0o700)
        _write_node(SystemDisk(place), part, now_ms)
    write_map(folder, slot_map)
    SystemDisk(folder).sync_directory()


def _write_node(disk: SystemDisk, part: Part, now_ms: int) -> None:
    directory = disk.random(ID_SIZE)
    name = base_name(1)
    file = disk.create(name)
    try:
        identity = Identity(disk.random(16), now_ms, 0, directory, disk.random(BASE_SALT_SIZE))
        writer = SnapshotWriter(file, identity, with_rules=part.keyspace.has_rules)
        StoredKeyspace(part.keyspace).write_to(writer, _CAPTURE_KEYS)
        file.sync()
    finally:
        file.close()
    store_manifest(disk, Manifest(name, (), 2, directory, node=part.shard.node))
