"""The snapshot file: a keyspace at one moment, as chunks of blocks followed by an index.

Blocks have the same form in the file as in memory. Streams share chunks, which makes small streams
cheap to store and to scan. The index is a footer, so that the file can be written in one pass. It
can be read without the chunks: a reader makes a plan from the index and then fetches single chunks.
Chunks and index are written in small steps, because the writer shares the process with an event
loop and must not hold the interpreter's lock for long. docs/formats.md has the byte layout.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import msgpack  # type: ignore[import-untyped]
import zstandard

from millstream.errors import BlockError, DamageError, DataError, FormatError
from millstream.storage.blocks.block import seal_forms
from millstream.storage.blocks.checksum import crc32
from millstream.storage.files.disk import Bytes
from millstream.storage.streams.held_form import SharedHeld
from millstream.storage.streams.idempotence import SharedWindow
from millstream.storage.streams.producers import SharedProducers
from millstream.storage.streams.shared_groups import SharedGroups
from millstream.storage.streams.small_loader import SmallLoader
from millstream.storage.streams.small_rows import (
    chunk_of,
    is_small_section,
    section_head,
    small_rows,
)
from millstream.storage.streams.small_streams import SmallStreams

MAGIC = b"MILLSNAP"
END_MAGIC = b"MILLSEND"
CHUNK_MAGIC = b"CHNK"
COPY_MAGIC = b"INDX"
VERSION = 2
# The version of snapshots with reservations, sealed or followed streams. Versions of millstream
# without these features must not read them.
ORDERING_VERSION = 3
# The version of snapshots with sections of small streams, which every new snapshot has.
SMALL_VERSION = 4
HEADER_SIZE = 96
OLD_HEADER_SIZE = 64
TRAILER_SIZE = 40
BASE_SALT_SIZE = 4
# The data in the last bytes of a file is also stored elsewhere in the file, because the end of a
# file is lost most easily.
TAIL_SIZE = PADDING_MAX = 4096
CHUNK_HEADER_SIZE = 16
CHUNK_ENTRIES_MAX = 32_768
CHUNK_BYTES_MAX = 4 << 20
# Smaller than other chunks: one damaged byte of a compressed chunk may lose the rest of it.
SMALL_CHUNK_BYTES = 256 << 10
RUN_BLOCKS_MAX = 256  # written or read in one step: less than a millisecond's work

_HEADER = struct.Struct("<8sII16sQQ4s8x")  # the same in every version, followed by a crc32
_IDENTITY = struct.Struct("<16s12x")
_COMPRESSED = 1  # flag: chunks are zstd frames; else their bytes are not compressed
_TRAILER = struct.Struct("<QQIII")
_CHUNK = struct.Struct("<4sIII")
_META_INLINE_MAX = 512
_MAYBE_LARGE = ("groups", "held", "idempotence", "producers")
_IN_PARTS = (
    SharedGroups,
    SharedHeld,
    SharedWindow,
    SharedProducers,
)  # packed by their own methods, in parts
_SECTION_BYTES = 256 << 10
_STEP_BYTES = 128 << 10  # input of one call of zstd, which runs without the interpreter's lock
_LEVEL = 1
_LEVEL_STORED = -(128 << 10)  # the fastest level: it searches for no matches
_SALVAGE_STEP_BYTES = 512
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SYNC_BYTES = 1 << 20  # a sync begins after each: keeps the last sync, and the journal's, short


class BlockLike(Protocol):
    """The methods of a block that the snapshot uses. A captured block is never modified."""

    @property
    def first_id(self) -> tuple[int, int]: ...
    @property
    def last_id(self) -> tuple[int, int]: ...
    @property
    def count(self) -> int: ...
    @property
    def live(self) -> int: ...
    @staticmethod
    def pack(
        blocks: Sequence[Any], bytes_max: int, entries_max: int, /
    ) -> tuple[bytes, int, int, int]:
        """The disk forms of the first blocks: (bytes, blocks, entries, live entries)."""


B = TypeVar("B", bound=BlockLike)


class BlockType(Protocol[B]):
    """The class of blocks: reads contiguous disk forms; BlockError has the offset of a fault."""

    def unpack(self, data: memoryview, at: int, count: int, /) -> tuple[list[B], int]: ...


class CapturedLike(Protocol):
    """One key at the moment of the snapshot."""

    @property
    def db(self) -> int: ...
    @property
    def key(self) -> bytes: ...
    @property
    def kind(self) -> str: ...
    @property
    def meta(self) -> dict[str, Any]: ...
    @property
    def blocks(self) -> Sequence[Any]: ...


class Output(Protocol):
    """The destination of a snapshot, for example an open `File`."""

    name: str
    size: int

    def write(self, data: Bytes) -> None: ...
    def begin_sync(self) -> None: ...


class Input(Protocol):
    """The source of a snapshot: an open `File`, or any object that reads a range."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes: ...


class Piece(NamedTuple):
    """A run of one stream's blocks inside one chunk; offset and length count unpacked bytes."""

    chunk: int
    offset: int
    length: int
    blocks: int
    entries: int
    min_ms: int
    min_seq: int
    max_ms: int
    max_seq: int


class Place(NamedTuple):
    """The place of a compressed part in the file; `items` counts a chunk's entries or a section's
    keys."""

    offset: int
    length: int
    raw_length: int
    crc: int
    items: int


class KeyRecord(NamedTuple):
    """One key in the index. Its metadata is `meta`, or is in a chunk at `meta_place`: chunk,
    offset, length and, from version 2 on, crc32."""

    db: int
    key: bytes
    kind: str
    meta: dict[str, Any] | None
    meta_place: tuple[int, ...] | None
    pieces: tuple[Piece, ...]


# ---------------------------------------------------------------------------------------- writing


class _Run:
    """The current piece: blocks of the current key in the current chunk."""

    def __init__(self, offset: int, block: BlockLike) -> None:
        self.offset = offset
        self.length = 0
        self.blocks = 0
        self.entries = 0
        self.first_id = block.first_id
        self.last_id = block.last_id


class SnapshotWriter:
    """Writes one snapshot: `add` every key, then `finish`. Any method may raise OSError.

    `directory` is the ID of the data directory, `salt` random bytes that seed the checksums of
    chunks and index. `compressed`: whether chunks are compressed, `small_compressed`: those
    of small streams. `pause` is called between small pieces of work, so
    that an event loop in the same process can run.
    """

    def __init__(
        self,
        file: Output,
        *,
        uuid: bytes,
        created_ms: int,
        seq: int,
        directory: bytes,
        salt: bytes,
        compressed: bool = True,
        small_compressed: bool = True,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._file = file
        self._pause = pause
        self._identity = {
            "uuid": uuid,
            "created_ms": created_ms,
            "seq": seq,
            "directory": directory,
            "salt": salt,
            "compressed": compressed,
            "version": SMALL_VERSION,
        }
        self._seed = int.from_bytes(salt, "little")
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL) if compressed else _Storing()
        self._small_compressor = (
            zstandard.ZstdCompressor(level=_LEVEL) if small_compressed else _Storing()
        )
        # A second compressor, because the state of the first one belongs to the open chunk.
        self._index_compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._chunks: list[Place] = []
        self._sections: list[tuple[Place, bytes]] = []
        self._copies: list[int] = []  # the beginning of each section's copy
        self._records: list[bytes] = []
        self._records_bytes = 0
        self._small = _SmallChunk()
        self._synced_size = 0
        self.keys = 0
        self.entries = 0
        flags = _COMPRESSED if compressed else 0
        header = Header(uuid, created_ms, seq, SMALL_VERSION, flags, salt, directory)
        file.write(encode_header(header))
        self._begin_chunk()

    def _add_small(self, batch: SmallStreams) -> None:
        """Write a batch of small streams, with others to one chunk and one section."""
        rows, forms = batch.take()
        self._pause()
        seal_forms(forms)
        self._small.add(rows, forms, batch)
        self.keys += batch.keys
        self.entries += batch.entries
        if self._small.is_full:
            self._end_small()
        self._pause()

    def _end_small(self) -> None:
        """Write the open chunk and section of small streams. A chunk of other streams ends before,
        so that the numbers of chunks follow their order."""
        small = self._small
        if not small.keys:
            return
        self._end_section()
        self._end_chunk()
        self._small = _SmallChunk()
        head = section_head(len(self._chunks) if small.raw_length else None)
        raw = head + b"".join(small.rows)
        self._add_section(raw, small.keys)
        self._write_copies()
        if not small.raw_length:
            return
        packing = self._small_compressor.compressobj()
        packed: list[bytes] = []
        for forms in small.forms:
            packed.append(packing.compress(forms))
            self._pause()
        packed.append(packing.flush())
        self._write_chunk(packed, small.raw_length, small.entries)

    def add(self, captured: CapturedLike | SmallStreams) -> None:
        """Write a key, its blocks to chunks and the rest to the index, or a batch of small
        streams."""
        if isinstance(captured, SmallStreams):
            self._add_small(captured)
            return
        meta = self._pack_meta(captured.meta)
        place: tuple[int, ...] | None = None
        length = sum(map(len, meta))
        if length > _META_INLINE_MAX:
            place = self._add_meta(meta, length)
            meta = [b"\xc0"]
        pieces = self._add_blocks(captured.blocks)
        packed = (
            b"\x96"  # an array of six; the metadata is already packed
            + msgpack.packb(captured.db)
            + msgpack.packb(captured.key)
            + msgpack.packb(captured.kind)
            + b"".join(meta)
            + msgpack.packb(place)
            + msgpack.packb(pieces)
        )
        self._records.append(packed)
        self._records_bytes += len(packed)
        self.keys += 1
        if self._records_bytes >= _SECTION_BYTES:
            self._end_section()
        self._pause()

    def finish(self, global_meta: dict[str, Any]) -> None:
        """Write the open chunks and sections, and the footer. The file is not synced yet."""
        self._end_small()
        self._end_section()
        self._write_copies()  # before the last chunk: far from the end, which may get lost
        self._end_chunk()
        self._pad()
        footer_offset = offset = self._file.size
        places = []
        for place, data in self._sections:
            self._file.write(data)
            places.append(place._replace(offset=offset))
            offset += len(data)
        summary = msgpack.packb(
            {
                **self._identity,
                "keys": self.keys,
                "entries": self.entries,
                "chunks": self._chunks,
                "sections": places,
                "copies": self._copies,
                "global": global_meta,
            }
        )
        packed = self._index_compressor.compress(summary)
        self._file.write(packed)
        start = self._file.size - len(packed)
        self._file.write(encode_trailer(footer_offset, start, packed, len(summary)))

    def _write_copies(self) -> None:
        """Write copies of the sections that have none yet, between the chunks."""
        for place, data in self._sections[len(self._copies) :]:
            self._copies.append(self._file.size)
            self._file.write(_CHUNK.pack(COPY_MAGIC, place.length, place.raw_length, place.crc))
            self._file.write(data)

    def _pad(self) -> None:
        """Keep the footer's copies, and the chunks, out of the file's last bytes."""
        known = sum(len(data) for _, data in self._sections) + TRAILER_SIZE
        if known < TAIL_SIZE:
            self._file.write(bytes(TAIL_SIZE - known))

    def _pack_meta(self, meta: dict[str, Any]) -> list[bytes]:
        """A key's metadata as msgpack, with large values in parts."""
        if not any(isinstance(meta.get(name), _IN_PARTS) for name in _MAYBE_LARGE):
            return [msgpack.packb(meta, default=bytes)]
        parts: list[bytes] = [msgpack.Packer().pack_map_header(len(meta))]
        for name, value in meta.items():
            parts.append(msgpack.packb(name))
            if not isinstance(value, _IN_PARTS):
                parts.append(msgpack.packb(value, default=bytes))
                continue
            for part in value.packed():
                parts.append(part)
                self._pause()
        return parts

    def _add_meta(self, meta: list[bytes], length: int) -> tuple[int, ...]:
        if self._raw and self._raw + length > CHUNK_BYTES_MAX:
            self._end_chunk()
        offset, crc = self._raw, 0
        for part in meta:
            crc = crc32(part, crc)
            self._put(part)
        return len(self._chunks), offset, length, crc

    def _add_blocks(self, blocks: Sequence[BlockLike]) -> list[Piece]:
        pieces: list[Piece] = []
        run: _Run | None = None
        at = 0
        while at < len(blocks):
            if self._chunk_count >= CHUNK_ENTRIES_MAX or self._raw >= CHUNK_BYTES_MAX:
                if run is not None:
                    pieces.append(self._end_run(run))
                    run = None
                self._end_chunk()
            following = blocks[at : at + RUN_BLOCKS_MAX]
            if run is None:
                run = _Run(self._raw, following[0])
            at += self._add_some(run, following)
            self._pause()
        if run is not None:
            pieces.append(self._end_run(run))
        return pieces

    def _add_some(self, run: _Run, blocks: Sequence[BlockLike]) -> int:
        """Write the first of these blocks; return their number."""
        data, taken, entries, live = blocks[0].pack(
            blocks,
            min(_STEP_BYTES, CHUNK_BYTES_MAX - self._raw),
            CHUNK_ENTRIES_MAX - self._chunk_count,
        )
        self._put(data)
        run.length += len(data)
        run.blocks += taken
        run.entries += live
        run.last_id = blocks[taken - 1].last_id
        self._chunk_count += entries
        return taken

    def _end_run(self, run: _Run) -> Piece:
        self.entries += run.entries
        self._chunk_entries += run.entries
        return Piece(
            len(self._chunks),
            run.offset,
            run.length,
            run.blocks,
            run.entries,
            *run.first_id,
            *run.last_id,
        )

    def _begin_chunk(self) -> None:
        self._packing = self._compressor.compressobj()
        self._packed: list[bytes] = []
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._raw = 0
        self._chunk_count = 0
        self._chunk_entries = 0

    def _put(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._raw += len(data)
        if self._waiting_bytes >= _STEP_BYTES:
            self._compress_waiting()

    def _compress_waiting(self) -> None:
        self._packed.append(self._packing.compress(b"".join(self._waiting)))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _end_chunk(self) -> None:
        if not self._raw:
            return
        self._compress_waiting()
        self._packed.append(self._packing.flush())
        self._write_copies()
        self._write_chunk(self._packed, self._raw, self._chunk_entries)
        self._begin_chunk()

    def _write_chunk(self, packed: Sequence[bytes], raw_length: int, entries: int) -> None:
        length, crc = 0, self._seed
        for part in packed:
            length += len(part)
            crc = crc32(part, crc)
        self._chunks.append(Place(self._file.size, length, raw_length, crc, entries))
        self._file.write(_CHUNK.pack(CHUNK_MAGIC, length, raw_length, crc))
        for part in packed:
            if part:
                self._file.write(part)
        if self._file.size - self._synced_size >= _SYNC_BYTES:
            self._file.begin_sync()
            self._synced_size = self._file.size

    def _end_section(self) -> None:
        if not self._records:
            return
        raw = msgpack.Packer().pack_array_header(len(self._records)) + b"".join(self._records)
        self._add_section(raw, len(self._records))
        self._records = []
        self._records_bytes = 0

    def _add_section(self, raw: bytes, keys: int) -> None:
        packed = self._index_compressor.compress(raw)
        crc = crc32(packed, self._seed)
        self._sections.append((Place(0, len(packed), len(raw), crc, keys), packed))


class _SmallChunk:
    """Batches of small streams that will be one chunk and one section."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.forms: list[bytes] = []
        self.raw_length = 0
        self.rows_length = 0
        self.count = 0
        self.entries = 0
        self.keys = 0

    def add(self, rows: bytes, forms: bytes, batch: SmallStreams) -> None:
        self.rows.append(rows)
        self.forms.append(forms)
        self.raw_length += len(forms)
        self.rows_length += len(rows)
        self.count += batch.count
        self.entries += batch.entries
        self.keys += batch.keys

    @property
    def is_full(self) -> bool:
        return (
            self.raw_length >= SMALL_CHUNK_BYTES
            or self.rows_length >= SMALL_CHUNK_BYTES
            or self.count >= CHUNK_ENTRIES_MAX
        )


class _Storing:
    """A compressor that does not change the bytes."""

    def compressobj(self) -> "_Storing":
        return self

    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


# ---------------------------------------------------------------------------------------- reading


class Header(NamedTuple):
    """The header of a file. `directory` is b"" in version 1, which had no ID and no salt."""

    uuid: bytes
    created_ms: int
    seq: int
    version: int
    flags: int
    salt: bytes
    directory: bytes

    @property
    def size(self) -> int:
        return HEADER_SIZE if self.has_identity else OLD_HEADER_SIZE

    @property
    def has_identity(self) -> bool:
        """Whether the file has the ID of its directory and a salt: from version 2 on."""
        return self.version >= VERSION

    @property
    def seed(self) -> int:
        """The seed of the checksums of chunks and index."""
        return int.from_bytes(self.salt, "little")

    def is_packed(self, chunk: Bytes) -> bool:
        """Whether the stored bytes of a chunk are a zstd frame. From version 4 on, some chunks may
        be; neither a block nor metadata begins like a zstd frame."""
        if self.version >= SMALL_VERSION:
            return bytes(chunk[: len(_ZSTD_MAGIC)]) == _ZSTD_MAGIC
        return bool(self.flags & _COMPRESSED)


def encode_header(header: Header) -> bytes:
    """The first bytes of a file."""
    data = _HEADER.pack(
        MAGIC,
        header.version,
        header.flags,
        header.uuid,
        header.created_ms,
        header.seq,
        header.salt,
    )
    data += crc32(data).to_bytes(4, "little") + _IDENTITY.pack(header.directory)
    return data + crc32(data).to_bytes(4, "little")


def encode_trailer(
    footer_offset: int, summary_offset: int, packed: bytes, raw_length: int
) -> bytes:
    """The last bytes of a file whose packed summary begins at `summary_offset`."""
    footer_length = summary_offset + len(packed) - footer_offset
    tail = _TRAILER.pack(footer_offset, footer_length, len(packed), raw_length, crc32(packed))
    return tail + crc32(tail).to_bytes(4, "little") + END_MAGIC


@dataclass(frozen=True)
class Summary:
    """The summary of the whole file at the end of the footer."""

    header: Header
    keys: int
    entries: int
    chunks: tuple[Place, ...]
    sections: tuple[Place, ...]
    copies: tuple[int, ...]
    global_meta: dict[str, Any]

    @property
    def uuid(self) -> bytes:
        return self.header.uuid

    @property
    def created_ms(self) -> int:
        return self.header.created_ms

    @property
    def seq(self) -> int:
        return self.header.seq

    @property
    def directory(self) -> bytes:
        return self.header.directory


class SnapshotEnds:
    """A snapshot's header and the end of its footer, each readable without the other.

    DamageError names the file and the offset of the fault.
    """

    def __init__(self, file: Input) -> None:
        self._file = file
        self.name = file.name
        self._decompressor = zstandard.ZstdDecompressor()  # making one takes 0.1 ms

    def read_header(self) -> Header:
        """The header, with every byte checked."""
        head = self._read(0, OLD_HEADER_SIZE)
        magic, version, flags, uuid, created_ms, seq, salt = _HEADER.unpack_from(head)
        if magic != MAGIC or int.from_bytes(head[60:], "little") != crc32(head[:60]):
            raise self._damage(0, "the header is not that of a snapshot")
        if version not in (1, VERSION, ORDERING_VERSION, SMALL_VERSION) or flags & ~_COMPRESSED:
            raise FormatError(f"{self.name} has format {version}, which this version does not know")
        if version == 1:
            return Header(uuid, created_ms, seq, version, _COMPRESSED, bytes(BASE_SALT_SIZE), b"")
        head = self._read(0, HEADER_SIZE)
        if int.from_bytes(head[-4:], "little") != crc32(head[:-4]):
            raise self._damage(0, "the header is not that of a snapshot")
        (directory,) = _IDENTITY.unpack_from(head, OLD_HEADER_SIZE)
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
        """Where the summary is, what it says, and the footer's offset."""
        start = self._file.size - TRAILER_SIZE
        tail = self._read(start, TRAILER_SIZE)
        if tail[32:] != END_MAGIC or int.from_bytes(tail[28:32], "little") != crc32(tail[:28]):
            raise self._damage(start, "the end is not that of a finished snapshot")
        offset, length, packed_length, raw_length, crc = _TRAILER.unpack_from(tail)
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
        if _CHUNK.unpack_from(data) != expected:
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
            raise self._damage(offset, "the checksum does not fit")

    def _unpack(self, offset: int, data: Bytes, place: Place, seed: int) -> bytes:
        self._check_crc(offset, data, place, seed)
        try:
            raw = self._decompressor.decompress(data, max_output_size=place.raw_length)
        except zstandard.ZstdError as error:
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
        """`summary`: a summary reconstructed by storage/files/recovery if the file's own is
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
            if _CHUNK.unpack_from(data) != expected:
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
        """What loads a section of small streams and their chunk; None for another section."""
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
        unpacking = zstandard.ZstdDecompressor().decompressobj()
        parts: list[bytes] = []
        for at in range(0, len(data), _SALVAGE_STEP_BYTES):
            try:
                parts.append(unpacking.decompress(data[at : at + _SALVAGE_STEP_BYTES]))
            except zstandard.ZstdError:
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
            raise self._bad_piece(chunk, offset, "the checksum of a key's metadata does not fit")
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


def unpack_footer_part(raw: bytes) -> Any:
    """An unpacked part of the footer: the rows of a section as a list, or the summary's map.
    ValueError when it is neither."""
    return small_rows(raw) if is_small_section(raw) else msgpack.unpackb(raw)


def parse_summary(fields: dict[str, Any]) -> Summary:
    """A summary from the footer's map; KeyError, TypeError or ValueError when it is invalid."""
    identity = fields["uuid"], fields["created_ms"], fields["seq"]
    header = Header(*identity, 1, _COMPRESSED, bytes(BASE_SALT_SIZE), b"")
    if "directory" in fields:
        flags = _COMPRESSED if fields["compressed"] else 0
        version = fields.get("version", VERSION)
        header = Header(*identity, version, flags, fields["salt"], fields["directory"])
    return Summary(
        header=header,
        keys=fields["keys"],
        entries=fields["entries"],
        chunks=tuple(Place(*row) for row in fields["chunks"]),
        sections=tuple(Place(*row) for row in fields["sections"]),
        copies=tuple(fields.get("copies", ())),
        global_meta=fields["global"],
    )


def parse_chunk_header(data: bytes, offset: int) -> Place | None:
    """The place of the chunk with this header at this offset; None when it is not a chunk
    header."""
    return _parse_part(data, offset, CHUNK_MAGIC)


def parse_copy_header(data: bytes, offset: int) -> Place | None:
    """Like `parse_chunk_header`, for a copy of a section."""
    return _parse_part(data, offset, COPY_MAGIC)


def _parse_part(data: bytes, offset: int, magic: bytes) -> Place | None:
    if len(data) < CHUNK_HEADER_SIZE or data[:4] != magic:
        return None
    _, length, raw_length, crc = _CHUNK.unpack_from(data)
    return Place(offset, length, raw_length, crc, 0)
