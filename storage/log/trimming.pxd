from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.log.entry_log cimport EntryLog

cdef uint64_t evict_below(EntryLog log, EntryId first, bint at_once) except? 0xffffffffffffffff
cdef uint64_t evict_oldest(EntryLog log, uint64_t count, EntryId first_max) noexcept
cpdef uint64_t evict_all(EntryLog log) except? 0xffffffffffffffff
cpdef uint64_t evict_ids(EntryLog log, list ids) except? 0xffffffffffffffff
cpdef list delete_ids(EntryLog log, list ids)
cdef uint64_t delete_between(EntryLog log, EntryId first, EntryId last) except? 0xffffffffffffffff
cdef bint delete_entry(EntryLog log, EntryId entry_id) except -1
cdef int write_end_again(EntryLog log, uint32_t node_entries, uint32_t node_bytes) except -1
