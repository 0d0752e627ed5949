# cython: language_level=3, wraparound=False, embedsignature=True
"""Commands as RESP, and entries for the batches of TAPPENDMANY.

Most words are ASCII text, bytes or numbers: these are written here. All else, and every error, is
left to the code of Python that does the same.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Free
from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strlen

from millstream.client.core.words import LONG_BYTES, field_words, word_bytes
from millstream.client.errors import InvalidFields

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object)
    bint PyBytes_CheckExact(object)
    bint PyLong_CheckExact(object)
    bint PyFloat_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1
    double PyFloat_AS_DOUBLE(object)
    char* PyOS_double_to_string(double, char, int, int, int*) except NULL
    int Py_DTSF_ADD_DOT_0

cdef enum:
    # The most bytes of a number, and of the length before a word with its line ends.
    NUMBER_BYTES = 32
    FRAME_BYTES = 32


@cython.final
cdef class Entry:
    """An entry that is ready to be sent."""

    cdef public uint64_t seq
    cdef readonly Py_ssize_t count
    cdef readonly bytes packed

    def __init__(self, fields):
        """InvalidFields for what cannot be sent."""
        self.packed = None
        if type(fields) is dict:
            self.packed = packed_dict(<dict>fields)
            self.count = 2 * len(<dict>fields)
        if self.packed is None:
            words = field_words(fields)
            self.count = len(words)
            self.packed = packed_words([self.count // 2, *words])

    @property
    def is_long(self):
        """True if a value may be above the server's limit."""
        return len(self.packed) > LONG_BYTES

    def length_error(self, limit):
        """An error if one of its words is above the server's limit."""
        if len(self.packed) <= limit:
            return None
        at = 0
        while at < len(self.packed):
            end = self.packed.index(b"\r\n", at)
            size = int(self.packed[at + 1 : end])
            if size > limit:
                return InvalidFields(
                    f"a value of the entry {self.seq} has {size:,} bytes, and proto-max-bulk-len "
                    f"of the server is {limit:,}"
                )
            at = end + 4 + size
        return None


def packed_words(words):
    """Words of a request as RESP."""
    parts = []
    for word in words:
        data = word.encode("utf-8", "surrogateescape") if type(word) is str else word_bytes(word)
        parts += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(parts)


def packed_command(tuple words not None):
    """A command; None if one of its words is of another kind."""
    cdef Py_ssize_t size = FRAME_BYTES
    cdef Py_ssize_t bound
    cdef char* at
    for word in words:
        bound = size_of(word)
        if bound < 0:
            return None
        size += bound
    cdef char* start = <char*>malloc(size)
    if start is NULL:
        raise MemoryError
    try:
        at = write_length(start, c"*", len(words))
        for word in words:
            at = write_word(at, word)
            if at is NULL:
                return None
        return PyBytes_FromStringAndSize(start, at - start)
    finally:
        free(start)


def packed_batch(bytes head not None, Py_ssize_t words, list entries not None):
    """A request: the `words` in `head`, the number of the entries, and their numbers with their
    fields."""
    cdef Entry entry
    cdef Py_ssize_t size = PyBytes_GET_SIZE(head) + 3 * FRAME_BYTES
    cdef char* at
    words += 1
    for entry in entries:
        size += PyBytes_GET_SIZE(entry.packed) + 2 * FRAME_BYTES
        words += entry.count + 2
    cdef char* start = <char*>malloc(size)
    if start is NULL:
        raise MemoryError
    try:
        at = write_length(start, c"*", words)
        at = write_bytes(at, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        at = write_number_word(at, len(entries))
        for entry in entries:
            at = write_number_word(at, entry.seq)
            at = write_bytes(at, PyBytes_AS_STRING(entry.packed), PyBytes_GET_SIZE(entry.packed))
        return PyBytes_FromStringAndSize(start, at - start)
    finally:
        free(start)


cdef bytes packed_dict(dict fields):
    """The number of the fields, and the fields; None for what needs a closer look."""
    cdef Py_ssize_t size = 2 * FRAME_BYTES
    cdef Py_ssize_t place = 0, bound
    cdef PyObject* field
    cdef PyObject* value
    cdef char* at
    if not fields:
        return None
    while PyDict_Next(fields, &place, &field, &value):
        bound = size_of(<object>field)
        if bound < 0:
            return None
        size += bound
        bound = size_of(<object>value)
        if bound < 0:
            return None
        size += bound
    cdef char* start = <char*>malloc(size)
    if start is NULL:
        raise MemoryError
    try:
        at = write_number_word(start, len(fields))
        place = 0
        while PyDict_Next(fields, &place, &field, &value):
            at = write_word(at, <object>field)
            if at is not NULL:
                at = write_word(at, <object>value)
            if at is NULL:
                return None
        return PyBytes_FromStringAndSize(start, at - start)
    finally:
        free(start)


cdef Py_ssize_t size_of(object word) noexcept:
    """The most bytes of a word; -1 for one of another kind. No code of Python runs here."""
    if PyUnicode_CheckExact(word):
        return len(<str>word) + FRAME_BYTES if PyUnicode_IS_COMPACT_ASCII(word) else -1
    if PyBytes_CheckExact(word):
        return PyBytes_GET_SIZE(word) + FRAME_BYTES
    if PyLong_CheckExact(word) or PyFloat_CheckExact(word):
        return NUMBER_BYTES + FRAME_BYTES
    return -1


cdef char* write_word(char* at, object word) except? NULL:
    """NULL, without an exception, for a number of more than 64 bits."""
    cdef Py_ssize_t size
    cdef const char* data
    cdef char* shown
    cdef int overflow = 0
    cdef long long number
    if PyUnicode_CheckExact(word):
        data = PyUnicode_AsUTF8AndSize(word, &size)
        return write_sized(at, data, size)
    if PyBytes_CheckExact(word):
        return write_sized(at, PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word))
    if PyLong_CheckExact(word):
        number = PyLong_AsLongLongAndOverflow(word, &overflow)
        return NULL if overflow else write_signed_word(at, number)
    shown = PyOS_double_to_string(PyFloat_AS_DOUBLE(word), c"r", 0, Py_DTSF_ADD_DOT_0, NULL)
    at = write_sized(at, shown, strlen(shown))
    PyMem_Free(shown)
    return at


cdef inline char* write_bytes(char* at, const char* data, Py_ssize_t size) noexcept:
    memcpy(at, data, size)
    return at + size


cdef inline char* write_sized(char* at, const char* data, Py_ssize_t size) noexcept:
    at = write_length(at, c"$", size)
    at = write_bytes(at, data, size)
    return write_bytes(at, b"\r\n", 2)


cdef char* write_length(char* at, char kind, uint64_t length) noexcept:
    at[0] = kind
    at = write_digits(at + 1, length)
    return write_bytes(at, b"\r\n", 2)


cdef char* write_digits(char* at, uint64_t number) noexcept:
    cdef char digits[20]
    cdef int count = 0
    while True:
        digits[count] = <char>(48 + number % 10)
        count += 1
        number //= 10
        if number == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef char* write_number_word(char* at, uint64_t number) noexcept:
    cdef char digits[20]
    cdef char* end = write_digits(digits, number)
    return write_sized(at, digits, end - digits)


cdef char* write_signed_word(char* at, long long number) noexcept:
    cdef char digits[21]
    cdef char* end
    if number >= 0:
        return write_number_word(at, <uint64_t>number)
    digits[0] = c"-"
    end = write_digits(digits + 1, <uint64_t>0 - <uint64_t>number)
    return write_sized(at, digits, end - digits)
