"""Writes a snapshot file in one pass.

Chunks and index are written in small steps, because the writer shares the process with an event
loop and must not hold the interpreter's lock for long.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgpack  # type: ignore[import-untyped]

from millstream.storage.blocks.block import seal_forms
from millstream.storage.blocks.checksum import crc32
from millstream.storage.capture.captured_keys import packed_meta
from millstream.storage.capture.small_rows import section_head
from millstream.storage.capture.small_streams import SmallStreams
from millstream.storage.files.disk import Bytes
from millstream.storage.files.snapshot_format import (
    CHUNK,
    CHUNK_MAGIC,
    COMPRESSED,
    COPY_MAGIC,
    RULES_VERSION,
    RUN_BLOCKS_MAX,
    SLOTS_VERSION,
    SMALL_VERSION,
    TAIL_SIZE,
    TRAILER_SIZE,
    BlockLike,
    Header,
    Piece,
    Place,
    encode_header,
    encode_trailer,
    zstd,
)

CHUNK_ENTRIES_MAX = 32_768
CHUNK_BYTES_MAX = 4 << 20
# Smaller than other chunks: one damaged byte of a compressed chunk may lose the rest of it.
SMALL_CHUNK_BYTES = 256 << 10

_META_INLINE_MAX = 512
_SECTION_BYTES = 256 << 10
_STEP_BYTES = 128 << 10  # input of one call of zstd, which runs without the interpreter's lock
_LEVEL = 1
_SYNC_BYTES = 1 << 20  # a sync begins after each: keeps the last sync, and the journal's, short


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


class Identity(NamedTuple):
    """The identity of a snapshot: `seq` is the last frame in it, `directory` the ID
    of the data directory, `salt` random bytes that seed the checksums of chunks and index."""

    uuid: bytes
    created_ms: int
    seq: int
    directory: bytes
    salt: bytes


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

    `compressed`: whether chunks are compressed, `small_compressed`: those of small streams.
    `with_rules`: some groups may have rules of delivery. `with_slots`: some slots move between the
    shards of a cluster, or have moved. `pause` is called between small pieces of
    work, so that an event loop in the same process can run.
    """

    def __init__(
        self,
        file: Output,
        identity: Identity,
        *,
        compressed: bool = True,
        small_compressed: bool = True,
        with_rules: bool = False,
        with_slots: bool = False,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._file = file
        self._pause = pause
        version = RULES_VERSION if with_rules else SMALL_VERSION
        if with_slots:
            version = SLOTS_VERSION
        self._identity = {**identity._asdict(), "compressed": compressed, "version": version}
        self._seed = int.from_bytes(identity.salt, "little")
        self._compressor = zstd().ZstdCompressor(level=_LEVEL) if compressed else _Storing()
        self._small_compressor = (
            zstd().ZstdCompressor(level=_LEVEL) if small_compressed else _Storing()
        )
        # A second compressor, because the state of the first one belongs to the open chunk.
        self._index_compressor = zstd().ZstdCompressor(level=_LEVEL)
        self._chunks: list[Place] = []
        self._sections: list[tuple[Place, bytes]] = []
        self._copies: list[int] = []  # the beginning of each section's copy
        self._records: list[bytes] = []
        self._records_bytes = 0
        self._small = _SmallChunk()
        self._pieces: list[Piece] = []  # of the current key
        self._run: _Run | None = None
        self._synced_size = 0
        self.keys = 0
        self.entries = 0
        flags = COMPRESSED if compressed else 0
        uuid, created_ms, seq, directory, salt = identity
        header = Header(uuid, created_ms, seq, version, flags, salt, directory)
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
        meta, place = self._place_meta(captured.meta)
        self.begin_key()
        self.add_blocks(captured.blocks)
        self._end_key(captured.db, captured.key, captured.kind, meta, place)

    def begin_key(self) -> None:
        """Begin a key whose metadata is known only after its blocks: `add_blocks` any number of
        times, then `end_key` or `drop_key`. No other key is added meanwhile."""
        self._pieces = []
        self._run = None

    def add_blocks(self, blocks: Sequence[BlockLike]) -> None:
        """Write the next blocks of the key."""
        at = 0
        while at < len(blocks):
            if self._chunk_count >= CHUNK_ENTRIES_MAX or self._raw >= CHUNK_BYTES_MAX:
                self._end_run()
                self._end_chunk()
            following = blocks[at : at + RUN_BLOCKS_MAX]
            if self._run is None:
                self._run = _Run(self._raw, following[0])
            at += self._add_some(self._run, following)
            self._pause()

    def end_key(self, db: int, key: bytes, kind: str, meta: dict[str, Any]) -> None:
        """Add the key whose blocks were written."""
        self._end_run()
        packed, place = self._place_meta(meta)
        self._end_key(db, key, kind, packed, place)

    def drop_key(self) -> None:
        """Add no key: the blocks that were written belong to nothing."""
        self._end_run()
        self.entries -= sum(piece.entries for piece in self._pieces)

    def _place_meta(self, meta: dict[str, Any]) -> tuple[bytes, tuple[int, ...] | None]:
        """A key's metadata for its record, or the place in a chunk to which it was written."""
        packed = self._pack_meta(meta)
        length = sum(map(len, packed))
        if length <= _META_INLINE_MAX:
            return b"".join(packed), None
        return b"\xc0", self._add_meta(packed, length)

    def _end_key(
        self, db: int, key: bytes, kind: str, meta: bytes, place: tuple[int, ...] | None
    ) -> None:
        self._end_run()
        packed = (
            b"\x96"  # an array of six; the metadata is already packed
            + msgpack.packb(db)
            + msgpack.packb(key)
            + msgpack.packb(kind)
            + meta
            + msgpack.packb(place)
            + msgpack.packb(self._pieces)
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
            self._file.write(CHUNK.pack(COPY_MAGIC, place.length, place.raw_length, place.crc))
            self._file.write(data)

    def _pad(self) -> None:
        """Keep the footer's copies, and the chunks, out of the file's last bytes."""
        known = sum(len(data) for _, data in self._sections) + TRAILER_SIZE
        if known < TAIL_SIZE:
            self._file.write(bytes(TAIL_SIZE - known))

    def _pack_meta(self, meta: dict[str, Any]) -> list[bytes]:
        """A key's metadata as msgpack, with large values in parts."""
        parts: list[bytes] = []
        for part in packed_meta(meta):
            if parts:
                self._pause()
            parts.append(part)
        return parts

    def _add_meta(self, meta: list[bytes], length: int) -> tuple[int, ...]:
        if self._raw and self._raw + length > CHUNK_BYTES_MAX:
            self._end_chunk()
        offset, crc = self._raw, 0
        for part in meta:
            crc = crc32(part, crc)
            self._put(part)
        return len(self._chunks), offset, length, crc

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

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        self.entries += run.entries
        self._chunk_entries += run.entries
        self._pieces.append(
            Piece(
                len(self._chunks),
                run.offset,
                run.length,
                run.blocks,
                run.entries,
                *run.first_id,
                *run.last_id,
            )
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
        self._file.write(CHUNK.pack(CHUNK_MAGIC, length, raw_length, crc))
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
