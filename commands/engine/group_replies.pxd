from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.runtime.replies cimport Encodable, Sliced
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport Chunk, Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport SharedPending
from millstream.storage.groups.shared_groups cimport SharedGroups, SharedMembers
from millstream.storage.streams.stream cimport Stream


# The state of a search: its place, the number of records found, and the cost so far.
cdef struct Search:
    PendingAt at
    uint64_t found
    uint64_t looks
    # The number of the consumer's entries that were not found yet; the largest number for all
    # consumers.
    uint64_t unmet
    bint over


cdef class PendingRange(Encodable):
    cdef Group group
    cdef EntryId start
    cdef EntryId end
    cdef uint64_t limit
    cdef int64_t min_idle_ms
    cdef uint64_t now_ms
    # Records delivered later than this have not been idle for long enough.
    cdef uint64_t latest_ms
    # The owner of the wanted entries; None for all.
    cdef Consumer owner
    # The consumers by number, and the counts that do not fit into a record: the group's own, or
    # copies.
    cdef list consumers
    cdef bint has_idle_bounds
    cdef dict large_counts
    cdef bint is_long

    cdef bint is_empty(self) noexcept
    cdef bint takes_all(self) noexcept
    cdef int begin(self, Search* search) noexcept
    cdef int scan(self, Search* search, Chunk** chunks, uint32_t count, uint64_t looks,
                  Output out, Py_ssize_t full_size) except -1
    cdef int scan_chunk(self, Search* search, const Chunk* chunk, uint64_t looks, Output out,
                       Py_ssize_t full_size) except -1
    cdef inline bint is_idle(self, const Pending* record) noexcept
    cdef int put_row(self, Output out, const Pending* record) except -1
    cdef Sliced sliced(self)
    cdef uint32_t chunks_from(self, PendingAt at) noexcept


cdef class SlicedPending(Sliced):
    cdef PendingRange asked
    cdef SharedPending shared
    cdef Search search
    cdef uint32_t first_index
    cdef bint counting
    cdef bint head_due

    cdef int count_chunk(self) except -1
    cdef bint count_whole(self, const Chunk* chunk) noexcept
    cdef int begin_sending(self) except -1


cdef class StreamEnds:
    cdef EntryId first
    cdef EntryId last
    cdef EntryId deleted
    cdef uint64_t length
    cdef uint64_t added
    cdef bint is_empty

    cdef int64_t distance(self, EntryId at) noexcept
    cdef bint has_tombstones(self, EntryId start) noexcept
    cdef bint find_lag(self, EntryId offset, int64_t entries_read, int64_t* lag) noexcept


cdef class Rows(Encodable):
    cdef list names
    cdef list numbers

    cdef bint is_listed(self, Py_ssize_t number) noexcept
    cdef int put_row(self, Output out, int resp, Py_ssize_t number) except -1
    cdef list by_name(self)


cdef class ConsumerRows(Rows):
    cdef SharedMembers members
    cdef uint64_t now_ms


cdef class OwnerRows(Rows):
    cdef SharedMembers members


cdef class GroupRows(Rows):
    cdef SharedGroups groups
    cdef StreamEnds ends


cdef class GroupProgress(Encodable):
    cdef SharedGroups groups
    cdef StreamEnds ends
    cdef size_t number


cdef class FewConsumers(Encodable):
    cdef Group group
    cdef uint64_t now_ms


cdef class PendingSummary(Encodable):
    cdef Group group

    cdef int put_owners(self, Output out) except -1


cdef int put_idle(Output out, int64_t idle_ms) except -1
cdef int64_t idle_of(const Pending* record, uint64_t now_ms) noexcept
cpdef int64_t entries_up_to(Stream stream, uint64_t ms, uint64_t seq) except? -1
