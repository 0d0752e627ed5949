from libc.stdint cimport int64_t, uint8_t

from millstream.encoding cimport Slice
from millstream.storage.blocks.layout cimport Entry, ValueSpace, View


cdef class FieldReader:
    cdef readonly bytes field
    # The names that were looked at last, and the place of the field among them, -1 without one.
    cdef const uint8_t* names
    cdef int64_t place
    cdef ValueSpace space

    cdef int begin(self) noexcept
    cdef bint find(self, const View* view, const Entry* entry, Slice* out) except -1
    cdef int64_t place_in(self, const Entry* entry) noexcept
