from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.replies cimport Encodable, Sliced
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.streams.stream cimport Stream


cdef class EntryRange(Encodable):
    cdef Stream stream
    cdef EntryId start
    cdef EntryId end
    cdef uint64_t limit
    cdef bint dotted
    cdef bint reverse
    cdef bytes lead
    cdef uint64_t lead_count
    cdef Sliced remainder

    cdef uint64_t count(self) noexcept
    cdef int begin_with(self, Output lead, uint64_t count) except -1
    cdef Sliced rest_after(self, EntryId* last, uint64_t left)
    cdef int encode_long(self, Output out) except -1
    cdef int64_t encode_entries(self, Output out, uint64_t limit, Py_ssize_t full_size,
                                EntryId* last) except -1


cdef EntryRange make_range(Stream stream, bint dotted, uint64_t limit)
cdef int take_start(Args args, EntryId* out, bint dot_allowed) except -1
cdef int take_end(Args args, EntryId* out, bint dot_allowed) except -1
cdef int take_limit(Args args, uint64_t* limit) except -1
cdef bint has_gap(Stream stream, EntryId after) noexcept


cdef class Parts(Encodable):
    cdef list parts
    cdef list later
    cdef Py_ssize_t full_size

    cdef int begin(self, Output out) except -1
    cdef int put_entries(self, Output out, Encodable entries, int resp) except -1


cdef Encodable make_parts(list parts)
