"""What can still be read of damaged files: a snapshot in parts, and which files belong together.

A snapshot says most things twice: where a chunk lies stands in the index and is found by going from
chunk to chunk; header and summary name the same moment. So the ends of a file can be made good from
the rest of it, and a bad chunk costs the pieces that lie in it. `Gleaner` goes through a base key
by key and keeps no more than a chunk and a section in memory. It never guesses: what it gives out
has a checksum of its own that fits, or stands twice.

The one exception is an index whose checksums are lost with the summary: its keys are given out only
where their blocks are what it says of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import msgpack  # type: ignore[import-untyped]
import zstandard

from millstream.errors import DamageError, DataError
from millstream.storage.checksum import crc32
from millstream.storage.disk import Disk, File
from millstream.storage.journal import frame_numbers
from millstream.storage.manifest import Manifest, is_base, is_journal, number_of
from millstream.storage.snapshot import (
    CHUNK_HEADER_SIZE,
    HEADER_SIZE,
    BlockLike,
    BlockType,
    KeyRecord,
    Piece,
    Place,
    SnapshotEnds,
    SnapshotReader,
    Summary,
    parse_chunk_header,
    parse_summary,
)

B = TypeVar("B", bound=BlockLike)
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_FRAME_STEP_BYTES = 64 << 10


@dataclass
class Opened:
    """A base that can be read, with what was wrong at its ends."""

    reader: SnapshotReader
    damage: list[DamageError]
    index_is_proven: bool = True


def open_base(file: File) -> Opened:
    """Open a snapshot as far as that is possible; DamageError when nothing tells what is in it."""
    try:
        return Opened(SnapshotReader(file), [])
    except DamageError as damage:
        return _open_damaged(file, damage)


def _open_damaged(file: File, damage: DamageError) -> Opened:
    ends = SnapshotEnds(file)
    with suppress(DamageError):
        return Opened(SnapshotReader(file, ends.read_summary()), [damage])
    uuid, created_ms, seq = ends.read_header()
    chunks = list(_walk_chunks(file))
    sections, found = _walk_footer(file, chunks[-1] if chunks else None)
    if found is not None and found.uuid == uuid and _fits(found, chunks, sections):
        return Opened(SnapshotReader(file, found), [damage])
    if not sections:
        raise damage
    made = Summary(uuid, created_ms, seq, 0, 0, tuple(chunks), tuple(sections), {})
    return Opened(SnapshotReader(file, made), [damage], index_is_proven=False)


def _fits(summary: Summary, chunks: list[Place], sections: list[Place]) -> bool:
    """Whether a summary without its checksum says what the rest of the file shows."""
    theirs = [place[:4] for place in (*summary.chunks, *summary.sections)]
    return theirs == [place[:4] for place in (*chunks, *sections)]


def _walk_chunks(file: File) -> Iterator[Place]:
    """From one chunk's header to the next, as far as there are any."""
    position = HEADER_SIZE
    while True:
        place = parse_chunk_header(file.read_at(position, CHUNK_HEADER_SIZE), position)
        if place is None or position + CHUNK_HEADER_SIZE + place.length > file.size:
            return
        yield place
        position += CHUNK_HEADER_SIZE + place.length


def _walk_footer(file: File, last: Place | None) -> tuple[list[Place], Summary | None]:
    """The sections behind the last chunk, and the summary if it can be read."""
    position = HEADER_SIZE if last is None else last.offset + CHUNK_HEADER_SIZE + last.length
    sections: list[Place] = []
    while (frame := _read_frame(file, position)) is not None:
        place, raw = frame
        try:
            content = msgpack.unpackb(raw)
        except ValueError:
            break
        if isinstance(content, dict):
            return sections, _summary_of(content)
        sections.append(place._replace(items=len(content)))
        position += place.length
    return sections, None


def _summary_of(content: dict[str, Any]) -> Summary | None:
    try:
        return parse_summary(content)
    except (KeyError, TypeError, ValueError):
        return None


def _read_frame(file: File, start: int) -> tuple[Place, bytes] | None:
    """The zstd frame that begins here, which says itself where it ends."""
    if file.read_at(start, 4) != _ZSTD_MAGIC:
        return None
    unpacking = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    position, crc = start, 0
    while not unpacking.eof:
        data = file.read_at(position, _FRAME_STEP_BYTES)
        if not data:
            return None
        try:
            parts.append(unpacking.decompress(data))
        except zstandard.ZstdError:
            return None
        used = len(data) - len(unpacking.unused_data)
        crc = crc32(data[:used], crc)
        position += used
    raw = b"".join(parts)
    return Place(start, position - start, len(raw), crc, 0), raw


# ---------------------------------------------------------------------------------------- gleaning


@dataclass
class Lost:
    """What of one key cannot be read: pieces of its entries, or its metadata.

    With the metadata goes the first block, if it can be read: (entries, first id, last id). Which
    of its entries were evicted only the metadata told, and none of these may come back.
    """

    pieces: list[Piece] = field(default_factory=list)
    meta: bool = False
    first_block: tuple[int, tuple[int, int], tuple[int, int]] | None = None

    def __bool__(self) -> bool:
        return self.meta or bool(self.pieces)


@dataclass
class Gleaned(Generic[B]):
    """A key and what is left of it; `meta` is None when that is lost."""

    record: KeyRecord
    meta: dict[str, Any] | None
    blocks: list[B]
    lost: Lost


class Gleaner(Generic[B]):
    """Reads a base to its end, whatever is wrong with it.

    Afterwards `damage` has every place that could not be read, and `lost_keys` says how many keys
    were in index sections that could not. `keeping` False: blocks are looked at and not kept.
    """

    def __init__(self, opened: Opened, block_type: BlockType[B], *, keeping: bool) -> None:
        self.damage = list(opened.damage)
        self.lost_keys = 0
        self.keys = 0
        self.entries = 0
        self.summary = opened.reader.summary
        self._reader = opened.reader
        self._block_type = block_type
        self._keeping = keeping
        self._is_proven = opened.index_is_proven
        self._bad_chunks: set[int] = set()
        self._bad_headers: set[int] = set()
        self._seen_chunks: set[int] = set()

    def read(self) -> Iterator[Gleaned[B]]:
        """Every key whose record can be read, in the order of the file."""
        for section, place in enumerate(self.summary.sections):
            try:
                records = self._reader.records(section)
            except DamageError as damage:
                self.damage.append(damage)
                self.lost_keys += place.items
                continue
            for record in records:
                gleaned = self._glean(record)
                if self._is_proven or not gleaned.lost:
                    yield gleaned
                else:
                    self.lost_keys += 1
        self._look_at_the_rest()
        self._compare_totals()

    def _glean(self, record: KeyRecord) -> Gleaned[B]:
        gleaned: Gleaned[B] = Gleaned(record, None, [], Lost())
        try:
            if record.meta_place is not None:
                self._look_at_chunk(record.meta_place[0])
            gleaned.meta = self._reader.meta(record)
        except DamageError as damage:
            gleaned.lost.meta = True
            self._note(damage)
        last: tuple[int, int] | None = None
        for piece in record.pieces:
            try:
                blocks = self._read_piece(piece, last)
            except DamageError as damage:
                gleaned.lost.pieces.append(piece)
                self._note(damage)
                continue
            last = blocks[-1].last_id
            self.entries += piece.entries
            if gleaned.lost.meta and piece is record.pieces[0]:
                first = blocks.pop(0)
                gleaned.lost.first_block = (first.live, first.first_id, first.last_id)
            if self._keeping:
                gleaned.blocks += blocks
        self.keys += 1
        return gleaned

    def _read_piece(self, piece: Piece, last: tuple[int, int] | None) -> list[B]:
        self._look_at_chunk(piece.chunk)
        blocks = list(chain.from_iterable(self._reader.piece_runs(piece, self._block_type)))
        if not blocks:
            raise self._damaged_piece(piece, "a piece holds no block")
        for block in blocks:
            if last is not None and block.first_id <= last:
                raise self._damaged_piece(piece, "ids do not rise from block to block")
            last = block.last_id
        return blocks

    def _damaged_piece(self, piece: Piece, reason: str) -> DamageError:
        return DamageError(self._reader.name, self.summary.chunks[piece.chunk].offset, reason)

    def _look_at_chunk(self, number: int) -> None:
        """Unpack it (the reader keeps the last one); a bad one is not tried again."""
        if number in self._bad_chunks:
            raise _Known(self._reader.name, None, "has a bad chunk")
        self._seen_chunks.add(number)
        if not 0 <= number < len(self.summary.chunks):
            return  # reading the piece says so
        try:
            self._reader.chunk(number)
        except DamageError as damage:
            self._look_behind_header(number, damage)

    def _look_behind_header(self, number: int, damage: DamageError) -> None:
        """Perhaps it is the chunk's header alone: that is damage, but loses nothing."""
        try:
            self._reader.chunk_behind_header(number)
        except DamageError:
            self._bad_chunks.add(number)
            raise damage from None
        if number not in self._bad_headers:
            self._bad_headers.add(number)
            self.damage.append(damage)

    def _note(self, damage: DamageError) -> None:
        if not isinstance(damage, _Known):
            self.damage.append(damage)

    def _look_at_the_rest(self) -> None:
        """Chunks of keys that are lost."""
        for number in range(len(self.summary.chunks)):
            if number not in self._seen_chunks:
                try:
                    self._look_at_chunk(number)
                except DamageError as damage:
                    self._note(damage)

    def _compare_totals(self) -> None:
        summary = self.summary
        if self.damage or not self._is_proven:
            return
        if (self.keys, self.entries) != (summary.keys, summary.entries):
            reason = (
                f"holds {self.keys} keys with {self.entries} entries and says {summary.keys} with"
                f" {summary.entries}"
            )
            self.damage.append(DamageError(self._reader.name, None, reason))


class _Known(DamageError):
    """Damage of a chunk that was noted before."""


# ---------------------------------------------------------------------------------------- manifest


def guess_manifest(disk: Disk) -> Manifest:
    """The manifest that the files themselves allow no doubt about; DataError when they do.

    The newest base counts, since a base gets its name only when it is finished. Of the journals
    those count that go on behind it, each where the one before ends; what is all in the base was
    replaced by it.
    """
    numbers = {number_of(name): name for name in disk.names() if is_journal(name)}
    bases = [name for name in disk.names() if is_base(name)]
    base = max(bases, key=number_of, default=None)
    due, least = 1, 0
    if base is not None:
        due, least = _seq_of(disk, base) + 1, number_of(base)
    journals: list[str] = []
    for number, name in sorted(numbers.items()):
        first, last = _frames_of(disk, name)
        if first is None:  # named before its first frame was due
            journals += [name] if number >= least else []
        elif last >= due:
            if first != due:
                raise DataError(
                    f"{name} begins with frame {first} where {due} was due: which files belong"
                    " together cannot be told from them"
                )
            journals.append(name)
            due = last + 1
    highest = max([*numbers, *map(number_of, bases)], default=0)
    return Manifest(base, tuple(journals), highest + 1)


def _seq_of(disk: Disk, base: str) -> int:
    file = disk.read(base)
    try:
        return open_base(file).reader.summary.seq
    finally:
        file.close()


def _frames_of(disk: Disk, name: str) -> tuple[int | None, int]:
    """The numbers of a journal's first frame and of the last that follows without a gap."""
    file = disk.read(name)
    try:
        return frame_numbers(file)
    finally:
        file.close()
