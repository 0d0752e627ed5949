from libc.stdint cimport int64_t, uint64_t

from millstream.encoding cimport Output
from millstream.storage.groups.pending cimport Pending
from millstream.storage.streams.stream cimport Stream


cdef int put_idle(Output out, int64_t idle_ms) except -1
cdef int64_t idle_of(const Pending* record, uint64_t now_ms) noexcept
cpdef int64_t entries_up_to(Stream stream, uint64_t ms, uint64_t seq) except? -1
