from libc.stdint cimport int64_t, uint64_t

from millstream.commands.engine.search_work cimport SearchShare
from millstream.commands.runtime.replies cimport RowSource
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.log.log_search cimport Search
from millstream.storage.streams.stream cimport Stream


cdef class SearchReply(RowSource):
    cdef bytes ready
    cdef bint is_complete
    cdef SearchShare share

    cdef int keep_blocks(self) except -1


cdef class FilteredRange(SearchReply):
    cdef Stream stream
    cdef EntryFilter filter
    cdef EntryId start
    cdef EntryId end
    cdef Search search
    cdef Search again  # for the matches that were only counted
    cdef Output matches
    # Of a long search, in place of the stream: the blocks that are left, the next one last, and how
    # many of them `search`, and then `again`, has not looked at.
    cdef list blocks
    cdef Py_ssize_t left
    cdef bint is_searched
    cdef bint has_head
    cdef bytes lead
    cdef uint64_t lead_count
    # The reply if nothing matches; None: an array with the lead.
    cdef bytes when_none

    cdef int begin(self, EntryId start, EntryId end, uint64_t limit) noexcept
    cdef int find_rest(self, EntryId* start, EntryId* end) noexcept
    cdef int begin_with(self, Output lead, uint64_t count) except -1
    cdef bint go_on(self, int64_t* work) except -1
    cdef int put_head(self, Output out) except -1
    cdef bint put_matches(self, Output out, Py_ssize_t full_size) except -1
    cdef int put_before(self, Output out) except -1
    cdef int put_after(self, Output out) except -1


cdef class FilteredStreams(SearchReply):
    cdef list keys
    cdef list ranges
    cdef Py_ssize_t at
    cdef uint64_t left
    cdef Py_ssize_t size_bytes
    cdef Py_ssize_t made_bytes
    cdef bint has_head

    cdef Py_ssize_t before_size(self, Py_ssize_t at) except -1
    cdef int put_head(self, Output out) except -1
    cdef int set_space(self, FilteredRange part) except -1
    cdef bint search_all(self) except -1
    cdef bint go_on(self, int64_t* work) except -1


cdef FilteredRange make_filtered(Stream stream, EntryFilter filter, bint dotted, EntryId start,
                                 EntryId end, uint64_t limit)
cdef FilteredStreams make_filtered_streams(uint64_t most, Py_ssize_t size_bytes)
cdef int put_key(Output out, bytes key, int resp) except -1
