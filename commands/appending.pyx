# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Appending to a stream and evicting from it, as a command does both: what TAPPEND, TAPPEV, XADD and
XTRIM share. The stream is changed, the effect is recorded, and whoever waits on the key is noted. A
stream with a policy is trimmed behind each append, so whoever appends keeps it.
"""

from libc.stdint cimport uint32_t, uint64_t

from millstream.commands.context cimport Context
from millstream.commands.upkeep cimport stream_to_write
from millstream.encoding cimport Slice
from millstream.ids cimport EntryId, Id, make_id, step_up
from millstream.storage.block cimport payload_of
from millstream.storage.keyspace cimport AT_ONCE
from millstream.storage.policy cimport Policy
from millstream.storage.retention cimport find_cut, oldest_block
from millstream.storage.stream cimport Stream


cdef Stream stream_to_append(Context ctx, Slice* key, Slice* items, Py_ssize_t count):
    """The stream an entry of these words goes to, made when there is none."""
    cdef Stream stream = ctx.db.writable_at(key)
    if stream is None:
        payload_of(items, count)
        stream = stream_to_write(ctx, key.ptr[:key.size])
    return stream


cdef Id append_entry(Context ctx, Slice* key, Stream stream, EntryId entry_id, Slice* items,
                     Py_ssize_t count, bint dotted):
    """Append one entry, record it, mark its key ready; returns its id."""
    stream.append(entry_id.ms, entry_id.seq, items, count, ctx.keyspace.node_entries,
                  ctx.keyspace.node_bytes)
    ctx.keyspace.dirty += 1
    if ctx.effects.enabled:
        ctx.effects.append(ctx.db.index, ctx.db.key_of(key), entry_id.ms, entry_id.seq, items,
                           count)
    return after_append(ctx, key, stream, entry_id, dotted)


cdef Id append_numbered(Context ctx, Slice* key, Stream stream, EntryId entry_id, Slice* items,
                        Py_ssize_t count, bytes producer, uint64_t seq, uint32_t slot):
    """As append_entry, for the entry that a producer numbers `seq`; `slot` was reserved for it."""
    stream.append(entry_id.ms, entry_id.seq, items, count, ctx.keyspace.node_entries,
                  ctx.keyspace.node_bytes)
    stream.producers.note(slot, producer, seq)
    ctx.keyspace.dirty += 1
    if ctx.effects.enabled:
        ctx.effects.append_once(ctx.db.index, ctx.db.key_of(key), entry_id.ms, entry_id.seq,
                                producer, seq, items, count)
    return after_append(ctx, key, stream, entry_id, True)


cdef inline Id after_append(Context ctx, Slice* key, Stream stream, EntryId entry_id, bint dotted):
    """Tell whoever waits, keep the stream's policy; returns the id."""
    cdef Cut cut
    ctx.db.mark_ready_at(key)
    if ctx.events:
        ctx.notify(b"t", b"xadd", ctx.db.key_of(key))
    if stream.policy is not None:
        keep_policy(ctx, ctx.db.key_of(key), stream, BLOCKS_AT_ONCE, &cut)
    return make_id(entry_id.ms, entry_id.seq, dotted)


cdef uint64_t evict_to(Context ctx, bytes key, Stream stream,
                       boundary) except? 0xffffffffffffffff:
    """Evict what is below boundary (ms, seq), all for "all", nothing for None; returns how many.
    They are not counted as changes: behind an append, which is one, Redis does not count them."""
    cdef uint64_t evicted
    if boundary is None:
        return 0
    if boundary == "all":
        evicted = stream.evict_all()
        if evicted and ctx.effects.enabled:
            ctx.effects.record(ctx.db.index, b"EVICT", key, b"+")
    else:
        evicted = stream.evict_before(boundary[0], boundary[1])
        if evicted and ctx.effects.enabled:
            ctx.effects.evict(ctx.db.index, key, boundary[0], boundary[1])
    tell_evicted(ctx, key, evicted)
    return evicted


cdef uint64_t keep_policy(Context ctx, bytes key, Stream stream, uint32_t blocks_max,
                          Cut* cut) except? 0xffffffffffffffff:
    """Evict what the stream's policy does not keep, of at most blocks_max blocks, and note when to
    look again; returns how many entries went. The stream was taken for writing."""
    cdef Policy policy = stream.policy
    cdef uint64_t evicted = 0
    find_cut(stream, ctx.now_ms, blocks_max, cut)
    if cut.some:
        evicted = evict_to(
            ctx, key, stream, "all" if cut.all else (cut.first.ms, cut.first.seq))
    if cut.more:
        policy.looked_at_ms = ctx.keyspace.note_trim(AT_ONCE, ctx.db.index, key)
    elif policy.max_age_ms and policy.looked_at_ms > stream.last_ms + policy.max_age_ms:
        # Ids rise: a moment that is not behind the newest entry's holds for the oldest, too.
        ctx.keyspace.schedule_trim(ctx.db.index, key, stream)
    return evicted


def drop_oldest_block(Context ctx not None, bytes key not None) -> int:
    """Evict the first block of a stream that has one, to make room; returns how many entries went.
    It is nobody's use of the key."""
    cdef Stream stream
    cdef EntryId last
    cdef bint is_open
    cdef uint64_t evicted
    cdef uint32_t used_s = (<Stream>ctx.db.get(key)).used_s
    stream = ctx.db.writable_stream(key)
    stream.used_s = used_s
    if not oldest_block(stream, &last, &is_open):
        return 0
    evicted = evict_to(ctx, key, stream, (last.ms, last.seq) if step_up(&last) else "all")
    if is_open:
        stream.tail = None  # emptied, it would keep its memory
    ctx.keyspace.dirty += evicted
    return evicted


cdef int tell_evicted(Context ctx, bytes key, uint64_t evicted) except -1:
    if evicted and ctx.events:
        ctx.notify(b"t", b"xtrim", key)
    return 0
