# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TREAD: entries after an ID, or the next entries of a group; it can wait for new entries.

Delivery is shared with XREADGROUP, and blocked readers of both wait in one queue.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.engine.delivery cimport (
    ReplyBudget, Retry, begin_budget, deliver_long, deliver_new, group_has_gap,
    is_long_delivery, no_retry, redeliver_due,
)
from millstream.commands.engine.managed_groups cimport deliver_due, set_deadline
from millstream.commands.engine.picked cimport (
    deliver_picked as picked_entries, has_parked_to_deliver, is_search_cut, picked_most,
)
from millstream.commands.engine.ranges cimport EntryRange, has_gap, make_range
from millstream.commands.engine.searching cimport FilteredRange, make_filtered
from millstream.commands.runtime.replies cimport BlockedRead, Raw, make_raw, make_several
from millstream.commands.runtime.stream_effects cimport Terms
from millstream.commands.engine.lifecycle cimport (
    live_group, new_group, note_used, read_effects_most,
)
from millstream.commands.engine.waiting cimport GroupsRead, SearchingRead
from millstream.commands.runtime.arguments cimport Args, take_timeout_ms
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport ArrayHead, Output, Slice, put_nil, put_null_array
from millstream.entry_id cimport EntryId, step_up
from millstream.ids cimport parse_id
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.groups.due_index cimport is_due
from millstream.storage.groups.group cimport (
    Group, is_paused, is_picking, places_of, timeout_ms_of, ttl_ms_of,
)
from millstream.storage.groups.pending cimport UNOWNED
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.conditions import take_filter
from millstream.commands.table.registry import command
from millstream.commands.runtime.replies import NULL_ARRAY, Wait
from millstream.commands.runtime.stream_effects import GROUPTTL
from millstream.errors import INVALID_ID, NOT_INTEGER, SYNTAX, CommandError, shown

WHERE_OF_A_GROUP = "ERR WHERE cannot be used with GROUP: TGROUP sets the filter of a group"


cdef uint64_t take_unsigned(Args args) except? 0xffffffffffffffff:
    cdef int64_t value = args.take_int()
    if value < 0:
        raise CommandError(NOT_INTEGER)
    return <uint64_t>value


@command(
    "TREAD key last-id count [BLOCK ms] [GROUP name ttl-ms] [RETRY retry-ms expire-ms] [WITHINFO] "
    "[where: WHERE n:integer condition [condition ...]]",
    "readonly blocking writes_with:GROUP",
    complexity="O(log n) to find the start and O(m) for the m entries answered",
)
def tread(Context ctx not None, Args args not None):
    """Reads entries after an ID, or the next entries of a group; can wait for new entries."""
    cdef Slice* last_id = &args.items[2]
    cdef EntryId after
    cdef bint from_end = last_id.size == 0 or (last_id.size == 1 and last_id.ptr[0] == c'$')
    cdef bint existing = last_id.size == 1 and last_id.ptr[0] == c'>'
    cdef bint with_info = False
    cdef bint block = False
    cdef int64_t timeout_ms = 0
    cdef uint64_t limit
    cdef uint64_t ttl_ms = 0
    cdef uint64_t retry_ms
    cdef bytes group = None
    cdef Retry retry = None
    cdef EntryFilter filter = None
    cdef Stream stream
    cdef GroupRead read
    after.ms = after.seq = 0
    if not from_end and not existing and parse_id(
            last_id.ptr, last_id.size, True, 0, &after) < 0:
        raise CommandError(INVALID_ID)
    args.pos = 3
    limit = take_unsigned(args)
    while args.pos < args.count:
        if args.next_is(b"BLOCK"):
            timeout_ms = take_timeout_ms(args)
            block = True
        elif args.next_is(b"GROUP"):
            group = args.take()
            ttl_ms = take_unsigned(args)
        elif args.next_is(b"RETRY"):
            retry_ms = take_unsigned(args)
            retry = Retry(retry_ms, take_unsigned(args))
        elif args.next_is(b"WITHINFO"):
            with_info = True
        elif args.next_is(b"WHERE"):
            filter = take_filter(args)
        else:
            raise CommandError(SYNTAX)
    if filter is not None and group is not None:
        raise CommandError(WHERE_OF_A_GROUP)
    block = block and limit > 0
    deadline_ms = ctx.steady_ms + timeout_ms if timeout_ms else 0
    if group is not None:
        read = GroupRead.__new__(GroupRead)
        read.key = args.items[1].ptr[:args.items[1].size]
        read.group = group
        read.after = after
        read.from_end = from_end
        read.existing = existing
        read.limit = limit
        read.ttl_ms = ttl_ms
        read.retry = retry
        read.with_info = with_info
        return read_group(ctx, read, block, deadline_ms)
    if existing:
        raise CommandError(INVALID_ID)
    stream = ctx.read_stream_at(&args.items[1])
    if from_end and stream is not None:
        after.ms = stream.last_ms
        after.seq = stream.last_seq
    deadline_ms = deadline_ms if block else None
    if filter is not None:
        filtered = make_filtered_read(ctx, args, filter, after, limit, with_info)
        return read_filtered(ctx, filtered, stream, deadline_ms)
    return read_plain(ctx, &args.items[1], stream, after, limit, with_info, deadline_ms)


cdef read_plain(Context ctx, Slice* key, Stream stream, EntryId after, uint64_t limit,
                bint with_info, deadline_ms):
    """Entries after an ID. deadline_ms: the end of the wait for an entry; 0: wait forever; None: do
    not wait."""
    cdef PlainRead read
    cdef EntryRange reply
    if deadline_ms is not None and (stream is None or not stream.has_newer(after)):
        read = PlainRead.__new__(PlainRead)
        read.key = key.ptr[:key.size]
        read.db_index = ctx.db.index
        read.keys = [(read.db_index, read.key)]
        read.after = after
        read.limit = limit
        read.with_info = with_info
        return Wait(read, deadline_ms)
    reply = make_range(stream, True, limit)
    reply.start = after
    if not step_up(&reply.start):
        reply.limit = 0
    put_lead(ctx, reply, with_info, stream is not None and limit > 0 and has_gap(stream, after))
    return reply


cdef int put_lead(Context ctx, EntryRange reply, bint with_info, bint gap) except -1:
    """Put WITHINFO's element and the nil of a gap before the entries."""
    if with_info or gap:
        reply.begin_with(lead_of(ctx, reply.stream, with_info, gap),
                         <uint64_t>with_info + <uint64_t>gap)
    return 0


cdef Output lead_of(Context ctx, Stream stream, bint with_info, bint gap):
    cdef Output lead = Output()
    if with_info:
        put_info(lead, stream, ctx.session.resp)
    if gap:
        put_nil(lead, ctx.session.resp)
    return lead


cdef int put_info(Output out, Stream stream, int resp) except -1:
    """Write WITHINFO's element: [first ID, last ID], [nil, last generated ID] for an empty stream,
    [nil, nil] without a stream."""
    cdef EntryId found
    out.put_raw(b"*2\r\n", 4)
    if stream is None:
        put_nil(out, resp)
        return put_nil(out, resp)
    if not stream.first_entry(&found):
        put_nil(out, resp)
        return out.put_id(stream.last_ms, stream.last_seq, True)
    out.put_id(found.ms, found.seq, True)
    stream.last_entry(&found)
    return out.put_id(found.ms, found.seq, True)


# The key of the last reply (read, resp, reply) among the shared replies.
NEWEST = "newest"


cdef class PlainRead(BlockedRead):
    """A TREAD without GROUP that waits."""

    cdef bytes key
    cdef int db_index
    cdef EntryId after
    cdef uint64_t limit
    cdef bint with_info

    def attempt(self, Context ctx not None):
        cdef Database db
        cdef Stream stream
        shared = self.find_shared(ctx)
        if shared is not None:
            return shared
        db = <Database>ctx.keyspace.databases[self.db_index]
        stream = db.stream(self.key)
        if stream is None or not stream.has_newer(self.after):
            return None
        return self.reply(ctx, stream)

    cdef find_shared(self, Context ctx):
        """The reply to an equal read that was already served: many readers of one append get the
        same bytes, which are found and encoded once. Usually it is the reply that was made last."""
        if not ctx.shared:
            return None
        read, resp, reply = (<dict>ctx.shared)[NEWEST]
        if resp == ctx.session.resp and self.asks_for_the_same(read):
            return reply
        return (<dict>ctx.shared).get(self.asked_for(ctx))

    cdef bint asks_for_the_same(self, PlainRead other) noexcept:
        return (self.after.ms == other.after.ms and self.after.seq == other.after.seq
                and self.limit == other.limit and self.db_index == other.db_index
                and self.with_info == other.with_info and self.key == other.key)

    cdef tuple asked_for(self, Context ctx):
        return (self.key, self.after.ms, self.after.seq, self.limit, self.db_index, self.with_info,
                ctx.session.resp)

    cdef reply(self, Context ctx, Stream stream):
        cdef EntryRange entries = make_range(stream, True, self.limit)
        cdef Output out
        entries.start = self.after
        step_up(&entries.start)
        put_lead(ctx, entries, self.with_info, has_gap(stream, self.after))
        if ctx.shared is None:
            return entries
        out = Output()
        entries.encode(out, ctx.session.resp)
        if entries.rest() is not None:
            return make_several([make_raw(out.take()), entries])
        reply = make_raw(out.take())
        ctx.shared[self.asked_for(ctx)] = reply
        ctx.shared[NEWEST] = (self, ctx.session.resp, reply)
        return reply

    def timeout_reply(self, Context ctx not None):
        if not self.with_info:
            return NULL_ARRAY
        return info_reply(ctx, self.db_index, self.key)


cdef info_reply(Context ctx, int db_index, bytes key):
    """[[first, last]] of the stream that is at the key now."""
    cdef Output out = Output()
    value = (<Database>ctx.keyspace.databases[db_index]).get(key)
    out.put_raw(b"*1\r\n", 4)
    put_info(out, value if isinstance(value, Stream) else None, ctx.session.resp)
    return make_raw(out.take())


# ---------------------------------------------------------------- filtered reads

cdef FilteredRead make_filtered_read(Context ctx, Args args, EntryFilter filter, EntryId after,
                                     uint64_t limit, bint with_info):
    cdef FilteredRead read = FilteredRead.__new__(FilteredRead)
    read.key = args.items[1].ptr[:args.items[1].size]
    read.db_index = ctx.db.index
    read.keys = [(read.db_index, read.key)]
    read.after = [(after.ms, after.seq)]
    read.filter = filter
    read.limit = limit
    read.with_info = with_info
    return read


cdef read_filtered(Context ctx, FilteredRead read, Stream stream, deadline_ms):
    """`read_plain` with WHERE."""
    if deadline_ms is None or not ctx.may_block or read.look([stream]):
        return read.reply(ctx, stream)
    return Wait(read, deadline_ms)


cdef class FilteredRead(SearchingRead):
    """A TREAD with WHERE."""

    cdef bytes key
    cdef uint64_t limit
    cdef bint with_info

    cdef FilteredRange reply(self, Context ctx, Stream stream):
        """The matches after the position. What was searched before its eviction had no match, so it is
        no gap."""
        cdef EntryId after = EntryId(0, 0)
        cdef FilteredRange made
        cdef bint gap
        if stream is not None:
            after = self.position(0, stream)
        gap = stream is not None and self.limit > 0 and (
            has_gap(stream, after) or self.has_gap_in(0, stream))
        limit = self.limit if step_up(&after) else 0
        made = make_filtered(stream, self.filter, True, after, EntryId(MAX, MAX), limit)
        if self.with_info or gap:
            made.begin_with(lead_of(ctx, stream, self.with_info, gap),
                            <uint64_t>self.with_info + <uint64_t>gap)
        return made

    def attempt(self, Context ctx not None):
        cdef Stream stream
        if self.is_searching():
            return None
        stream = (<Database>ctx.keyspace.databases[self.db_index]).stream(self.key)
        if stream is None or not self.look([stream]):
            return None
        return self.reply(ctx, stream)

    def timeout_reply(self, Context ctx not None):
        """As without WHERE; a search that is not complete continues in what is there now."""
        cdef FilteredRange made
        cdef Output none
        empty = info_reply(ctx, self.db_index, self.key) if self.with_info else None
        if not self.is_searching():
            return NULL_ARRAY if empty is None else empty
        none = Output()
        if empty is None:
            put_null_array(none, ctx.session.resp)
        else:
            (<Raw>empty).encode(none, ctx.session.resp)
        value = (<Database>ctx.keyspace.databases[self.db_index]).get(self.key)
        made = self.reply(ctx, value if isinstance(value, Stream) else None)
        made.when_none = none.take()
        return made


# ---------------------------------------------------------------- group reads

cdef read_group(Context ctx, GroupRead read, bint block, deadline_ms):
    cdef bytes key = read.key
    cdef Group group
    cdef Stream stream
    if ctx.write_error is not None:
        raise CommandError(ctx.write_error)
    stream = ctx.write_stream(key) if read.existing else ctx.open_stream(key)
    if stream is None:
        raise read.no_group()
    read.db_index = ctx.db.index
    read.keys = [(read.db_index, key)]
    group = read.ready_group(ctx, stream)
    if ttl_ms_of(group) != read.ttl_ms:
        stream.set_ttl(group, read.ttl_ms, ctx.steady_ms)
        ctx.change((GROUPTTL, key, read.group, read.ttl_ms), None, 1)
    reply = read.serve(ctx, stream, group, True)
    read.is_polling = not block and reply is None and ctx.may_block and is_search_cut(group)
    if reply is None and (block or read.is_polling):
        read.continue_search(ctx, group)
        read.waiting = True
        read.incarnation = stream.incarnation
        read.hold([group])
        note_used(ctx, key, group)
        return Wait(read, 0 if read.is_polling else deadline_ms)
    note_used(ctx, key, group)
    return read.nothing(ctx) if reply is None else reply


cdef class GroupRead(GroupsRead):
    """A TREAD with GROUP."""

    cdef bytes key
    cdef EntryId after
    cdef bint from_end
    cdef bint existing  # with the ID `>`: the group is not created
    cdef uint64_t limit
    cdef uint64_t ttl_ms
    cdef Retry retry
    cdef bint with_info
    cdef bint waiting
    cdef bint is_polling  # without BLOCK, while the search for entries that match is not complete
    cdef bint key_was_gone
    cdef uint64_t incarnation

    cdef Group ready_group(self, Context ctx, Stream stream):
        """The group, created if it is missing: at the ID of the request on the first attempt.
        Later, if the key was created again, it begins at 0, so that the first entry is not missed;
        if only the group was destroyed, it begins at the end."""
        cdef Group group = live_group(ctx, self.key, stream, self.group)
        cdef EntryId offset = self.after
        if group is not None:
            return group
        if self.existing:
            raise self.no_group()
        if self.waiting and not self.key_was_gone and stream.incarnation == self.incarnation:
            offset.ms = stream.last_ms
            offset.seq = stream.last_seq
        elif self.from_end and not self.waiting:
            offset.ms = stream.last_ms
            offset.seq = stream.last_seq
        if self.waiting and ctx.remade is not None:
            # For the XREADGROUPs later in the queue, whose group no longer exists.
            ctx.remade.add((self.db_index, self.key, self.group))
        return new_group(ctx, self.key, stream, self.group, (offset.ms, offset.seq),
                         0 if offset.ms == 0 and offset.seq == 0 else -1, self.ttl_ms)

    cdef no_group(self):
        return CommandError(
            f"NOGROUP No such key '{shown(self.key)}' or consumer group '{shown(self.group)}' in "
            "TREAD with the ID >"
        )

    cdef serve(self, Context ctx, Stream stream, Group group, bint first):
        """The due redeliveries and new entries; None when there are none."""
        cdef bint due
        cdef bint newer
        cdef int64_t most
        if self.limit == 0 or is_paused(group, ctx.steady_ms):
            return None
        due = is_due(group.pending.records, ctx.steady_ms, first)
        newer = stream.has_newer(EntryId(group.offset_ms, group.offset_seq))
        if not due and not newer and not has_parked_to_deliver(group):
            return None
        # The effects list each redelivered entry, and again those that no longer exist or expire.
        most = read_effects_most(
            self.key, group, b"", 2 * min(self.limit, group.pending.records.count) if due else 0)
        if not self.has_room(ctx, most + picked_most(group), first):
            return None
        if is_picking(group):
            return self.deliver_picked(ctx, stream, group, first)
        return self.deliver(ctx, stream, group, first)

    cdef deliver(self, Context ctx, Stream stream, Group group, bint first):
        """Deliver the nil of a gap, which comes only with new entries, then redeliveries, then new
        entries."""
        cdef Output out = Output()
        cdef ArrayHead head
        cdef Terms terms
        cdef ReplyBudget budget
        cdef uint64_t lead = self.with_info
        cdef uint64_t made, left
        cdef EntryRange entries
        cdef Output again = Output()
        self.set_terms(&terms, group, first)
        if timeout_ms_of(group):
            begin_budget(&budget, self.limit)
            budget.places = places_of(group)
            made = deliver_due(ctx, self.key, stream, group, &terms, again, &budget)
            left = min(self.limit - made, budget.places)
            if made == 0 and left == 0:
                return None
        else:
            made = redeliver_due(ctx, self.key, stream, group, &terms, self.limit, again)
            left = self.limit - made
        long_delivery = is_long_delivery(stream, group, left)
        if not long_delivery:
            out.begin_array(&head, 2 + min(self.limit, stream.length + group.pending.records.count))
        if self.with_info:
            put_info(out, stream, ctx.session.resp)
        if left and stream.has_newer(EntryId(group.offset_ms, group.offset_seq)) and group_has_gap(
                stream, group):
            put_nil(out, ctx.session.resp)
            lead += 1
        if made:
            out.put(again.take())
        if long_delivery:
            entries = make_range(stream, True, left)
            deliver_long(ctx, self.key, stream, group, &terms, entries)
            if lead + made:
                entries.begin_with(out, lead + made)
            return entries
        begin_budget(&budget, left)
        made += deliver_new(ctx, self.key, stream, group, &terms, out, &budget)
        out.end_array(&head, lead + made)
        return make_raw(out.take())

    cdef deliver_picked(self, Context ctx, Stream stream, Group group, bint first):
        """`deliver` in a group with a filter or an order. The nil of a gap comes when the offset has
        passed it."""
        cdef Output out = Output()
        cdef Output picked = Output()
        cdef Terms terms
        cdef ReplyBudget budget
        cdef uint64_t lead = self.with_info
        cdef uint64_t made
        cdef bint is_passed = group_has_gap(stream, group)
        cdef ArrayHead head
        self.set_terms(&terms, group, first)
        begin_budget(&budget, self.limit)
        budget.places = places_of(group)
        if timeout_ms_of(group):
            made = deliver_due(ctx, self.key, stream, group, &terms, picked, &budget)
        else:
            made = redeliver_due(ctx, self.key, stream, group, &terms, self.limit, picked)
        budget.limit -= made
        made += picked_entries(ctx, self.key, stream, group, &terms, picked, &budget)
        is_passed = is_passed and not group_has_gap(stream, group)
        if made == 0 and not is_passed:
            return None
        out.begin_array(&head, 2 + made)
        if self.with_info:
            put_info(out, stream, ctx.session.resp)
        if is_passed:
            put_nil(out, ctx.session.resp)
            lead += 1
        out.put(picked.take())
        out.end_array(&head, lead + made)
        return make_raw(out.take())

    cdef int set_terms(self, Terms* terms, Group group, bint first) noexcept:
        """Set the terms: entries have no owner, and become pending if they may be delivered again,
        as all may in a managed group."""
        no_retry(terms, self.retry is not None or timeout_ms_of(group) > 0, UNOWNED)
        terms.dotted = True
        terms.with_zero = first
        if self.retry is not None:
            terms.has_retry = True
            terms.retry_ms = self.retry.retry_ms
            terms.expire_ms = self.retry.expire_ms
        if timeout_ms_of(group):
            set_deadline(terms, group)
        return 0

    def attempt(self, Context ctx not None):
        cdef Stream stream
        cdef Group group
        if ctx.write_error is not None:
            self.retry_later(ctx)
            return None
        stream = ctx.write_stream(self.key)
        if stream is None:
            self.key_was_gone = True
            self.hold([])
            return None
        group = self.ready_group(ctx, stream)
        self.key_was_gone = False
        self.incarnation = stream.incarnation
        self.hold([group])
        reply = self.serve(ctx, stream, group, False)
        if reply is None:
            self.continue_search(ctx, group)
            if self.is_polling and not is_search_cut(group):
                reply = self.nothing(ctx)
        if reply is not None:
            note_used(ctx, self.key, group)
        else:
            ctx.keyspace.schedule_after(self.db_index, self.key, group, ctx.steady_ms)
        return reply

    @property
    def kind(self):
        return (GroupRead, id(self)) if self.is_polling else GroupRead

    cdef nothing(self, Context ctx):
        """The reply without entries."""
        return info_reply(ctx, self.db_index, self.key) if self.with_info else []

    cdef int continue_search(self, Context ctx, Group group) except -1:
        """Continue a search that has not looked at all new entries in a later turn."""
        if is_search_cut(group):
            self.look_again(ctx, self.key, 1)
        return 0

    def join(self, Stream stream not None, Group group not None) -> None:
        self.hold([group])
        self.key_was_gone = False
        self.incarnation = stream.incarnation

    cdef int count_in(self, Group group, int change) except -1:
        group.pending.blocked_clients += change
        group.pending.retry_waiters += change
        return 0

    def timeout_reply(self, Context ctx not None):
        if not self.with_info:
            return NULL_ARRAY
        return info_reply(ctx, self.db_index, self.key)
