"""Writes the elements of the dump format: lengths, IDs and strings. `reader` reads them."""

from __future__ import annotations

import struct

from millstream.storage.dump.rdb_bytes import compress

EntryId = tuple[int, int]

# Longer strings are not compressed, because they are sent while they are read.
COMPRESSED_MAX_BYTES = 1 << 20
COMPRESSED_MIN_BYTES = 21
INTEGER_MAX_BYTES = 11

_INTEGERS = ((0, "<b"), (1, "<h"), (2, "<i"))


# ---------------------------------------------------------------- numbers


def canonical_int(text: bytes) -> int | None:
    """The number of a text; None if the text is not the canonical form of a number."""
    digits = text[1:] if text[:1] == b"-" else text
    if len(text) > 20 or not digits.isdigit():
        return None
    number = int(text)
    return number if b"%d" % number == text else None


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
