# cython: language_level=3, cdivision=True, initializedcheck=False
"""Finds the entries that a stream's retention policy evicts, and the entries that no group holds.

Whole blocks are checked first, from the oldest on, by their totals: a block is evicted if the
remaining stream would still have the length or bytes that the policy keeps, or if the block's
newest entry is too old. An approximate policy does only this, so it never evicts an entry that an
exact policy would keep. An exact policy continues inside the first block that is kept. The cost is
one step per evicted block and one search inside a block; a limit on the blocks bounds it.

Trimming with ACKED evicts only entries that every group has read and acknowledged. Redis walks a
stream from its head node by node and checks every entry in every group. The result here is the
same, but most held entries need no check: all entries after the smallest offset of a group are
held; counts show that all entries of a block are pending, or that no more entries can be evicted. In the remaining cases the groups' pending entries are walked in parallel with the entries,
which avoids searches.
"""

from libc.stdint cimport UINT64_MAX as MAX, UINT64_MAX as NEVER, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.layout cimport (
    Cursor, Entry, View, cursor_next, cursor_seek, view_nth_live,
)
from millstream.storage.blocks.skiplist_pages cimport Place, block_at, place_after, same_place, view_block
from millstream.storage.groups.group cimport Group, is_parked
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport advance_pending, count_pending, count_up_to
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.log.trim_nodes cimport nodes_of
from millstream.storage.streams.stream cimport EVICT_ANY, RetentionPolicy, Stream

from millstream.storage.blocks.lazyfree import free_parts


cdef uint64_t kept_bytes(Stream stream) except? 0xffffffffffffffff:
    """The bytes of the stream's blocks: their entries, including deleted ones, and their tables
    (docs/formats.md). The first block counts only from its first existing entry on. Memory around
    the blocks and the memory of groups do not count."""
    cdef View view
    if not first_view(stream, &view):
        return 0
    return whole_bytes(stream) - bytes_before_first(stream, &view)


cdef uint64_t whole_bytes(Stream stream) except? 0xffffffffffffffff:
    cdef uint64_t total
    if stream.sealed is not None and stream.sealed.parts:
        free_parts(stream.sealed)  # they would be counted
    total = 0 if stream.sealed is None else stream.sealed.data_bytes
    return total + (stream.tail.data_size() if stream.has_tail() else 0)


cdef uint64_t bytes_before_first(Stream stream, const View* view) noexcept:
    """The bytes before the first existing entry in the stream's first block."""
    cdef Cursor cursor
    cdef const uint8_t* at
    cursor_seek(&cursor, view, stream.head_ms, stream.head_seq)
    at = cursor.at
    while cursor_next(&cursor, view) and cursor.entry.deleted:
        at = cursor.at
    return at - view.entries


cdef bint first_view(Stream stream, View* view) noexcept:
    cdef Place place = stream.head_place()
    if place.page != NULL:
        view_block(place, view)
        return True
    if stream.has_tail():
        stream.tail.view(view)
        return True
    return False


cdef bint oldest_block(Stream stream, EntryId* last, bint* is_open) noexcept:
    """Get the last ID of the stream's first block, and whether that is the open block; False when
    the stream has no block."""
    cdef View view
    is_open[0] = stream.head_place().page == NULL
    if not first_view(stream, &view):
        return False
    last.ms = view.last_ms
    last.seq = view.last_seq
    return True


cdef uint64_t age_trim_ms(Stream stream, uint64_t now_ms) noexcept:
    """The time from which the policy of a stream evicts entries for their age; NEVER if there is
    none. Entries that are too old now and that a group holds do not count: no time lets them go."""
    cdef RetentionPolicy policy = stream.policy
    cdef uint64_t young_ms = 0
    if policy is None:
        return NEVER
    if policy.evict == EVICT_ANY:
        return too_old_ms(stream, policy.max_age_ms, policy.exact, 0)
    if policy.max_age_ms and now_ms >= policy.max_age_ms:
        young_ms = now_ms - policy.max_age_ms + 1
    return min(too_old_ms(stream, policy.max_age_ms, policy.exact, young_ms),
               too_old_ms(stream, policy.hard_age_ms, policy.exact, 0))


cdef uint64_t too_old_ms(Stream stream, uint64_t age_ms, bint exact, uint64_t from_ms) noexcept:
    """The time at which the oldest entry, or with `exact` False the oldest block, with this time or a
    later one has this age; NEVER if there is none or age_ms is 0."""
    cdef Walk walk
    cdef uint64_t oldest_ms
    if age_ms == 0:
        return NEVER
    stream.walk_start(&walk, EntryId(from_ms, 0))
    if exact:
        if not stream.walk_next(&walk):
            return NEVER
        oldest_ms = walk.cursor.entry.ms
    else:
        while walk.valid and walk.view.last_ms < from_ms:
            stream.walk_block(&walk)
        if not walk.valid:
            return NEVER
        oldest_ms = walk.view.last_ms
    return NEVER if oldest_ms > NEVER - age_ms else oldest_ms + age_ms


cdef int find_trim_point(Stream stream, const Limits* limits, uint64_t now_ms, const EntryId* held,
                         uint32_t blocks_max, TrimPoint* cut) except -1:
    """Find the entries at the head that limits evict now, in at most blocks_max blocks. All of them are
    below `held`, unless it is NULL."""
    cdef Place place = stream.head_place()
    cdef uint64_t left = stream.length
    cdef uint64_t total = whole_bytes(stream) if limits.max_bytes else 0
    cdef uint64_t hidden = stream.head_gone
    cdef uint64_t size
    cdef View view
    cut.some = cut.all = cut.more = False
    cut.blocks = 0
    cut.first.ms = stream.head_ms
    cut.first.seq = stream.head_seq
    while True:
        if place.page != NULL:
            view_block(place, &view)
            size = <uint64_t>block_at(place).data_size()
        elif stream.has_tail():
            stream.tail.view(&view)
            size = <uint64_t>stream.tail.data_size()
        else:
            return 0
        if not is_over(limits, &view, now_ms, left - (view.live - hidden), total - size):
            break
        if held != NULL and not id_less(view.last_ms, view.last_seq, held.ms, held.seq):
            if limits.exact:
                cut_before(held.ms, held.seq, cut)
            return 0
        if cut.blocks == blocks_max:
            cut.more = True
            return 0
        cut_after(&view, cut)
        cut.blocks += 1
        if place.page == NULL:
            return 0
        left -= view.live - hidden
        total -= size
        hidden = 0
        place = place_after(place)
    if limits.exact:
        cut_by_length(limits, &view, left, hidden, cut)
        cut_by_age(limits, &view, now_ms, cut)
        cut_by_bytes(limits, &view, total, cut)
        if held != NULL and cut.some and (cut.all or id_less(
                held.ms, held.seq, cut.first.ms, cut.first.seq)):
            cut.all = False
            cut.first = held[0]
    return 0


cdef bint is_over(const Limits* limits, const View* view, uint64_t now_ms, uint64_t left,
                  uint64_t total) noexcept:
    """True if to evict a whole block; left and total are the entries and bytes after it."""
    return ((limits.max_len and left >= limits.max_len)
            or (limits.max_bytes and total >= limits.max_bytes)
            or (limits.max_age_ms and now_ms >= limits.max_age_ms
                and view.last_ms <= now_ms - limits.max_age_ms))


cdef void cut_after(const View* view, TrimPoint* cut) noexcept:
    """Evict this whole block."""
    cut.some = True
    cut.first.ms = view.last_ms
    cut.first.seq = view.last_seq
    # The largest possible ID has no successor; it is in the last block.
    cut.all = not step_up(&cut.first)


cdef void cut_before(uint64_t ms, uint64_t seq, TrimPoint* cut) noexcept:
    """Evict entries below this ID, if that evicts more than is already decided."""
    if not cut.all and id_less(cut.first.ms, cut.first.seq, ms, seq):
        cut.some = True
        cut.first.ms = ms
        cut.first.seq = seq


cdef void cut_by_length(const Limits* limits, const View* view, uint64_t left, uint64_t hidden,
                        TrimPoint* cut) noexcept:
    """Find the first entry of the block to keep; hidden: its entries that were evicted before."""
    cdef Entry entry
    if limits.max_len and left > limits.max_len and view_nth_live(
            view, 0, 0, hidden + left - limits.max_len, &entry):
        cut_before(entry.ms, entry.seq, cut)


cdef void cut_by_age(const Limits* limits, const View* view, uint64_t now_ms, TrimPoint* cut) noexcept:
    cdef Entry entry
    if limits.max_age_ms and now_ms >= limits.max_age_ms and view_nth_live(
            view, cut.first.ms, cut.first.seq, 0, &entry) and (
            entry.ms <= now_ms - limits.max_age_ms):
        cut_before(now_ms - limits.max_age_ms + 1, 0, cut)


cdef void cut_by_bytes(const Limits* limits, const View* view, uint64_t total, TrimPoint* cut) noexcept:
    """Find the first entry of the block to keep; total: the bytes of this block and of those after
    it."""
    cdef Cursor cursor
    cdef uint64_t excess
    cdef uint64_t offset
    cdef bint passed = False
    if not limits.max_bytes or total <= limits.max_bytes:
        return
    excess = total - limits.max_bytes
    cursor_seek(&cursor, view, cut.first.ms, cut.first.seq)
    offset = cursor.at - view.entries
    while cursor_next(&cursor, view):
        if not cursor.entry.deleted:
            if offset >= excess:
                if passed:
                    cut_before(cursor.entry.ms, cursor.entry.seq, cut)
                return
            passed = True
        offset = cursor.at - view.entries
    cut_after(view, cut)


# ---------------------------------------------------------------- for Python

def oldest_block_ms(Stream stream not None) -> int | None:
    """The milliseconds of the newest ID in the stream's first block; None without a block."""
    cdef EntryId last
    cdef bint is_open
    return last.ms if oldest_block(stream, &last, &is_open) else None


def bytes_of(Stream stream not None) -> int:
    """`kept_bytes`."""
    return kept_bytes(stream)


# ---------------------------------------------------------------- entries that no group holds

# Evict until `keep` entries are left (by_length), or up to the first ID that is at least
# `first_kept`. At most `limit` entries are evicted (0: no limit); a node that might exceed the
# limit is not trimmed. At most `steps_max` entries are checked individually (0: no limit).
cdef struct Goal:
    bint by_length
    uint64_t keep
    EntryId first_kept
    uint64_t limit
    uint64_t steps_max


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
        cdef uint64_t read = stream.count_between(EntryId(0, 0), self.read)
        if not stream.first_entry(&first) or not id_less(
                stream.max_deleted_ms, stream.max_deleted_seq, first.ms, first.seq):
            return read
        for group in self.groups:
            pending = max(pending, count_pending(group.pending.records, first, self.read))
        return read - min(read, pending)

    cdef bint have_read(self, uint64_t ms, uint64_t seq) noexcept:
        """True if every group has read up to this ID or further."""
        return not id_less(self.read.ms, self.read.seq, ms, seq)

    cdef bint is_kept(self, uint64_t ms, uint64_t seq) noexcept:
        """True if this entry is pending or parked in a group."""
        cdef Group group
        cdef Pending* record
        cdef Py_ssize_t i
        self.steps += 1
        for i in range(len(self.groups)):
            group = self.groups[i]
            record = advance_pending(group.pending.records, &self.places[i], EntryId(ms, seq))
            if record != NULL and record.ms == ms and record.seq == seq or is_parked(
                    group, EntryId(ms, seq)):
                return True
        return False

    cdef bint are_pending(self, const View* view) noexcept:
        """True if all entries of a block without deleted entries are pending in one group. Only
        former entries can be pending, so counting is enough. (XSETID below IDs of removed entries
        rewrites the last block without them: then an entry may wrongly count as held.)"""
        cdef Group group
        cdef Py_ssize_t i
        for i in range(len(self.groups)):
            group = self.groups[i]
            advance_pending(group.pending.records, &self.places[i],
                            EntryId(view.first_ms, view.first_seq))
            if count_up_to(group.pending.records, self.places[i],
                           EntryId(view.last_ms, view.last_seq)) == view.count:
                return True
        return False


cdef list find_unheld(Stream stream, const Goal* goal, Holders holders):
    cdef Walk walk
    cdef list gone = []
    cdef uint64_t hidden
    cdef uint64_t most = holders.free_at_most(stream)
    cdef bint more = most > 0
    stream.walk_start(&walk, EntryId(0, 0))
    while more and walk.valid and holders.have_read(walk.view.first_ms, walk.view.first_seq):
        hidden = stream.head_gone if same_place(walk.place, stream.head_place()) else 0
        if not continues_after(&walk.view, goal, stream.length, len(gone)):
            more = take_from_nodes(stream, &walk, hidden, goal, holders, most, gone)
        elif hidden or walk.view.live != walk.view.count or not holders.are_pending(&walk.view):
            more = take_all(&walk, holders, most, gone)
        more = more and not (goal.steps_max and holders.steps >= goal.steps_max)
        stream.walk_block(&walk)
    return gone


cdef bint continues_after(const View* view, const Goal* goal, uint64_t length,
                          uint64_t gone) noexcept:
    """True if trimming continues after a block even if the whole block is evicted. If so, its nodes
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
        if not holders.is_kept(walk.cursor.entry.ms, walk.cursor.entry.seq):
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
            if not holders.is_kept(walk.cursor.entry.ms, walk.cursor.entry.seq):
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


def unheld(Stream stream not None, keep=None, minid=None, uint64_t limit=0,
           uint64_t steps_max=0) -> tuple[list[tuple[int, int]], int]:
    """The IDs (ms, seq) to evict, in order, and the number of entries that were checked individually.
    Either `keep` or `minid` is given, as in a Goal. The search ends after the block in which
    `steps_max` is reached."""
    cdef Goal goal
    cdef Holders holders = Holders(stream)
    goal.by_length = keep is not None
    goal.keep = keep or 0
    goal.first_kept.ms, goal.first_kept.seq = minid or (0, 0)
    goal.limit = limit
    goal.steps_max = steps_max
    return find_unheld(stream, &goal, holders), holders.steps
