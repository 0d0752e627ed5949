# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A search for the ends of replies in received bytes. The gateway passes replies on as bytes and does not decode them.

A reply is a line, a bulk string, or an aggregate with the number of its elements. The scanner counts the
elements that have not ended, so it needs no stack and continues where the received bytes ended.
"""

from libc.stdint cimport int64_t
from libc.string cimport memchr, memcmp

from millstream.commands.runtime.arguments cimport parse_int

cdef enum:
    LINE_MAX = 1 << 20


# What nodes reply to a request that did not run, because they do not serve its slot (now, or any more).
REFUSALS = (b"-MOVED ", b"-TRYAGAIN ", b"-CLUSTERDOWN ", b"-READONLY ", b"-UNBLOCKED force ")


class ReplyError(Exception):
    """Bytes that are no reply."""


cdef bint is_refusal(const char* at, const char* end):
    """True if the line of an error is one of REFUSALS."""
    for begin in REFUSALS:
        if len(<bytes>begin) <= end - at and not memcmp(<const char*><bytes>begin, at, len(<bytes>begin)):
            return True
    return False


cdef class ReplyScanner:
    """After `scan`, `complete` is the number of replies that have ended. `is_between`: the next byte
    begins a reply. With `finds_refusals`, one that is a refusal is scanned alone, and `refused` is true then."""

    def __init__(self, bint finds_refusals=False):
        self.finds_refusals = finds_refusals

    @property
    def is_between(self) -> bool:
        return self.elements == 0

    def scan(self, const unsigned char[:] data, Py_ssize_t at, Py_ssize_t limit) -> int:
        """Scan from `at` until `limit` replies have ended, or to the end; where that is. The bytes
        after it are the beginning of a line, or of further replies."""
        return self.scan_bytes(<const char*>&data[0] if data.shape[0] else NULL, data.shape[0], at, limit)

    cdef Py_ssize_t scan_bytes(self, const char* begin, Py_ssize_t size, Py_ssize_t at, Py_ssize_t limit) except -1:
        cdef const char* here = begin + at
        cdef const char* end = begin + size
        cdef const char* line
        cdef int64_t part
        self.complete = 0
        self.refused = False
        while self.complete < limit and here < end:
            if self.bulk_bytes > 0:
                part = min(self.bulk_bytes, <int64_t>(end - here))
                self.bulk_bytes -= part
                here += part
                if self.bulk_bytes > 0:
                    break
                self.elements -= 1
            else:
                line = <const char*>memchr(here, c"\n", end - here)
                if line == NULL:
                    if end - here > LINE_MAX:
                        raise ReplyError("a line without an end")
                    break
                if self.finds_refusals and here[0] == c"-" and self.elements == 0 and is_refusal(here, line):
                    if self.complete:
                        break
                    self.refused = True
                    limit = 1
                self.begin_element(here, line - 1)
                here = line + 1
            if self.elements == 0:
                self.complete += 1
        return here - begin

    cdef int begin_element(self, const char* at, const char* end) except -1:
        """The line of an element, which may be the first of a reply."""
        cdef int64_t number
        cdef char kind = at[0]
        if self.elements == 0:
            self.elements = 1
        if kind in b"+-:,_#(":
            self.elements -= 1
            return 0
        if kind not in b"$=!*~>%" or parse_int(at + 1, end - at - 1, &number) < 0:
            raise ReplyError(f"{at[:min(<Py_ssize_t>40, end - at)]!r} in place of a reply")
        if kind in b"$=!":
            if number < 0:
                self.elements -= 1
            else:
                self.bulk_bytes = number + 2
        else:
            self.elements += max(number, 0) * (2 if kind == c"%" else 1) - 1
        return 0


def elements_of(bytes reply not None) -> list:
    """The elements of an aggregate as they were received; keys and values of a map alternate. A
    null has none. ReplyError for another reply."""
    cdef ReplyScanner scanner = ReplyScanner()
    cdef Py_ssize_t at = reply.find(b"\n") + 1
    cdef Py_ssize_t end
    if reply[:1] == b"_" or reply.startswith((b"*-1", b"$-1")):
        return []
    if reply[:1] not in (b"*", b"~", b"%", b">"):
        raise ReplyError(f"{reply[:40]!r} has no elements")
    found = []
    while at < len(reply):
        end = scanner.scan(reply, at, 1)
        found.append(reply[at:end])
        at = end
    return found
