"""Redis' glob patterns: ``*  ?  [a-z]  [^x]  \\x``, over bytes.

A pattern becomes a regular expression made so that it cannot run away: between two stars every
item matches exactly one byte, so the leftmost place of each piece is the right one to take and an
atomic group never goes back over it. ``a*a*a*b`` costs length x pattern, where plain backtracking
would take for ever on a hostile pattern. Making the expression takes long for a long pattern and
what is made is kept for the next call, so the length of a pattern is limited; without a wildcard it
is a plain comparison and may have any length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from millstream.errors import CommandError

PATTERN_MAX_BYTES = 1024
STARS_MAX = 1000
STARS_LOOK_BYTES = 1024**2  # in a longer pattern they are not counted
TOO_LONG = f"ERR a pattern with wildcards may have at most {PATTERN_MAX_BYTES} bytes"

_WILD = re.compile(rb"[*?\[\\]")
_CACHED_PATTERNS = 128


def _any_of(ranges: list[tuple[int, int]], negated: bool) -> bytes:
    """A regular expression for one byte in (or outside) these ranges, both ends included."""
    if not ranges:
        return b"." if negated else b"(?!)"
    inside = b"".join(b"\\x%02x-\\x%02x" % ends for ends in ranges)
    return (b"[^" if negated else b"[") + inside + b"]"


def _take_class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The class whose ``[`` is just before `at`: its expression and the index behind it."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    ranges: list[tuple[int, int]] = []
    while at < len(pattern) and pattern[at] != 0x5D:  # ]
        if pattern[at] == 0x5C and at + 1 < len(pattern):  # backslash
            at += 1
            low = high = pattern[at]
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            low, high = sorted((pattern[at], pattern[at + 2]))
            at += 2
        else:
            low = high = pattern[at]
        ranges.append((low, high))
        at += 1
    return _any_of(ranges, negated), at + 1


def _pieces(pattern: bytes) -> list[bytes]:
    """The expressions between the stars, each matching a fixed number of bytes."""
    pieces = [b""]
    at = 0
    while at < len(pattern):
        letter = pattern[at : at + 1]
        at += 1
        if letter == b"*":
            pieces.append(b"")
        elif letter == b"?":
            pieces[-1] += b"."
        elif letter == b"[":
            item, at = _take_class(pattern, at)
            pieces[-1] += item
        else:
            if letter == b"\\" and at < len(pattern):
                letter = pattern[at : at + 1]
                at += 1
            pieces[-1] += re.escape(letter)
    return pieces


@lru_cache(maxsize=_CACHED_PATTERNS)
def _expression(pattern: bytes, any_case: bool) -> re.Pattern[bytes]:
    first, *rest = _pieces(pattern)
    expression = first
    if rest:
        *middle, last = rest
        expression += b"".join(b"(?>.*?" + piece + b")" for piece in middle if piece)
        expression += b".*" + last
    return re.compile(expression, re.DOTALL | (re.IGNORECASE if any_case else 0))


def _has_too_many_stars(pattern: bytes) -> bool:
    if pattern.count(b"*") <= STARS_MAX or len(pattern) > STARS_LOOK_BYTES:
        return False
    return sum(map(bool, _pieces(pattern)[1:])) > STARS_MAX


def is_literal(pattern: bytes) -> bool:
    """Whether a pattern has nothing that stands for something else, and so matches only itself."""
    return _WILD.search(pattern) is None


def matcher(pattern: bytes, *, any_case: bool = False) -> Callable[[bytes], object]:
    """A function that answers something true for the strings that the whole pattern matches.

    CommandError when the pattern has wildcards and is longer than PATTERN_MAX_BYTES. As in Redis,
    one with more than STARS_MAX stars that something stands behind matches nothing.
    """
    if is_literal(pattern):
        if not any_case:
            return pattern.__eq__
        wanted = pattern.lower()
        return lambda text: text.lower() == wanted
    if len(pattern) > PATTERN_MAX_BYTES:
        if _has_too_many_stars(pattern):
            return lambda text: False
        raise CommandError(TOO_LONG)
    return _expression(pattern, any_case).fullmatch
