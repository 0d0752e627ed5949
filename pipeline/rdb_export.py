"""`millstream export --format rdb`: a data directory as a file that Redis loads.

The directory is read from its newest snapshot. The file gets its name when it is complete.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import DataError, counted
from millstream.glob import Patterns
from millstream.storage.dump.base_export import RdbExport, export_base
from millstream.storage.dump.file_writing import TARGETS, RdbWriter
from millstream.storage.files.disk import File, SystemDisk
from millstream.storage.files.manifest import NAME, load_manifest, nodes_hint

_LOSSES_SHOWN = 20


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


def lines_of(result: RdbExport, output: str) -> list[str]:
    """The lines that the command prints at the end."""
    shown = result.lost[:_LOSSES_SHOWN]
    if len(result.lost) > len(shown):
        shown.append(f"... and {len(result.lost) - len(shown)} more")
    return [
        *shown,
        f"{output}: {counted(result.streams, 'stream')} with {counted(result.entries, 'entry')},"
        f" {counted(result.strings, 'string')}",
    ]


def _export(request: RdbRequest, write: Callable[[bytes], object]) -> RdbExport:
    writer = RdbWriter(write, TARGETS[request.redis], request.unowned)
    now_s = time.time()
    writer.describe(request.redis, int(now_s))

    keys = Patterns(request.patterns)

    def is_wanted(database: int, key: bytes) -> bool:
        return request.database in (None, database) and keys.has(key)

    base = _newest_base(request.directory)
    try:
        result = export_base(base, writer, int(now_s * 1000), is_wanted)
    finally:
        base.close()
    writer.finish()
    return result


def _newest_base(directory: Path) -> File:
    """The newest snapshot of a data directory; DataError without one."""
    disk = SystemDisk(directory)
    manifest = load_manifest(disk)
    if manifest is None:
        hint = nodes_hint(disk.names(), directory) or ": it is not a data directory"
        raise DataError(f"{directory} has no {NAME}{hint}")
    if manifest.base is None:
        raise DataError(f"{directory} has no snapshot yet: run BGSAVE first")
    return disk.read(manifest.base)
