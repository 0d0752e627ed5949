# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What happens to a group's pending entries: XACK, XPENDING, XCLAIM, XAUTOCLAIM, XNACK.

Entries that TREAD delivered have no owner and may have a retry and an expiry; who claims such an
entry owns it, and no timer deals with it any more. What XNACK released has no owner either, and was
last delivered at 0, so whatever idle time a claim asks for, it finds these first; a retry that it
has stays and is due at once. Semantics and error words are Redis 8.6's, those of XNACK 8.8's.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.engine.entries_by_id cimport choice_of, finder_of
from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.delivery cimport (
    Ids, acknowledge, drop_gone, one_more, record_claim,
)
from millstream.commands.engine.listings cimport pending_summary
from millstream.commands.engine.pending_reply cimport PendingRange, pending_range
from millstream.commands.engine.ranges cimport make_parts, take_end, take_start
from millstream.commands.runtime.replies cimport make_raw
from millstream.commands.engine.group_lifecycle cimport (
    asking_consumer, checked_consumer_name, id_words, live_group, note_seen, read_effects_most, used,
)
from millstream.encoding cimport ArrayHead, Output
from millstream.ids cimport EntryId, id_less, make_id, parse_id
from millstream.storage.blocks.block cimport encode_entry
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.streams.group cimport Consumer, Group, Pending, PendingAt
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError, shown

cdef enum:
    # XAUTOCLAIM examines this number of entries for each that it may return.
    LOOKS_PER_CLAIM = 10
    DEFAULT_COUNT = 100
    # A longer reply of XAUTOCLAIM is made in slices.
    LONG_CLAIM = 1000
# So that what XAUTOCLAIM does fits into numbers, as in Redis: an id has 16 bytes.
cdef int64_t COUNT_LARGEST = INT64_MAX // 16

COUNT_NOT_POSITIVE = "ERR COUNT must be > 0"
BAD_RETRYCOUNT = "ERR Invalid RETRYCOUNT value, must be >= 0"
NACK_NOT_POSITIVE = "ERR numids must be a positive integer"
NACK_TOO_FEW = "ERR number of IDs doesn't match numids"


@command(
    "XACK", arity=-4, flags="write fast", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Acknowledges entries of a group, so that they are no longer pending.",
    syntax="key group id [id ...]", complexity="O(log n) for each id",
)
def xack(Context ctx not None, Args args not None):
    return acknowledge(ctx, args, False)


@command(
    "XPENDING", arity=-3, flags="readonly", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Returns a summary or a list of a group's pending entries.",
    syntax="key group [filters: [IDLE min-idle-time:integer] start end count [consumer]]",
    complexity="O(log n) to find the start and O(m) for the m pending entries looked at",
)
def xpending(Context ctx not None, Args args not None):
    cdef bytes name = None
    cdef Consumer owner = None
    cdef EntryId start
    cdef EntryId end
    cdef int64_t min_idle_ms = 0
    cdef int64_t limit = 0
    cdef bint summary = args.count == 3
    cdef Group group
    cdef PendingRange entries
    if not summary:
        if args.count < 6 or args.count > 9:
            raise CommandError(SYNTAX)
        args.pos = 3
        if args.next_is(b"IDLE"):
            min_idle_ms = args.take_int()
            if args.count < 8:
                raise CommandError(SYNTAX)
        # The count is looked at before the ids, as Redis does.
        args.pos += 2
        limit = args.take_int()
        args.pos -= 3
        take_start(args, &start, False)
        take_end(args, &end, False)
        args.pos += 1
        if args.pos < args.count:
            name = args.take()
    group = group_asked(ctx, args)[1]
    used(ctx, args[1], group)
    if summary:
        return pending_summary(group)
    if name is not None:
        owner = group.consumer(name)
        if owner is None:
            return []
    entries = pending_range(group, start, end, limit, min_idle_ms, ctx.steady_ms)
    entries.owner = owner
    return entries


cdef tuple group_asked(Context ctx, Args args):
    """(stream, group) of a command whose key and group are its first two arguments."""
    cdef Stream stream = ctx.read_for_update_at(&args.items[1])
    return stream, group_in(ctx, args, stream)


cdef Group group_in(Context ctx, Args args, Stream stream):
    """The group of such a command in the stream at its key; NOGROUP without the one or the other."""
    cdef bytes key = args[1]
    cdef bytes name = args[2]
    cdef Group group = None
    if stream is not None:
        group = live_group(ctx, key, stream, name)
    if group is None:
        raise CommandError(
            f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(name)}'")
    return group


# ---------------------------------------------------------------- XCLAIM

@command(
    "XCLAIM", arity=-6, flags="write fast", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Transfers pending entries with a given idle time to a consumer, by ID.",
    syntax="key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] "
           "[RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]",
    complexity="O(log n) for each id, n the number of the group's pending entries",
)
def xclaim(Context ctx not None, Args args not None):
    cdef Claim claim = Claim.__new__(Claim)
    cdef Stream stream
    cdef Group group
    cdef int64_t min_idle_ms
    stream, group = group_asked(ctx, args)
    args.pos = 4
    min_idle_ms = args.take_int_or("ERR Invalid min-idle-time argument for XCLAIM")
    claim.min_idle_ms = max(min_idle_ms, 0)
    claim.take_options(ctx, args)
    checked_consumer_name(args[3])
    if claim.with_last_id and id_less(
            group.offset_ms, group.offset_seq, claim.last_id.ms, claim.last_id.seq):
        move_offset(ctx, args[1], group, claim.last_id)
    claim.begin(ctx, args[1], stream, group, args[3])
    reply = claim.by_id(args)
    used(ctx, args[1], group)
    return reply


cdef int move_offset(Context ctx, bytes key, Group group, EntryId last_id) except -1:
    """LASTID: the group goes on after this id; how many entries it has read is not touched."""
    group.offset_ms = last_id.ms
    group.offset_seq = last_id.seq
    return ctx.change((b"GROUPSETID", key, group.name,
                       bytes(make_id(last_id.ms, last_id.seq, False)),
                       b"%d" % group.entries_read), None, 1)


cdef class Claim:
    """What XCLAIM and XAUTOCLAIM do for a consumer. Each entry is handed over as it is come across,
    since one named twice counts twice; those of a command are one effect."""

    cdef int take_options(self, Context ctx, Args args) except -1:
        """XCLAIM's ids, as far as they are any, and its options."""
        cdef EntryId found
        cdef int64_t at_ms = ctx.steady_ms
        self.deliveries = -1
        while args.pos < args.count and parse_id(
                args.items[args.pos].ptr, args.items[args.pos].size, False, 0, &found) >= 0:
            args.pos += 1
        self.ids_end = args.pos
        while args.pos < args.count:
            if args.next_is(b"FORCE"):
                self.force = True
            elif args.next_is(b"JUSTID"):
                self.just_id = True
            elif args.pos + 1 >= args.count:
                raise unknown_option(args)
            elif args.next_is(b"IDLE"):
                at_ms = ago(ctx.steady_ms, args.take_int_or(
                    "ERR Invalid IDLE option argument for XCLAIM"))
            elif args.next_is(b"TIME"):
                at_ms = steady_moment(ctx, args.take_int_or(
                    "ERR Invalid TIME option argument for XCLAIM"))
            elif args.next_is(b"RETRYCOUNT"):
                self.deliveries = args.take_int_or(
                    "ERR Invalid RETRYCOUNT option argument for XCLAIM")
            elif args.next_is(b"LASTID"):
                args.take_id(&self.last_id, False, 0)
                self.with_last_id = True
            else:
                raise unknown_option(args)
        # A time before 1970 or to come is taken for now, as in Redis.
        self.delivery_ms = ctx.steady_ms if at_ms < 0 or at_ms > <int64_t>ctx.steady_ms else at_ms
        return 0

    cdef int begin(self, Context ctx, bytes key, Stream stream, Group group,
                   bytes consumer) except -1:
        self.ctx = ctx
        self.key = key
        self.stream = stream
        self.group = group
        self.consumer = asking_consumer(ctx, key, group, consumer)
        self.claimed = Ids.__new__(Ids)
        self.gone = []
        self.finder = finder_of(stream)
        self.chosen = None
        self.id_text.size = 0
        self.id_text.dotted = False
        return 0

    cdef by_id(self, Args args):
        """Claim the entries that an XCLAIM names; its reply."""
        cdef Output out = Output()
        cdef EntryId found
        cdef Pending* record
        cdef PendingAt at
        cdef Py_ssize_t i
        cdef ArrayHead head
        out.begin_array(&head, self.ids_end - 5)
        try:
            for i in range(5, self.ids_end):
                parse_id(args.items[i].ptr, args.items[i].size, False, 0, &found)
                record = self.group.find(found.ms, found.seq, &at)
                if not self.finder.find(found.ms, found.seq):
                    if record != NULL:
                        self.gone.append((found.ms, found.seq))
                elif record != NULL or self.force:
                    self.take_over(found, record, &at, out)
        finally:
            self.finish()
        out.end_array(&head, self.claimed.count)
        return make_raw(out.take_bytes())

    cdef bint take_over(self, EntryId found, Pending* record, PendingAt* at,
                        Output out) except -1:
        """Hand the entry that was just found over and answer it; False when it has not been idle
        for long enough. It is pending, or made so (FORCE)."""
        cdef int64_t deliveries
        if record != NULL and self.min_idle_ms and (
                self.ctx.steady_ms - min(<uint64_t>record.last_delivery_ms, self.ctx.steady_ms)
                < self.min_idle_ms):
            return False
        self.show(found, out)
        self.claimed.add(found.ms, found.seq)
        if record == NULL:
            # As in Redis, a first delivery that is then counted as any other.
            self.group.deliver(found.ms, found.seq, self.delivery_ms, 0, 0)
            record = self.group.find(found.ms, found.seq, at)
        deliveries = self.group.deliveries(record)
        if self.deliveries >= 0:
            deliveries = self.deliveries
        elif not self.just_id:
            deliveries = one_more(deliveries)
        self.group.transfer(at, self.consumer.index, self.delivery_ms, deliveries)
        self.group.note_again(found.ms, found.seq, self.delivery_ms, self.ctx.steady_ms)
        self.consumer.active_ms = self.ctx.steady_ms
        return True

    cdef int show(self, EntryId found, Output out) except -1:
        if self.just_id:
            return out.put_id(found.ms, found.seq, False)
        if self.chosen is not None:
            return self.chosen.add(self.finder, found.ms, found.seq)
        return encode_entry(
            out, &self.finder.walk.view, &self.finder.walk.cursor.entry, &self.id_text)

    cdef int finish(self) except -1:
        """Record what was done."""
        if self.claimed.count:
            self.ctx.count_change(self.key, None, self.claimed.count)
            record_claim(self.ctx, self.key, self.group, self.consumer, self.delivery_ms,
                         b"%d" % self.deliveries if self.deliveries >= 0 else (
                             b"=" if self.just_id else b"+"), self.claimed)
        else:
            note_seen(self.ctx, self.key, self.group, self.consumer)
        return drop_gone(self.ctx, self.key, self.group, self.gone)

    cdef scan(self, EntryId start, int64_t count):
        """XAUTOCLAIM: [where to go on, entries, ids of those that are gone]."""
        cdef Output out = Output()
        cdef Output reply
        cdef Pending* record
        cdef PendingAt at
        cdef EntryId found
        cdef int64_t looks = count * LOOKS_PER_CLAIM
        cdef uint64_t ms, seq
        if not self.just_id and min(<uint64_t>count, self.group.pending_count) > LONG_CLAIM:
            self.chosen = choice_of(self.stream)
        record = self.group.first_at_least(start.ms, start.seq, &at)
        self.group.record_at(&at)
        found.ms = found.seq = 0
        try:
            while record != NULL and count and looks:
                looks -= 1
                found.ms = record.ms
                found.seq = record.seq
                if not self.finder.find(found.ms, found.seq):
                    self.gone.append((found.ms, found.seq))
                    count -= 1
                elif self.take_over(found, record, &at, out):
                    count -= 1
                record = self.group.after(&at)
            found.ms = found.seq = 0
            if record != NULL:
                found.ms = record.ms
                found.seq = record.seq
        finally:
            self.finish()
        reply = Output()
        reply.put_raw(b"*3\r\n", 4)
        reply.put_id(found.ms, found.seq, False)
        reply.put_head(c'*', self.claimed.count)
        reply.put(out.take_bytes())
        head = reply.take_bytes()
        reply.put_head(c'*', len(self.gone))
        for ms, seq in self.gone:
            reply.put_id(ms, seq, False)
        tail = reply.take_bytes()
        return make_raw(head + tail) if self.chosen is None else make_parts(
            [head, self.chosen, tail])


cdef unknown_option(Args args):
    return CommandError(f"ERR Unrecognized XCLAIM option '{shown(args[args.pos])}'")


cdef int64_t steady_moment(Context ctx, int64_t wall_ms) noexcept:
    """A time of day on the clock by which idle times are measured."""
    if wall_ms < 0 or wall_ms > <int64_t>ctx.now_ms:
        return wall_ms if wall_ms < 0 else ctx.steady_ms
    return max(<int64_t>ctx.steady_ms - (<int64_t>ctx.now_ms - wall_ms), 0)


cdef int64_t ago(int64_t now_ms, int64_t span_ms) noexcept:
    """now - span; a time to come where it has no place."""
    return now_ms + 1 if span_ms < 0 else now_ms - span_ms


# ---------------------------------------------------------------- XAUTOCLAIM

@command(
    "XAUTOCLAIM", arity=-6, flags="write fast", keys=(1, 1, 1), group="stream", since="6.2.0",
    summary="Transfers pending entries with a given idle time to a consumer, in ID order.",
    syntax="key group consumer min-idle-time start [COUNT count] [JUSTID]",
    complexity="O(1) if COUNT is small",
)
def xautoclaim(Context ctx not None, Args args not None):
    cdef Claim claim = Claim.__new__(Claim)
    cdef Stream stream
    cdef Group group
    cdef EntryId start
    cdef int64_t count = DEFAULT_COUNT
    cdef int64_t min_idle_ms
    cdef object refusal = None
    try:
        stream = ctx.read_for_update_at(&args.items[1])
    except CommandError as error:
        refusal = error  # Redis looks the key up first, and checks its type after the arguments
    args.pos = 4
    min_idle_ms = args.take_int_or("ERR Invalid min-idle-time argument for XAUTOCLAIM")
    take_start(args, &start, False)
    while args.pos < args.count:
        if args.pos + 1 < args.count and args.next_is(b"COUNT"):
            count = take_count(args)
        elif args.next_is(b"JUSTID"):
            claim.just_id = True
        else:
            raise CommandError(SYNTAX)
    if refusal is not None:
        raise refusal
    group = group_in(ctx, args, stream)
    checked_consumer_name(args[3])
    claim.min_idle_ms = max(min_idle_ms, 0)
    claim.deliveries = -1
    claim.delivery_ms = ctx.steady_ms
    ctx.effects.require(read_effects_most(
        args[1], group, args[3],
        min(<uint64_t>count, group.pending_count)))
    claim.begin(ctx, args[1], stream, group, args[3])
    reply = claim.scan(start, count)
    used(ctx, args[1], group)
    return reply


cdef int64_t take_count(Args args) except -1:
    cdef int64_t count = args.take_int_or(COUNT_NOT_POSITIVE)
    if not 0 < count <= COUNT_LARGEST:
        raise CommandError(COUNT_NOT_POSITIVE)
    return count


# ---------------------------------------------------------------- XNACK

@command(
    "XNACK", arity=-7, flags="write fast", keys=(1, 1, 1), group="stream", since="8.8.0",
    summary="Returns pending entries to the group without an owner; any consumer can claim them.",
    syntax="key group <mode: SILENT | FAIL | FATAL> {ids: IDS numids id [id ...]} [RETRYCOUNT "
    "count] [FORCE]",
    complexity="O(log n) for each id, n the number of the group's pending entries",
)
def xnack(Context ctx not None, Args args not None):
    cdef Release release = Release.__new__(Release)
    cdef Stream stream
    cdef Group group
    cdef int64_t released
    stream, group = group_asked(ctx, args)
    release.take_options(args)
    released = release.apply(ctx, args[1], stream, group)
    used(ctx, args[1], group)
    return released


cdef class Release:
    """What an XNACK asks for. `count` is as the effect says it: a number, `-` for one delivery
    less, `=` for as many as before."""

    cdef int take_options(self, Args args) except -1:
        cdef Py_ssize_t first = 0
        cdef Py_ssize_t count = 0
        args.pos = 3
        self.take_mode(args)
        while args.pos < args.count:
            if args.pos + 1 < args.count and args.next_is(b"IDS"):
                first = args.pos + 1
                count = args.skip_ids(NACK_NOT_POSITIVE, NACK_TOO_FEW)
            elif args.pos + 1 < args.count and args.next_is(b"RETRYCOUNT"):
                self.count = b"%d" % take_retry_count(args)
            elif args.next_is(b"FORCE"):
                self.force = True
            else:
                raise CommandError(f"ERR Unrecognized XNACK option '{shown(args[args.pos])}'")
        if count == 0:
            raise CommandError("ERR syntax error, expected IDS keyword")
        self.ids = args.ids_at(first, count)
        return 0

    cdef int take_mode(self, Args args) except -1:
        if args.next_is(b"SILENT"):
            self.count = b"-"
        elif args.next_is(b"FAIL"):
            self.count = b"="
        elif args.next_is(b"FATAL"):
            self.count = b"%d" % INT64_MAX
        else:
            raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")
        return 0

    cdef int64_t apply(self, Context ctx, bytes key, Stream stream, Group group) except -1:
        """Release what is pending of the ids (FORCE: of those in the stream); returns how many."""
        cdef PendingAt at
        cdef View view
        cdef Entry entry
        cdef uint64_t ms, seq
        cdef list released = []
        for ms, seq in self.ids:
            if group.find(ms, seq, &at) != NULL or (
                    self.force and stream.find(ms, seq, &view, &entry)):
                group.release(ms, seq, self.count, ctx.steady_ms)
                released.append((ms, seq))
        if released:
            # What is released can be claimed at once: the effect wakes the readers.
            ctx.change((b"RELEASE", key, group.name, ctx.steady_ms, self.count,
                        *id_words(ctx, released)), None, <uint64_t>len(released))
        return len(released)


cdef int64_t take_retry_count(Args args) except -1:
    cdef int64_t count = args.take_int()
    if count < 0:
        raise CommandError(BAD_RETRYCOUNT)
    return count
