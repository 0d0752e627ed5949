# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Entry IDs: two unsigned 64-bit numbers, milliseconds since the epoch and a sequence number.

The T commands print ``ms.seq`` and the X commands print ``ms-seq``; both name the same entry.
Storage keeps the two numbers (`entry_id`); only this module parses and formats the text.
"""

from libc.stdint cimport uint64_t
cimport cython

from millstream.encoding cimport format_u64
from millstream.entry_id cimport EntryId

cdef enum:
    # Maximum length of a number's text, leading zeros included.
    TEXT_MAX = 127
    # A number of this many digits fits into 64 bits.
    DIGITS_SAFE = 19


cdef int format_id(char* out, uint64_t ms, uint64_t seq, bint dotted) noexcept nogil:
    """Write the text of an ID, at most 41 bytes, and return its length."""
    cdef int size = format_u64(out, ms)
    out[size] = c'.' if dotted else c'-'
    return size + 1 + format_u64(out + size + 1, seq)


cdef int parse_u64(const char* text, Py_ssize_t size, uint64_t* out) noexcept nogil:
    """Parse decimal digits; -1 for an empty text, other characters, or a number above 2^64-1."""
    cdef uint64_t value = 0
    cdef uint64_t digit
    cdef Py_ssize_t i
    if size <= 0 or size > TEXT_MAX:
        return -1
    for i in range(size):
        digit = <uint64_t>(<unsigned char>text[i]) - 48
        if digit > 9:
            return -1
        if value > 1844674407370955161ULL or (value == 1844674407370955161ULL and digit > 5):
            return -1
        value = value * 10 + digit
    out[0] = value
    return 0


cdef int parse_part(const char* text, Py_ssize_t size, uint64_t* out) noexcept nogil:
    """Like parse_u64, but accept leading white space and a plus sign, as Redis does in each half of
    an ID."""
    cdef Py_ssize_t start = 0
    if parse_u64(text, size, out) == 0:
        return 0
    while start < size and (text[start] == c' ' or c'\t' <= text[start] <= c'\r'):
        start += 1
    if start < size and text[start] == c'+':
        start += 1
    return parse_u64(text + start, size - start, out) if start else -1


cdef inline Py_ssize_t read_digits(const char* text, Py_ssize_t size, uint64_t* out) noexcept nogil:
    """Parse the leading digits, at most DIGITS_SAFE, and return their count."""
    cdef uint64_t value = 0
    cdef uint64_t digit
    cdef Py_ssize_t most = min(size, <Py_ssize_t>DIGITS_SAFE)
    cdef Py_ssize_t i = 0
    while i < most:
        digit = <uint64_t>(<unsigned char>text[i]) - 48
        if digit > 9:
            break
        value = value * 10 + digit
        i += 1
    out[0] = value
    return i


cdef int parse_id(const char* text, Py_ssize_t size, bint dot_allowed, uint64_t missing_seq,
                  EntryId* out) noexcept nogil:
    """Parse ``ms-seq``, ``ms`` (with missing_seq as its seq) or, if dot_allowed, ``ms.seq``."""
    # Nearly all IDs are two short numbers and nothing else: parse these in one pass.
    cdef Py_ssize_t i = read_digits(text, size, &out.ms)
    if 0 < i < size - 1 and (text[i] == c'-' or (dot_allowed and text[i] == c'.')) and (
            read_digits(text + i + 1, size - i - 1, &out.seq) == size - i - 1):
        return 0
    for i in range(size):
        if text[i] == c'-' or (dot_allowed and text[i] == c'.'):
            if parse_part(text, i, &out.ms) < 0:
                return -1
            return parse_part(text + i + 1, size - i - 1, &out.seq)
    out.seq = missing_seq
    return parse_part(text, size, &out.ms)


@cython.freelist(64)
cdef class Id:
    """An entry ID in a reply: its text is ``ms.seq`` if dotted (T commands), else ``ms-seq``."""

    def __init__(self, uint64_t ms, uint64_t seq, bint dotted=False):
        self.ms = ms
        self.seq = seq
        self.dotted = dotted

    def __bytes__(self) -> bytes:
        cdef char text[48]
        cdef int size = format_id(text, self.ms, self.seq, self.dotted)
        return text[:size]

    def __str__(self) -> str:
        return bytes(self).decode()

    def __repr__(self) -> str:
        return f"Id({self})"

    def __eq__(self, other) -> bool:
        return isinstance(other, Id) and (<Id>other).ms == self.ms and (<Id>other).seq == self.seq

    def __hash__(self) -> int:
        return hash((self.ms, self.seq))


cdef Id make_id(uint64_t ms, uint64_t seq, bint dotted):
    cdef Id made = Id.__new__(Id)
    made.ms = ms
    made.seq = seq
    made.dotted = dotted
    return made


def parse(bytes text not None, bint dot_allowed=True, uint64_t missing_seq=0) -> tuple[int, int]:
    """The (ms, seq) of an ID's text; ValueError when the text is not an ID."""
    cdef EntryId found
    if parse_id(text, len(text), dot_allowed, missing_seq, &found) < 0:
        raise ValueError("Invalid stream ID specified as stream command argument")
    return found.ms, found.seq
