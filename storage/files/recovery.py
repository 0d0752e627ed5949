"""Recovery of damaged files: reads the intact parts of a snapshot, and finds files that belong
together.

A snapshot contains most information twice: the places of chunks are in the index and can also be
found by walking from chunk to chunk; header and summary name the same moment. Therefore the ends of
a file can be restored from the rest of it, and a damaged chunk loses only the pieces in that chunk.
`RecoveryReader` reads a base key by key and keeps at most one chunk and one section in memory. It
never guesses: everything that it returns has a valid checksum of its own, or is stored twice.

The one exception is an index whose checksums are lost with the summary: the reader returns only
keys whose blocks agree with that index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

import msgpack  # type: ignore[import-untyped]
import zstandard

from millstream.errors import DamageError, DataError
from millstream.storage.blocks.checksum import crc32
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.journal_format import readable_owner
from millstream.storage.files.journal_reader import frame_numbers
from millstream.storage.files.manifest import Manifest, is_base, is_journal, is_owned, number_of
from millstream.storage.files.snapshot import (
    CHUNK_HEADER_SIZE,
    CHUNK_MAGIC,
    COPY_MAGIC,
    PADDING_MAX,
    TAIL_SIZE,
    TRAILER_SIZE,
    BlockLike,
    BlockType,
    Header,
    KeyRecord,
    Piece,
    Place,
    SnapshotEnds,
    SnapshotReader,
    Summary,
    parse_chunk_header,
    parse_copy_header,
    parse_summary,
    unpack_footer_part,
)

B = TypeVar("B", bound=BlockLike)
_BLOCK_MAGIC = b"MB\x01\x00"
_U64_MAX = 2**64 - 1
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_FRAME_STEP_BYTES = 64 << 10
_SEARCH_BYTES = 1 << 20
_PART_MAGIC = re.compile(b"|".join((CHUNK_MAGIC, COPY_MAGIC)))


class ProvenBlockType(BlockType[B], Protocol[B]):
    """A class of blocks that have checksums."""

    def from_bytes(self, data: memoryview, /) -> B:
        """ValueError when the checksum is wrong."""


@dataclass
class Opened:
    """A base that can be read, with the damage at its ends."""

    reader: SnapshotReader
    damage: list[DamageError]
    index_is_proven: bool = True
    totals_are_known: bool = True
    lost: list[str] = field(default_factory=list)  # losses that no remaining index names


def open_base(file: File) -> Opened:
    """Open a snapshot as far as possible; DamageError when its contents cannot be determined."""
    try:
        return Opened(SnapshotReader(file), [])
    except DamageError as damage:
        return _open_damaged(file, damage)


def _open_damaged(file: File, damage: DamageError) -> Opened:
    ends = SnapshotEnds(file)
    with suppress(DamageError):
        return Opened(SnapshotReader(file, ends.read_summary()), [damage])
    header = ends.read_header()
    parts = _walk_parts(file, header)
    chunks = parts.chunks
    sections, found = _walk_footer(file, _after_zeros(file, header, parts.end), header.seed)
    if found is not None and found.header == header and _fits(found, chunks, sections):
        return Opened(SnapshotReader(file, found), [damage])
    if header.has_identity:
        whole = _ends_with(file, parts, sections)
        return _open_without_footer(file, header, parts, damage, whole)
    if not sections:
        raise damage
    made = Summary(header, 0, 0, tuple(chunks), tuple(sections), (), {})
    return Opened(SnapshotReader(file, made), [damage], index_is_proven=False)


def _open_without_footer(
    file: File, header: Header, parts: _Parts, damage: DamageError, whole: bool
) -> Opened:
    """The index from its copies between the chunks. Each copy has its own checksum. `whole`: the
    footer shows that there are no other copies."""
    if not parts.copies and (parts.chunks or file.size <= header.size + TAIL_SIZE):
        raise damage
    sections = tuple(
        place._replace(offset=place.offset + CHUNK_HEADER_SIZE) for place in parts.copies
    )
    made = Summary(header, 0, 0, tuple(parts.chunks), sections, (), {})
    lost = [
        f"keys whose index was at offset {offset}, how many cannot be told"
        for offset in parts.lost_copies
    ]
    if not whole:
        lost.append(f"keys after offset {parts.end}, if there were any: how many cannot be told")
    return Opened(SnapshotReader(file, made), [damage], totals_are_known=False, lost=lost)


def _fits(summary: Summary, chunks: list[Place], sections: list[Place]) -> bool:
    """Whether a summary without its checksum agrees with the rest of the file."""
    theirs = [place[:4] for place in (*summary.chunks, *summary.sections)]
    return theirs == [place[:4] for place in (*chunks, *sections)]


@dataclass
class _Parts:
    """The parts between header and footer: chunks, copies of the index, the places of unreadable
    copies, and the end of the last part."""

    chunks: list[Place] = field(default_factory=list)
    copies: list[Place] = field(default_factory=list)
    lost_copies: list[int] = field(default_factory=list)
    end: int = 0

    def add(self, place: Place, *, is_chunk: bool) -> None:
        (self.chunks if is_chunk else self.copies).append(place)
        self.end = place.offset + CHUNK_HEADER_SIZE + place.length


def _walk_parts(file: File, header: Header) -> _Parts:
    """Walk from header to header. The last chunk may be truncated. In version 2, after a part with
    a damaged header, the walk continues with the next part that has a valid checksum; in version 1
    a client can imitate such a part."""
    parts = _Parts(end=header.size)
    while parts.end < file.size:
        position = parts.end
        head = file.read_at(position, CHUNK_HEADER_SIZE)
        chunk, copy = parse_chunk_header(head, position), parse_copy_header(head, position)
        found = chunk or copy
        if found is None or not (_goes_on(file, found) or _is_sound(file, header, found)):
            following = _next_part(file, header, position + 1)
            if following is not None:
                _add_damaged(file, header, parts, following)
                continue
        if found is None:
            break
        if copy is not None and header.has_identity and not _is_sound(file, header, copy):
            parts.lost_copies.append(position)
            parts.end = position + CHUNK_HEADER_SIZE + copy.length
            continue
        parts.add(found, is_chunk=chunk is not None)
    return parts


def _goes_on(file: File, place: Place) -> bool:
    """Whether another part, or zeros, follow at the end that this header states."""
    end = place.offset + CHUNK_HEADER_SIZE + place.length
    head = file.read_at(end, CHUNK_HEADER_SIZE)
    is_part = parse_chunk_header(head, end) or parse_copy_header(head, end)
    return is_part is not None or (end < file.size and not any(head))


def _next_part(file: File, header: Header, start: int) -> int | None:
    """The first offset from `start` on of a chunk or a copy with a valid checksum."""
    if not header.has_identity:
        return None
    for window in range(start, file.size, _SEARCH_BYTES):
        data = file.read_at(window, _SEARCH_BYTES + len(CHUNK_MAGIC) - 1)
        for match in _PART_MAGIC.finditer(data):
            at = window + match.start()
            head = file.read_at(at, CHUNK_HEADER_SIZE)
            place = parse_chunk_header(head, at) or parse_copy_header(head, at)
            if place is not None and place.length and _is_sound(file, header, place):
                return at
    return None


def _is_sound(file: File, header: Header, place: Place) -> bool:
    start = place.offset + CHUNK_HEADER_SIZE
    if start + place.length > file.size:
        return False
    return crc32(file.read_at(start, place.length), header.seed) == place.crc


def _add_damaged(file: File, header: Header, parts: _Parts, end: int) -> None:
    """Add a part with a damaged header, which ends where the next part begins. The checksum in its
    header may still be valid, and its contents show its kind. Chunks are numbered, so a lost chunk
    must be counted."""
    start = parts.end
    data = file.read_at(start, end - start)
    content = data[CHUNK_HEADER_SIZE:]
    crc = int.from_bytes(data[12:16], "little")
    raw = _unpacked_section(content)
    place = Place(start, len(content), len(content) if raw is None else len(raw), crc, 0)
    if raw is None:
        if header.is_packed(content):
            place = place._replace(raw_length=int.from_bytes(data[8:12], "little"))
        parts.add(place, is_chunk=True)
    elif crc32(content, header.seed) == crc:
        parts.add(place, is_chunk=False)
    else:
        parts.lost_copies.append(start)
        parts.end = end


def _unpacked_section(data: bytes) -> bytes | None:
    """A copy of a section of the index, unpacked; None when the bytes are not such a copy."""
    try:
        raw = zstandard.ZstdDecompressor().decompress(data)
        return raw if isinstance(unpack_footer_part(raw), list) else None
    except (zstandard.ZstdError, ValueError):
        return None


def _ends_with(file: File, parts: _Parts, sections: list[Place]) -> bool:
    """Whether the copies match the sections of the footer, and the trailer confirms that there are
    no more."""
    tail = file.read_at(file.size - TRAILER_SIZE, TRAILER_SIZE)
    if not sections or int.from_bytes(tail[28:32], "little") != crc32(tail[:28]):
        return False
    summary = file.size - TRAILER_SIZE - int.from_bytes(tail[16:20], "little")
    if sections[-1].offset + sections[-1].length != summary:
        return False
    return [place[1:4] for place in sections] == [place[1:4] for place in parts.copies]


def _after_zeros(file: File, header: Header, position: int) -> int:
    """The beginning of the footer: version 2 has zeros before it."""
    if not header.has_identity:
        return position
    data = file.read_at(position, PADDING_MAX + 1)
    return position + len(data) - len(data.lstrip(b"\0"))


def _walk_footer(file: File, position: int, seed: int) -> tuple[list[Place], Summary | None]:
    """The sections after the last chunk, and the summary if it can be read."""
    sections: list[Place] = []
    while (frame := _read_frame(file, position, seed)) is not None:
        place, raw = frame
        try:
            content = unpack_footer_part(raw)
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


def _read_frame(file: File, start: int, seed: int) -> tuple[Place, bytes] | None:
    """The zstd frame that begins here; the frame itself defines its end."""
    if file.read_at(start, 4) != _ZSTD_MAGIC:
        return None
    unpacking = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    position, crc = start, seed
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


# ---------------------------------------------------------------------------------------- recovery


@dataclass
class Lost:
    """The unreadable parts of one key: pieces of its entries, or its metadata.

    Without the metadata the first block is lost, too, even if it can be read: (entries, first ID,
    last ID). Only the metadata says which of its entries were evicted, and evicted entries must not
    reappear.
    """

    pieces: list[Piece] = field(default_factory=list)
    meta: bool = False
    first_block: tuple[int, tuple[int, int], tuple[int, int]] | None = None

    def __bool__(self) -> bool:
        return self.meta or bool(self.pieces)


@dataclass
class Recovered(Generic[B]):
    """A key and its readable parts; `meta` is None when the metadata is lost."""

    record: KeyRecord
    meta: dict[str, Any] | None
    blocks: list[B]
    lost: Lost


class RecoveryReader(Generic[B]):
    """Reads a base to its end despite any damage.

    Afterwards `damage` has every place that could not be read, `lost_keys` is the number of keys in
    unreadable sections of the index, and `lost` has texts about losses without a known number of
    keys. `keeping` False: blocks are checked but not kept.
    """

    def __init__(self, opened: Opened, block_type: ProvenBlockType[B], *, keeping: bool) -> None:
        self.damage = list(opened.damage)
        self.lost_keys = 0
        self.lost = opened.lost
        self.keys = 0
        self.entries = 0
        self.summary = opened.reader.summary
        self._reader = opened.reader
        self._block_type = block_type
        self._keeping = keeping
        self._is_proven = opened.index_is_proven
        self._totals_are_known = opened.totals_are_known
        self._bad_chunks: set[int] = set()
        self._bad_headers: set[int] = set()
        self._seen_chunks: set[int] = set()
        self._left: tuple[int, memoryview] = (-1, memoryview(b""))

    def read(self) -> Iterator[Recovered[B]]:
        """Every key with a readable record, in the order of the file."""
        for section, place in enumerate(self.summary.sections):
            try:
                records = self._read_section(section)
            except DamageError:
                self.lost_keys += max(place.items, 1)
                continue
            for record in records:
                recovered = self._recover(record)
                if self._is_proven or not recovered.lost:
                    yield recovered
                else:
                    self.lost_keys += 1
        self._look_at_the_rest()
        self._compare_totals()

    def _read_section(self, section: int) -> list[KeyRecord]:
        """The section, or its copy if the section cannot be read."""
        try:
            return self._reader.records(section)
        except DamageError as damage:
            self.damage.append(damage)
            return self._reader.copied_records(section)

    def _recover(self, record: KeyRecord) -> Recovered[B]:
        recovered: Recovered[B] = Recovered(record, None, [], Lost())
        try:
            if record.meta_place is not None:
                self._look_at_chunk(record.meta_place[0])
            recovered.meta = self._reader.meta(record)
        except DamageError as damage:
            self._note(damage)
            recovered.meta = self._left_of_meta(record)
            recovered.lost.meta = recovered.meta is None
        last: tuple[int, int] | None = None
        for piece in record.pieces:
            try:
                blocks = self._read_piece(piece, last)
                self.entries += piece.entries
            except DamageError as damage:
                self._note(damage)
                blocks, lost = self._left_of_piece(piece, last)
                if lost.blocks:
                    recovered.lost.pieces.append(lost)
                self.entries += piece.entries - lost.entries
            if not blocks:
                continue
            last = blocks[-1].last_id
            is_first = blocks[0].first_id == (piece.min_ms, piece.min_seq)
            if recovered.lost.meta and piece is record.pieces[0] and is_first:
                first = blocks.pop(0)
                recovered.lost.first_block = (first.live, first.first_id, first.last_id)
            if self._keeping:
                recovered.blocks += blocks
        self.keys += 1
        return recovered

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

    def _left_of(self, number: int) -> memoryview:
        """The contents of a damaged chunk, which may be wrong. The last chunk is cached."""
        if not 0 <= number < len(self.summary.chunks):
            return memoryview(b"")
        if self._left[0] != number:
            self._left = number, self._reader.left_of_chunk(number)
        return self._left[1]

    def _left_of_meta(self, record: KeyRecord) -> dict[str, Any] | None:
        """A key's metadata from a damaged chunk, if its own checksum is valid."""
        if record.meta_place is None or len(record.meta_place) < 4:
            return None
        number, offset, length, crc = record.meta_place
        data = self._left_of(number)[offset : offset + length]
        if len(data) != length or crc32(data) != crc:
            return None
        meta: dict[str, Any] = msgpack.unpackb(data)
        return meta

    def _left_of_piece(self, piece: Piece, last: tuple[int, int] | None) -> tuple[list[B], Piece]:
        """The blocks with valid checksums from a piece of a damaged chunk; and the lost piece: its
        numbers of blocks and entries, and the IDs around it."""
        data = self._left_of(piece.chunk)[piece.offset : piece.offset + piece.length]
        low, high = (piece.min_ms, piece.min_seq), (piece.max_ms, piece.max_seq)
        finder = _BlockFinder(self._block_type, data, high)
        blocks: list[B] = []
        gaps: list[tuple[tuple[int, int], tuple[int, int]]] = []
        at: int | None = 0
        while at is not None and len(blocks) < piece.blocks:
            after = blocks[-1].last_id if blocks else last
            found = finder.block_at(at, after)
            if found is not None:
                blocks.append(found[0])
                at = found[1]
                continue
            start = _after(blocks[-1].last_id) if blocks else low
            at = finder.next_sound(at + 1, after, piece.blocks - len(blocks) - 1)
            following = None if at is None else finder.block_at(at, after)
            gaps.append((start, high if following is None else _before(following[0].first_id)))
        entries = piece.entries - sum(block.live for block in blocks)
        if not gaps:
            gaps.append((_after(blocks[-1].last_id) if blocks else low, high))
        lost = piece._replace(blocks=piece.blocks - len(blocks), entries=entries)
        (min_ms, min_seq), (max_ms, max_seq) = gaps[0][0], gaps[-1][1]
        return blocks, lost._replace(min_ms=min_ms, min_seq=min_seq, max_ms=max_ms, max_seq=max_seq)

    def _damaged_piece(self, piece: Piece, reason: str) -> DamageError:
        return DamageError(self._reader.name, self.summary.chunks[piece.chunk].offset, reason)

    def _look_at_chunk(self, number: int) -> None:
        """Unpack a chunk (the reader caches the last one); a damaged chunk is not tried again."""
        if number in self._bad_chunks:
            raise _Known(self._reader.name, None, "has a bad chunk")
        self._seen_chunks.add(number)
        if not 0 <= number < len(self.summary.chunks):
            return  # reading the piece reports it
        try:
            self._reader.chunk(number)
        except DamageError as damage:
            self._check_without_header(number, damage)

    def _check_without_header(self, number: int, damage: DamageError) -> None:
        """Check whether only the chunk's header is damaged, which loses no data."""
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
        """Check the chunks of lost keys, and the parts that readers of an undamaged file do not
        use."""
        if self._totals_are_known and self._is_proven:
            try:
                self._reader.check_copies()
            except DamageError as damage:
                self._note(damage)
        for number in range(len(self.summary.chunks)):
            if number not in self._seen_chunks:
                try:
                    self._look_at_chunk(number)
                except DamageError as damage:
                    self._note(damage)

    def _compare_totals(self) -> None:
        summary = self.summary
        if self.damage or not self._is_proven or not self._totals_are_known:
            return
        if (self.keys, self.entries) != (summary.keys, summary.entries):
            reason = (
                f"holds {self.keys} keys with {self.entries} entries and says {summary.keys} with"
                f" {summary.entries}"
            )
            self.damage.append(DamageError(self._reader.name, None, reason))


class _BlockFinder(Generic[B]):
    """Finds valid blocks of one piece in partly damaged bytes."""

    def __init__(
        self, block_type: ProvenBlockType[B], data: memoryview, high: tuple[int, int]
    ) -> None:
        self._block_type = block_type
        self._data = data
        self._text = bytes(data)
        self._high = high

    def block_at(self, at: int, after: tuple[int, int] | None) -> tuple[B, int] | None:
        """The block at an offset and the block's end, if its checksum is valid and its IDs belong
        here."""
        try:
            (block,), end = self._block_type.unpack(self._data, at, 1)
            self._block_type.from_bytes(self._data[at:end])
        except ValueError:
            return None
        if after is not None and block.first_id <= after:
            return None
        return (block, end) if block.last_id <= self._high else None

    def next_sound(self, start: int, after: tuple[int, int] | None, left: int) -> int | None:
        """The next offset from `start` on at which a run of at most `left` valid blocks begins: a
        run up to the end of the piece if there is one, else the longest run. A block in a client's
        value does not qualify: it makes one block too many, or no block follows it."""
        best, best_count = None, 0
        at = self._text.find(_BLOCK_MAGIC, start)
        while at >= 0:
            count, end = self._count(at, after)
            if end == len(self._data) and 0 < count <= left:
                return at
            if best_count < count < left:
                best, best_count = at, count
            at = self._text.find(_BLOCK_MAGIC, max(end, at + 1))
        return best

    def _count(self, at: int, after: tuple[int, int] | None) -> tuple[int, int]:
        count = 0
        while (found := self.block_at(at, after)) is not None:
            count += 1
            after, at = found[0].last_id, found[1]
        return count, at


def _after(entry_id: tuple[int, int]) -> tuple[int, int]:
    ms, seq = entry_id
    return (ms, seq + 1) if seq < _U64_MAX else (ms + 1, 0)


def _before(entry_id: tuple[int, int]) -> tuple[int, int]:
    ms, seq = entry_id
    return (ms, seq - 1) if seq else (ms - 1, _U64_MAX)


class _Known(DamageError):
    """Damage of a chunk that is already recorded."""


# ---------------------------------------------------------------------------------------- manifest


def guess_manifest(disk: Disk, without: Set[str] = frozenset()) -> Manifest:
    """The manifest that follows unambiguously from the files; DataError when it is ambiguous.
    `without` are files that belong to another directory.

    The newest base is the current one, because a base gets its name only when it is finished. The
    journals are those that continue after the base, each from the end of the one before. A journal
    whose frames are all in the base was replaced by it.
    """
    names = [name for name in disk.names() if name not in without]
    numbers = {number_of(name): name for name in names if is_journal(name)}
    bases = [name for name in names if is_base(name)]
    base = max(bases, key=number_of, default=None)
    due, least = 1, 0
    if base is not None:
        due, least = _seq_of(disk, base) + 1, number_of(base)
    journals: list[str] = []
    for number, name in sorted(numbers.items()):
        first, last = _frames_of(disk, name)
        if first is None:  # named before its first frame was written
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
    directory, since = _identity_of(disk, [*([base] if base else []), *journals])
    return Manifest(base, tuple(journals), highest + 1, directory, since)


def _identity_of(disk: Disk, names: list[str]) -> tuple[bytes, int]:
    """The ID of these files, and the number below which files are older than the ID."""
    found = {name: directory_of(disk, name) for name in names}
    directories = {directory for directory in found.values() if directory}
    if len(directories) > 1:
        raise DataError(f"{', '.join(found)} are of different data directories")
    if not directories:
        return b"", 0
    old = [number_of(name) + 1 for name, directory in found.items() if directory == b""]
    return directories.pop(), max(old, default=0)


def directory_of(disk: Disk, name: str) -> bytes | None:
    """The ID of the directory that a base or journal belongs to: b"" for version 1, which had no
    ID; None if the file is too damaged."""
    file = disk.read(name)
    try:
        if is_base(name):
            return open_base(file).reader.summary.directory
        return readable_owner(file)
    except DataError:
        return None
    finally:
        file.close()


def misplaced(disk: Disk, manifest: Manifest) -> list[str]:
    """The files named by a manifest that belong to another data directory."""
    names = disk.names()
    found = []
    for name in manifest.files:
        directory = directory_of(disk, name) if name in names else None
        if directory is not None and not is_owned(manifest, name, directory):
            found.append(name)
    return found


def _seq_of(disk: Disk, base: str) -> int:
    file = disk.read(base)
    try:
        return open_base(file).reader.summary.seq
    finally:
        file.close()


def _frames_of(disk: Disk, name: str) -> tuple[int | None, int]:
    """The numbers of a journal's first frame and of the last frame before any gap."""
    file = disk.read(name)
    try:
        return frame_numbers(file)
    finally:
        file.close()
