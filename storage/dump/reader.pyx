# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Reads the elements of Redis' dump format, of a payload in memory or of a file that is read in
pieces: lengths, IDs, strings and times.

No length is believed before its bytes are there: memory grows with the bytes that arrive. A string
that is not wanted is passed over without unpacking it. `mark` keeps the bytes from here on, so that
`rewind` can go back to read them in another way.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport (
    INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t,
)
from libc.string cimport memcpy

from millstream.storage.dump.rdb_bytes cimport crc_of, decompress

from millstream.clock_offset import shifted_ms
from millstream.errors import PayloadError

cdef enum:
    PIECE_BYTES = 1 << 20
    KEPT_PART = 4
    STRING_BYTES_MAX = 512 << 20  # as in Redis
    ENCODED = 0xC0  # of a string's first byte: a number or compressed bytes follow
    LZF = 3


class CutOffError(PayloadError):
    """The elements cannot be followed any further: bytes are missing, or a length is malformed."""


cdef class Reader:
    """Reads elements one after another. `wall_ahead_ms`: the wall clock, whose times the format has,
    is ahead of the steady clock by this.

    `source` returns the next bytes, at most as many as it is asked for, and b"" at the end; without
    one, everything is in `data`, up to `end`. `size_bytes` is the size of the source, -1 if it is
    not known.
    """

    def __init__(self, bytes data not None, Py_ssize_t end, int64_t wall_ahead_ms=0, source=None,
                 int64_t size_bytes=-1):
        if not 0 <= end <= len(data):
            raise ValueError("the end is not within the data")
        self.data = data
        self.end = end
        self.wall_ahead_ms = wall_ahead_ms
        self.source = source
        self.size_bytes = size_bytes
        self.marked = -1

    @property
    def offset(self) -> int:
        """The number of bytes that were read."""
        return self.before + self.at

    @property
    def left(self) -> int:
        """The number of bytes that follow; a large number if it is not known."""
        if self.source is None:
            return self.end - self.at
        if self.size_bytes < 0:
            return INT64_MAX
        return max(self.size_bytes - <int64_t>self.before - self.at, 0)

    @property
    def checksum(self) -> int:
        """The CRC-64 of the bytes that were read."""
        self.sum_up(self.at)
        return self.crc

    cdef int sum_up(self, Py_ssize_t end) except -1:
        """Add the bytes before `end` to the checksum."""
        if end > self.summed:
            self.crc = crc_of(<const uint8_t*>PyBytes_AS_STRING(self.data) + self.summed,
                              end - self.summed, self.crc)
            self.summed = end
        return 0

    def mark(self) -> None:
        """Keep the bytes from here on."""
        self.marked = self.at

    def rewind(self) -> None:
        """Go back to the mark."""
        if self.marked < 0:
            raise ValueError("there is no mark")
        self.at = self.marked

    def unmark(self) -> None:
        self.marked = -1

    # ------------------------------------------------------------ bytes

    cdef int refill(self, uint64_t wanted) except -1:
        """Get `wanted` unread bytes, in pieces; CutOffError if there are not as many."""
        cdef Py_ssize_t start = self.at if self.marked < 0 else self.marked
        cdef Py_ssize_t have = self.end - self.at
        cdef uint64_t enough
        cdef list pieces
        cdef bytes piece
        if self.source is None or wanted > <uint64_t>self.left:
            raise CutOffError("it is cut off")
        self.sum_up(start)
        # More is read the more is kept, so that long parts are not copied for each piece.
        enough = wanted + <uint64_t>(self.end - start) // KEPT_PART
        pieces = [memoryview(self.data)[start:self.end]]
        while <uint64_t>have < enough:
            piece = self.source(PIECE_BYTES)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        self.before += start
        self.at -= start
        self.summed -= start
        self.marked = -1 if self.marked < 0 else 0
        self.data = b"".join(pieces)
        self.end = len(self.data)
        if <uint64_t>have < wanted:
            raise CutOffError("it is cut off")
        return 0

    cdef const uint8_t* next_bytes(self, uint64_t size) except NULL:
        """The next bytes, which count as read. They stay valid until the next call."""
        cdef const uint8_t* at
        if size > <uint64_t>(self.end - self.at):
            self.refill(size)
        at = <const uint8_t*>PyBytes_AS_STRING(self.data) + self.at
        self.at += <Py_ssize_t>size
        return at

    cpdef bytes take(self, uint64_t size):
        """The next `size` bytes."""
        cdef const uint8_t* at = self.next_bytes(size)
        return PyBytes_FromStringAndSize(<const char*>at, <Py_ssize_t>size)

    cpdef int skip(self, uint64_t size) except -1:
        """Pass over `size` bytes, of which only a piece is in memory."""
        cdef uint64_t some
        if size > <uint64_t>self.left:
            raise CutOffError("it is cut off")
        while size:
            some = min(size, <uint64_t>PIECE_BYTES)
            self.next_bytes(some)
            size -= some
        return 0

    def some(self, uint64_t most_bytes) -> bytes:
        """The next bytes, at most this number; b"" at the end."""
        if self.at >= self.end:
            try:
                self.refill(1)
            except CutOffError:
                return b""
        return self.take(min(most_bytes, <uint64_t>(self.end - self.at)))

    cpdef bint is_at_end(self):
        """True if no byte follows."""
        if self.at < self.end or self.source is None:
            return self.at >= self.end
        try:
            self.next_bytes(1)
        except CutOffError:
            return True
        self.at -= 1
        return False

    # ------------------------------------------------------------ elements

    cpdef uint8_t byte(self) except? 0xFE:
        return self.next_bytes(1)[0]

    cpdef int64_t signed64(self) except? -2:
        """A signed number of eight bytes, the lowest first."""
        cdef int64_t number
        memcpy(&number, self.next_bytes(8), 8)
        return number

    def moment_ms(self) -> int:
        """A unix time, converted to the steady clock; -1 for none."""
        cdef int64_t wall_ms = self.signed64()
        if wall_ms < -1:
            raise PayloadError("a time is before 1970")
        return shifted_ms(wall_ms, -self.wall_ahead_ms)

    cpdef uint64_t length(self) except? 0xFEFEFEFE:
        """A number of up to 64 bits."""
        cdef const uint8_t* at = self.next_bytes(1)
        cdef uint64_t number = at[0]
        cdef Py_ssize_t i, size
        if number < 0x40:
            return number
        if number < 0x80:
            number = (number & 0x3F) << 8
            return number | self.next_bytes(1)[0]
        if number != 0x80 and number != 0x81:
            raise CutOffError("a length is malformed")
        size = 4 if number == 0x80 else 8
        at = self.next_bytes(size)
        number = 0
        for i in range(size):
            number = number << 8 | at[i]
        return number

    def id(self) -> tuple[int, int]:
        cdef uint64_t ms = self.length()
        return ms, self.length()

    cdef uint8_t peek(self) except? 0xFE:
        cdef uint8_t head = self.next_bytes(1)[0]
        self.at -= 1
        return head

    cpdef bytes string(self, uint64_t most_bytes=STRING_BYTES_MAX):
        """A string: plain, encoded as a number, or compressed."""
        cdef uint8_t head = self.peek()
        cdef uint64_t size, packed_size
        cdef int16_t two
        cdef int32_t four
        if head < ENCODED:
            size = self.length()
            if size > most_bytes:
                self.skip(size)
                raise PayloadError("a string is too long")
            return self.take(size)
        self.at += 1
        if head == ENCODED:
            return b"%d" % <int8_t>self.next_bytes(1)[0]
        if head == ENCODED + 1:
            memcpy(&two, self.next_bytes(2), 2)
            return b"%d" % two
        if head == ENCODED + 2:
            memcpy(&four, self.next_bytes(4), 4)
            return b"%d" % four
        if head != ENCODED + LZF:
            raise CutOffError("a string's encoding is not known")
        packed_size = self.length()
        size = self.length()
        if size > most_bytes or packed_size > most_bytes:
            self.skip(packed_size)
            raise PayloadError("a compressed string is too long")
        return decompress(self.next_bytes(packed_size), <Py_ssize_t>packed_size, size)

    cpdef int skip_string(self) except -1:
        """Pass over a string without unpacking it."""
        cdef uint8_t head = self.peek()
        cdef uint64_t packed_size
        if head < ENCODED:
            return self.skip(self.length())
        self.at += 1
        if head > ENCODED + LZF:
            raise CutOffError("a string's encoding is not known")
        if head == ENCODED + LZF:
            packed_size = self.length()
            self.length()
            return self.skip(packed_size)
        return self.skip(1 << (head & 3))
