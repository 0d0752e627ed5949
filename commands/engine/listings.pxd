from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.group_lag cimport Ends
from millstream.commands.runtime.replies cimport Encodable, Sliced
from millstream.encoding cimport Output
from millstream.storage.streams.group cimport Group, Pending
from millstream.storage.streams.shared_groups cimport GroupParts, SharedGroups, SharedMembers
from millstream.storage.streams.stream cimport Stream


# The places of names in a list, sorted by name in steps.
cdef class NameOrder:
    cdef list names
    cdef uint32_t* places
    cdef uint32_t* spare
    cdef size_t count
    # Runs of `width` are being merged: the ones from `left` and `middle` up to `right`.
    cdef size_t width
    cdef size_t left
    cdef size_t middle
    cdef size_t right
    cdef size_t first
    cdef size_t second
    cdef size_t filled

    cdef bint step(self, int64_t* looks) noexcept
    cdef bint next_runs(self) noexcept
    cdef inline bint is_after(self, uint32_t a, uint32_t b) noexcept


cdef class SlicedListing(Sliced):
    cdef int resp
    cdef bint begun

    cdef bint is_short(self) noexcept
    cdef int fill(self, Output out, Py_ssize_t full_size) except -1


cdef class Listing(Encodable):
    cdef SlicedListing listing
    cdef Sliced remainder
    # Encoded before the list.
    cdef bytes head


cdef class SlicedConsumers(SlicedListing):
    cdef SharedMembers members
    cdef NameOrder order
    cdef size_t next
    cdef uint64_t now_ms
    # Of the summary of XPENDING: name and count alone.
    cdef bint summary

    cdef int put_row(self, Output out, uint32_t place) except -1


# A group with consumers in XINFO STREAM FULL.
cdef class FullGroup:
    cdef GroupParts parts
    cdef NameOrder order
    # Per consumer, by its number, where its records begin, and the records.
    cdef size_t* starts
    cdef const Pending** records
    cdef size_t* filled
    cdef size_t wanted
    cdef size_t found
    cdef uint32_t chunk
    cdef uint64_t limit

    cdef int begin(self) except -1
    cdef bint step(self, int64_t* looks) noexcept
    cdef int collect_chunk(self) noexcept


cdef enum Stage:
    GROUP
    PENDING
    CONSUMER
    RECORDS


cdef class SlicedGroups(SlicedListing):
    cdef SharedGroups groups
    cdef NameOrder order
    cdef Ends ends
    cdef size_t next
    # FULL: the most records shown of a group and of each consumer, and what was made ready.
    cdef bint is_full
    cdef uint64_t limit
    cdef list full
    cdef size_t prepared
    # What the wall clock, of which the times shown are, is ahead of the steady clock.
    cdef int64_t wall_ahead_ms
    # Where it stands within a group.
    cdef Stage stage
    cdef FullGroup current
    cdef uint32_t chunk
    cdef uint32_t index
    cdef uint64_t left
    cdef size_t consumer
    cdef size_t record

    cdef bint prepare_full(self, int64_t* looks) except -1
    cdef int put_group(self, Output out, uint32_t place) except -1
    cdef int put_full_group(self, Output out) except -1
    cdef int begin_full_group(self, Output out) except -1
    cdef int put_pending(self, Output out, Py_ssize_t full_size) except -1
    cdef int put_consumer(self, Output out) except -1
    cdef int put_records(self, Output out, Py_ssize_t full_size) except -1
    cdef int put_counts(self, Output out, uint32_t place) except -1

