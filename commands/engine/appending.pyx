# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Appending to a stream and evicting from it, for TAPPEND, TAPPEV, XADD, XTRIM and others: these
functions change the stream, record the effect, and mark the key ready for waiting readers. A stream
with a policy is trimmed after each append.
"""

from libc.stdint cimport UINT64_MAX as NEVER, uint32_t, uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport (
    record_append, record_append_once, record_evict_all, record_eviction, window_of,
)
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, step_up
from millstream.ids cimport Id, make_id
from millstream.storage.blocks.open_block cimport payload_of
from millstream.storage.keyspace.keyspace_core cimport AT_ONCE
from millstream.storage.reservations.held cimport Held, handed_out
from millstream.storage.streams.head_eviction cimport (
    evict_before, evict_every, evict_few, missed_by_trim,
)
from millstream.storage.streams.retention cimport find_trim_point, oldest_block
from millstream.storage.streams.stream cimport FOLLOWED, RESERVING, SEALED, RetentionPolicy, Stream

from millstream.commands.engine.refusals import held_error, sealed_error
from millstream.commands.runtime.stream_effects import IDMP
from millstream.errors import EXHAUSTED, CommandError, shown
from millstream.storage.streams.head_eviction import overtaken_group

cdef Stream stream_to_append(Context ctx, Slice* key, Slice* items, Py_ssize_t count):
    """The stream for an entry with these words, created if necessary."""
    cdef Stream stream = ctx.write_stream_at(key)
    if stream is None:
        payload_of(items, count)
        stream = ctx.open_stream(key.ptr[:key.size])
    elif stream.restrictions:
        check_append(ctx, stream)
    return stream


cdef int check_append(Context ctx, Stream stream) except -1:
    """Refuse an append to a stream that is sealed or holds too much."""
    if stream.restrictions & SEALED:
        raise CommandError(sealed_error(stream))
    if stream.restrictions & RESERVING and ctx.keyspace.held_max_bytes and (
            (<Held>stream.held).size_bytes > ctx.keyspace.held_max_bytes):
        raise held_error(ctx, stream)
    return 0


cdef int restricted_id(Context ctx, Stream stream, EntryId* out) except -1:
    """`new_id` for a stream with reservations or promises."""
    cdef uint64_t now_ms = ctx.now_ms
    out[0] = handed_out(stream)
    if stream.restrictions & FOLLOWED:
        now_ms = max(now_ms, ctx.keyspace.promised_ms + 1)
    if now_ms > out.ms:
        out.ms = now_ms
        out.seq = 0
    elif not step_up(out):
        raise CommandError(EXHAUSTED)
    return 0


def check_promise(Context ctx not None, Stream stream not None, uint64_t ms, uint64_t seq,
                  str name not None, bint dotted) -> None:
    """`check_above_promise` for callers in Python."""
    check_above_promise(ctx, stream, EntryId(ms, seq), name, dotted)


cdef int check_above_promise(Context ctx, Stream stream, EntryId entry_id, str name,
                             bint dotted) except -1:
    """Refuse an ID within the promise to readers of the stream that no entry up to an ID will be
    added."""
    if stream.restrictions & FOLLOWED and entry_id.ms <= ctx.keyspace.promised_ms:
        promised = bytes(make_id(ctx.keyspace.promised_ms, NEVER, dotted)).decode()
        raise CommandError(f"ERR The ID specified in {name} is not above {promised}: readers were "
                           "promised that nothing comes up to there")
    return 0


cdef Id append_entry(Context ctx, Slice* key, Stream stream, const NewEntry* entry, bint dotted):
    """Append one entry, record it, mark its key ready; returns its ID."""
    cdef bytes name = ctx.db.key_of(key)  # before any change, because it may need memory
    put_entry(ctx, stream, entry)
    record_append(ctx.effects, ctx.db.index, name, entry.id, entry.items, entry.count)
    return after_append(ctx, key, stream, entry.id, dotted)


cdef Id append_numbered(Context ctx, Slice* key, Stream stream, const NewEntry* entry,
                        bytes producer, uint64_t seq):
    """Like append_entry, for the entry with a producer's number `seq`. After a failure neither the
    entry nor the number is stored."""
    cdef bytes name = ctx.db.key_of(key)
    before = stream.producers.put(producer, seq)
    try:
        put_entry(ctx, stream, entry)
    except BaseException:
        stream.producers.put_back(producer, before)
        raise
    record_append_once(ctx.effects, ctx.db.index, name, entry, producer, seq)
    return after_append(ctx, key, stream, entry.id, True)


cdef Id append_message(Context ctx, Slice* key, Stream stream, const NewEntry* entry,
                       bytes producer, bytes iid):
    """Like append_entry, for the entry of a producer's message `iid` (XADD IDMP). After a failure
    neither the entry nor the message is stored."""
    cdef bytes name = ctx.db.key_of(key)
    cdef uint64_t at_ms = min(entry.id.ms, ctx.now_ms)
    cdef tuple effect = (IDMP, name, producer, iid,
                         bytes(make_id(entry.id.ms, entry.id.seq, False)), at_ms)
    cdef Id appended
    window = window_of(stream)
    window.put(producer, iid, (entry.id.ms, entry.id.seq), at_ms)
    try:
        put_entry(ctx, stream, entry)
    except BaseException:
        window.put_back(producer, iid)
        raise
    ctx.effects.open_group()
    record_append(ctx.effects, ctx.db.index, name, entry.id, entry.items, entry.count)
    appended = after_append(ctx, key, stream, entry.id, False)
    ctx.change(effect, None, 0)
    ctx.effects.close_group()
    window.trim(producer, at_ms)
    return appended


cdef inline Id after_append(Context ctx, Slice* key, Stream stream, EntryId entry_id, bint dotted):
    """Count and notify, enforce the stream's policy; returns the ID."""
    count_appended(ctx, key, stream, 1)
    if stream.policy is not None:
        keep_policy_after_append(ctx, ctx.db.key_of(key), stream)
    return make_id(entry_id.ms, entry_id.seq, dotted)


cdef int count_appended(Context ctx, Slice* key, Stream stream, uint64_t count) except -1:
    """Count recorded appends, notify if the entries are visible, and mark the key ready: waiting
    readers are served after the command."""
    ctx.db.mark_ready_at(key)
    if stream.restrictions & RESERVING:
        (<Held>stream.held).segments.tidy()
        return ctx.count_change(None, None, count)
    return ctx.count_change(ctx.db.key_of(key) if ctx.events else None, b"xadd", count)


cpdef uint64_t evict_to(Context ctx, bytes key, Stream stream, boundary,
                       bint counts) except? 0xffffffffffffffff:
    """Evict the entries below boundary (ms, seq), all for "all", none for None; returns their
    number. counts: whether evicted entries count as changes; Redis does not count them after an
    append, which is a change."""
    cdef uint64_t evicted
    if boundary is None:
        return 0
    if boundary == "all":
        evicted = evict_every(stream)
        if evicted:
            record_evict_all(ctx.effects, ctx.db.index, key)
            note_missed(ctx, key, stream)
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
    evicted = evict_few(stream, stream.length - keep)
    if evicted == 0:
        return evict_to(ctx, key, stream, length_boundary(stream, keep), counts)
    note_evicted(ctx, key, stream, EntryId(stream.head_ms, stream.head_seq), evicted, counts)
    return evicted


cdef inline int note_evicted(Context ctx, bytes key, Stream stream, EntryId first_kept,
                             uint64_t evicted, bint counts) except -1:
    """Record and count the eviction of all entries below an ID."""
    record_eviction(ctx.effects, ctx.db.index, key, first_kept)
    note_missed(ctx, key, stream)
    return ctx.count_change(key, b"xtrim", evicted if counts else 0)


cdef inline int note_missed(Context ctx, bytes key, Stream stream) except -1:
    """Count the entries of a trim that groups had not read."""
    cdef uint64_t missed = missed_by_trim(stream)
    if missed:
        ctx.keyspace.missed_entries += missed
        ctx.keyspace.unlogged_missed += missed
        if ctx.steady_ms >= ctx.keyspace.missed_log_ms:
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


cdef int keep_policy_after_append(Context ctx, bytes key, Stream stream) except -1:
    """Enforce the stream's policy as a part of an append."""
    cdef TrimPoint cut
    keep_policy(ctx, key, stream, BLOCKS_AT_ONCE, False, &cut)
    return 0


cdef uint64_t keep_policy(Context ctx, bytes key, Stream stream, uint32_t blocks_max, bint counts,
                          TrimPoint* cut) except? 0xffffffffffffffff:
    """Enforce the stream's policy in at most blocks_max blocks and schedule the next check; returns
    the number of evicted entries. The stream must come from a look-up for writing. counts: as in
    `evict_to`."""
    cdef RetentionPolicy policy = stream.policy
    cdef uint64_t evicted = 0
    find_trim_point(stream, ctx.now_ms, blocks_max, cut)
    if cut.some:
        evicted = evict_to(
            ctx, key, stream, "all" if cut.all else (cut.first.ms, cut.first.seq), counts)
    if cut.more:
        policy.next_check_ms = ctx.keyspace.note_trim(AT_ONCE, ctx.db.index, key)
    elif policy.max_age_ms and policy.next_check_ms > stream.last_ms + policy.max_age_ms:
        # IDs ascend: a time that is not before the newest entry's holds for the oldest, too.
        ctx.keyspace.schedule_trim(ctx.db.index, key, stream)
    return evicted


def trim_by_policy(Context ctx not None, bytes key not None, Stream stream not None) -> int:
    """Enforce the policy of a stream, which must come from a look-up for writing; returns the
    number of evicted blocks."""
    cdef TrimPoint cut
    keep_policy(ctx, key, stream, BLOCKS_AT_ONCE, True, &cut)
    return cut.blocks


def policy_moment(Context ctx not None, bytes key not None) -> int:
    """Handle the scheduled check of the stream at a key: enforce its policy and schedule the next
    check. Returns the number of evicted blocks."""
    cdef Stream stream = ctx.maintained_stream(key)
    if stream is None or stream.policy is None:
        return 0
    stream.policy.next_check_ms = NEVER
    return trim_by_policy(ctx, key, stream)


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
