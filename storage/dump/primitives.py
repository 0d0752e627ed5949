"""Reads and writes the elements of the dump format: lengths, IDs, strings and times."""

from __future__ import annotations

import struct

from millstream.clock_offset import shifted_ms
from millstream.errors import PayloadError
from millstream.storage.dump.rdb_bytes import compress, decompress

EntryId = tuple[int, int]

STRING_MAX_BYTES = 512 << 20  # as in Redis
# Limit of the unpacked size of all compressed strings of a payload: 12 MB can expand to this much.
UNPACKED_MAX_BYTES = 1 << 30
# Longer strings are not compressed, because they are sent while they are read.
COMPRESSED_MAX_BYTES = 1 << 20
COMPRESSED_MIN_BYTES = 21
INTEGER_MAX_BYTES = 11

_INTEGERS = ((0, "<b"), (1, "<h"), (2, "<i"))
_LZF = 3


# ---------------------------------------------------------------- numbers


def canonical_int(text: bytes) -> int | None:
    """The number of a text; None if the text is not the canonical form of a number."""
    digits = text[1:] if text[:1] == b"-" else text
    if len(text) > 20 or not digits.isdigit():
        return None
    number = int(text)
    return number if b"%d" % number == text else None


# ---------------------------------------------------------------- reading


class Reader:
    """Reads the elements of a payload, one after another from `at` on."""

    def __init__(self, data: bytes, end: int, wall_ahead_ms: int) -> None:
        self.data = data
        self.wall_ahead_ms = wall_ahead_ms
        self.at = 0
        self.end = end
        self._unpacked_bytes = 0

    def take(self, size: int) -> bytes:
        if size > self.end - self.at:
            raise PayloadError("it is cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def unpack(self, form: str) -> int:
        number: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return number

    def moment_ms(self) -> int:
        """A unix time, converted to the steady clock; -1 for none."""
        wall_ms = self.unpack("<q")
        if wall_ms < -1:
            raise PayloadError("a time is before 1970")
        return shifted_ms(wall_ms, -self.wall_ahead_ms)

    def length(self) -> int:
        """A number of up to 64 bits."""
        head = self.byte()
        if head < 0x40:
            return head
        if head < 0x80:
            return (head & 0x3F) << 8 | self.byte()
        if head in (0x80, 0x81):
            return self.unpack(">I" if head == 0x80 else ">Q")
        raise PayloadError("a length is malformed")

    def id(self) -> EntryId:
        return self.length(), self.length()

    def string(self, most_bytes: int = STRING_MAX_BYTES) -> bytes:
        """A string: plain, encoded as a number, or compressed."""
        head = self.data[self.at] if self.at < self.end else 0
        if head < 0xC0:
            return self._within(self.take(self.length()), most_bytes)
        self.at += 1
        for encoding, form in _INTEGERS:
            if head == 0xC0 | encoding:
                return b"%d" % self.unpack(form)
        if head != 0xC0 | _LZF:
            raise PayloadError("a string's encoding is not known")
        packed_bytes, size_bytes = self.length(), self.length()
        self._unpacked_bytes += size_bytes
        if size_bytes > most_bytes:
            raise PayloadError("a compressed string is too long")
        if self._unpacked_bytes > UNPACKED_MAX_BYTES:
            raise PayloadError(f"it unpacks to more than {UNPACKED_MAX_BYTES} bytes")
        return decompress(self.take(packed_bytes), size_bytes)

    @staticmethod
    def _within(text: bytes, most_bytes: int) -> bytes:
        if len(text) > most_bytes:
            raise PayloadError("a string is too long")
        return text


# ---------------------------------------------------------------- writing


def length_bytes(number: int) -> bytes:
    if number < 0x40:
        return bytes((number,))
    if number < 0x4000:
        return struct.pack(">H", 0x4000 | number)
    return struct.pack(">BI", 0x80, number) if number < 2**32 else struct.pack(">BQ", 0x81, number)


def string_head(text: bytes) -> bytes:
    """The bytes before a plain string."""
    return length_bytes(len(text))


def string_bytes(text: bytes) -> bytes:
    """Encode a string: as a number if it is one of up to 32 bits, compressed if that is shorter."""
    if len(text) <= INTEGER_MAX_BYTES:
        number = _integer_bytes(text)
        if number is not None:
            return number
    elif COMPRESSED_MIN_BYTES <= len(text) <= COMPRESSED_MAX_BYTES:
        packed = compress(text)
        if packed is not None:
            return b"\xc3" + length_bytes(len(packed)) + length_bytes(len(text)) + packed
    return string_head(text) + text


def _integer_bytes(text: bytes) -> bytes | None:
    number = canonical_int(text)
    if number is None:
        return None
    for encoding, form in _INTEGERS:
        half = 1 << (8 * struct.calcsize(form) - 1)
        if -half <= number < half:
            return bytes((0xC0 | encoding,)) + struct.pack(form, number)
    return None


def id_bytes(entry_id: EntryId | list[int]) -> bytes:
    return length_bytes(entry_id[0]) + length_bytes(entry_id[1])
