# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Reads the first value of one field of entries: the key by which a group orders them."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from millstream.encoding cimport Slice
from millstream.storage.blocks.layout cimport (
    Entry, Packed, View, next_name, next_packed, next_word, read_varint, unpacked_value,
)


cdef class FieldReader:
    """The reader of a field. Call `begin` for each block, then `find` for entries of this block."""

    def __init__(self, bytes field not None):
        self.field = field

    def __dealloc__(self):
        PyMem_Free(self.space.bytes)

    cdef int begin(self) noexcept:
        """Forget the names of another block."""
        self.names = NULL
        return 0

    cdef bint find(self, const View* view, const Entry* entry, Slice* out) except -1:
        """Set `out` to the value, which is valid until the next call; False if the entry does not have
        the field."""
        cdef const uint8_t* at = entry.values
        cdef Packed packed
        cdef uint64_t size
        cdef int64_t _i
        if entry.names != self.names:
            self.place = self.place_in(entry)
            self.names = entry.names
        if self.place < 0:
            return False
        if view.words == NULL:
            for _i in range(self.place + 1):
                at = next_word(at, out)
            return True
        at = read_varint(at, &size)
        for _i in range(self.place + 1):
            at = next_packed(view, at, &packed)
        out.size = <Py_ssize_t>packed.size
        out.ptr = unpacked_value(&self.space, &packed)
        return True

    cdef int64_t place_in(self, const Entry* entry) noexcept:
        """The place of the first field with the name; -1 without one."""
        cdef const uint8_t* at = entry.names
        cdef Slice name
        cdef int64_t i
        for i in range(entry.fields):
            at = next_name(at, entry.plain, &name)
            if name.size == PyBytes_GET_SIZE(self.field) and memcmp(
                    name.ptr, PyBytes_AS_STRING(self.field), name.size) == 0:
                return i
        return -1
