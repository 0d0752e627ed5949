"""Random changes of a file: bytes, lengths, missing and repeated parts, parts of other files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

_CHANGES_MAX = 4
_PART_MAX_BYTES = 200
_NUMBERS = (0, 1, 63, 64, 2**14, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**64 - 1)


def changed(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """A file with a few changes."""
    made = bytearray(data)
    for _ in range(random.randint(1, _CHANGES_MAX)):
        if not made:
            return b""
        at = random.randrange(len(made))
        size = random.randint(1, min(_PART_MAX_BYTES, len(made) - at))
        kind = random.randrange(8)
        if kind == 0:
            made[at] = random.randrange(256)
        elif kind == 1:
            made[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            del made[at : at + size]
        elif kind == 3:
            made[at:at] = made[at : at + size]
        elif kind == 4:
            made[at : at + 1] = _length(random)
        elif kind == 5:
            other = random.choice(others)
            start = random.randrange(len(other))
            made[at : at + random.randrange(2) * size] = other[start : start + size]
        elif kind == 6:
            del made[at:]
        else:
            made[at : at + 8] = struct.pack("<Q", random.choice(_NUMBERS))[: len(made) - at]
    return bytes(made)


def _length(random: Random) -> bytes:
    """A length as an RDB has it, or as a request."""
    number = random.choice(_NUMBERS)
    if random.randrange(4) == 0:
        return b"%d\r\n" % number
    return struct.pack(">BQ", 0x81, number) if number >= 2**32 else struct.pack(">BI", 0x80, number)
