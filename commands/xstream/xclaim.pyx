# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XCLAIM: giving pending entries with certain IDs to a consumer.

Entries delivered by TREAD have no owner and may have a retry and an expiry. A consumer that claims
such an entry owns it, and the entry loses its retry and expiry. Semantics and error texts are those
of Redis 8.6.
"""

from libc.stdint cimport int64_t

from millstream.commands.engine.claiming cimport (
    SMALL_BYTES, Claims, Target, claimed_later, encoded_ids, take_target,
)
from millstream.commands.engine.evicting cimport record_pass
from millstream.commands.engine.lifecycle cimport (
    checked_consumer_name, note_used, requesting_consumer,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport make_raw
from millstream.commands.runtime.stream_effects cimport Ids, note_key
from millstream.encoding cimport ArrayHead, Output, Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport make_id, parse_id
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group, keys_of, picking_of
from millstream.storage.groups.pending cimport Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport find_pending
from millstream.storage.streams.head_eviction cimport note_pending
from millstream.storage.streams.stream cimport Stream

from millstream.clock_offset import shifted_ms
from millstream.commands.runtime.replies import Several
from millstream.commands.runtime.stream_effects import GROUPSETID
from millstream.commands.table.registry import command
from millstream.errors import CommandError, shown

cdef enum:
    # Claiming more takes longer than most requests.
    FEW_IDS = 100


cdef struct Options:
    int64_t delivery_ms
    int64_t retry_count
    bint force
    bint just_id
    bint has_last_id
    EntryId last_id


@command(
    "XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] "
    "[RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]",
    "write fast nondeterministic_output hot",
    complexity="O(log n) for each id, n the number of the group's pending entries",
    since="5.0.0",
)
def xclaim(Context ctx not None, Args args not None):
    """Transfers pending entries with a given idle time to a consumer, by ID."""
    cdef Target target = take_target(ctx, args)
    cdef bytes name = args.take()
    cdef int64_t min_idle_ms = args.take_int_or(
        "ERR Invalid min-idle-time argument for XCLAIM")
    cdef Claims claims = Claims.__new__(Claims)
    cdef Ids ids = take_ids(args)
    cdef Consumer consumer
    cdef Options options
    take_options(ctx, args, &options)
    checked_consumer_name(name)
    if keys_of(target.group) is not None:
        options.force = False  # an entry that is not pending waits for its key
    if options.has_last_id and id_less(
            target.group.offset_ms, target.group.offset_seq, options.last_id.ms,
            options.last_id.seq):
        move_offset(ctx, target, options.last_id)
    consumer = requesting_consumer(ctx, target.key, target.group, name)
    claims.min_idle_ms = max(min_idle_ms, 0)
    claims.delivery_ms = options.delivery_ms
    claims.count = b"=" if options.just_id else b"+"
    if options.retry_count >= 0:
        claims.count = b"%d" % options.retry_count
        claims.sets_count = True
    try:
        reply = claim_ids(ctx, target, consumer, claims, ids, &options)
    finally:
        claims.record(ctx, target.key, target.group, consumer)
    note_used(ctx, target.key, target.group)
    ctx.timed_alone = ids.count > FEW_IDS
    return reply


cdef Ids take_ids(Args args):
    """Take the IDs; the first word that is not an ID begins the options."""
    cdef Ids ids = Ids.__new__(Ids)
    cdef EntryId found
    cdef Slice* word
    while args.pos < args.count:
        word = &args.items[args.pos]
        if parse_id(word.ptr, word.size, False, 0, &found) < 0:
            break
        ids.add(found.ms, found.seq)
        args.pos += 1
    return ids


cdef int take_options(Context ctx, Args args, Options* options) except -1:
    cdef int64_t number
    cdef int64_t at_ms = ctx.steady_ms
    options.retry_count = -1
    options.force = options.just_id = options.has_last_id = False
    while args.pos < args.count:
        if args.next_is(b"FORCE"):
            options.force = True
        elif args.next_is(b"JUSTID"):
            options.just_id = True
        elif args.count - args.pos < 2:
            raise unknown_option(args)
        elif args.next_is(b"IDLE"):
            number = args.take_int_or("ERR Invalid IDLE option argument for XCLAIM")
            at_ms = <int64_t>ctx.steady_ms - max(number, 0)
        elif args.next_is(b"TIME"):
            number = args.take_int_or("ERR Invalid TIME option argument for XCLAIM")
            # A time in the future is replaced by now, as in Redis.
            at_ms = ctx.steady_ms
            if number <= <int64_t>ctx.now_ms:
                at_ms = shifted_ms(number, -ctx.wall_ahead_ms)
        elif args.next_is(b"RETRYCOUNT"):
            options.retry_count = args.take_int_or(
                "ERR Invalid RETRYCOUNT option argument for XCLAIM")
        elif args.next_is(b"LASTID"):
            args.take_id(&options.last_id, False, 0)
            options.has_last_id = True
        else:
            raise unknown_option(args)
    # So is a time before 1970.
    options.delivery_ms = at_ms if at_ms >= 0 else <int64_t>ctx.steady_ms
    return 0


cdef object unknown_option(Args args):
    return CommandError(f"ERR Unrecognized XCLAIM option '{shown(args[args.pos])}'")


cdef int move_offset(Context ctx, Target target, EntryId last_id) except -1:
    """LASTID: the group continues after this ID; its number of entries read does not change."""
    cdef Group group = target.group
    target.stream.set_offset(group, last_id)
    if picking_of(group) is not None:  # parked entries stay
        return record_pass(ctx, target.key, group)
    last = bytes(make_id(last_id.ms, last_id.seq, False))
    return ctx.change(
        (GROUPSETID, target.key, group.name, last, b"%d" % group.entries_read), None, 1)


cdef claim_ids(Context ctx, Target target, Consumer consumer, Claims claims, Ids ids,
               const Options* options):
    """Claim the entries with these IDs; returns the reply."""
    cdef Stream stream = target.stream
    cdef Group group = target.group
    cdef Output out = Output()
    cdef ArrayHead head
    cdef EntryId at_id
    cdef View view
    cdef Entry entry
    cdef IdText id_text
    cdef Pending* record
    cdef PendingAt at
    cdef size_t i
    id_text.size = 0
    id_text.dotted = False
    out.begin_array(&head, ids.count)
    for i in range(ids.count):
        at_id = ids.items[i]
        record = find_pending(group.pending.records, at_id, &at)
        if record == NULL and not options.force:
            continue
        if not stream.find(at_id, &view, &entry):
            if record != NULL:
                claims.gone.append((at_id.ms, at_id.seq))
        elif record == NULL or claims.may_take(ctx, group, record):
            if not options.just_id and out.size < SMALL_BYTES:
                encode_entry(out, &view, &entry, &id_text)
            note_key(stream, group, at_id)
            claims.take(ctx, group, consumer, at_id, record, &at)
            note_pending(stream, at_id.ms, at_id.seq)
    if options.just_id:
        return make_raw(encoded_ids(claims.claimed))
    if out.size >= SMALL_BYTES:
        return Several(claimed_later(stream, claims))
    out.end_array(&head, claims.claimed.count)
    return make_raw(out.take())
