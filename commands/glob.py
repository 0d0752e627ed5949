"""Redis' glob patterns: ``*  ?  [a-z]  [^x]  \\x``, over bytes.

A pattern becomes a regular expression made so that it cannot run away: between two stars every
item matches exactly one byte, so the leftmost place of each piece is the right one to take and an
atomic group never goes back over it. ``a*a*a*b`` costs length x pattern, where plain backtracking
would take for ever on a hostile pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache


def _any_of(members: set[int], negated: bool) -> bytes:
    """A regular expression for one byte of (or outside) this set."""
    if negated:
        members = set(range(256)) - members
    if not members:
        return b"(?!)"
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(members)) + b"]"


def _take_class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The class whose ``[`` is just before `at`: its expression and the index behind it."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < len(pattern) and pattern[at] != 0x5D:  # ]
        if pattern[at] == 0x5C and at + 1 < len(pattern):  # backslash
            members.add(pattern[at + 1])
            at += 2
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            low, high = sorted((pattern[at], pattern[at + 2]))
            members.update(range(low, high + 1))
            at += 3
        else:
            members.add(pattern[at])
            at += 1
    return _any_of(members, negated), at + 1


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


@lru_cache(maxsize=256)
def matcher(pattern: bytes, *, any_case: bool = False) -> Callable[[bytes], object]:
    """A function that answers something true for the strings that the whole pattern matches."""
    first, *rest = _pieces(pattern)
    expression = first
    if rest:
        *middle, last = rest
        expression += b"".join(b"(?>.*?" + piece + b")" for piece in middle if piece)
        expression += b".*" + last
    return re.compile(expression, re.DOTALL | (re.IGNORECASE if any_case else 0)).fullmatch
