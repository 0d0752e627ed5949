# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XREADGROUP: reading new entries of a group for one of its consumers, claiming idle ones, or reading
its history.

Delivery is shared with TREAD, and blocked readers of both wait in one queue. The difference is
ownership: these entries belong to a named consumer, and no timer retries them. With CLAIM a
consumer also claims entries that have been idle for long enough; a waiting one is woken when the
first entry is. Semantics and error texts are those of Redis 8.6, for MAXCOUNT and MAXSIZE those of
8.10.
"""

from libc.stdint cimport INT64_MAX as TIME_MAX, UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.engine.delivery cimport (
    LONG_DELIVERY, Ids, ReplyBudget, Terms, begin_budget, claim_idle, deliver_long,
    deliver_new, is_full, is_long_delivery, no_retry, record_again,
)
from millstream.commands.engine.lifecycle cimport (
    checked_consumer_name, is_refused, live_group, new_consumer, note_seen, note_used,
    read_effects_most, requesting_consumer, retry_readers_later,
)
from millstream.commands.engine.ranges cimport EntryRange, make_parts, make_range
from millstream.commands.runtime.arguments cimport Args, take_timeout_ms
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport BlockedRead, LongReply, make_raw
from millstream.commands.xstream.xread cimport (
    ReadLimits, check_limits, no_limits, put_key, take_read_limit,
)
from millstream.encoding cimport ArrayHead, Output, Slice, put_null_array
from millstream.entry_id cimport EntryId, step_up
from millstream.ids cimport parse_id
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.due_index cimport is_idle
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport advance_pending, first_pending, next_pending
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database
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
    read.keep = True
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
    if reply is None and block:
        read.hold([group for _, group in opened])
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


cdef class ConsumerRead(BlockedRead):
    """An XREADGROUP. While it waits, the groups of all its streams cannot end by their time to
    live. It accepts no redeliveries, so it does not count as a retry waiter; with CLAIM it counts
    as a claim waiter."""

    cdef int db_index
    cdef bytes consumer
    cdef ReadLimits limits
    cdef uint64_t claim_idle_ms
    cdef bint keep
    cdef list held
    cdef bint will_retry

    ends_without_key = True

    @property
    def kind(self):
        return ConsumerRead if self.claim_idle_ms == NO_CLAIM else (
            ConsumerRead, self.claim_idle_ms)

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
        note_seen(ctx, key, group, requesting_consumer(ctx, key, group, self.consumer))
        return note_used(ctx, key, group)

    cdef found_nothing(self, Context ctx, bytes key, Group group):
        """The reply if the stream has nothing new for the group."""
        self.note_poll(ctx, key, group)
        return NULL_ARRAY

    cdef bint has_no_history(self, Group group) except -1:
        """True if the consumer does not exist, or has no pending entry."""
        cdef Consumer consumer = group.consumer(self.consumer)
        return consumer is None or consumer.pending == 0

    cdef empty_history(self, Context ctx, bytes key, Group group):
        """The reply to a read of a history without entries: the key with an empty array."""
        cdef Output out = Output()
        self.note_poll(ctx, key, group)
        out.put_head(c'%' if ctx.session.resp == 3 else c'*', 1)
        put_key(out, key, ctx.session.resp)
        out.put_head(c'*', 0)
        return make_raw(out.take_bytes())

    cdef serve(self, Context ctx, list opened, list after, bint first):
        """The reply with the streams that have entries; None without any. On the first attempt the
        consumer counts as seen in every group."""
        cdef Py_ssize_t i
        cdef Stream stream
        cdef Group group
        cdef bytes key
        cdef Output out = None
        cdef ArrayHead head
        cdef uint64_t answered = 0
        cdef list parts = None
        cdef LongReply entries
        cdef ReplyBudget budget
        begin_budget(&budget, self.limits.all_entries)
        if first:
            ctx.effects.require(self.effects_most(opened, after))
        elif not ctx.effects.has_room(self.effects_most(opened, after)):
            retry_readers_later(ctx, self.keys, self.group)
            self.will_retry = True
            return None
        for i in range(len(opened)):
            stream, group = opened[i]
            key = (<tuple>self.keys[i])[1]
            if after[i] is not None:
                self.claim_idle_ms = NO_CLAIM  # as in Redis, a history disables CLAIM
            if not self.has_something(ctx, stream, group, after[i]) or (
                    out is not None and is_full(out, &budget)):
                if first:
                    note_seen(ctx, key, group, requesting_consumer(ctx, key, group, self.consumer))
                elif group.consumer(self.consumer) is None:
                    new_consumer(ctx, key, group, self.consumer)
                continue
            if out is None:
                out = Output()
                out.begin_array(&head, len(opened))
                budget.full_size = widened(self.limits.size_bytes, head.size)
            if after[i] is None and self.is_long(stream, group, &budget):
                if parts is None:
                    parts = []
                put_key(out, key, ctx.session.resp)
                parts.append(out.take_bytes())
                parts.append(self.put_long(ctx, key, stream, group, &budget))
                answered += 1
            elif after[i] is not None and self.is_long_history(group, &budget):
                if parts is None:
                    parts = []
                put_key(out, key, ctx.session.resp)
                entries = self.put_long_history(ctx, key, stream, group, after[i], out, &budget)
                parts.append(out.take_bytes())
                parts.append(entries)
                answered += 1
            elif self.put_stream(ctx, key, stream, group, after[i], out, &budget):
                answered += 1
        if answered == 0:
            return None
        return self.finished(ctx, out, &head, answered, parts)

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
                consumer = group.consumer(self.consumer)
                ids = 0 if consumer is None else min(self.limits.entries, consumer.pending)
            elif self.claim_idle_ms != NO_CLAIM:
                ids = min(self.limits.entries, group.pendings.count)
            most += read_effects_most((<tuple>self.keys[i])[1], group, self.consumer, ids)
        return most

    cdef finished(self, Context ctx, Output out, const ArrayHead* head, uint64_t answered,
                  list parts):
        """Complete the reply with its length and parts."""
        cdef Output first = out
        if parts is not None:
            parts.append(out.take_bytes())
            first = Output()
            first.put(parts[0])
        first.end_array(head, answered)
        if ctx.session.resp == 3:
            first.buf[0] = c'%'
        if parts is None:
            return make_raw(first.take_bytes())
        parts[0] = first.take_bytes()
        return make_parts(parts)

    cdef bint has_something(self, Context ctx, Stream stream, Group group, after) except -1:
        if after is not None or stream.has_newer(EntryId(group.offset_ms, group.offset_seq)):
            return True
        return self.claim_idle_ms != NO_CLAIM and is_idle(group.pendings, ctx.steady_ms, self.claim_idle_ms)

    cdef bint put_stream(self, Context ctx, bytes key, Stream stream, Group group, after,
                         Output out, ReplyBudget* budget) except -1:
        """Write the key and the array of one stream's entries; False, without output, when all
        claimable entries no longer exist."""
        cdef Py_ssize_t start = out.size
        cdef ArrayHead head
        cdef Py_ssize_t full_size = budget.full_size
        cdef uint64_t made
        cdef Consumer consumer = requesting_consumer(ctx, key, group, self.consumer)
        put_key(out, key, ctx.session.resp)
        out.begin_array(&head, min(self.limits.entries, stream.length + group.pendings.count))
        # A stream with a head gets at least one entry, whatever the size of its head.
        budget.full_size = max(widened(full_size, head.size), out.size + 1)
        if after is None:
            made = self.put_new(ctx, key, stream, group, consumer, out, budget)
            if made == 0:
                budget.full_size = full_size
                out.size = start
                note_seen(ctx, key, group, consumer)
                return False
        else:
            budget.limit = self.limits.entries
            budget.start.ms, budget.start.seq = after
            step_up(&budget.start)
            made = deliver_history(ctx, key, stream, group, consumer, out, budget)
            note_seen(ctx, key, group, consumer)
        budget.full_size = full_size
        out.end_array(&head, made)
        return True

    cdef uint64_t put_new(self, Context ctx, bytes key, Stream stream, Group group,
                          Consumer consumer, Output out, ReplyBudget* budget) except? 0xffffffffffffffff:
        """Write claimed entries, then new entries, together at most COUNT."""
        cdef Terms terms
        cdef uint64_t claimed = 0
        cdef uint64_t given
        no_retry(&terms, self.keep, consumer.index)
        budget.limit = self.limits.entries
        budget.with_age = self.claim_idle_ms != NO_CLAIM
        if budget.with_age:
            budget.min_idle_ms = self.claim_idle_ms
            claimed = claim_idle(ctx, key, stream, group, consumer, out, budget)
            ctx.keyspace.redelivered_claimed += claimed
            budget.limit -= claimed
        given = deliver_new(ctx, key, stream, group, &terms, out, budget)
        if given and self.keep:
            consumer.active_ms = ctx.steady_ms
        return claimed + given

    cdef bint is_long(self, Stream stream, Group group, ReplyBudget* budget) noexcept:
        """True if there is so much to deliver that the reply should be made in slices."""
        return self.claim_idle_ms == NO_CLAIM and budget.full_size == PY_SSIZE_T_MAX and (
            is_long_delivery(stream, group, min(self.limits.entries, budget.entries)))

    cdef EntryRange put_long(self, Context ctx, bytes key, Stream stream, Group group, ReplyBudget* budget):
        """Deliver new entries; they are encoded later, from the blocks as they are now."""
        cdef Consumer consumer = requesting_consumer(ctx, key, group, self.consumer)
        cdef EntryRange entries = make_range(
            stream, False, min(self.limits.entries, budget.entries))
        cdef Terms terms
        no_retry(&terms, self.keep, consumer.index)
        deliver_long(ctx, key, stream, group, &terms, entries)
        if self.keep:
            consumer.active_ms = ctx.steady_ms
        budget.entries -= entries.limit
        budget.made += entries.limit
        return entries

    cdef bint is_long_history(self, Group group, ReplyBudget* budget) except -1:
        """True if so much history may be requested that the reply should be made in slices."""
        cdef Consumer consumer = group.consumer(self.consumer)
        return consumer is not None and budget.full_size == PY_SSIZE_T_MAX and (
            min(self.limits.entries, budget.entries, consumer.pending) > LONG_DELIVERY)

    cdef LongReply put_long_history(self, Context ctx, bytes key, Stream stream, Group group, after,
                                    Output out, ReplyBudget* budget):
        """Deliver pending entries again; after the array's head they are encoded later, from the
        blocks as they are now."""
        cdef Consumer consumer = requesting_consumer(ctx, key, group, self.consumer)
        cdef list ids = choose_history(ctx, key, stream, group, consumer, after,
                                       min(self.limits.entries, budget.entries))
        note_seen(ctx, key, group, consumer)
        out.put_head(c'*', len(ids))
        budget.entries -= len(ids)
        budget.made += len(ids)
        return entries_by_id(stream, ids)

    def attempt(self, Context ctx not None):
        cdef list opened
        cdef Stream stream
        cdef Group group
        # An append brings new entries; for claims a timer is scheduled.
        if is_refused(ctx, [] if self.claim_idle_ms == NO_CLAIM else self.keys, self.group):
            return None
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
        if reply is not None:
            self.note_use(ctx, opened)
        elif self.claim_idle_ms != NO_CLAIM:
            for (_, key), (_, group) in zip(self.keys, opened):
                ctx.keyspace.schedule_after(self.db_index, key, group, ctx.steady_ms)
                # Some claimable entries may not have been examined.
                if not self.will_retry and is_idle(group.pendings, ctx.steady_ms, self.claim_idle_ms):
                    ctx.keyspace.timer_requests.append(
                        (ctx.steady_ms + 1, self.db_index, key, self.group))
        return reply

    cdef int note_use(self, Context ctx, list opened) except -1:
        cdef Py_ssize_t i
        for i in range(len(opened)):
            note_used(ctx, (<tuple>self.keys[i])[1], (<tuple>opened[i])[1])
        return 0

    def join(self, Stream stream not None, Group group not None) -> None:
        self.count_in(group, 1)
        self.held.append(group)

    cdef int hold(self, list groups) except -1:
        """Count the client as waiting on these groups, and no longer on others."""
        cdef Group group
        if self.held is not None:
            for group in self.held:
                self.count_in(group, -1)
        self.held = groups
        for group in groups:
            self.count_in(group, 1)
        return 0

    cdef int count_in(self, Group group, int change) except -1:
        group.blocked_clients += change
        if self.claim_idle_ms != NO_CLAIM:
            group.add_claim_wait(self.claim_idle_ms, change)
        return 0

    def ended(self, Context ctx not None) -> None:
        cdef Database db = <Database>ctx.keyspace.databases[self.db_index]
        cdef Group group
        self.hold([])
        for _, key in self.keys:
            value = db.get(key)
            group = (<Stream>value).group(self.group) if isinstance(value, Stream) else None
            if group is not None:
                # The time to live starts at the end of the wait.
                group.last_used_ms = ctx.steady_ms
                ctx.keyspace.schedule(self.db_index, key, group)


cdef Py_ssize_t widened(Py_ssize_t full_size, Py_ssize_t head_size) noexcept:
    """MAXSIZE plus the space that is reserved for an array's head beyond the usual 4 bytes."""
    return full_size if full_size > PY_SSIZE_T_MAX - head_size else full_size + head_size - 4


cdef no_group(bytes key, bytes name):
    return CommandError(
        f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(name)}' in XREADGROUP with "
        "GROUP option")


cdef uint64_t deliver_history(Context ctx, bytes key, Stream stream, Group group, Consumer consumer,
                           Output out, ReplyBudget* budget) except? 0xffffffffffffffff:
    """Deliver a consumer's own pending entries from `budget.start` on again; an entry that no
    longer exists has a null in place of its fields. Returns their number."""
    cdef Pending* record
    cdef PendingAt at
    cdef IdText id_text
    cdef uint64_t made = 0
    cdef uint64_t left = consumer.pending
    cdef Ids again = Ids.__new__(Ids)
    cdef View view
    cdef Entry entry
    id_text.size = 0
    id_text.dotted = False
    record = first_pending(group.pendings, budget.start, &at)
    while record != NULL and made < budget.limit and made < left and not is_full(out, budget):
        if record.consumer == consumer.index:
            if stream.find(EntryId(record.ms, record.seq), &view, &entry):
                encode_entry(out, &view, &entry, &id_text)
                again.add(record.ms, record.seq)
            else:
                out.put_raw(b"*2\r\n", 4)
                out.put_id(record.ms, record.seq, False)
                put_null_array(out, ctx.session.resp)
            made += 1
            budget.made += 1
            budget.entries -= 1
        record = next_pending(group.pendings, &at)
    deliver_again(ctx, key, group, again)
    return made


cdef list choose_history(Context ctx, bytes key, Stream stream, Group group, Consumer consumer,
                         after, uint64_t limit):
    """Like `deliver_history` for very many entries: returns only their IDs, (ms, seq) each."""
    cdef EntryId start
    cdef Pending* record
    cdef PendingAt at
    cdef list ids = []
    cdef Ids again = Ids.__new__(Ids)
    cdef View view
    cdef Entry entry
    start.ms, start.seq = after
    step_up(&start)
    limit = min(limit, consumer.pending)
    record = first_pending(group.pendings, start, &at)
    while record != NULL and <uint64_t>len(ids) < limit:
        if record.consumer == consumer.index:
            ids.append((record.ms, record.seq))
            if stream.find(EntryId(record.ms, record.seq), &view, &entry):
                again.add(record.ms, record.seq)
        record = next_pending(group.pendings, &at)
    deliver_again(ctx, key, group, again)
    return ids


cdef int deliver_again(Context ctx, bytes key, Group group, Ids again) except -1:
    """Record another delivery of pending entries with ascending IDs to their consumer."""
    cdef Pending* record
    cdef PendingAt at
    cdef size_t i
    if again.count == 0:
        return 0
    first_pending(group.pendings, again.items[0], &at)
    for i in range(again.count):
        record = advance_pending(group.pendings, &at, again.items[i])
        group.redeliver(record, &at, ctx.steady_ms, 0, False)
        group.note_again(again.items[i].ms, again.items[i].seq, ctx.steady_ms, ctx.steady_ms)
    return record_again(ctx, key, group, again)  # not a change for `dirty`, as in Redis
