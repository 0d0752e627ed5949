"""The options of a request: each may be given once, and some exclude each other."""

from __future__ import annotations

from millstream.errors import SYNTAX, CommandError

QUOTED_BYTES_MAX = 40


def note_option(given: dict[bytes, bytes], word: bytes, kind: bytes = b"") -> None:
    """Note an option, in capitals. Refuse it if it was given before, or another one of its kind."""
    other = given.setdefault(kind or word, b"")
    if other == word:
        raise CommandError(f"{SYNTAX}, {word.decode()} is given twice")
    if other:
        raise CommandError(f"{SYNTAX}, {word.decode()} cannot be used with {other.decode()}")
    given[kind or word] = word


def quoted(word: bytes) -> str:
    """A client's word for an error text: printable, and only the beginning of a long one."""
    text = word[:QUOTED_BYTES_MAX].decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(word) <= QUOTED_BYTES_MAX else f"{shown}..."
