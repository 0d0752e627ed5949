from libc.stdint cimport int64_t, uint64_t

from millstream.commands.engine.searching cimport FilteredRange
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.replies cimport RowSource
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.streams.stream cimport Stream


cdef class EntryRange(RowSource):
    cdef Stream stream
    cdef EntryId start
    cdef EntryId end
    cdef uint64_t limit
    cdef bint dotted
    cdef bint reverse
    cdef bint has_head
    cdef bytes lead
    cdef uint64_t lead_count
    # Of a long reply, in place of the stream: the blocks with the remaining entries.
    cdef list blocks

    cdef uint64_t count(self) noexcept
    cdef int put_before(self, Output out, int resp) except -1
    cdef int begin_with(self, Output lead, uint64_t count) except -1
    cdef int64_t encode_entries(self, Output out, uint64_t limit, Py_ssize_t full_size,
                                EntryId* last) except -1


cdef EntryRange make_range(Stream stream, bint dotted, uint64_t limit)
cdef int take_bound(Args args, EntryId* out, bint is_end, bint dot_allowed) except -1
cdef EntryFilter take_options(Args args, uint64_t* limit)
cdef FilteredRange filtered(EntryRange all_entries, EntryFilter filter)
cdef bint has_gap(Stream stream, EntryId after) noexcept
