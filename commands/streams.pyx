# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Today's Redis stream commands that append, read and remove entries.

Semantics and error words are Redis 8.6's. They take the same road as the draft's five and share
their parts: an XADD is a TAPPEND with more options and another way to print the id.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.appending cimport append_entry, evict_to, stream_to_append
from millstream.commands.arguments cimport Args, take_timeout_ms
from millstream.commands.context cimport Context
from millstream.commands.ranges cimport (
    SLICE_BYTES, EntryRange, SlicedChain, make_range, take_end, take_limit, take_start,
)
from millstream.commands.replies cimport BlockedRead, Encodable, Sliced
from millstream.encoding cimport Output, Slice
from millstream.ids cimport (
    EntryId, id_less, make_id, parse_id, parse_u64, step_down, step_up,
)
from millstream.storage.keyspace cimport Database
from millstream.storage.stream cimport Stream

from millstream.commands.registry import command
from millstream.commands.replies import NULL_ARRAY, Wait
from millstream.errors import EXHAUSTED, INVALID_ID, SYNTAX, CommandError, wrong_arity

# Redis trims at most this many nodes' entries with `~` and no LIMIT.
cdef uint64_t DEFAULT_LIMIT_NODES = 100

TWO_STRATEGIES = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
LIMIT_EXACT = "ERR syntax error, LIMIT cannot be used without the special ~ option"
LIMIT_ALONE = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
UNBALANCED = ("ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must "
              "be specified.")
ID_OF_GROUPS = ("ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
                "<consumer> option.")
ID_ZERO = "ERR The ID specified in XADD must be greater than 0-0"


# ---------------------------------------------------------------- trimming options

cdef bint take_trim(Args args, Trim* trim) except -1:
    """Take one trimming option if the next argument begins one."""
    if args.next_is(b"MAXLEN", 6):
        if trim.by_id or trim.by_length:
            raise CommandError(TWO_STRATEGIES)
        trim.by_length = True
        take_exactness(args, trim)
        keep = args.take_int()
        if keep < 0:
            raise CommandError("ERR The MAXLEN argument must be >= 0.")
        trim.keep = keep
    elif args.next_is(b"MINID", 5):
        if trim.by_id or trim.by_length:
            raise CommandError(TWO_STRATEGIES)
        trim.by_id = True
        take_exactness(args, trim)
        args.take_id(&trim.first_kept, False, 0)
    elif args.next_is(b"LIMIT", 5):
        limit = args.take_int()
        if limit < 0:
            raise CommandError("ERR The LIMIT argument must be >= 0.")
        trim.limited = True
        trim.limit = limit
    else:
        return False
    return True


cdef int take_exactness(Args args, Trim* trim) except -1:
    trim.approximate = args.next_is(b"~", 1)
    if not trim.approximate:
        args.next_is(b"=", 1)
    return 0


cdef int check_trim(Trim* trim) except -1:
    if trim.limited and not (trim.by_length or trim.by_id):
        raise CommandError(LIMIT_ALONE)
    if trim.limited and not trim.approximate:
        raise CommandError(LIMIT_EXACT)
    return 0


cdef uint64_t trim_stream(Context ctx, bytes key, Stream stream,
                          Trim* trim) except? 0xffffffffffffffff:
    """Evict what the option says; returns how many entries went."""
    cdef uint64_t limit = trim.limit
    if not trim.by_length and not trim.by_id:
        return 0
    if trim.approximate:
        if not trim.limited:
            limit = DEFAULT_LIMIT_NODES * ctx.keyspace.node_entries
        boundary = stream.boundary_by_nodes(
            trim.keep if trim.by_length else None,
            (trim.first_kept.ms, trim.first_kept.seq) if trim.by_id else None, limit)
    elif trim.by_length:
        boundary = "all" if trim.keep == 0 else stream.boundary_for_length(trim.keep)
    else:
        boundary = trim.first_kept.ms, trim.first_kept.seq
    return evict_to(ctx, key, stream, boundary)


# ---------------------------------------------------------------- XADD

cdef bint read_id(Slice* word, EntryId* out) except -1:
    """Read XADD's id where it is no `*`: `ms-seq`, `ms`, or `ms-*`; True for the latter, which
    leaves the sequence number to the stream."""
    if word.size > 2 and word.ptr[word.size - 1] == c'*' and word.ptr[word.size - 2] == c'-':
        if parse_u64(word.ptr, word.size - 2, &out.ms) < 0:
            raise CommandError(INVALID_ID)
        return True
    if parse_id(word.ptr, word.size, False, 0, out) < 0:
        raise CommandError(INVALID_ID)
    if out.ms == 0 and out.seq == 0:
        raise CommandError(ID_ZERO)
    return False


cdef int complete_id(Stream stream, EntryId* out, bint any_seq) except -1:
    """Choose the sequence number where any will do; the id must be above the stream's last."""
    cdef uint64_t last_ms = 0 if stream is None else stream.last_ms
    cdef uint64_t last_seq = 0 if stream is None else stream.last_seq
    if any_seq and out.ms == last_ms and stream is not None:
        if last_seq == MAX:
            raise CommandError(ID_TOO_LOW)
        out.seq = last_seq + 1
    elif any_seq:
        out.seq = 1 if out.ms == 0 else 0
    if last_ms == MAX and last_seq == MAX:
        raise CommandError(EXHAUSTED)
    if not id_less(last_ms, last_seq, out.ms, out.seq):
        raise CommandError(ID_TOO_LOW)
    return 0


@command(
    "XADD", arity=-5, flags="write denyoom fast", keys=(1, 1, 1), group="stream",
    summary="Appends an entry to a stream; makes the stream if need be.",
    syntax="key [NOMKSTREAM] [MAXLEN|MINID [=|~] threshold [LIMIT count]] *|id field value "
           "[field value ...]",
    complexity="O(1), and O(n) of evicted blocks with trimming",
)
def xadd(Context ctx not None, Args args not None):
    cdef Stream stream
    cdef EntryId entry_id
    cdef Trim trim
    cdef Slice* word
    cdef Slice* items
    cdef bint make = True
    cdef bint any_seq = False
    cdef Py_ssize_t count
    trim.by_length = trim.by_id = trim.approximate = trim.limited = False
    trim.limit = trim.keep = 0
    args.pos = 2
    while True:
        word = &args.items[args.pos]
        if word.size == 1 and word.ptr[0] == c'*':
            break
        if args.pos + 1 >= args.count:
            raise wrong_arity("xadd")
        if args.next_is(b"NOMKSTREAM", 10):
            make = False
        elif not take_trim(args, &trim):
            break
        if args.pos >= args.count:
            raise wrong_arity("xadd")
    word = &args.items[args.pos]
    items = word + 1
    count = args.count - args.pos - 1
    check_trim(&trim)
    if not (word.size == 1 and word.ptr[0] == c'*'):
        # A malformed id is told before a wrong number of words, as Redis does.
        any_seq = read_id(word, &entry_id)
    if count < 2 or count & 1:
        raise wrong_arity("xadd")
    stream = ctx.db.writable_at(&args.items[1])
    if stream is None and not make:
        return None
    if word.size == 1 and word.ptr[0] == c'*':
        stream = stream_to_append(ctx, &args.items[1], items, count)
        stream.next_id(ctx.now_ms, &entry_id)
    else:
        complete_id(stream, &entry_id, any_seq)
        stream = stream_to_append(ctx, &args.items[1], items, count)
    reply = append_entry(ctx, &args.items[1], stream, entry_id, items, count, False)
    if trim.by_length or trim.by_id:
        trim_stream(ctx, ctx.db.key_of(&args.items[1]), stream, &trim)
    return reply


@command(
    "XTRIM", arity=-4, flags="write", keys=(1, 1, 1), group="stream",
    summary="Evicts old entries; answers how many.",
    syntax="key MAXLEN|MINID [=|~] threshold [LIMIT count]",
    complexity="O(n) of evicted blocks",
)
def xtrim(Context ctx not None, Args args not None):
    cdef Stream stream
    cdef Trim trim
    trim.by_length = trim.by_id = trim.approximate = trim.limited = False
    trim.limit = trim.keep = 0
    args.pos = 2
    while args.pos < args.count:
        if not take_trim(args, &trim):
            raise CommandError(SYNTAX)
    check_trim(&trim)
    if not trim.by_length and not trim.by_id:
        raise CommandError(SYNTAX)
    stream = ctx.db.writable_at(&args.items[1])
    if stream is None:
        return 0
    return trim_stream(ctx, ctx.db.key_of(&args.items[1]), stream, &trim)


# ---------------------------------------------------------------- reading and removing

@command(
    "XLEN", arity=2, flags="readonly fast", keys=(1, 1, 1), group="stream",
    summary="Answers the number of entries of a stream.", syntax="key",
)
def xlen(Context ctx not None, Args args not None):
    cdef Stream stream = ctx.db.stream_at(&args.items[1])
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
    stream = ctx.db.stream_at(&args.items[1])
    if stream is None:
        return []
    if reply.limit == 0:
        return NULL_ARRAY
    reply.reverse = reverse
    reply.stream = stream
    return reply


@command(
    "XRANGE", arity=-4, flags="readonly", keys=(1, 1, 1), group="stream",
    summary="Answers the entries between two ids.", syntax="key start end [COUNT count]",
    complexity="O(log n) to find the start and O(m) for the m entries answered",
)
def xrange(Context ctx not None, Args args not None):
    return take_range(ctx, args, False)


@command(
    "XREVRANGE", arity=-4, flags="readonly", keys=(1, 1, 1), group="stream",
    summary="Answers the entries between two ids, newest first.",
    syntax="key end start [COUNT count]",
    complexity="O(log n) to find the end and O(m) for the m entries answered",
)
def xrevrange(Context ctx not None, Args args not None):
    return take_range(ctx, args, True)


@command(
    "XDEL", arity=-3, flags="write fast", keys=(1, 1, 1), group="stream",
    summary="Deletes entries by id; answers how many there were.", syntax="key id [id ...]",
    complexity="O(log n) for each id, and a copy of its block",
)
def xdel(Context ctx not None, Args args not None):
    cdef Stream stream = ctx.db.writable_at(&args.items[1])
    cdef EntryId found
    cdef list gone = []
    if stream is None:
        return 0
    args.pos = 2
    while args.pos < args.count:
        args.take_id(&found, False, 0)
    args.pos = 2
    while args.pos < args.count:
        args.take_id(&found, False, 0)
        if stream.delete(found.ms, found.seq):
            gone.append(bytes(make_id(found.ms, found.seq, False)))
    if gone:
        ctx.keyspace.dirty += len(gone)
        ctx.effects.record(ctx.db.index, b"XDEL", ctx.db.key_of(&args.items[1]), *gone)
    return len(gone)


# ---------------------------------------------------------------- XREAD

def xread_keys(list words) -> list[int]:
    """Indexes of the keys in XREAD's words; none when STREAMS is missing."""
    for place in range(1, len(words)):
        if words[place].upper() == b"STREAMS":
            return list(range(place + 1, place + 1 + (len(words) - place - 1) // 2))
    return []


@command(
    "XREAD", arity=-4, flags="readonly blocking movablekeys", group="stream",
    find_keys=xread_keys, summary="Reads entries behind an id of each stream; may wait for them.",
    syntax="[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
    complexity="O(log n) to find each start and O(m) for the m entries answered",
)
def xread(Context ctx not None, Args args not None):
    cdef StreamsRead read = StreamsRead.__new__(StreamsRead)
    cdef int64_t limit = 0
    cdef int64_t timeout_ms = -1
    read.db_index = ctx.db.index
    while True:
        if args.next_is(b"COUNT", 5):
            limit = args.take_int()
        elif args.next_is(b"BLOCK", 5):
            timeout_ms = take_timeout_ms(args)
        elif args.next_is(b"STREAMS", 7):
            break
        elif args.next_is(b"GROUP", 5) or args.next_is(b"CLAIM", 5):
            word = args[args.pos - 1].decode().upper()
            raise CommandError(
                f"ERR The {word} option is only supported by XREADGROUP. "
                "You called XREAD instead.")
        else:
            raise CommandError(SYNTAX)
    if args.remaining == 0 or args.remaining & 1:
        raise CommandError(UNBALANCED)
    read.limit = MAX if limit <= 0 else <uint64_t>limit
    read.take_streams(ctx, args)
    reply = read.reply(ctx)
    if reply is None and timeout_ms >= 0 and ctx.may_block:
        return Wait(read, ctx.now_ms + timeout_ms if timeout_ms else 0)
    return NULL_ARRAY if reply is None else reply


cdef class StreamsRead(BlockedRead):
    """An XREAD: its keys and, for each, the id behind which it reads."""

    cdef int db_index
    cdef uint64_t limit
    cdef list after

    cdef int take_streams(self, Context ctx, Args args) except -1:
        """The keys and ids; `$` and `+` are resolved now."""
        cdef Py_ssize_t count = args.remaining // 2
        cdef Py_ssize_t first = args.pos
        cdef Py_ssize_t i
        self.keys = []
        self.after = []
        args.pos += count
        for i in range(count):
            stream = ctx.db.stream_at(&args.items[first + i])
            self.keys.append((self.db_index, ctx.db.key_of(&args.items[first + i])))
            self.after.append(self.take_after(args, stream))
        return 0

    cdef tuple take_after(self, Args args, Stream stream):
        cdef Slice* word = &args.items[args.pos]
        cdef EntryId found
        if word.size == 1 and word.ptr[0] == c'>':
            raise CommandError(ID_OF_GROUPS)
        if word.size == 1 and (word.ptr[0] == c'$' or word.ptr[0] == c'+'):
            args.pos += 1
            if stream is None:
                return 0, 0
            if word.ptr[0] == c'+' and stream.last_entry(&found) and step_down(&found):
                return found.ms, found.seq
            return stream.last_ms, stream.last_seq
        args.take_id(&found, False, 0)
        return found.ms, found.seq

    cdef reply(self, Context ctx):
        """What is there of each stream, None when there is nothing of any."""
        cdef Database db = <Database>ctx.keyspace.databases[self.db_index]
        cdef EntryRange entries
        ranges = []
        for (_, key), (ms, seq) in zip(self.keys, self.after):
            stream = db.stream(key)
            if stream is not None and (<Stream>stream).has_newer(ms, seq):
                entries = make_range(stream, False, self.limit)
                entries.start.ms = ms
                entries.start.seq = seq
                step_up(&entries.start)
                ranges.append((key, entries))
        if not ranges:
            return None
        return StreamReplies(ranges)

    def attempt(self, Context ctx not None):
        return self.reply(ctx)


cdef class StreamReplies(Encodable):
    """XREAD's reply: each stream's key and entries, a map in RESP3. Once there is enough for a
    slice, the blocks of the rest are kept and encoded when the client has taken it."""

    cdef list ranges
    cdef list later

    def __init__(self, list ranges):
        self.ranges = ranges

    cdef int encode(self, Output out, int resp) except -1:
        cdef EntryRange entries
        cdef Py_ssize_t full_size = out.size + SLICE_BYTES
        self.later = []
        out.put_head(c'%' if resp == 3 else c'*', len(self.ranges))
        for key, entries in self.ranges:
            if self.later or out.size >= full_size:
                self.put_off(key, entries, resp)
                continue
            put_key(out, key, resp)
            entries.encode(out, resp)
            if entries.rest() is not None:
                self.later.append(entries.rest())
        return 0

    cdef int put_off(self, bytes key, EntryRange entries, int resp) except -1:
        """Keep a stream's blocks; the head of its reply is small and made now."""
        cdef Output head = Output()
        cdef EntryId last
        cdef uint64_t count = entries.count()
        put_key(head, key, resp)
        head.put_head(c'*', count)
        self.later.append(head.take_bytes())
        # Of a read of few entries from a long stream only the blocks that hold them are kept.
        if entries.stream.nth(
                entries.stream.rank_of(entries.start.ms, entries.start.seq) + count - 1, &last):
            entries.end = last
        self.later.append(entries.rest_behind(NULL, count))
        return 0

    cdef Sliced rest(self):
        return SlicedChain(self.later) if self.later else None


cdef int put_key(Output out, bytes key, int resp) except -1:
    """What stands before a stream's entries."""
    if resp != 3:
        out.put_raw(b"*2\r\n", 4)
    return out.put_bulk_bytes(key)
