# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Evicting entries from the head of a stream, for XADD, XTRIM, TAPPEV, retention policies and others: these
functions change the stream, record the effect, and count what groups missed and lost by it.
"""

from libc.stdint cimport uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport (
    record_evict_all, record_eviction, record_passed,
)
from millstream.entry_id cimport EntryId, step_up
from millstream.storage.groups.group cimport Group, picking_of
from millstream.storage.groups.picking cimport Picking
from millstream.storage.streams.head_eviction cimport (
    evict_before, evict_every, evict_few, lost_by_trim, missed_by_trim,
)
from millstream.storage.streams.retention cimport oldest_block
from millstream.storage.streams.stream cimport Stream
from millstream.storage.streams.stream_groups cimport all_groups

from millstream.errors import shown
from millstream.storage.streams.head_eviction import overtaken_group


cpdef uint64_t evict_to(Context ctx, bytes key, Stream stream, boundary,
                       bint counts) except? 0xffffffffffffffff:
    """Evict the entries below boundary (ms, seq), all for "all", none for None; returns their
    number. counts: whether evicted entries count as changes; Redis does not count them after an
    append, which is a change."""
    cdef uint64_t evicted
    if boundary is None:
        return 0
    record_passes(ctx, key, stream)
    if boundary == "all":
        evicted = evict_every(stream)
        if evicted:
            record_evict_all(ctx.effects, ctx.db.index, key)
            note_lost(ctx, key, stream)
            ctx.count_change(key, b"xtrim", evicted if counts else 0)
        return evicted
    evicted = evict_before(stream, boundary[0], boundary[1])
    if evicted:
        note_evicted(ctx, key, stream, EntryId(boundary[0], boundary[1]), evicted, counts)
    return evicted


cdef uint64_t evict_to_length(Context ctx, bytes key, Stream stream, uint64_t keep,
                              bint counts) except? 0xffffffffffffffff:
    """Evict the oldest entries until at most `keep` are left; returns their number. counts: as in
    `evict_to`."""
    cdef uint64_t evicted
    if stream.length <= keep:
        return 0
    record_passes(ctx, key, stream)
    evicted = evict_few(stream, stream.length - keep)
    if evicted == 0:
        return evict_to(ctx, key, stream, length_boundary(stream, keep), counts)
    note_evicted(ctx, key, stream, EntryId(stream.head_ms, stream.head_seq), evicted, counts)
    return evicted


cpdef int record_passes(Context ctx, bytes key, Stream stream) except -1:
    """Record how far groups with a filter have come: where this is replayed, they must not miss the entries
    that are removed after it."""
    cdef Group group
    cdef Picking picking
    if stream.group_set is None or not ctx.keyspace.has_rules:
        return 0
    for group in all_groups(stream.group_set):
        picking = picking_of(group)
        if picking is not None and picking.unrecorded:
            record_pass(ctx, key, group)
    return 0


cdef int record_pass(Context ctx, bytes key, Group group) except -1:
    """Record that a group has passed over entries."""
    record_passed(ctx.effects, ctx.db.index, key, group, ctx.steady_ms)
    return ctx.count_change(None, None, 1)


cdef inline int note_evicted(Context ctx, bytes key, Stream stream, EntryId first_kept,
                             uint64_t evicted, bint counts) except -1:
    """Record and count the eviction of all entries below an ID."""
    record_eviction(ctx.effects, ctx.db.index, key, first_kept)
    note_lost(ctx, key, stream)
    return ctx.count_change(key, b"xtrim", evicted if counts else 0)


cdef inline int note_lost(Context ctx, bytes key, Stream stream) except -1:
    """Count the entries of a trim that groups held."""
    cdef uint64_t lost = lost_by_trim(stream)
    cdef uint64_t missed
    if lost:
        missed = missed_by_trim(stream)
        ctx.keyspace.lost_entries += lost
        ctx.keyspace.missed_entries += missed
        ctx.keyspace.unlogged_missed += missed
        if missed and ctx.steady_ms >= ctx.keyspace.missed_log_ms:
            log_missed(ctx, key, stream)
    return 0


cdef int log_missed(Context ctx, bytes key, Stream stream) except -1:
    """Log that entries were missed, at most one line a minute."""
    ctx.server.warn(
        f"entries that group '{shown(overtaken_group(stream))}' of stream '{shown(key)}' had not read "
        f"are evicted: {ctx.keyspace.unlogged_missed} entries, counted for each group, since the "
        "last such line")
    ctx.keyspace.unlogged_missed = 0
    ctx.keyspace.missed_log_ms = ctx.steady_ms + MISSED_LOG_EVERY_MS
    return 0


def drop_oldest_block(Context ctx not None, bytes key not None) -> int:
    """Evict the first block of a stream that has one, to free memory; returns the number of evicted
    entries. Does not count as a use of the key."""
    cdef Stream stream = ctx.maintained_stream(key)
    cdef EntryId last
    cdef bint is_open
    cdef uint64_t evicted
    if not oldest_block(stream, &last, &is_open):
        return 0
    evicted = evict_to(ctx, key, stream, (last.ms, last.seq) if step_up(&last) else "all",
                       True)
    if is_open:
        stream.tail = None  # an empty open block would keep its memory
    return evicted
