from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.log.entry_log cimport EntryLog


# A search that may be continued: what is left, and what was found. `start`, in reverse `end`, moves
# past the entries that were looked at. Matches are encoded until the output has `full_size` bytes,
# and then only counted; if `stops_when_full`, the search stops there. `work` is how much may be looked
# at now.
cdef struct Search:
    EntryId start
    EntryId end
    uint64_t limit
    int64_t work
    Py_ssize_t full_size
    bint stops_when_full
    bint reverse
    bint dotted
    uint64_t found
    uint64_t encoded
    EntryId last
    EntryId last_encoded


cdef int begin_search(Search* search, EntryId start, EntryId end, uint64_t limit) noexcept
cdef bint search_log(EntryLog log, EntryFilter filter, Search* search, Output out) except -1
cdef Py_ssize_t search_blocks(list blocks, Py_ssize_t left, EntryFilter filter, Search* search,
                              Output out) except -1
