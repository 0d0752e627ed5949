"""Plans the reading of a snapshot: which chunks, which parts of each chunk, and how many
partitions.

Planning reads only the index. A plan consists of whole chunks, because a chunk is the smallest unit
that can be read and small streams share chunks: one task reads a chunk once, with all parts that
are wanted. The plan contains offset, length and checksum of each chunk, so a task reads only its
chunks and the header of the file.

A snapshot may contain very many small streams, so the plan has no object per stream. The wanted
parts of a chunk are a few lists, which also pickle fast.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.errors import DataError
from millstream.pipeline.files import Folder
from millstream.pipeline.partition import InputPartition
from millstream.pipeline.selection import EntryId, Selection
from millstream.storage.files.manifest import Manifest, check_owner
from millstream.storage.files.snapshot_format import Place
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.slot_ranges import slots_of

_TRIES = 10


class Meta(NamedTuple):
    """The place of a stream's metadata, if the task must read its first kept ID there."""

    chunk: int
    offset: int
    length: int


@dataclass
class Pieces:
    """The pieces of streams that are wanted from a chunk, in the chunk's order. Offsets and lengths
    count unpacked bytes. `firsts` has the first wanted ID of a piece if it is not the partition's
    first ID."""

    keys: list[bytes] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    firsts: dict[int, EntryId] = field(default_factory=dict)
    metas: dict[int, Meta] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: bytes, offset: int, length: int) -> None:
        self.keys.append(key)
        self.offsets.append(offset)
        self.lengths.append(length)

    @property
    def length(self) -> int:
        """The number of bytes of all pieces."""
        return sum(self.lengths)


class Chunk(NamedTuple):
    """One chunk of the file, and the wanted pieces of it."""

    number: int
    place: Place
    pieces: Pieces


@dataclass(frozen=True)
class Snapshot:
    """The snapshot that a plan was made for."""

    folder: Folder
    file: str
    uuid: bytes


@dataclass
class ScanPartition(InputPartition):
    """The part that one task reads. `meta_places` are chunks from which the task needs only
    metadata."""

    number: int
    snapshot: Snapshot
    first: EntryId
    last: EntryId
    chunks: list[Chunk]
    meta_places: dict[int, Place]


def plan(
    folder: Folder, db: int, selection: Selection, split_bytes: int, partitions_min: int
) -> list[InputPartition]:
    """Partitions of about `split_bytes` unpacked bytes; at least `partitions_min` of them if there
    are enough chunks. DataError when the folder has no valid snapshot."""
    for _ in range(_TRIES):
        manifest = folder.manifest()
        file_name = _newest(folder, manifest)
        try:
            file = folder.open(file_name)
        except FileNotFoundError:
            continue  # a newer snapshot was published after the manifest was read
        with closing(file):
            reader = SnapshotReader(file)
            _check_owner(folder, manifest, file_name, reader.summary.directory)
            snapshot = Snapshot(folder, file_name, reader.summary.uuid)
            chunks = _chunks(reader, db, selection)
            places = reader.summary.chunks
        wanted = selection.first, selection.last
        return [
            ScanPartition(number, snapshot, *wanted, portion, _meta_places(portion, places))
            for number, portion in enumerate(_portions(chunks, split_bytes, partitions_min))
        ]
    raise DataError(
        f"{folder}: {file_name} is missing although the manifest names it; restore the data"
        " directory from a copy"
    )


def _check_owner(folder: Folder, manifest: Manifest, file_name: str, directory: bytes) -> None:
    try:
        check_owner(manifest, file_name, directory)
    except DataError as error:
        raise DataError(f"{folder}/{error}") from None


def _newest(folder: Folder, manifest: Manifest) -> str:
    if manifest.base is None:
        raise DataError(
            f"{folder} has no snapshot yet: all of its data is in the journal. Run BGSAVE on"
            " the server of this directory first, for example redis-cli -p 6455 BGSAVE"
        )
    return manifest.base


def _chunks(reader: SnapshotReader, db: int, selection: Selection) -> list[Chunk]:
    """The chunks that contain wanted pieces, in the file's order."""
    if selection.is_empty:
        return []
    wanted = _Wanted(reader.summary.chunks, selection)
    wanted_key = _shown(selection.key_test(), reader.summary.global_meta.get("slots"))
    for section in range(len(reader.summary.sections)):
        with _no_collection():
            rows = reader.rows(section)
            try:
                for of_db, key, kind, meta, meta_place, pieces in rows:
                    if of_db == db and kind == "stream" and wanted_key(key):
                        wanted.add(key, meta, meta_place, pieces)
            except (ValueError, TypeError, LookupError) as error:
                raise reader.bad_section(section, error) from None
    return [wanted.chunks[number] for number in sorted(wanted.chunks)]


def _shown(test: Callable[[bytes], bool], slots: dict[str, Any] | None) -> Callable[[bytes], bool]:
    """The same test, but not for keys of cluster slots that arrive at the server, or have left it:
    another server has them."""
    if slots is None:
        return test
    moves = (*slots["imports"], *slots["left"])
    hidden = {*slots_of(slots["freeing"]), *(one for move in moves for one in slots_of(move[1]))}
    return lambda key: test(key) and cluster_slot_of(key) not in hidden


class _Wanted:
    """Collects the chunks that contain wanted pieces while the index is read."""

    def __init__(self, places: tuple[Place, ...], selection: Selection) -> None:
        self.chunks: dict[int, Chunk] = {}
        self._places = places
        self._first = selection.first
        self._last = selection.last

    def add(self, key: bytes, meta: Any, meta_place: Any, pieces: Any) -> None:
        """Add the wanted pieces of one stream, given as in the index. Only the first piece can
        contain its first kept ID."""
        first = self._first if meta is None else max(self._first, tuple(meta["first_kept"]))
        for number, offset, length, _, _, min_ms, min_seq, max_ms, max_seq in pieces:
            if first <= (max_ms, max_seq) and (min_ms, min_seq) <= self._last:
                wanted = self._pieces(number)
                if meta_place is not None:
                    wanted.metas[len(wanted)] = Meta(*meta_place[:3])
                if first > self._first and first > (min_ms, min_seq):
                    wanted.firsts[len(wanted)] = first
                wanted.add(key, offset, length)
            meta_place = None

    def _pieces(self, number: int) -> Pieces:
        chunk = self.chunks.get(number)
        if chunk is None:
            chunk = self.chunks[number] = Chunk(number, self._places[number], Pieces())
        return chunk.pieces


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, which would double the time to read the index of many streams and
    would find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _portions(chunks: list[Chunk], split_bytes: int, partitions_min: int) -> Iterator[list[Chunk]]:
    """Groups of neighbouring chunks, so that each task reads a contiguous part of the file."""
    sizes = [chunk.pieces.length for chunk in chunks]
    count = min(max(-(-sum(sizes) // split_bytes), partitions_min), len(chunks))
    done = number = 0
    portion: list[Chunk] = []
    for at, (chunk, size) in enumerate(zip(chunks, sizes, strict=True)):
        portion.append(chunk)
        done += size
        left = len(chunks) - at - 1
        if done * count >= sum(sizes) * (number + 1) or left < count - number:
            yield portion
            portion = []
            number += 1


def _meta_places(chunks: list[Chunk], places: tuple[Place, ...]) -> dict[int, Place]:
    return {
        meta.chunk: places[meta.chunk] for chunk in chunks for meta in chunk.pieces.metas.values()
    }
