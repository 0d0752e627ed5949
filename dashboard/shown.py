"""Values as text: bytes that may be anything, sizes, times, IDs.

Templates escape what they print; here bytes become text that is safe to read. Bytes that are not
UTF-8 are shown as hexadecimal digits, and long values are cut.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import quote

VALUE_MAX = 400  # characters of a value on a page
NAME_MAX = 120
HEX_BYTES = 64
# Control characters, and those that change the direction of text or are invisible.
HIDDEN = {*range(32), *range(0x7F, 0xA0), 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F),
          *range(0x2060, 0x2070), 0xFEFF}  # fmt: skip
VISIBLE = {code: f"\\u{code:04x}" for code in HIDDEN} | {9: "\\t", 10: "\\n", 13: "\\r"}
BLANKS = re.compile(r"^\s+|\s+$|(?<=\s)\s+")
DAY_S = 86_400


def readable(raw: object, most: int = VALUE_MAX) -> str:
    """Bytes, or whatever a server sent, as a text of about `most` characters."""
    if not isinstance(raw, bytes):
        return "" if raw is None else str(raw)[:most]
    try:
        text = raw[: most * 4].decode("utf-8")
    except UnicodeDecodeError as problem:
        if len(raw) > most * 4 and problem.start > most * 4 - 4:
            text = raw[: problem.start].decode("utf-8")
        else:
            more = f" ... ({len(raw)} bytes)" if len(raw) > HEX_BYTES else ""
            return "0x" + raw[:HEX_BYTES].hex(" ") + more
    if len(text) > most or len(raw) > most * 4:
        return text[:most].translate(VISIBLE) + f" ... ({len(raw)} bytes)"
    return text.translate(VISIBLE)


def name(raw: object) -> str:
    """A name of a key, group or consumer. An empty one is visible, and so are spaces that a browser
    would leave out."""
    text = readable(raw, NAME_MAX) or "(empty)"
    return BLANKS.sub(lambda blanks: "".join(f"\\u{ord(c):04x}" for c in blanks[0]), text)


def in_url(raw: bytes) -> str:
    """Bytes as a part of a URL's query."""
    return quote(raw, safe="")


def count(number: object) -> str:
    return f"{number:,}" if isinstance(number, int) else "-"


def counted(number: int, one: str, more: str) -> str:
    """1 group, 2 groups"""
    return f"{count(number)} {one if number == 1 else more}"


def size(size_bytes: object) -> str:
    """1.5 MB"""
    if not isinstance(size_bytes, (int, float)):
        return "-"
    value, unit = float(size_bytes), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def duration(seconds: object) -> str:
    """3.2 s, 5 min, 2 h 10 min, 4 d 3 h"""
    if not isinstance(seconds, (int, float)):
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    if seconds < DAY_S:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{int(seconds // DAY_S)} d {minutes // 60 % 24} h"


def rate(per_s: object) -> str:
    if not isinstance(per_s, (int, float)):
        return "-"
    return f"{per_s:,.0f}/s" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}/s"


def id_ms(entry_id: object) -> int | None:
    """The milliseconds of an ID."""
    if not isinstance(entry_id, bytes):
        return None
    digits = entry_id.replace(b".", b"-").partition(b"-")[0]
    return int(digits) if digits.isdigit() else None


def moment(ms: object) -> datetime | None:
    """A time in UTC; None for one that is no time of our calendar."""
    if not isinstance(ms, int) or ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
