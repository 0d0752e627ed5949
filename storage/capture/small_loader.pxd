from libc.stdint cimport uint8_t, uint64_t

from millstream.storage.capture.small_rows cimport Row, Section
from millstream.storage.streams.stream cimport Stream


cdef class SmallLoader:
    cdef Section section
    cdef const uint8_t[::1] chunk
    cdef readonly uint64_t entries
    cdef readonly bytes key

    cdef Stream load_stream(self, Row* row)
    cdef int load_block(self, Stream stream, Row* row) except -1
