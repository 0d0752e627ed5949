# cython: language_level=3, cdivision=True, initializedcheck=False
"""Trimming with ACKED: evicts only entries that every group has read and acknowledged.

Redis walks a stream from its head node by node and checks every entry in every group. The result
here is the same, but most held entries need no check: all entries after the smallest offset of a
group are held; counts show that all entries of a block are pending, or that no more entries can be
evicted. In the remaining cases the groups' pending entries are walked in parallel with the entries,
which avoids searches.
"""

from libc.stdint cimport UINT64_MAX as MAX, uint64_t
from libc.stdlib cimport calloc, free

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport View, cursor_next
from millstream.storage.streams.group cimport Group, Pending, PendingAt
from millstream.storage.blocks.pages cimport same_place
from millstream.storage.streams.nodes cimport nodes_of
from millstream.storage.streams.stream cimport Stream, Walk


cdef class Holders:
    """The groups of a stream, queried with ascending IDs."""

    cdef list groups
    cdef PendingAt* places
    # Every group has read up to this ID.
    cdef EntryId read
    # The number of entries that were checked individually. Tests limit it.
    cdef uint64_t steps

    def __init__(self, Stream stream):
        cdef Group group
        self.groups = list(stream.groups.values())
        self.places = <PendingAt*>calloc(max(1, len(self.groups)), sizeof(PendingAt))
        if self.places == NULL:
            raise MemoryError("no memory to look at pending entries")
        self.read.ms = self.read.seq = MAX
        for group in self.groups:
            if id_less(group.offset_ms, group.offset_seq, self.read.ms, self.read.seq):
                self.read.ms = group.offset_ms
                self.read.seq = group.offset_seq

    def __dealloc__(self):
        free(self.places)

    cdef uint64_t free_at_most(self, Stream stream) noexcept:
        """An upper bound of the number of entries that no group holds: the entries that all groups
        have read, minus the largest number of pending entries of a group. Without this subtraction
        if entries were deleted, because they may still be pending."""
        cdef Group group
        cdef EntryId first
        cdef uint64_t pending = 0
        cdef uint64_t read = stream.count_between(0, 0, self.read.ms, self.read.seq)
        if not stream.first_entry(&first) or not id_less(
                stream.max_deleted_ms, stream.max_deleted_seq, first.ms, first.seq):
            return read
        for group in self.groups:
            pending = max(pending, group.count_between(
                first.ms, first.seq, self.read.ms, self.read.seq))
        return read - min(read, pending)

    cdef bint have_read(self, uint64_t ms, uint64_t seq) noexcept:
        """Whether every group has read up to this ID or further."""
        return not id_less(self.read.ms, self.read.seq, ms, seq)

    cdef bint is_pending(self, uint64_t ms, uint64_t seq) noexcept:
        """Whether this entry is pending in a group."""
        cdef Group group
        cdef Pending* record
        cdef Py_ssize_t i
        self.steps += 1
        for i in range(len(self.groups)):
            group = self.groups[i]
            record = group.advance(&self.places[i], ms, seq)
            if record != NULL and record.ms == ms and record.seq == seq:
                return True
        return False

    cdef bint are_pending(self, const View* view) noexcept:
        """Whether all entries of a block without deleted entries are pending in one group. Only
        former entries can be pending, so counting is enough. (XSETID below IDs of removed entries
        rewrites the last block without them: then an entry may wrongly count as held.)"""
        cdef Group group
        cdef Py_ssize_t i
        for i in range(len(self.groups)):
            group = self.groups[i]
            group.advance(&self.places[i], view.first_ms, view.first_seq)
            if group.count_up_to(self.places[i], view.last_ms, view.last_seq) == view.count:
                return True
        return False


cdef list unheld_ids(Stream stream, const Goal* goal):
    """The IDs (ms, seq) to evict, in order."""
    return find_unheld(stream, goal, Holders(stream))


cdef list find_unheld(Stream stream, const Goal* goal, Holders holders):
    cdef Walk walk
    cdef list gone = []
    cdef uint64_t hidden
    cdef uint64_t most = holders.free_at_most(stream)
    cdef bint more = most > 0
    stream.walk_start(&walk, 0, 0)
    while more and walk.valid and holders.have_read(walk.view.first_ms, walk.view.first_seq):
        hidden = stream.head_gone if same_place(walk.place, stream.head_place()) else 0
        if not continues_after(&walk.view, goal, stream.length, len(gone)):
            more = take_from_nodes(stream, &walk, hidden, goal, holders, most, gone)
        elif hidden or walk.view.live != walk.view.count or not holders.are_pending(&walk.view):
            more = take_all(&walk, holders, most, gone)
        stream.walk_block(&walk)
    return gone


cdef bint continues_after(const View* view, const Goal* goal, uint64_t length,
                          uint64_t gone) noexcept:
    """Whether trimming continues after a block even if the whole block is evicted. If so, its nodes
    do not matter."""
    if goal.limit and gone + view.live > goal.limit:
        return False
    if goal.by_length:
        return length - gone >= view.live + goal.keep
    return id_less(view.last_ms, view.last_seq, goal.first_kept.ms, goal.first_kept.seq)


cdef bint take_all(Walk* walk, Holders holders, uint64_t most, list gone) except -1:
    """Add the entries of a block that are not held to `gone`; False when no later entry can be
    evicted."""
    while next_entry(walk):
        if not holders.have_read(walk.cursor.entry.ms, walk.cursor.entry.seq):
            return False
        if not holders.is_pending(walk.cursor.entry.ms, walk.cursor.entry.seq):
            gone.append((walk.cursor.entry.ms, walk.cursor.entry.seq))
            if <uint64_t>len(gone) == most:
                return False
    return True


cdef bint take_from_nodes(Stream stream, Walk* walk, uint64_t hidden, const Goal* goal,
                          Holders holders, uint64_t most, list gone) except -1:
    """Like take_all, node by node; False also when trimming ends in the block."""
    cdef EntryId last
    cdef uint64_t live
    cdef uint64_t left = stream.length - <uint64_t>len(gone)
    cdef bint is_whole
    cdef bint more = next_entry(walk)
    for _, (last.ms, last.seq), live in nodes_of(&walk.view, hidden):
        if goal.by_length:
            if left <= goal.keep:
                return False
            is_whole = left >= live + goal.keep
        else:
            is_whole = id_less(last.ms, last.seq, goal.first_kept.ms, goal.first_kept.seq)
        if goal.limit and <uint64_t>len(gone) + live > goal.limit:
            return False
        while more and not id_less(last.ms, last.seq, walk.cursor.entry.ms, walk.cursor.entry.seq):
            if is_end(walk, goal, left) or not holders.have_read(
                    walk.cursor.entry.ms, walk.cursor.entry.seq):
                return False
            if not holders.is_pending(walk.cursor.entry.ms, walk.cursor.entry.seq):
                gone.append((walk.cursor.entry.ms, walk.cursor.entry.seq))
                left -= 1
                if <uint64_t>len(gone) == most:
                    return False
            more = next_entry(walk)
        if not is_whole:
            return False
    return True


cdef inline bint is_end(const Walk* walk, const Goal* goal, uint64_t left) noexcept:
    if goal.by_length:
        return left <= goal.keep
    return not id_less(walk.cursor.entry.ms, walk.cursor.entry.seq, goal.first_kept.ms,
                       goal.first_kept.seq)


cdef bint next_entry(Walk* walk) noexcept:
    """Move to the next undeleted entry of the block; False at its end."""
    while cursor_next(&walk.cursor, &walk.view):
        if not walk.cursor.entry.deleted:
            return True
    return False


def unheld(Stream stream not None, keep=None, minid=None, uint64_t limit=0) -> tuple[list[tuple[int, int]], int]:
    """The IDs to evict (for tests; keep or minid is given, as in a Goal), and the number of entries
    that were checked individually."""
    cdef Goal goal
    cdef Holders holders = Holders(stream)
    goal.by_length = keep is not None
    goal.keep = keep or 0
    goal.first_kept.ms, goal.first_kept.seq = minid or (0, 0)
    goal.limit = limit
    return find_unheld(stream, &goal, holders), holders.steps
