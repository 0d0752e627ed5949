"""The encoding of a snapshot file: header, chunks, index, footer and trailer.

Blocks have the same form in the file as in memory. Streams share chunks, which makes small streams
cheap to store and to scan. The index is a footer, so that the file can be written in one pass.
docs/formats.md has the byte layout.
"""

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

import msgpack  # type: ignore[import-untyped]

from millstream.storage.blocks.checksum import crc32
from millstream.storage.capture.small_rows import is_small_section, small_rows
from millstream.storage.files.disk import Bytes

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
# The version of snapshots with groups that have rules of delivery.
RULES_VERSION = 5
# The version of snapshots of a cluster node with slots that move.
SLOTS_VERSION = 6
KNOWN_VERSIONS = (1, VERSION, ORDERING_VERSION, SMALL_VERSION, RULES_VERSION, SLOTS_VERSION)
HEADER_SIZE = 96
OLD_HEADER_SIZE = 64
TRAILER_SIZE = 40
BASE_SALT_SIZE = 4
# The data in the last bytes of a file is also stored elsewhere in the file, because the end of a
# file is lost most easily.
TAIL_SIZE = PADDING_MAX = 4096
CHUNK_HEADER_SIZE = 16
RUN_BLOCKS_MAX = 256  # written or read in one step: less than a millisecond's work

HEADER = struct.Struct("<8sII16sQQ4s8x")  # the same in every version, followed by a crc32
IDENTITY = struct.Struct("<16s12x")
COMPRESSED = 1  # flag: chunks are zstd frames; else their bytes are not compressed
TRAILER = struct.Struct("<QQIII")
CHUNK = struct.Struct("<4sIII")
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


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
        """True if the file has the ID of its directory and a salt: from version 2 on."""
        return self.version >= VERSION

    @property
    def seed(self) -> int:
        """The seed of the checksums of chunks and index."""
        return int.from_bytes(self.salt, "little")

    def is_packed(self, chunk: Bytes) -> bool:
        """True if the stored bytes of a chunk are a zstd frame. From version 4 on, some chunks may
        be; neither a block nor metadata begins like a zstd frame."""
        if self.version >= SMALL_VERSION:
            return bytes(chunk[: len(ZSTD_MAGIC)]) == ZSTD_MAGIC
        return bool(self.flags & COMPRESSED)


def encode_header(header: Header) -> bytes:
    """The first bytes of a file."""
    data = HEADER.pack(
        MAGIC,
        header.version,
        header.flags,
        header.uuid,
        header.created_ms,
        header.seq,
        header.salt,
    )
    data += crc32(data).to_bytes(4, "little") + IDENTITY.pack(header.directory)
    return data + crc32(data).to_bytes(4, "little")


def encode_trailer(
    footer_offset: int, summary_offset: int, packed: bytes, raw_length: int
) -> bytes:
    """The last bytes of a file whose packed summary begins at `summary_offset`."""
    footer_length = summary_offset + len(packed) - footer_offset
    tail = TRAILER.pack(footer_offset, footer_length, len(packed), raw_length, crc32(packed))
    return tail + crc32(tail).to_bytes(4, "little") + END_MAGIC


class Summary(NamedTuple):
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


def zstd() -> ModuleType:
    """zstandard, loaded for the first snapshot that is read or written. A start without one takes a
    fiftieth less time."""
    import zstandard

    return zstandard


def unpack_footer_part(raw: bytes) -> Any:
    """An unpacked part of the footer: the rows of a section as a list, or the summary's map.
    ValueError when it is neither."""
    return small_rows(raw) if is_small_section(raw) else msgpack.unpackb(raw)


def parse_summary(fields: dict[str, Any]) -> Summary:
    """A summary from the footer's map; KeyError, TypeError or ValueError when it is invalid."""
    identity = fields["uuid"], fields["created_ms"], fields["seq"]
    header = Header(*identity, 1, COMPRESSED, bytes(BASE_SALT_SIZE), b"")
    if "directory" in fields:
        flags = COMPRESSED if fields["compressed"] else 0
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
    _, length, raw_length, crc = CHUNK.unpack_from(data)
    return Place(offset, length, raw_length, crc, 0)
