from libc.stdint cimport int64_t, uint64_t

from millstream.ids cimport EntryId
from millstream.storage.group cimport Group
from millstream.storage.stream cimport Stream

cdef bint is_broken(Stream stream, Group group) noexcept
cdef int count_read(Stream stream, Group group, EntryId first, uint64_t given,
                    bint broken) except -1
