# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Giving a group's entries out: what TREAD GROUP and XREADGROUP share.

Here is also what happens to a group by itself (pending entries that expire, a time to live that
ends). It is done when the moment comes and, because a timer may be late, again before any command
looks at the group; so no reply depends on when the timer ran.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from millstream.commands.arguments cimport Args
from millstream.commands.context cimport Context
from millstream.encoding cimport Output, put_nil
from millstream.ids cimport EntryId, id_less, make_id, parse_id, step_up
from millstream.storage.block cimport Entry, IdText, View, encode_entry
from millstream.storage.group cimport NO_POLICY, UNOWNED, Group, Pending, PendingAt
from millstream.storage.stream cimport Stream, Walk

cdef enum:
    # Expired pending entries dropped at once; what is left goes on with the next moment.
    EXPIRED_MAX = 10000



cdef class Retry:
    """RETRY retry-ms expire-ms as a reader gave it."""

    def __init__(self, uint64_t retry_ms, uint64_t expire_ms):
        self.retry_ms = retry_ms
        self.expire_ms = expire_ms


cdef Stream stream_to_write(Context ctx, bytes key):
    """The stream at a key, made when there is none."""
    cdef Stream stream = ctx.db.writable_stream(key)
    if stream is None:
        stream = ctx.db.make_stream(key, ctx.keyspace.next_incarnation(ctx.now_ms))
        ctx.keyspace.dirty += 1
        ctx.effects.record(ctx.db.index, b"STREAM", key, stream.incarnation)
        ctx.db.mark_ready(key)  # readers that wait on a group make it anew
        stream = ctx.db.stream(key)
    return stream


# ---------------------------------------------------------------- upkeep

cdef Group live_group(Context ctx, bytes key, Stream stream, bytes name):
    """A group after all that was due by itself; None when there is none (any more). The stream
    was taken for writing."""
    cdef Group group = stream.group(name)
    if group is None:
        return None
    if group.ttl_ms and group.is_over(ctx.now_ms):
        stream.drop_group(name)
        ctx.keyspace.dirty += 1
        ctx.effects.record(ctx.db.index, b"GROUPDROP", key, name)
        ctx.db.mark_ready(key)
        return None
    if group.has_expired(ctx.now_ms):
        gone = group.take_expired(ctx.now_ms, EXPIRED_MAX)
        if gone:
            ctx.keyspace.dirty += len(gone)
            record_ids(ctx, b"ACK", key, name, gone)
    return group


def find_live_group(Context ctx not None, bytes key not None, Stream stream not None,
                    bytes name not None) -> Group | None:
    """`live_group` for handlers in Python."""
    return live_group(ctx, key, stream, name)


cdef int record_ids(Context ctx, bytes effect, bytes key, bytes name, list ids) except -1:
    """An effect on some pending entries."""
    if ctx.effects.enabled:
        ctx.effects.record(ctx.db.index, effect, key, name,
                           *[bytes(make_id(ms, seq, False)) for ms, seq in ids])
    return 0


cdef int used(Context ctx, bytes key, Group group) except -1:
    """A command was about this group: its time to live starts anew."""
    group.last_used_ms = ctx.now_ms
    return ctx.keyspace.schedule(ctx.db.index, key, group)


def group_moment(Context ctx not None, bytes key not None, bytes name not None) -> None:
    """A moment noted for a group has come: do what is due, wake a reader for a retry, note the
    next moment."""
    cdef Stream stream
    cdef Group group
    value = ctx.db.get(key)
    if not isinstance(value, Stream):
        return
    stream = ctx.db.writable_stream(key)
    group = live_group(ctx, key, stream, name)
    if group is None:
        return
    group.scheduled_ms = MAX
    if group.retry_waiters and group.next_wake_ms() <= ctx.now_ms:
        # The readers' turn comes behind this; each that blocks again notes the next moment.
        ctx.db.mark_ready(key)
    group.next_expiry_ms()
    ctx.keyspace.schedule_after(ctx.db.index, key, group, ctx.now_ms)


cdef Group new_group(Context ctx, bytes key, Stream stream, bytes name, uint64_t ms, uint64_t seq,
                     int64_t entries_read, uint64_t ttl_ms):
    """Make a group that reads what comes after ms-seq. Whoever waits on its name joins it."""
    cdef Group group = stream.make_group(name, ms, seq, ctx.now_ms)
    waiting = ctx.db.waiting.get(key)
    if waiting is not None:
        waiting.join(name, stream, group)
    group.entries_read = entries_read
    group.ttl_ms = ttl_ms
    ctx.keyspace.dirty += 1
    if ctx.effects.enabled:
        ctx.effects.record(ctx.db.index, b"GROUP", key, name, bytes(make_id(ms, seq, False)),
                           b"%d" % entries_read, ttl_ms)
    return group


# ---------------------------------------------------------------- entries read, as Redis counts

cdef int64_t distance_from_first(Stream stream, uint64_t ms, uint64_t seq) noexcept:
    """How many entries were ever added up to this id, -1 when it cannot be known
    (Redis 7.0, streamEstimateDistanceFromFirstEverEntry)."""
    cdef EntryId first
    cdef bint unbroken
    if stream.entries_added == 0:
        return 0
    if stream.length == 0:
        return -1 if id_less(stream.last_ms, stream.last_seq, ms, seq) else (
            <int64_t>stream.entries_added)
    if (ms or seq) and id_less(ms, seq, stream.max_deleted_ms, stream.max_deleted_seq):
        return -1
    if ms == stream.last_ms and seq == stream.last_seq:
        return stream.entries_added
    if id_less(stream.last_ms, stream.last_seq, ms, seq):
        return -1
    stream.first_entry(&first)
    unbroken = id_less(stream.max_deleted_ms, stream.max_deleted_seq, first.ms, first.seq)
    if not unbroken:
        return -1
    if id_less(ms, seq, first.ms, first.seq):
        return stream.entries_added - stream.length
    if ms == first.ms and seq == first.seq:
        return stream.entries_added - stream.length + 1
    return -1


cdef bint has_tombstones(Stream stream, uint64_t ms, uint64_t seq) noexcept:
    """Whether an entry at or above this id was deleted (Redis 7.2, streamRangeHasTombstones)."""
    cdef EntryId first
    if stream.max_deleted_ms == 0 and stream.max_deleted_seq == 0:
        return False
    if not stream.first_entry(&first):
        return False
    if id_less(stream.max_deleted_ms, stream.max_deleted_seq, first.ms, first.seq):
        return False
    return not id_less(stream.max_deleted_ms, stream.max_deleted_seq, ms, seq)


def group_lag(Stream stream not None, Group group not None) -> int | None:
    """Entries a group has not read yet, None when that cannot be known (Redis 8's rules)."""
    cdef int64_t read
    cdef EntryId oldest
    if not stream.first_entry(&oldest):
        return 0
    if id_less(group.offset_ms, group.offset_seq, oldest.ms, oldest.seq) and id_less(
            stream.max_deleted_ms, stream.max_deleted_seq, oldest.ms, oldest.seq):
        return stream.length
    if group.entries_read >= 0 and not has_tombstones(stream, group.offset_ms, group.offset_seq):
        return <int64_t>stream.entries_added - group.entries_read
    read = distance_from_first(stream, group.offset_ms, group.offset_seq)
    return None if read < 0 else <int64_t>stream.entries_added - read


# ---------------------------------------------------------------- delivery

cdef bint group_has_gap(Stream stream, Group group) noexcept:
    """Whether entries behind the group's offset were evicted unread; for a group that began at 0
    those evicted before its creation do not count."""
    return id_less(group.offset_ms, group.offset_seq, stream.max_evicted_ms,
                   stream.max_evicted_seq) and id_less(
        group.gap_floor_ms, group.gap_floor_seq, stream.max_evicted_ms, stream.max_evicted_seq)


cdef bint is_broken(Stream stream, Group group) noexcept:
    """Whether the count of entries read cannot just go on: entries behind the group's offset were
    deleted, or evicted unread."""
    cdef EntryId oldest
    return has_tombstones(stream, group.offset_ms, group.offset_seq) or (
        stream.first_entry(&oldest)
        and id_less(group.offset_ms, group.offset_seq, oldest.ms, oldest.seq))


cdef int count_read(Stream stream, Group group, EntryId first, uint64_t given,
                    bint broken) except -1:
    """`given` entries from `first` up to the group's offset were read. What Redis counts entry by
    entry: on from a known count, else from what the first entry's place tells, else the last's."""
    cdef int64_t read = group.entries_read
    if read < 0 or broken:
        read = distance_from_first(stream, first.ms, first.seq) - 1
    if read >= 0:
        group.entries_read = read + given
    else:
        group.entries_read = distance_from_first(stream, group.offset_ms, group.offset_seq)
    return 0


cdef class Ids:
    """Ids of entries that a reply shows, before they count as given."""
    cdef EntryId* items
    cdef size_t count
    cdef size_t capacity

    def __dealloc__(self):
        free(self.items)

    cdef int add(self, uint64_t ms, uint64_t seq) except -1:
        cdef size_t wanted
        cdef EntryId* moved
        if self.count == self.capacity:
            wanted = self.capacity * 2 if self.capacity else 16
            moved = <EntryId*>realloc(self.items, wanted * sizeof(EntryId))
            if moved == NULL:
                raise MemoryError("no memory for the ids of a delivery")
            self.items = moved
            self.capacity = wanted
        self.items[self.count].ms = ms
        self.items[self.count].seq = seq
        self.count += 1
        return 0


cdef uint64_t give_new(Context ctx, bytes key, Stream stream, Group group, bytes consumer,
                       bint keep, Retry retry, uint64_t limit, bint dotted,
                       Output out) except? 0xffffffffffffffff:
    """Deliver up to `limit` entries behind the group's offset into `out`; returns how many.

    keep: they become pending, of `consumer` (b"" for nobody), with `retry` or without (None).
    The whole delivery is one effect.
    """
    cdef Walk walk
    cdef IdText id_text
    cdef EntryId first
    cdef EntryId start
    cdef uint64_t found = 0
    cdef uint64_t given = 0
    cdef uint32_t policy = NO_POLICY
    cdef uint32_t owner = UNOWNED
    cdef bint broken
    cdef Ids shown = Ids.__new__(Ids)
    if limit == 0 or not stream.has_newer(group.offset_ms, group.offset_seq):
        return 0
    if retry is not None:
        policy = group.policy(retry.retry_ms, retry.expire_ms)
    if consumer:
        owner = group.consumer(consumer).index
    broken = is_broken(stream, group)
    start.ms = group.offset_ms
    start.seq = group.offset_seq
    id_text.size = 0
    id_text.dotted = dotted
    step_up(&start)
    stream.walk_start(&walk, start.ms, start.seq)
    # The reply first: it is what may not fit into memory, and then nothing has been given.
    while found < limit and stream.walk_next(&walk):
        encode_entry(out, &walk.view, &walk.cursor.entry, &id_text)
        shown.add(walk.cursor.entry.ms, walk.cursor.entry.seq)
        found += 1
    first = shown.items[0]
    try:
        for given in range(found):
            if keep:
                group.deliver(shown.items[given].ms, shown.items[given].seq, ctx.now_ms, owner,
                              policy)
            group.offset_ms = shown.items[given].ms
            group.offset_seq = shown.items[given].seq
        given = found
    finally:
        # Should a delivery fail nevertheless, those before it count and are recorded.
        if given:
            count_read(stream, group, first, given, broken)
            ctx.keyspace.dirty += given
            if ctx.effects.enabled:
                record_delivery(ctx, key, group, consumer, first, keep, retry)
    return found


cdef int record_delivery(Context ctx, bytes key, Group group, bytes consumer, EntryId first,
                         bint keep, Retry retry) except -1:
    cdef Output out = ctx.effects.out
    ctx.effects.begin(ctx.db.index, b"$7\r\nDELIVER\r\n", 13, 11)
    out.put_bulk_bytes(key)
    out.put_bulk_bytes(group.name)
    out.put_bulk_bytes(consumer)
    out.put_id(first.ms, first.seq, False)
    out.put_id(group.offset_ms, group.offset_seq, False)
    ctx.effects.put_number(ctx.now_ms)
    out.put_bulk_bytes(b"%d" % group.entries_read)
    if retry is None:
        out.put_raw(b"$1\r\n-\r\n$1\r\n-\r\n", 14)
    else:
        ctx.effects.put_number(retry.retry_ms)
        ctx.effects.put_number(retry.expire_ms)
    return out.put_bulk_bytes(b"keep" if keep else b"forget")


cdef uint64_t give_due(Context ctx, bytes key, Stream stream, Group group, Retry retry,
                       bint with_zero, uint64_t limit, Output out,
                       int resp) except? 0xffffffffffffffff:
    """Deliver again up to `limit` pending entries that are due, earliest due first; returns how
    many elements that made. An entry that is gone is a nil and no longer pending."""
    cdef Pending* record
    cdef PendingAt at
    cdef View view
    cdef Entry entry
    cdef IdText id_text
    cdef uint64_t ms, seq
    cdef bint change = retry is not None
    cdef uint32_t policy = group.policy(retry.retry_ms, retry.expire_ms) if change else NO_POLICY
    if limit == 0 or not group.is_due(ctx.now_ms, with_zero):
        return 0
    id_text.size = 0
    id_text.dotted = True
    taken = group.take_due(ctx.now_ms, limit, with_zero)
    again = []
    dropped = []
    # The reply first, then the effect, then the change: what runs out of memory has done nothing.
    for ms, seq in taken:
        if not stream.find(ms, seq, &view, &entry):
            put_nil(out, resp)
            dropped.append((ms, seq))
            continue
        encode_entry(out, &view, &entry, &id_text)
        again.append((ms, seq))
    if again and ctx.effects.enabled:
        ctx.effects.record(
            ctx.db.index, b"REDELIVER", key, group.name, ctx.now_ms,
            retry.retry_ms if change else b"-", retry.expire_ms if change else b"-",
            *[bytes(make_id(ms, seq, False)) for ms, seq in again])
    ctx.keyspace.dirty += len(taken)
    for ms, seq in again:
        record = group.find(ms, seq, &at)
        group.redeliver(record, &at, ctx.now_ms, policy, change)
        # A shorter expire-ms than has already passed: delivered this once more, then dropped.
        record = group.find(ms, seq, &at)
        if group.expires_ms(record) <= ctx.now_ms:
            dropped.append((ms, seq))
    if dropped:
        record_ids(ctx, b"ACK", key, group.name, dropped)
    for ms, seq in dropped:
        group.acknowledge(ms, seq)
    return len(taken)


# ---------------------------------------------------------------- acknowledging

cdef int64_t acknowledge(Context ctx, Args args, bint dot_allowed) except -1:
    """TACK and XACK: how many of the ids were pending."""
    cdef Stream stream = ctx.db.writable_at(&args.items[1])
    cdef bytes key
    cdef bytes name
    cdef Group group
    cdef EntryId found
    cdef Py_ssize_t i
    cdef list gone
    cdef int64_t removed = 0
    if stream is None:
        return 0
    key = ctx.db.key_of(&args.items[1])
    name = args.items[2].ptr[:args.items[2].size]
    group = live_group(ctx, key, stream, name)
    if group is None:
        return 0
    args.pos = 3
    while args.pos < args.count:
        args.take_id(&found, dot_allowed, 0)
    gone = []
    for i in range(3, args.count):
        parse_id(args.items[i].ptr, args.items[i].size, dot_allowed, 0, &found)
        if group.acknowledge(found.ms, found.seq):
            removed += 1
            if ctx.effects.enabled:
                gone.append(bytes(make_id(found.ms, found.seq, False)))
    if removed:
        ctx.keyspace.dirty += removed
        if ctx.effects.enabled:
            ctx.effects.record(ctx.db.index, b"ACK", key, name, *gone)
    used(ctx, key, group)
    return removed
