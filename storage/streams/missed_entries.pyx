# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The entries of a stream that were trimmed before its groups read them."""

from libc.stdint cimport UINT64_MAX as MAX, uint64_t
cimport cython

from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.groups.group cimport Group
from millstream.storage.log.entry_log cimport EntryLog
from millstream.storage.streams.stream_groups cimport all_groups


@cython.no_gc
cdef class MissedEntries:
    """Counts the missed entries of each group, in constant time for most trims (decision 102).

    A group is overtaken if its offset is below `floor`: all entries that are left, or will be added,
    have this ID or a higher one. So the group misses every entry that is trimmed before it moves
    on. `trimmed` is the number of entries trimmed so far. It is subtracted from the group's number
    when the group is overtaken, and added when it moves on. The offsets of all other groups are at
    or above `lowest`, so a trim up to this ID needs no look at the groups.
    """

    cdef bint is_overtaken(self, group) noexcept:
        cdef Group one = group
        return id_less(one.offset_ms, one.offset_seq, self.floor.ms, self.floor.seq)

    cdef int enter(self, group) noexcept:
        """Begin with a group that was added or moved; its number is complete."""
        cdef Group one = group
        if self.is_overtaken(group):
            one.missed -= self.trimmed
            self.overtaken += 1
        elif id_less(one.offset_ms, one.offset_seq, self.lowest.ms, self.lowest.seq):
            self.lowest.ms = one.offset_ms
            self.lowest.seq = one.offset_seq
        return 0

    cdef int leave(self, group) noexcept:
        """Complete the number of a group that will be removed or moved."""
        if self.is_overtaken(group):
            (<Group>group).missed += self.trimmed
            self.overtaken -= 1
        return 0

    cdef int moved_on(self, group) noexcept:
        """Complete the number of a group that was overtaken and has been moved."""
        (<Group>group).missed += self.trimmed
        self.overtaken -= 1
        return self.enter(group)

    cdef int before_trim(self, EntryLog log, EntryId first, bint all_entries, groups) except -1:
        """Prepare for a trim of the entries below `first`, or of all entries."""
        self.newly_overtaken = self.missed_by_them = 0
        if all_entries or id_less(log.last_ms, log.last_seq, first.ms, first.seq):
            # Entries that will be added have IDs above the last one, but maybe below `first`.
            first = EntryId(log.last_ms, log.last_seq)
            step_up(&first)
        if id_less(self.lowest.ms, self.lowest.seq, first.ms, first.seq):
            self.find_overtaken(
                log, first, log.length if all_entries else log.rank_of(first), groups)
        if id_less(self.floor.ms, self.floor.seq, first.ms, first.seq):
            self.floor = first
        return 0

    cdef int find_overtaken(self, EntryLog log, EntryId first, uint64_t removed, groups) except -1:
        """Find the groups that are overtaken by a trim of all entries below `first`, which will
        remove this number of entries."""
        cdef Group group
        cdef EntryId offset
        cdef EntryId lowest = EntryId(MAX, MAX)
        cdef EntryId counted = EntryId(0, 0)
        cdef uint64_t unread = removed
        for group in all_groups(groups):
            if self.is_overtaken(group):
                continue
            offset = EntryId(group.offset_ms, group.offset_seq)
            if not id_less(offset.ms, offset.seq, first.ms, first.seq):
                if id_less(offset.ms, offset.seq, lowest.ms, lowest.seq):
                    lowest = offset
                continue
            if offset.ms != counted.ms or offset.seq != counted.seq:
                counted = offset
                step_up(&offset)
                unread = removed - log.rank_of(offset)
            group.missed += unread - (self.trimmed + removed)
            self.newly_overtaken += 1
            self.missed_by_them += unread
        self.overtaken += self.newly_overtaken
        self.lowest = lowest
        return 0

    cdef int after_trim(self, uint64_t evicted) noexcept:
        """Count the entries of a trim."""
        self.trimmed += evicted
        self.missed_now = evicted * (self.overtaken - self.newly_overtaken) + self.missed_by_them
        return 0

    cdef int after_quick_trim(self, uint64_t evicted, EntryId first) noexcept:
        """Count the entries of a trim of entries below `lowest`, which needed no look at the
        groups. `first`: the oldest entry that is left."""
        self.trimmed += evicted
        self.missed_now = evicted * self.overtaken
        if id_less(self.floor.ms, self.floor.seq, first.ms, first.seq):
            self.floor = first
        return 0

    cdef int settle(self, groups) except -1:
        """Complete the numbers of all groups. The next trim looks at all of them."""
        for group in all_groups(groups):
            self.leave(group)
        self.floor = self.lowest = EntryId(0, 0)
        self.trimmed = self.missed_now = 0
        return 0
