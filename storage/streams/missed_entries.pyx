# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The entries of a stream that were trimmed before its groups read or acknowledged them."""

from libc.stdint cimport UINT64_MAX as MAX, uint64_t
cimport cython

from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.groups.consumers cimport Details
from millstream.storage.groups.group cimport Group, first_read_held, holds_read, keys_of
from millstream.storage.groups.key_order cimport KeyOrder
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport first_pending, next_pending
from millstream.storage.log.entry_log cimport EntryLog
from millstream.storage.streams.stream_groups cimport all_groups


cdef inline void lower_to(EntryId* lowest, EntryId other) noexcept:
    if id_less(other.ms, other.seq, lowest.ms, lowest.seq):
        lowest[0] = other


cdef inline void lower_to_pending(EntryId* lowest, Group group, EntryId start) noexcept:
    """Lower an ID to that of the first pending or parked entry from `start` on."""
    cdef EntryId held
    if first_read_held(group, start, &held):
        lower_to(lowest, held)


@cython.no_gc
cdef class MissedEntries:
    """Counts the missed entries of each group, in constant time for most trims (decision 102), and the
    pending entries that were trimmed.

    A group is overtaken if its offset is below `floor`: all entries that are left, or will be added,
    have this ID or a higher one. So the group misses every entry that is trimmed before it moves
    on. `trimmed` is the number of entries trimmed so far. It is subtracted from the group's number
    when the group is overtaken, and added when it moves on. The offsets of all other groups, and their
    pending entries, are at or above `lowest`, so a trim up to this ID needs no look at the groups.
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
        else:
            lower_to(&self.lowest, EntryId(one.offset_ms, one.offset_seq))
            lower_to_pending(&self.lowest, one, self.floor)
        return 0

    cdef int lower(self, EntryId pending) noexcept:
        """Note an entry that may have become pending again."""
        if not id_less(pending.ms, pending.seq, self.floor.ms, self.floor.seq):
            lower_to(&self.lowest, pending)
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
        self.newly_overtaken = self.missed_by_them = self.lost_pending_now = 0
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
        remove this number of entries, and count the pending entries among these."""
        cdef Group group
        cdef EntryId oldest = EntryId(0, 0)
        cdef bint any_left = log.first_entry(&oldest)
        cdef EntryId offset
        cdef EntryId lowest = EntryId(MAX, MAX)
        cdef EntryId counted = EntryId(0, 0)
        cdef uint64_t unread = removed
        for group in all_groups(groups):
            if self.is_overtaken(group):
                continue
            offset = EntryId(group.offset_ms, group.offset_seq)
            if any_left and holds_read(group):
                self.count_held(log, group, oldest, first)
                lower_to_pending(&lowest, group, first)
            if not id_less(offset.ms, offset.seq, first.ms, first.seq):
                lower_to(&lowest, offset)
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

    cdef int count_held(self, EntryLog log, group, EntryId oldest, EntryId first) except -1:
        """Count the entries of a group that it has read and holds, and that a trim of all entries below
        `first` will remove. `oldest` is the oldest entry."""
        cdef Group one = group
        cdef Details details
        cdef uint64_t count = 0
        cdef EntryId end = EntryId(one.offset_ms, one.offset_seq)
        cdef const Pending* record = NULL
        cdef PendingAt at
        cdef View view
        cdef Entry entry
        if one.pending.records.count:
            record = first_pending(one.pending.records, oldest, &at)
        while record != NULL and id_less(record.ms, record.seq, first.ms, first.seq) and not id_less(
                end.ms, end.seq, record.ms, record.seq):
            # Without deletions, every pending entry from the oldest on exists.
            count += id_less(log.max_deleted_ms, log.max_deleted_seq, oldest.ms, oldest.seq) or log.find(
                EntryId(record.ms, record.seq), &view, &entry)
            record = next_pending(one.pending.records, &at)
        count += self.count_parked(log, group, oldest, first)
        if count:
            details = one.pending.own_details()
            details.lost_pending += count
            self.lost_pending_now += count
        return 0

    cdef uint64_t count_parked(self, EntryLog log, group, EntryId oldest, EntryId first) noexcept:
        """The number of parked entries that a trim of all entries below `first` will remove."""
        cdef KeyOrder keys = keys_of(group)
        cdef EntryId at = oldest
        cdef View view
        cdef Entry entry
        cdef uint64_t count = 0
        while keys is not None and keys.first_parked(at, &at) and id_less(
                at.ms, at.seq, first.ms, first.seq):
            count += log.find(at, &view, &entry)
            step_up(&at)  # it is below `first`
        return count

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
        self.lost_pending_now = 0
        if id_less(self.floor.ms, self.floor.seq, first.ms, first.seq):
            self.floor = first
        return 0

    cdef int settle(self, groups) except -1:
        """Complete the numbers of all groups. The next trim looks at all of them."""
        for group in all_groups(groups):
            self.leave(group)
        self.floor = self.lowest = EntryId(0, 0)
        self.trimmed = self.missed_now = self.lost_pending_now = 0
        return 0
