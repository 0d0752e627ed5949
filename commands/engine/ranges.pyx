# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Entries between two IDs as a reply, for TRANGE, TREAD, XRANGE and XREAD.

A handler returns an EntryRange, which is encoded directly from the blocks into the output. The
number of entries is known only afterwards, so the array's length is written at the end. The rest of
a reply of more than SLICE_BYTES is sent in slices: the reply keeps the blocks, which never change,
and encodes them as the client reads.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.replies cimport SLICE_BYTES, Encodable, Sliced
from millstream.encoding cimport ArrayHead, Output, Slice
from millstream.entry_id cimport EntryId, id_less, step_down, step_up
from millstream.ids cimport parse_id
from millstream.storage.blocks.block cimport Block
from millstream.storage.blocks.reply_entries cimport IdText, Selection, encode_backward, encode_forward
from millstream.storage.blocks.layout cimport View, view_of
from millstream.storage.log.log_ranges cimport encode_range, encode_reverse
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.replies import SlicedChain
from millstream.errors import INVALID_ID, SYNTAX, CommandError
from millstream.storage.log.log_ranges import blocks_between

cdef enum:
    # Below this number of entries, the count is not looked up beforehand.
    COUNTED_ENTRIES = 256


cdef int take_start(Args args, EntryId* out, bint dot_allowed) except -1:
    """Take a range's start: `-`, `+`, an ID, `ms` for its first ID, `(id` for the IDs above it."""
    cdef Slice* word = args.take_slice()
    if word.size == 1 and (word.ptr[0] == c'-' or word.ptr[0] == c'+'):
        out.ms = out.seq = 0 if word.ptr[0] == c'-' else MAX
        return 0
    if word.size > 1 and word.ptr[0] == c'(':
        if parse_id(word.ptr + 1, word.size - 1, dot_allowed, 0, out) < 0:
            raise CommandError(INVALID_ID)
        if not step_up(out):
            raise CommandError("ERR invalid start ID for the interval")
        return 0
    if parse_id(word.ptr, word.size, dot_allowed, 0, out) < 0:
        raise CommandError(INVALID_ID)
    return 0


cdef int take_end(Args args, EntryId* out, bint dot_allowed) except -1:
    """Take a range's end: like its start, but `ms` means its last ID and `(id` the IDs below it."""
    cdef Slice* word = args.take_slice()
    if word.size == 1 and (word.ptr[0] == c'-' or word.ptr[0] == c'+'):
        out.ms = out.seq = 0 if word.ptr[0] == c'-' else MAX
        return 0
    if word.size > 1 and word.ptr[0] == c'(':
        if parse_id(word.ptr + 1, word.size - 1, dot_allowed, MAX, out) < 0:
            raise CommandError(INVALID_ID)
        if not step_down(out):
            raise CommandError("ERR invalid end ID for the interval")
        return 0
    if parse_id(word.ptr, word.size, dot_allowed, MAX, out) < 0:
        raise CommandError(INVALID_ID)
    return 0


def take_start_id(Args args not None, bint dot_allowed=False) -> tuple[int, int]:
    """`take_start` for callers in Python: (ms, seq)."""
    cdef EntryId found
    take_start(args, &found, dot_allowed)
    return found.ms, found.seq


def take_end_id(Args args not None, bint dot_allowed=False) -> tuple[int, int]:
    """`take_end` for callers in Python."""
    cdef EntryId found
    take_end(args, &found, dot_allowed)
    return found.ms, found.seq


cdef int take_limit(Args args, uint64_t* limit) except -1:
    """Take the option after a range's two IDs: COUNT n, where a number below 0 is 0."""
    cdef int64_t count
    while args.pos < args.count:
        if not args.next_is(b"COUNT"):
            raise CommandError(SYNTAX)
        count = args.take_int()
        limit[0] = 0 if count < 0 else count
    return 0


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
    made.reverse = False
    made.lead = made.remainder = None
    made.lead_count = 0
    return made


def first_entries(Stream stream not None, limit) -> EntryRange:
    """A stream's first entries, at most `limit` (None: all), for a reply with `ms-seq` IDs.
    """
    return make_range(stream, False, MAX if limit is None else limit)


cdef class EntryRange(Encodable):
    """Up to `limit` entries with start <= ID <= end, after the elements in `lead`, if any. Encode it
    before the stream changes."""

    cdef int encode(self, Output out, int resp) except -1:
        cdef uint64_t most = 0
        cdef ArrayHead head
        cdef EntryId last
        cdef int64_t made = 0
        if self.stream is not None:
            most = min(self.limit, self.stream.length)
        if most > COUNTED_ENTRIES:
            return self.encode_long(out)
        out.begin_array(&head, self.lead_count + most)
        if self.lead is not None:
            out.put(self.lead)
        if most:
            made = self.encode_entries(out, most, head.at + SLICE_BYTES, &last)
            if <uint64_t>made < most and out.size >= head.at + SLICE_BYTES:
                # Few but large entries: encode again, with the count looked up.
                out.size = head.at
                return self.encode_long(out)
        return out.end_array(&head, self.lead_count + made)

    cdef int begin_with(self, Output lead, uint64_t count) except -1:
        """Put `count` elements before the entries."""
        self.lead = lead.take_bytes()
        self.lead_count = count
        return 0

    cdef uint64_t count(self) noexcept:
        return min(self.limit, self.stream.count_between(self.start, self.end))

    cdef int encode_long(self, Output out) except -1:
        """Count first, then encode one slice and keep the blocks of the rest."""
        cdef EntryId last
        cdef uint64_t made
        cdef uint64_t count = self.count()
        out.put_head(c'*', self.lead_count + count)
        if self.lead is not None:
            out.put(self.lead)
        if count == 0:
            return 0
        made = self.encode_entries(out, count, out.size + SLICE_BYTES, &last)
        if made < count:
            self.remainder = self.rest_after(&last, count - made)
        return 0

    cdef int64_t encode_entries(self, Output out, uint64_t limit, Py_ssize_t full_size,
                                EntryId* last) except -1:
        cdef Selection wanted
        wanted.start, wanted.end = self.start, self.end
        wanted.limit, wanted.full_size = limit, full_size
        if self.reverse:
            return encode_reverse(self.stream, out, &wanted, self.dotted, last)
        return encode_range(self.stream, out, &wanted, self.dotted, last)

    cdef Sliced rest_after(self, EntryId* last, uint64_t left):
        """The next `left` entries after this one; from the start on if it is NULL."""
        cdef SlicedRange rest = SlicedRange.__new__(SlicedRange)
        rest.start = self.start
        rest.end = self.end
        if last != NULL and self.reverse:
            rest.end = last[0]
            step_down(&rest.end)
        elif last != NULL:
            rest.start = last[0]
            step_up(&rest.start)
        if id_less(rest.start.ms, rest.start.seq, self.stream.head_ms, self.stream.head_seq):
            rest.start.ms = self.stream.head_ms
            rest.start.seq = self.stream.head_seq
        rest.left = left
        rest.dotted = self.dotted
        rest.reverse = self.reverse
        rest.blocks = blocks_between(self.stream, 
            rest.start.ms, rest.start.seq, rest.end.ms, rest.end.seq)
        if not self.reverse:
            rest.blocks.reverse()
        return rest

    cdef Sliced rest(self):
        return self.remainder


cdef class SlicedRange(Sliced):
    """The rest of a long reply: blocks to be encoded, in reverse order."""

    cdef EntryId start
    cdef EntryId end
    cdef uint64_t left
    cdef bint dotted
    cdef bint reverse
    cdef list blocks

    def next_slice(self) -> bytes:
        cdef Output out = Output()
        cdef View view
        cdef IdText id_text
        cdef Selection wanted
        cdef EntryId last
        cdef uint64_t made
        id_text.size = 0
        id_text.dotted = self.dotted
        wanted.full_size = SLICE_BYTES
        while self.left and self.blocks and out.size < SLICE_BYTES:
            view_of((<Block>self.blocks[len(self.blocks) - 1]).head, &view)
            wanted.start, wanted.end, wanted.limit = self.start, self.end, self.left
            if self.reverse:
                made = encode_backward(out, &view, &wanted, &id_text, &last)
            else:
                made = encode_forward(out, &view, &wanted, &id_text, &last)
            self.left -= made
            if made and self.reverse:
                self.end = last
                step_down(&self.end)
            elif made:
                self.start = last
                step_up(&self.start)
            if out.size < SLICE_BYTES:
                self.blocks.pop()
        return out.take()


# ---------------------------------------------------------------- several ranges in a reply

cdef int sliced_range(list later, EntryRange entries) except -1:
    """Add the head of an array of entries, and the object that sends its entries, to `later`."""
    cdef Output head = Output()
    cdef EntryId last
    cdef uint64_t count = entries.count()
    head.put_head(c'*', count)
    later.append(head.take_bytes())
    # For a few entries of a long stream, only their blocks are kept.
    if entries.stream.nth(
            entries.stream.rank_of(entries.start) + count - 1, &last):
        entries.end = last
    later.append(entries.rest_after(NULL, count))
    return 0


cdef class Parts(Encodable):
    """A reply of bytes and many entries, in order. The rest after the first slice is sent as the
    client reads."""

    cdef int encode(self, Output out, int resp) except -1:
        self.begin(out)
        for part in self.parts:
            if type(part) is not bytes:
                self.put_entries(out, part, resp)
            elif self.later:
                self.later.append(part)
            else:
                out.put(part)
        return 0

    cdef int begin(self, Output out) except -1:
        self.later = []
        self.full_size = out.size + SLICE_BYTES
        return 0

    cdef int put_entries(self, Output out, Encodable entries, int resp) except -1:
        if self.later or out.size >= self.full_size:
            if type(entries) is EntryRange:
                return sliced_range(self.later, entries)
            self.later.append((<object>entries).sliced(resp))
            return 0
        entries.encode(out, resp)
        if entries.rest() is not None:
            self.later.append(entries.rest())
        return 0

    cdef Sliced rest(self):
        return SlicedChain(self.later) if self.later else None


cdef Encodable make_parts(list parts):
    cdef Parts made = Parts.__new__(Parts)
    made.parts = parts
    return made
