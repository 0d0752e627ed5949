# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Redis' stream commands that append, trim and range over entries.

Semantics and error words are Redis 8.6's. An XADD is a TAPPEND with more options and another form
of the ID. Options about references of groups, and idempotent messages, are in Python modules
(`references`, `xidmp`); they cost nothing if they are not used.

Trimming evicts one range from the head: its end is found first and recorded as the first kept ID.
Only ACKED may leave entries in the range. Trimmed entries count as evicted: a reader of TREAD that
has not seen them gets a nil for the gap. As in Redis, trimming does not move
`max-deleted-entry-id`.
"""

from libc.stdint cimport UINT32_MAX, UINT64_MAX as MAX, uint64_t

from millstream.commands.engine.appending cimport (
    NewEntry, append_entry, append_message, check_above_promise, check_append, evict_to,
    evict_to_length, length_boundary, new_id, stream_to_append,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.ranges cimport EntryRange, make_range, take_end, take_limit, take_start
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport parse_id, parse_part
from millstream.storage.streams.held cimport handed_out
from millstream.storage.streams.trim_nodes cimport boundary_by_nodes
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.references import drop_references_between, trim_acked
from millstream.commands.runtime.replies import NULL_ARRAY
from millstream.commands.table.registry import CommandGroup
from millstream.commands.xstream.xidmp import name_of, repeated_id, take_message
from millstream.errors import EXHAUSTED, INVALID_ID, SYNTAX, CommandError, wrong_arity

command = CommandGroup("stream", since="5.0.0")

ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
ID_ZERO = "ERR The ID specified in XADD must be greater than 0-0"
ONCE_WITH_ID = "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
TWO_STRATEGIES = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
NO_STRATEGY = "ERR syntax error, XTRIM must be called with a trimming strategy"
LIMIT_EXACT = "ERR syntax error, LIMIT cannot be used without the special ~ option"
LIMIT_ALONE = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"

# With `~` and without LIMIT, Redis trims at most the entries of this number of nodes, within these
# bounds.
cdef uint64_t DEFAULT_LIMIT_NODES = 100
cdef uint64_t DEFAULT_LIMIT_MAX = 1_000_000
cdef uint64_t DEFAULT_LIMIT_OF_ENDLESS_NODES = 10_000


# The handling of references to an evicted entry.
cdef enum References:
    NOT_GIVEN
    KEEP_REFERENCES
    DROP_REFERENCES
    ONLY_ACKED


cdef struct Trim:
    bint by_length
    bint by_id
    bint approximate
    uint64_t keep
    EntryId first_kept
    bint limited
    uint64_t limit
    References references


# ---------------------------------------------------------------- XADD

cdef bint read_id(Slice* word, EntryId* out) except -1:
    """Read XADD's ID other than `*`: `ms-seq`, `ms`, or `ms-*`. True for the last form, in which
    the stream generates the sequence number."""
    if word.size > 2 and word.ptr[word.size - 1] == c'*' and word.ptr[word.size - 2] == c'-':
        if parse_part(word.ptr, word.size - 2, &out.ms) < 0:
            raise CommandError(INVALID_ID)
        return True
    if parse_id(word.ptr, word.size, False, 0, out) < 0:
        raise CommandError(INVALID_ID)
    return False


cdef int complete_id(Context ctx, Stream stream, EntryId* out, bint any_seq) except -1:
    """Generate the sequence number if any_seq; refuse an ID that is not above the stream's last
    one."""
    cdef EntryId last = EntryId(0, 0) if stream is None else handed_out(stream)
    if last.ms == MAX and last.seq == MAX:
        raise CommandError(EXHAUSTED)
    if any_seq and out.ms == last.ms and stream is not None:
        if last.seq == MAX:
            raise CommandError(ID_TOO_LOW)
        out.seq = last.seq + 1
    elif any_seq:
        out.seq = 1 if out.ms == 0 else 0
    if not id_less(last.ms, last.seq, out.ms, out.seq):
        raise CommandError(ID_TOO_LOW)
    return 0 if stream is None else check_above_promise(ctx, stream, out[0], "XADD", False)


cdef inline bint is_star(Slice* word) noexcept:
    return word.size == 1 and word.ptr[0] == c'*'


@command(
    "XADD key [NOMKSTREAM] [condition: KEEPREF | DELREF | ACKED] [idmp: IDMPAUTO producer-id | "
    "IDMP producer-id idempotent-id] [trim: <strategy: MAXLEN | MINID> [operator: = | ~] "
    "threshold [LIMIT count]] <id-selector: * | id> field value [field value ...]",
    "write denyoom fast hot nondeterministic_output",
    complexity="O(1), and O(n) of evicted blocks with trimming",
)
def xadd(Context ctx not None, Args args not None):
    """Appends an entry to a stream. Creates the stream if it doesn't exist.

    The entry's ID; nil with NOMKSTREAM if the stream does not exist. IDMP and IDMPAUTO identify
    the message: if the producer has sent it before, the reply is its first ID, and it is not added
    again. Trimming can also remove entries from every group's pending entries (DELREF), or keep
    entries that a group has not yet read or acknowledged (ACKED).
    """
    args.pos = 2
    # Most requests have no options.
    return append_auto(ctx, args) if is_star(&args.items[2]) else add_with_options(ctx, args)


cdef append_auto(Context ctx, Args args):
    """Append the words after the `*` at the cursor."""
    cdef Slice* items = &args.items[args.pos + 1]
    cdef Py_ssize_t count = args.count - args.pos - 1
    cdef Stream stream
    cdef EntryId entry_id
    if count < 2 or count & 1:
        raise wrong_arity("xadd")
    stream = stream_to_append(ctx, &args.items[1], items, count)
    new_id(ctx, stream, &entry_id)
    return append_entry(ctx, &args.items[1], stream, entry_id, items, count, False)


cdef add_with_options(Context ctx, Args args):
    cdef Trim trim
    cdef NewEntry entry
    cdef Stream stream
    cdef bint auto
    cdef bint any_seq = False
    cdef bint make = True
    cdef tuple message
    cdef bytes producer = None
    cdef bytes iid = None
    message = take_options(args, &trim, &make)
    entry.items = &args.items[args.pos + 1]
    entry.count = args.count - args.pos - 1
    auto = is_star(&args.items[args.pos])
    if not auto:
        # A malformed ID is reported before contradictory options, as in Redis.
        any_seq = read_id(&args.items[args.pos], &entry.id)
        if message is not None:
            raise CommandError(ONCE_WITH_ID)
    check_trim(&trim)
    if entry.count < 2 or entry.count & 1:
        raise wrong_arity("xadd")
    if not auto and not any_seq and entry.id.ms == 0 and entry.id.seq == 0:
        raise CommandError(ID_ZERO)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None and not make:
        return None
    if message is not None:
        producer, iid = message
        if iid is None:
            iid = name_of([
                entry.items[i].ptr[:entry.items[i].size] for i in range(entry.count)])
        if stream is not None:
            first = repeated_id(ctx, args[1], stream, producer, iid)
            if first is not None:
                return first
    if not auto:
        if stream is not None and stream.restrictions:
            check_append(ctx, stream)  # no other ID would be accepted either
        complete_id(ctx, stream, &entry.id, any_seq)
    stream = stream_to_append(ctx, &args.items[1], entry.items, entry.count)
    if auto:
        new_id(ctx, stream, &entry.id)
    if producer is None:
        reply = append_entry(
            ctx, &args.items[1], stream, entry.id, entry.items, entry.count, False)
    else:
        reply = append_message(ctx, &args.items[1], stream, &entry, producer, iid)
    if trim.by_length or trim.by_id:
        trim_after_append(ctx, ctx.db.key_of(&args.items[1]), stream, &trim)
    return reply


cdef int trim_after_append(Context ctx, bytes key, Stream stream, Trim* trim) except -1:
    """Trim after a completed append. Entries that the journal has no room to list stay until the
    next trim."""
    try:
        trim_stream(ctx, key, stream, trim, False)
    except CommandError:
        pass
    return 0


cdef tuple take_options(Args args, Trim* trim, bint* make):
    """Take the options before the ID, where the cursor then is; NOMKSTREAM sets `make` to False.
    Returns the producer and the name of the message, None without IDMP."""
    cdef tuple message = None
    cdef tuple taken
    begin_trim(trim)
    while args.pos < args.count and not is_star(&args.items[args.pos]):
        if args.next_is(b"NOMKSTREAM"):
            make[0] = False
        elif not take_trim(args, trim):
            taken = take_message(args, message) if may_be_idmp(&args.items[args.pos]) else None
            if taken is None:
                break
            message = taken
    if args.pos >= args.count:
        check_trim(trim)
        raise wrong_arity("xadd")
    return message


cdef inline bint may_be_idmp(Slice* word) noexcept:
    """False for an ID, which most requests have here."""
    return word.size >= 4 and (word.ptr[0] == c'I' or word.ptr[0] == c'i')


# ---------------------------------------------------------------- trimming

cdef void begin_trim(Trim* trim) noexcept:
    """No option was given yet."""
    trim.by_length = trim.by_id = trim.approximate = trim.limited = False
    trim.limit = trim.keep = 0
    trim.references = NOT_GIVEN


cdef bint take_trim(Args args, Trim* trim) except -1:
    """Take one trimming option if the next argument begins one. The last word of a request never
    does."""
    if trim.references == NOT_GIVEN and take_references(args, trim):
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


cdef bint take_references(Args args, Trim* trim) noexcept:
    """Take KEEPREF, DELREF or ACKED. A second such word is not an option, as in Redis."""
    if args.next_is(b"KEEPREF"):
        trim.references = KEEP_REFERENCES
    elif args.next_is(b"DELREF"):
        trim.references = DROP_REFERENCES
    elif args.next_is(b"ACKED"):
        trim.references = ONLY_ACKED
    else:
        return False
    return True


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


@command(
    "XTRIM key {trim: <strategy: MAXLEN | MINID> [operator: = | ~] threshold [LIMIT count]} "
    "[condition: KEEPREF | DELREF | ACKED]", "write nondeterministic_output",
    complexity="O(n) of evicted blocks", keys="RW delete",
)
def xtrim(Context ctx not None, Args args not None):
    """Evicts old entries and returns the number evicted.

    Evicts the oldest entries until at most `threshold` entries are left (MAXLEN) or no ID is
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


# ---------------------------------------------------------------- reading

@command("XLEN key", "readonly fast", keys="RO")
def xlen(Context ctx not None, Args args not None):
    """Returns the number of entries of a stream."""
    cdef Stream stream = ctx.read_stream_at(&args.items[1])
    return 0 if stream is None else stream.length


cdef take_range(Context ctx, Args args, bint reverse):
    """XRANGE and XREVRANGE."""
    cdef EntryRange reply = make_range(None, False, MAX)
    cdef Stream stream
    # As in Redis, the start is checked first, wherever it is.
    args.pos = 3 if reverse else 2
    take_start(args, &reply.start, False)
    args.pos = 2 if reverse else 3
    take_end(args, &reply.end, False)
    args.pos = 4
    take_limit(args, &reply.limit)
    stream = ctx.read_stream_at(&args.items[1])
    if stream is None:
        return []
    if reply.limit == 0:
        return NULL_ARRAY
    reply.reverse = reverse
    reply.stream = stream
    return reply


@command(
    "XRANGE key start end [COUNT count]", "readonly",
    complexity="O(log n) to find the start and O(m) for the m entries answered",
)
def xrange(Context ctx not None, Args args not None):
    """Returns the entries between two IDs."""
    return take_range(ctx, args, False)


@command(
    "XREVRANGE key end start [COUNT count]", "readonly",
    complexity="O(log n) to find the end and O(m) for the m entries answered",
)
def xrevrange(Context ctx not None, Args args not None):
    """Returns the entries between two IDs, newest first."""
    return take_range(ctx, args, True)
