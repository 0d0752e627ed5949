"""Plans the reading of a snapshot: which chunks, and what of each, in how many portions.

The index alone is read. A plan is made of whole chunks, since a chunk is what can be read alone and
small streams share one: a task takes a chunk once, with everything that is wanted from it. The plan
carries each chunk's place and checksum, so a task reads nothing else of the file but its header.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from millstream.errors import DataError
from millstream.pipeline.files import Folder
from millstream.pipeline.partition import InputPartition
from millstream.pipeline.selection import EntryId, Selection
from millstream.storage.manifest import Manifest, check_owner
from millstream.storage.snapshot import KeyRecord, Place, SnapshotReader

_TRIES = 10


class Wanted(NamedTuple):
    """A piece of a stream to read from a chunk; offset and length count unpacked bytes."""

    key: bytes
    offset: int
    length: int
    first: EntryId
    last: EntryId
    # Where the stream's metadata lies, when its first kept id is still to be looked up there.
    meta: tuple[int, ...] | None


class Chunk(NamedTuple):
    """One chunk of the file, and what is wanted from it."""

    number: int
    place: Place
    pieces: list[Wanted]


@dataclass(frozen=True)
class Snapshot:
    """The snapshot that a plan was made of."""

    folder: Folder
    file: str
    uuid: bytes


class ScanPartition(InputPartition):
    """What one task reads. `meta_places` are chunks that hold nothing but metadata it needs."""

    def __init__(
        self, number: int, snapshot: Snapshot, chunks: list[Chunk], meta_places: dict[int, Place]
    ) -> None:
        self.number = number
        self.snapshot = snapshot
        self.chunks = chunks
        self.meta_places = meta_places


def plan(
    folder: Folder, db: int, selection: Selection, split_bytes: int, partitions_min: int
) -> list[InputPartition]:
    """The partitions of about `split_bytes` unpacked bytes, at least `partitions_min` if there are
    that many chunks. DataError when the folder has no sound snapshot."""
    for _ in range(_TRIES):
        manifest = folder.manifest()
        file_name = _newest(folder, manifest)
        try:
            file = folder.open(file_name)
        except FileNotFoundError:
            continue  # a newer one was published since the manifest was read
        with closing(file):
            reader = SnapshotReader(file)
            _check_owner(folder, manifest, file_name, reader.summary.directory)
            snapshot = Snapshot(folder, file_name, reader.summary.uuid)
            chunks = _chunks(reader, db, selection)
            places = reader.summary.chunks
        return list(_portions(snapshot, chunks, places, split_bytes, partitions_min))
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
            f"{folder} has no snapshot yet: all it holds is in its journal. Let the server"
            " save one first: redis-cli -p 6455 BGSAVE"
        )
    return manifest.base


def _chunks(reader: SnapshotReader, db: int, selection: Selection) -> list[Chunk]:
    """The chunks in which something is wanted, in the file's order."""
    places = reader.summary.chunks
    chunks: dict[int, Chunk] = {}
    wanted_key = selection.key_test()
    if selection.is_empty:
        return []
    for section in range(len(reader.summary.sections)):
        for record in reader.records(section):
            if record.db != db or record.kind != "stream" or not wanted_key(record.key):
                continue
            for number, wanted in _pieces(record, selection.first, selection.last):
                if number not in chunks:
                    chunks[number] = Chunk(number, places[number], [])
                chunks[number].pieces.append(wanted)
    return [chunks[number] for number in sorted(chunks)]


def _pieces(record: KeyRecord, first: EntryId, last: EntryId) -> Iterator[tuple[int, Wanted]]:
    """What is wanted of one stream. Its first kept id lies in the first piece, if anywhere."""
    meta = record.meta_place
    if record.meta is not None:
        first = max(first, tuple(record.meta["first_kept"]))
    for piece in record.pieces:
        low, high = (piece.min_ms, piece.min_seq), (piece.max_ms, piece.max_seq)
        if first <= high and low <= last:
            yield piece.chunk, Wanted(record.key, piece.offset, piece.length, first, last, meta)
        meta = None


def _portions(
    snapshot: Snapshot,
    chunks: list[Chunk],
    places: tuple[Place, ...],
    split_bytes: int,
    partitions_min: int,
) -> Iterator[ScanPartition]:
    """Neighbouring chunks together, so that a task reads one stretch of the file."""
    sizes = [sum(piece.length for piece in chunk.pieces) for chunk in chunks]
    count = min(max(-(-sum(sizes) // split_bytes), partitions_min), len(chunks))
    done = number = 0
    portion: list[Chunk] = []
    for at, (chunk, size) in enumerate(zip(chunks, sizes, strict=True)):
        portion.append(chunk)
        done += size
        left = len(chunks) - at - 1
        if done * count >= sum(sizes) * (number + 1) or left < count - number:
            yield ScanPartition(number, snapshot, portion, _meta_places(portion, places))
            portion = []
            number += 1


def _meta_places(chunks: list[Chunk], places: tuple[Place, ...]) -> dict[int, Place]:
    return {
        piece.meta[0]: places[piece.meta[0]]
        for chunk in chunks
        for piece in chunk.pieces
        if piece.meta is not None
    }
