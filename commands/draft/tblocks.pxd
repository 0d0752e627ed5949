from libc.stdint cimport uint64_t

from millstream.commands.runtime.replies cimport Encodable, Sliced
from millstream.encoding cimport Output
from millstream.ids cimport EntryId
from millstream.storage.streams.stream cimport Stream


cdef class BlockPage(Encodable):
    cdef Stream stream
    cdef EntryId start
    cdef EntryId end
    cdef EntryId following
    cdef bint has_more
    cdef list blocks
    cdef Sliced remainder

    cdef int put_facts(self, Output out, int resp) except -1


cdef class SlicedBlocks(Sliced):
    cdef list blocks
