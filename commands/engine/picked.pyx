# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Delivering the entries of a group that has a filter or an order (TGROUP WHERE, ORDER, RUN).

The offset passes over entries that do not match. Entries whose key is not free are parked, and come
before new ones as soon as their key is free. A pass without a delivery is recorded with the next
delivery, or when it is long or old: a crash then only searches again.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t

from millstream.commands.engine.delivery cimport (
    ReplyBudget, count_read, is_broken, is_full, put_age,
)
from millstream.commands.engine.evicting cimport record_pass
from millstream.commands.engine.lifecycle cimport note_acked, note_freed
from millstream.commands.engine.search_work cimport SearchShare
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport ID_WORD_BYTES
from millstream.commands.runtime.stream_effects cimport Ids, Picked, Terms, record_pick
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.storage.blocks.entry_filter cimport MATCH, NO_MATCH, OUT_OF_WORK
from millstream.storage.blocks.layout cimport Cursor, Entry, View, cursor_next, cursor_seek
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.groups.group cimport Group, picking_of
from millstream.storage.groups.key_order cimport NO_ITEM, KeyOrder
from millstream.storage.groups.pending cimport NO_RETRY, PendingAt
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.groups.pending_list cimport PendingList
from millstream.storage.groups.picking cimport Picking, limits
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.streams.stream cimport Stream

cdef enum:
    # A pass of more entries, or that is older, is recorded.
    PASSED_MAX = 10000
    PASS_MS = 1000
    # The work of a delivered and of a parked entry, in the units of a search.
    DELIVERED_WORK = 20
    PARKED_WORK = 20
    # A read may do at least so much, whatever other searches have done in this turn.
    READ_WORK = 2000
    # Less work is that of an ordinary request, and is not counted.
    ORDINARY_WORK = 500
    # A read ends after this number of parked entries that no longer exist.
    GONE_MAX = 5000
    # A read delivers and parks fewer entries in its turn.
    PICKED_MOST = 20000


cdef bint has_parked_to_deliver(Group group) noexcept:
    """True if a parked entry has a free key."""
    cdef Picking picking = picking_of(group)
    return picking is not None and picking.keys is not None and picking.keys.has_free()


cdef bint is_search_cut(Group group) noexcept:
    """True if the last read has not looked at all new entries."""
    cdef Picking picking = picking_of(group)
    return picking is not None and picking.is_cut


cdef int64_t picked_most(Group group) noexcept:
    """The maximum size of the IDs of the entries that a read delivers and parks."""
    return 0 if picking_of(group) is None else PICKED_MOST * ID_WORD_BYTES


cdef uint64_t deliver_picked(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                             Output out, ReplyBudget* budget) except? 0xffffffffffffffff:
    """`deliver_new` for such a group: first parked entries, in ID order, then new ones. The search ends
    when it has taken long: `is_cut` of the Picking."""
    cdef PickedDelivery delivery
    cdef uint64_t limit = min(budget.limit, min(budget.entries, budget.places))
    if limit == 0 or is_full(out, budget):
        return 0
    delivery = PickedDelivery.__new__(PickedDelivery)
    delivery.stream, delivery.group, delivery.out, delivery.limit = stream, group, out, limit
    delivery.picking = picking_of(group)
    delivery.keys = delivery.picking.keys
    delivery.id_text.size = 0
    delivery.id_text.dotted = terms.dotted
    delivery.share = SearchShare.__new__(SearchShare)
    delivery.allowed = delivery.work = max(delivery.share.begin(), <int64_t>READ_WORK)
    # The reply first: if it does not fit into memory, nothing has been delivered.
    delivery.begin()
    try:
        delivery.pick_parked(budget)
        delivery.pick_new(budget)
        delivery.deliver(ctx, terms)
    except BaseException:
        delivery.undo()
        raise
    finally:
        if delivery.allowed - delivery.work > ORDINARY_WORK:
            delivery.share.end(min(delivery.work, delivery.share.given))
        delivery.next_read()
    delivery.settle(ctx, key, terms)
    return delivery.shown.count


cdef class PickedDelivery:
    """The entries that a reply has picked. The keys change at once, so that later entries are compared with them."""

    cdef Stream stream
    cdef Group group
    cdef Picking picking
    cdef KeyOrder keys
    cdef Output out
    cdef IdText id_text
    cdef uint64_t limit
    cdef SearchShare share
    # The work that is allowed, and what is left of it.
    cdef int64_t allowed
    cdef int64_t work
    # The delivered entries, of which the first `unparked` were parked; the entries that were parked.
    cdef Ids shown
    cdef size_t unparked
    cdef Ids parked
    # Parked entries that no longer exist.
    cdef list gone
    # The offset after the delivery.
    cdef EntryId to
    cdef bint has_passed

    cdef int begin(self) except -1:
        self.shown = Ids.__new__(Ids)
        self.parked = Ids.__new__(Ids)
        self.gone = []
        self.picking.is_cut = False
        return self.next_read()

    cdef int next_read(self) except -1:
        return 0 if self.keys is None else self.keys.next_read()

    # ------------------------------------------------------------ picking

    cdef bint has_space(self, ReplyBudget* budget) noexcept:
        """True if the reply accepts another entry."""
        return self.shown.count < self.limit and not is_full(self.out, budget)

    cdef int pick_parked(self, ReplyBudget* budget) except -1:
        """Encode parked entries whose keys are free."""
        cdef EntryId at
        cdef View view
        cdef Entry entry
        while self.keys is not None and self.has_space(budget) and self.keys.next_parked(&at):
            if self.work <= 0 or len(self.gone) > GONE_MAX:
                self.picking.is_cut = True
                break
            if not self.stream.find(at, &view, &entry):
                self.keys.forget(at)
                self.gone.append((at.ms, at.seq))
                continue
            self.put(&view, &entry, budget)
            self.keys.take_parked(at)
            self.unparked += 1
        return 0

    cdef int pick_new(self, ReplyBudget* budget) except -1:
        """Walk over the entries after the offset, as far as the reply accepts some."""
        cdef Walk walk
        cdef EntryId first = EntryId(self.group.offset_ms, self.group.offset_seq)
        if self.picking.is_cut or not self.has_space(budget) or not self.stream.has_newer(first):
            return 0
        step_up(&first)
        self.stream.skip_hidden(&first)  # entries that a trim has left in the first block
        self.stream.walk_enter(&walk, first)
        if walk.valid and id_less(walk.view.last_ms, walk.view.last_seq, first.ms, first.seq):
            self.stream.walk_block(&walk)
        while walk.valid and self.pick_in(&walk.view, first, budget):
            self.stream.walk_block(&walk)
        return 0

    cdef bint pick_in(self, const View* view, EntryId first, ReplyBudget* budget) except -1:
        """Walk over the entries of a block; False if the walk ends in it."""
        cdef Cursor cursor
        if not self.begin_block(view):
            self.pass_to(view.last_ms, view.last_seq)
            return True
        cursor_seek(&cursor, view, first.ms, first.seq)
        while self.has_space(budget):
            if self.work <= 0:
                self.picking.is_cut = True
                return False
            found = self.next_entry(&cursor, view)
            if found == NO_MATCH:
                self.pass_to(view.last_ms, view.last_seq)
                return True
            if found != OUT_OF_WORK and not self.take(view, &cursor.entry, budget):
                return False
            self.pass_to(cursor.entry.ms, cursor.entry.seq)
        return False

    cdef bint begin_block(self, const View* view) except -1:
        """Begin with a block; False if no entry of it matches."""
        cdef bint possible
        if self.picking.reader is not None:
            self.picking.reader.begin()
        if self.picking.filter is None:
            return True
        self.picking.filter.work = 0
        possible = self.picking.filter.begin(view)
        self.work -= self.picking.filter.work
        self.picking.filter.work = 0
        return possible

    cdef int next_entry(self, Cursor* cursor, const View* view) except -1:
        """Move to the next entry that matches, like `EntryFilter.next_match`."""
        if self.picking.filter is not None:
            return self.picking.filter.next_match(cursor, view, MAX, MAX, &self.work)
        if not cursor_next(cursor, view):
            return NO_MATCH
        self.work -= 1
        return OUT_OF_WORK if cursor.entry.deleted else MATCH

    cdef bint take(self, const View* view, const Entry* entry, ReplyBudget* budget) except -1:
        """Encode an entry, or park it; False if it can be neither."""
        cdef EntryId at = EntryId(entry.ms, entry.seq)
        cdef uint64_t hash
        if not self.picking.has_key(view, entry, &hash):
            return self.put(view, entry, budget) == 0
        if self.keys.find_entry(at) != NO_ITEM:
            return True  # the offset was set back, and it comes from its place
        if self.keys.is_free(hash):
            self.put(view, entry, budget)
            self.keys.begin(at, hash)
            return True
        if self.keys.parked_count >= limits.parked_max:
            return False
        self.parked.add(at.ms, at.seq)
        self.keys.park(at, hash)
        self.work -= PARKED_WORK
        return True

    cdef int put(self, const View* view, const Entry* entry, ReplyBudget* budget) except -1:
        cdef Py_ssize_t start_size = self.out.size
        encode_entry(self.out, view, entry, &self.id_text)
        if budget.with_age:
            put_age(self.out, start_size, 0, 0)
        self.shown.add(entry.ms, entry.seq)
        budget.entries -= 1
        budget.made += 1
        self.work -= DELIVERED_WORK + (self.out.size - start_size) // 16
        return 0

    cdef int pass_to(self, uint64_t ms, uint64_t seq) noexcept:
        self.to.ms, self.to.seq = ms, seq
        self.has_passed = True
        return 0

    # ------------------------------------------------------------ delivering

    cdef int deliver(self, Context ctx, const Terms* terms) except -1:
        """Let the entries become pending. After a failure, none is."""
        cdef uint32_t retry_number = NO_RETRY
        cdef PendingAt at
        cdef size_t i
        cdef size_t done = 0
        if not terms.keep:
            return 0
        if terms.has_retry:
            retry_number = self.group.pending.retry_number(terms.retry_ms, terms.expire_ms)
        try:
            for i in range(self.shown.count):
                self.group.pending.deliver(
                    self.shown.items[i].ms, self.shown.items[i].seq, ctx.steady_ms, terms.owner,
                    retry_number)
                done += 1
        finally:
            if done < self.shown.count:
                for i in range(done):  # without the end of their keys, which `undo` restores
                    find_pending(self.group.pending.records, self.shown.items[i], &at)
                    PendingList.erase(self.group.pending, &at)
        return 0

    cdef int undo(self) except -1:
        """Restore the keys after a failure."""
        cdef size_t i
        if self.keys is None:
            return 0
        for i in range(self.parked.count):
            self.keys.forget(self.parked.items[i])
        for i in range(self.shown.count, 0, -1):
            if i <= self.unparked:
                self.keys.park_again(self.shown.items[i - 1])
            else:
                self.keys.end(self.shown.items[i - 1])
        return 0

    cdef int settle(self, Context ctx, bytes key, const Terms* terms) except -1:
        """Move the offset, and record what was delivered, parked and passed over."""
        cdef Group group = self.group
        cdef Picked picked = Picked(self.shown.items, self.shown.count if terms.keep else 0,
                                    self.parked.items, self.parked.count)
        cdef size_t i
        cdef bint is_recorded = self.picking.unrecorded == 0
        if self.has_passed:
            self.move_offset()
        if self.shown.count or self.parked.count:
            self.picking.unrecorded = 0
            self.picking.recorded_ms = ctx.steady_ms
            ctx.count_change(key, None, 1)
            record_pick(ctx.effects, ctx.db.index, key, group, terms, &picked, ctx.steady_ms)
        elif self.picking.unrecorded > PASSED_MAX or (
                self.has_passed and ctx.steady_ms >= self.picking.recorded_ms + PASS_MS):
            record_pass(ctx, key, group)
        elif self.has_passed and is_recorded:
            ctx.keyspace.timer_requests.append(
                (self.picking.recorded_ms + PASS_MS, ctx.db.index, key, group.name))
        if not terms.keep and self.keys is not None:
            for i in range(self.shown.count):
                self.keys.end(self.shown.items[i])
                if i < self.unparked:
                    self.gone.append((self.shown.items[i].ms, self.shown.items[i].seq))
        if self.gone:
            note_acked(ctx, key, group.name, self.gone, 0)
        if self.keys is not None and self.keys.has_free():
            note_freed(ctx, key, group)
        return 0

    cdef int move_offset(self) except -1:
        cdef Group group = self.group
        cdef EntryId first = EntryId(group.offset_ms, group.offset_seq)
        cdef bint broken = is_broken(self.stream, group)
        cdef uint64_t rank, passed
        if self.picking.unrecorded == 0:
            self.picking.recorded_offset = first
            self.picking.recorded_read = group.entries_read
        step_up(&first)
        passed = self.stream.count_between(first, self.to)
        rank = self.stream.rank_of(first)
        self.stream.set_offset(group, self.to)
        if passed:
            self.stream.nth(rank, &first)
            count_read(self.stream, group, first, passed, broken)
        self.picking.unrecorded += max(passed, <uint64_t>1)
        return 0
