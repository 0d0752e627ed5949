"""Bytes of the server as text to print."""

from __future__ import annotations

from millstream.errors import readable


def text(word: object) -> str:
    """Bytes of the server as a text; different bytes are different texts."""
    assert isinstance(word, bytes)
    return readable(word)


def quoted(word: bytes) -> str:
    """Bytes in double quotes, in which a backslash begins an escape; UTF-8 is shown as it is."""
    return f'"{"".join(map(_escaped, word.decode("utf-8", "surrogateescape")))}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    if letter.isprintable():
        return letter
    if "\udc80" <= letter <= "\udcff":  # a byte that is not UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()
