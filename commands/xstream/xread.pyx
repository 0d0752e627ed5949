# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XREAD: the entries after an ID of several streams; can wait for them.

A long reply keeps blocks, and is encoded slice by slice as the client reads it. A reply with
MAXSIZE is limited by the client and is made at once. Semantics and error texts are those of Redis
8.6, for MAXCOUNT and MAXSIZE those of 8.10.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args, take_timeout_ms
from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.ranges cimport EntryRange
from millstream.commands.engine.searching cimport (
    FilteredStreams, make_filtered, make_filtered_streams, put_key,
)
from millstream.commands.engine.waiting cimport SearchingRead
from millstream.commands.runtime.replies cimport (
    make_array_head, make_map_head, make_raw, make_several,
)
from millstream.encoding cimport ArrayHead, Output, Slice
from millstream.entry_id cimport EntryId, step_down, step_up
from millstream.ids cimport parse_id
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.conditions import take_filter
from millstream.commands.table.registry import command
from millstream.commands.runtime.replies import NULL_ARRAY, Wait
from millstream.errors import SYNTAX, CommandError

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

# No reply is as long: a larger MAXSIZE is no limit.
cdef Py_ssize_t SIZE_LARGEST = 1 << 60

UNBALANCED = ("ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must "
              "be specified.")
ID_OF_GROUPS = ("ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
                "<consumer> option.")


# ---------------------------------------------------------------- shared with XREADGROUP

cdef int no_limits(ReadLimits* limits) noexcept:
    limits.entries = limits.all_entries = MAX
    limits.size_bytes = PY_SSIZE_T_MAX
    return 0


cdef bint take_read_limit(Args args, ReadLimits* limits) except -1:
    """Take COUNT, MAXCOUNT or MAXSIZE if the next argument is one of them."""
    cdef int64_t limit
    if args.next_is(b"COUNT"):
        limit = args.take_int()
        limits.entries = MAX if limit <= 0 else <uint64_t>limit
    elif args.next_is(b"MAXCOUNT"):
        limits.all_entries = take_positive(args, "ERR MAXCOUNT must be a positive integer")
    elif args.next_is(b"MAXSIZE"):
        limits.size_bytes = take_positive(args, "ERR MAXSIZE must be a positive integer")
    else:
        return False
    return True


cdef int64_t take_positive(Args args, str refusal) except -1:
    cdef int64_t number = args.take_int_or(refusal)
    if number <= 0:
        raise CommandError(refusal)
    return number


cdef int check_limits(ReadLimits* limits) except -1:
    if limits.entries != MAX and limits.all_entries < limits.entries:
        raise CommandError("ERR MAXCOUNT must be greater than or equal to COUNT")
    return 0


# ---------------------------------------------------------------- XREAD

@command(
    "XREAD [COUNT count] [MAXCOUNT maxcount] [MAXSIZE maxsize] [BLOCK milliseconds] "
    "[where: WHERE n:integer condition [condition ...]] {streams: STREAMS key [key ...] id [id ...]}",
    "readonly blocking", since="5.0.0",
    complexity="O(log n) to find each start and O(m) for the m entries answered",
)
def xread(Context ctx not None, Args args not None):
    """Reads entries after an ID from each stream; can wait for new entries."""
    cdef PlainRead read
    cdef ReadLimits limits
    cdef EntryFilter filter = None
    cdef Py_ssize_t words
    cdef int64_t timeout_ms = -1
    no_limits(&limits)
    while not args.next_is(b"STREAMS"):
        if take_read_limit(args, &limits):
            continue
        if args.next_is(b"BLOCK"):
            timeout_ms = take_timeout_ms(args)
        elif args.next_is(b"WHERE"):
            filter = take_filter(args)
        elif (args.remaining > 2 and args.next_is(b"GROUP")
                or args.remaining > 1 and args.next_is(b"CLAIM")
                or args.next_is(b"NOACK")):
            word = args[args.pos - 1].decode().upper()
            raise CommandError(
                f"ERR The {word} option is only supported by XREADGROUP. "
                "You called XREAD instead.")
        else:
            raise CommandError(SYNTAX)
    words = args.count - args.pos
    if words == 0:
        raise CommandError(SYNTAX)
    if words & 1:
        raise CommandError(UNBALANCED)
    check_limits(&limits)
    if words == 2 and filter is None and limits.size_bytes >= SIZE_LARGEST:
        reply = read_one(ctx, args, min(limits.entries, limits.all_entries))
        if reply is not None:
            return reply
    if timeout_ms < 0 and has_nothing_new(ctx, args):
        return NULL_ARRAY
    read = PlainRead.__new__(PlainRead)
    read.db_index = ctx.db.index
    read.limits = limits
    read.from_last = []
    read.filter = filter
    reply = read.find(ctx, read.take_streams(ctx, args), timeout_ms >= 0 and ctx.may_block)
    if reply is None and timeout_ms >= 0:
        return Wait(read, ctx.steady_ms + timeout_ms if timeout_ms else 0)
    return NULL_ARRAY if reply is None else reply


cdef class OneStream(EntryRange):
    """XREAD's reply for one stream. It is encoded at once, because `key` is a view of the
    request."""

    cdef Slice* key

    cdef int put_before(self, Output out, int resp) except -1:
        out.put_raw(b"%1\r\n" if resp == 3 else b"*1\r\n*2\r\n", 4 if resp == 3 else 8)
        return out.put_bulk(self.key.ptr, self.key.size)


cdef read_one(Context ctx, Args args, uint64_t limit):
    """The fast path of most reads: one stream, and entries after a plain ID. None if it does not
    apply."""
    cdef OneStream reply
    cdef Slice* key = &args.items[args.pos]
    cdef Slice* word = key + 1
    cdef EntryId after
    cdef Stream stream
    if parse_id(word.ptr, word.size, False, 0, &after) < 0:
        return None
    try:
        stream = ctx.db.find_at(key)
    except CommandError:
        return None
    if stream is None or not stream.has_newer(after):
        return None
    ctx.count_hits(2)  # Redis looks twice
    reply = OneStream.__new__(OneStream)
    reply.key = key
    reply.stream = stream
    reply.limit = limit
    step_up(&after)
    reply.start = after
    reply.end.ms = reply.end.seq = MAX
    return reply


cdef bint has_nothing_new(Context ctx, Args args) except -1:
    """The fast path of a poll: whether each key has a stream without entries after its plain ID. If
    so, the look-ups are counted."""
    cdef Py_ssize_t count = (args.count - args.pos) // 2
    cdef Slice* key = &args.items[args.pos]
    cdef EntryId after
    cdef Stream stream
    cdef Py_ssize_t i
    for i in range(count):
        if parse_id(key[count + i].ptr, key[count + i].size, False, 0, &after) < 0:
            return False
        try:
            stream = ctx.db.find_at(&key[i])
        except CommandError:
            return False
        if stream is None or stream.has_newer(after):
            return False
    ctx.count_hits(2 * count)  # Redis looks twice
    return True


cdef class PlainRead(SearchingRead):
    """An XREAD."""

    needs_stream = True

    cdef ReadLimits limits
    # The indexes of the streams that are read from their last entry on, resolved at each attempt.
    cdef list from_last

    cdef tuple take_after(self, Args args, Stream stream):
        cdef Slice* word = &args.items[args.pos]
        cdef EntryId found
        if word.size == 1 and word.ptr[0] == c'>':
            raise CommandError(ID_OF_GROUPS)
        if word.size == 1 and (word.ptr[0] == c'$' or word.ptr[0] == c'+'):
            args.pos += 1
            if word.ptr[0] == c'+':
                self.from_last.append(len(self.after))
            if stream is None:
                return 0, 0
            return before_last(stream) if word.ptr[0] == c'+' else (stream.last_ms, stream.last_seq)
        args.take_id(&found, False, 0)
        return found.ms, found.seq

    cdef find(self, Context ctx, list streams, bint may_wait):
        """The reply; None to wait, or if there is nothing. A filtered read that may wait looks for
        the first match; one that may not searches all that is there now."""
        cdef Py_ssize_t i
        if self.filter is None:
            return self.reply(ctx, streams)
        for i in range(len(streams)):
            # As in Redis, each stream counts as looked up once more.
            if streams[i] is None:
                ctx.read_stream((<tuple>self.keys[i])[1])
            else:
                ctx.count_hits(1)
        if may_wait and not self.look(streams):
            return None
        return self.filtered(ctx, streams)

    cdef FilteredStreams filtered(self, Context ctx, list streams):
        """The matches after the position of each stream."""
        cdef FilteredStreams made = make_filtered_streams(
            self.limits.all_entries,
            self.limits.size_bytes if self.limits.size_bytes < SIZE_LARGEST else 0)
        cdef EntryId start
        cdef Py_ssize_t i
        for i in range(len(streams)):
            if streams[i] is None:
                continue
            start = self.position(i, streams[i])
            if (<Stream>streams[i]).has_newer(start):
                step_up(&start)
                made.keys.append((<tuple>self.keys[i])[1])
                made.ranges.append(make_filtered(
                    streams[i], self.filter, False, start, EntryId(MAX, MAX), self.limits.entries))
        return made

    cdef EntryId position(self, Py_ssize_t i, Stream stream):
        if self.from_last and i in self.from_last:
            ms, seq = before_last(stream)
            return EntryId(ms, seq)
        return SearchingRead.position(self, i, stream)

    cdef reply(self, Context ctx, list streams):
        """The reply with the entries of each stream; None without any. As in Redis, each stream
        counts as looked up once more."""
        cdef Stream stream
        cdef KeyedRange entries
        cdef uint64_t left = self.limits.all_entries
        cdef uint64_t ms, seq
        cdef Py_ssize_t i
        cdef bytes key
        cdef list ranges = []
        for i in range(len(streams)):
            stream = streams[i]
            key = (<tuple>self.keys[i])[1]
            if stream is None:
                ctx.read_stream(key)
                continue
            ctx.count_hits(1)
            ms, seq = <tuple>self.after[i]
            if stream.has_newer(EntryId(ms, seq)):
                entries = KeyedRange.__new__(KeyedRange)
                entries.key = key
                entries.stream = stream
                entries.limit = min(self.limits.entries, left)
                entries.start = EntryId(ms, seq)
                step_up(&entries.start)
                entries.end = EntryId(MAX, MAX)
                ranges.append(entries)
                if left != MAX:
                    left -= entries.count()
                    if left == 0:
                        break
        if not ranges:
            return None
        if self.limits.size_bytes < SIZE_LARGEST:
            return self.limited(ctx, ranges)
        ranges.insert(0, make_map_head(len(ranges)) if ctx.session.resp == 3 else (
            make_array_head(len(ranges))))
        return make_several(ranges)

    cdef limited(self, Context ctx, list ranges):
        """A reply with entries until it has reached MAXSIZE, at least one entry."""
        cdef Output out = Output()
        cdef KeyedRange entries
        cdef EntryId last
        cdef ArrayHead all_streams, one_stream
        cdef Py_ssize_t full_size
        cdef uint64_t streams = 0
        cdef uint64_t made
        cdef int resp = ctx.session.resp
        out.begin_array(&all_streams, len(ranges))
        # The heads of arrays mostly use 4 of the bytes reserved for them.
        full_size = self.limits.size_bytes + all_streams.size - 4
        for entries in ranges:
            if streams and out.size >= full_size:
                break
            put_key(out, entries.key, resp)
            out.begin_array(&one_stream, min(entries.limit, entries.stream.length))
            # The bytes before the first entry may already exceed the limit.
            made = entries.encode_entries(
                out, entries.limit, max(full_size + one_stream.size - 4, out.size + 1), &last)
            out.end_array(&one_stream, made)
            streams += 1
        out.end_array(&all_streams, streams)
        if resp == 3:
            out.buf[0] = c'%'
        return make_raw(out.take())

    def attempt(self, Context ctx not None):
        """Read again, as if XREAD were sent now: the look-ups count again, and WRONGTYPE is raised
        when a key has another type."""
        if self.is_searching():
            return None
        return self.find(ctx, self.current(ctx), True)

    cdef list current(self, Context ctx):
        """The streams as they are now."""
        cdef Stream stream
        cdef list streams = []
        cdef Py_ssize_t i
        for i in range(len(self.keys)):
            stream = ctx.read_stream((<tuple>self.keys[i])[1])
            streams.append(stream)
            if self.from_last and stream is not None and i in self.from_last:
                self.after[i] = before_last(stream)
        return streams

    def timeout_reply(self, Context ctx not None):
        """Null; a search that is not complete continues in what is there now."""
        if not self.is_searching():
            return NULL_ARRAY
        return self.filtered(ctx, self.current(ctx))


cdef tuple before_last(Stream stream):
    """The ID after which only the last entry comes; the last ID of a stream without entries."""
    cdef EntryId found
    if stream.last_entry(&found) and step_down(&found):
        return found.ms, found.seq
    return stream.last_ms, stream.last_seq


cdef class KeyedRange(EntryRange):
    """A key and its entries, in XREAD's reply for several streams."""

    cdef bytes key

    cdef int put_before(self, Output out, int resp) except -1:
        return put_key(out, self.key, resp)

