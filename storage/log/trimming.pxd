from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.log.entry_log cimport EntryLog


# The oldest entries of a log, up to an ID: how many they are, the last of them, and the entry after it,
# which is in the same block.
cdef struct HeadRun:
    uint64_t count
    EntryId last
    EntryId following
    bint has_following


cdef bint find_head_run(EntryLog log, EntryId first, HeadRun* run) noexcept
cdef uint64_t evict_head_run(EntryLog log, const HeadRun* run) noexcept
cdef uint64_t evict_below(EntryLog log, EntryId first, bint at_once) except? 0xffffffffffffffff
cdef uint64_t evict_oldest(EntryLog log, uint64_t count, EntryId first_max) noexcept
cpdef uint64_t evict_all(EntryLog log) except? 0xffffffffffffffff
cpdef uint64_t evict_ids(EntryLog log, list ids) except? 0xffffffffffffffff
cpdef list delete_ids(EntryLog log, list ids)
cdef uint64_t delete_between(EntryLog log, EntryId first, EntryId last) except? 0xffffffffffffffff
cdef bint delete_entry(EntryLog log, EntryId entry_id) except -1
cdef int write_end_again(EntryLog log, uint32_t node_entries, uint32_t node_bytes) except -1
