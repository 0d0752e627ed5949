# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Replies with the entries that match a filter (WHERE).

The head of a list says how many elements follow, so a search is complete before its reply begins. A
short one is complete at once. A long one keeps the blocks, which never change, and continues for its
share of work in each turn of the loop: other clients are served, and the reply shows the moment of
the call.
The first matches are encoded during the search; those that would take too much memory are counted,
and found again while the client reads.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.engine.search_work cimport SearchShare, renew_work
from millstream.commands.runtime.replies cimport SLICE_BYTES, RowSource, put_map_head
from millstream.encoding cimport Output, put_null_array
from millstream.entry_id cimport EntryId, step_down, step_up
from millstream.storage.blocks.entry_filter cimport EntryFilter
from millstream.storage.log.log_search cimport Search, begin_search, search_blocks, search_log
from millstream.storage.streams.stream cimport Stream

from millstream.storage.log.log_ranges import blocks_between


cdef class SearchReply(RowSource):
    """A reply that is found in slices. `put_rows` writes nothing until the head is known."""

    def __cinit__(self):
        self.ready = b""
        self.share = SearchShare.__new__(SearchShare)

    cdef int keep(self) except -1:
        self.share.set_running(True)
        return self.keep_blocks()

    cdef int keep_blocks(self) except -1:
        raise NotImplementedError

    def prepare(self) -> bool:
        cdef Output out
        if not self.ready and not self.is_complete:
            out = Output()
            self.is_complete = self.put_rows(out, SLICE_BYTES)
            self.ready = out.take()
            if self.is_complete:
                self.share.set_running(False)
        return not self.ready and not self.is_complete

    def next_slice(self) -> bytes:
        while self.prepare():
            renew_work()  # the caller has not prepared it, so it does not wait for a turn
        data, self.ready = self.ready, b""
        return data


cdef FilteredRange make_filtered(Stream stream, EntryFilter filter, bint dotted, EntryId start,
                                 EntryId end, uint64_t limit):
    """The matches between two IDs, at most `limit`; stream may be None."""
    cdef FilteredRange made = FilteredRange.__new__(FilteredRange)
    made.stream = stream
    made.filter = filter
    made.begin(start, end, limit)
    made.search.dotted = dotted
    made.search.full_size = SLICE_BYTES
    return made


cdef class FilteredRange(SearchReply):
    """The matches of one stream, after the elements in `lead`, if any."""

    cdef int begin(self, EntryId start, EntryId end, uint64_t limit) noexcept:
        self.start, self.end = start, end
        return begin_search(&self.search, start, end, limit)

    cdef int begin_with(self, Output lead, uint64_t count) except -1:
        """Put `count` elements before the entries."""
        self.lead = lead.take()
        self.lead_count = count
        return 0

    cdef bint go_on(self, int64_t* work) except -1:
        """Continue the search; True when it is complete."""
        cdef Search* search = &self.search
        if self.is_searched:
            return True
        if work[0] <= 0:
            return False
        if self.matches is None:
            self.matches = Output()
        search.work = work[0]
        if self.blocks is not None:
            self.left = search_blocks(self.blocks, self.left, self.filter, search, self.matches)
            self.is_searched = self.left == 0
            if search.encoded == search.found:
                del self.blocks[self.left:]  # they are not needed again
        else:
            self.is_searched = self.stream is None or search_log(
                self.stream, self.filter, search, self.matches)
        work[0] = search.work
        if self.is_searched:
            self.left = 0 if self.blocks is None else len(self.blocks)
        return self.is_searched

    cdef int keep_blocks(self) except -1:
        """Keep the blocks with what is not encoded yet."""
        cdef EntryId start = self.search.start
        cdef EntryId end = self.search.end
        if self.stream is None or (
                self.is_searched and self.search.encoded == self.search.found):
            self.stream = None
            self.blocks = []
            return 0
        if self.search.encoded < self.search.found:
            self.find_rest(&start, &end)
        self.stream.skip_hidden(&start)
        self.blocks = blocks_between(self.stream, start.ms, start.seq, end.ms, end.seq)
        if not self.search.reverse:
            self.blocks.reverse()
        self.left = len(self.blocks)
        self.stream = None
        return 0

    cdef int find_rest(self, EntryId* start, EntryId* end) noexcept:
        """From where to where the matches are that were only counted."""
        start[0], end[0] = self.start, self.end
        if self.search.encoded and self.search.reverse:
            end[0] = self.search.last_encoded
            step_down(end)
        elif self.search.encoded:
            start[0] = self.search.last_encoded
            step_up(start)
        return 0

    cdef int put_before(self, Output out) except -1:
        """Write what precedes the array; nothing by default."""
        return 0

    cdef int put_after(self, Output out) except -1:
        """Write what follows the array; nothing by default."""
        return 0

    cdef int put_head(self, Output out) except -1:
        self.put_before(out)
        out.put_head(c'*', self.lead_count + self.search.found)
        if self.lead is not None:
            out.put(self.lead)
        if self.matches is not None:
            out.put_raw(self.matches.buf, self.matches.size)
            self.matches = None
        return 0

    cdef bint put_rows(self, Output out, Py_ssize_t full_size) except -1:
        cdef int64_t work = self.share.begin()
        cdef bint is_complete = self.go_on(&work)
        self.share.end(work)
        if not is_complete:
            return False
        if self.when_none is not None and self.search.found == 0:
            out.put(self.when_none)
            return True
        return self.put_matches(out, full_size)

    cdef bint put_matches(self, Output out, Py_ssize_t full_size) except -1:
        """Write the array of a complete search; True when all is written."""
        if not self.has_head:
            self.has_head = True
            self.put_head(out)
            self.again = self.search
            self.again.limit = self.search.found - self.search.encoded
            self.again.found = 0
            self.again.stops_when_full = True
            self.find_rest(&self.again.start, &self.again.end)
            if self.again.limit:
                return False  # this is a slice
        if self.again.found < self.again.limit:
            if self.blocks is None:
                return False  # they are kept next
            self.again.work = self.share.begin()
            if self.again.work <= 0:
                return False
            self.again.full_size = full_size
            self.left = search_blocks(self.blocks, self.left, self.filter, &self.again, out)
            self.share.end(self.again.work)
            del self.blocks[self.left:]
            if self.again.found < self.again.limit:
                return False
        self.put_after(out)
        return True


cdef FilteredStreams make_filtered_streams(uint64_t most, Py_ssize_t size_bytes):
    """XREAD's reply with at most `most` matches in total and, unless size_bytes is 0, none after so
    many bytes."""
    cdef FilteredStreams made = FilteredStreams.__new__(FilteredStreams)
    made.keys = []
    made.ranges = []
    made.left = most
    made.size_bytes = size_bytes
    return made


cdef class FilteredStreams(SearchReply):
    """XREAD's reply: the streams with matches, each with its key; null without any."""

    cdef int set_space(self, FilteredRange part) except -1:
        """Set how much of the next stream is looked for, and encoded during the search."""
        cdef Search* search = &part.search
        search.limit = min(search.limit, self.left)
        if self.size_bytes:
            # As `PlainRead.limited` counts: the heads before the first entry, and at least one entry.
            search.full_size = max(self.size_bytes - self.made_bytes - self.before_size(self.at),
                                   <Py_ssize_t>1)
            search.stops_when_full = True
        else:
            search.full_size = max(SLICE_BYTES - self.made_bytes, <Py_ssize_t>0)
        return 0

    cdef Py_ssize_t before_size(self, Py_ssize_t at) except -1:
        """The size of a stream's elements before its entries, with heads of 4 bytes; of the first
        one, with that of the reply."""
        cdef Output out = Output()
        put_key(out, <bytes>self.keys[at], self.resp)
        return out.size + 4 + (4 if self.made_bytes == 0 else 0)

    cdef bint search_all(self) except -1:
        """Continue the search in one stream after the other; True when it is complete."""
        cdef int64_t work = self.share.begin()
        cdef bint is_complete = self.go_on(&work)
        self.share.end(work)
        return is_complete

    cdef bint go_on(self, int64_t* work) except -1:
        cdef FilteredRange part
        while self.at < len(self.ranges):
            part = self.ranges[self.at]
            if work[0] <= 0:
                return False
            if part.matches is None:
                self.set_space(part)
            if not part.go_on(work):
                if not (part.search.stops_when_full and part.search.found
                        and part.matches.size >= part.search.full_size):
                    return False
                part.is_searched = True
            if part.search.found:
                self.made_bytes += part.matches.size
                if self.size_bytes:
                    self.made_bytes += self.before_size(self.at) + head_size(part.search.found) - 4
            if self.left != MAX:
                self.left -= part.search.found
            self.at += 1
            if self.left == 0 or (self.size_bytes and self.made_bytes >= self.size_bytes):
                del self.keys[self.at:], self.ranges[self.at:]
        return True

    cdef int put_head(self, Output out) except -1:
        cdef FilteredRange part
        cdef list found = []
        cdef list keys = []
        for key, part in zip(self.keys, self.ranges):
            if part.search.found:
                keys.append(key)
                found.append(part)
        self.keys, self.ranges = keys, found
        self.at = 0
        if not found:
            return put_null_array(out, self.resp)
        if self.resp == 3:
            return put_map_head(out, 3, len(found))
        return out.put_head(c'*', len(found))

    cdef bint put_rows(self, Output out, Py_ssize_t full_size) except -1:
        cdef FilteredRange part
        if not self.has_head:
            if not self.search_all():
                return False
            self.has_head = True
            self.put_head(out)
        while self.at < len(self.ranges):
            if out.size >= full_size:
                return False
            part = self.ranges[self.at]
            if not part.has_head:
                put_key(out, <bytes>self.keys[self.at], self.resp)
            if not part.put_matches(out, full_size):
                return False
            self.at += 1
        return True

    cdef int keep_blocks(self) except -1:
        cdef FilteredRange part
        for part in self.ranges:
            part.keep_blocks()
        return 0


cdef Py_ssize_t head_size(uint64_t number) except -1:
    """The size of an array's head."""
    cdef Output out = Output()
    out.put_head(c'*', number)
    return out.size


cdef int put_key(Output out, bytes key, int resp) except -1:
    """Write the elements before a stream's entries in XREAD's reply."""
    if resp != 3:
        out.put_raw(b"*2\r\n", 4)
    return out.put_bulk_bytes(key)
