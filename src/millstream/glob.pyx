# cython: language_level=3, cdivision=True, initializedcheck=False
"""Redis' glob patterns: ``*  ?  [a-z]  [^x]  \\x``, over bytes.

The pattern and the text are walked together, and the pattern is not compiled. It cannot run away:
between two stars every item matches exactly one byte, so the leftmost place of each piece is the
right one to take, and what lies before the last star is never looked at again. ``a*a*a*b`` costs
length x pattern at most, where plain backtracking would take for ever on a hostile pattern. So that
this stays little the length of a pattern is limited; without a wildcard it is a plain comparison
and may have any length.
"""

import re

from millstream.errors import CommandError

PATTERN_MAX_BYTES = 1024
STARS_MAX = 1000
STARS_LOOK_BYTES = 1024**2  # in a longer pattern they are not counted
TOO_LONG = f"ERR a pattern with wildcards may have at most {PATTERN_MAX_BYTES} bytes"

_WILD = re.compile(rb"[*?\[\\]")


cdef inline unsigned char lowered(unsigned char byte) noexcept nogil:
    return byte + 32 if c'A' <= byte <= c'Z' else byte


cdef inline unsigned char cased(unsigned char byte, bint any_case) noexcept nogil:
    return lowered(byte) if any_case else byte


cdef const unsigned char* take_item(const unsigned char* at, const unsigned char* end,
                                    unsigned char byte, bint any_case,
                                    bint* matches) noexcept nogil:
    """Whether the item at `at`, which is not a star, matches a byte; returns the position after it."""
    if at[0] == c'?':
        matches[0] = True
        return at + 1
    if at[0] == c'[':
        return take_class(at + 1, end, byte, any_case, matches)
    if at[0] == c'\\' and at + 1 < end:
        at += 1
    matches[0] = cased(at[0], any_case) == byte
    return at + 1


cdef const unsigned char* take_class(const unsigned char* at, const unsigned char* end,
                                     unsigned char byte, bint any_case,
                                     bint* matches) noexcept nogil:
    """As `take_item` for the class whose ``[`` is just before `at`. One without an end goes to the
    pattern's."""
    cdef bint negated = at < end and at[0] == c'^'
    cdef bint found = False
    cdef unsigned char low, high
    at += negated
    while at < end and at[0] != c']':
        low = high = cased(at[0], any_case)
        if at[0] == c'\\' and at + 1 < end:
            at += 1
            low = high = cased(at[0], any_case)
        elif at + 2 < end and at[1] == c'-':
            at += 2
            high = cased(at[0], any_case)
        found = found or low <= byte <= high or high <= byte <= low
        at += 1
    matches[0] = found != negated
    return at + 1 if at < end else end


cdef bint is_match(const unsigned char* at, const unsigned char* end, const unsigned char* text,
                   const unsigned char* text_end, bint any_case) noexcept nogil:
    """Whether the whole pattern matches the whole text."""
    # After the last star, and where in the text what follows it was tried.
    cdef const unsigned char* piece = NULL
    cdef const unsigned char* tried = NULL
    cdef const unsigned char* following
    cdef bint matches
    while True:
        while at < end and at[0] == c'*':
            at += 1
            piece = at
            tried = text
        if text == text_end:
            return at == end
        matches = False
        if at < end:
            following = take_item(at, end, cased(text[0], any_case), any_case, &matches)
        if matches:
            at = following
            text += 1
        elif piece == NULL:
            return False
        elif piece == end:
            return True
        else:
            tried += 1
            text = tried
            at = piece


cdef class Pattern:
    """A pattern with wildcards. Called with a text it says whether the whole text matches."""

    def __init__(self, bytes pattern, bint any_case):
        self.pattern = pattern
        self.any_case = any_case

    def __call__(self, bytes text) -> bool:
        cdef const unsigned char* at = self.pattern
        cdef const unsigned char* start = text
        return is_match(at, at + len(self.pattern), start, start + len(text), self.any_case)


cdef bint has_too_many_stars(bytes pattern) except -1:
    """Whether more than STARS_MAX stars have something after them."""
    cdef const unsigned char* at = pattern
    cdef const unsigned char* end = at + len(pattern)
    cdef bint behind_star = False
    cdef bint _
    cdef Py_ssize_t count = 0
    if len(pattern) > STARS_LOOK_BYTES:
        return False
    while at < end:
        if at[0] == c'*':
            behind_star = True
            at += 1
            continue
        at = take_item(at, end, 0, False, &_)
        count += behind_star
        behind_star = False
    return count > STARS_MAX


def is_literal(bytes pattern not None) -> bool:
    """Whether a pattern has nothing that stands for something else, and so matches only itself."""
    return _WILD.search(pattern) is None


def matcher(bytes pattern not None, *, bint any_case=False):
    """A function that answers something true for the strings that the whole pattern matches.

    CommandError when the pattern has wildcards and is longer than PATTERN_MAX_BYTES. As in Redis,
    one with more than STARS_MAX stars that are followed by something matches nothing.
    """
    if is_literal(pattern):
        if not any_case:
            return pattern.__eq__
        wanted = pattern.lower()
        return lambda text: text.lower() == wanted
    if len(pattern) > PATTERN_MAX_BYTES:
        if has_too_many_stars(pattern):
            return lambda text: False
        raise CommandError(TOO_LONG)
    return Pattern(pattern, any_case)
