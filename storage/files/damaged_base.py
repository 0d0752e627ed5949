"""Opens a base with damage at its ends.

A snapshot contains most information twice: the places of chunks are in the index and can also be
found by walking from chunk to chunk; header and summary name the same moment. Therefore the ends of
a file can be restored from the rest of it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import DamageError
from millstream.storage.blocks.checksum import crc32
from millstream.storage.files.disk import File
from millstream.storage.files.snapshot_format import (
    CHUNK_HEADER_SIZE,
    CHUNK_MAGIC,
    COPY_MAGIC,
    PADDING_MAX,
    TAIL_SIZE,
    TRAILER_SIZE,
    ZSTD_MAGIC,
    Header,
    Place,
    Summary,
    parse_chunk_header,
    parse_copy_header,
    parse_summary,
    unpack_footer_part,
    zstd,
)
from millstream.storage.files.snapshot_reader import SnapshotEnds, SnapshotReader

_FRAME_STEP_BYTES = 64 << 10
_SEARCH_BYTES = 1 << 20
_PART_MAGIC = re.compile(b"|".join((CHUNK_MAGIC, COPY_MAGIC)))


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
        f"keys whose index was at offset {offset}, their number is unknown"
        for offset in parts.lost_copies
    ]
    if not whole:
        lost.append(f"keys after offset {parts.end}, if there were any: their number is unknown")
    return Opened(SnapshotReader(file, made), [damage], totals_are_known=False, lost=lost)


def _fits(summary: Summary, chunks: list[Place], sections: list[Place]) -> bool:
    """True if a summary without its checksum agrees with the rest of the file."""
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
    """True if another part, or zeros, follow at the end that this header states."""
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
        raw = zstd().ZstdDecompressor().decompress(data)
        return raw if isinstance(unpack_footer_part(raw), list) else None
    except (zstd().ZstdError, ValueError):
        return None


def _ends_with(file: File, parts: _Parts, sections: list[Place]) -> bool:
    """True if the copies match the sections of the footer, and the trailer confirms that there are
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
    if file.read_at(start, 4) != ZSTD_MAGIC:
        return None
    unpacking = zstd().ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    position, crc = start, seed
    while not unpacking.eof:
        data = file.read_at(position, _FRAME_STEP_BYTES)
        if not data:
            return None
        try:
            parts.append(unpacking.decompress(data))
        except zstd().ZstdError:
            return None
        used = len(data) - len(unpacking.unused_data)
        crc = crc32(data[:used], crc)
        position += used
    raw = b"".join(parts)
    return Place(start, position - start, len(raw), crc, 0), raw
