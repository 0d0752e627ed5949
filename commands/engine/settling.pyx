# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Reservations as commands and timers settle them: what ends a lease, and what becomes visible.

A lease ends at its deadline. A timer gives the reservation up then; because a timer may be late,
the commands that look at reservations do so first (`live_held`). No reply depends on when the timer
ran.
"""

from libc.stdint cimport uint64_t

from millstream.commands.engine.appending cimport keep_policy_after_append
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport EFFECT_BYTES, ID_WORD_BYTES
from millstream.entry_id cimport EntryId
from millstream.ids cimport make_id
from millstream.storage.streams.held cimport Held
from millstream.storage.streams.stream cimport Stream

from millstream.errors import shown

cdef enum:
    # When a lease that ended while writes are refused is looked at again.
    REFUSED_AGAIN_MS = 1000
    LOG_EVERY_MS = 1000
    # A settlement that releases more takes longer than most requests.
    FEW_ENTRIES = 100


cpdef Held live_held(Context ctx, bytes key, Stream stream):
    """What a stream, found for writing, holds after the leases that are over; None if no ID of it was
    ever reserved."""
    cdef Held held = stream.held
    if held is not None and held.next_deadline_ms <= ctx.steady_ms:
        expire_leases(ctx, key, stream, held)
    return held


cdef int expire_leases(Context ctx, bytes key, Stream stream, Held held) except -1:
    """Give up the reservations whose leases are over, if something may be changed now."""
    cdef list ids
    if not ctx.keyspace.may_delete or ctx.write_error is not None:
        return 0
    if not ctx.effects.has_room(
            EFFECT_BYTES + len(key) + <Py_ssize_t>held.reservations * ID_WORD_BYTES):
        return 0
    ids = held.due_ids(ctx.steady_ms)
    if ids:
        log_expired(ctx, key, held, ids)
        ctx.keyspace.reservations_expired += <uint64_t>len(ids)
        give_up(ctx, key, stream, ids)
    return 0


cdef int log_expired(Context ctx, bytes key, Held held, list ids) except -1:
    """One line a second at most."""
    ctx.keyspace.unlogged_expiries += <uint64_t>len(ids)
    if ctx.steady_ms < ctx.keyspace.expiry_log_ms:
        return 0
    name = held.lease_of(*ids[0])[0]
    more = ctx.keyspace.unlogged_expiries - 1
    ctx.server.log(
        f"the lease of reservation {bytes(make_id(ids[0][0], ids[0][1], True)).decode()} of writer "
        f"'{shown(name)}' in stream '{shown(key)}' is over" + (f", and {more} more" if more else ""))
    ctx.keyspace.unlogged_expiries = 0
    ctx.keyspace.expiry_log_ms = ctx.steady_ms + LOG_EVERY_MS
    return 0


cpdef int give_up(Context ctx, bytes key, Stream stream, list ids) except -1:
    """Give up open reservations, (ms, seq) each, and release what waited for them."""
    cdef Held held = stream.held
    cdef EntryId at
    cdef Py_ssize_t index
    for at.ms, at.seq in ids:
        held.give_up(held.find_open(&at, &index))
    ctx.db.reservations -= <uint64_t>len(ids)
    words = [bytes(make_id(ms, seq, False)) for ms, seq in ids] if ctx.effects.enabled else []
    ctx.change((b"ABORT", key, *words), None, <uint64_t>len(ids))
    return release(ctx, key, stream, held, stream.entries_added)


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

cpdef int schedule_leases(Context ctx, bytes key, Held held) except -1:
    """Note the next moment at which a lease may end."""
    return note_moment(ctx, key, held, held.next_deadline_ms)


cdef int note_moment(Context ctx, bytes key, Held held, uint64_t moment_ms) except -1:
    if moment_ms < held.scheduled_ms:
        held.note_moment(moment_ms)
        ctx.keyspace.timer_requests.append((moment_ms, ctx.db.index, key, None))
    return 0


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
        note_moment(ctx, key, held, ctx.steady_ms + REFUSED_AGAIN_MS)
    else:
        schedule_leases(ctx, key, held)
