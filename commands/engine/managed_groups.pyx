# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Managed groups, which have a TIMEOUT: delivering due entries again, giving entries back, and moving
their deadlines, for the commands of both dialects.

An entry becomes due without an effect and without a timer of its own. Only its next delivery changes
it, so its owner can acknowledge or extend it until then.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT64_MAX as NO_LIMIT, int64_t, uint32_t, uint64_t

from millstream.commands.engine.claiming cimport Target
from millstream.commands.engine.dead_letters cimport DeadLetterWriter, dead_letter_writer
from millstream.commands.engine.delivery cimport ReplyBudget, is_full, put_age
from millstream.commands.engine.group_replies cimport idle_of
from millstream.commands.engine.lifecycle cimport note_acked, note_freed, note_given_back
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport EFFECT_BYTES, ID_WORD_BYTES
from millstream.commands.runtime.replies cimport Encodable
from millstream.commands.runtime.stream_effects cimport (
    Ids, Terms, WaitTerms, ids_of, note_key, record_take, record_wait,
)
from millstream.encoding cimport Output, put_nil
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.due_index cimport DueIds, expires_ms, is_due
from millstream.storage.groups.group cimport (
    Group, dead_letter_of, delay_after, keys_of, timeout_ms_of,
)
from millstream.storage.groups.managed_entries cimport (
    extend, give_back, give_back_at, held_by, ids_held_by, rounded_up, take_next,
)
from millstream.storage.groups.ordered_pending cimport OrderedPending, is_next, ordered
from millstream.storage.groups.pending cimport UNOWNED, Pending, PendingAt, is_at_limit
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.streams.head_eviction cimport note_pending
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.dead_letters import FAILED, FATAL
from millstream.commands.engine.lifecycle import change_entries
from millstream.commands.runtime.stream_effects import DEADLINE, WAIT
from millstream.errors import CommandError

cdef enum:
    # The number of due entries that are looked up together; each further batch is twice as large.
    BATCH = 128
    # Codes of TNACK and TEXTEND.
    DONE = 1
    NOT_HELD = -1

cdef bytes FAILED_WORD = FAILED
cdef bytes FATAL_WORD = FATAL
NOT_MANAGED = "ERR the group has no TIMEOUT: set one with TGROUP"


cpdef int check_managed(Group group) except -1:
    """Refuse a command that needs a managed group."""
    if timeout_ms_of(group) == 0:
        raise CommandError(NOT_MANAGED)
    return 0


# ---------------------------------------------------------------- delivering again

cdef int set_deadline(Terms* terms, Group group) noexcept:
    """Set the timeout of the group as the retry of a read that keeps its entries pending, unless it
    has its own."""
    if terms.keep and not terms.has_retry:
        terms.has_retry = True
        terms.retry_ms = timeout_ms_of(group)
        terms.expire_ms = 0
    return 0


cdef uint64_t deliver_due(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                          Output out, ReplyBudget* budget) except? 0xffffffffffffffff:
    """Deliver due entries again to the reader, their new owner, as many as the budget allows: the
    earliest due first, then by ID. Returns the number of elements. An entry that no longer exists is
    removed from the pending entries; TREAD gets a nil in its place. The delivery is one effect."""
    cdef DueDelivery delivery
    cdef uint64_t limit = min(budget.limit, budget.entries)
    if limit == 0 or is_full(out, budget) or not is_due(
            group.pending.records, ctx.steady_ms, terms.with_zero):
        return 0
    delivery = DueDelivery.__new__(DueDelivery)
    delivery.stream, delivery.group, delivery.out, delivery.limit = stream, group, out, limit
    delivery.shown = Ids.__new__(Ids)
    delivery.gone = []
    delivery.ended = []
    delivery.encode(ctx, terms, budget)
    # The reply first, then the effect, then the change: running out of memory changes nothing.
    delivery.settle(ctx, key, terms)
    if delivery.ended:
        delivery.end(ctx, key)
    return delivery.elements


cdef class DueDelivery:
    """The due entries of a reply: those that exist, and the IDs of those that do not. `ended` has the
    IDs of those that are not delivered again, or that were delivered for the last time."""

    cdef Stream stream
    cdef Group group
    cdef Output out
    cdef uint64_t limit
    cdef Ids shown
    cdef list gone
    cdef list ended
    cdef uint64_t elements
    # The number of entries so far that a reader held.
    cdef size_t held
    # At the entry that was looked up last.
    cdef Walk walk

    cdef int encode(self, Context ctx, const Terms* terms, ReplyBudget* budget) except -1:
        """Encode the entries. One that a reader held keeps its place; the others need one, and the
        reply continues without them when there is none."""
        if budget.places:
            self.offer(ctx, terms, budget, True)
        if budget.places == 0:
            self.offer(ctx, terms, budget, False)
        budget.is_cut = budget.is_cut or len(self.gone) > GONE_MAX
        return 0

    cdef int offer(self, Context ctx, const Terms* terms, ReplyBudget* budget,
                   bint with_waiting) except -1:
        """Encode entries as long as there are places, or those that readers hold, from the next one
        on. They stay due until the end, so each batch begins with the earlier ones."""
        cdef OrderedPending keyed = ordered(self.group.pending)
        cdef PendingAt at
        cdef const Pending* record
        cdef size_t looked_at = 0 if with_waiting else self.held
        cdef uint64_t batch = min(self.limit, <uint64_t>BATCH) + looked_at
        cdef DueIds due
        cdef size_t i
        while self.elements < self.limit and not is_full(self.out, budget) and (
                len(self.gone) + len(self.ended) <= GONE_MAX):
            due = self.group.pending.take_due(ctx.steady_ms, batch, terms.with_zero, with_waiting)
            for i in range(looked_at, due.count):
                if self.elements == self.limit or is_full(self.out, budget) or (
                        with_waiting and budget.places == 0):
                    return 0
                if budget.places != NO_LIMIT:
                    record = find_pending(self.group.pending.records, due.items[i], &at)
                    self.held += with_waiting and not record.waiting
                if keyed is not None and not is_next(keyed, due.items[i]):
                    continue
                self.put(ctx, terms, due.items[i], budget)
            if due.count < batch:
                break
            looked_at = due.count
            batch *= 2
        return 0

    cdef bint find(self, EntryId at_id) noexcept:
        """Move the walk to an entry; False when there is none with this ID. Entries that are due
        together are mostly neighbours."""
        if self.walk.valid and self.stream.walk_next(&self.walk) and self.is_at(at_id):
            return True
        self.stream.walk_start(&self.walk, at_id)
        return self.stream.walk_next(&self.walk) and self.is_at(at_id)

    cdef inline bint is_at(self, EntryId at_id) noexcept:
        return self.walk.cursor.entry.ms == at_id.ms and self.walk.cursor.entry.seq == at_id.seq

    cdef int put(self, Context ctx, const Terms* terms, EntryId at_id,
                 ReplyBudget* budget) except -1:
        cdef Group group = self.group
        cdef Output out = self.out
        cdef IdText id_text
        cdef PendingAt at
        cdef const Pending* record
        cdef Py_ssize_t start_size = out.size
        cdef bint exists = self.find(at_id)
        if budget.places != NO_LIMIT or group.pending.records.limit:
            record = find_pending(group.pending.records, at_id, &at)
            if is_at_limit(group.pending.records, record):
                self.ended.append((at_id.ms, at_id.seq))
                return 0
            if budget.places != NO_LIMIT:
                budget.places -= exists and record.waiting
        if not exists:
            self.gone.append((at_id.ms, at_id.seq))
            if not terms.dotted:
                return 0
            put_nil(out, ctx.session.resp)
        else:
            id_text.size = 0
            id_text.dotted = terms.dotted
            encode_entry(out, &self.walk.view, &self.walk.cursor.entry, &id_text)
            if budget.with_age:
                record = find_pending(group.pending.records, at_id, &at)
                put_age(out, start_size, idle_of(record, ctx.steady_ms),
                        group.pending.deliveries(record))
            self.shown.add(at_id.ms, at_id.seq)
        self.elements += 1
        budget.made += 1
        budget.entries -= 1
        return 0

    cdef int settle(self, Context ctx, bytes key, const Terms* terms) except -1:
        """Record the delivery, and what left the pending entries."""
        cdef Group group = self.group
        cdef list left = self.gone
        cdef uint64_t ms, seq
        cdef size_t i
        if self.shown.count:
            ctx.count_change(key, None, 1)
            ctx.keyspace.redelivered_due += self.shown.count
        if self.shown.count and terms.keep:
            record_take(ctx.effects, ctx.db.index, key, group, terms, self.shown, ctx.steady_ms)
            self.take(ctx, terms)
        elif self.shown.count:
            for i in range(self.shown.count):
                left.append((self.shown.items[i].ms, self.shown.items[i].seq))
        if left:
            note_acked(ctx, key, group.name, left, 0)
        for ms, seq in left:
            group.pending.acknowledge(ms, seq)
        if left:
            note_freed(ctx, key, group)
        return 0

    cdef int take(self, Context ctx, const Terms* terms) except -1:
        cdef Group group = self.group
        cdef PendingAt at = PendingAt(0, 0)
        cdef EntryId at_id
        cdef size_t i
        cdef bytes dead_letter = dead_letter_of(group)
        cdef uint32_t retry_number = group.pending.retry_number(terms.retry_ms, terms.expire_ms)
        for i in range(self.shown.count):
            at_id = self.shown.items[i]
            take_next(group.pending, at_id, &at, terms.owner, ctx.steady_ms, retry_number)
            group.pending.note_again(at_id.ms, at_id.seq, ctx.steady_ms, ctx.steady_ms)
            # More than the new expire-ms has already passed: it is delivered this last time.
            if terms.expire_ms and expires_ms(
                    group.pending.records,
                    find_pending(group.pending.records, at_id, &at)) <= ctx.steady_ms:
                (self.gone if dead_letter is None else self.ended).append((at_id.ms, at_id.seq))
        return 0

    cdef int end(self, Context ctx, bytes key) except -1:
        """Copy the entries that have ended to the dead letter stream."""
        cdef DeadLetterWriter writer = dead_letter_writer(ctx, key, self.stream, self.group)
        cdef uint64_t ms, seq
        try:
            for ms, seq in self.ended:
                writer.end_failed(EntryId(ms, seq))
        finally:
            writer.finish()
        return note_freed(ctx, key, self.group)


# ---------------------------------------------------------------- giving back

cdef bint is_taken_back(Group group, EntryId at_id) except -1:
    """True if an entry that a reader held is parked or waits."""
    cdef PendingAt at
    cdef const Pending* record = find_pending(group.pending.records, at_id, &at)
    return record.waiting if record != NULL else keys_of(group).has(at_id, True)


@cython.no_gc
@cython.freelist(2)
cdef class GiveBack:
    """Entries that are given back. SILENT takes the delivery back, FAIL lets the entry wait for the
    back-off of its group, or ends it if it was delivered as often as the group allows, and FATAL ends
    it; `delay_ms`, unless it is None, replaces the delay. `retry_count` is the number of deliveries
    before, `text` the reason that a copy gets."""

    def __init__(self, bytes mode not None, delay_ms=None, retry_count=None, bytes text not None=b""):
        begin_giving_back(self, mode, -1 if delay_ms is None else delay_ms, text)
        if retry_count is not None:
            self.retry_count = retry_count
            self.word = b"%d" % self.after(retry_count)

    def from_any_owner(self, Context ctx not None, bytes key not None, Stream stream not None,
                       Group group not None, ids, set new not None) -> int:
        """Give back these entries, (ms, seq) each, unless they wait; those in `new` become pending.
        Returns their number."""
        cdef PendingAt at
        cdef const Pending* record
        cdef Consumer owner
        cdef uint64_t ms, seq
        cdef int64_t count = 0
        self.begin(ctx, key, stream, group, len(ids))
        try:
            for ms, seq in ids:
                record = find_pending(group.pending.records, EntryId(ms, seq), &at)
                if record == NULL and (ms, seq) not in new or record != NULL and record.waiting:
                    continue
                owner = None if record == NULL else group.pending.numbered(record.consumer)
                self.take(EntryId(ms, seq), NULL if record == NULL else &at,
                          b"" if owner is None else owner.name)
                new.discard((ms, seq))
                count += 1
        finally:
            self.record()
        return count

    def from_holder(self, Context ctx not None, bytes key not None, Stream stream not None,
                    Group group not None, bytes holder not None, list ids not None) -> None:
        """Give back those of these entries that the consumer holds."""
        self.begin(ctx, key, stream, group, len(ids))
        self.take_held(holder, ids_of(ids))

    cdef bytes take_held(self, bytes holder, Ids ids):
        """Give back those of these entries that the consumer holds; returns a signed byte, a code, for
        each."""
        cdef PendingAt at = PendingAt(0, 0)
        cdef const Pending* record
        cdef Group group = self.group
        cdef int64_t number = number_of(group, holder)
        cdef bytes codes = PyBytes_FromStringAndSize(NULL, ids.count)
        cdef signed char* code = <signed char*>PyBytes_AS_STRING(codes)
        cdef set taken_back = self.held_with_keys(number, ids)
        cdef size_t i
        try:
            for i in range(ids.count):
                record = NULL if number < 0 else held_by(
                    group.pending, ids.items[i], <uint32_t>number, &at)
                if record == NULL:
                    code[i] = DONE if taken_back is not None and self.was_taken_back(
                        ids.items[i], taken_back) else NOT_HELD
                    continue
                if taken_back is not None:
                    taken_back.discard((ids.items[i].ms, ids.items[i].seq))
                code[i] = self.take(ids.items[i], &at, holder)
        finally:
            self.record()
        return codes

    cdef set held_with_keys(self, int64_t number, Ids ids):
        """In an ordered group, the entries that the consumer holds: with an entry, those of its key that
        came with it are given back."""
        cdef PendingAt at = PendingAt(0, 0)
        cdef size_t i
        cdef set held
        if number < 0 or keys_of(self.group) is None:
            return None
        held = set()
        for i in range(ids.count):
            if held_by(self.group.pending, ids.items[i], <uint32_t>number, &at) != NULL:
                held.add((ids.items[i].ms, ids.items[i].seq))
        return held

    cdef bint was_taken_back(self, EntryId at_id, set taken_back) except -1:
        cdef bint found = (at_id.ms, at_id.seq) in taken_back and is_taken_back(self.group, at_id)
        taken_back.discard((at_id.ms, at_id.seq))
        return found

    cdef int begin(self, Context ctx, bytes key, Stream stream, Group group, Py_ssize_t ids) except -1:
        """Prepare for this number of entries of a group."""
        self.ctx, self.key, self.group = ctx, key, group
        if self.is_fatal or not self.is_silent and group.pending.records.limit:
            self.writer = dead_letter_writer(ctx, key, stream, group)
            ctx.effects.require(<int64_t>ids * 2 * (EFFECT_BYTES + 2 * ID_WORD_BYTES + len(key)
                                                    + len(group.name) + len(self.text)))
        return 0

    cdef int64_t after(self, int64_t deliveries) noexcept:
        """The number of deliveries after an entry with this number was given back."""
        return max(deliveries - 1, 0) if self.is_silent else deliveries

    cdef int take(self, EntryId at_id, PendingAt* at, bytes holder) except -1:
        """Give back or end one entry, whose record is at this place, NULL for an entry that is not
        pending; returns a code of TNACK."""
        cdef Group group = self.group
        cdef uint64_t delay_ms = 0
        cdef int64_t deliveries = self.retry_count
        if deliveries < 0:
            deliveries = 0 if at == NULL else group.pending.deliveries(
                &group.pending.records.chunks[at.chunk].items[at.index])
        if self.writer is not None:
            if self.is_fatal:
                return self.writer.end(at_id, deliveries, (FATAL_WORD, holder, self.text))
            if deliveries >= <int64_t>group.pending.records.limit:
                if keys_of(group) is not None:
                    self.flush()  # in the order in which entries were taken back
                    self.writer.take_back(at_id)
                return self.writer.end(at_id, deliveries, (FAILED_WORD, holder, self.text))
        if self.delay_ms >= 0:
            delay_ms = self.delay_ms
        elif not self.is_silent:
            delay_ms = delay_after(group, deliveries)
        if at == NULL:
            give_back(group.pending, at_id.ms, at_id.seq, self.word, self.ctx.steady_ms, delay_ms)
        else:
            give_back_at(group.pending, at_id, at, self.after(deliveries), self.ctx.steady_ms, delay_ms)
        return self.note(at_id, delay_ms)

    cdef int note(self, EntryId at_id, uint64_t delay_ms) except -1:
        """Note an entry that was given back; returns its code."""
        if self.latest is None or delay_ms != self.latest_ms:
            if self.done is None:
                self.done = {}
            self.latest = self.done.get(delay_ms)
            if self.latest is None:
                self.latest = self.done[delay_ms] = Ids.__new__(Ids)
            self.latest_ms = delay_ms
        self.latest.add(at_id.ms, at_id.seq)
        return DONE

    cdef int record(self) except -1:
        """Record what was given back, and what has ended; readers that wait are woken."""
        if self.writer is not None:
            self.writer.finish()
            note_freed(self.ctx, self.key, self.group)
        return self.flush()

    cdef int flush(self) except -1:
        """Record what was given back."""
        cdef Context ctx = self.ctx
        cdef dict done = self.done
        cdef uint64_t delay_ms
        cdef Ids ids
        cdef WaitTerms terms
        if done is None:
            return 0
        self.done, self.latest = None, None
        for delay_ms, ids in done.items():
            terms = WaitTerms(ctx.steady_ms, delay_ms, self.word)
            record_wait(ctx.effects, ctx.db.index, self.key, self.group, &terms, ids)
            note_given_back(ctx, self.key, ids.count)
        return 0


cdef GiveBack give_back_by(bytes mode, int64_t delay_ms, bytes text):
    """A GiveBack without a number of deliveries before; delay_ms -1: none."""
    cdef GiveBack made = GiveBack.__new__(GiveBack)
    begin_giving_back(made, mode, delay_ms, text)
    return made


cdef int begin_giving_back(GiveBack giving, bytes mode, int64_t delay_ms, bytes text) except -1:
    giving.is_silent = mode == b"SILENT"
    giving.is_fatal = mode == b"FATAL"
    giving.text = text
    giving.delay_ms = delay_ms if delay_ms < 0 else <int64_t>rounded_up(delay_ms)
    giving.retry_count = -1
    giving.word = b"-" if giving.is_silent else b"="
    return 0


cdef bytes give_back_held(Context ctx, Target target, bytes holder, GiveBack giving, Ids ids):
    """Give back those of these entries that the consumer holds; returns a signed byte, a code, for
    each."""
    giving.begin(ctx, target.key, target.stream, target.group, ids.count)
    return giving.take_held(holder, ids)


cdef class Codes(Encodable):
    """A reply: the codes of entries."""

    cdef int encode(self, Output out, int resp) except -1:
        cdef const signed char* code = <const signed char*>PyBytes_AS_STRING(self.codes)
        cdef Py_ssize_t i
        out.put_head(c'*', len(self.codes))
        for i in range(len(self.codes)):
            if code[i] < 0:
                out.put_raw(b":-1\r\n", 5)
            else:
                out.put_head(c':', code[i])
        return 0


cdef Codes make_codes(bytes codes):
    cdef Codes made = Codes.__new__(Codes)
    made.codes = codes
    return made


cdef int64_t number_of(Group group, bytes holder) except? -1:
    """The number of a consumer, 0 for the readers without a name; -1 if there is none."""
    cdef Consumer consumer
    if not holder:
        return UNOWNED
    consumer = group.pending.consumer(holder)
    return -1 if consumer is None else consumer.index


def held_ids(Group group not None, bytes holder not None) -> list:
    """The IDs of all entries that a consumer holds."""
    cdef int64_t number = number_of(group, holder)
    return [] if number < 0 else ids_held_by(group.pending, <uint32_t>number)


def return_ended(Context ctx not None, bytes key not None, Stream stream not None,
                 Group group not None, list ids not None) -> None:
    """Let entries that are not pending be due at once, without deliveries."""
    cdef uint64_t ms, seq
    for ms, seq in ids:
        note_key(stream, group, EntryId(ms, seq))
        give_back(group.pending, ms, seq, b"0", ctx.steady_ms, 0)
        note_pending(stream, ms, seq)
    if ids:
        change_entries(ctx, (WAIT, key, group.name, ctx.steady_ms, 0, b"0"), ids, None, len(ids))


# ---------------------------------------------------------------- deadlines

def extend_held(Context ctx not None, bytes key not None, Group group not None,
                bytes holder not None, uint64_t span_ms, ids) -> list:
    """Move the deadline of those of these entries that the consumer holds to span_ms after now;
    returns a code for each."""
    cdef PendingAt at = PendingAt(0, 0)
    cdef uint64_t ms, seq
    cdef int64_t number = number_of(group, holder)
    cdef list codes = []
    cdef list extended = []
    span_ms = rounded_up(span_ms)
    try:
        for ms, seq in ids:
            if number < 0 or held_by(
                    group.pending, EntryId(ms, seq), <uint32_t>number, &at) == NULL:
                codes.append(NOT_HELD)
                continue
            extend(group.pending, ms, seq, ctx.steady_ms, span_ms)
            group.pending.note_again(ms, seq, ctx.steady_ms, ctx.steady_ms)
            extended.append((ms, seq))
            codes.append(DONE)
    finally:
        if extended:
            change_entries(
                ctx, (DEADLINE, key, group.name, ctx.steady_ms, span_ms), extended, None,
                len(extended))
    return codes
