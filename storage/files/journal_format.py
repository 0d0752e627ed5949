"""The encoding of a journal file: header and frames. docs/formats.md describes every byte."""

import struct
from collections.abc import Iterator

from millstream.errors import DamageError, FormatError
from millstream.storage.blocks.checksum import crc32
from millstream.storage.files.disk import File

MAGIC = b"MILLJRNL"
VERSION = 3
_RESP_VERSION = 2  # the same; earlier versions of the server recorded all effects as RESP
HEADER_SIZE = 128
FRAME_SIZE = 24
ID_SIZE = 16
SALT_SIZE = 8
FRAME = struct.Struct("<IIQI")
U32_MAX = 2**32 - 1
READ_SIZE = 1 << 20

_HEADER = struct.Struct("<8sIIQI")  # the same in every version, followed by a crc32
_IDENTITY = struct.Struct("<16s8s4x")
_SALTED_FRAME = struct.Struct("<IIQII")  # the same, followed by the checksum of these 20 bytes
_SALT = struct.Struct("<II")
_CHECKED = struct.Struct("<QI")  # version 1: the part of a frame's header that its crc32 covers
_COMMON_SIZE = 32
_COPY_SIZE = 64  # the file has two copies of the header


class FrameFormat:
    """The encoding of frames in one file: version 3 or 2, with checksums specific to the file.

    The seeds of the checksums come from the file's salt; the seed for a frame's header also depends
    on its offset. Bytes of another file, of a client, or of another offset in this file are
    therefore never a valid frame.
    """

    header_size = HEADER_SIZE
    frame_size = FRAME_SIZE
    is_salted = True

    def __init__(self, salt: bytes, directory: bytes = bytes(ID_SIZE)) -> None:
        self.salt = salt
        self.directory = directory
        self.head_seed, self.payload_seed = _SALT.unpack(salt)

    def encode(self, at: int, seq: int, unsynced: int, payload: bytes) -> bytes:
        """The frame for offset `at`; `unsynced` is the number of frames before it that may not be
        on the disk yet."""
        return self.encode_head(at, seq, unsynced, payload) + payload

    def encode_head(self, at: int, seq: int, unsynced: int, payload: bytes) -> bytes:
        """The part of the frame before the payload."""
        head = FRAME.pack(len(payload), crc32(payload, self.payload_seed), seq, unsynced)
        crc = crc32(head, (self.head_seed + at) & U32_MAX)
        return head + crc.to_bytes(4, "little")

    def head_fits(self, head: bytes | memoryview, at: int) -> bool:
        """True if these bytes are the header of a frame at offset `at`."""
        crc = crc32(head[:20], (self.head_seed + at) & U32_MAX)
        return crc == int.from_bytes(head[20:24], "little")

    def payload_end(self, file: File, offset: int, due: int) -> int | None:
        """The end of the damaged payload of frame `due` at `offset`. None: the frame's header is
        damaged too, or does not contain the length."""
        head = file.read_at(offset, FRAME_SIZE)
        if len(head) < FRAME_SIZE or not self.head_fits(head, offset):
            return None
        length, _, seq, _ = FRAME.unpack_from(head)
        return offset + FRAME_SIZE + int(length) if seq == due else None

    def only_length_is_wrong(self, file: File, offset: int, head: bytes) -> bool:
        """True if the header of a frame at `offset` becomes valid when its length is replaced by
        the size of the rest of the file."""
        length = ((file.size - offset - FRAME_SIZE) & U32_MAX).to_bytes(4, "little")
        return length != head[:4] and self.head_fits(length + head[4:], offset)

    def proves(self, file: File, offset: int) -> bool:
        """True if a valid frame at `offset`, found by a search after a damaged one, was written as
        a frame: bytes of a client cannot imitate it."""
        return True


class OldFormat(FrameFormat):
    """Version 1: no ID, no salt, one checksum."""

    header_size = 32
    frame_size = 20
    is_salted = False

    def __init__(self) -> None:
        super().__init__(bytes(SALT_SIZE), b"")

    def encode_head(self, at: int, seq: int, unsynced: int, payload: bytes) -> bytes:
        crc = crc32(payload, crc32(_CHECKED.pack(seq, unsynced)))
        return FRAME.pack(len(payload), crc, seq, unsynced)

    def head_fits(self, head: bytes | memoryview, at: int) -> bool:
        return True

    def payload_end(self, file: File, offset: int, due: int) -> int | None:
        return None

    def only_length_is_wrong(self, file: File, offset: int, head: bytes) -> bool:
        found = 0
        for position in range(offset + 8, file.size, READ_SIZE):
            found = crc32(file.read_at(position, READ_SIZE), found)
        return found == int(FRAME.unpack_from(head)[1])

    def proves(self, file: File, offset: int) -> bool:
        """A client's value can imitate a frame, but frames do not follow it up to the end of the
        file."""
        end = offset
        for at, _, _, payload in sound_frames(file, self, offset):
            end = at + self.frame_size + len(payload)
        return end == file.size


OLD_FORMAT = OldFormat()


class Head:
    """A file's header. `first_seq` 0: the first frame was not known when the file was created.
    `is_current`: this version of the server writes such files."""

    def __init__(
        self,
        format: FrameFormat,
        first_seq: int,
        is_current: bool = False,
    ) -> None:
        self.format = format
        self.first_seq = first_seq
        self.is_current = is_current


def encode_header(directory: bytes, salt: bytes) -> bytes:
    """The first bytes of a file. Its first frame is not known when it is created."""
    common = _HEADER.pack(MAGIC, VERSION, 0, 0, 0)
    copy = common + crc32(common).to_bytes(4, "little") + _IDENTITY.pack(directory, salt)
    copy += crc32(copy).to_bytes(4, "little")
    return copy * 2


def read_head(file: File) -> Head:
    """A journal's header, with every byte checked. DamageError, or FormatError for another
    version."""
    head = file.read_at(0, HEADER_SIZE)
    if len(head) < _COMMON_SIZE:
        raise damage_at(file, 0, f"it has {len(head)} of {HEADER_SIZE} bytes of its header")
    if int.from_bytes(head[28:32], "little") != crc32(head[:28]):
        raise damage_at(file, 0, "the header cannot be read")
    magic, version, _, first_seq, _ = _HEADER.unpack_from(head)
    if magic != MAGIC or version not in (1, _RESP_VERSION, VERSION):
        raise FormatError(f"{file.name} has format {version}, which this version does not know")
    if version == 1:
        return Head(OLD_FORMAT, first_seq)
    if len(head) < HEADER_SIZE:
        raise damage_at(file, 0, f"it has {len(head)} of {HEADER_SIZE} bytes of its header")
    found = _parse_copy(head[:_COPY_SIZE])
    if found is None or head[:_COPY_SIZE] != head[_COPY_SIZE:]:
        raise damage_at(file, 0, "the header cannot be read")
    return found


def readable_head(file: File) -> Head:
    """The header of a file that may be damaged, from either copy. A file without a valid header is
    read as version 1, whose frames contain all information of its header."""
    head = file.read_at(0, HEADER_SIZE)
    found = _parse_copy(head[:_COPY_SIZE]) or _parse_copy(head[_COPY_SIZE:])
    return found or Head(OLD_FORMAT, 0)


def readable_owner(file: File) -> bytes | None:
    """The ID of the directory that a file belongs to; the file may be damaged. b"" for version 1,
    which had no ID. None: unknown, or a later version."""
    form = readable_head(file).format
    return form.directory if form.is_salted or _is_old(file) else None


def _is_old(file: File) -> bool:
    """True if a file, which may be damaged, has version 1 according to its header or its frames."""
    try:
        return not read_head(file).format.is_salted
    except (DamageError, FormatError):
        return next(sound_frames(file, OLD_FORMAT, OLD_FORMAT.header_size), None) is not None


def _parse_copy(copy: bytes) -> Head | None:
    if len(copy) < _COPY_SIZE or int.from_bytes(copy[60:], "little") != crc32(copy[:60]):
        return None
    magic, version, _, first_seq, _ = _HEADER.unpack_from(copy)
    if magic != MAGIC or version not in (_RESP_VERSION, VERSION):
        return None
    directory, salt = _IDENTITY.unpack_from(copy, _COMMON_SIZE)
    return Head(FrameFormat(salt, directory), first_seq, version == VERSION)


def sound_frames(
    file: File, form: FrameFormat, offset: int
) -> Iterator[tuple[int, int, int, bytes]]:
    """(offset, sequence number, unsynced, payload) of each frame up to the first invalid one or the
    end of the file.

    For small frames a start spends most of its time here. Therefore the loop calls no function of
    this module and contains a copy of `head_fits`. Short slices of bytes cost less than slices of a
    memoryview.
    """
    buffer = b""
    at = buffered = 0
    head_size, payload_seed, is_salted = form.frame_size, form.payload_seed, form.is_salted
    head_seed = form.head_seed + offset  # for a header at the buffer's first byte
    crc, unpack, unpack_old = crc32, _SALTED_FRAME.unpack_from, FRAME.unpack_from
    file_size = file.size
    while True:
        if buffered - at < head_size:
            offset, at = offset + at, 0
            # After a crash the file may be shorter than a header, with nothing left to read.
            buffer = file.read_at(offset, max(0, min(READ_SIZE, file_size - offset)))
            buffered, head_seed = len(buffer), form.head_seed + offset
            if buffered < head_size:
                return
        if is_salted:
            length, payload_crc, seq, unsynced, head_crc = unpack(buffer, at)
            if crc(buffer[at : at + 20], (head_seed + at) & U32_MAX) != head_crc:
                return
        else:
            length, payload_crc, seq, unsynced = unpack_old(buffer, at)
            payload_seed = crc(buffer[at + 8 : at + 20])
        start = at + head_size
        end = start + length
        if end > buffered:
            if offset + end > file_size:
                return
            offset, at, start, end = offset + at, 0, head_size, head_size + length
            buffer = file.read_at(offset, min(max(end, READ_SIZE), file_size - offset))
            buffered, head_seed = len(buffer), form.head_seed + offset
            if buffered < end:
                return
        payload = buffer[start:end]
        if length == 0 or crc(payload, payload_seed) != payload_crc:
            return
        yield offset + at, seq, unsynced, payload
        at = end


def damage_at(file: File, offset: int, reason: str) -> DamageError:
    return DamageError(file.name, offset, reason)
