# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""RESP elements as bytes: the growable buffer for replies, effects and exports.

The module is in the common package because blocks encode their entries directly into the buffer
(storage must not import the server). It writes bulk strings, heads and IDs; the server decides what a
reply means.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memmove

from millstream.memory_reserve import RESERVE

cdef Py_ssize_t FIRST_CAPACITY = 512
cdef Py_ssize_t KEPT_CAPACITY = 256 * 1024
# A longer content is taken without a copy, with the buffer's memory.
cdef Py_ssize_t COPIED_BYTES = 64 * 1024


cdef extern from *:
    """
    #include <stddef.h>
    #include <string.h>
    /* The memory of a buffer is that of a bytes object without its head, so that a long content
       becomes an object without a copy. */
    #define MS_HEAD offsetof(PyBytesObject, ob_sval)
    static char *ms_resize(char *buf, Py_ssize_t capacity) {
        char *moved = PyObject_Realloc(buf ? buf - MS_HEAD : NULL, MS_HEAD + capacity + 1);
        return moved ? moved + MS_HEAD : NULL;
    }
    static void ms_free(char *buf) {
        if (buf) PyObject_Free(buf - MS_HEAD);
    }
    static PyObject *ms_to_bytes(char *buf, Py_ssize_t size) {
        char *exact = ms_resize(buf, size);
        PyObject *bytes = (PyObject *)((exact ? exact : buf) - MS_HEAD);
        PyObject_InitVar((PyVarObject *)bytes, &PyBytes_Type, size);
        _Py_COMP_DIAG_PUSH
        _Py_COMP_DIAG_IGNORE_DEPR_DECLS
        ((PyBytesObject *)bytes)->ob_shash = -1;
        _Py_COMP_DIAG_POP
        PyBytes_AS_STRING(bytes)[size] = 0;
        return bytes;
    }
    static const char ms_two_digits[201] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546"
        "4748495051525354555657585960616263646566676869707172737475767778798081828384858687888990919293"
        "949596979899";
    static int ms_format_u64(char *out, uint64_t value) {
        char text[20];
        int at = 20;
        while (value >= 100) {
            uint64_t rest = value / 100;
            at -= 2;
            memcpy(text + at, ms_two_digits + 2 * (value - rest * 100), 2);
            value = rest;
        }
        if (value >= 10) {
            at -= 2;
            memcpy(text + at, ms_two_digits + 2 * value, 2);
        } else {
            text[--at] = (char)('0' + value);
        }
        memcpy(out, text + at, 20 - at);
        return 20 - at;
    }
    """
    int ms_format_u64(char* out, uint64_t value) noexcept nogil
    char* ms_resize(char* buf, Py_ssize_t capacity) noexcept
    void ms_free(char* buf) noexcept
    bytes ms_to_bytes(char* buf, Py_ssize_t size)


cdef int format_u64(char* out, uint64_t value) noexcept nogil:
    """Write the digits of a number, at most 20, and return their count. Digits are written two at a
    time for speed: every entry of a reply needs its ID as text."""
    return ms_format_u64(out, value)


cdef class Output:
    """A growable byte buffer with RESP writers; `size` is the number of bytes held."""

    def __cinit__(self):
        self.buf = NULL
        self.size = 0
        self.capacity = 0

    def __dealloc__(self):
        ms_free(self.buf)

    cdef int grow(self, Py_ssize_t extra) except -1:
        cdef Py_ssize_t wanted = self.capacity * 2 if self.capacity else FIRST_CAPACITY
        cdef char* moved
        if wanted < self.size + extra:
            wanted = self.size + extra
        moved = ms_resize(self.buf, wanted)
        if moved == NULL and RESERVE.give_back():
            moved = ms_resize(self.buf, wanted)
        if moved == NULL:
            raise MemoryError(f"no memory for an output buffer of {wanted} bytes")
        self.buf = moved
        self.capacity = wanted
        return 0

    cdef void clear(self) noexcept:
        """Discard the content; memory beyond KEPT_CAPACITY is returned to the system."""
        cdef char* moved
        self.size = 0
        if self.capacity > KEPT_CAPACITY:
            moved = ms_resize(self.buf, FIRST_CAPACITY)
            if moved != NULL:
                self.buf = moved
                self.capacity = FIRST_CAPACITY

    cdef int begin_array(self, ArrayHead* head, uint64_t most) except -1:
        """Begin an array of at most `most` elements; the caller then writes the elements."""
        head.at = self.size
        head.size = 4
        while most >= 10:
            most //= 10
            head.size += 1
        self.reserve(head.size)
        self.size += head.size
        return 0

    cdef int end_array(self, const ArrayHead* head, uint64_t length) except -1:
        """Write the head of an array after its `length` elements, and remove the reserved bytes that
        the head does not need."""
        cdef char[24] text
        cdef Py_ssize_t size = write_head(text, c'*', length)
        cdef char* at = self.buf + head.at
        if size < head.size:
            memmove(at + size, at + head.size, self.size - head.at - head.size)
            self.size -= head.size - size
        memcpy(at, text, size)
        return 0

    cdef bytes take(self):
        cdef bytes taken
        if self.size > COPIED_BYTES:
            taken = ms_to_bytes(self.buf, self.size)
            self.buf = NULL
            self.size = self.capacity = 0
            return taken
        taken = self.buf[:self.size] if self.size else b""
        self.clear()
        return taken

    cpdef int put(self, bytes data) except -1:
        """Append bytes as they are."""
        return self.put_raw(data, len(data))

    cpdef int put_bulk_bytes(self, bytes data) except -1:
        """Append one RESP bulk string."""
        return self.put_bulk(data, len(data))

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return self.buf[:self.size] if self.size else b""


def encode_request(args) -> bytes:
    """A request or effect: a RESP array of bulk strings from an iterable of bytes."""
    cdef Output out = Output()
    cdef list items = list(args)
    out.put_head(c'*', len(items))
    for item in items:
        out.put_bulk_bytes(item)
    return out.take()
