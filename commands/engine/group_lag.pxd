from libc.stdint cimport int64_t, uint64_t

from millstream.ids cimport EntryId
from millstream.storage.streams.group cimport Group
from millstream.storage.streams.stream cimport Stream


# What is known of a stream's ends, from which a group's distances are counted.
cdef struct Ends:
    EntryId first
    EntryId last
    EntryId deleted
    uint64_t length
    uint64_t added
    bint empty


cdef int ends_of(Stream stream, Ends* ends) noexcept
cdef bint find_lag(const Ends* ends, EntryId offset, int64_t entries_read,
                   int64_t* lag) noexcept
cdef bint is_broken(Stream stream, Group group) noexcept
cdef int count_read(Stream stream, Group group, EntryId first, uint64_t given,
                    bint broken) except -1
