"""Lines of words with quotes, as in Redis' sdssplitargs: inline requests, configuration files, the
rules of a selector; and the same notation for output (MONITOR, CONFIG REWRITE)."""

from __future__ import annotations

UNBALANCED = "unbalanced quotes"
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}
_SHOWN = {letter[0]: f"\\{escape.decode()}" for escape, letter in _ESCAPES.items()}
_SHOWN |= {ord('"'): '\\"', ord("\\"): "\\\\"}
_SPACES = b" \n\r\t\v\f\0"
_HEX = b"0123456789abcdefABCDEF"


def split_words(line: bytes) -> list[bytes]:
    """The words of a line; ValueError when a quote is not closed or a word follows it directly.

    Double quotes support ``\\xHH``, ``\\n`` and similar escapes, single quotes only ``\\'``.
    """
    words: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at] in _SPACES:
            at += 1
        if at >= len(line):
            return words
        word = bytearray()
        while at < len(line) and line[at] not in _SPACES:
            quote = line[at : at + 1]
            if quote in (b'"', b"'"):
                at = _quoted(line, at + 1, quote, word)
            else:
                word += quote
                at += 1
        words.append(bytes(word))


def _quoted(line: bytes, at: int, quote: bytes, word: bytearray) -> int:
    """Read up to the closing quote into `word`; return the position after it."""
    while at < len(line):
        letter = line[at : at + 1]
        if letter == quote:
            following = line[at + 1 : at + 2]
            if following and following not in _SPACES:
                break
            return at + 1
        if letter == b"\\" and at + 1 < len(line):
            following = line[at + 1 : at + 2]
            digits = line[at + 2 : at + 4]
            if quote == b"'":
                if following == b"'":
                    at += 1
                    letter = following
            elif following == b"x" and len(digits) == 2 and all(d in _HEX for d in digits):
                letter = bytes([int(digits, 16)])
                at += 3
            else:
                letter = _ESCAPES.get(following, following)
                at += 1
        word += letter
        at += 1
    raise ValueError(UNBALANCED)


def quoted(word: bytes) -> str:
    """A word in double quotes, in a form that `split_words` can parse."""
    shown = (
        _SHOWN.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")
        for byte in word
    )
    return f'"{"".join(shown)}"'
