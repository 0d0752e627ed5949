# cython: language_level=3
"""TMREAD: following streams without missing an entry.

Each row says how far its stream is settled: no entry that the reader has not received has, or will
get, an ID in (prev, next]. A reader that continues after `next` therefore gets every entry once,
including entries that are completed late, and knows up to which ID it has all entries.

With CLOCK the server promises more: no entry up to a time just past will be added. The promise must
survive a crash, so the server first records a time a second ahead (the effect CLOCK).
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.engine.lifecycle cimport live_held
from millstream.commands.engine.searching cimport FilteredRange
from millstream.commands.engine.waiting cimport SearchingRead
from millstream.commands.engine.ranges cimport EntryRange, make_range
from millstream.commands.runtime.arguments cimport Args, take_timeout_ms
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport EFFECT_BYTES
from millstream.commands.runtime.replies cimport SLICE_BYTES, make_raw, make_several
from millstream.encoding cimport Output, Slice, put_nil
from millstream.entry_id cimport EntryId, id_less, step_down, step_up
from millstream.storage.keyspace.keyspace_core cimport KeyspaceCore as Keyspace
from millstream.storage.reservations.held cimport Held, Slot
from millstream.storage.streams.stream cimport FOLLOWED, RESERVING, SEALED, Stream

from millstream.commands.engine.conditions import take_filter
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.replies import Wait
from millstream.commands.runtime.stream_effects import stream_at
from millstream.commands.table.registry import command
from millstream.errors import NOT_INTEGER, SYNTAX, CommandError

cdef enum:
    # How far ahead of the clock the recorded limit of promises is.
    PROMISE_AHEAD_MS = 1000
    # How many bytes of a row with WHERE are encoded during its search.
    ROW_BYTES_MIN = 4096

UNBALANCED = ("ERR Unbalanced 'tmread' list of streams: for each stream key an ID, '', or '$' must be "
              "specified.")


@command(
    "TMREAD count [BLOCK milliseconds] [CLOCK] [where: WHERE n:integer condition [condition ...]] "
    "{streams: STREAMS key [key ...] id [id ...]}",
    "readonly blocking any_slots",
    complexity="O(log n) to find each start and O(m) for the m entries answered",
)
def tmread(Context ctx not None, Args args not None):
    """Reads entries after an ID from each stream, and reports how far each stream is settled.

    For each stream, in the order of the request: its key, prev, next, the entries, whether it has
    ended, and its incarnation. No entry that the reader has not received has, or will get, an ID in
    (prev, next]; to continue, pass next as the ID.
    """
    cdef FollowRead read = FollowRead.__new__(FollowRead)
    cdef int64_t count = args.take_int()
    cdef int64_t timeout_ms = -1
    if count < 0:
        raise CommandError(NOT_INTEGER)
    read.limit = <uint64_t>count
    read.db_index = ctx.db.index
    while not args.next_is(b"STREAMS"):
        if args.next_is(b"BLOCK"):
            timeout_ms = take_timeout_ms(args)
        elif args.next_is(b"CLOCK"):
            read.with_clock = True
        elif args.next_is(b"WHERE"):
            read.filter = take_filter(args)
        else:
            raise CommandError(SYNTAX)
    if args.count == args.pos:
        raise CommandError(SYNTAX)
    if (args.count - args.pos) & 1:
        raise CommandError(UNBALANCED)
    read.take_streams(ctx, args)
    if read.with_clock:
        read.follow(ctx)
    if timeout_ms >= 0 and count > 0 and ctx.may_block and not read.has_news(ctx):
        return Wait(read, ctx.steady_ms + timeout_ms if timeout_ms else 0)
    return read.reply(ctx)


cdef class FollowRead(SearchingRead):
    """A TMREAD."""

    cdef uint64_t limit
    cdef bint with_clock

    cdef Stream look_up(self, Context ctx, Slice* key):
        cdef Stream stream = ctx.read_for_update_at(key)
        if stream is not None:
            live_held(ctx, ctx.db.key_of(key), stream)
        return stream

    cdef tuple take_after(self, Args args, Stream stream):
        cdef EntryId found
        cdef Slice* word = &args.items[args.pos]
        if word.size == 0 or (word.size == 1 and word.ptr[0] == c'$'):
            args.pos += 1
            if stream is None:
                return 0, 0
            return stream.last_ms, stream.last_seq
        args.take_id(&found, True, 0)
        return found.ms, found.seq

    cdef int follow(self, Context ctx) except -1:
        """Mark the streams as followed and make a promise for them, if that can be recorded."""
        cdef Stream stream
        if ctx.write_error is not None or not ctx.keyspace.may_delete:
            return 0
        for _, key in self.keys:
            stream = ctx.db.stream(key)
            if stream is None or stream.restrictions & FOLLOWED:
                continue
            if ctx.effects.has_room(EFFECT_BYTES + len(<bytes>key)):
                stream = ctx.db.writable_stream(key)
                stream.restrictions |= FOLLOWED
                ctx.keyspace.has_ordering = True
                ctx.change((b"FOLLOW", key), None, 1)
        return 0

    cdef bint has_news(self, Context ctx) except -1:
        """True if a row has entries, or its stream has ended."""
        cdef Stream stream
        cdef EntryId prev
        if self.filter is not None and self.look([ctx.db.stream(key) for _, key in self.keys]):
            return True
        for (_, key), (ms, seq) in zip(self.keys, self.after):
            stream = ctx.db.stream(key)
            if stream is None:
                continue
            prev = prev_of(stream, ms, seq)
            if self.filter is None and stream.has_newer(prev) or has_ended(stream, prev):
                return True
        return False

    cdef reply(self, Context ctx):
        cdef list parts = []
        cdef Output head = Output()
        cdef uint64_t promised_ms = promise(ctx) if self.with_clock else 0
        cdef int resp = ctx.session.resp
        cdef Py_ssize_t i
        head.put_head(c'*', len(self.keys))
        for i in range(len(self.keys)):
            key = (<tuple>self.keys[i])[1]
            ms, seq = self.after[i]
            stream = ctx.db.stream(key)
            head.put_raw(b"*6\r\n", 4)
            head.put_bulk_bytes(key)
            if stream is None:
                put_missing(head, ms, seq, resp)
            elif self.filter is not None:
                parts.append(make_raw(head.take()))
                head.clear()
                parts.append(self.filtered_row(i, stream, promised_ms))
            else:
                self.put_row(head, parts, stream, EntryId(ms, seq), promised_ms)
        parts.append(make_raw(head.take()))
        return make_several(parts)

    cdef int put_row(self, Output head, list parts, Stream stream, EntryId after,
                     uint64_t promised_ms) except -1:
        """Add the elements after the key: prev, next, the entries, whether the stream has ended,
        the incarnation."""
        cdef EntryId prev = prev_of(stream, after.ms, after.seq)
        cdef EntryId start = prev
        cdef EntryId following = prev
        cdef EntryRange entries
        cdef uint64_t before = 0
        cdef uint64_t newer = 0
        cdef uint64_t count
        if step_up(&start):
            before = stream.rank_of(start)
            newer = stream.length - before
        count = min(self.limit, newer)
        if count < newer:
            if count:
                stream.nth(before + count - 1, &following)
        else:
            following = watermark_of(stream, promised_ms)
            if id_less(following.ms, following.seq, prev.ms, prev.seq):
                following = prev
        head.put_id(prev.ms, prev.seq, True)
        head.put_id(following.ms, following.seq, True)
        if count:
            entries = make_range(stream, True, count)
            entries.start = start
            parts.append(make_raw(head.take()))
            head.clear()
            parts.append(entries)
        else:
            head.put_raw(b"*0\r\n", 4)
        head.put_head(c':', has_ended(stream, following))
        head.put_head(c':', stream.incarnation)
        return 0

    cdef FollowRow filtered_row(self, Py_ssize_t i, Stream stream, uint64_t promised_ms):
        """`put_row` with WHERE, after a search up to the position. What was searched before its
        eviction had no match, so the row begins where the request does, or after what was missed."""
        cdef EntryId after, evicted
        cdef EntryId looked = self.position(i, stream)
        cdef FollowRow row = FollowRow.__new__(FollowRow)
        row.stream = stream
        row.filter = self.filter
        after.ms, after.seq = self.after[i]
        if self.has_missed(i, stream, &evicted) and (
                id_less(after.ms, after.seq, evicted.ms, evicted.seq)):
            after = evicted
        row.prev = prev_of(stream, after.ms, after.seq)
        if not id_less(looked.ms, looked.seq, row.prev.ms, row.prev.seq):
            row.prev = after
        else:
            looked = row.prev
        row.settled = watermark_of(stream, promised_ms)
        if id_less(row.settled.ms, row.settled.seq, looked.ms, looked.seq):
            row.settled = looked
        if not stream.last_entry(&row.newest):
            row.newest = EntryId(0, 0)
        row.has_last = stream.restrictions & SEALED and not stream.restrictions & RESERVING
        row.incarnation = stream.incarnation
        row.wanted = self.limit if step_up(&looked) else 0
        row.begin(looked, EntryId(MAX, MAX), row.wanted)
        row.search.dotted = True
        row.search.full_size = max(SLICE_BYTES // len(self.keys), ROW_BYTES_MIN)
        return row

    def attempt(self, Context ctx not None):
        """WRONGTYPE when one of the keys has another type now."""
        if self.is_searching() or not self.has_news(ctx):
            return None
        if self.with_clock:
            self.follow(ctx)
        return self.reply(ctx)

    def timeout_reply(self, Context ctx not None):
        return self.reply(ctx)


cdef class FollowRow(FilteredRange):
    """A row with WHERE, after its key."""

    cdef EntryId prev
    cdef EntryId settled
    cdef EntryId newest
    cdef uint64_t wanted
    cdef bint has_last  # no entry comes after the newest one
    cdef uint64_t incarnation

    cdef EntryId following(self) noexcept:
        """The row's next: the last match if there may be more, else up to where the stream is
        settled."""
        cdef EntryId last = self.search.last if self.search.found else self.prev
        if self.search.found == self.wanted and id_less(
                last.ms, last.seq, self.newest.ms, self.newest.seq):
            return last
        return self.settled

    cdef int put_before(self, Output out) except -1:
        cdef EntryId following = self.following()
        out.put_id(self.prev.ms, self.prev.seq, True)
        return out.put_id(following.ms, following.seq, True)

    cdef int put_after(self, Output out) except -1:
        cdef EntryId following = self.following()
        out.put_head(c':', self.has_last and not id_less(
            following.ms, following.seq, self.newest.ms, self.newest.seq))
        return out.put_head(c':', self.incarnation)


cdef EntryId prev_of(Stream stream, uint64_t ms, uint64_t seq) noexcept:
    """The ID requested, or the greatest evicted ID if that is higher."""
    if id_less(ms, seq, stream.max_evicted_ms, stream.max_evicted_seq):
        return EntryId(stream.max_evicted_ms, stream.max_evicted_seq)
    return EntryId(ms, seq)


cdef EntryId watermark_of(Stream stream, uint64_t promised_ms) except *:
    """The ID up to which no entry is missing or will be added."""
    cdef EntryId found = EntryId(stream.last_ms, stream.last_seq)
    cdef Held held
    if stream.restrictions & RESERVING:
        held = stream.held
        if held.segments.first < len(held.segments.items):
            # The oldest reservation, or a settled segment that a release without memory has left.
            found = (<Slot>held.segments.items[held.segments.first]).id
            step_down(&found)
    elif promised_ms and stream.restrictions & FOLLOWED and not stream.restrictions & SEALED:
        if id_less(found.ms, found.seq, promised_ms, MAX):
            found = EntryId(promised_ms, MAX)
    return found


cdef bint has_ended(Stream stream, EntryId after) noexcept:
    """True if a stream is sealed, without reservations, and without entries after an ID."""
    return (stream.restrictions & SEALED and not stream.restrictions & RESERVING
            and not stream.has_newer(after))


cdef int put_missing(Output head, uint64_t ms, uint64_t seq, int resp) except -1:
    """The row of a key that has no stream."""
    head.put_id(ms, seq, True)
    head.put_id(ms, seq, True)
    head.put_raw(b"*0\r\n:0\r\n", 8)
    return put_nil(head, resp)


# ---------------------------------------------------------------- promises

cdef uint64_t promise(Context ctx) except? 0xffffffffffffffff:
    """Promise that no entry up to the last millisecond will be added to a followed stream; returns
    the promised millisecond. A promise that cannot be recorded is not made. A replica only repeats
    the recorded promises of its primary."""
    cdef Keyspace keyspace = ctx.keyspace
    if ctx.server.replication.is_replica:
        if keyspace.recorded_promise_ms <= PROMISE_AHEAD_MS:
            return 0
        return keyspace.recorded_promise_ms - PROMISE_AHEAD_MS - 1
    cdef uint64_t wanted = ctx.now_ms - 1 if ctx.now_ms else 0
    if wanted > keyspace.recorded_promise_ms and ctx.write_error is None and (
            keyspace.may_delete and ctx.effects.has_room(EFFECT_BYTES)):
        keyspace.recorded_promise_ms = ctx.now_ms + PROMISE_AHEAD_MS
        ctx.changed_databases(b"CLOCK", keyspace.recorded_promise_ms, count=0)
    keyspace.promised_ms = max(keyspace.promised_ms, min(wanted, keyspace.recorded_promise_ms))
    return keyspace.promised_ms


@effect(b"FOLLOW")
def apply_follow(Keyspace keyspace, int db, list words):
    """FOLLOW key: readers have a promise that no entry up to an ID will be added."""
    cdef Stream stream = stream_at(keyspace, db, words[0])
    stream.restrictions |= FOLLOWED
    keyspace.has_ordering = True


@effect(b"CLOCK", keys=())
def apply_clock(Keyspace keyspace, int db, list words):
    """CLOCK ms: readers of followed streams may have a promise that no entry up to ms will be
    added."""
    keyspace.note_promise(int(words[0]))
