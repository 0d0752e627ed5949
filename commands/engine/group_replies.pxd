from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.replies cimport Encodable
from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport Pending
from millstream.storage.streams.stream cimport Stream


cdef Encodable pending_range(Group group, EntryId start, EntryId end, int64_t limit,
                             int64_t min_idle_ms, uint64_t now_ms, Consumer owner)
cdef int64_t idle_of(const Pending* record, uint64_t now_ms) noexcept
cpdef int64_t entries_up_to(Stream stream, uint64_t ms, uint64_t seq) except? -1
