from libc.stdint cimport int64_t, uint64_t, uint32_t
from libc.string cimport memcpy, memmove

cdef int format_u64(char* out, uint64_t value) noexcept nogil


cdef struct Slice:
    const char* ptr
    Py_ssize_t size


# The head of an array whose length is not known yet: its offset, and the number of bytes reserved
# for it.
cdef struct ArrayHead:
    Py_ssize_t at
    Py_ssize_t size


cdef class Output:
    cdef char* buf
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t capacity
    # The text of the last ID's milliseconds: neighbouring entries mostly have the same.
    cdef uint64_t id_ms
    cdef int id_size
    cdef char[24] id_text

    cdef int grow(self, Py_ssize_t extra) except -1
    cdef int begin_array(self, ArrayHead* head, uint64_t most) except -1
    cdef int end_array(self, const ArrayHead* head, uint64_t length) except -1
    cdef bytes take(self)
    cdef void clear(self) noexcept
    cpdef int put(self, bytes data) except -1
    cpdef int put_bulk_bytes(self, bytes data) except -1

    cdef inline char* reserve(self, Py_ssize_t extra) except NULL:
        """Ensure `extra` free bytes at the end; the caller writes them and increases `size`."""
        if self.size + extra > self.capacity:
            self.grow(extra)
        return self.buf + self.size

    cdef inline int put_raw(self, const char* data, Py_ssize_t size) except -1:
        memcpy(self.reserve(size), data, size)
        self.size += size
        return 0

    cdef inline int put_head(self, char kind, uint64_t number) except -1:
        """A type byte, a number and CRLF: array headers, integers, bulk lengths."""
        cdef char* at = self.reserve(24)
        self.size += write_head(at, kind, number)
        return 0

    cdef inline int put_bulk(self, const char* data, Py_ssize_t size) except -1:
        cdef char* at = self.reserve(size + 32)
        self.size += write_bulk(at, data, size)
        return 0

    cdef inline int put_id(self, uint64_t ms, uint64_t seq, bint dotted) except -1:
        """An id as a bulk string."""
        cdef char* start = self.reserve(64)
        cdef char* at
        cdef int size
        if self.id_ms != ms or self.id_size == 0:
            self.id_ms = ms
            self.id_size = format_u64(self.id_text, ms)
        # `$dd` CRLF takes 5 bytes: write the text after them, then the length before it.
        at = start + 5
        memcpy(at, self.id_text, 20)
        size = self.id_size
        at[size] = c'.' if dotted else c'-'
        size += 1
        if seq < 10:
            at[size] = <char>(48 + seq)
            size += 1
        else:
            size += format_u64(at + size, seq)
        at[size] = c'\r'
        at[size + 1] = c'\n'
        start[0] = c'$'
        if size >= 10:
            start[1] = <char>(48 + size // 10)
            start[2] = <char>(48 + size % 10)
            start[3] = c'\r'
            start[4] = c'\n'
            self.size += size + 7
            return 0
        start[1] = <char>(48 + size)
        start[2] = c'\r'
        start[3] = c'\n'
        memmove(start + 4, at, size + 2)
        self.size += size + 6
        return 0


cdef inline int put_nil(Output out, int resp) except -1:
    """A nil element."""
    return out.put_raw(b"_\r\n", 3) if resp == 3 else out.put_raw(b"$-1\r\n", 5)


cdef inline int put_null_array(Output out, int resp) except -1:
    """A null where RESP2 has an array."""
    return out.put_raw(b"_\r\n", 3) if resp == 3 else out.put_raw(b"*-1\r\n", 5)


cdef inline Py_ssize_t write_head(char* at, char kind, uint64_t number) noexcept nogil:
    cdef Py_ssize_t size
    at[0] = kind
    if number < 10:
        at[1] = <char>(48 + number)
        at[2] = c'\r'
        at[3] = c'\n'
        return 4
    size = 1 + format_u64(at + 1, number)
    at[size] = c'\r'
    at[size + 1] = c'\n'
    return size + 2


cdef inline Py_ssize_t write_bulk(char* at, const char* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t head = write_head(at, c'$', <uint64_t>size)
    memcpy(at + head, data, size)
    at[head + size] = c'\r'
    at[head + size + 1] = c'\n'
    return head + size + 2
