# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XREADGROUP: reading new entries of a group for one of its consumers, claiming idle ones, or reading
its history.

Delivery is shared with TREAD, and blocked readers of both wait in one queue. The difference is
ownership: these entries belong to a named consumer, and no timer retries them, unless the group is
managed (TGROUP TIMEOUT): then due entries come first. With CLAIM a
consumer also claims entries that have been idle for long enough; a waiting one is woken when the
first entry is. Semantics and error texts are those of Redis 8.6, for MAXCOUNT and MAXSIZE those of
8.10.
"""

from libc.stdint cimport INT64_MAX as TIME_MAX, UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.engine.delivery cimport (
    LONG_DELIVERY, ReplyBudget, begin_budget, claim_idle, deliver_long,
    deliver_new, is_full, is_long_delivery, no_retry,
)
from millstream.commands.engine.managed_groups cimport GONE_MAX, deliver_due, set_deadline
from millstream.commands.engine.picked cimport (
    deliver_picked, has_parked_to_deliver, is_search_cut, picked_most,
)
from millstream.commands.engine.ranges cimport EntryRange, make_range
from millstream.commands.engine.searching cimport put_key
from millstream.commands.engine.waiting cimport GroupsRead
from millstream.commands.runtime.replies cimport Encodable, Raw, make_raw, make_several
from millstream.commands.runtime.stream_effects cimport Ids, Terms, record_redelivery
from millstream.commands.xstream.xread cimport (
    ReadLimits, check_limits, no_limits, take_read_limit,
)
from millstream.commands.engine.lifecycle cimport (
    checked_consumer_name, live_group, new_consumer, note_seen, note_used, read_effects_most,
    requesting_consumer,
)
from millstream.commands.runtime.arguments cimport Args, take_timeout_ms
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport ArrayHead, Output, Slice, put_null_array
from millstream.entry_id cimport EntryId, step_up
from millstream.ids cimport parse_id
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.due_index cimport is_due, is_idle
from millstream.storage.groups.group cimport Group, is_paused, is_picking, places_of, timeout_ms_of
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport advance_pending, first_pending, next_pending
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.entries_by_id import entries_by_id
from millstream.commands.table.registry import CommandGroup
from millstream.commands.runtime.replies import NULL_ARRAY, Wait
from millstream.errors import INVALID_ID, SYNTAX, CommandError, shown

command = CommandGroup("stream", since="5.0.0")

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef uint64_t NO_CLAIM = MAX
UNBALANCED = (
    "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be "
    "specified.")
MEANINGLESS = (
    "ERR The {0} ID is meaningless in the context of XREADGROUP: you want to read the history of "
    "this consumer by specifying a proper ID, or use the > ID to get new messages. The {0} ID "
    "would just return an empty result set.")


@command(
    "XREADGROUP {group-block: GROUP group consumer} [COUNT count] [MAXCOUNT maxcount] [MAXSIZE "
    "maxsize] [BLOCK milliseconds] [CLAIM min-idle-time:integer] [NOACK] {streams: STREAMS key "
    "[key ...] id [id ...]}", "write blocking",
    complexity="O(log n) to find the start and O(m) for the m entries answered", keys="RO access",
)
def xreadgroup(Context ctx not None, Args args not None):
    """Reads new entries of a group for one of its consumers, or that consumer's pending
    entries; can wait for new entries.
    """
    cdef ConsumerRead read = ConsumerRead.__new__(ConsumerRead)
    cdef Py_ssize_t streams
    cdef int64_t timeout_ms = 0
    cdef bint block = False
    read.keep = read.is_first = True
    read.claim_idle_ms = NO_CLAIM
    read.db_index = ctx.db.index
    no_limits(&read.limits)
    args.pos = 1
    while True:
        if args.next_is(b"STREAMS"):
            break
        if take_read_limit(args, &read.limits):
            continue
        if args.next_is(b"BLOCK"):
            timeout_ms = take_timeout_ms(args)
            if timeout_ms > TIME_MAX - <int64_t>ctx.steady_ms:
                raise CommandError("ERR timeout is out of range")
            block = True
        elif args.next_is(b"GROUP"):
            read.group = args.take()
            read.consumer = args.take()
        elif args.next_is(b"NOACK"):
            read.keep = False
        elif args.next_is(b"CLAIM"):
            read.claim_idle_ms = take_min_idle(args)
        else:
            raise CommandError(SYNTAX)
    check_limits(&read.limits)
    streams = args.count - args.pos
    if streams == 0:
        raise CommandError(SYNTAX)
    if streams & 1:
        raise CommandError(UNBALANCED)
    if read.group is None:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    checked_consumer_name(read.consumer)
    return first_read(ctx, args, read, streams // 2, block,
                      <int64_t>ctx.steady_ms + timeout_ms if timeout_ms else 0)


cdef int64_t take_min_idle(Args args) except -1:
    cdef int64_t min_idle_ms = args.take_int_or(
        "ERR min-idle-time is not an integer or out of range")
    if min_idle_ms < 0:
        raise CommandError("ERR min-idle-time must be a positive integer")
    return min_idle_ms


cdef first_read(Context ctx, Args args, ConsumerRead read, Py_ssize_t count, bint block,
                int64_t deadline_ms):
    """The first attempt of a read: each stream, its group and its ID are checked in turn before any
    entry is delivered."""
    cdef Py_ssize_t i
    cdef list opened = None
    cdef list after
    cdef bytes key
    cdef Stream stream
    cdef Group group
    for i in range(args.pos, args.pos + count):
        key = ctx.db.key_of(&args.items[i])
        stream = ctx.read_for_update_at(&args.items[i])
        group = read.group_in(ctx, key, stream)
        after_id = read_after_id(&args.items[i + count])
        if count == 1:  # the frequent case, in which `serve` and its lists are not needed
            if after_id is not None:
                if read.has_no_history(group):
                    return read.empty_history(ctx, key, group)
            elif not block and not read.has_something(ctx, stream, group, None):
                return read.found_nothing(ctx, key, group)
        if opened is None:
            opened, after, read.keys = [], [], []
        opened.append((stream, group))
        after.append(after_id)
        read.keys.append((read.db_index, key))
    ctx.count_hits(count)  # Redis looks up each stream again to read it
    reply = read.serve(ctx, opened, after, True)
    read.is_polling = not block and reply is None and ctx.may_block and read.is_cut(opened)
    block = block or read.is_polling
    if reply is None and block:
        read.hold([group for _, group in opened])
        read.continue_search(ctx, opened)
    read.note_use(ctx, opened)
    if reply is not None:
        return reply
    return Wait(read, deadline_ms) if block else NULL_ARRAY


cdef inline bint is_new(Slice* word) noexcept:
    """True if an ID argument is `>`, for new entries."""
    return word.size == 1 and word.ptr[0] == c'>'


cdef read_after_id(Slice* word):
    """Parse an ID argument: None for new entries (`>`), otherwise the ID after which the history is
    read."""
    cdef EntryId found
    if is_new(word):
        return None
    if word.size == 1 and (word.ptr[0] == c'$' or word.ptr[0] == c'+'):
        raise CommandError(MEANINGLESS.format(chr(word.ptr[0])))
    if parse_id(word.ptr, word.size, False, 0, &found) < 0:
        raise CommandError(INVALID_ID)
    # Redis represents `>` by the largest ID, so that ID means the same.
    return None if found.ms == MAX and found.seq == MAX else (found.ms, found.seq)


cdef class ConsumerRead(GroupsRead):
    """An XREADGROUP. Only in a managed group it accepts redeliveries, so it does not count as a retry
    waiter; with CLAIM it counts as a claim waiter.

    Its reply is written to `out`, except entries that are too many to be encoded now. Those are in
    `parts`, together with the bytes before them, and are encoded as the client reads."""

    cdef bytes consumer
    cdef ReadLimits limits
    cdef uint64_t claim_idle_ms
    cdef bint keep
    cdef bint is_first
    cdef bint will_retry
    # Without BLOCK, while the search for entries that match is not complete.
    cdef bint is_polling
    cdef Output out
    cdef list parts
    cdef ArrayHead head
    cdef uint64_t answered
    cdef ReplyBudget budget

    ends_without_key = True

    @property
    def kind(self):
        if self.is_polling:
            return ConsumerRead, id(self)
        return ConsumerRead if self.claim_idle_ms == NO_CLAIM else (
            ConsumerRead, self.claim_idle_ms)

    @property
    def consumer_name(self):
        return self.consumer

    cdef int note_end(self, Context ctx, Group group) except -1:
        """Let a time to live of the consumer begin now."""
        cdef Consumer consumer
        if group.rules is not None and group.rules.consumer_ttl_ms:
            consumer = group.pending.consumer(self.consumer)
            if consumer is not None:
                consumer.seen_ms = ctx.steady_ms
        return 0

    cdef Group group_in(self, Context ctx, bytes key, Stream stream):
        """The group in one of the streams; the errors of a new XREADGROUP also end a wait."""
        cdef Group group = None
        if stream is not None:
            group = live_group(ctx, key, stream, self.group)
        if group is None:
            raise no_group(key, self.group)
        return group

    cdef int note_poll(self, Context ctx, bytes key, Group group) except -1:
        """Note a read that finds no entry in its only stream."""
        ctx.count_hits(1)
        ctx.effects.require(read_effects_most(key, group, self.consumer, 0))
        self.note_visit(ctx, key, group)
        return note_used(ctx, key, group)

    cdef found_nothing(self, Context ctx, bytes key, Group group):
        """The reply if the stream has nothing new for the group."""
        self.note_poll(ctx, key, group)
        return NULL_ARRAY

    cdef bint has_no_history(self, Group group) except -1:
        """True if the consumer does not exist, or has no pending entry."""
        cdef Consumer consumer = group.pending.consumer(self.consumer)
        return consumer is None or consumer.pending == 0

    cdef empty_history(self, Context ctx, bytes key, Group group):
        """The reply to a read of a history without entries: the key with an empty array."""
        cdef Output out = Output()
        self.note_poll(ctx, key, group)
        out.put_head(c'%' if ctx.session.resp == 3 else c'*', 1)
        put_key(out, key, ctx.session.resp)
        out.put_head(c'*', 0)
        return make_raw(out.take())

    cdef serve(self, Context ctx, list opened, list after, bint first):
        """The reply with the streams that have entries; None without any. On the first attempt the
        consumer counts as seen in every group."""
        cdef Py_ssize_t i
        cdef Stream stream
        cdef Group group
        if not self.has_room(ctx, self.effects_most(opened, after), first):
            self.will_retry = True
            return None
        self.begin_reply(len(opened))
        for i in range(len(opened)):
            stream, group = opened[i]
            if after[i] is not None:
                self.claim_idle_ms = NO_CLAIM  # as in Redis, a history disables CLAIM
            if self.has_something(ctx, stream, group, after[i]) and not (
                    self.answered and is_full(self.out, &self.budget)):
                self.put_stream(ctx, (<tuple>self.keys[i])[1], stream, group, after[i])
            elif first:
                self.note_visit(ctx, (<tuple>self.keys[i])[1], group)
            elif group.pending.consumer(self.consumer) is None:
                new_consumer(ctx, (<tuple>self.keys[i])[1], group, self.consumer)
        reply = self.finished(ctx.session.resp) if self.answered else None
        self.out = None
        return reply

    cdef int note_visit(self, Context ctx, bytes key, Group group) except -1:
        """Note that the consumer has read from a group and got nothing."""
        return note_seen(ctx, key, group, requesting_consumer(ctx, key, group, self.consumer))

    cdef int64_t effects_most(self, list opened, list after) except -1:
        """The maximum size of the effects, which list claimed entries and the entries of a
        history."""
        cdef Group group
        cdef Consumer consumer
        cdef uint64_t ids
        cdef int64_t most = 0
        cdef Py_ssize_t i
        for i in range(len(opened)):
            group = (<tuple>opened[i])[1]
            ids = 0
            if after[i] is not None:
                consumer = group.pending.consumer(self.consumer)
                ids = 0 if consumer is None else min(self.limits.entries, consumer.pending)
            elif timeout_ms_of(group):
                ids = min(2 * min(self.limits.entries, group.pending.records.count) + GONE_MAX,
                          2 * group.pending.records.count)
            elif self.claim_idle_ms != NO_CLAIM:
                ids = min(self.limits.entries, group.pending.records.count)
            most += picked_most(group)
            most += read_effects_most((<tuple>self.keys[i])[1], group, self.consumer, ids)
        return most

    cdef bint has_something(self, Context ctx, Stream stream, Group group, after) except -1:
        if after is not None:
            return True
        if is_paused(group, ctx.steady_ms):
            return False
        if stream.has_newer(EntryId(group.offset_ms, group.offset_seq)):
            return True
        if self.is_due_in(ctx, group) or has_parked_to_deliver(group):
            return True
        return self.claim_idle_ms != NO_CLAIM and is_idle(
            group.pending.records, ctx.steady_ms, self.claim_idle_ms)

    cdef bint is_due_in(self, Context ctx, Group group) noexcept:
        """True if a managed group has a due entry."""
        return timeout_ms_of(group) and is_due(
            group.pending.records, ctx.steady_ms, self.is_first)

    # ------------------------------------------------------------ the reply

    cdef int begin_reply(self, Py_ssize_t streams) except -1:
        self.out = Output()
        self.out.begin_array(&self.head, streams)
        self.parts = None
        self.answered = 0
        begin_budget(&self.budget, self.limits.all_entries)
        self.budget.full_size = widened(self.limits.size_bytes, self.head.size)
        return 0

    cdef int put_later(self, Encodable entries) except -1:
        """Add entries that are encoded as the client reads, from the blocks as they are now."""
        if self.parts is None:
            self.parts = []
        self.parts.append(make_raw(self.out.take()))
        self.parts.append(entries)
        return 0

    cdef finished(self, int resp):
        """The reply, with its length."""
        cdef Output first = self.out
        if self.parts is not None:
            self.parts.append(make_raw(self.out.take()))
            first = Output()
            first.put((<Raw>self.parts[0]).data)
        first.end_array(&self.head, self.answered)
        if resp == 3:
            first.buf[0] = c'%'
        if self.parts is None:
            return make_raw(first.take())
        self.parts[0] = make_raw(first.take())
        return make_several(self.parts)

    cdef int put_stream(self, Context ctx, bytes key, Stream stream, Group group, after) except -1:
        """Write the key and the array of one stream's entries; nothing, when all claimable entries
        no longer exist."""
        cdef Output out = self.out
        cdef Py_ssize_t start = out.size
        cdef Py_ssize_t full_size = self.budget.full_size
        cdef uint64_t limit = min(self.limits.entries, self.budget.entries)
        cdef uint64_t made
        cdef ArrayHead head
        cdef Consumer consumer = requesting_consumer(ctx, key, group, self.consumer)
        put_key(out, key, ctx.session.resp)
        self.answered += 1
        self.budget.limit = self.limits.entries
        if full_size == PY_SSIZE_T_MAX and self.put_many(
                ctx, key, stream, group, consumer, after, limit):
            return 0
        out.begin_array(
            &head, min(self.limits.entries, stream.length + group.pending.records.count))
        # A stream with a head gets at least one entry, whatever the size of its head.
        self.budget.full_size = max(widened(full_size, head.size), out.size + 1)
        if after is None:
            made = self.put_new(ctx, key, stream, group, consumer)
        else:
            made = self.put_history(ctx, key, stream, group, consumer, after, None)
        self.budget.full_size = full_size
        if after is not None or made == 0:
            note_seen(ctx, key, group, consumer)
        if after is None and made == 0:
            out.size = start
            self.answered -= 1
            return 0
        return out.end_array(&head, made)

    cdef uint64_t put_new(self, Context ctx, bytes key, Stream stream, Group group,
                          Consumer consumer) except? 0xffffffffffffffff:
        """Write claimed entries, then those that are due in a managed group, then new ones, together
        at most COUNT."""
        cdef Terms terms
        cdef uint64_t claimed = 0
        cdef uint64_t again = 0
        cdef uint64_t given
        self.set_terms(&terms, group, consumer)
        self.budget.with_age = self.claim_idle_ms != NO_CLAIM
        if self.budget.with_age:
            self.budget.min_idle_ms = self.claim_idle_ms
            claimed = claim_idle(ctx, key, stream, group, consumer, self.out, &self.budget)
            ctx.keyspace.redelivered_claimed += claimed
            self.budget.limit -= claimed
        if timeout_ms_of(group):
            self.budget.places = places_of(group)
            again = deliver_due(ctx, key, stream, group, &terms, self.out, &self.budget)
            self.budget.limit = min(self.budget.limit - again, self.budget.places)
        if is_picking(group):
            given = deliver_picked(ctx, key, stream, group, &terms, self.out, &self.budget)
        else:
            given = deliver_new(ctx, key, stream, group, &terms, self.out, &self.budget)
        if (again or given) and self.keep:
            consumer.active_ms = ctx.steady_ms
        return claimed + again + given

    cdef int set_terms(self, Terms* terms, Group group, Consumer consumer) noexcept:
        no_retry(terms, self.keep, consumer.index)
        terms.with_zero = self.is_first
        if timeout_ms_of(group):
            set_deadline(terms, group)
        return 0

    cdef uint64_t put_history(self, Context ctx, bytes key, Stream stream, Group group,
                              Consumer consumer, after, list ids) except? 0xffffffffffffffff:
        """Deliver a consumer's own pending entries after an ID again; an entry that no longer exists
        has a null in place of its fields. Returns their number. With `ids`, only their IDs are
        collected, (ms, seq) each. In a managed group this does not count as a delivery."""
        cdef EntryId start
        cdef Pending* record
        cdef PendingAt at
        cdef IdText id_text
        cdef uint64_t made = 0
        cdef uint64_t left = consumer.pending
        cdef Ids again = Ids.__new__(Ids)
        cdef View view
        cdef Entry entry
        cdef bint found
        id_text.size = 0
        id_text.dotted = False
        start.ms, start.seq = after
        step_up(&start)
        record = first_pending(group.pending.records, start, &at)
        while record != NULL and made < min(self.budget.limit, left) and not is_full(
                self.out, &self.budget):
            if record.consumer == consumer.index:
                found = stream.find(EntryId(record.ms, record.seq), &view, &entry)
                if ids is not None:
                    ids.append((record.ms, record.seq))
                elif found:
                    encode_entry(self.out, &view, &entry, &id_text)
                else:
                    self.out.put_raw(b"*2\r\n", 4)
                    self.out.put_id(record.ms, record.seq, False)
                    put_null_array(self.out, ctx.session.resp)
                if found:
                    again.add(record.ms, record.seq)
                made += 1
                self.budget.made += 1
                self.budget.entries -= 1
            record = next_pending(group.pending.records, &at)
        if not timeout_ms_of(group):
            deliver_again(ctx, key, group, again)
        return made

    cdef bint put_many(self, Context ctx, bytes key, Stream stream, Group group, Consumer consumer,
                       after, uint64_t limit) except -1:
        """Deliver new or pending entries that are encoded later, because there are many; False if
        they are few."""
        cdef Terms terms
        cdef EntryRange entries
        cdef Output again
        cdef uint64_t due = 0
        cdef list ids
        if after is not None:
            if min(limit, consumer.pending) <= LONG_DELIVERY:
                return False
            ids = []
            self.put_history(ctx, key, stream, group, consumer, after, ids)
            note_seen(ctx, key, group, consumer)
            self.out.put_head(c'*', len(ids))
            self.put_later(entries_by_id(stream, ids))
            return True
        self.budget.places = places_of(group)
        if is_picking(group):
            return False
        if self.claim_idle_ms != NO_CLAIM or not is_long_delivery(
                stream, group, min(limit, self.budget.places)):
            return False
        self.set_terms(&terms, group, consumer)
        if timeout_ms_of(group):
            again = Output()
            due = deliver_due(ctx, key, stream, group, &terms, again, &self.budget)
        if self.keep:
            consumer.active_ms = ctx.steady_ms
        if due == limit or self.budget.places == 0:
            self.out.put_head(c'*', due)
            self.out.put(again.take())
            return True
        entries = make_range(stream, False, min(limit - due, self.budget.places))
        deliver_long(ctx, key, stream, group, &terms, entries)
        self.budget.entries -= entries.limit
        self.budget.made += entries.limit
        if due:
            entries.begin_with(again, due)
        self.put_later(entries)
        return True

    # ------------------------------------------------------------ waiting

    def attempt(self, Context ctx not None):
        cdef list opened
        cdef Stream stream
        cdef Group group
        if ctx.write_error is not None:
            if self.claim_idle_ms != NO_CLAIM or self.waits_on_managed():
                self.retry_later(ctx)  # otherwise an append brings new entries
            return None
        self.is_first = False
        opened = []
        for _, key in self.keys:
            if ctx.remade is not None and (self.db_index, key, self.group) in ctx.remade:
                # A waiting TREAD was served before and created the group again: the group of this
                # read no longer exists.
                ctx.write_stream(key)  # WRONGTYPE for another type
                raise no_group(key, self.group)
            stream = ctx.read_for_update(key)
            opened.append((stream, self.group_in(ctx, key, stream)))
        ctx.count_hits(len(opened))  # Redis looks up each stream again to read it
        self.hold([group for _, group in opened])
        self.will_retry = False
        reply = self.serve(ctx, opened, [None] * len(opened), False)
        if reply is None:
            self.continue_search(ctx, opened)
            if self.is_polling and not self.is_cut(opened):
                return NULL_ARRAY
        if reply is not None:
            self.note_use(ctx, opened)
        elif self.claim_idle_ms != NO_CLAIM or self.waits_on_managed():
            for (_, key), (_, group) in zip(self.keys, opened):
                ctx.keyspace.schedule_after(self.db_index, key, group, ctx.steady_ms)
                # Some claimable or due entries may not have been examined.
                if self.budget.is_cut and not self.will_retry:
                    self.look_again(ctx, key, 1)
        return reply

    cdef bint is_cut(self, list opened) except -1:
        """True if the search for entries that match has not looked at all new ones."""
        for _, group in opened:
            if is_search_cut(group):
                return True
        return False

    cdef int continue_search(self, Context ctx, list opened) except -1:
        """Continue such searches in a later turn."""
        for (_, key), (_, group) in zip(self.keys, opened):
            if is_search_cut(group):
                self.look_again(ctx, key, 1)
        return 0

    cdef bint waits_on_managed(self) except -1:
        """True if one of its groups is managed: a timer brings due entries."""
        cdef Group group
        for group in self.held:
            if timeout_ms_of(group):
                return True
        return False

    cdef int note_use(self, Context ctx, list opened) except -1:
        cdef Py_ssize_t i
        for i in range(len(opened)):
            note_used(ctx, (<tuple>self.keys[i])[1], (<tuple>opened[i])[1])
        return 0

    cdef int count_in(self, Group group, int change) except -1:
        group.pending.blocked_clients += change
        if self.claim_idle_ms != NO_CLAIM:
            group.pending.add_claim_wait(self.claim_idle_ms, change)
        return 0


cdef Py_ssize_t widened(Py_ssize_t full_size, Py_ssize_t head_size) noexcept:
    """MAXSIZE plus the space that is reserved for an array's head beyond the usual 4 bytes."""
    return full_size if full_size > PY_SSIZE_T_MAX - head_size else full_size + head_size - 4


cdef no_group(bytes key, bytes name):
    return CommandError(
        f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(name)}' in XREADGROUP with "
        "GROUP option")


cdef int deliver_again(Context ctx, bytes key, Group group, Ids again) except -1:
    """Record another delivery of pending entries with ascending IDs to their consumer."""
    cdef Pending* record
    cdef PendingAt at
    cdef size_t i
    if again.count == 0:
        return 0
    first_pending(group.pending.records, again.items[0], &at)
    for i in range(again.count):
        record = advance_pending(group.pending.records, &at, again.items[i])
        group.pending.redeliver(record, &at, ctx.steady_ms, 0, False)
        group.pending.note_again(
            again.items[i].ms, again.items[i].seq, ctx.steady_ms, ctx.steady_ms)
    # Not a change for `dirty`, as in Redis.
    return record_redelivery(
        ctx.effects, ctx.db.index, key, group, NULL, again, ctx.steady_ms)
