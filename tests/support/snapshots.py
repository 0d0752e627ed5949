"""Data directories with a snapshot of any shape, written quickly and without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.journals import DIRECTORY
from tests.support.storage_access import BlockWriter

from millstream.storage.blocks.block import Block
from millstream.storage.files import snapshot_writer
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import Manifest, base_name, store_manifest
from millstream.storage.files.snapshot_writer import Identity, SnapshotWriter

EntryId = tuple[int, int]
Fields = Sequence[bytes]
Entries = Mapping[EntryId, Fields]


@dataclass
class Stream:
    """A stream of a snapshot; `deleted` IDs and IDs below `first_kept` remain in their blocks."""

    key: bytes
    entries: Entries
    db: int = 0
    kind: str = "stream"
    deleted: Sequence[EntryId] = ()
    first_kept: EntryId = (0, 0)
    block_entries: int = 100
    more_meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def meta(self) -> dict[str, Any]:
        if self.kind != "stream":
            return {"value": b"text"}
        return {"first_kept": list(self.first_kept), **self.more_meta}

    @property
    def blocks(self) -> list[Block]:
        return list(self._blocks())

    def _blocks(self) -> Iterator[Block]:
        made = BlockWriter()
        for (ms, seq), words in self.entries.items():
            if made.count == self.block_entries:
                yield made.freeze()
                made = BlockWriter()
            assert made.append_entry(ms, seq, list(words), 0, 0)
            if (ms, seq) in self.deleted:
                assert made.delete_entry(ms, seq)
        if made.count:
            yield made.freeze()


@contextmanager
def small_chunks(entries: int) -> Iterator[None]:
    """Use chunks of about this many entries, so that little data has many chunks."""
    with mock.patch.object(snapshot_writer, "CHUNK_ENTRIES_MAX", entries):
        yield


def write_base(
    directory: Path,
    streams: Sequence[Stream],
    number: int = 1,
    global_meta: dict[str, Any] | None = None,
) -> Path:
    """Write the file of a snapshot, which is not current yet."""
    directory.mkdir(parents=True, exist_ok=True)
    file = SystemDisk(directory).create(base_name(number))
    writer = SnapshotWriter(
        file,
        Identity(
            uuid=os.urandom(16),
            created_ms=1,
            seq=0,
            directory=DIRECTORY,
            salt=os.urandom(4),
        ),
    )
    for stream in streams:
        writer.add(stream)
    writer.finish(global_meta or {})
    file.close()
    return directory / base_name(number)


def publish(directory: Path, number: int = 1) -> None:
    """Make a base current, and remove the one before, as a server does."""
    store_manifest(SystemDisk(directory), Manifest(base_name(number), (), number + 1, DIRECTORY))
    (directory / base_name(number - 1)).unlink(missing_ok=True)


def write_snapshot(
    directory: Path, streams: Sequence[Stream], chunk_entries: int | None = None, number: int = 1
) -> Path:
    """Make a data directory whose newest snapshot has these streams; return the path of its
    base."""
    with small_chunks(chunk_entries or snapshot_writer.CHUNK_ENTRIES_MAX):
        path = write_base(directory, streams, number)
    publish(directory, number)
    return path
