"""Redis' glob patterns: ``*  ?  [a-z]  [^x]  \\x``, over bytes.

A pattern becomes a regular expression with bounded backtracking. Between two stars every item
matches exactly one byte, so the leftmost match of each piece is the right one. An atomic group
keeps that match: ``a*a*a*b`` costs at most length x pattern. The length of a pattern with wildcards
is limited, which limits the cost. A pattern without a wildcard is a plain comparison and may have
any length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from millstream.errors import CommandError

PATTERN_MAX_BYTES = 1024
STARS_MAX = 1000
COUNTED_MAX_BYTES = 128 * 1024  # the stars of a longer pattern are not counted
TOO_LONG = f"ERR a pattern with wildcards may have at most {PATTERN_MAX_BYTES} bytes"

_WILD = rb"[*?\[\\]"
# A class without a closing bracket extends to the end of the pattern.
_CLASS_ITEM = rb"\\.|[^\]]-.|[^\]]"
_ONE_BYTE = rb"\[\^?(?:%b)*\]?|\\.|[^*]" % _CLASS_ITEM  # what matches exactly one byte
_ITEMS = rb"\*+|" + _ONE_BYTE
_TOO_MANY_STARS = rb"(?:(?>(?:%b)*)(?>\*+)(?!\Z)){%d}" % (_ONE_BYTE, STARS_MAX + 1)

Matches = Callable[[bytes], object]


def is_literal(pattern: bytes) -> bool:
    """True if a pattern has no wildcard and therefore matches only itself."""
    return re.search(_WILD, pattern) is None


def matcher(pattern: bytes, *, any_case: bool = False) -> Matches:
    """Return a function whose result is true for the strings that the whole pattern matches.

    Raises CommandError when the pattern has wildcards and is longer than PATTERN_MAX_BYTES. As in
    Redis, a pattern with more than STARS_MAX stars, not counting stars at its end, matches nothing.
    """
    if any_case:
        matches = matcher(pattern.lower())
        return lambda text: matches(text.lower())
    if is_literal(pattern):
        return pattern.__eq__
    if len(pattern) > PATTERN_MAX_BYTES:
        if len(pattern) <= COUNTED_MAX_BYTES and re.match(_TOO_MANY_STARS, pattern, re.DOTALL):
            return lambda text: False
        raise CommandError(TOO_LONG)
    return _compiled(pattern)


class Patterns:
    """The strings that at least one of some patterns matches; all strings if there are none.
    `unmatched` has the patterns that have matched nothing so far."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._matchers = {pattern: matcher(pattern) for pattern in patterns}
        self.unmatched = list(self._matchers)

    def has(self, text: bytes) -> bool:
        if self.unmatched:
            self.unmatched = [one for one in self.unmatched if not self._matchers[one](text)]
        return not self._matchers or any(matches(text) for matches in self._matchers.values())


@lru_cache(maxsize=128)
def _compiled(pattern: bytes) -> Matches:
    pieces = [b""]
    for item in re.findall(_ITEMS, pattern, re.DOTALL):
        if item[:1] == b"*":
            pieces.append(b"")
        else:
            pieces[-1] += _expression(item)
    first, *middle = pieces
    last = b".*" + middle.pop() if middle else b""
    kept = b"".join(b"(?>.*?%b)" % piece for piece in middle)
    return re.compile(first + kept + last, re.DOTALL).fullmatch


def _expression(item: bytes) -> bytes:
    """The regular expression of an item that matches one byte."""
    if item == b"?":
        return b"."
    if item[:1] == b"[":
        return _class_expression(item.removeprefix(b"["))
    return re.escape(item[-1:])  # without the backslash before it


def _class_expression(text: bytes) -> bytes:
    """The regular expression of a class, given without its ``[``."""
    negated = text[:1] == b"^"
    ranges = set()
    for item in re.findall(_CLASS_ITEM, text.removeprefix(b"^"), re.DOTALL):
        # `x` and `\x` give their last byte; `x-y` gives both ends, in either order.
        low, high = sorted((item[-1], item[0] if len(item) == 3 else item[-1]))
        ranges.add(rb"\x%02x-\x%02x" % (low, high))
    if not ranges:
        return b"." if negated else b"(?!)"
    return (b"[^%b]" if negated else b"[%b]") % b"".join(sorted(ranges))
