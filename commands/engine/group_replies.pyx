# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Replies about groups: pending entries between two IDs (XPENDING), the rows of a listing (XINFO,
the summary of XPENDING), and the number of entries that a group has read.

With a least idle time or a consumer, very many records may have to be examined for a few results,
and their number comes first in the reply. Therefore a long search runs in turns: the first pass
counts, and the second encodes the results as the client reads them. Meanwhile the reply shares the
chunks of its moment with the group, like a snapshot; chunks without results are released.

A listing has a row for each consumer or group: from the objects themselves if they are few,
otherwise from a copy (`storage/groups/shared_groups`).
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t

from millstream.commands.runtime.replies cimport Encodable, RowSource, put_map_head, put_signed
from millstream.encoding cimport ArrayHead, Output, format_u64, put_nil, put_null_array
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport Entry, View
from millstream.storage.blocks.reply_entries cimport IdText, encode_entry
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.due_index cimport bound_of, work
from millstream.storage.groups.group cimport Group, has_ended
from millstream.storage.groups.pending cimport IDLE, UNOWNED, Chunk, Pending, PendingAt
from millstream.storage.groups.pending_chunks cimport SharedPending, first_pending, share_chunks
from millstream.storage.groups.pending_list cimport deliveries_of
from millstream.storage.groups.shared_groups cimport (
    GroupRow, MemberRow, SharedGroups, SharedMembers, group_row, member_row,
)
from millstream.storage.log.trim_nodes cimport node_count, radix_tree_nodes
from millstream.storage.streams.head_eviction cimport counted_groups, lost_by, missed_by
from millstream.storage.streams.stream cimport Stream
from millstream.storage.streams.stream_groups cimport group_count

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

cdef int64_t idle_of(const Pending* record, uint64_t now_ms) noexcept:
    """Milliseconds since the last delivery as shown in replies: -1 for entries released by XNACK and
    entries that wait."""
    if record.waiting:
        return -1
    if record.last_delivery_ms == 0 and record.consumer == UNOWNED:
        return -1
    return now_ms - record.last_delivery_ms if now_ms > record.last_delivery_ms else 0


cdef Encodable pending_range(Group group, EntryId start, EntryId end, int64_t limit,
                             int64_t min_idle_ms, uint64_t now_ms, Consumer owner):
    """The pending entries with start <= ID <= end, at most `limit`; with an owner (otherwise None),
    only those of that consumer."""
    cdef PendingRange made = PendingRange.__new__(PendingRange)
    made.group = group
    made.start, made.end = start, end
    made.limit = max(limit, 0)
    made.min_idle_ms = min_idle_ms
    made.now_ms = now_ms
    made.latest_ms = MAX if min_idle_ms <= 0 else max(<int64_t>now_ms - min_idle_ms, 0)
    made.consumers = group.pending.members()
    made.large_counts = group.pending.large_counts()
    # The bounds do not include entries that wait or are at the limit of deliveries, and entries that
    # a claim has found deleted.
    made.has_idle_bounds = not (group.pending.records.has_gone or group.pending.records.waiting
                                or group.pending.records.limit)
    made.owner = owner
    return made


cdef class PendingRange(RowSource):
    """[[ID, consumer, idle ms, deliveries], ...] in ID order. An entry without an owner has an
    empty name, and an entry released by XNACK or given back an idle time of -1. Encode it before the group
    changes."""
    # None when the reply is long: then it has shared the chunks.
    cdef Group group
    cdef SharedPending shared
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
    # The state of the search: its chunks and its place in them, the number of records found, and
    # the cost so far.
    cdef Chunk** chunks
    cdef uint32_t chunk_count
    cdef PendingAt at
    cdef uint64_t found
    cdef uint64_t looks
    # The number of the consumer's entries that were not found yet; the largest number for all
    # consumers.
    cdef uint64_t unmet
    cdef bint over
    # Of a long reply: where the first chunk begins, the first pass, and its result is not sent yet.
    cdef uint32_t first_index
    cdef bint counting
    cdef bint head_due

    cdef int encode(self, Output out, int resp) except -1:
        cdef ArrayHead head
        if self.is_empty():
            return out.put_head(c'*', 0)
        out.begin_array(&head, min(self.limit, self.group.pending.records.count))
        self.chunks = self.group.pending.records.chunks
        self.chunk_count = self.group.pending.records.chunk_count
        self.unmet = MAX if self.owner is None else self.owner.pending
        first_pending(self.group.pending.records, self.start, &self.at)
        self.scan(LOOKS_AT_ONCE, out, PY_SSIZE_T_MAX)
        work.count += self.looks
        if self.over:
            return out.end_array(&head, self.found)
        out.size = head.at
        self.later(resp)
        return 0

    cdef bint is_empty(self) noexcept:
        """True if it is known without a search that there are no results."""
        if self.limit == 0 or self.owner is not None and self.owner.pending == 0:
            return True
        return self.has_idle_bounds and (
            bound_of(self.group.pending.records, IDLE) > self.latest_ms)

    cdef bint takes_all(self) noexcept:
        return self.owner is None and self.min_idle_ms <= 0

    cdef int begin_pass(self) noexcept:
        """Begin to count, or to send."""
        self.at.chunk = 0
        self.at.index = self.first_index
        self.found = self.looks = 0
        self.over = False
        return 0

    cdef int scan(self, uint64_t looks, Output out, Py_ssize_t full_size) except -1:
        """Continue the search for about `looks` steps. Results are encoded until `out` is full;
        without `out`, they are counted, and shared chunks without any are released."""
        cdef const Chunk* chunk
        cdef uint64_t before
        looks += self.looks
        while not self.over and self.looks < looks and (out is None or out.size < full_size):
            if self.at.chunk >= self.chunk_count:
                self.over = True
                break
            chunk = self.chunks[self.at.chunk]
            if chunk != NULL:
                before = self.found
                self.scan_chunk(chunk, looks, out, full_size)
                if self.counting and self.found == before:
                    self.shared.release(self.at.chunk)
                if self.over or out is not None and self.at.index < chunk.used:
                    break
                if self.shared is not None and not self.counting:
                    self.shared.release(self.at.chunk)
            self.at.chunk += 1
            self.at.index = 0
        return 0

    cdef int scan_chunk(self, const Chunk* chunk, uint64_t looks, Output out,
                        Py_ssize_t full_size) except -1:
        """`scan` in the current chunk, as a whole without `out`."""
        cdef const Pending* record
        cdef uint32_t i = self.at.index
        if self.has_idle_bounds and chunk.bounds[IDLE] > self.latest_ms:
            self.looks += SKIPPED_LOOKS
            i = chunk.used
        elif out is None and self.has_only_results(chunk):
            self.looks += SKIPPED_LOOKS
            self.found += chunk.used - i
            i = chunk.used
        while i < chunk.used:
            record = &chunk.items[i]
            if self.found == self.limit or self.unmet == 0 or id_less(
                    self.end.ms, self.end.seq, record.ms, record.seq):
                self.over = True
                break
            if out is not None and (out.size >= full_size or self.looks >= looks):
                break
            i += 1
            self.looks += 1
            if self.owner is not None:
                if record.consumer != self.owner.index:
                    continue
                self.unmet -= 1
            if self.is_idle(record):
                self.found += 1
                if out is not None:
                    self.put_row(out, record)
        self.at.index = i
        return 0

    cdef bint has_only_results(self, const Chunk* chunk) noexcept:
        """True if the remaining records of a chunk need not be read to be counted."""
        cdef const Pending* last = &chunk.items[chunk.used - 1]
        return self.takes_all() and self.found + chunk.used - self.at.index <= self.limit and (
            not id_less(self.end.ms, self.end.seq, last.ms, last.seq))

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
        put_signed(out, idle_of(record, self.now_ms))
        return out.put_head(c':', deliveries_of(record, self.large_counts))

    # ------------------------------------------------------------ a long reply

    cdef int keep(self) except -1:
        """Share the chunks, and begin to count."""
        first_pending(self.group.pending.records, self.start, &self.at)
        self.first_index = self.at.index
        self.shared = share_chunks(self.group.pending.records, self.at.chunk, self.chunks_needed())
        self.chunks = self.shared.chunks
        self.chunk_count = self.shared.count
        self.unmet = MAX if self.owner is None else self.owner.pending
        self.consumers = list(self.consumers)
        if self.large_counts is not None:
            self.large_counts = dict(self.large_counts)
        self.group = None
        self.counting = True
        return self.begin_pass()

    cdef uint32_t chunks_needed(self) noexcept:
        """The number of chunks, from that of the first record on, that may have results."""
        cdef PendingAt last
        cdef uint32_t place
        cdef uint64_t found = 0
        first_pending(self.group.pending.records, self.end, &last)
        if self.takes_all() and self.limit < self.group.pending.records.count:
            for place in range(self.at.chunk, last.chunk):
                found += self.group.pending.records.chunks[place].used
                if found >= self.limit + self.at.index:
                    return place + 1 - self.at.chunk
        return last.chunk + 1 - self.at.chunk

    def prepare(self) -> bool:
        cdef uint32_t place
        if self.counting:
            self.scan(LOOKS_TO_COUNT, None, 0)
        if self.counting and self.over:
            for place in range(self.at.chunk + 1, self.chunk_count):
                self.shared.release(place)
            self.counting = False
            self.head_due = True
            self.limit = self.found
            self.unmet = MAX
            self.begin_pass()
        return self.counting

    cdef bint put_rows(self, Output out, Py_ssize_t full_size) except -1:
        if self.head_due:
            self.head_due = False
            out.put_head(c'*', self.limit)
        self.scan(LOOKS_TO_SEND, out, full_size)
        return self.over


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
    clients, entries missed, entries lost, the second part of the ID of the
    oldest entry) of a group, for the metrics. -1 stands for a number that is unknown or does not
    exist."""
    cdef EntryId offset
    cdef EntryId entry
    cdef PendingAt at
    cdef const Pending* record = NULL
    cdef int64_t lag
    cdef int64_t oldest_ms = UNKNOWN
    cdef uint64_t oldest_seq = 0
    offset.ms = group.offset_ms
    offset.seq = group.offset_seq
    if not ends.find_lag(offset, group.entries_read, &lag):
        lag = UNKNOWN
    else:
        lag += group.parked
    if group.pending.records.count:
        record = first_pending(group.pending.records, EntryId(0, 0), &at)
    if record != NULL:
        oldest_ms = record.ms
        oldest_seq = record.seq
    if stream.has_newer(offset) and first_after(stream, offset, &entry) and (
            oldest_ms == UNKNOWN or entry.ms < <uint64_t>oldest_ms):
        oldest_ms = entry.ms
        oldest_seq = entry.seq
    return (group.pending.consumer_count(), group.pending.records.count, offset.ms,
            group.entries_read, lag, oldest_ms, group.pending.blocked_clients, missed_by(stream, group),
            lost_by(stream, group), oldest_seq)


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

cdef class MemberRows(Encodable):
    """Rows of consumers: all of these, after the head of the array; or, of many, those with these
    numbers in a copy."""
    cdef list consumers
    cdef SharedMembers members
    cdef uint64_t now_ms

    def __init__(self, list numbers not None, SharedMembers members not None, uint64_t now_ms):
        self.consumers = numbers
        self.members = members
        self.now_ms = now_ms

    cdef int encode(self, Output out, int resp) except -1:
        cdef MemberRow row
        cdef Py_ssize_t number
        if self.members is None:
            out.put_head(c'*', len(self.consumers))
        for one in self.consumers:
            if self.members is None:
                member_row(<Consumer>one, &row)
                self.put_row(out, resp, (<Consumer>one).name, &row)
            else:
                number = one
                self.put_row(out, resp, self.members.names[number], self.members.find(number))
        return 0

    cdef int put_row(self, Output out, int resp, bytes name, const MemberRow* row) except -1:
        raise NotImplementedError


cdef class ConsumerRows(MemberRows):
    """XINFO CONSUMERS: a map for each consumer."""

    cdef int put_row(self, Output out, int resp, bytes name, const MemberRow* row) except -1:
        cdef int64_t now_ms = self.now_ms
        put_map_head(out, resp, 4)
        out.put_raw(b"$4\r\nname\r\n", 10)
        out.put_bulk_bytes(name)
        out.put_raw(b"$7\r\npending\r\n", 13)
        out.put_head(c':', row.pending)
        out.put_raw(b"$4\r\nidle\r\n", 10)
        out.put_head(c':', max(now_ms - row.seen_ms, 0))
        out.put_raw(b"$8\r\ninactive\r\n", 14)
        return put_signed(out, -1 if row.active_ms < 0 else max(now_ms - row.active_ms, 0))


cdef class OwnerRows(MemberRows):
    """The summary of XPENDING: [name, number] of each consumer that owns pending entries."""

    cdef int put_row(self, Output out, int resp, bytes name, const MemberRow* row) except -1:
        cdef char[20] text
        out.put_raw(b"*2\r\n", 4)
        out.put_bulk_bytes(name)
        return out.put_bulk(text, format_u64(text, row.pending))


cdef class PendingSummary(OwnerRows):
    """XPENDING of a group with few consumers: [total, first ID, last ID, [[consumer, number], ...]].
    The total includes entries without an owner."""
    cdef Group group

    cdef int encode(self, Output out, int resp) except -1:
        cdef const Chunk* chunk
        cdef Group group = self.group
        out.put_raw(b"*4\r\n", 4)
        out.put_head(c':', group.pending.records.count)
        if group.pending.records.count == 0:
            put_nil(out, resp)
            put_nil(out, resp)
            return put_null_array(out, resp)
        chunk = group.pending.records.chunks[0]
        out.put_id(chunk.items[0].ms, chunk.items[0].seq, False)
        chunk = group.pending.records.chunks[group.pending.records.chunk_count - 1]
        out.put_id(chunk.items[chunk.used - 1].ms, chunk.items[chunk.used - 1].seq, False)
        return OwnerRows.encode(self, out, resp)


cdef class GroupRows(Encodable):
    """XINFO GROUPS, a map for each group: all of these, after the head of the array; or, of many, those
    with these numbers in a copy."""
    cdef list groups
    cdef SharedGroups shared
    cdef StreamEnds ends

    def __init__(self, list numbers not None, SharedGroups shared not None, StreamEnds ends not None):
        self.groups = numbers
        self.shared = shared
        self.ends = ends

    cdef int encode(self, Output out, int resp) except -1:
        cdef GroupRow row
        cdef Py_ssize_t number
        if self.shared is None:
            out.put_head(c'*', len(self.groups))
        for one in self.groups:
            if self.shared is None:
                group_row(<Group>one, &row)
                self.put_row(out, resp, (<Group>one).name, &row)
            else:
                number = one
                self.put_row(out, resp, self.shared.names[number], self.shared.find(number))
        return 0

    cdef int put_row(self, Output out, int resp, bytes name, const GroupRow* row) except -1:
        put_map_head(out, resp, 7 if row.missed else 6)
        out.put_raw(b"$4\r\nname\r\n", 10)
        out.put_bulk_bytes(name)
        out.put_raw(b"$9\r\nconsumers\r\n", 15)
        out.put_head(c':', row.consumers)
        out.put_raw(b"$7\r\npending\r\n", 13)
        out.put_head(c':', row.pending)
        put_progress(out, resp, self.ends, row)
        if row.missed:
            out.put_raw(b"$14\r\nentries-missed\r\n", 21)
            out.put_head(c':', row.missed)
        return 0


# Rows that are made at once, in less than a tenth of a millisecond; None if they are too many.

def few_consumers(Group group not None, uint64_t now_ms) -> ConsumerRows | None:
    """All consumers of a group. Encode them before the group changes."""
    cdef ConsumerRows made = ConsumerRows.__new__(ConsumerRows)
    cdef list members = group.pending.members()
    if len(members) > FEW:
        return None
    made.consumers = by_name([one for one in members if one is not None])
    made.now_ms = now_ms
    return made


def few_owners(Group group not None) -> PendingSummary | None:
    """The consumers of a group that own pending entries, after the figures of the group."""
    cdef PendingSummary made = PendingSummary.__new__(PendingSummary)
    cdef list members = group.pending.members()
    if len(members) > FEW and group.pending.records.count:
        return None
    made.group = group
    made.consumers = by_name(
        [one for one in members if one is not None and (<Consumer>one).pending])
    return made


def few_groups(Stream stream not None, uint64_t now_ms) -> GroupRows | None:
    """All groups of a stream that have not ended by now_ms."""
    cdef GroupRows made = GroupRows.__new__(GroupRows)
    cdef Group group
    if group_count(stream.group_set) > FEW:
        return None
    made.groups = by_name([group for group in counted_groups(stream).values()
                           if not has_ended(group, now_ms)])
    made.ends = StreamEnds(stream)
    return made


cdef list by_name(list found):
    """Sort consumers or groups."""
    if len(found) > 1:
        found.sort(key=name_of)
    return found


def name_of(one) -> bytes:
    return (<Consumer>one).name if type(one) is Consumer else (<Group>one).name


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
        return put_signed(out, lag + <int64_t>row.parked)
    return put_nil(out, resp)
