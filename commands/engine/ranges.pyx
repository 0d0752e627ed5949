# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Entries between two IDs as a reply, for TRANGE, TREAD, XRANGE and XREAD.

A handler returns an EntryRange, which is encoded directly from the blocks into the output. The
number of entries is known only afterwards, so the array's length is written at the end. A reply of
more than SLICE_BYTES counts them first, and the rest is sent in slices: the reply keeps the blocks,
which never change, and encodes them as the client reads.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.engine.searching cimport FilteredRange, make_filtered
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.replies cimport SLICE_BYTES, RowSource
from millstream.encoding cimport ArrayHead, Output, Slice
from millstream.entry_id cimport EntryId, id_less, step_down, step_up
from millstream.ids cimport parse_id
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.blocks.reply_entries cimport Selection
from millstream.storage.log.log_ranges cimport encode_blocks, encode_range, encode_reverse
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.conditions import take_filter
from millstream.errors import INVALID_ID, SYNTAX, CommandError
from millstream.storage.log.log_ranges import blocks_between

cdef enum:
    # Below this number of entries, the count is not looked up beforehand.
    COUNTED_ENTRIES = 256


cdef int take_bound(Args args, EntryId* out, bint is_end, bint dot_allowed) except -1:
    """Take a range's start or end: `-`, `+`, an ID, `ms` for its first or its last ID, `(id` for the
    IDs above the start or below the end."""
    cdef Slice* word = args.take_slice()
    cdef uint64_t seq = MAX if is_end else 0
    cdef bint beyond
    if word.size == 1 and (word.ptr[0] == c'-' or word.ptr[0] == c'+'):
        out.ms = out.seq = 0 if word.ptr[0] == c'-' else MAX
        return 0
    beyond = word.size > 1 and word.ptr[0] == c'('
    if parse_id(word.ptr + beyond, word.size - beyond, dot_allowed, seq, out) < 0:
        raise CommandError(INVALID_ID)
    if beyond and not (step_down(out) if is_end else step_up(out)):
        raise CommandError(f"ERR invalid {'end' if is_end else 'start'} ID for the interval")
    return 0


def take_bounds(Args args not None, bint dot_allowed) -> tuple[tuple[int, int], tuple[int, int]]:
    """A range's start and end for callers in Python, (ms, seq) each."""
    cdef EntryId start, end
    take_bound(args, &start, False, dot_allowed)
    take_bound(args, &end, True, dot_allowed)
    return (start.ms, start.seq), (end.ms, end.seq)


cdef EntryFilter take_options(Args args, uint64_t* limit):
    """Take the options after a range's two IDs: COUNT n, where a number below 0 is 0, and WHERE,
    whose filter is returned; None without it."""
    cdef int64_t count
    cdef EntryFilter filter = None
    while args.pos < args.count:
        if args.next_is(b"COUNT"):
            count = args.take_int()
            limit[0] = 0 if count < 0 else count
        elif args.next_is(b"WHERE"):
            filter = take_filter(args)
        else:
            raise CommandError(SYNTAX)
    return filter


cdef FilteredRange filtered(EntryRange all_entries, EntryFilter filter):
    """The entries of a range that match a filter."""
    cdef FilteredRange made = make_filtered(
        all_entries.stream, filter, all_entries.dotted, all_entries.start, all_entries.end,
        all_entries.limit)
    made.search.reverse = all_entries.reverse
    return made


cdef bint has_gap(Stream stream, EntryId after) noexcept:
    """True if entries after this ID were evicted; a reader that begins at 0 has no gap."""
    return (after.ms or after.seq) and id_less(
        after.ms, after.seq, stream.max_evicted_ms, stream.max_evicted_seq)


cdef EntryRange make_range(Stream stream, bint dotted, uint64_t limit):
    """A range over all entries, which the caller narrows; stream may be None."""
    cdef EntryRange made = EntryRange.__new__(EntryRange)
    made.stream = stream
    made.dotted = dotted
    made.limit = limit
    made.start.ms = made.start.seq = 0
    made.end.ms = made.end.seq = MAX
    return made


def first_entries(Stream stream not None, limit) -> EntryRange:
    """A stream's first entries, at most `limit` (None: all), for a reply with `ms-seq` IDs.
    """
    return make_range(stream, False, MAX if limit is None else limit)


cdef class EntryRange(RowSource):
    """Up to `limit` entries with start <= ID <= end, after the elements in `lead`, if any. Encode it
    before the stream changes."""

    cdef int encode(self, Output out, int resp) except -1:
        cdef uint64_t most = 0
        cdef ArrayHead head
        cdef EntryId last
        cdef int64_t made = 0
        cdef Py_ssize_t start = out.size
        if self.stream is not None:
            most = min(self.limit, self.stream.length)
        if most > COUNTED_ENTRIES:
            return RowSource.encode(self, out, resp)
        self.put_before(out, resp)
        out.begin_array(&head, self.lead_count + most)
        if self.lead is not None:
            out.put(self.lead)
        if most:
            made = self.encode_entries(out, most, head.at + SLICE_BYTES, &last)
            if <uint64_t>made < most and out.size >= head.at + SLICE_BYTES:
                # Few but large entries: encode again, with the count looked up.
                out.size = start
                return RowSource.encode(self, out, resp)
        return out.end_array(&head, self.lead_count + made)

    cdef int put_before(self, Output out, int resp) except -1:
        """Write what precedes the array; nothing by default."""
        return 0

    cdef int begin_with(self, Output lead, uint64_t count) except -1:
        """Put `count` elements before the entries."""
        self.lead = lead.take()
        self.lead_count = count
        return 0

    cdef uint64_t count(self) noexcept:
        return min(self.limit, self.stream.count_between(self.start, self.end))

    cdef bint put_rows(self, Output out, Py_ssize_t full_size) except -1:
        cdef EntryId last
        cdef uint64_t made
        if not self.has_head:
            self.has_head = True
            if self.blocks is None:
                self.limit = self.count()
            self.put_before(out, self.resp)
            out.put_head(c'*', self.lead_count + self.limit)
            if self.lead is not None:
                out.put(self.lead)
        made = self.encode_entries(out, self.limit, full_size, &last)
        self.limit -= made
        if made and self.reverse:
            self.end = last
            step_down(&self.end)
        elif made:
            self.start = last
            step_up(&self.start)
        return self.limit == 0

    cdef int64_t encode_entries(self, Output out, uint64_t limit, Py_ssize_t full_size,
                                EntryId* last) except -1:
        cdef Selection wanted
        wanted.start, wanted.end = self.start, self.end
        wanted.limit, wanted.full_size = limit, full_size
        if self.blocks is not None:
            return encode_blocks(self.blocks, out, &wanted, self.dotted, self.reverse, last)
        if self.reverse:
            return encode_reverse(self.stream, out, &wanted, self.dotted, last)
        return encode_range(self.stream, out, &wanted, self.dotted, last)

    cdef int keep(self) except -1:
        """Keep the blocks with the entries, and no others of a long stream."""
        cdef Stream stream = self.stream
        cdef uint64_t rank = stream.rank_of(self.start)
        cdef uint64_t found = stream.count_between(self.start, self.end)
        self.limit = min(self.limit, found)
        if self.limit == 0:
            self.blocks = []
            return 0
        if self.reverse:
            stream.nth(rank + found - self.limit, &self.start)
        else:
            stream.nth(rank, &self.start)
            stream.nth(rank + self.limit - 1, &self.end)
        self.blocks = blocks_between(
            stream, self.start.ms, self.start.seq, self.end.ms, self.end.seq)
        if not self.reverse:
            self.blocks.reverse()
        self.stream = None
        return 0
