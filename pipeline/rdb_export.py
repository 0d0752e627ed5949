"""`millstream export --format rdb`: a data directory as a file that Redis loads.

The directory is read from its newest snapshot, section by section: memory does not grow with the
number of keys. The file gets its name when it is complete.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millstream.errors import DataError, counted, printable, readable
from millstream.glob import matcher
from millstream.storage.blocks.block import Block
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.dump.file_writing import TARGETS, RdbWriter, losses
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import NAME, load_manifest
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

_SMALL_STEP = 256
_LOSSES_SHOWN = 20


@dataclass
class RdbExport:
    """The result: how much was written, and a sentence for each stream that loses something."""

    streams: int = 0
    strings: int = 0
    entries: int = 0
    lost: list[str] = field(default_factory=list)

    def lines(self, output: str) -> list[str]:
        shown = self.lost[:_LOSSES_SHOWN]
        if len(self.lost) > len(shown):
            shown.append(f"... and {len(self.lost) - len(shown)} more")
        return [
            *shown,
            f"{output}: {counted(self.streams, 'stream')} with {counted(self.entries, 'entry')},"
            f" {counted(self.strings, 'string')}",
        ]


@dataclass(frozen=True)
class RdbRequest:
    """A directory, the version of Redis that has to load the file, the consumer that gets pending
    entries without an owner, and the keys: all that match one of the patterns, if there is any."""

    directory: Path
    redis: str
    unowned: bytes
    patterns: tuple[bytes, ...] = ()
    database: int | None = None


def export_rdb(request: RdbRequest, output: str) -> RdbExport:
    """Write a file, or to standard output for "-". DataError when the directory cannot be read."""
    if output == "-":
        return _export(request, sys.stdout.buffer.write)
    temporary = Path(f"{output}.tmp")
    try:
        with open(temporary, "wb") as file:
            result = _export(request, file.write)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, output)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return result


def _export(request: RdbRequest, write: Callable[[bytes], object]) -> RdbExport:
    target = TARGETS[request.redis]
    writer = RdbWriter(write, target, request.unowned)
    writer.fact(b"redis-ver", request.redis.encode() + b".0")
    writer.fact(b"redis-bits", b"64")
    writer.fact(b"ctime", b"%d" % int(time.time()))
    result = RdbExport()
    now_ms = time.time_ns() // 1_000_000
    for database, key, value, expires_ms in _keys(request.directory, now_ms):
        if not _is_wanted(request, database, key):
            continue
        if expires_ms is not None and expires_ms <= now_ms:
            continue
        if isinstance(value, Stream):
            lost = losses(value, target.kind)
            if lost:
                name = printable(readable(key))
                result.lost.append(f'database {database}, key "{name}" loses {", ".join(lost)}')
            writer.add_stream(database, key, value, expires_ms)
            result.streams += 1
            result.entries += value.length
        else:
            writer.add_string(database, key, value, expires_ms)
            result.strings += 1
    writer.finish()
    return result


def _is_wanted(request: RdbRequest, database: int, key: bytes) -> bool:
    if request.database is not None and database != request.database:
        return False
    return not request.patterns or any(matcher(one)(key) for one in request.patterns)


def _keys(directory: Path, now_ms: int) -> Iterator[tuple[int, bytes, bytes | Stream, int | None]]:
    """The keys of the newest snapshot: database, key, value, expiry. Keys of one section at a time
    are in memory."""
    disk = SystemDisk(directory)
    manifest = load_manifest(disk)
    if manifest is None:
        raise DataError(f"{directory} has no {NAME}: it is not a data directory")
    if manifest.base is None:
        raise DataError(f"{directory} has no snapshot yet: run BGSAVE first")
    file = disk.read(manifest.base)
    try:
        reader = SnapshotReader(file)
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
    finally:
        file.close()


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
