"""Reads a snapshot file.

The index can be read without the chunks: a reader makes a plan from the index and then fetches
single chunks.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import msgpack  # type: ignore[import-untyped]

from millstream.errors import BlockError, DamageError, DataError, FormatError
from millstream.storage.blocks.checksum import crc32
from millstream.storage.capture.small_loader import SmallLoader
from millstream.storage.capture.small_rows import chunk_of, is_small_section
from millstream.storage.files.disk import Bytes
from millstream.storage.files.snapshot_format import (
    BASE_SALT_SIZE,
    CHUNK,
    CHUNK_HEADER_SIZE,
    CHUNK_MAGIC,
    COMPRESSED,
    COPY_MAGIC,
    END_MAGIC,
    HEADER,
    HEADER_SIZE,
    IDENTITY,
    KNOWN_VERSIONS,
    MAGIC,
    OLD_HEADER_SIZE,
    PADDING_MAX,
    RUN_BLOCKS_MAX,
    TRAILER,
    TRAILER_SIZE,
    B,
    BlockType,
    Header,
    KeyRecord,
    Piece,
    Place,
    Summary,
    parse_summary,
    unpack_footer_part,
    zstd,
)

_SALVAGE_STEP_BYTES = 512


class Input(Protocol):
    """The source of a snapshot: an open `File`, or any object that reads a range."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes: ...


class SnapshotEnds:
    """A snapshot's header and the end of its footer, each readable without the other.

    DamageError names the file and the offset of the fault.
    """

    def __init__(self, file: Input) -> None:
        self._file = file
        self.name = file.name
        self._decompressor = zstd().ZstdDecompressor()  # making one takes 0.1 ms

    def read_header(self) -> Header:
        """The header, with every byte checked."""
        head = self._read(0, OLD_HEADER_SIZE)
        magic, version, flags, uuid, created_ms, seq, salt = HEADER.unpack_from(head)
        if magic != MAGIC or int.from_bytes(head[60:], "little") != crc32(head[:60]):
            raise self._damage(0, "the header is not that of a snapshot")
        if version not in KNOWN_VERSIONS or flags & ~COMPRESSED:
            raise FormatError(f"{self.name} has format {version}, which this version does not know")
        if version == 1:
            return Header(uuid, created_ms, seq, version, COMPRESSED, bytes(BASE_SALT_SIZE), b"")
        head = self._read(0, HEADER_SIZE)
        if int.from_bytes(head[-4:], "little") != crc32(head[:-4]):
            raise self._damage(0, "the header is not that of a snapshot")
        (directory,) = IDENTITY.unpack_from(head, OLD_HEADER_SIZE)
        return Header(uuid, created_ms, seq, version, flags, salt, directory)

    def read_summary(self) -> Summary:
        """The summary at the end of the footer; an unfinished file has none."""
        place, fields, footer_offset = self.read_summary_fields()
        try:
            summary = parse_summary(fields)
        except (ValueError, TypeError, KeyError) as error:
            raise self._damage(place.offset, f"the summary cannot be read ({error})") from None
        self._check_tiling(summary, footer_offset, place.offset)
        return summary

    def read_summary_fields(self) -> tuple[Place, dict[str, Any], int]:
        """The summary with its place, and the footer's offset."""
        start = self._file.size - TRAILER_SIZE
        tail = self._read(start, TRAILER_SIZE)
        if tail[32:] != END_MAGIC or int.from_bytes(tail[28:32], "little") != crc32(tail[:28]):
            raise self._damage(start, "the end is not that of a finished snapshot")
        offset, length, packed_length, raw_length, crc = TRAILER.unpack_from(tail)
        if offset + length != start or packed_length > length:
            raise self._damage(start, "the footer is not where the trailer says")
        place = Place(start - packed_length, packed_length, raw_length, crc, 0)
        data = self._unpack(place.offset, self._read(place.offset, place.length), place, 0)
        try:
            return place, dict(msgpack.unpackb(data)), offset
        except (ValueError, TypeError) as error:
            raise self._damage(place.offset, f"the summary cannot be read ({error})") from None

    def _check_tiling(self, summary: Summary, footer: int, end: int) -> None:
        """Check that the parts are contiguous, so that no byte can change unnoticed."""
        position = summary.header.size
        copies = zip(summary.copies, summary.sections, strict=False)
        parts = [*summary.chunks, *(place._replace(offset=offset) for offset, place in copies)]
        for part in sorted(parts):
            if part.offset != position:
                raise self._damage(position, "chunks do not follow one another")
            position += CHUNK_HEADER_SIZE + part.length
        padding_max = PADDING_MAX if summary.header.has_identity else 0
        if not 0 <= footer - position <= padding_max:
            raise self._damage(position, "the footer does not follow the chunks")
        position = footer
        for section in summary.sections:
            if section.offset != position:
                raise self._damage(position, "sections do not follow one another")
            position += section.length
        if position != end:
            raise self._damage(position, "the summary does not follow the index")

    def _read_chunk(self, number: int, place: Place, header: Header) -> memoryview:
        data = self._read(place.offset, CHUNK_HEADER_SIZE + place.length)
        expected = (CHUNK_MAGIC, place.length, place.raw_length, place.crc)
        if CHUNK.unpack_from(data) != expected:
            raise self._damage(place.offset, f"chunk {number} is not the one in the index")
        view = memoryview(data)[CHUNK_HEADER_SIZE:]
        return self._unpack_chunk(place.offset, view, place, header)

    def _unpack_chunk(
        self, offset: int, data: memoryview, place: Place, header: Header
    ) -> memoryview:
        if header.is_packed(data):
            return memoryview(self._unpack(offset, data, place, header.seed))
        self._check_crc(offset, data, place, header.seed)
        return data

    def _read(self, offset: int, length: int) -> bytes:
        if offset < 0 or offset + length > self._file.size:
            raise self._damage(self._file.size, "the file is too short")
        try:
            data = self._file.read_at(offset, length)
        except OSError as error:
            reason = f"it cannot be read ({error.strerror})"
            raise self._damage(offset, reason) from error
        if len(data) != length:
            raise self._damage(offset + len(data), "the file is too short")
        return data

    def _check_crc(self, offset: int, data: Bytes, place: Place, seed: int) -> None:
        if crc32(data, seed) != place.crc:
            raise self._damage(offset, "the checksum does not match")

    def _unpack(self, offset: int, data: Bytes, place: Place, seed: int) -> bytes:
        self._check_crc(offset, data, place, seed)
        try:
            raw: bytes = self._decompressor.decompress(data, max_output_size=place.raw_length)
        except zstd().ZstdError as error:
            raise self._damage(offset, f"it cannot be unpacked ({error})") from None
        if len(raw) != place.raw_length:
            raise self._damage(offset, "it has another length than the index says")
        return raw

    def _damage(self, offset: int, reason: str) -> DamageError:
        return DamageError(self.name, offset, reason)


class SnapshotReader(SnapshotEnds):
    """Reads a snapshot's index and single chunks.

    Opening reads only header, trailer and summary. DamageError names the file and the offset of the
    fault; an unfinished file has no trailer and is refused.
    """

    def __init__(self, file: Input, summary: Summary | None = None) -> None:
        """`summary`: a summary reconstructed by storage/files/damaged_base if the file's own is
        unreadable."""
        super().__init__(file)
        self.summary = summary or self._read_ends()
        self._unpacked = (-1, memoryview(b""))

    def _read_ends(self) -> Summary:
        header = self.read_header()
        summary = self.read_summary()
        if header != summary.header:
            raise self._damage(0, "header and footer are of different snapshots")
        return summary

    def records(self, section: int) -> list[KeyRecord]:
        """The key records of one section of the index."""
        return self._records_at(self.summary.sections[section])

    def copied_records(self, section: int) -> list[KeyRecord]:
        """The key records from the section's copy between the chunks."""
        place = self.summary.sections[section]
        if section >= len(self.summary.copies):
            raise self._damage(place.offset, "the index has no copy here")
        offset = self.summary.copies[section] + CHUNK_HEADER_SIZE
        return self._records_at(place._replace(offset=offset))

    def check_copies(self) -> None:
        """Check the parts that readers of an undamaged file do not use: the copies and the
        padding."""
        for _ in self.check_copies_in_slices():
            pass

    def check_copies_in_slices(self) -> Iterator[None]:
        """Like `check_copies`; the caller can do other work between two copies."""
        position = self.summary.header.size
        for chunk in self.summary.chunks:
            position = max(position, chunk.offset + CHUNK_HEADER_SIZE + chunk.length)
        for offset, place in zip(self.summary.copies, self.summary.sections, strict=False):
            data = self._read(offset, CHUNK_HEADER_SIZE + place.length)
            expected = (COPY_MAGIC, place.length, place.raw_length, place.crc)
            if CHUNK.unpack_from(data) != expected:
                raise self._damage(offset, "a copy of the index is not the one in the summary")
            view = memoryview(data)[CHUNK_HEADER_SIZE:]
            self._check_crc(offset, view, place, self.summary.header.seed)
            position = max(position, offset + len(data))
            yield
        end = self._file.size - TRAILER_SIZE
        footer = int.from_bytes(self._read(end, 8), "little")
        if any(self._read(position, footer - position)):
            raise self._damage(position, "the bytes before the footer are not zero")

    def rows(self, section: int) -> list[Any]:
        """The key records as lists of the fields of KeyRecord, for readers of very many keys."""
        return self._rows_at(self.summary.sections[section])

    def bad_section(self, section: int, error: Exception) -> DamageError:
        """The error for invalid rows of a section."""
        return self._bad_index(self.summary.sections[section], error)

    def _records_at(self, place: Place) -> list[KeyRecord]:
        rows = self._rows_at(place)
        try:
            return [
                KeyRecord(db, key, kind, meta, at, tuple(Piece(*piece) for piece in pieces))
                for db, key, kind, meta, at, pieces in rows
            ]
        except (ValueError, TypeError) as error:
            raise self._bad_index(place, error) from None

    def _rows_at(self, place: Place) -> list[Any]:
        try:
            rows: list[Any] = unpack_footer_part(self._section_at(place))
        except (ValueError, TypeError) as error:
            raise self._bad_index(place, error) from None
        return rows

    def _section_at(self, place: Place) -> bytes:
        seed = self.summary.header.seed
        return self._unpack(place.offset, self._read(place.offset, place.length), place, seed)

    def small_streams(self, section: int) -> SmallLoader | None:
        """A loader for a section of small streams and their chunk; None for another section."""
        place = self.summary.sections[section]
        data = self._section_at(place)
        if not is_small_section(data):
            return None
        try:
            number = chunk_of(data)
        except ValueError as error:
            raise self._bad_index(place, error) from None
        if number is not None and number >= len(self.summary.chunks):
            raise self._damage(place.offset, f"the index names a chunk {number}")
        return SmallLoader(data, b"" if number is None else self.chunk(number))

    def bad_small_block(self, small: SmallLoader, error: BlockError) -> DamageError:
        """The error for an invalid block of a small stream."""
        assert small.chunk_number is not None
        return self._bad_piece(small.chunk_number, error.at, str(error))

    def _bad_index(self, place: Place, error: Exception) -> DamageError:
        return self._damage(place.offset, f"the index cannot be read ({error})")

    def chunk(self, number: int) -> memoryview:
        """A chunk, unpacked. The last one is cached, because neighbouring keys share chunks."""
        if self._unpacked[0] != number:
            place = self.summary.chunks[number]
            self._unpacked = (number, self._read_chunk(number, place, self.summary.header))
        return self._unpacked[1]

    def chunk_behind_header(self, number: int) -> memoryview:
        """A chunk with a damaged header, unpacked: the index has its checksum, too."""
        place = self.summary.chunks[number]
        data = memoryview(self._read(place.offset + CHUNK_HEADER_SIZE, place.length))
        unpacked = self._unpack_chunk(place.offset, data, place, self.summary.header)
        self._unpacked = (number, unpacked)
        return unpacked

    def left_of_chunk(self, number: int) -> memoryview:
        """The part of a chunk with a wrong checksum that can be unpacked; it may be wrong."""
        place = self.summary.chunks[number]
        try:
            data = self._file.read_at(place.offset + CHUNK_HEADER_SIZE, place.length)
        except OSError:
            return memoryview(b"")
        if not self.summary.header.is_packed(data):
            return memoryview(data)
        unpacking = zstd().ZstdDecompressor().decompressobj()
        parts: list[bytes] = []
        for at in range(0, len(data), _SALVAGE_STEP_BYTES):
            try:
                parts.append(unpacking.decompress(data[at : at + _SALVAGE_STEP_BYTES]))
            except zstd().ZstdError:
                break
            if unpacking.eof:
                break
        return memoryview(b"".join(parts))

    def meta(self, record: KeyRecord) -> dict[str, Any]:
        if record.meta_place is None:
            return record.meta or {}
        chunk, offset, length, *crc = record.meta_place
        data = self._slice(chunk, offset, length)
        if crc and crc32(data) != crc[0]:
            raise self._bad_piece(chunk, offset, "the checksum of a key's metadata does not match")
        try:
            meta: dict[str, Any] = msgpack.unpackb(data)
        except ValueError as error:
            raise self._bad_piece(chunk, offset, str(error)) from None
        return meta

    def blocks(self, record: KeyRecord, block_type: BlockType[B]) -> Iterator[B]:
        """The blocks of a key in order."""
        for piece in record.pieces:
            for run in self.piece_runs(piece, block_type):
                yield from run

    def piece_runs(self, piece: Piece, block_type: BlockType[B]) -> Iterator[list[B]]:
        """The blocks of one piece of a key in order, in runs. DamageError after the last run when
        the blocks do not agree with the index."""
        data = self._slice(piece.chunk, piece.offset, piece.length)
        at = live = done = 0
        first_id = last_id = (0, 0)
        while done < piece.blocks:
            try:
                run, at = block_type.unpack(data, at, min(RUN_BLOCKS_MAX, piece.blocks - done))
            except BlockError as error:
                place = piece.offset + error.at
                raise self._bad_piece(piece.chunk, place, str(error)) from None
            yield run
            live += sum(block.live for block in run)
            first_id = first_id if done else run[0].first_id
            last_id = run[-1].last_id
            done += len(run)
        if (at, live, *first_id, *last_id) != (piece.length, piece.entries, *piece[5:]):
            raise self._bad_piece(piece.chunk, piece.offset, "the index says otherwise of a piece")

    def check(self) -> None:
        """Read every part of the file once; DamageError at the first fault."""
        self.check_copies()
        for number, place in enumerate(self.summary.chunks):
            self._read_chunk(number, place, self.summary.header)
        for section in range(len(self.summary.sections)):
            self.records(section)

    def _slice(self, chunk: int, offset: int, length: int) -> memoryview:
        if not 0 <= chunk < len(self.summary.chunks):
            raise self._damage(self._file.size, f"the index names a chunk {chunk}")
        data = self.chunk(chunk)[offset : offset + length]
        if len(data) != length:
            raise self._bad_piece(chunk, offset, "a piece passes the chunk's end")
        return data

    def _bad_piece(self, chunk: int, offset: int, reason: str) -> DamageError:
        at = self.summary.chunks[chunk].offset
        return self._damage(at, f"in chunk {chunk} at unpacked byte {offset}: {reason}")


class ReplacedError(DataError):
    """The file is not the snapshot whose index was read."""


class ChunkReader(SnapshotEnds):
    """Reads single chunks of a snapshot whose index was read before, possibly by another process.

    `uuid` identifies that snapshot; ReplacedError when the file is now another one.
    """

    def __init__(self, file: Input, uuid: bytes) -> None:
        super().__init__(file)
        self._header = self.read_header()
        if self._header.uuid != uuid:
            raise ReplacedError(f"{self.name} is no longer the snapshot whose index was read")

    def chunk(self, number: int, place: Place) -> memoryview:
        """The chunk with this number and place in the index, unpacked."""
        return self._read_chunk(number, place, self._header)
