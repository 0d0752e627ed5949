from libc.stdint cimport uint64_t

from millstream.commands.engine.delivery cimport Ids
from millstream.commands.runtime.replies cimport Encodable, Sliced
from millstream.encoding cimport Output
from millstream.ids cimport EntryId
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.layout cimport Cursor, IdText, View
from millstream.storage.blocks.skiplist cimport Place
from millstream.storage.streams.stream cimport Stream, Walk


cdef class Finder:
    cdef Stream stream
    # Where it stands: walk.view and walk.cursor.entry, when `here`.
    cdef Walk walk
    cdef EntryId last
    cdef bint here

    cdef bint find(self, uint64_t ms, uint64_t seq) noexcept
    cdef bint restart(self, uint64_t ms, uint64_t seq) noexcept


cdef class Chosen(Encodable):
    cdef Ids ids
    cdef list blocks
    cdef Place place
    cdef bint with_tail
    cdef EntryId head
    cdef Sliced remainder

    cdef int add(self, Finder finder, uint64_t ms, uint64_t seq) except -1
    cdef int add_gone(self, uint64_t ms, uint64_t seq) except -1
    cpdef Sliced put_off(self, int resp)


cdef class SlicedChosen(Sliced):
    cdef Ids ids
    cdef size_t next
    cdef list blocks
    cdef Block block
    cdef View view
    cdef Cursor cursor
    cdef IdText id_text
    cdef EntryId head
    cdef int resp

    cdef int fill(self, Output out, Py_ssize_t full_size) except -1
    cdef bint find(self, uint64_t ms, uint64_t seq) except -1
    cdef int next_block(self) except -1


cdef Finder finder_of(Stream stream)
cdef Chosen choice_of(Stream stream)
