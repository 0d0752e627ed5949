# cython: language_level=3, cdivision=True, initializedcheck=False
"""What trimming with ACKED evicts: entries that every group has read and acknowledged.

Redis goes from the head of a stream node by node and asks every group for every entry. What goes is
the same here, but most of what is held is never looked at: after the smallest offset of a group
everything is, of a block all of whose entries are pending the counts tell, and so they do when
nothing more can be found. Elsewhere the groups' pending entries are walked along with the entries, so
that none has to be searched for.
"""

from libc.stdint cimport UINT64_MAX as MAX, uint64_t
from libc.stdlib cimport calloc, free

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.block cimport cursor_next
from millstream.storage.blocks.layout cimport View
from millstream.storage.streams.group cimport Group, Pending, PendingAt
from millstream.storage.blocks.skiplist cimport same_place
from millstream.storage.streams.stream cimport Stream, Walk, nodes_of


cdef class Holders:
    """The groups of a stream, asked for ids that rise."""

    cdef list groups
    cdef PendingAt* places
    # Every group has read up to here.
    cdef EntryId read
    # Entries asked for one by one: what the tests hold small.
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
        """No more entries than that are held by no group: those that all have read, without what
        the one with the most pending holds. Where entries were deleted nothing is known of what is
        pending."""
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
        """Whether this id is not above the offset of any group."""
        return not id_less(self.read.ms, self.read.seq, ms, seq)

    cdef bint is_pending(self, uint64_t ms, uint64_t seq) noexcept:
        """Whether a group has given this entry out and not seen it acknowledged."""
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
        """Whether one group has all entries of a block, none of which was deleted, pending. Only
        what was an entry once can be pending, so it is enough to count. (XSETID below ids that are
        gone writes the last block again without them: then one entry too many may count as held.)"""
        cdef Group group
        cdef Py_ssize_t i
        for i in range(len(self.groups)):
            group = self.groups[i]
            group.advance(&self.places[i], view.first_ms, view.first_seq)
            if group.count_up_to(self.places[i], view.last_ms, view.last_seq) == view.count:
                return True
        return False


cdef list unheld_ids(Stream stream, const Goal* goal):
    """The ids (ms, seq) that go, in order."""
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
        if not goes_on_behind(&walk.view, goal, stream.length, len(gone)):
            more = take_from_nodes(stream, &walk, hidden, goal, holders, most, gone)
        elif hidden or walk.view.live != walk.view.count or not holders.are_pending(&walk.view):
            more = take_all(&walk, holders, most, gone)
        stream.walk_block(&walk)
    return gone


cdef bint goes_on_behind(const View* view, const Goal* goal, uint64_t length,
                         uint64_t gone) noexcept:
    """Whether trimming continues after a block even if all of it went: then its nodes do not
    matter."""
    if goal.limit and gone + view.live > goal.limit:
        return False
    if goal.by_length:
        return length - gone >= view.live + goal.keep
    return id_less(view.last_ms, view.last_seq, goal.first_kept.ms, goal.first_kept.seq)


cdef bint take_all(Walk* walk, Holders holders, uint64_t most, list gone) except -1:
    """Add to `gone` what is not held of a block; False when there can be nothing after it."""
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
    """As take_all, node by node; False also when trimming ends in the block."""
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
    """Step to the next undeleted entry of the block; False at its end."""
    while cursor_next(&walk.cursor, &walk.view):
        if not walk.cursor.entry.deleted:
            return True
    return False


def unheld(Stream stream not None, keep=None, minid=None, uint64_t limit=0) -> tuple[list[tuple[int, int]], int]:
    """What goes, as a Goal says it (keep or minid is given), and how many entries were asked for
    one by one."""
    cdef Goal goal
    cdef Holders holders = Holders(stream)
    goal.by_length = keep is not None
    goal.keep = keep or 0
    goal.first_kept.ms, goal.first_kept.seq = minid or (0, 0)
    goal.limit = limit
    return find_unheld(stream, &goal, holders), holders.steps
