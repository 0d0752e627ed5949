from millstream.encoding cimport Slice
from millstream.storage.reservations.held_segments cimport Writer


cdef int check_writer(Slice* word) except -1
cdef bint is_named(Writer writer, Slice* word) noexcept
