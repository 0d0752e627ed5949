from libc.stdint cimport uint64_t
cimport cython

from millstream.entry_id cimport EntryId
from millstream.storage.log.entry_log cimport EntryLog


@cython.no_gc
cdef class MissedEntries:
    cdef EntryId floor
    cdef EntryId lowest
    cdef uint64_t trimmed
    cdef uint64_t overtaken
    # Of the newest trim: the groups that it overtook, the entries that these missed, and the
    # entries that all groups missed.
    cdef uint64_t newly_overtaken
    cdef uint64_t missed_by_them
    cdef uint64_t missed_now
    # The pending entries that it evicted, counted for each group.
    cdef uint64_t lost_pending_now

    cdef bint is_overtaken(self, group) noexcept
    cdef int enter(self, group) noexcept
    cdef int leave(self, group) noexcept
    cdef int moved_on(self, group) noexcept
    cdef int lower(self, EntryId pending) noexcept
    cdef int before_trim(self, EntryLog log, EntryId first, bint all_entries, groups) except -1
    cdef int find_overtaken(self, EntryLog log, EntryId first, uint64_t removed, groups) except -1
    cdef int count_held(self, EntryLog log, group, EntryId oldest, EntryId first) except -1
    cdef uint64_t count_parked(self, EntryLog log, group, EntryId oldest, EntryId first) noexcept
    cdef int after_trim(self, uint64_t evicted) noexcept
    cdef int after_quick_trim(self, uint64_t evicted, EntryId first) noexcept
    cdef int settle(self, groups) except -1
