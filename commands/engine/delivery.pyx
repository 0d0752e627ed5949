# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Delivering, claiming and acknowledging the entries of a group, for the commands of both dialects.

The reply is encoded first, because it may not fit into memory; then its entries are delivered and
recorded. One delivery is one effect, whatever its number of entries.
"""

from libc.stdint cimport INT64_MAX, UINT64_MAX as MAX, int64_t, uint32_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport put_signed
from millstream.commands.runtime.stream_effects cimport (
    ClaimTerms, Ids, Terms, record_ack, record_claim, record_delivery, record_redelivery,
)
from millstream.commands.engine.ranges cimport EntryRange
from millstream.commands.engine.group_replies cimport entries_up_to, idle_of
from millstream.commands.engine.lifecycle cimport live_group, note_acked, note_freed, note_used
from millstream.encoding cimport Output, put_nil
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.ids cimport parse_id
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.due_index cimport DeliveryOrder, DueIds, expires_ms, is_due, is_idle
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.managed_entries cimport claim_retry_number, take_back_later
from millstream.storage.groups.ordered_pending cimport OrderedPending, may_claim, ordered
from millstream.storage.groups.pending cimport NO_RETRY, Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.streams.stream cimport Stream

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    # The least number of entries that are examined together to find claimable ones.
    CLAIM_BATCH = 128
    # The size of the first batch of a large claim; each further batch is twice as large.
    CLAIM_MAX = 4096
    # A claim ends after this number of records without an entry, which take 2 ms.
    GONE_MAX = 5000
    # The number of IDs of a long delivery that are collected before they are delivered.
    RUN_MAX = 128


cdef class Retry:
    """RETRY retry-ms expire-ms of a request."""

    def __init__(self, uint64_t retry_ms, uint64_t expire_ms):
        self.retry_ms = retry_ms
        self.expire_ms = expire_ms


# ---------------------------------------------------------------- delivery

cdef bint group_has_gap(Stream stream, Group group) noexcept:
    """True if entries after the group's offset were evicted unread. For a group that began at 0,
    evictions before its creation do not count."""
    return id_less(group.offset_ms, group.offset_seq, stream.max_evicted_ms,
                   stream.max_evicted_seq) and id_less(
        group.gap_floor_ms, group.gap_floor_seq, stream.max_evicted_ms, stream.max_evicted_seq)


cdef int begin_budget(ReplyBudget* budget, uint64_t limit) noexcept:
    """Set a budget of `limit` entries of any size."""
    budget.limit = budget.entries = limit
    budget.full_size = PY_SSIZE_T_MAX
    budget.made = 0
    budget.min_idle_ms = 0
    budget.places = MAX
    budget.with_age = budget.is_cut = False
    return 0


cdef int no_retry(Terms* terms, bint keep, uint32_t owner) noexcept:
    """Set terms without retries: entries become pending (`keep`) of an owner and are not delivered
    again automatically."""
    terms.keep = keep
    terms.owner = owner
    terms.dotted = False
    terms.has_retry = False
    return 0


cdef uint64_t deliver_new(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                          Output out, ReplyBudget* budget) except? 0xffffffffffffffff:
    """Deliver entries after the group's offset and encode them into `out`, as many as the budget
    allows; returns their number. The whole delivery is one effect.
    """
    cdef Walk walk
    cdef IdText id_text
    cdef Delivery delivery
    cdef uint64_t found = 0
    cdef Py_ssize_t start_size
    cdef Ids shown = Ids.__new__(Ids)
    cdef uint64_t limit = min(budget.limit, budget.entries)
    if limit == 0 or is_full(out, budget) or not stream.has_newer(
            EntryId(group.offset_ms, group.offset_seq)):
        return 0
    begin_delivery(&delivery, ctx, stream, group, terms)
    id_text.size = 0
    id_text.dotted = terms.dotted
    stream.walk_start(&walk, delivery.first)
    # The reply first: if it does not fit into memory, nothing has been delivered.
    while found < limit and stream.walk_next(&walk):
        start_size = out.size
        encode_entry(out, &walk.view, &walk.cursor.entry, &id_text)
        if budget.with_age:
            put_age(out, start_size, 0, 0)
        shown.add(walk.cursor.entry.ms, walk.cursor.entry.seq)
        found += 1
        if out.size >= budget.full_size:
            break
    budget.entries -= found
    budget.made += found
    try:
        deliver_run(&delivery, group, shown.items, found)
    finally:
        end_delivery(&delivery, ctx, key, stream, group, terms)
    return found


cdef bint is_long_delivery(Stream stream, Group group, uint64_t limit) noexcept:
    """True if the new entries are too many for a reply in one piece: it is made in slices."""
    cdef EntryId start
    if min(limit, stream.length) <= LONG_DELIVERY:
        return False
    start.ms = group.offset_ms
    start.seq = group.offset_seq
    step_up(&start)
    return stream.count_between(start, EntryId(MAX, MAX)) > LONG_DELIVERY


cdef int deliver_long(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                      EntryRange entries) except -1:
    """Like `deliver_new` for many entries; there is at least one. They are delivered now, without
    reading their contents, and `entries` becomes their range."""
    cdef Delivery delivery
    begin_delivery(&delivery, ctx, stream, group, terms)
    try:
        if terms.keep:
            deliver_pending(&delivery, stream, group, entries.limit)
        else:
            skip_ahead(&delivery, stream, group, entries.limit)
    finally:
        end_delivery(&delivery, ctx, key, stream, group, terms)
    entries.start = delivery.first
    entries.end.ms = group.offset_ms
    entries.end.seq = group.offset_seq
    entries.limit = delivery.given
    return 0


cdef int deliver_pending(Delivery* delivery, Stream stream, Group group, uint64_t limit) except -1:
    """Deliver up to `limit` entries that become pending."""
    cdef Walk walk
    cdef EntryId[RUN_MAX] run
    cdef size_t size = 0
    stream.walk_start(&walk, delivery.first)
    while delivery.given + size < limit and stream.walk_next(&walk):
        run[size].ms = walk.cursor.entry.ms
        run[size].seq = walk.cursor.entry.seq
        size += 1
        if size == RUN_MAX:
            deliver_run(delivery, group, run, size)
            size = 0
    return deliver_run(delivery, group, run, size)


cdef int skip_ahead(Delivery* delivery, Stream stream, Group group, uint64_t limit) noexcept:
    """Deliver up to `limit` entries that do not become pending; there is at least one. Only the
    first and the last one are looked up."""
    cdef EntryId last
    cdef uint64_t rank = stream.rank_of(delivery.first)
    delivery.given = min(limit, stream.length - rank)
    stream.nth(rank, &delivery.first)
    stream.nth(rank + delivery.given - 1, &last)
    group.offset_ms = last.ms
    group.offset_seq = last.seq
    return 0


cdef int begin_delivery(Delivery* delivery, Context ctx, Stream stream, Group group,
                        const Terms* terms) except -1:
    """Begin a delivery of new entries; `first` becomes the least ID of new entries."""
    delivery.keep = terms.keep
    delivery.now_ms = ctx.steady_ms
    delivery.owner = terms.owner
    delivery.retry_number = NO_RETRY
    if terms.has_retry:
        delivery.retry_number = group.pending.retry_number(terms.retry_ms, terms.expire_ms)
    delivery.broken = is_broken(stream, group)
    delivery.was_overtaken = stream.missed is not None and stream.missed.is_overtaken(group)
    delivery.given = 0
    delivery.first.ms = group.offset_ms
    delivery.first.seq = group.offset_seq
    step_up(&delivery.first)
    return 0


cdef int deliver_run(Delivery* delivery, Group group, const EntryId* ids, size_t size) except -1:
    """Deliver entries with ascending IDs. After a failure, the entries before it are delivered."""
    cdef size_t done = size
    cdef size_t i
    cdef DeliveryOrder order = group.pending.order() if delivery.keep else None
    if order is not None:
        for i in range(size):
            order.note(ids[i].ms, ids[i].seq, delivery.now_ms)
    while size:
        if delivery.keep:
            done = group.pending.deliver_some(
                ids, size, delivery.now_ms, delivery.owner, delivery.retry_number)
        if delivery.given == 0:
            delivery.first = ids[0]
        delivery.given += done
        group.offset_ms = ids[done - 1].ms
        group.offset_seq = ids[done - 1].seq
        ids += done
        size -= done
    return 0


cdef bint is_broken(Stream stream, Group group) noexcept:
    """True if the count of entries read cannot simply be increased: entries after the group's
    offset were deleted, or evicted unread."""
    cdef EntryId oldest
    if stream.length and id_less(
            group.offset_ms, group.offset_seq, stream.head_ms, stream.head_seq):
        return True
    if not stream.first_entry(&oldest):
        return False
    if id_less(group.offset_ms, group.offset_seq, oldest.ms, oldest.seq):
        return True
    return (stream.max_deleted_ms or stream.max_deleted_seq) and not id_less(
        stream.max_deleted_ms, stream.max_deleted_seq, oldest.ms, oldest.seq) and not id_less(
        stream.max_deleted_ms, stream.max_deleted_seq, group.offset_ms, group.offset_seq)


cdef int count_read(Stream stream, Group group, EntryId first, uint64_t given,
                    bint broken) except -1:
    """Update the count of entries read after `given` entries from `first` up to the group's offset.
    Redis counts entry by entry: from a known count, otherwise from the rank of the first entry,
    otherwise of the last."""
    cdef int64_t read = group.entries_read
    if read == -1 or broken:
        if is_first_kept(stream, first):
            read = stream.entries_added - stream.length
        else:
            read = entries_up_to(stream, first.ms, first.seq)
            if read == -1:
                group.entries_read = entries_up_to(stream, group.offset_ms, group.offset_seq)
                return 0
            read -= 1
    group.entries_read = read + <int64_t>given
    return 0


cdef bint is_first_kept(Stream stream, EntryId entry) noexcept:
    """True if an entry is the oldest one after an eviction up to it, and none after it was deleted: the
    number of entries before it is known without a search."""
    return entry.ms == stream.head_ms and entry.seq == stream.head_seq and id_less(
        stream.max_deleted_ms, stream.max_deleted_seq, entry.ms, entry.seq) and (
        stream.entries_added > 0)


cdef int end_delivery(Delivery* delivery, Context ctx, bytes key, Stream stream, Group group,
                      const Terms* terms) except -1:
    """Count and record the delivered entries; after a failure, those before it."""
    if delivery.given:
        if delivery.was_overtaken:
            stream.missed.moved_on(group)
        count_read(stream, group, delivery.first, delivery.given, delivery.broken)
        ctx.count_change(key, None, 1)
        record_delivery(
            ctx.effects, ctx.db.index, key, group, terms, delivery.first, ctx.steady_ms)
    return 0


cdef bint is_full(Output out, const ReplyBudget* budget) noexcept:
    """True if a reply accepts no more entries; the first one always fits."""
    return budget.entries == 0 or (budget.made > 0 and out.size >= budget.full_size)


cdef int put_age(Output out, Py_ssize_t at, int64_t idle_ms, int64_t deliveries) except -1:
    """Add the idle time and the number of earlier deliveries after the entry encoded at `at`."""
    out.buf[at + 1] = c'4'  # it began with `*2`
    put_signed(out, idle_ms)
    return out.put_head(c':', deliveries)


cdef uint64_t claim_idle(Context ctx, bytes key, Stream stream, Group group, Consumer consumer,
                         Output out, ReplyBudget* budget) except? 0xffffffffffffffff:
    """Claim entries that have been idle for at least `min_idle_ms`, longest idle first, from any
    owner; returns their number. The claim is one effect."""
    cdef ClaimTerms terms
    cdef Pending* record
    cdef PendingAt at
    cdef View view
    cdef Entry entry
    cdef IdText id_text
    cdef uint64_t ms, seq
    cdef list taken
    cdef Ids shown = Ids.__new__(Ids)
    cdef size_t i
    cdef Py_ssize_t start_size
    cdef uint64_t batch = MAX
    id_text.size = 0
    id_text.dotted = False
    cdef uint64_t limit = min(budget.limit, budget.entries)
    if budget.full_size != PY_SSIZE_T_MAX:
        # Perhaps few of them fit. Claimed entries stay idle until the end, so each batch begins
        # with the earlier ones and is twice as long.
        batch = CLAIM_BATCH
    # The reply first, then the effect, then the change: running out of memory changes nothing.
    while shown.count < limit and not is_full(out, budget):
        taken = idle_entries(ctx, stream, group, budget, min(limit, batch))
        for ms, seq in taken[shown.count:]:
            if is_full(out, budget):
                break
            record = find_pending(group.pending.records, EntryId(ms, seq), &at)
            stream.find(EntryId(ms, seq), &view, &entry)
            start_size = out.size
            encode_entry(out, &view, &entry, &id_text)
            put_age(out, start_size, idle_of(record, ctx.steady_ms),
                    group.pending.deliveries(record))
            shown.add(ms, seq)
            budget.made += 1
            budget.entries -= 1
        if <uint64_t>len(taken) < batch:
            break
        batch *= 2
    if shown.count:
        ctx.count_change(key, None, 1)
        terms = ClaimTerms(ctx.steady_ms, ctx.steady_ms, b"+")
        record_claim(ctx.effects, ctx.db.index, key, group, consumer, &terms, shown)
        for i in range(shown.count):
            record = find_pending(group.pending.records, shown.items[i], &at)
            group.pending.transfer(&at, consumer.index, ctx.steady_ms,
                                   one_more(group.pending.deliveries(record)),
                                   claim_retry_number(group, ctx.steady_ms, ctx.steady_ms))
            group.pending.note_again(
                shown.items[i].ms, shown.items[i].seq, ctx.steady_ms, ctx.steady_ms)
            take_back_later(group.pending, shown.items[i])
        consumer.active_ms = ctx.steady_ms
    return shown.count


cdef list idle_entries(Context ctx, Stream stream, Group group, ReplyBudget* budget,
                       uint64_t limit):
    """Up to `limit` IDs that can be claimed. Records whose entry no longer exists stay pending, as
    in Redis; they are marked, so that later claims skip them. If there are very many of them, fewer
    IDs are returned, and the next claim continues."""
    cdef View view
    cdef Entry entry
    cdef uint64_t ms, seq
    cdef uint64_t wanted = max(min(limit, <uint64_t>CLAIM_MAX), <uint64_t>CLAIM_BATCH)
    cdef uint64_t marked = 0
    cdef list found, there
    cdef OrderedPending keyed = ordered(group.pending)
    while True:
        found = group.pending.idle_ids(ctx.steady_ms, budget.min_idle_ms, wanted)
        there = []
        for ms, seq in found:
            if stream.find(EntryId(ms, seq), &view, &entry):
                if keyed is None or may_claim(keyed, EntryId(ms, seq), ctx.steady_ms):
                    there.append((ms, seq))
            else:
                group.pending.mark_gone(ms, seq)
        if keyed is None:
            marked += len(found) - len(there)
        if <uint64_t>len(there) >= limit or <uint64_t>len(found) < wanted or marked > GONE_MAX:
            break
        wanted *= 2
    if marked:
        # From now on the group's bounds show when the next claim may find something.
        is_idle(group.pending.records, ctx.steady_ms, budget.min_idle_ms)
    budget.is_cut = budget.is_cut or marked > GONE_MAX
    return there[:limit] if <uint64_t>len(there) > limit else there


cpdef int drop_gone(Context ctx, bytes key, Group group, list gone) except -1:
    """Remove pending entries that the stream no longer has."""
    cdef uint64_t ms, seq
    if gone:
        gone = list(dict.fromkeys(gone))  # an XCLAIM may name one twice
        note_acked(ctx, key, group.name, gone, <uint64_t>len(gone))
        for ms, seq in gone:
            group.pending.acknowledge(ms, seq)
        note_freed(ctx, key, group)
    return 0


cdef int64_t one_more(int64_t deliveries) noexcept:
    return deliveries if deliveries == INT64_MAX else deliveries + 1


cdef uint64_t redeliver_due(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                            uint64_t limit, Output out) except? 0xffffffffffffffff:
    """Redeliver up to `limit` due pending entries, earliest due first; returns the number of
    elements. An entry that no longer exists is a nil and is removed from the pending entries."""
    cdef Pending* record
    cdef PendingAt at
    cdef View view
    cdef Entry entry
    cdef IdText id_text
    cdef uint64_t ms, seq
    cdef DueIds taken
    cdef Ids again
    cdef list dropped
    cdef EntryId one
    cdef size_t i
    cdef bint change = terms.has_retry
    cdef uint32_t retry_number = NO_RETRY
    if change:
        retry_number = group.pending.retry_number(terms.retry_ms, terms.expire_ms)
    if limit == 0 or not is_due(group.pending.records, ctx.steady_ms, terms.with_zero):
        return 0
    id_text.size = 0
    id_text.dotted = True
    taken = group.pending.take_due(ctx.steady_ms, limit, terms.with_zero)
    again = Ids.__new__(Ids)
    dropped = []
    # The reply first, then the effect, then the change: running out of memory changes nothing.
    for i in range(taken.count):
        one = taken.items[i]
        if not stream.find(one, &view, &entry):
            put_nil(out, ctx.session.resp)
            dropped.append((one.ms, one.seq))
            continue
        encode_entry(out, &view, &entry, &id_text)
        again.add(one.ms, one.seq)
    if again.count:
        record_redelivery(ctx.effects, ctx.db.index, key, group, terms, again, ctx.steady_ms)
    ctx.count_change(key, None, 1 if taken.count else 0)
    ctx.keyspace.redelivered_due += again.count
    for i in range(again.count):
        one = again.items[i]
        record = find_pending(group.pending.records, one, &at)
        group.pending.redeliver(record, &at, ctx.steady_ms, retry_number, change)
        group.pending.note_again(one.ms, one.seq, ctx.steady_ms, ctx.steady_ms)
        # More than the new expire-ms has already passed: it is delivered this last time, then
        # removed.
        record = find_pending(group.pending.records, one, &at)
        if expires_ms(group.pending.records, record) <= ctx.steady_ms:
            dropped.append((one.ms, one.seq))
    if dropped:
        note_acked(ctx, key, group.name, dropped, 0)
    for ms, seq in dropped:
        group.pending.acknowledge(ms, seq)
    return taken.count


# ---------------------------------------------------------------- acknowledging

cdef int64_t acknowledge(Context ctx, Args args, bint dot_allowed) except -1:
    """TACK and XACK: returns how many of the IDs were pending."""
    cdef Stream stream = ctx.read_for_update_at(&args.items[1])
    cdef bytes key
    cdef bytes name
    cdef Group group
    cdef Ids acked
    cdef EntryId at
    cdef Py_ssize_t i
    if stream is None:
        return 0
    key = ctx.db.key_of(&args.items[1])
    name = args.items[2].ptr[:args.items[2].size]
    group = live_group(ctx, key, stream, name)
    if group is None:
        return 0
    # All IDs are checked first. Parsing them again costs less than memory for a few of them.
    args.pos = 3
    while args.pos < args.count:
        args.take_id(&at, dot_allowed, 0)
    acked = None
    for i in range(3, args.count):
        parse_id(args.items[i].ptr, args.items[i].size, dot_allowed, 0, &at)
        if group.pending.acknowledge(at.ms, at.seq):
            if acked is None:
                acked = Ids.__new__(Ids)
            acked.add(at.ms, at.seq)
    if acked is not None:
        record_ack(ctx.effects, ctx.db.index, key, name, acked)
        ctx.count_change(None, None, acked.count)
        if group.rules is not None:
            note_freed(ctx, key, group)
    note_used(ctx, key, group)
    return 0 if acked is None else acked.count
