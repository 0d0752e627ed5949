"""The keys of a base as a file that Redis loads.

The base is read section by section: memory does not grow with the number of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import printable, readable
from millstream.storage.blocks.block import Block
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.dump.file_writing import RdbWriter, losses
from millstream.storage.files.disk import File
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

_SMALL_STEP = 256


@dataclass
class RdbExport:
    """The result: how much was written, and a sentence for each stream that loses something."""

    streams: int = 0
    strings: int = 0
    entries: int = 0
    lost: list[str] = field(default_factory=list)


def export_base(
    base: File,
    writer: RdbWriter,
    now_ms: int,
    is_wanted: Callable[[int, bytes], bool] = lambda database, key: True,
    *,
    with_due: bool = False,
) -> RdbExport:
    """Write the keys of a base that are wanted, `with_due` also those that are due, without the end
    of the file. Keys that are hidden because their slots move are left out. DataError when the base
    is damaged."""
    result = RdbExport()
    reader = SnapshotReader(base)
    hidden = _hidden_slots(reader.summary.global_meta)
    for database, key, value, expires_ms in _keys(reader, now_ms):
        if not is_wanted(database, key) or (hidden and cluster_slot_of(key) in hidden):
            continue
        if expires_ms is not None and expires_ms <= now_ms and not with_due:
            continue
        if isinstance(value, Stream):
            lost = losses(value, writer.kind)
            if lost:
                name = printable(readable(key))
                result.lost.append(f'database {database}, key "{name}" loses {", ".join(lost)}')
            writer.add_stream(database, key, value, expires_ms)
            result.streams += 1
            result.entries += value.length
        else:
            writer.add_string(database, key, value, expires_ms)
            result.strings += 1
    return result


def _hidden_slots(global_meta: dict[str, Any]) -> frozenset[int]:
    keyspace = Keyspace(1)
    StoredKeyspace(keyspace).restore_global(global_meta)
    return keyspace.hidden_slots


def _keys(
    reader: SnapshotReader, now_ms: int
) -> Iterator[tuple[int, bytes, bytes | Stream, int | None]]:
    """The keys: database, key, value, expiry. Those of one section at a time are in memory."""
    for section in range(len(reader.summary.sections)):
        small = reader.small_streams(section)
        if small is not None:
            keyspace = _new_keyspace(now_ms, max(row[0] for row in reader.rows(section)))
            stored = StoredKeyspace(keyspace)
            while stored.restore_small(small, _SMALL_STEP):
                pass
            yield from _contents(keyspace)
            continue
        for record in reader.records(section):
            keyspace = _new_keyspace(now_ms, record.db)
            blocks = list(reader.blocks(record, Block))
            meta = reader.meta(record)
            StoredKeyspace(keyspace).restore(record.db, record.key, record.kind, meta, blocks)
            yield from _contents(keyspace)


def _new_keyspace(now_ms: int, last_database: int) -> Keyspace:
    keyspace = Keyspace(last_database + 1)
    keyspace.expiring = False
    keyspace.set_time(now_ms)
    return keyspace


def _contents(
    keyspace: Keyspace,
) -> Iterator[tuple[int, bytes, bytes | Stream, int | None]]:
    for number, database in enumerate(keyspace.databases):
        for key, value in database.table.items():
            yield number, key, value, database.expiries.get(key)
