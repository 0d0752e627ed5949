"""Recovery of a damaged snapshot: reads its intact parts.

A damaged chunk loses only the pieces in that chunk. `RecoveryReader` reads a base key by key and
keeps at most one chunk and one section in memory. It never guesses: everything that it returns has
a valid checksum of its own, or is stored twice.

The one exception is an index whose checksums are lost with the summary: the reader returns only
keys whose blocks agree with that index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, Protocol

import msgpack  # type: ignore[import-untyped]

from millstream.errors import DamageError
from millstream.storage.blocks.checksum import crc32
from millstream.storage.files.damaged_base import Opened
from millstream.storage.files.snapshot_format import B, BlockType, KeyRecord, Piece

_BLOCK_MAGIC = b"MB\x01\x00"
_U64_MAX = 2**64 - 1


class ProvenBlockType(BlockType[B], Protocol[B]):
    """A class of blocks that have checksums."""

    def from_bytes(self, data: memoryview, /) -> B:
        """ValueError when the checksum is wrong."""


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
        self._hidden = 0
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
        self._hidden += _hidden_entries(record, recovered.meta)
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
                raise self._damaged_piece(piece, "ids do not increase from block to block")
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
        """Unpack a chunk (the reader caches the last one); a damaged chunk is not retried."""
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
        # The totals of earlier versions left out the evicted entries that the blocks of small
        # streams still have.
        may_be = range(self.entries - self._hidden, self.entries + 1)
        if self.keys != summary.keys or summary.entries not in may_be:
            reason = (
                f"holds {self.keys} keys with {self.entries} entries and says {summary.keys} with"
                f" {summary.entries}"
            )
            self.damage.append(DamageError(self._reader.name, None, reason))


def _hidden_entries(record: KeyRecord, meta: dict[str, Any] | None) -> int:
    """The number of evicted entries that the blocks of a stream still have; 0 if the metadata does
    not say it."""
    length = meta.get("length") if isinstance(meta, dict) else None
    if not isinstance(length, int):
        return 0
    return max(0, sum(piece.entries for piece in record.pieces) - length)


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
