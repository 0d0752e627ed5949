# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TPEEK: entries as soon as their own writer has settled everything before them.

TPEEK returns entries before they are visible to TREAD: open reservations of other writers do not
delay them. Therefore entries are not returned in ID order, and an ID alone is not a position to
continue from. The token has an ID, and the IDs up to it that are still missing (open reservations,
and entries that wait for a reservation of their own writer). It has no writers.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t
from libc.string cimport memchr

from millstream.commands.engine.lifecycle cimport live_held
from millstream.commands.engine.ranges cimport EntryRange, has_gap
from millstream.commands.runtime.arguments cimport Args, take_timeout_ms
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport SLICE_BYTES, BlockedRead, make_raw
from millstream.commands.runtime.stream_effects cimport Ids
from millstream.encoding cimport Output, Slice, put_nil
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.ids cimport format_id, parse_id
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.blocks.reply_entries cimport IdText, Selection, encode_entry
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.log.log_ranges cimport encode_range
from millstream.storage.reservations.held cimport Held, handed_out
from millstream.storage.reservations.held_segment_list cimport SegmentList
from millstream.storage.reservations.held_segments cimport Run, Slot, Writer, list_of_words
from millstream.storage.streams.stream cimport RESERVING, Stream

from millstream.commands.runtime.replies import Wait
from millstream.commands.table.registry import command
from millstream.errors import NOT_INTEGER, SYNTAX, WRONG_TYPE, CommandError

cdef enum:
    # The maximum of missing IDs in a token: a reader with more waits until some have been settled.
    TO_COME_MAX = 20000
    # The maximum length of a token: IDs of 41 bytes and a comma each.
    TOKEN_BYTES_MAX = 1048576

INVALID_TOKEN = "ERR invalid token"


@command(
    "TPEEK key token count [BLOCK milliseconds]", "readonly blocking",
    complexity="O(log n) to find the start and O(m) for the m entries answered and held",
)
def tpeek(Context ctx not None, Args args not None):
    """Reads entries as soon as their own writers have settled everything before them.

    The reply is the token for the next call, and the entries. The first token is an ID (entries
    above it), or an empty string or `$` (entries that become available from now on).
    """
    cdef PeekRead read = PeekRead.__new__(PeekRead)
    cdef Stream stream
    cdef int64_t count
    cdef int64_t timeout_ms = -1
    key = ctx.db.key_of(&args.items[1])
    read.db_index = ctx.db.index
    read.keys = [(read.db_index, key)]
    args.pos = 2
    from_now = read.take_token(args)
    count = args.take_int()
    if count < 0:
        raise CommandError(NOT_INTEGER)
    read.limit = <uint64_t>count
    while args.pos < args.count:
        if not args.next_is(b"BLOCK"):
            raise CommandError(SYNTAX)
        timeout_ms = take_timeout_ms(args)
    stream = ctx.read_for_update_at(&args.items[1])
    if stream is not None:
        live_held(ctx, key, stream)
    if from_now:
        read.begin_now(stream)
    reply = read.reply(ctx, stream, timeout_ms >= 0 and count > 0)
    if reply is None:
        return Wait(read, ctx.steady_ms + timeout_ms if timeout_ms else 0)
    return reply


cdef const char* take_token_id(const char* at, const char* end, char sign, EntryId* out) except? NULL:
    """Read an ID of a token up to a sign; return the position after it, NULL at the end of the
    token."""
    cdef const char* stop = <const char*>memchr(at, sign, end - at)
    if parse_id(at, (end if stop == NULL else stop) - at, True, 0, out) < 0:
        raise CommandError(INVALID_TOKEN)
    return NULL if stop == NULL else stop + 1


cdef int put_token_id(Output out, const EntryId* entry_id) except -1:
    out.size += format_id(out.reserve(48), entry_id.ms, entry_id.seq, True)
    return 0


cdef class PeekRead(BlockedRead):
    """A TPEEK: its key, its maximum of entries, and its token: the ID up to which it has read, and
    the missing IDs up to that ID."""

    cdef int db_index
    cdef uint64_t limit
    cdef EntryId after
    cdef Ids to_come

    # ------------------------------------------------------------ the token

    cdef bint take_token(self, Args args) except -1:
        """Take the token; True for one that begins now."""
        cdef Slice* word = args.take_slice()
        cdef const char* at = word.ptr
        cdef const char* end = at + word.size
        cdef EntryId before
        cdef EntryId found
        self.to_come = Ids.__new__(Ids)
        if word.size == 0 or (word.size == 1 and word.ptr[0] == c'$'):
            return True
        if word.size > TOKEN_BYTES_MAX:
            raise CommandError(INVALID_TOKEN)
        at = take_token_id(at, end, c'~', &self.after)
        while at != NULL:
            at = take_token_id(at, end, c',', &found)
            if self.to_come.count >= TO_COME_MAX or self.to_come.count and not id_less(
                    before.ms, before.seq, found.ms, found.seq):
                raise CommandError(INVALID_TOKEN)
            self.to_come.add(found.ms, found.seq)
            before = found
        if self.to_come.count and id_less(self.after.ms, self.after.seq, before.ms, before.seq):
            raise CommandError(INVALID_TOKEN)
        return False

    cdef bytes token(self):
        """The token as text."""
        cdef Output out = Output()
        cdef Py_ssize_t i
        put_token_id(out, &self.after)
        for i in range(self.to_come.count):
            out.put_raw(b"," if i else b"~", 1)
            put_token_id(out, &self.to_come.items[i])
        return out.take()

    cdef int begin_now(self, Stream stream) except -1:
        """Skip everything that can be returned now."""
        cdef Peek peek
        self.after.ms = self.after.seq = 0
        if stream is None:
            return 0
        self.after.ms = stream.last_ms
        self.after.seq = stream.last_seq
        if stream.held is None:
            return 0
        peek = Peek.__new__(Peek)
        peek.begin(self, stream)
        peek.limit = MAX
        peek.discards = True
        peek.read_held()
        self.after = peek.after
        self.to_come = peek.to_come
        return 0

    # ------------------------------------------------------------ reading

    cdef reply(self, Context ctx, Stream stream, bint waits):
        """The reply; None if it would be empty and the reader waits."""
        if stream is None:
            return None if waits else [self.token(), []]
        if self.limit == 0:
            return [self.token(), []]
        if not self.to_come.count and not stream.restrictions & RESERVING:
            return self.plain_reply(ctx, stream, waits)
        return self.held_reply(ctx, stream, waits)

    cdef plain_reply(self, Context ctx, Stream stream, bint waits):
        """The reply if there are no held entries and no missing IDs: entries after an ID, as for
        TREAD."""
        cdef PlainPeek entries
        cdef EntryId start = self.after
        cdef uint64_t before, count
        cdef Output lead
        cdef bint gap = has_gap(stream, self.after)
        if not stream.has_newer(self.after):
            if waits:
                return None
            if id_less(self.after.ms, self.after.seq, stream.last_ms, stream.last_seq):
                self.after = EntryId(stream.last_ms, stream.last_seq)
            return [self.token(), [None] if gap else []]
        step_up(&start)
        before = stream.rank_of(start)
        count = stream.length - before
        self.after = EntryId(stream.last_ms, stream.last_seq)
        if count > self.limit:
            count = self.limit
            stream.nth(before + count - 1, &self.after)
        entries = PlainPeek.__new__(PlainPeek)
        entries.stream = stream
        entries.dotted = True
        entries.limit = count
        entries.start = start
        entries.end = EntryId(MAX, MAX)
        if gap:
            lead = Output()
            put_nil(lead, ctx.session.resp)
            entries.begin_with(lead, 1)
        entries.token = self.after
        return entries

    cdef held_reply(self, Context ctx, Stream stream, bint waits):
        """The reply with formerly missing entries, entries of the log and held entries, in this
        order."""
        cdef Peek peek = Peek.__new__(Peek)
        cdef Output out = Output()
        cdef bint gap = has_gap(stream, self.after)
        peek.begin(self, stream)
        gap = peek.read_to_come() or gap
        peek.read_log()
        peek.read_held()
        if peek.count == 0 and waits:
            return None
        self.after = peek.after
        self.to_come = peek.to_come
        out.put_raw(b"*2\r\n", 4)
        out.put_bulk_bytes(self.token())
        out.put_head(c'*', peek.count + gap)
        if gap:
            put_nil(out, ctx.session.resp)
        out.put(peek.out.take())
        return make_raw(out.take())

    def attempt(self, Context ctx not None):
        value = ctx.db.get((<tuple>self.keys[0])[1])
        if value is None:
            return None
        if not isinstance(value, Stream):
            raise CommandError(WRONG_TYPE)
        return self.reply(ctx, value, True)

    def timeout_reply(self, Context ctx not None):
        return [self.token(), []]


cdef class PlainPeek(EntryRange):
    """A token that is an ID, and entries."""

    cdef EntryId token

    cdef int put_before(self, Output out, int resp) except -1:
        out.put_raw(b"*2\r\n", 4)
        return out.put_id(self.token.ms, self.token.seq, True)


cdef class Peek:
    """One read: the entries found, and the new token. It ends when it has enough entries, a slice
    of bytes, or the maximum of missing IDs."""

    cdef Stream stream
    cdef Held held
    cdef uint64_t limit
    cdef bint discards  # entries are skipped
    cdef Output out
    cdef uint64_t count
    cdef EntryId after
    cdef Ids waited
    cdef Ids to_come
    cdef bint full

    cdef int begin(self, PeekRead read, Stream stream) except -1:
        self.stream = stream
        self.held = stream.held
        self.limit = read.limit
        self.out = Output()
        self.after = read.after
        self.waited = read.to_come
        self.to_come = Ids.__new__(Ids)
        return 0

    cdef bint is_full(self) noexcept:
        self.full = self.full or self.count >= self.limit or self.out.size >= SLICE_BYTES or (
            self.to_come.count >= TO_COME_MAX)
        return self.full

    # ------------------------------------------------------------ formerly missing entries

    cdef bint read_to_come(self) except -1:
        """Return the entries with missing IDs that can be returned now. True if one may have been
        evicted.
        """
        cdef EntryId at
        cdef Py_ssize_t i
        cdef bint gap = False
        for i in range(self.waited.count):
            if self.is_full():
                self.to_come.add(self.waited.items[i].ms, self.waited.items[i].seq)
            else:
                at = self.waited.items[i]
                gap = self.read_one(&at) or gap
        return gap

    cdef bint read_one(self, EntryId* at) except -1:
        """Read a missing ID; True if its entry may have been evicted. An ID that is neither
        reserved nor an entry was settled without an entry."""
        cdef View view
        cdef Entry entry
        cdef Slot segment = self.segment_at(at)
        if segment is not None:
            if segment.is_open or not self.may_be_seen(segment, at):
                self.to_come.add(at.ms, at.seq)
            elif type(segment) is Run:
                if (<Run>segment).entries.find(at[0], &view, &entry):
                    self.put_entry(&view, &entry)
            elif segment.words is not None:
                self.put_held(segment)
            return False
        if self.stream.find(at[0], &view, &entry):
            self.put_entry(&view, &entry)
            return False
        return not id_less(self.stream.max_evicted_ms, self.stream.max_evicted_seq, at.ms, at.seq)

    cdef Slot segment_at(self, EntryId* at):
        """The segment with an ID above the position; None for an ID up to the position, and for one
        that was given up and removed from the list."""
        cdef View view
        cdef Entry entry
        cdef Py_ssize_t index
        cdef Slot segment
        if self.held is None or not id_less(self.stream.last_ms, self.stream.last_seq, at.ms, at.seq):
            return None
        index = self.held.segments.index_of(at)
        if index < self.held.segments.first:
            return None
        segment = <Slot>self.held.segments.items[index]
        if segment.id.ms == at.ms and segment.id.seq == at.seq or type(segment) is Run and (
                (<Run>segment).entries.find(at[0], &view, &entry)):
            return segment
        return None

    cdef bint may_be_seen(self, Slot segment, EntryId* at) except -1:
        """True if no reservation of its own writer is open below a held entry."""
        cdef Writer writer = segment.writer if segment.words is not None else None
        cdef Run run
        if type(segment) is Run:
            run = <Run>segment
            if run.writers is not None:
                writer = run.writers[run.entries.rank_of(at[0])]
        return writer is None or not writer.is_open_below(at)

    # ------------------------------------------------------------ the log

    cdef int read_log(self) except -1:
        """Read entries up to the position."""
        cdef Stream stream = self.stream
        cdef EntryId start = self.after
        cdef Selection wanted
        cdef EntryId last
        cdef int64_t made
        if self.is_full() or not id_less(
                start.ms, start.seq, stream.last_ms, stream.last_seq):
            return 0
        step_up(&start)
        wanted.start, wanted.end = start, EntryId(MAX, MAX)
        wanted.limit, wanted.full_size = self.limit - self.count, SLICE_BYTES
        made = encode_range(stream, self.out, &wanted, True, &last)
        self.count += <uint64_t>made
        if made:
            self.after = last
        if not (made and stream.has_newer(last)):
            self.after = EntryId(stream.last_ms, stream.last_seq)
        else:
            self.full = True
        return 0

    # ------------------------------------------------------------ held entries

    cdef int read_held(self) except -1:
        """Read the entries above the position that were not read before."""
        cdef SegmentList segments
        cdef Py_ssize_t index
        cdef Slot segment
        if self.held is None or self.is_full():
            return 0
        segments = self.held.segments
        index = max(segments.first, segments.index_of(&self.after))
        while index < len(segments.items) and not self.is_full():
            segment = <Slot>segments.items[index]
            if type(segment) is Run:
                self.read_run(<Run>segment)
            elif id_less(self.after.ms, self.after.seq, segment.id.ms, segment.id.seq):
                self.read_segment(segment)
            index += 1
        if not self.is_full():
            self.after = later_of(self.after, handed_out(self.stream))
        return 0

    cdef int read_segment(self, Slot segment) except -1:
        """Read a reservation or a held entry above `after`."""
        self.after = segment.id
        if segment.words is not None and self.may_be_seen(segment, &segment.id):
            self.put_held(segment)
        elif segment.words is not None or segment.is_open:
            self.to_come.add(segment.id.ms, segment.id.seq)
        return 0

    cdef int read_run(self, Run run) except -1:
        """Read the entries of a run above `after`."""
        cdef Walk walk
        cdef EntryId at = self.after
        cdef EntryId start = self.after
        cdef uint64_t rank
        if not id_less(at.ms, at.seq, run.entries.last_ms, run.entries.last_seq):
            return 0
        step_up(&start)
        rank = run.entries.rank_of(start)
        if self.discards:
            return self.pass_run(run, rank)
        run.entries.walk_start(&walk, start)
        while not self.is_full() and run.entries.walk_next(&walk):
            at.ms = walk.cursor.entry.ms
            at.seq = walk.cursor.entry.seq
            self.after = at
            if run.writers is None or run.writers[rank] is None or not (
                    <Writer>run.writers[rank]).is_open_below(&at):
                self.put_entry(&walk.view, &walk.cursor.entry)
            else:
                self.to_come.add(at.ms, at.seq)
            rank += 1
        return 0

    cdef int pass_run(self, Run run, uint64_t rank) except -1:
        """Skip the entries of a run from a rank on. There may be millions; only those that wait for
        a reservation of their own writer are looked up."""
        cdef Writer writer
        cdef EntryId at
        for rank in range(rank, 0 if run.writers is None else <uint64_t>len(run.writers)):
            writer = <Writer>run.writers[<Py_ssize_t>rank]
            if writer is None or writer.oldest == NULL:
                continue
            run.entries.nth(rank, &at)
            if writer.is_open_below(&at):
                self.to_come.add(at.ms, at.seq)
                self.after = at
                if self.is_full():
                    return 0
        self.after = EntryId(run.entries.last_ms, run.entries.last_seq)
        return 0

    # ------------------------------------------------------------ entries

    cdef int put_entry(self, const View* view, const Entry* entry) except -1:
        cdef IdText id_text
        if self.discards:
            return 0
        id_text.size = 0
        id_text.dotted = True
        encode_entry(self.out, view, entry, &id_text)
        self.count += 1
        return 0

    cdef int put_held(self, Slot entry) except -1:
        if self.discards:
            return 0
        words = list_of_words(entry.words)
        self.out.put_head(c'*', 1 + len(words))
        self.out.put_id(entry.id.ms, entry.id.seq, True)
        for word in words:
            self.out.put_bulk_bytes(word)
        self.count += 1
        return 0


cdef EntryId later_of(EntryId one, EntryId other) noexcept:
    return other if id_less(one.ms, one.seq, other.ms, other.seq) else one
