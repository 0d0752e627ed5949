# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Trimming as XADD and XTRIM request it: MAXLEN, MINID, LIMIT, and the handling of references.

One range is evicted from the head: its end is found first and recorded as the first kept ID. Only
ACKED may leave entries in the range. Trimmed entries count as evicted: a reader of TREAD that has
not seen them gets a nil for the gap. As in Redis, trimming does not move `max-deleted-entry-id`.
"""

from libc.stdint cimport UINT32_MAX, uint64_t

from millstream.commands.engine.evicting cimport evict_to, evict_to_length, length_boundary
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.entry_id cimport EntryId
from millstream.storage.log.trim_nodes cimport boundary_by_nodes
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.references import drop_references_between, trim_acked
from millstream.errors import CommandError

TWO_STRATEGIES = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
LIMIT_EXACT = "ERR syntax error, LIMIT cannot be used without the special ~ option"
LIMIT_ALONE = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"

# For callers in Python.
DELREF, ACKED = DROP_REFERENCES, ONLY_ACKED

# With `~` and without LIMIT, Redis trims at most the entries of this number of nodes, within these
# bounds.
cdef uint64_t DEFAULT_LIMIT_NODES = 100
cdef uint64_t DEFAULT_LIMIT_MAX = 1_000_000
cdef uint64_t DEFAULT_LIMIT_OF_ENDLESS_NODES = 10_000


cdef void begin_trim(Trim* trim) noexcept:
    """No option was given yet."""
    trim.by_length = trim.by_id = trim.approximate = trim.limited = False
    trim.limit = trim.keep = 0
    trim.references = NOT_GIVEN


cdef bint take_trim(Args args, Trim* trim) except -1:
    """Take one trimming option if the next argument begins one. The last word of a request never
    does, and a second word for references is not an option, as in Redis."""
    if trim.references == NOT_GIVEN:
        trim.references = take_references(args)
        if trim.references != NOT_GIVEN:
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


cpdef References take_references(Args args) noexcept:
    """Take KEEPREF, DELREF or ACKED if the next argument is one of them."""
    if args.next_is(b"KEEPREF"):
        return KEEP_REFERENCES
    if args.next_is(b"DELREF"):
        return DROP_REFERENCES
    return ONLY_ACKED if args.next_is(b"ACKED") else NOT_GIVEN


cdef int begin_strategy(Args args, Trim* trim) except -1:
    if trim.by_id or trim.by_length:
        raise CommandError(TWO_STRATEGIES)
    # A `~` at the end is the threshold, and invalid.
    if args.pos + 1 < args.count:
        trim.approximate = args.next_is(b"~")
        if not trim.approximate:
            args.next_is(b"=")
    return 0


cdef int check_trim(Trim* trim) except -1:
    """Refuse contradictory options."""
    if trim.limit and not (trim.by_length or trim.by_id):
        raise CommandError(LIMIT_ALONE)
    if trim.limited and not trim.approximate:
        raise CommandError(LIMIT_EXACT)
    return 0


cdef uint64_t limit_of(Context ctx, Trim* trim) noexcept:
    """The maximum of entries to evict, 0 for no limit."""
    if not trim.approximate:
        return 0
    if trim.limited:
        return trim.limit
    if ctx.keyspace.node_entries == UINT32_MAX:
        return DEFAULT_LIMIT_OF_ENDLESS_NODES
    return min(DEFAULT_LIMIT_NODES * ctx.keyspace.node_entries, DEFAULT_LIMIT_MAX)


cdef uint64_t trim_stream(Context ctx, bytes key, Stream stream, Trim* trim,
                          bint counts) except? 0xffffffffffffffff:
    """Evict entries according to the options; returns their number. counts: as in `evict_to`."""
    cdef EntryId first
    cdef bint drops
    if not trim.by_length and not trim.by_id:
        return 0
    if trim.references == ONLY_ACKED and stream.groups:
        return trim_acked(ctx, key, stream, trim.keep if trim.by_length else None,
                          (trim.first_kept.ms, trim.first_kept.seq), limit_of(ctx, trim), counts)
    drops = trim.references == DROP_REFERENCES and stream.groups
    if trim.by_length and not trim.approximate and not drops:
        return evict_to_length(ctx, key, stream, trim.keep, counts)
    boundary = boundary_of(ctx, stream, trim)
    if boundary is None or stream.length == 0:
        return 0
    if drops and stream.first_entry(&first):
        drop_references_between(ctx, key, stream, (first.ms, first.seq),
                                stream.past_end() if boundary == "all" else boundary)
    return evict_to(ctx, key, stream, boundary, counts)


cdef boundary_of(Context ctx, Stream stream, Trim* trim):
    """The first ID to keep, "all" to evict all entries, None to evict none."""
    if trim.approximate:
        return boundary_by_nodes(
            stream, trim.keep, &trim.first_kept if trim.by_id else NULL, limit_of(ctx, trim),
            trim.references > KEEP_REFERENCES)
    if trim.by_length:
        return length_boundary(stream, trim.keep)
    return trim.first_kept.ms, trim.first_kept.seq
