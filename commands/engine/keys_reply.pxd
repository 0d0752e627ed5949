from libc.stdint cimport uint64_t

from millstream.commands.runtime.replies cimport Encodable, Sliced
from millstream.encoding cimport Output


cdef class FoundKeys(Encodable):
    cdef Sliced remainder


cdef class SlicedKeys(Sliced):
    cdef object walk
    cdef object matches
    # What was found and is not a piece yet; None when all keys were looked at.
    cdef Output out
    cdef uint64_t count
    cdef list pieces

    cdef int finish(self) except -1
