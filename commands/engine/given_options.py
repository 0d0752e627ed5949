"""The options of a request: each may be given once, and some exclude each other."""

from __future__ import annotations

from millstream.errors import SYNTAX, CommandError, printable

QUOTED_BYTES_MAX = 40


def note_option(given: dict[bytes, bytes], word: bytes, kind: bytes = b"") -> None:
    """Note an option, in capitals. Refuse it if it was given before, or another one of its kind."""
    other = given.get(kind or word)
    if other is not None:
        fault = "is given twice" if other == word else f"cannot be used with {other.decode()}"
        raise CommandError(f"{SYNTAX}, {word.decode()} {fault}")
    given[kind or word] = word


def quoted(word: bytes) -> str:
    """A client's word for an error text: printable, and only the beginning of a long one."""
    text = word[:QUOTED_BYTES_MAX].decode("utf-8", "backslashreplace")
    return printable(text) + ("..." if len(word) > QUOTED_BYTES_MAX else "")
