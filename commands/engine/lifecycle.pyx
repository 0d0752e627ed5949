# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Finding, creating and ending groups, consumers and reservations, for the commands of both
dialects.

This module also makes the automatic changes at the expiry of pending entries, the failure of their
last delivery, the end of a group's time to live, and the end of a lease. They are made by a timer
and, because a timer may be late, before any command uses the group or the reservations
(`live_group`, `live_held`). Therefore no reply depends on when the timer ran.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t

from millstream.commands.engine.dead_letters cimport end_due_deliveries
from millstream.commands.engine.evicting cimport record_pass
from millstream.commands.engine.policies cimport keep_policy_after_append
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport (
    ABORT_CODE, EFFECT_BYTES, ID_WORD_BYTES, LEASE_CODE, Effects,
)
from millstream.commands.runtime.stream_effects cimport (
    ids_of, record_ack, record_seen,
)
from millstream.ids cimport make_id
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.due_index cimport exact_min, has_expired, is_idle
from millstream.storage.groups.group cimport (
    Group, GroupRules, dead_letter_of, has_ended, is_limited, waits_for_due,
)
from millstream.storage.groups.pending cimport EXPIRE, WAKE
from millstream.storage.reservations.held cimport Held, Slot
from millstream.storage.keyspace.keyspace_core cimport KeyspaceCore as Keyspace
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.idle_consumers import remove_idle_consumers
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.stream_effects import (
    CONSUMER, GROUP, GROUPDROP, held_at, stream_at,
)
from millstream.errors import CommandError, shown
from millstream.ids import parse
from millstream.storage.groups.pending_sweeps import take_expired

cdef enum:
    # The maximum of expired pending entries removed in one step; the rest follows with the next
    # timer.
    EXPIRED_MAX = 10000
    SEEN_EVERY_MS = 1000
    # CONSUMER, SEEN, ACK, CLAIM or REDELIVER, DELIVER.
    READ_EFFECTS = 5
    LOG_EVERY_MS = 1000
    # The delay of the end of leases while writes are refused.
    AGAIN_MS = 1000
    # A settlement that releases more entries takes longer than most requests.
    FEW_ENTRIES = 100

NO_CONSUMER_NAME = "ERR The consumer name must not be empty: it stands for deliveries without owner"


# ---------------------------------------------------------------- creating and ending

cpdef Group new_group(Context ctx, bytes key, Stream stream, bytes name, tuple offset,
                      int64_t entries_read, uint64_t ttl_ms):
    """Create a group that reads the entries after `offset`, (ms, seq). Clients that wait on its
    name join it."""
    cdef uint64_t ms, seq
    ms, seq = offset
    cdef Group group = stream.make_group(name, ms, seq)
    waiting = ctx.db.waiting.get(key)
    if waiting is not None:
        waiting.join(name, stream, group)
    group.entries_read = entries_read
    stream.set_ttl(group, ttl_ms, ctx.steady_ms)
    ctx.change((GROUP, key, name, bytes(make_id(ms, seq, False)), b"%d" % entries_read, ttl_ms),
               b"xgroup-create", 1)
    return group


cpdef int end_group(Context ctx, bytes key, Stream stream, bytes name) except -1:
    """Remove a group with its pending entries; readers that wait on it are notified."""
    stream.drop_group(name)
    return ctx.change((GROUPDROP, key, name), b"xgroup-destroy", 1)


cpdef bytes checked_consumer_name(bytes name):
    """Check a consumer's name. The empty name is refused: it stands for deliveries of TREAD, which
    have no owner."""
    if not name:
        raise CommandError(NO_CONSUMER_NAME)
    return name


cpdef Consumer new_consumer(Context ctx, bytes key, Group group, bytes name):
    """Add a consumer with a new name to a group."""
    cdef Consumer made = group.pending.make_consumer(name, ctx.steady_ms)
    ctx.change((CONSUMER, key, group.name, name, ctx.steady_ms), b"xgroup-createconsumer", 1)
    return made


cpdef Consumer requesting_consumer(Context ctx, bytes key, Group group, bytes name):
    """The consumer of a request, created if necessary; it is seen now. If no other effect of the
    command records that (DELIVER and CLAIM do), the caller must call `note_seen`."""
    cdef Consumer consumer = group.pending.consumer(name)
    if consumer is None:
        return new_consumer(ctx, key, group, name)
    consumer.seen_ms = ctx.steady_ms
    return consumer


# ---------------------------------------------------------------- automatic changes

cpdef Group live_group(Context ctx, bytes key, Stream stream, bytes name):
    """A group after all due automatic changes; None if it does not exist (any more). The stream
    must come from a look-up for writing."""
    cdef Group group = stream.group(name)
    if group is None:
        return None
    if has_ended(group, ctx.steady_ms):
        # While changes are not allowed, a group that has ended stays but is not found, like an
        # expired key.
        if ctx.keyspace.may_delete:
            end_group(ctx, key, stream, name)
        return None
    if has_expired(group.pending.records, ctx.steady_ms) or (
            group.rules is not None and group.rules.copy_at_ms <= ctx.steady_ms):
        end_deliveries(ctx, key, stream, group)
    return group


cdef int end_deliveries(Context ctx, bytes key, Stream stream, Group group) except -1:
    """Remove the pending entries that have expired or whose last delivery has failed; copies of them
    go to the dead letter stream, if the group has one."""
    if not ctx.keyspace.may_delete:
        return 0
    if dead_letter_of(group) is not None:
        end_due_deliveries(ctx, key, stream, group)
        return note_freed(ctx, key, group)
    if not ctx.effects.has_room(read_effects_most(
            key, group, b"", min(group.pending.records.count, <uint64_t>EXPIRED_MAX))):
        return 0
    gone = take_expired(group, ctx.steady_ms, EXPIRED_MAX)
    if gone:
        note_acked(ctx, key, group.name, gone, <uint64_t>len(gone))
        note_freed(ctx, key, group)
    return 0


cpdef int note_acked(Context ctx, bytes key, bytes name, list ids, uint64_t count) except -1:
    """Record and count that pending entries, (ms, seq) each, left the group with this name."""
    record_ack(ctx.effects, ctx.db.index, key, name, ids_of(ids))
    return ctx.count_change(None, None, count)


cpdef int note_freed(Context ctx, bytes key, Group group) except -1:
    """Wake readers after pending entries have ended, if the rules let others take their places."""
    if is_limited(group):
        ctx.db.mark_ready(key)
    return 0


cdef int note_given_back(Context ctx, bytes key, uint64_t count) except -1:
    """Wake readers after this number of entries was given back, which is recorded, and count it."""
    if ctx.db.waiting:
        ctx.db.mark_ready(key)
    return ctx.count_change(None, None, count)


def change_entries(Context ctx not None, tuple words not None, list ids not None, bytes event,
                   uint64_t count) -> None:
    """Record and count a change of entries: the effect has these words and the IDs, (ms, seq)
    each."""
    ctx.change(words + tuple([bytes(make_id(ms, seq, False)) for ms, seq in ids]), event, count)


cpdef int note_used(Context ctx, bytes key, Group group) except -1:
    """Restart the time to live of a group after a command that used it."""
    if group.rules is not None:
        group.rules.last_used_ms = ctx.steady_ms
    return ctx.keyspace.schedule(ctx.db.index, key, group)


def group_moment(Context ctx not None, bytes key not None, bytes name not None) -> None:
    """Handle a group's timer: make due changes, wake a reader for a retry, schedule the next
    timer."""
    cdef Stream stream
    cdef Group group
    stream = ctx.maintained_stream(key)
    if stream is None:
        return
    if not ctx.keyspace.may_delete:
        ctx.keyspace.deferred.append((ctx.db.index, key, name))
        return
    group = live_group(ctx, key, stream, name)
    if group is None:
        return
    group.scheduled_ms = MAX
    if group.rules is not None:
        keep_rules(ctx, key, group)
    if waits_for_due(group) and exact_min(group.pending.records, WAKE, MAX) <= ctx.steady_ms or (
            group.pending.claim_bound() != MAX and is_idle(
                group.pending.records, ctx.steady_ms, group.pending.claim_idle())):
        # The readers are served after this; each reader that blocks again schedules the next timer.
        ctx.db.mark_ready(key)
    exact_min(group.pending.records, EXPIRE, MAX)
    ctx.keyspace.schedule_after(ctx.db.index, key, group, ctx.steady_ms)


cdef int keep_rules(Context ctx, bytes key, Group group) except -1:
    """Wake readers after a pause, and remove idle consumers, if it is time."""
    cdef GroupRules rules = group.rules
    if 0 < rules.paused_until_ms <= ctx.steady_ms:
        ctx.db.mark_ready(key)
    if rules.consumer_ttl_ms and rules.consumer_check_ms <= ctx.steady_ms:
        remove_idle_consumers(ctx, key, group)
    if rules.picking is not None:
        if rules.picking.is_cut:
            ctx.db.mark_ready(key)  # a read that waits continues
        if rules.picking.unrecorded:
            record_pass(ctx, key, group)
    return 0


cpdef int64_t read_effects_most(bytes key, Group group, bytes consumer, uint64_t ids) noexcept:
    """The maximum size of the effects of a read that creates a consumer, delivers entries and lists
    `ids` IDs."""
    return (READ_EFFECTS * (EFFECT_BYTES + len(key) + len(group.name) + len(consumer))
            + <int64_t>ids * ID_WORD_BYTES)


cpdef int note_seen(Context ctx, bytes key, Group group, Consumer consumer) except -1:
    """Record that a consumer made a request without getting new entries. For a consumer that polls,
    one record per second is enough: a crash may lose that much of its idle time, and not every poll
    writes to the journal."""
    if not ctx.effects.enabled or ctx.steady_ms - consumer.noted_ms < SEEN_EVERY_MS:
        return 0
    consumer.noted_ms = ctx.steady_ms
    return record_seen(ctx.effects, ctx.db.index, key, group, consumer, ctx.steady_ms)


# ---------------------------------------------------------------- reservations

cpdef Held live_held(Context ctx, bytes key, Stream stream):
    """The reservations and held entries of a stream after all leases that have ended; None if it
    never had a reservation. The stream must come from a look-up for writing."""
    cdef Held held = stream.held
    if held is None:
        return None
    if held.segments.has_settled_first() and ctx.keyspace.may_delete and ctx.write_error is None:
        release(ctx, key, stream, held, stream.entries_added)
    if held.next_deadline_ms <= ctx.steady_ms:
        expire_leases(ctx, key, stream, held)
    return held


cdef int expire_leases(Context ctx, bytes key, Stream stream, Held held) except -1:
    """Give up the reservations whose leases have ended, if changes are allowed now."""
    cdef list due
    if not ctx.keyspace.may_delete or ctx.write_error is not None:
        return 0
    if not ctx.effects.has_room(
            EFFECT_BYTES + len(key) + <Py_ssize_t>held.reservations * ID_WORD_BYTES):
        return 0
    due = held.due(ctx.steady_ms)
    if due:
        log_expired(ctx, key, <Slot>due[0], <uint64_t>len(due))
        ctx.keyspace.reservations_expired += <uint64_t>len(due)
        give_up(ctx, key, stream, due)
    return 0


cdef int log_expired(Context ctx, bytes key, Slot first, uint64_t count) except -1:
    """Log expired leases, at most one line per second."""
    ctx.keyspace.unlogged_expiries += count
    if ctx.steady_ms < ctx.keyspace.expiry_log_ms:
        return 0
    more = ctx.keyspace.unlogged_expiries - 1
    ctx.server.log(
        f"the lease of reservation {make_id(first.id.ms, first.id.seq, True)} of writer "
        f"'{shown(first.writer.name)}' in stream '{shown(key)}' is over" + (f", and {more} more" if more else ""))
    ctx.keyspace.unlogged_expiries = 0
    ctx.keyspace.expiry_log_ms = ctx.steady_ms + LOG_EVERY_MS
    return 0


cpdef int give_up(Context ctx, bytes key, Stream stream, list reservations) except -1:
    """Give up open reservations (Held.reserved_by), and release the entries that waited for
    them."""
    cdef Held held = stream.held
    cdef uint64_t count = <uint64_t>len(reservations)
    cdef Slot slot
    if ctx.effects.enabled:
        # ABORT key id ...
        ctx.effects.begin(ctx.db.index, ABORT_CODE, 1 + len(reservations))
        ctx.effects.put_bytes(key)
        put_ids(ctx.effects, reservations)
        ctx.effects.finish()
    for slot in reservations:
        held.settle(slot)
    ctx.db.reservations -= count
    ctx.count_change(None, None, count)
    held.segments.tidy()
    return release(ctx, key, stream, held, stream.entries_added)


@effect(b"ABORT", wakes_readers=True)
def apply_abort(Keyspace keyspace not None, int db, list words not None) -> None:
    """ABORT key id [id ...]: give up reservations, by TABORT or at the end of their leases."""
    cdef Held held = held_at(keyspace, db, words[0])
    for text in words[1:]:
        if not held.give_up_id(*parse(text)):
            raise ValueError(f"ABORT of {text!r}, which is not reserved")
    held.segments.tidy()
    held.release_into(stream_at(keyspace, db, words[0]))
    keyspace.databases[db].reservations -= len(words) - 1


cpdef int renew(Context ctx, bytes key, Held held, list reservations, uint32_t lease_ms) except -1:
    """Restart the leases of open reservations with this length."""
    cdef list changed = []
    cdef Slot slot
    for slot in reservations:
        if slot.lease_ms != lease_ms:
            changed.append(slot)
    if changed and ctx.effects.enabled:
        # LEASE key lease-ms id ...
        ctx.effects.begin(ctx.db.index, LEASE_CODE, 2 + len(changed))
        ctx.effects.put_bytes(key)
        ctx.effects.put_number(lease_ms)
        put_ids(ctx.effects, changed)
        ctx.effects.finish()
    for slot in reservations:
        held.renew(slot, lease_ms, ctx.steady_ms)
    return ctx.db.note_lease_moment(key, held, held.next_deadline_ms)


@effect(b"LEASE")
def apply_lease(Keyspace keyspace not None, int db, list words not None) -> None:
    """LEASE key lease-ms id [id ...]: change the length of leases."""
    cdef Held held = held_at(keyspace, db, words[0])
    for text in words[2:]:
        if not held.renew_lease(*parse(text), int(words[1]), keyspace.steady_ms):
            raise ValueError(f"LEASE of {text!r}, which is not reserved")
    keyspace.databases[db].note_lease_moment(words[0], held, held.next_deadline_ms)


cdef int put_ids(Effects effects, list reservations) except -1:
    """Write the IDs of reservations as words of an effect."""
    cdef Slot slot
    for slot in reservations:
        effects.put_id(slot.id.ms, slot.id.seq)
    return 0


cdef int release(Context ctx, bytes key, Stream stream, Held held, uint64_t before) except -1:
    """Release held entries into the log, after the effect of a settlement was recorded. `before`:
    the stream's `entries_added` before the settlement."""
    held.release(stream)
    if ctx.db.waiting:
        ctx.db.mark_ready(key)
    if stream.entries_added != before:
        ctx.timed_alone = stream.entries_added - before > FEW_ENTRIES
        ctx.count_change(key, b"xadd", 0)
        if stream.policy is not None:
            keep_policy_after_append(ctx, key, stream)
    return 0


# ---------------------------------------------------------------- the timers of leases

def lease_moment(Context ctx not None, bytes key not None) -> None:
    """Handle the timer for the leases of a stream."""
    cdef Stream stream = ctx.maintained_stream(key)
    cdef Held held
    if stream is None or stream.held is None:
        return
    held = stream.held
    if ctx.steady_ms < held.scheduled_ms:
        return  # the timer is for another key, or was postponed
    if not ctx.keyspace.may_delete:
        ctx.keyspace.deferred.append((ctx.db.index, key, None))
        return
    held.pass_moments(ctx.steady_ms)
    expire_leases(ctx, key, stream, held)
    if held.next_deadline_ms <= ctx.steady_ms:
        # Writes are refused.
        ctx.db.note_lease_moment(key, held, ctx.steady_ms + AGAIN_MS)
    else:
        ctx.db.note_lease_moment(key, held, held.next_deadline_ms)
