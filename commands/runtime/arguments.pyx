# cython: language_level=3, wraparound=False, cdivision=True
"""The arguments of one request, as views of the receive buffer, and a cursor over them.

A request's words are not copied into Python objects, which would be most of the cost of a pipelined
command. A handler takes its arguments in order (`take`, `take_int`, `option`) and calls `finish()`;
an append passes the views to the block, which copies from the receive buffer. The views are valid
only while the command runs.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.ids cimport parse_id

from millstream.errors import INVALID_ID, NOT_INTEGER, SYNTAX, CommandError

# The maximum of a timeout, so that a deadline (now plus the timeout) is a signed 64-bit number.
cdef int64_t TIMEOUT_MAX_MS = 0x7fe0000000000000
TIMEOUT_NOT_INTEGER = "ERR timeout is not an integer or out of range"
TIMEOUT_NEGATIVE = "ERR timeout is negative"
TIMEOUT_TOO_LONG = "ERR timeout is out of range"


cdef bint same_letters(const char* word, const char* upper, Py_ssize_t size) noexcept nogil:
    """True if `size` letters equal those of `upper` (given in capitals), in any case."""
    cdef Py_ssize_t i
    cdef unsigned char letter
    for i in range(size):
        letter = <unsigned char>word[i]
        if 97 <= letter <= 122:
            letter -= 32
        if letter != <unsigned char>upper[i]:
            return False
    return True


cdef int parse_int(const char* text, Py_ssize_t size, int64_t* out) noexcept nogil:
    """A signed 64-bit integer as Redis reads one: no spaces, no plus, no leading zeros."""
    cdef bint negative = False
    cdef uint64_t value = 0
    cdef uint64_t digit
    cdef Py_ssize_t i = 0
    if size <= 0 or size > 20:
        return -1
    if text[0] == c'-':
        negative = True
        i = 1
        if size == 1:
            return -1
    if text[i] == c'0' and size > 1:
        return -1
    while i < size:
        digit = <uint64_t>(<unsigned char>text[i]) - 48
        if digit > 9 or value > 922337203685477580ULL:
            return -1
        value = value * 10 + digit
        i += 1
    if negative:
        if value > 9223372036854775808ULL:
            return -1
        out[0] = <int64_t>(0 - value)
    else:
        if value > 9223372036854775807ULL:
            return -1
        out[0] = <int64_t>value
    return 0


def parse_integer(bytes text not None) -> int | None:
    """A signed 64-bit integer as Redis reads one, else None."""
    cdef int64_t number
    return number if parse_int(text, len(text), &number) == 0 else None


cdef class Args:
    """A view of one request. Index 0 is the command's name; the cursor starts after it."""

    cdef Slice* take_slice(self) except NULL:
        if self.pos >= self.count:
            raise CommandError(SYNTAX)
        self.pos += 1
        return &self.items[self.pos - 1]

    cpdef bytes take(self):
        """The next argument as bytes; a syntax error when there is none."""
        cdef Slice* word = self.take_slice()
        return word.ptr[:word.size]

    cdef int take_id(self, EntryId* out, bint dot_allowed, uint64_t missing_seq) except -1:
        cdef Slice* word = self.take_slice()
        from_text = parse_id(word.ptr, word.size, dot_allowed, missing_seq, out)
        if from_text < 0:
            raise CommandError(INVALID_ID)
        return 0

    cpdef int64_t take_int(self) except? -1:
        """The next argument as a signed 64-bit integer; Redis' error when it is not one."""
        return self.take_int_or(NOT_INTEGER)

    cpdef int64_t take_int_or(self, str refusal) except? -1:
        """Like take_int, with another error text."""
        cdef Slice* word = self.take_slice()
        cdef int64_t value
        if parse_int(word.ptr, word.size, &value) < 0:
            raise CommandError(refusal)
        return value

    def take_int_between(self, int64_t least, int64_t most, str refusal not None) -> int:
        """Take an integer from least to most; anything else is this error."""
        cdef int64_t value = self.take_int_or(refusal)
        if not least <= value <= most:
            raise CommandError(refusal)
        return value

    cpdef Py_ssize_t skip_ids(self, str not_positive, str too_few) except -1:
        """Take the number after IDS and skip as many IDs; returns the number. The two texts are the
        errors of an invalid or non-positive number, and of fewer IDs than the number."""
        cdef int64_t count = self.take_int_or(not_positive)
        if count <= 0:
            raise CommandError(not_positive)
        if count > self.count - self.pos:
            raise CommandError(too_few)
        self.pos += <Py_ssize_t>count
        return <Py_ssize_t>count

    cpdef list ids_at(self, Py_ssize_t first, Py_ssize_t count):
        """`count` IDs from the word `first` on, each as (ms, seq)."""
        cdef EntryId found
        cdef list ids = []
        self.pos = first
        for _ in range(count):
            self.take_id(&found, False, 0)
            ids.append((found.ms, found.seq))
        return ids

    def take_entry_id(self, *, bint dot_allowed=False) -> tuple[int, int]:
        """The next argument as (ms, seq), for callers in Python."""
        cdef EntryId found
        self.take_id(&found, dot_allowed, 0)
        return found.ms, found.seq

    def option(self, bytes upper not None) -> bool:
        """True, and the cursor moves on, when the next argument is this word (given in capitals)."""
        return self.next_is(upper)

    @property
    def remaining(self) -> int:
        return self.count - self.pos

    def rest(self) -> list[bytes]:
        """All arguments not taken yet."""
        taken = [self.items[i].ptr[:self.items[i].size] for i in range(self.pos, self.count)]
        self.pos = self.count
        return taken

    def all(self) -> list[bytes]:
        """Every word of the request, including the command's name; the cursor does not move."""
        return [self.items[i].ptr[:self.items[i].size] for i in range(self.count)]

    def finish(self) -> None:
        """Refuse remaining arguments."""
        if self.pos < self.count:
            raise CommandError(SYNTAX)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, Py_ssize_t index) -> bytes:
        if index < 0 or index >= self.count:
            raise IndexError(index)
        return self.items[index].ptr[:self.items[index].size]


cdef int64_t take_timeout_ms(Args args) except? -1:
    """`take_timeout` for compiled callers."""
    cdef int64_t timeout_ms = args.take_int_or(TIMEOUT_NOT_INTEGER)
    if timeout_ms < 0:
        raise CommandError(TIMEOUT_NEGATIVE)
    if timeout_ms > TIMEOUT_MAX_MS:
        raise CommandError(TIMEOUT_TOO_LONG)
    return timeout_ms


def take_timeout(Args args not None) -> int:
    """Take a timeout in milliseconds, at least 0; Redis' errors. Its sum with any clock is a
    64-bit number."""
    return take_timeout_ms(args)


cdef class OwnedArgs(Args):
    """Arguments that outlive their request: queued commands, replayed effects, tests."""

    def __init__(self, words):
        cdef Py_ssize_t i
        cdef bytes word
        self._kept = [bytes(w) for w in words]
        self.count = len(self._kept)
        self.pos = 1
        self.items = <Slice*>PyMem_Malloc(max(1, self.count) * sizeof(Slice))
        if self.items == NULL:
            raise MemoryError
        for i in range(self.count):
            word = self._kept[i]
            self.items[i].ptr = word
            self.items[i].size = len(word)

    def __dealloc__(self):
        PyMem_Free(self.items)
