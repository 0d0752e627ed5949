# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Enforcing the retention policies of streams: after appends, at their time, and after commands that
changed what the groups of a stream hold.

A policy with EVICT ACKED or DONE evicts only what no group holds (storage/streams/settled). A command
may append, remove or settle entries in many ways, so the context marks the streams with such a policy
that a command looks up for a change, and `settle_marked` enforces these policies after the command.

After a held entry, settled blocks and entries that are over a limit count as deleted, not as evicted:
a reader that has missed evicted entries continues after the newest of them, so it would skip the held
entry.
"""

from libc.stdint cimport UINT64_MAX as NEVER, uint32_t, uint64_t

from millstream.commands.engine.evicting cimport evict_to, record_passes
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport record_evict_all, record_eviction
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport make_id
from millstream.storage.blocks.layout cimport View
from millstream.storage.blocks.skiplist_pages cimport Place, no_place, view_block
from millstream.storage.keyspace.keyspace_core cimport AT_ONCE, DatabaseCore as Database
from millstream.storage.log.entry_log cimport Walk
from millstream.storage.log.trimming cimport HeadRun, delete_between, delete_ids
from millstream.storage.streams.head_eviction cimport (
    evict_before, evict_every, evict_settled, lost_by_trim, missed_by_trim,
)
from millstream.storage.streams.retention cimport (
    Limits, TrimPoint, find_trim_point, hard_limits_of, is_limited, limits_of, whole_bytes,
)
from millstream.storage.streams.settled cimport find_first_held, note_first_kept, settled_runs
from millstream.storage.streams.stream cimport EVICT_DONE, RetentionPolicy, Stream

from millstream.commands.runtime.effects import EFFECT_BYTES, ID_WORD_BYTES
from millstream.commands.runtime.stream_effects import XDEL, XDELRANGE
from millstream.errors import shown
from millstream.storage.streams.retention import unheld
from millstream.storage.streams.settled import oldest_held_entry

cdef enum:
    # The maximum of blocks that a policy evicts in one step; the rest follows in later turns.
    BLOCKS_AT_ONCE = 1000
    # The pause between two lines about entries that hard limits took.
    LOST_LOG_EVERY_MS = 1000
    # A policy that could not be kept is retried after this.
    AGAIN_MS = 1000
    # Settled blocks after a held entry leave within a second: a page of the schedule has half of one.
    SWEEP_AFTER_MS = 300
    # The number of entries after a held one that are checked after a command, and by the timer.
    STEPS_AT_ONCE = 256
    STEPS_MAX = 50000
    # The number of entries of settled blocks that one turn deletes by their IDs.
    NAMED_AT_ONCE = 5000


cdef int keep_policy_after_append(Context ctx, bytes key, Stream stream) except -1:
    """Enforce the stream's policy as a part of an append; if it depends on groups, after the command."""
    cdef TrimPoint cut
    if stream.policy.evict:
        return ctx.mark_settling(key, stream)
    return keep_policy(ctx, key, stream, False, &cut)


cdef int keep_policy(Context ctx, bytes key, Stream stream, bint counts, TrimPoint* cut) except -1:
    """Enforce a policy that does not depend on groups in at most BLOCKS_AT_ONCE blocks and schedule the
    next check. The stream must come from a look-up for writing. counts: as in `evict_to`."""
    cdef Limits limits = limits_of(stream.policy)
    find_trim_point(stream, &limits, ctx.now_ms, NULL, BLOCKS_AT_ONCE, cut)
    if cut.some:
        evict_to(ctx, key, stream, "all" if cut.all else (cut.first.ms, cut.first.seq), counts)
    return schedule_check(ctx, key, stream, cut.more)


cdef int schedule_check(Context ctx, bytes key, Stream stream, bint more) except -1:
    """Schedule the next check of a policy; more: at once."""
    cdef RetentionPolicy policy = stream.policy
    cdef uint64_t age_ms = policy.max_age_ms
    if policy.hard_age_ms and (age_ms == 0 or policy.hard_age_ms < age_ms):
        age_ms = policy.hard_age_ms
    if more:
        policy.next_check_ms = ctx.keyspace.note_trim(AT_ONCE, ctx.db.index, key)
    elif age_ms and policy.next_check_ms > stream.last_ms + age_ms:
        # IDs ascend: a time that is not before the newest entry's holds for the oldest, too.
        ctx.keyspace.schedule_trim(ctx.db.index, key, stream)
    return 0


def trim_by_policy(Context ctx not None, bytes key not None, Stream stream not None) -> int:
    """Enforce the policy of a stream, which must come from a look-up for writing; returns the
    number of evicted blocks."""
    cdef TrimPoint cut
    if stream.policy.evict:
        return keep_with_groups(ctx, key, stream)
    keep_policy(ctx, key, stream, True, &cut)
    return cut.blocks


def policy_moment(Context ctx not None, bytes key not None) -> int:
    """Handle the scheduled check of the stream at a key: enforce its policy and schedule the next
    check. Returns the number of evicted blocks."""
    cdef Stream stream = ctx.maintained_stream(key)
    if stream is None or stream.policy is None:
        return 0
    stream.policy.next_check_ms = NEVER
    if stream.policy.sweep_due:
        return sweep(ctx, key, stream) + trim_by_policy(ctx, key, stream)
    return trim_by_policy(ctx, key, stream)


# ---------------------------------------------------------------- policies that depend on groups

cdef int settle_marked(Context ctx) except -1:
    """Enforce the policies of the streams that commands have marked. The timer retries
    one that cannot be kept now; the last error is raised after the others."""
    cdef Database running = ctx.db
    cdef list marked = ctx.keyspace.settling
    cdef int db_index
    cdef bytes key
    cdef Stream stream
    cdef RetentionPolicy policy
    failure = None
    ctx.keyspace.settling = []
    try:
        for db_index, key, policy in marked:
            ctx.db = ctx.keyspace.databases[db_index]
            try:
                stream = ctx.maintained_stream(key)  # still marked, so this does not mark it again
                if stream is None or stream.policy is not policy:
                    continue
                if not ctx.keyspace.may_delete:
                    ctx.keyspace.note_trim(AT_ONCE, db_index, key)
                else:
                    keep_with_groups(ctx, key, stream)
            except Exception as error:
                failure = error
                policy.next_check_ms = ctx.keyspace.note_trim(ctx.now_ms + AGAIN_MS, db_index, key)
            finally:
                policy.is_marked = False
    finally:
        ctx.db = running
    if failure is not None:
        raise failure
    return 0


cdef uint32_t keep_with_groups(Context ctx, bytes key, Stream stream) except? 0xffffffff:
    """Enforce a policy with EVICT ACKED or DONE at the head of the stream, and for few entries after the
    oldest held one; a sweep does the rest. Returns the number of evicted blocks."""
    cdef RetentionPolicy policy = stream.policy
    cdef Limits limits = hard_limits_of(policy)
    cdef EntryId held
    cdef HeadRun run
    cdef bint is_held = False
    cdef TrimPoint cut
    run.has_following = False
    cut.more = False
    cut.blocks = 0
    if is_limited(&limits):
        find_trim_point(stream, &limits, ctx.now_ms, NULL, BLOCKS_AT_ONCE, &cut)
        if cut.some:
            take_held(ctx, key, stream, &cut)
    if stream.group_set is not None:
        is_held = find_first_held(stream, &held, &run)
    if policy.evict == EVICT_DONE and stream.group_set is not None:
        evict_free(ctx, key, stream, &held if is_held else NULL, &run)
        if is_held:
            note_first_kept(stream, held)
    elif not cut.more:
        limits = limits_of(policy)
        find_trim_point(
            stream, &limits, ctx.now_ms, &held if is_held else NULL, BLOCKS_AT_ONCE, &cut)
        if cut.some:
            evict_free(ctx, key, stream, NULL if cut.all else &cut.first, &run)
    if is_held and not policy.sweep_due and reaches_past(stream, held, ctx.now_ms):
        if not delete_singles(ctx, key, stream, STEPS_AT_ONCE) or has_block_after(stream, held):
            schedule_sweep(ctx, key, stream)
    schedule_check(ctx, key, stream, cut.more)
    return cut.blocks


cdef int take_held(Context ctx, bytes key, Stream stream, const TrimPoint* cut) except -1:
    """Evict entries that are over a hard limit, also those that groups hold."""
    cdef uint64_t evicted
    cdef uint64_t lost
    holder = oldest_held_entry(stream)
    record_passes(ctx, key, stream)
    if cut.all:
        evicted = evict_every(stream)
        record_evict_all(ctx.effects, ctx.db.index, key)
    else:
        evicted = evict_before(stream, cut.first.ms, cut.first.seq)
        if evicted == 0:
            return 0
        record_eviction(ctx.effects, ctx.db.index, key, cut.first)
    lost = lost_by_trim(stream)
    ctx.keyspace.lost_entries += lost
    ctx.keyspace.missed_entries += missed_by_trim(stream)
    ctx.keyspace.unlogged_lost += lost
    if lost and ctx.steady_ms >= ctx.keyspace.lost_log_ms:
        ctx.server.warn(
            f"a hard limit of stream '{shown(key)}' evicted entries that group "
            f"'{shown(holder[0])}' held: {ctx.keyspace.unlogged_lost} entries, counted for each "
            "group, since the last such line")
        ctx.keyspace.unlogged_lost = 0
        ctx.keyspace.lost_log_ms = ctx.steady_ms + LOST_LOG_EVERY_MS
    return ctx.count_change(key, b"xtrim", evicted)


cdef int evict_free(Context ctx, bytes key, Stream stream, const EntryId* first,
                    const HeadRun* run) except -1:
    """Evict the entries below an ID, all for NULL; no group holds one of them. run: as in
    `evict_settled`."""
    cdef uint64_t evicted
    if stream.length == 0 or first != NULL and not has_before(stream, first[0]):
        return 0
    record_passes(ctx, key, stream)
    evicted = evict_settled(stream, first, run)
    if evicted == 0:
        return 0
    if first == NULL:
        record_evict_all(ctx.effects, ctx.db.index, key)
    else:
        record_eviction(ctx.effects, ctx.db.index, key, first[0])
    return ctx.count_change(key, b"xtrim", evicted)


cdef bint has_before(Stream stream, EntryId first) noexcept:
    """True if there is an entry below an ID. It may be true without one if a trim by ID ended before that
    ID, as long as no entry was deleted."""
    cdef EntryId oldest
    if not id_less(stream.head_ms, stream.head_seq, first.ms, first.seq):
        return False
    if id_less(stream.max_deleted_ms, stream.max_deleted_seq, stream.head_ms, stream.head_seq):
        return True  # the first kept ID is that of an entry, at least after each eviction here
    return stream.first_entry(&oldest) and id_less(oldest.ms, oldest.seq, first.ms, first.seq)


cdef bint reaches_past(Stream stream, EntryId held, uint64_t now_ms) except -1:
    """True if the policy may evict entries after the oldest held one: with DONE always, otherwise
    if a limit is exceeded."""
    cdef RetentionPolicy policy = stream.policy
    if policy.evict == EVICT_DONE:
        return True
    return (policy.max_len and stream.length > policy.max_len
            or policy.max_age_ms and now_ms >= policy.max_age_ms
            and held.ms <= now_ms - policy.max_age_ms
            or policy.max_bytes and whole_bytes(stream) > policy.max_bytes)


cdef bint has_block_after(Stream stream, EntryId held) noexcept:
    """True if a sealed block begins after an entry."""
    cdef Place last = no_place() if stream.sealed is None else stream.sealed.end()
    cdef View view
    if last.page == NULL:
        return False
    view_block(last, &view)
    return id_less(held.ms, held.seq, view.first_ms, view.first_seq)


cdef bint delete_singles(Context ctx, bytes key, Stream stream, uint64_t steps_max) except -1:
    """With EXACT, delete the settled entries that are over a limit of entries or age; False if the search
    ended early."""
    cdef RetentionPolicy policy = stream.policy
    cdef uint64_t steps
    cdef bint is_complete = True
    if not policy.exact:
        return True
    if policy.max_len and stream.length > policy.max_len:
        ids, steps = unheld(stream, policy.max_len, None, 0, steps_max)
        delete_settled(ctx, key, stream, ids)
        is_complete = steps < steps_max
    if policy.max_age_ms and ctx.now_ms >= policy.max_age_ms:
        ids, steps = unheld(
            stream, None, (ctx.now_ms - policy.max_age_ms + 1, 0), 0, steps_max)
        delete_settled(ctx, key, stream, ids)
        is_complete = is_complete and steps < steps_max
    return is_complete


cdef int delete_settled(Context ctx, bytes key, Stream stream, list ids) except -1:
    """Delete single entries (ms, seq) that no group holds."""
    cdef uint64_t ms, seq
    if not ids or not ctx.effects.has_room(
            EFFECT_BYTES + len(key) + len(ids) * <Py_ssize_t>ID_WORD_BYTES):
        return 0
    record_passes(ctx, key, stream)
    delete_ids(stream, ids)
    return ctx.change(
        (XDEL, key) + tuple([bytes(make_id(ms, seq, False)) for ms, seq in ids]), b"xdel",
        <uint64_t>len(ids))


cdef int delete_runs(Context ctx, bytes key, Stream stream, list runs) except -1:
    cdef uint64_t first_ms, first_seq, last_ms, last_seq
    if runs:
        record_passes(ctx, key, stream)
    for first_ms, first_seq, last_ms, last_seq in runs:
        count = delete_between(stream, EntryId(first_ms, first_seq), EntryId(last_ms, last_seq))
        ctx.change((XDELRANGE, key, bytes(make_id(first_ms, first_seq, False)),
                    bytes(make_id(last_ms, last_seq, False))), b"xdel", count)
    return 0


cdef bint delete_named(Context ctx, bytes key, Stream stream, list runs) except -1:
    """Delete entries of runs of blocks by their IDs; True if others are left for the next turn."""
    cdef uint64_t first_ms, first_seq, last_ms, last_seq
    cdef uint64_t before = stream.length
    cdef Walk walk
    cdef list ids = []
    for first_ms, first_seq, last_ms, last_seq in runs:
        if len(ids) == NAMED_AT_ONCE:
            break
        stream.walk_start(&walk, EntryId(first_ms, first_seq))
        while len(ids) < NAMED_AT_ONCE and stream.walk_next(&walk) and not id_less(
                last_ms, last_seq, walk.cursor.entry.ms, walk.cursor.entry.seq):
            ids.append((walk.cursor.entry.ms, walk.cursor.entry.seq))
    delete_settled(ctx, key, stream, ids)
    return len(ids) == NAMED_AT_ONCE and stream.length < before


cdef int schedule_sweep(Context ctx, bytes key, Stream stream) except -1:
    cdef RetentionPolicy policy = stream.policy
    cdef uint64_t moment_ms = ctx.now_ms + SWEEP_AFTER_MS
    policy.sweep_due = True
    policy.sweep_from = EntryId(0, 0)
    if moment_ms < policy.next_check_ms:
        policy.next_check_ms = ctx.keyspace.note_trim(moment_ms, ctx.db.index, key)
    return 0


cdef uint32_t sweep(Context ctx, bytes key, Stream stream) except? 0xffffffff:
    """Delete settled blocks after the oldest held entry, in several turns if there are many blocks, and
    with EXACT single entries. Returns the number of runs of blocks."""
    cdef RetentionPolicy policy = stream.policy
    cdef Limits limits = limits_of(policy)
    cdef EntryId held, next_block
    cdef HeadRun run
    cdef bint more = False
    cdef list runs
    policy.sweep_due = False
    if not policy.evict or stream.group_set is None or not find_first_held(stream, &held, &run) or (
            not reaches_past(stream, held, ctx.now_ms)):
        return 0
    if id_less(held.ms, held.seq, policy.sweep_from.ms, policy.sweep_from.seq):
        held = policy.sweep_from
    else:
        delete_singles(ctx, key, stream, STEPS_MAX)
    runs = settled_runs(stream, NULL if policy.evict == EVICT_DONE else &limits, ctx.now_ms, held,
                        &next_block, &more)
    if runs and ctx.keyspace.names_deleted:
        if delete_named(ctx, key, stream, runs):
            next_block = EntryId(0, 0)
            more = True
    elif not ctx.effects.has_room(len(runs) * <Py_ssize_t>(EFFECT_BYTES + len(key) + 2 * ID_WORD_BYTES)):
        return 0
    else:
        delete_runs(ctx, key, stream, runs)
    if more:
        schedule_sweep(ctx, key, stream)
        policy.sweep_from = next_block
        policy.next_check_ms = ctx.keyspace.note_trim(AT_ONCE, ctx.db.index, key)
    return len(runs)
