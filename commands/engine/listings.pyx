# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Replies that list the groups of a stream or the consumers of a group: XINFO, and XPENDING's summary.

A reply shows one moment, and there may be some hundred thousand of each. So what is shown is copied
into rows when it is asked for, a few milliseconds' work for 300,000 consumers; sorting by name and
looking through the pending entries is done in turns, and the reply goes out in slices. Short lists
are encoded at once. Decision 030 has the figures.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.group_lag cimport ends_of, find_lag
from millstream.commands.runtime.replies cimport SLICE_BYTES, Encodable, Sliced
from millstream.encoding cimport Output, put_nil
from millstream.storage.streams.group cimport Chunk, Consumer, Group, Pending, deliveries_of
from millstream.storage.streams.shared_groups cimport (
    GroupParts, GroupRow, MemberRow, SharedMembers, shared_groups, shared_members,
)
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.references import settle_groups
from millstream.commands.runtime.replies import NULL_ARRAY
from millstream.storage.dump.primitives import ahead_ms, shifted_ms

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    # Names compared, or records looked at, in one turn: about a millisecond's work.
    LOOKS = 20000
    # Rows of a list that is encoded at once, and records looked through for it.
    SHORT = 200
    SHORT_RECORDS = 5000
    # What it costs to begin with a group, in looks.
    GROUP_LOOKS = 20


# ---------------------------------------------------------------- order

cdef NameOrder order_of(list names):
    """Of those that are not None."""
    cdef NameOrder made = NameOrder.__new__(NameOrder)
    cdef size_t i
    made.names = names
    made.places = <uint32_t*>malloc((len(names) + 1) * sizeof(uint32_t))
    made.spare = <uint32_t*>malloc((len(names) + 1) * sizeof(uint32_t))
    if made.places == NULL or made.spare == NULL:
        raise MemoryError("no memory to sort names")
    for i in range(<size_t>len(names)):
        if names[i] is not None:
            made.places[made.count] = i
            made.count += 1
    made.width = 1
    made.next_runs()
    return made


cdef class NameOrder:
    """A merge sort that can stop anywhere; names in order already take a look at each."""

    def __dealloc__(self):
        free(self.places)
        free(self.spare)

    cdef inline bint is_after(self, uint32_t a, uint32_t b) noexcept:
        cdef bytes left = <bytes>self.names[a]
        cdef bytes right = <bytes>self.names[b]
        cdef Py_ssize_t left_size = PyBytes_GET_SIZE(left)
        cdef Py_ssize_t right_size = PyBytes_GET_SIZE(right)
        cdef int order = memcmp(PyBytes_AS_STRING(left), PyBytes_AS_STRING(right),
                                min(left_size, right_size))
        return order > 0 or (order == 0 and left_size > right_size)

    cdef bint next_runs(self) noexcept:
        """Turn to the two runs from `left` on."""
        self.middle = min(self.left + self.width, self.count)
        self.right = min(self.middle + self.width, self.count)
        self.first = self.filled = self.left
        self.second = self.middle
        return True

    cdef bint step(self, int64_t* looks) noexcept:
        """Sort for about `looks` steps; False when everything is in order."""
        cdef uint32_t* places
        while self.width < self.count and looks[0] > 0:
            if self.filled == self.right:
                self.left = self.right
                if self.left == self.count:
                    places = self.places
                    self.places = self.spare
                    self.spare = places
                    self.width *= 2
                    self.left = 0
                self.next_runs()
                continue
            looks[0] -= 1
            if self.filled == self.left and (self.middle == self.right or not self.is_after(
                    self.places[self.middle - 1], self.places[self.middle])):
                memcpy(&self.spare[self.left], &self.places[self.left],
                       (self.right - self.left) * sizeof(uint32_t))
                self.filled = self.right
                continue
            if self.second == self.right or (self.first < self.middle and not self.is_after(
                    self.places[self.first], self.places[self.second])):
                self.spare[self.filled] = self.places[self.first]
                self.first += 1
            else:
                self.spare[self.filled] = self.places[self.second]
                self.second += 1
            self.filled += 1
        return self.width < self.count


# ---------------------------------------------------------------- a list as a reply

cdef class SlicedListing(Sliced):
    """A list that is made ready in turns and then sent in slices."""

    cdef bint is_short(self) noexcept:
        """Whether it is quick to make all of it."""
        return False

    cdef int fill(self, Output out, Py_ssize_t full_size) except -1:
        """Encode what comes next, until `out` is full or nothing is left."""
        raise NotImplementedError

    def next_slice(self) -> bytes:
        cdef Output out = Output()
        self.fill(out, SLICE_BYTES)
        return out.take()


cdef class Listing(Encodable):
    """The reply that a SlicedListing makes."""

    cdef int encode(self, Output out, int resp) except -1:
        if self.head is not None:
            out.put(self.head)
        self.listing.resp = resp
        if self.listing.is_short():
            while self.listing.prepare():
                pass
            return self.listing.fill(out, PY_SSIZE_T_MAX)
        self.remainder = self.listing
        return 0

    cdef Sliced rest(self):
        return self.remainder


cdef Listing listing_of(SlicedListing listing):
    cdef Listing made = Listing.__new__(Listing)
    made.listing = listing
    return made


cdef int put_map(Output out, int resp, uint64_t pairs) except -1:
    return out.put_head(c'%' if resp == 3 else c'*', pairs if resp == 3 else 2 * pairs)


cdef int put_number(Output out, int64_t number) except -1:
    if number >= 0:
        return out.put_head(c':', number)
    return out.put(b":%d\r\n" % number)


# ---------------------------------------------------------------- consumers

def consumers_reply(Context ctx not None, Group group not None) -> Listing:
    """XINFO CONSUMERS: a map for each consumer, by name."""
    cdef SlicedConsumers made = SlicedConsumers.__new__(SlicedConsumers)
    made.members = shared_members(group)
    made.order = order_of(made.members.names)
    made.now_ms = ctx.steady_ms
    return listing_of(made)


def pending_summary(Group group not None):
    """[total, first id, last id, [[consumer, pending], ...]]; the total counts unowned entries, the
    consumers are those that own any, by name."""
    cdef SlicedConsumers made
    cdef Listing reply
    cdef Output head
    cdef Chunk* first
    cdef Chunk* last
    if group.pending_count == 0:
        return [0, None, None, NULL_ARRAY]
    made = SlicedConsumers.__new__(SlicedConsumers)
    made.members = owners_of(group)
    made.order = order_of(made.members.names)
    made.summary = True
    first = group.pendings.chunks[0]
    last = group.pendings.chunks[group.pendings.chunk_count - 1]
    head = Output()
    head.put_head(c'*', 4)
    head.put_head(c':', group.pending_count)
    head.put_id(first.items[0].ms, first.items[0].seq, False)
    head.put_id(last.items[last.used - 1].ms, last.items[last.used - 1].seq, False)
    reply = listing_of(made)
    reply.head = head.take()
    return reply


cdef SharedMembers owners_of(Group group):
    """Only the consumers that own pending entries."""
    cdef SharedMembers made = SharedMembers.__new__(SharedMembers)
    cdef list members = group.members()
    cdef Consumer one
    cdef size_t count = 0
    cdef Py_ssize_t i
    for i in range(1, len(members)):
        one = members[i]
        count += one is not None and one.pending > 0
    made.names = [None] * <Py_ssize_t>count
    made.rows = <MemberRow*>calloc(count + 1, sizeof(MemberRow))
    if made.rows == NULL:
        raise MemoryError("no memory to list consumers")
    made.present = count
    count = 0
    for i in range(1, len(members)):
        one = members[i]
        if one is not None and one.pending > 0:
            made.names[count] = one.name
            made.rows[count].pending = one.pending
            count += 1
    return made


cdef class SlicedConsumers(SlicedListing):
    """Consumers as XINFO CONSUMERS or the summary of XPENDING shows them."""

    cdef bint is_short(self) noexcept:
        return self.order.count <= SHORT

    def prepare(self) -> bool:
        cdef int64_t looks = LOOKS
        return self.order.step(&looks)

    cdef int fill(self, Output out, Py_ssize_t full_size) except -1:
        if not self.begun:
            self.begun = True
            out.put_head(c'*', self.order.count)
        while self.next < self.order.count and out.size < full_size:
            self.put_row(out, self.order.places[self.next])
            self.next += 1
        return 0

    cdef int put_row(self, Output out, uint32_t place) except -1:
        cdef MemberRow* row = &self.members.rows[place]
        cdef bytes name = self.members.names[place]
        if self.summary:
            out.put_raw(b"*2\r\n", 4)
            out.put_bulk_bytes(name)
            return out.put_bulk_bytes(b"%d" % row.pending)
        put_map(out, self.resp, 4)
        out.put_bulk_bytes(b"name")
        out.put_bulk_bytes(name)
        out.put_bulk_bytes(b"pending")
        out.put_head(c':', row.pending)
        out.put_bulk_bytes(b"idle")
        out.put_head(c':', since(row.seen_ms, self.now_ms))
        out.put_bulk_bytes(b"inactive")
        if row.active_ms < 0:
            return put_number(out, -1)
        return out.put_head(c':', since(row.active_ms, self.now_ms))


cdef uint64_t since(int64_t moment_ms, uint64_t now_ms) noexcept:
    """Milliseconds from a moment to now, 0 when the clock went back."""
    return max(0, <int64_t>now_ms - moment_ms)


# ---------------------------------------------------------------- groups

def groups_reply(Context ctx not None, bytes key not None, Stream stream not None) -> Listing:
    """XINFO GROUPS: a map for each group, by name."""
    return listing_of(sliced_groups(ctx, key, stream, False, 0))


def full_groups_reply(Context ctx not None, bytes key not None, Stream stream not None,
                      limit) -> Listing:
    """The groups of XINFO STREAM FULL, with up to `limit` pending entries (None: all) of each group
    and of each of its consumers."""
    return listing_of(sliced_groups(ctx, key, stream, True, MAX if limit is None else limit))


cdef SlicedGroups sliced_groups(Context ctx, bytes key, Stream stream, bint full, uint64_t limit):
    cdef SlicedGroups made = SlicedGroups.__new__(SlicedGroups)
    settle_groups(ctx, key, stream)
    made.groups = shared_groups(stream.groups, full, ctx.steady_ms)
    del made.groups.names[made.groups.count:]
    made.order = order_of(made.groups.names)
    ends_of(stream, &made.ends)
    made.is_full = full
    made.limit = limit
    made.wall_ahead_ms = ahead_ms(ctx.now_ms, ctx.steady_ms)
    made.full = []
    return made


def live_group_count(Context ctx not None, Stream stream not None) -> int:
    """How many groups a stream has, without those whose time to live has ended."""
    return stream.live_group_count(ctx.steady_ms)


cdef FullGroup full_group(GroupParts parts, uint64_t limit):
    cdef FullGroup made = FullGroup.__new__(FullGroup)
    made.parts = parts
    made.order = order_of(parts.members.names)
    made.limit = limit
    made.begin()
    return made


cdef bint is_large(GroupParts parts) noexcept:
    return parts is not None and (
        parts.members.present > SHORT or parts.pending.records > SHORT_RECORDS)


cdef class FullGroup:
    """What is shown of one group's consumers: their order, and for each the first records that it
    owns, found in one pass over the group's pending entries."""

    def __dealloc__(self):
        free(self.starts)
        free(self.filled)
        free(self.records)

    cdef int begin(self) except -1:
        cdef size_t count = len(self.parts.members.names)
        cdef size_t i
        self.starts = <size_t*>malloc((count + 1) * sizeof(size_t))
        self.filled = <size_t*>calloc(count + 1, sizeof(size_t))
        if self.starts == NULL or self.filled == NULL:
            raise MemoryError("no memory to list consumers")
        for i in range(count):
            self.starts[i] = self.wanted
            if self.parts.members.names[i] is not None:
                self.wanted += min(self.parts.members.rows[i].pending, self.limit)
        self.starts[count] = self.wanted
        self.records = <const Pending**>malloc((self.wanted + 1) * sizeof(Pending*))
        if self.records == NULL:
            raise MemoryError("no memory to list pending entries")
        return 0

    cdef bint step(self, int64_t* looks) noexcept:
        """Sort and collect for about `looks` steps; False when all is done."""
        while looks[0] > 0 and self.found < self.wanted:
            looks[0] -= self.collect_chunk()
        return self.order.step(looks) or self.found < self.wanted

    cdef int collect_chunk(self) noexcept:
        """Note the records of the next chunk that are shown; how many were looked at."""
        cdef const Chunk* chunk = self.parts.pending.chunks[self.chunk]
        cdef const Pending* record
        cdef size_t place
        cdef uint32_t i
        self.chunk += 1
        for i in range(chunk.used):
            record = &chunk.items[i]
            if record.consumer == 0:
                continue
            place = self.starts[record.consumer] + self.filled[record.consumer]
            if place < self.starts[record.consumer + 1]:
                self.records[place] = record
                self.filled[record.consumer] += 1
                self.found += 1
        return chunk.used


cdef class SlicedGroups(SlicedListing):
    """Groups as XINFO GROUPS or XINFO STREAM FULL shows them. Large groups are made ready before
    the first slice, the others when their turn comes."""

    cdef bint is_short(self) noexcept:
        cdef size_t i
        cdef uint64_t rows = 0
        if self.order.count > SHORT:
            return False
        if self.is_full:
            for i in range(self.groups.count):
                rows += self.groups.rows[i].consumers + min(self.groups.rows[i].pending, self.limit)
                if rows > SHORT or is_large(self.groups.parts[i]):
                    return False
        return True

    def prepare(self) -> bool:
        cdef int64_t looks = LOOKS
        if self.order.step(&looks):
            return True
        return self.is_full and self.prepare_full(&looks)

    cdef bint prepare_full(self, int64_t* looks) except -1:
        """Make large groups ready; False when none is left."""
        cdef FullGroup group
        while looks[0] > 0 and self.prepared < self.groups.count:
            parts = self.groups.parts[self.prepared]
            if is_large(parts):
                if len(self.full) <= <Py_ssize_t>self.prepared:
                    self.full += [None] * (<Py_ssize_t>self.groups.count - len(self.full))
                if self.full[self.prepared] is None:
                    self.full[self.prepared] = full_group(parts, self.limit)
                group = self.full[self.prepared]
                if group.step(looks):
                    return True
            looks[0] -= 1
            self.prepared += 1
        return self.prepared < self.groups.count

    cdef int fill(self, Output out, Py_ssize_t full_size) except -1:
        if not self.begun:
            self.begun = True
            out.put_head(c'*', self.order.count)
        while self.next < self.order.count and out.size < full_size:
            if not self.is_full:
                self.put_group(out, self.order.places[self.next])
                self.next += 1
            elif self.stage == GROUP:
                self.put_full_group(out)
            elif self.stage == PENDING:
                self.put_pending(out, full_size)
            elif self.stage == CONSUMER:
                self.put_consumer(out)
            else:
                self.put_records(out, full_size)
        return 0

    cdef int put_group(self, Output out, uint32_t place) except -1:
        cdef GroupRow* row = &self.groups.rows[place]
        put_map(out, self.resp, 6)
        out.put_bulk_bytes(b"name")
        out.put_bulk_bytes(self.groups.names[place])
        out.put_bulk_bytes(b"consumers")
        out.put_head(c':', row.consumers)
        out.put_bulk_bytes(b"pending")
        out.put_head(c':', row.pending)
        return self.put_counts(out, place)

    cdef int put_counts(self, Output out, uint32_t place) except -1:
        """last-delivered-id, entries-read and lag."""
        cdef GroupRow* row = &self.groups.rows[place]
        cdef int64_t lag
        out.put_bulk_bytes(b"last-delivered-id")
        out.put_id(row.offset.ms, row.offset.seq, False)
        out.put_bulk_bytes(b"entries-read")
        if row.entries_read != -1:
            put_number(out, row.entries_read)
        else:
            put_nil(out, self.resp)
        out.put_bulk_bytes(b"lag")
        if find_lag(&self.ends, row.offset, row.entries_read, &lag):
            return put_number(out, lag)
        return put_nil(out, self.resp)

    # XINFO STREAM FULL

    cdef int put_full_group(self, Output out) except -1:
        """What stands before a group's pending entries."""
        cdef uint32_t place = self.order.places[self.next]
        cdef GroupRow* row = &self.groups.rows[place]
        put_map(out, self.resp, 7)
        out.put_bulk_bytes(b"name")
        out.put_bulk_bytes(self.groups.names[place])
        self.put_counts(out, place)
        out.put_bulk_bytes(b"pel-count")
        out.put_head(c':', row.pending)
        self.left = min(row.pending, self.limit)
        out.put_bulk_bytes(b"pending")
        out.put_head(c'*', self.left)
        return self.begin_full_group(out)

    cdef int begin_full_group(self, Output out) except -1:
        cdef uint32_t place = self.order.places[self.next]
        cdef GroupParts parts = self.groups.parts[place]
        cdef int64_t looks = <int64_t>(MAX >> 1)
        self.current = None
        if parts is not None and <size_t>len(self.full) > place:
            self.current = self.full[place]
            self.full[place] = None
        if parts is not None and self.current is None:
            self.current = full_group(parts, self.limit)
            self.current.step(&looks)
        self.groups.parts[place] = None  # what is needed of it, `current` has
        self.chunk = self.index = 0
        self.consumer = 0
        self.stage = PENDING
        return 0

    cdef int put_pending(self, Output out, Py_ssize_t full_size) except -1:
        """The first pending entries of the group, of all owners."""
        cdef const Chunk* chunk
        cdef const Pending* record
        while self.left and out.size < full_size:
            chunk = self.current.parts.pending.chunks[self.chunk]
            record = &chunk.items[self.index]
            name = self.current.parts.members.names[record.consumer]
            out.put_raw(b"*4\r\n", 4)
            out.put_id(record.ms, record.seq, False)
            out.put_bulk_bytes(b"" if name is None else name)
            out.put_head(c':', shifted_ms(record.last_delivery_ms, self.wall_ahead_ms))
            put_number(out, deliveries_of(record, self.current.parts.large_counts))
            self.left -= 1
            self.index += 1
            if self.index == chunk.used:
                self.chunk += 1
                self.index = 0
        if self.left == 0:
            out.put_bulk_bytes(b"consumers")
            out.put_head(c'*', 0 if self.current is None else self.current.order.count)
            self.stage = CONSUMER
        return 0

    cdef int put_consumer(self, Output out) except -1:
        """What stands before a consumer's pending entries; after the last one the next group."""
        cdef uint32_t place
        cdef MemberRow* row
        if self.current is None or self.consumer == self.current.order.count:
            self.current = None
            self.next += 1
            self.stage = GROUP
            return 0
        place = self.current.order.places[self.consumer]
        row = &self.current.parts.members.rows[place]
        put_map(out, self.resp, 5)
        out.put_bulk_bytes(b"name")
        out.put_bulk_bytes(self.current.parts.members.names[place])
        out.put_bulk_bytes(b"seen-time")
        put_number(out, shifted_ms(row.seen_ms, self.wall_ahead_ms))
        out.put_bulk_bytes(b"active-time")
        put_number(out, shifted_ms(row.active_ms, self.wall_ahead_ms))
        out.put_bulk_bytes(b"pel-count")
        out.put_head(c':', row.pending)
        out.put_bulk_bytes(b"pending")
        self.record = self.current.starts[place]
        out.put_head(c'*', self.current.starts[place + 1] - self.record)
        self.stage = RECORDS
        return 0

    cdef int put_records(self, Output out, Py_ssize_t full_size) except -1:
        cdef uint32_t place = self.current.order.places[self.consumer]
        cdef size_t end = self.current.starts[place + 1]
        cdef const Pending* record
        while self.record < end and out.size < full_size:
            record = self.current.records[self.record]
            out.put_raw(b"*3\r\n", 4)
            out.put_id(record.ms, record.seq, False)
            out.put_head(c':', shifted_ms(record.last_delivery_ms, self.wall_ahead_ms))
            put_number(out, deliveries_of(record, self.current.parts.large_counts))
            self.record += 1
        if self.record == end:
            self.consumer += 1
            self.stage = CONSUMER
        return 0
