# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Today's Redis stream commands that append and range over entries.

Semantics and error words are Redis 8.6's. They take the same road as the draft's five and share
their parts: an XADD is a TAPPEND with more options and another way to print the id. What it trims is
in `trimming`, what it does only once in `idempotence`; neither costs anything where it is not asked
for.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.engine.appending cimport append_entry, append_message, stream_to_append
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport id_of, stream_of
from millstream.commands.xstream.xidmp cimport Once, is_repeat, name_of, take_once
from millstream.commands.engine.ranges cimport EntryRange, make_range, take_end, take_limit, take_start
from millstream.commands.xstream.xtrim cimport Trim, begin_trim, check_trim, take_trim, trim_stream
from millstream.encoding cimport Slice
from millstream.ids cimport EntryId, id_less, make_id, parse_id, parse_part
from millstream.storage.streams.keyspace cimport Keyspace
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.effects import effect
from millstream.commands.table.registry import command
from millstream.commands.runtime.replies import NULL_ARRAY, OK
from millstream.errors import (
    EXHAUSTED, INVALID_ID, NO_SUCH_KEY, SYNTAX, CommandError, wrong_arity,
)

ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
ID_ZERO = "ERR The ID specified in XADD must be greater than 0-0"
ONCE_WITH_ID = "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
SETID_BELOW_TOP = "ERR The ID specified in XSETID is smaller than the target stream top item"
SETID_BELOW_PROVIDED = ("ERR The ID specified in XSETID is smaller than the provided "
                        "max_deleted_entry_id")
SETID_BELOW_DELETED = ("ERR The ID specified in XSETID is smaller than current "
                       "max_deleted_entry_id")
SETID_TOO_FEW = ("ERR The entries_added specified in XSETID is smaller than the target stream "
                 "length")


# ---------------------------------------------------------------- XADD

cdef bint read_id(Slice* word, EntryId* out) except -1:
    """Read XADD's id where it is no `*`: `ms-seq`, `ms`, or `ms-*`; True for the latter, which
    leaves the sequence number to the stream."""
    if word.size > 2 and word.ptr[word.size - 1] == c'*' and word.ptr[word.size - 2] == c'-':
        if parse_part(word.ptr, word.size - 2, &out.ms) < 0:
            raise CommandError(INVALID_ID)
        return True
    if parse_id(word.ptr, word.size, False, 0, out) < 0:
        raise CommandError(INVALID_ID)
    return False


cdef int complete_id(Stream stream, EntryId* out, bint any_seq) except -1:
    """Choose the sequence number where any will do; the id must be above the stream's last."""
    cdef uint64_t last_ms = 0 if stream is None else stream.last_ms
    cdef uint64_t last_seq = 0 if stream is None else stream.last_seq
    if last_ms == MAX and last_seq == MAX:
        raise CommandError(EXHAUSTED)
    if any_seq and out.ms == last_ms and stream is not None:
        if last_seq == MAX:
            raise CommandError(ID_TOO_LOW)
        out.seq = last_seq + 1
    elif any_seq:
        out.seq = 1 if out.ms == 0 else 0
    if not id_less(last_ms, last_seq, out.ms, out.seq):
        raise CommandError(ID_TOO_LOW)
    return 0


cdef inline bint is_star(Slice* word) noexcept:
    return word.size == 1 and word.ptr[0] == c'*'


@command(
    "XADD", arity=-5, flags="write denyoom fast", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Appends an entry to a stream. Creates the stream if it doesn't exist.",
    syntax="key [NOMKSTREAM] [condition: KEEPREF | DELREF | ACKED] [idmp: IDMPAUTO producer-id | "
    "IDMP producer-id idempotent-id] [trim: <strategy: MAXLEN | MINID> [operator: = | ~] "
    "threshold [LIMIT count]] <id-selector: * | id> field value [field value ...]",
    complexity="O(1), and O(n) of evicted blocks with trimming",
)
def xadd(Context ctx not None, Args args not None):
    """The entry's ID; nil with NOMKSTREAM if the stream does not exist. IDMP and IDMPAUTO identify
    the message: if the producer has sent it before, the reply is its first ID, and it is not added
    again. Trimming can also remove entries from every group's pending entries (DELREF), or keep
    entries that a group has not yet read or acknowledged (ACKED).
    """
    args.pos = 2
    # Most requests have nothing to look at but the entry.
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
    stream.next_id(ctx.now_ms, &entry_id)
    return append_entry(ctx, &args.items[1], stream, entry_id, items, count, False)


cdef add_with_options(Context ctx, Args args):
    cdef Trim trim
    cdef Once once
    cdef EntryId entry_id
    cdef Stream stream
    cdef bint auto
    cdef bint any_seq = False
    cdef bint make = take_options(args, &trim, &once)
    cdef Slice* items = &args.items[args.pos + 1]
    cdef Py_ssize_t count = args.count - args.pos - 1
    cdef bytes producer = None
    cdef bytes iid = None
    auto = is_star(&args.items[args.pos])
    if not auto:
        # A malformed id is reported before options that contradict each other, as in Redis.
        any_seq = read_id(&args.items[args.pos], &entry_id)
        if once.producer != NULL:
            raise CommandError(ONCE_WITH_ID)
    check_trim(&trim)
    if count < 2 or count & 1:
        raise wrong_arity("xadd")
    if not auto and not any_seq and entry_id.ms == 0 and entry_id.seq == 0:
        raise CommandError(ID_ZERO)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None and not make:
        return None
    if once.producer != NULL:
        producer = once.producer.ptr[:once.producer.size]
        iid = name_of(&once, items, count)
        if stream is not None and is_repeat(
                ctx, ctx.db.key_of(&args.items[1]), stream, producer, iid, &entry_id):
            return make_id(entry_id.ms, entry_id.seq, False)
    if not auto:
        complete_id(stream, &entry_id, any_seq)
    stream = stream_to_append(ctx, &args.items[1], items, count)
    if auto:
        stream.next_id(ctx.now_ms, &entry_id)
    if producer is None:
        reply = append_entry(ctx, &args.items[1], stream, entry_id, items, count, False)
    else:
        reply = append_message(
            ctx, &args.items[1], stream, entry_id, items, count, producer, iid)
    if trim.by_length or trim.by_id:
        trim_behind(ctx, ctx.db.key_of(&args.items[1]), stream, &trim)
    return reply


cdef int trim_behind(Context ctx, bytes key, Stream stream, Trim* trim) except -1:
    """Trim after an append, which is done: what the journal has no room to list stays until the
    next trim."""
    try:
        trim_stream(ctx, key, stream, trim, False)
    except CommandError:
        pass
    return 0


cdef bint take_options(Args args, Trim* trim, Once* once) except -1:
    """Take what stands before the id, where the cursor then is; whether the stream may be made."""
    cdef bint make = True
    begin_trim(trim)
    once.producer = once.iid = NULL
    while args.pos < args.count and not is_star(&args.items[args.pos]):
        if args.next_is(b"NOMKSTREAM"):
            make = False
        elif not take_trim(args, trim) and not take_once(args, once):
            break
    if args.pos >= args.count:
        check_trim(trim)
        raise wrong_arity("xadd")
    return make


# ---------------------------------------------------------------- XSETID

@command(
    "XSETID", arity=-3, flags="write denyoom fast", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Sets a stream's last ID and counters.",
    syntax="key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
)
def xsetid(Context ctx not None, Args args not None):
    """For tools that copy streams between servers."""
    cdef Stream stream
    cdef EntryId last
    cdef EntryId top
    cdef EntryId deleted
    cdef int64_t added = -1
    deleted.ms = deleted.seq = 0
    args.pos = 2
    args.take_id(&last, False, 0)
    while args.pos < args.count:
        if args.remaining >= 2 and args.next_is(b"ENTRIESADDED"):
            added = args.take_int()
            if added < 0:
                raise CommandError("ERR entries_added must be positive")
        elif args.remaining >= 2 and args.next_is(b"MAXDELETEDID"):
            args.take_id(&deleted, False, 0)
            if id_less(last.ms, last.seq, deleted.ms, deleted.seq):
                raise CommandError(SETID_BELOW_PROVIDED)
        else:
            raise CommandError(SYNTAX)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    if id_less(last.ms, last.seq, stream.max_deleted_ms, stream.max_deleted_seq):
        raise CommandError(SETID_BELOW_DELETED)
    if stream.last_entry(&top):
        if id_less(last.ms, last.seq, top.ms, top.seq):
            raise CommandError(SETID_BELOW_TOP)
        if added >= 0 and <uint64_t>added < stream.length:
            raise CommandError(SETID_TOO_FEW)
    stream.set_last_id(last.ms, last.seq, ctx.keyspace.node_entries, ctx.keyspace.node_bytes)
    if added >= 0:
        stream.entries_added = added
    if deleted.ms or deleted.seq:
        stream.max_deleted_ms = deleted.ms
        stream.max_deleted_seq = deleted.seq
    ctx.change((
        b"SETID", ctx.db.key_of(&args.items[1]),
        bytes(make_id(stream.last_ms, stream.last_seq, False)), stream.entries_added,
        bytes(make_id(stream.max_deleted_ms, stream.max_deleted_seq, False))), b"xsetid", 1)
    return OK


@effect(b"SETID")
def apply_setid(Keyspace keyspace, int db, list words):
    """SETID key last-id entries-added max-deleted-id."""
    cdef Stream stream = stream_of(keyspace, db, words[0])
    ms, seq = id_of(words[1])
    stream.set_last_id(ms, seq, keyspace.node_entries, keyspace.node_bytes)
    stream.entries_added = int(words[2])
    stream.max_deleted_ms, stream.max_deleted_seq = id_of(words[3])


# ---------------------------------------------------------------- reading

@command(
    "XLEN", arity=2, flags="readonly fast", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Returns the number of entries of a stream.", syntax="key",
)
def xlen(Context ctx not None, Args args not None):
    cdef Stream stream = ctx.read_stream_at(&args.items[1])
    return 0 if stream is None else stream.length


cdef take_range(Context ctx, Args args, bint reverse):
    """XRANGE and XREVRANGE."""
    cdef EntryRange reply = make_range(None, False, MAX)
    cdef Stream stream
    args.pos = 2
    if reverse:
        take_end(args, &reply.end, False)
        take_start(args, &reply.start, False)
    else:
        take_start(args, &reply.start, False)
        take_end(args, &reply.end, False)
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
    "XRANGE", arity=-4, flags="readonly", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Returns the entries between two IDs.", syntax="key start end [COUNT count]",
    complexity="O(log n) to find the start and O(m) for the m entries answered",
)
def xrange(Context ctx not None, Args args not None):
    return take_range(ctx, args, False)


@command(
    "XREVRANGE", arity=-4, flags="readonly", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Returns the entries between two IDs, newest first.",
    syntax="key end start [COUNT count]",
    complexity="O(log n) to find the end and O(m) for the m entries answered",
)
def xrevrange(Context ctx not None, Args args not None):
    return take_range(ctx, args, True)
