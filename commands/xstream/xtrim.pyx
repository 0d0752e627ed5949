# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Evicting a stream's oldest entries: XTRIM, and the same options of XADD.

What goes is one range from the head: its end is found first and recorded as the first id that is
kept. Only ACKED may leave entries in the range; those that go after the first of these are
recorded one by one (EVICTIDS). Both count as evictions: a reader of the draft's dialect that has not
seen them gets a nil for the gap. As in Redis, trimming does not move `max-deleted-entry-id`.
"""

from libc.stdint cimport UINT32_MAX, int64_t, uint64_t

from millstream.commands.engine.appending cimport evict_to
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport EFFECT_BYTES, ID_WORD_BYTES, id_of, stream_of
from millstream.commands.engine.references cimport (
    DROP_REFERENCES, KEEP_REFERENCES, ONLY_ACKED, drop_references_between, settle_groups, take_reference_handling,
)
from millstream.commands.engine.group_lifecycle cimport id_words
from millstream.ids cimport EntryId, step_up
from millstream.storage.streams.keyspace cimport Keyspace
from millstream.storage.streams.stream cimport Stream
from millstream.storage.streams.acked_trim cimport Goal, unheld_ids

from millstream.commands.runtime.effects import effect
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError

# Redis trims at most this many nodes' entries with `~` and no LIMIT; within these bounds.
cdef uint64_t DEFAULT_LIMIT_NODES = 100
cdef uint64_t DEFAULT_LIMIT_MAX = 1_000_000
cdef uint64_t DEFAULT_LIMIT_OF_ENDLESS_NODES = 10_000

TWO_STRATEGIES = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
NO_STRATEGY = "ERR syntax error, XTRIM must be called with a trimming strategy"
LIMIT_EXACT = "ERR syntax error, LIMIT cannot be used without the special ~ option"
LIMIT_ALONE = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"


# ---------------------------------------------------------------- options

cdef void begin_trim(Trim* trim) noexcept:
    """No option was given yet."""
    trim.by_length = trim.by_id = trim.approximate = trim.limited = False
    trim.limit = trim.keep = 0
    trim.references.kind = KEEP_REFERENCES
    trim.references.given = False


cdef bint take_trim(Args args, Trim* trim) except -1:
    """Take one trimming option if the next argument begins one. A last word begins none."""
    if take_reference_handling(args, &trim.references):
        return True
    if args.pos + 1 >= args.count:
        return False
    if args.next_is(b"MAXLEN"):
        begin_strategy(args, trim)
        trim.by_length = True
        keep = args.take_int()
        if keep < 0:
            raise CommandError("ERR The MAXLEN argument must be >= 0.")
        trim.keep = keep
    elif args.next_is(b"MINID"):
        begin_strategy(args, trim)
        trim.by_id = True
        args.take_id(&trim.first_kept, False, 0)
    elif args.next_is(b"LIMIT"):
        limit = args.take_int()
        if limit < 0:
            raise CommandError("ERR The LIMIT argument must be >= 0.")
        trim.limited = True
        trim.limit = limit
    else:
        return False
    return True


cdef int begin_strategy(Args args, Trim* trim) except -1:
    if trim.by_id or trim.by_length:
        raise CommandError(TWO_STRATEGIES)
    # A `~` without anything after it is the threshold, and a bad one.
    if args.pos + 1 < args.count:
        trim.approximate = args.next_is(b"~")
        if not trim.approximate:
            args.next_is(b"=")
    return 0


cdef int check_trim(Trim* trim) except -1:
    """Refuse options that do not go together."""
    if trim.limit and not (trim.by_length or trim.by_id):
        raise CommandError(LIMIT_ALONE)
    if trim.limited and not trim.approximate:
        raise CommandError(LIMIT_EXACT)
    return 0


cdef uint64_t limit_of(Context ctx, Trim* trim) noexcept:
    """How many entries may go, 0 for any number."""
    if not trim.approximate:
        return 0
    if trim.limited:
        return trim.limit
    if ctx.keyspace.node_entries == UINT32_MAX:
        return DEFAULT_LIMIT_OF_ENDLESS_NODES
    return min(DEFAULT_LIMIT_NODES * ctx.keyspace.node_entries, DEFAULT_LIMIT_MAX)


# ---------------------------------------------------------------- trimming

cdef uint64_t trim_stream(Context ctx, bytes key, Stream stream, Trim* trim,
                          bint counts) except? 0xffffffffffffffff:
    """Evict what the options say; returns how many entries went. counts: as in `evict_to`."""
    cdef EntryId first
    cdef EntryId end
    if not trim.by_length and not trim.by_id:
        return 0
    if trim.references.kind == ONLY_ACKED and stream.groups:
        return trim_acked(ctx, key, stream, trim, counts)
    boundary = boundary_of(ctx, stream, trim)
    if boundary is None or not stream.first_entry(&first):
        return 0
    if trim.references.kind == DROP_REFERENCES and stream.groups:
        if boundary == "all":
            end.ms, end.seq = stream.past_end()
        else:
            end.ms, end.seq = boundary
        drop_references_between(ctx, key, stream, first.ms, first.seq, end.ms, end.seq)
    return evict_to(ctx, key, stream, boundary, counts)


cdef boundary_of(Context ctx, Stream stream, Trim* trim):
    """The first id to keep, "all" when nothing is kept, None when everything is."""
    if trim.approximate:
        return stream.boundary_by_nodes(
            trim.keep if trim.by_length else None,
            (trim.first_kept.ms, trim.first_kept.seq) if trim.by_id else None, limit_of(ctx, trim),
            trim.references.kind != KEEP_REFERENCES)
    if trim.by_length:
        return "all" if trim.keep == 0 else stream.boundary_for_length(trim.keep)
    return trim.first_kept.ms, trim.first_kept.seq


cdef uint64_t trim_acked(Context ctx, bytes key, Stream stream, Trim* trim,
                         bint counts) except? 0xffffffffffffffff:
    """Evict what the options say, but for entries that a group holds. What goes before the first of
    these is one range."""
    cdef Goal goal
    cdef EntryId past
    cdef uint64_t together
    cdef uint64_t evicted
    settle_groups(ctx, key, stream)
    goal.by_length = trim.by_length
    goal.keep = trim.keep
    goal.first_kept = trim.first_kept
    goal.limit = limit_of(ctx, trim)
    ids = unheld_ids(stream, &goal)
    if not ids:
        return 0
    together = leading(stream, ids)
    if <uint64_t>len(ids) > together:
        ctx.effects.require(
            2 * (EFFECT_BYTES + len(key)) + <int64_t>(len(ids) - together) * ID_WORD_BYTES)
    if together == <uint64_t>len(ids) == stream.length:
        return evict_to(ctx, key, stream, "all", counts)
    if together:
        past.ms, past.seq = ids[together - 1]
        step_up(&past)
        evict_to(ctx, key, stream, (past.ms, past.seq), counts)
    evicted = len(ids)
    ids = ids[together:]
    if ids:
        stream.evict_ids(ids)
        # The leading range, if any, has sent the event.
        ctx.change((b"EVICTIDS", key, *id_words(ctx, ids)), b"xtrim" if together == 0 else None,
                   <uint64_t>len(ids) if counts else 0)
    return evicted


cdef uint64_t leading(Stream stream, list ids) except? 0xffffffffffffffff:
    """How many of the ids, from the first on, are the stream's oldest entries without a gap."""
    cdef uint64_t low = 0
    cdef uint64_t high = len(ids)
    cdef uint64_t middle
    while low < high:
        middle = (low + high + 1) // 2
        ms, seq = ids[middle - 1]
        if stream.rank_of(ms, seq) == middle - 1:
            low = middle
        else:
            high = middle - 1
    return low


@effect(b"EVICTIDS")
def apply_evict_ids(Keyspace keyspace, int db, list words):
    """EVICTIDS key id [id ...]: these entries, wherever they stand."""
    cdef Stream stream = stream_of(keyspace, db, words[0])
    stream.evict_ids([id_of(text) for text in words[1:]])


@command(
    "XTRIM", arity=-4, flags="write", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Evicts old entries and returns the number evicted.",
    syntax="key {trim: <strategy: MAXLEN | MINID> [operator: = | ~] threshold [LIMIT count]} "
    "[condition: KEEPREF | DELREF | ACKED]",
    complexity="O(n) of evicted blocks",
)
def xtrim(Context ctx not None, Args args not None):
    """Evicts the oldest entries until at most `threshold` entries are left (MAXLEN) or no ID is
    below `threshold` (MINID); with `~` it evicts only whole nodes. DELREF also removes the entries
    from every group's pending entries. ACKED keeps entries that a group has not yet read or
    acknowledged.
    """
    cdef Stream stream
    cdef Trim trim
    begin_trim(&trim)
    args.pos = 2
    while args.pos < args.count:
        if not take_trim(args, &trim):
            raise CommandError(SYNTAX)
    if not trim.by_length and not trim.by_id and not trim.limit:
        raise CommandError(NO_STRATEGY)
    check_trim(&trim)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None:
        return 0
    return trim_stream(ctx, ctx.db.key_of(&args.items[1]), stream, &trim, True)
