# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Replies about groups: pending entries between two IDs (XPENDING), the rows of a listing (XINFO,
the summary of XPENDING), and the number of entries that a group has read.

With a least idle time or a consumer, very many records may have to be examined for a few results,
and their number comes first in the reply. Therefore a long search runs in turns: the first pass
counts, and the second encodes the results as the client reads them. Meanwhile the reply shares the
chunks of its moment with the group, like a snapshot; chunks without results are released.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t

from millstream.commands.runtime.replies cimport SLICE_BYTES, Encodable, Sliced
from millstream.encoding cimport ArrayHead, Output, format_u64, put_nil, put_null_array
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.due_index cimport bound_of
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport IDLE, UNOWNED, Chunk, Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport SharedPending, first_pending, share_chunks
from millstream.storage.groups.pending_list cimport deliveries_of
from millstream.storage.groups.shared_groups cimport (
    GroupRow, MemberRow, SharedGroups, SharedMembers,
)
from millstream.storage.log.trim_nodes cimport node_count, radix_tree_nodes
from millstream.storage.streams.stream cimport Stream
from millstream.storage.streams.stream_groups cimport all_groups, group_count

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    # The maximum of records examined at once, before the reply is made in turns; per turn of
    # counting; per turn for a slice.
    LOOKS_AT_ONCE = 5000
    LOOKS_TO_COUNT = 50000
    LOOKS_TO_SEND = 200000
    # The cost of skipping a chunk, in records.
    SKIPPED_LOOKS = 10
    # The maximum of consumers whose rows are made at once.
    FEW = 500
    # Names in the map of XINFO STREAM.
    STREAM_FIELDS = 16
    # The number of entries that a group has read, if unknown.
    UNKNOWN = -1


# ---------------------------------------------------------------- pending entries

# The state of a search: its place, the number of records found, and the cost so far.
cdef struct Search:
    PendingAt at
    uint64_t found
    uint64_t looks
    # The number of the consumer's entries that were not found yet; the largest number for all
    # consumers.
    uint64_t unmet
    bint over


cdef int put_idle(Output out, int64_t idle_ms) except -1:
    return out.put_raw(b":-1\r\n", 5) if idle_ms < 0 else out.put_head(c':', idle_ms)


cdef int64_t idle_of(const Pending* record, uint64_t now_ms) noexcept:
    """Milliseconds since the last delivery as shown in replies: -1 for entries released by
    XNACK."""
    if record.last_delivery_ms == 0 and record.consumer == UNOWNED:
        return -1
    return now_ms - record.last_delivery_ms if now_ms > record.last_delivery_ms else 0


def pending_range(Group group not None, start, end, int64_t limit, int64_t min_idle_ms,
                  uint64_t now_ms, Consumer owner=None):
    """The pending entries with start <= ID <= end, (ms, seq) each, at most `limit`; with an owner,
    only those of that consumer."""
    cdef PendingRange made = PendingRange.__new__(PendingRange)
    made.group = group
    made.start.ms, made.start.seq = start
    made.end.ms, made.end.seq = end
    made.limit = max(limit, 0)
    made.min_idle_ms = min_idle_ms
    made.now_ms = now_ms
    made.latest_ms = MAX if min_idle_ms <= 0 else max(<int64_t>now_ms - min_idle_ms, 0)
    made.consumers = group.members()
    made.large_counts = group.large_counts()
    # The bounds do not include entries that a claim has found deleted, but these are still pending.
    made.has_idle_bounds = not group.pendings.has_gone
    made.owner = owner
    return made


cdef class PendingRange(Encodable):
    """[[ID, consumer, idle ms, deliveries], ...] in ID order. An entry without an owner has an
    empty name, and an entry released by XNACK an idle time of -1. Encode it before the group
    changes."""
    cdef Group group
    cdef EntryId start
    cdef EntryId end
    cdef uint64_t limit
    cdef int64_t min_idle_ms
    cdef uint64_t now_ms
    # Records delivered later than this have not been idle for long enough.
    cdef uint64_t latest_ms
    # The owner of the wanted entries; None for all.
    cdef Consumer owner
    # The consumers by number, and the counts that do not fit into a record: the group's own, or
    # copies.
    cdef list consumers
    cdef bint has_idle_bounds
    cdef dict large_counts
    cdef bint is_long

    cdef int encode(self, Output out, int resp) except -1:
        cdef Search search
        cdef ArrayHead head
        if self.is_empty():
            return out.put_head(c'*', 0)
        out.begin_array(&head, min(self.limit, self.group.pendings.count))
        self.begin(&search)
        first_pending(self.group.pendings, self.start, &search.at)
        self.scan(
            &search, self.group.pendings.chunks, self.group.pendings.chunk_count, LOOKS_AT_ONCE,
            out, PY_SSIZE_T_MAX)
        self.group.pendings.work_counter += search.looks
        if search.over:
            return out.end_array(&head, search.found)
        out.size = head.at
        self.is_long = True
        return 0

    cdef Sliced rest(self):
        return self.sliced() if self.is_long else None

    cdef bint is_empty(self) noexcept:
        """True if it is known without a search that there are no results."""
        return self.limit == 0 or (self.has_idle_bounds and bound_of(self.group.pendings, IDLE) > self.latest_ms) or (
            self.owner is not None and self.owner.pending == 0)

    cdef bint takes_all(self) noexcept:
        return self.owner is None and self.min_idle_ms <= 0

    cdef int begin(self, Search* search) noexcept:
        search.at.chunk = search.at.index = 0
        search.found = search.looks = 0
        search.unmet = MAX if self.owner is None else self.owner.pending
        search.over = False
        return 0

    cdef int scan(self, Search* search, Chunk** chunks, uint32_t count, uint64_t looks,
                  Output out, Py_ssize_t full_size) except -1:
        """Continue a search for about `looks` steps; results are encoded until `out` is full."""
        cdef const Chunk* chunk
        looks += search.looks
        while not search.over and search.looks < looks and out.size < full_size:
            if search.at.chunk >= count:
                search.over = True
                break
            chunk = chunks[search.at.chunk]
            if chunk != NULL:
                self.scan_chunk(search, chunk, looks, out, full_size)
                if search.over or search.at.index < chunk.used:
                    break
            search.at.chunk += 1
            search.at.index = 0
        return 0

    cdef int scan_chunk(self, Search* search, const Chunk* chunk, uint64_t looks, Output out,
                       Py_ssize_t full_size) except -1:
        """`scan` in the current chunk; without `out`, results are only counted."""
        cdef const Pending* record
        cdef uint32_t i = search.at.index
        if self.has_idle_bounds and chunk.bounds[IDLE] > self.latest_ms:
            search.looks += SKIPPED_LOOKS
            i = chunk.used
        while i < chunk.used:
            record = &chunk.items[i]
            if search.found == self.limit or search.unmet == 0 or id_less(
                    self.end.ms, self.end.seq, record.ms, record.seq):
                search.over = True
                break
            if out is not None and (out.size >= full_size or search.looks >= looks):
                break
            i += 1
            search.looks += 1
            if self.owner is not None:
                if record.consumer != self.owner.index:
                    continue
                search.unmet -= 1
            if self.is_idle(record):
                search.found += 1
                if out is not None:
                    self.put_row(out, record)
        search.at.index = i
        return 0

    cdef inline bint is_idle(self, const Pending* record) noexcept:
        cdef int64_t idle_ms
        if self.min_idle_ms <= 0:
            return True
        idle_ms = idle_of(record, self.now_ms)
        return idle_ms >= self.min_idle_ms or idle_ms < 0

    cdef int put_row(self, Output out, const Pending* record) except -1:
        cdef Consumer owner = self.consumers[record.consumer]
        out.put_raw(b"*4\r\n", 4)
        out.put_id(record.ms, record.seq, False)
        out.put_bulk_bytes(b"" if owner is None else owner.name)
        put_idle(out, idle_of(record, self.now_ms))
        return out.put_head(c':', deliveries_of(record, self.large_counts))

    cdef Sliced sliced(self):
        """The whole reply, to be sent in slices; the group may change meanwhile."""
        cdef SlicedPending made = SlicedPending.__new__(SlicedPending)
        cdef PendingAt at
        made.asked = self
        self.begin(&made.search)
        first_pending(self.group.pendings, self.start, &at)
        made.first_index = made.search.at.index = at.index
        made.shared = share_chunks(self.group.pendings, at.chunk, self.chunks_from(at))
        made.counting = True
        self.is_long = False
        self.consumers = list(self.consumers)
        if self.large_counts is not None:
            self.large_counts = dict(self.large_counts)
        self.group = None
        return made

    cdef uint32_t chunks_from(self, PendingAt at) noexcept:
        """The number of chunks, from that of the first record on, that may have results."""
        cdef PendingAt last
        cdef uint32_t place
        cdef uint64_t found = 0
        first_pending(self.group.pendings, self.end, &last)
        if self.takes_all() and self.limit < self.group.pendings.count:
            for place in range(at.chunk, last.chunk):
                found += self.group.pendings.chunks[place].used
                if found >= self.limit + at.index:
                    return place + 1 - at.chunk
        return last.chunk + 1 - at.chunk


cdef class SlicedPending(Sliced):
    """A long PendingRange at one moment: the results are counted, then sent."""
    cdef PendingRange asked
    cdef SharedPending shared
    cdef Search search
    cdef uint32_t first_index
    cdef bint counting
    cdef bint head_due

    def prepare(self) -> bool:
        cdef uint64_t looks = self.search.looks + LOOKS_TO_COUNT
        while self.counting and self.search.looks < looks:
            self.count_chunk()
        return self.counting

    cdef int count_chunk(self) except -1:
        """Count the results in the next chunk, and release the chunk if there are none."""
        cdef uint64_t before = self.search.found
        cdef const Chunk* chunk
        if self.search.at.chunk >= self.shared.count:
            self.search.over = True
        else:
            chunk = self.shared.chunks[self.search.at.chunk]
            if not self.count_whole(chunk):
                self.asked.scan_chunk(&self.search, chunk, 0, None, 0)
            if self.search.found == before:
                self.shared.release(self.search.at.chunk)
            self.search.at.chunk += 1
            self.search.at.index = 0
        if self.search.over:
            self.begin_sending()
        return 0

    cdef bint count_whole(self, const Chunk* chunk) noexcept:
        """Count a chunk of which all records are results, without reading them."""
        cdef uint64_t count = chunk.used - self.search.at.index
        cdef const Pending* last = &chunk.items[chunk.used - 1]
        if not self.asked.takes_all() or self.search.found + count > self.asked.limit or id_less(
                self.asked.end.ms, self.asked.end.seq, last.ms, last.seq):
            return False
        self.search.found += count
        self.search.looks += SKIPPED_LOOKS
        return True

    cdef int begin_sending(self) except -1:
        cdef uint32_t place
        for place in range(self.search.at.chunk, self.shared.count):
            self.shared.release(place)
        self.counting = False
        self.asked.limit = self.search.found
        self.search.at.chunk = 0
        self.search.at.index = self.first_index
        self.search.found = 0
        self.search.unmet = MAX
        self.search.over = False
        self.head_due = True
        return 0

    def next_slice(self) -> bytes:
        cdef Output out = Output()
        cdef uint32_t place = self.search.at.chunk
        if self.head_due:
            self.head_due = False
            out.put_head(c'*', self.asked.limit)
        self.asked.scan(&self.search, self.shared.chunks, self.shared.count, LOOKS_TO_SEND, out,
                        SLICE_BYTES)
        while place < self.search.at.chunk:
            self.shared.release(place)
            place += 1
        return out.take()


# ---------------------------------------------------------------- the number of entries read by a
# group
#
# Redis increases the count with each delivery while no entry in between was deleted (`delivery`
# does that), and otherwise estimates it from the stream's ends. The counts are signed 64-bit
# numbers and wrap around, as in Redis.

def shown_count(count) -> int:
    """A counter as shown in a reply: a signed number, which wraps around after 9223372036854775807
    as in Redis."""
    return (count + 2**63) % 2**64 - 2**63


cdef inline int compare(EntryId one, EntryId other) noexcept:
    if one.ms != other.ms:
        return 1 if one.ms > other.ms else -1
    return (one.seq > other.seq) - (one.seq < other.seq)


cdef class StreamEnds:
    """The figures of a stream's ends at one moment."""
    cdef EntryId first
    cdef EntryId last
    cdef EntryId deleted
    cdef uint64_t length
    cdef uint64_t added
    cdef bint is_empty

    def __init__(self, Stream stream not None):
        self.is_empty = not stream.first_entry(&self.first)
        self.last.ms = stream.last_ms
        self.last.seq = stream.last_seq
        self.deleted.ms = stream.max_deleted_ms
        self.deleted.seq = stream.max_deleted_seq
        self.length = stream.length
        self.added = stream.entries_added

    cdef int64_t distance(self, EntryId at) noexcept:
        """The number of entries ever added up to this ID, or UNKNOWN (Redis 7.0,
        streamEstimateDistanceFromFirstEverEntry)."""
        if self.added == 0:
            return 0
        if compare(self.last, at) < 0:
            return UNKNOWN
        if self.is_empty:
            return self.added
        if (at.ms or at.seq) and compare(at, self.deleted) < 0:
            return UNKNOWN
        if compare(at, self.last) == 0:
            return self.added
        if compare(self.deleted, self.first) >= 0 or compare(at, self.first) > 0:
            return UNKNOWN
        return self.added - self.length + (compare(at, self.first) == 0)

    cdef bint has_tombstones(self, EntryId start) noexcept:
        """True if an entry at or above this ID was deleted (Redis 7.2,
        streamRangeHasTombstones)."""
        if self.is_empty or not (self.deleted.ms or self.deleted.seq):
            return False
        return compare(self.deleted, self.first) >= 0 and compare(self.deleted, start) >= 0

    cdef bint find_lag(self, EntryId offset, int64_t entries_read, int64_t* lag) noexcept:
        """The number of entries that a group has not read yet (rules of Redis 8); False when
        unknown."""
        cdef int64_t read = entries_read
        lag[0] = 0
        if self.is_empty:
            return True
        if compare(offset, self.first) < 0 and compare(self.deleted, self.first) < 0:
            lag[0] = self.length
            return True
        if read == UNKNOWN or self.has_tombstones(offset):
            read = self.distance(offset)
        lag[0] = self.added - <uint64_t>read
        return read != UNKNOWN


def group_figures(Group group not None, Stream stream not None, StreamEnds ends not None) -> tuple:
    """(consumers, pending entries, milliseconds of the last delivered ID, entries read or -1, lag or
    -1, milliseconds of the ID of the oldest entry that is pending or not delivered or -1, blocked
    clients) of a group, for the metrics. -1 stands for a number that is unknown or does not
    exist."""
    cdef EntryId offset
    cdef EntryId entry
    cdef PendingAt at
    cdef const Pending* record = NULL
    cdef int64_t lag
    cdef int64_t oldest_ms = UNKNOWN
    offset.ms = group.offset_ms
    offset.seq = group.offset_seq
    if not ends.find_lag(offset, group.entries_read, &lag):
        lag = UNKNOWN
    if group.pendings.count:
        record = first_pending(group.pendings, EntryId(0, 0), &at)
    if record != NULL:
        oldest_ms = record.ms
    if stream.has_newer(offset) and first_after(stream, offset, &entry) and (
            oldest_ms == UNKNOWN or entry.ms < <uint64_t>oldest_ms):
        oldest_ms = entry.ms
    return (group.consumer_count(), group.pendings.count, offset.ms, group.entries_read, lag,
            oldest_ms, group.blocked_clients)


cdef bint first_after(Stream stream, EntryId offset, EntryId* out) noexcept:
    """The first entry above an ID that is not the largest."""
    return stream.nth(stream.rank_of(EntryId(offset.ms + (offset.seq == MAX), offset.seq + 1)), out)


cpdef int64_t entries_up_to(Stream stream, uint64_t ms, uint64_t seq) except? -1:
    """The number of entries ever added up to this ID, -1 when unknown."""
    cdef EntryId at
    at.ms = ms
    at.seq = seq
    return StreamEnds(stream).distance(at)


# ---------------------------------------------------------------- rows of a listing

cdef int put_signed(Output out, int64_t number) except -1:
    if number < 0:
        return out.put(b":%d\r\n" % number)
    return out.put_head(c':', number)


cdef int put_map_head(Output out, int resp, uint64_t pairs) except -1:
    return out.put_head(c'%', pairs) if resp == 3 else out.put_head(c'*', 2 * pairs)


cdef class Rows(Encodable):
    """Rows of a listing: with `numbers`, only these rows; otherwise all rows by name, after the
    head of the array."""
    cdef list names
    cdef list numbers

    cdef bint is_listed(self, Py_ssize_t number) noexcept:
        """True if a complete listing has the row."""
        return True

    cdef int put_row(self, Output out, int resp, Py_ssize_t number) except -1:
        raise NotImplementedError

    cdef int encode(self, Output out, int resp) except -1:
        cdef Py_ssize_t number
        numbers = self.numbers
        if numbers is None:
            numbers = self.by_name()
            out.put_head(c'*', len(numbers))
        for number in numbers:
            self.put_row(out, resp, number)
        return 0

    cdef list by_name(self):
        cdef Py_ssize_t number
        cdef list found = []
        for number in range(len(self.names)):
            if self.names[number] is not None and self.is_listed(number):
                found.append((self.names[number], number))
        found.sort()
        return [number for _, number in found]


cdef class ConsumerRows(Rows):
    """XINFO CONSUMERS: a map for each consumer."""
    cdef SharedMembers members
    cdef uint64_t now_ms

    def __init__(self, SharedMembers members not None, uint64_t now_ms, list numbers=None):
        self.members = members
        self.names = members.names
        self.numbers = numbers
        self.now_ms = now_ms

    cdef int put_row(self, Output out, int resp, Py_ssize_t number) except -1:
        cdef const MemberRow* row = self.members.find(number)
        return put_consumer(out, resp, self.names[number], row.pending, row.seen_ms, row.active_ms,
                            self.now_ms)


cdef int put_consumer(Output out, int resp, bytes name, uint64_t pending, int64_t seen_ms,
                      int64_t active_ms, int64_t now_ms) except -1:
    put_map_head(out, resp, 4)
    out.put_raw(b"$4\r\nname\r\n", 10)
    out.put_bulk_bytes(name)
    out.put_raw(b"$7\r\npending\r\n", 13)
    out.put_head(c':', pending)
    out.put_raw(b"$4\r\nidle\r\n", 10)
    out.put_head(c':', max(now_ms - seen_ms, 0))
    out.put_raw(b"$8\r\ninactive\r\n", 14)
    return put_signed(out, -1 if active_ms < 0 else max(now_ms - active_ms, 0))


cdef list consumers_by_name(Group group):
    """The consumers of a group in the order of their names."""
    cdef list found = [one for one in group.members() if one is not None]
    if len(found) > 1:
        found.sort(key=name_of)
    return found


def name_of(Consumer consumer not None) -> bytes:
    return consumer.name


cdef class FewConsumers(Encodable):
    """`ConsumerRows` of all consumers of a group with few consumers. Encode it before the group
    changes."""
    cdef Group group
    cdef uint64_t now_ms

    def __init__(self, Group group not None, uint64_t now_ms):
        self.group = group
        self.now_ms = now_ms

    cdef int encode(self, Output out, int resp) except -1:
        cdef Consumer one
        cdef list found = consumers_by_name(self.group)
        out.put_head(c'*', len(found))
        for one in found:
            put_consumer(out, resp, one.name, one.pending, one.seen_ms, one.active_ms, self.now_ms)
        return 0


cdef class OwnerRows(Rows):
    """The summary of XPENDING: [name, number] of each consumer that owns pending entries."""
    cdef SharedMembers members

    def __init__(self, SharedMembers members not None, list numbers=None):
        self.members = members
        self.names = members.names
        self.numbers = numbers

    cdef bint is_listed(self, Py_ssize_t number) noexcept:
        return self.members.rows[number].pending > 0

    cdef int put_row(self, Output out, int resp, Py_ssize_t number) except -1:
        out.put_raw(b"*2\r\n", 4)
        out.put_bulk_bytes(self.names[number])
        return out.put_bulk_bytes(b"%d" % self.members.find(number).pending)


cdef class GroupRows(Rows):
    """XINFO GROUPS: a map for each group."""
    cdef SharedGroups groups
    cdef StreamEnds ends

    def __init__(self, SharedGroups groups not None, StreamEnds ends not None, list numbers=None):
        self.groups = groups
        self.names = groups.names
        self.ends = ends
        self.numbers = numbers

    cdef int put_row(self, Output out, int resp, Py_ssize_t number) except -1:
        return put_group(out, resp, self.names[number], self.ends, self.groups.find(number))


cdef int put_group(Output out, int resp, bytes name, StreamEnds ends, const GroupRow* row) except -1:
    put_map_head(out, resp, 6)
    out.put_raw(b"$4\r\nname\r\n", 10)
    out.put_bulk_bytes(name)
    out.put_raw(b"$9\r\nconsumers\r\n", 15)
    out.put_head(c':', row.consumers)
    out.put_raw(b"$7\r\npending\r\n", 13)
    out.put_head(c':', row.pending)
    return put_progress(out, resp, ends, row)


cdef class FewGroups(Encodable):
    """`GroupRows` of a stream with few groups. Encode it before anything changes the stream."""
    cdef Stream stream
    cdef uint64_t now_ms

    def __init__(self, Stream stream not None, uint64_t now_ms):
        self.stream = stream
        self.now_ms = now_ms

    cdef int encode(self, Output out, int resp) except -1:
        cdef StreamEnds ends = StreamEnds(self.stream)
        cdef Group group
        cdef GroupRow row
        cdef list found = [group for group in all_groups(self.stream.group_set)
                           if not (group.ttl_ms and group.is_over(self.now_ms))]
        if len(found) > 1:
            found.sort(key=group_name_of)
        out.put_head(c'*', len(found))
        for group in found:
            row.offset.ms = group.offset_ms
            row.offset.seq = group.offset_seq
            row.entries_read = group.entries_read
            row.pending = group.pendings.count
            row.consumers = group.consumer_count()
            put_group(out, resp, group.name, ends, &row)
        return 0


def group_name_of(Group group not None) -> bytes:
    return group.name


def few_groups(Stream stream not None, uint64_t now_ms) -> FewGroups | None:
    """The rows of all groups that have not ended by now_ms; None if there are too many to make them
    at once."""
    return FewGroups(stream, now_ms) if group_count(stream.group_set) <= FEW else None


cdef class StreamFields(Encodable):
    """XINFO STREAM: a map of a stream's counters, the number of its groups, and its first and last
    entry; for FULL (`is_full`) only the names and values of the counters. `idempotence` is a part of
    the map, encoded. The nodes of Redis' radix tree are counted for the first `counted_nodes` nodes."""
    cdef Stream stream
    cdef uint64_t now_ms
    cdef Py_ssize_t counted_nodes
    cdef bytes idempotence
    cdef bint is_full

    def __init__(self, Stream stream not None, uint64_t now_ms, Py_ssize_t counted_nodes,
                 bytes idempotence not None, bint is_full):
        self.stream = stream
        self.now_ms = now_ms
        self.counted_nodes = counted_nodes
        self.idempotence = idempotence
        self.is_full = is_full

    cdef int encode(self, Output out, int resp) except -1:
        cdef EntryId first, last
        cdef bint has_entries = self.stream.first_entry(&first)
        if not has_entries:
            first.ms = first.seq = 0
        if not self.is_full:
            put_map_head(out, resp, STREAM_FIELDS)
        self.put_counters(out, first)
        if self.is_full:
            return 0
        out.put_raw(b"$6\r\ngroups\r\n", 12)
        out.put_head(c':', self.stream.live_group_count(self.now_ms))
        out.put_raw(b"$11\r\nfirst-entry\r\n", 18)
        if not has_entries or not self.stream.last_entry(&last):
            put_nil(out, resp)
            out.put_raw(b"$10\r\nlast-entry\r\n", 17)
            return put_nil(out, resp)
        put_entry(out, self.stream, first)
        out.put_raw(b"$10\r\nlast-entry\r\n", 17)
        return put_entry(out, self.stream, last)

    cdef int put_counters(self, Output out, EntryId first) except -1:
        cdef Stream stream = self.stream
        out.put_raw(b"$6\r\nlength\r\n", 12)
        out.put_head(c':', stream.length)
        out.put_raw(b"$15\r\nradix-tree-keys\r\n", 22)
        out.put_head(c':', node_count(stream))
        out.put_raw(b"$16\r\nradix-tree-nodes\r\n", 23)
        out.put_head(c':', radix_tree_nodes(stream, self.counted_nodes))
        out.put_raw(b"$17\r\nlast-generated-id\r\n", 24)
        out.put_id(stream.last_ms, stream.last_seq, False)
        out.put_raw(b"$20\r\nmax-deleted-entry-id\r\n", 27)
        out.put_id(stream.max_deleted_ms, stream.max_deleted_seq, False)
        out.put_raw(b"$13\r\nentries-added\r\n", 20)
        put_signed(out, <int64_t>stream.entries_added)
        out.put_raw(b"$23\r\nrecorded-first-entry-id\r\n", 30)
        out.put_id(first.ms, first.seq, False)
        return out.put(self.idempotence)


cdef int put_entry(Output out, Stream stream, EntryId at) except -1:
    """An entry that is there."""
    cdef View view
    cdef Entry entry
    cdef IdText id_text
    if not stream.find(at, &view, &entry):
        raise KeyError((at.ms, at.seq))
    id_text.size = 0
    id_text.dotted = False
    return encode_entry(out, &view, &entry, &id_text)


cdef class GroupProgress(Encodable):
    """The three fields that XINFO STREAM FULL has in common with XINFO GROUPS."""
    cdef SharedGroups groups
    cdef StreamEnds ends
    cdef size_t number

    def __init__(self, SharedGroups groups not None, StreamEnds ends not None, size_t number):
        self.groups = groups
        self.ends = ends
        self.number = number

    cdef int encode(self, Output out, int resp) except -1:
        return put_progress(out, resp, self.ends, self.groups.find(self.number))


cdef int put_progress(Output out, int resp, StreamEnds ends, const GroupRow* row) except -1:
    cdef int64_t lag
    out.put(b"$17\r\nlast-delivered-id\r\n")
    out.put_id(row.offset.ms, row.offset.seq, False)
    out.put(b"$12\r\nentries-read\r\n")
    if row.entries_read == UNKNOWN:
        put_nil(out, resp)
    else:
        put_signed(out, row.entries_read)
    out.put(b"$3\r\nlag\r\n")
    if ends.find_lag(row.offset, row.entries_read, &lag):
        return put_signed(out, lag)
    return put_nil(out, resp)


def has_few_consumers(Group group not None) -> bool:
    """True if the rows of all consumers of a group can be made at once, in less than a tenth of a
    millisecond."""
    return len(group.members()) <= FEW


cdef class PendingSummary(Encodable):
    """XPENDING of a group with few consumers: [total, first ID, last ID, [[consumer, number], ...]].
    The total includes entries without an owner. Encode it before the group changes."""
    cdef Group group

    def __init__(self, Group group not None):
        self.group = group

    cdef int encode(self, Output out, int resp) except -1:
        cdef const Chunk* chunk
        cdef Group group = self.group
        out.put_raw(b"*4\r\n", 4)
        out.put_head(c':', group.pendings.count)
        if group.pendings.count == 0:
            put_nil(out, resp)
            put_nil(out, resp)
            return put_null_array(out, resp)
        chunk = group.pendings.chunks[0]
        out.put_id(chunk.items[0].ms, chunk.items[0].seq, False)
        chunk = group.pendings.chunks[group.pendings.chunk_count - 1]
        out.put_id(chunk.items[chunk.used - 1].ms, chunk.items[chunk.used - 1].seq, False)
        return self.put_owners(out)

    cdef int put_owners(self, Output out) except -1:
        cdef Consumer one
        cdef char[20] text
        cdef list owners = [
            one for one in consumers_by_name(self.group) if (<Consumer>one).pending]
        out.put_head(c'*', len(owners))
        for one in owners:
            out.put_raw(b"*2\r\n", 4)
            out.put_bulk_bytes(one.name)
            out.put_bulk(text, format_u64(text, one.pending))
        return 0
