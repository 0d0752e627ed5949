# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XAUTOCLAIM: giving pending entries that have been idle for long enough to a consumer, in ID order.

The pending entries are examined together with the entries of the stream, which are in the same
order: so a scan that finds nothing costs one step in each, and not a search for each entry.
Semantics and error texts are those of Redis 8.6.
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.commands.engine.claiming cimport (
    SMALL_BYTES, Claims, Target, claimed_later, encoded_ids, target_in,
)
from millstream.commands.engine.lifecycle cimport (
    checked_consumer_name, note_used, read_effects_most, requesting_consumer,
)
from millstream.commands.engine.ranges cimport take_bound
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport make_raw
from millstream.commands.runtime.stream_effects cimport Ids
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport make_id
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group, keys_of
from millstream.storage.groups.pending cimport Pending, PendingAt, is_at_limit
from millstream.storage.groups.pending_chunks cimport first_pending, next_pending
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.replies import ArrayHead, Several
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError

cdef enum:
    # XAUTOCLAIM examines this number of entries for each that it may return.
    LOOKS_PER_CLAIM = 10
    DEFAULT_COUNT = 100
    # The distance of two pending entries, in entries of the stream, up to which the scan steps to
    # the next one and does not search for it.
    STEPS = 8
    # Examining more takes longer than most requests.
    FEW_LOOKS = 100

# The maximum of COUNT, so that the size of the IDs fits into a 64-bit number, as in Redis: an ID
# has 16 bytes.
cdef int64_t COUNT_LARGEST = (2**63 - 1) // 16
COUNT_NOT_POSITIVE = "ERR COUNT must be > 0"


# The maxima of a scan, of results and of records examined, and the ID at which the next one begins.
cdef struct Scan:
    uint64_t most
    uint64_t looks
    EntryId following


@command(
    "XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]",
    "write fast nondeterministic_output hot",
    since="6.2.0",
    complexity="O(1) if COUNT is small",
    keys="RW delete",
)
def xautoclaim(Context ctx not None, Args args not None):
    """Transfers pending entries with a given idle time to a consumer, in ID order."""
    cdef bytes key = ctx.db.key_of(args.take_slice())
    cdef bytes group_name = args.take()
    cdef bytes name = args.take()
    cdef Stream stream = None
    cdef Claims claims = Claims.__new__(Claims)
    cdef Target target
    cdef Consumer consumer
    cdef EntryId start
    cdef int64_t min_idle_ms
    cdef int64_t count = DEFAULT_COUNT
    cdef bint just_id = False
    cdef Scan scan
    refusal = None
    try:
        stream = ctx.read_for_update_at(&args.items[1])
    except CommandError as error:
        refusal = error  # Redis looks up the key first, and checks its type after the arguments
    min_idle_ms = args.take_int_or("ERR Invalid min-idle-time argument for XAUTOCLAIM")
    take_bound(args, &start, False, False)
    take_options(args, &count, &just_id)
    if refusal is not None:
        raise refusal
    target = target_in(ctx, key, stream, group_name)
    checked_consumer_name(name)
    ctx.effects.require(read_effects_most(
        key, target.group, name, min(<uint64_t>count, target.group.pending.records.count)))
    consumer = requesting_consumer(ctx, key, target.group, name)
    claims.min_idle_ms = max(min_idle_ms, 0)
    claims.delivery_ms = ctx.steady_ms
    claims.count = b"=" if just_id else b"+"
    scan.most = count
    scan.looks = <uint64_t>count * LOOKS_PER_CLAIM
    scan.following.ms = scan.following.seq = 0
    entries = None if just_id else Output()
    ctx.timed_alone = min(scan.looks, target.group.pending.records.count) > FEW_LOOKS
    try:
        run(ctx, target, consumer, claims, start, &scan, entries)
    finally:
        claims.record(ctx, key, target.group, consumer)
    note_used(ctx, key, target.group)
    return reply_of(stream, claims, scan.following, entries)


cdef int take_options(Args args, int64_t* count, bint* just_id) except -1:
    """Take the options: the maximum of entries to claim, and whether only IDs are wanted."""
    while args.pos < args.count:
        if args.count - args.pos > 1 and args.next_is(b"COUNT"):
            count[0] = args.take_int_or(COUNT_NOT_POSITIVE)
            if not 0 < count[0] <= COUNT_LARGEST:
                raise CommandError(COUNT_NOT_POSITIVE)
        elif args.next_is(b"JUSTID"):
            just_id[0] = True
        else:
            raise CommandError(SYNTAX)
    return 0


cdef class Finder:
    """Finds entries with ascending IDs in a stream."""

    cdef Stream stream
    cdef Walk walk
    cdef bint has_more

    cdef bint find(self, EntryId wanted) noexcept:
        """True if the stream has this entry; then the walk is at it."""
        cdef int _step
        cdef EntryId at
        for _step in range(STEPS):
            if not self.has_more:
                return False
            at.ms = self.walk.cursor.entry.ms
            at.seq = self.walk.cursor.entry.seq
            if not id_less(at.ms, at.seq, wanted.ms, wanted.seq):
                return at.ms == wanted.ms and at.seq == wanted.seq
            self.has_more = self.stream.walk_next(&self.walk)
        self.stream.walk_start(&self.walk, wanted)
        self.has_more = self.stream.walk_next(&self.walk)
        return self.has_more and (
            self.walk.cursor.entry.ms == wanted.ms and self.walk.cursor.entry.seq == wanted.seq)


cdef int run(Context ctx, Target target, Consumer consumer, Claims claims, EntryId start,
             Scan* scan, Output entries) except -1:
    """Examine the pending entries from `start` on. Claimed entries are encoded in `entries`, unless
    it is None, as long as they are small."""
    cdef Finder finder = Finder.__new__(Finder)
    cdef Group group = target.group
    cdef PendingAt at
    cdef Pending* record = first_pending(group.pending.records, start, &at)
    cdef EntryId at_id
    cdef IdText id_text
    id_text.size = 0
    id_text.dotted = False
    finder.stream = target.stream
    if record != NULL:
        at_id.ms = record.ms
        at_id.seq = record.seq
        target.stream.walk_start(&finder.walk, at_id)
        finder.has_more = target.stream.walk_next(&finder.walk)
    while record != NULL:
        at_id.ms = record.ms
        at_id.seq = record.seq
        if scan.most == 0 or scan.looks == 0:
            scan.following = at_id
            break
        scan.looks -= 1
        if record.waiting or is_at_limit(group.pending.records, record):
            pass  # a managed group delivers it again, or ends it
        elif not finder.find(at_id):
            claims.gone.append((at_id.ms, at_id.seq))
            scan.most -= 1
        elif claims.may_take(ctx, group, record):
            if entries is not None and entries.size < SMALL_BYTES:
                encode_entry(entries, &finder.walk.view, &finder.walk.cursor.entry, &id_text)
            claims.take(ctx, group, consumer, at_id, record, &at)
            scan.most -= 1
            if keys_of(group) is not None:  # entries of the key may have been taken back
                first_pending(group.pending.records, at_id, &at)
        record = next_pending(group.pending.records, &at)
    return 0


cdef object reply_of(Stream stream, Claims claims, EntryId following, Output entries):
    """[the ID at which the next scan begins, entries or IDs, IDs of entries that are gone]."""
    cdef Output out
    cdef Ids claimed = claims.claimed
    cdef uint64_t ms, seq
    if entries is not None and entries.size >= SMALL_BYTES:
        return Several([
            ArrayHead(3), make_id(following.ms, following.seq, False), *claimed_later(stream, claims),
            [make_id(ms, seq, False) for ms, seq in claims.gone]])
    out = Output()
    out.put_head(c'*', 3)
    out.put_id(following.ms, following.seq, False)
    if entries is None:
        out.put(encoded_ids(claimed))
    else:
        out.put_head(c'*', claimed.count)
        out.put(entries.take())
    out.put_head(c'*', len(claims.gone))
    for ms, seq in claims.gone:
        out.put_id(ms, seq, False)
    return make_raw(out.take())
