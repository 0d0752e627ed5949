from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.encoding cimport Output
from millstream.storage.blocks.layout cimport Head
from millstream.storage.streams.stream cimport Stream


cdef class SmallStreams:
    cdef Output rows
    cdef Output forms
    cdef Py_ssize_t full_bytes
    cdef readonly uint32_t keys
    cdef readonly uint64_t count
    cdef readonly uint64_t entries

    cpdef bint add(self, uint32_t db, bytes key, Stream stream, expires_ms) except -1
    cdef int put_row(self, uint32_t db, bytes key, Stream stream, expires_ms, const Head* form,
                     Py_ssize_t size, bint tail) except -1
