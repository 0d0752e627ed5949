# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Reservations as commands and timers settle them: what ends a lease, and what becomes visible.

A lease ends at its deadline. A timer gives the reservation up then; because a timer may be late,
the commands that look at reservations do so first (`live_held`). No reply depends on when the timer
ran.
"""

from libc.stdint cimport uint32_t, uint64_t

from millstream.commands.engine.appending cimport keep_policy_after_append
from millstream.commands.engine.group_lifecycle cimport REFUSED_AGAIN_MS
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport EFFECT_BYTES, ID_WORD_BYTES
from millstream.encoding cimport Output
from millstream.ids cimport make_id
from millstream.storage.streams.held cimport Held, Slot
from millstream.storage.streams.stream cimport Stream

from millstream.errors import shown

cdef enum:
    LOG_EVERY_MS = 1000
    # A settlement that releases more takes longer than most requests.
    FEW_ENTRIES = 100


cpdef Held live_held(Context ctx, bytes key, Stream stream):
    """What a stream, found for writing, holds after the leases that are over; None if no ID of it was
    ever reserved."""
    cdef Held held = stream.held
    if held is None:
        return None
    if held.has_settled_first() and ctx.keyspace.may_delete and ctx.write_error is None:
        release(ctx, key, stream, held, stream.entries_added)
    if held.next_deadline_ms <= ctx.steady_ms:
        expire_leases(ctx, key, stream, held)
    return held


cdef int expire_leases(Context ctx, bytes key, Stream stream, Held held) except -1:
    """Give up the reservations whose leases are over, if something may be changed now."""
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
    """One line a second at most."""
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
    """Give up open reservations (Held.reserved_by), and release what waited for them."""
    cdef Held held = stream.held
    cdef uint64_t count = <uint64_t>len(reservations)
    cdef Slot slot
    if ctx.effects.enabled:
        # ABORT key id ...
        ctx.effects.begin(ctx.db.index, b"$5\r\nABORT\r\n", 11, 2 + len(reservations))
        ctx.effects.out.put_bulk_bytes(key)
        put_ids(ctx.effects.out, reservations)
        ctx.effects.finish()
    for slot in reservations:
        held.give_up(slot)
    ctx.db.reservations -= count
    ctx.count_change(None, None, count)
    held.tidy()
    return release(ctx, key, stream, held, stream.entries_added)


cpdef int renew(Context ctx, bytes key, Held held, list reservations, uint32_t lease_ms) except -1:
    """Begin the leases of open reservations again, with this length."""
    cdef list changed = []
    cdef Slot slot
    for slot in reservations:
        if slot.lease_ms != lease_ms:
            changed.append(slot)
    if changed and ctx.effects.enabled:
        # LEASE key lease-ms id ...
        ctx.effects.begin(ctx.db.index, b"$5\r\nLEASE\r\n", 11, 3 + len(changed))
        ctx.effects.out.put_bulk_bytes(key)
        ctx.effects.put_number(lease_ms)
        put_ids(ctx.effects.out, changed)
        ctx.effects.finish()
    for slot in reservations:
        held.renew(slot, lease_ms, ctx.steady_ms)
    return ctx.db.note_lease_moment(key, held, held.next_deadline_ms)


cdef int put_ids(Output out, list reservations) except -1:
    """Their IDs as words of an effect."""
    cdef Slot slot
    for slot in reservations:
        out.put_id(slot.id.ms, slot.id.seq, False)
    return 0


cdef int release(Context ctx, bytes key, Stream stream, Held held, uint64_t before) except -1:
    """Move what nothing waits for any more into the log, after the effect that settled something was
    recorded. `before`: how many entries were added to the log before that."""
    held.release(stream)
    if ctx.db.waiting:
        ctx.db.mark_ready(key)
    if stream.entries_added != before:
        ctx.timed_alone = stream.entries_added - before > FEW_ENTRIES
        ctx.count_change(key, b"xadd", 0)
        if stream.policy is not None:
            keep_policy_after_append(ctx, key, stream)
    return 0


# ---------------------------------------------------------------- the moments of leases

def lease_moment(Context ctx not None, bytes key not None) -> None:
    """A moment noted for the leases of a stream has come."""
    cdef Stream stream = ctx.maintained_stream(key)
    cdef Held held
    if stream is None or stream.held is None:
        return
    held = stream.held
    if ctx.steady_ms < held.scheduled_ms:
        return  # it was noted under another key, or put off
    if not ctx.keyspace.may_delete:
        ctx.keyspace.deferred.append((ctx.db.index, key, None))
        return
    held.pass_moments(ctx.steady_ms)
    expire_leases(ctx, key, stream, held)
    if held.next_deadline_ms <= ctx.steady_ms:
        # Writes are refused.
        ctx.db.note_lease_moment(key, held, ctx.steady_ms + REFUSED_AGAIN_MS)
    else:
        ctx.db.note_lease_moment(key, held, held.next_deadline_ms)
