"""LSNs: places in a source's WAL. They are numbers here, and texts as PostgreSQL writes them."""

from __future__ import annotations

import re

LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL writes it.

    >>> lsn_text(0x16B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def read_lsn(text: str) -> int:
    """
    >>> hex(read_lsn("16/B374D848"))
    '0x16b374d848'
    """
    found = LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an LSN")
    return (int(found[1], 16) << 32) | int(found[2], 16)
