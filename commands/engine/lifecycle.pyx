# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Groups, consumers and reservations as every command of both dialects finds, makes and ends them.

This module also makes the automatic changes: pending entries that expire, a group's time to live that
ends, a lease that is over. Each is made when its moment comes and, because a timer may be late, again
before any command looks at the group or at the reservations (`live_group`, `live_held`). So no reply
depends on when the timer ran.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t

from millstream.commands.engine.appending cimport keep_policy_after_append
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport EFFECT_BYTES, ID_WORD_BYTES
from millstream.encoding cimport Output
from millstream.ids cimport make_id
from millstream.storage.streams.consumers cimport Consumer
from millstream.storage.streams.group cimport Group
from millstream.storage.streams.held cimport Held, Slot
from millstream.storage.streams.stream cimport Stream

from millstream.errors import CommandError, shown

cdef enum:
    # Expired pending entries dropped at once; what is left goes on with the next moment.
    EXPIRED_MAX = 10000
    SEEN_EVERY_MS = 1000
    # CONSUMER, SEEN, ACK, CLAIM or REDELIVER, DELIVER.
    READ_EFFECTS = 5
    LOG_EVERY_MS = 1000
    # A settlement that releases more takes longer than most requests.
    FEW_ENTRIES = 100

NO_CONSUMER_NAME = "ERR The consumer name must not be empty: it stands for deliveries without owner"


# ---------------------------------------------------------------- making and ending

cpdef Group new_group(Context ctx, bytes key, Stream stream, bytes name, tuple offset,
                      int64_t entries_read, uint64_t ttl_ms):
    """Make a group that reads the entries after `offset`, (ms, seq). Clients that wait on its name
    join it."""
    cdef uint64_t ms, seq
    ms, seq = offset
    cdef Group group = stream.make_group(name, ms, seq, ctx.steady_ms)
    waiting = ctx.db.waiting.get(key)
    if waiting is not None:
        waiting.join(name, stream, group)
    group.entries_read = entries_read
    stream.set_ttl(group, ttl_ms)
    ctx.change((b"GROUP", key, name, bytes(make_id(ms, seq, False)), b"%d" % entries_read, ttl_ms),
               b"xgroup-create", 1)
    return group


cpdef int end_group(Context ctx, bytes key, Stream stream, bytes name) except -1:
    """Remove a group and all it knows; readers that wait on it are notified."""
    stream.drop_group(name)
    return ctx.change((b"GROUPDROP", key, name), b"xgroup-destroy", 1)


cpdef bytes checked_consumer_name(bytes name):
    """A consumer's name. The empty name stands for the deliveries of TREAD, which have no owner."""
    if not name:
        raise CommandError(NO_CONSUMER_NAME)
    return name


cpdef Consumer new_consumer(Context ctx, bytes key, Group group, bytes name):
    """Add a consumer to a group that has none of this name."""
    cdef Consumer made = group.make_consumer(name, ctx.steady_ms)
    ctx.change((b"CONSUMER", key, group.name, name, ctx.steady_ms), b"xgroup-createconsumer", 1)
    return made


cpdef Consumer asking_consumer(Context ctx, bytes key, Group group, bytes name):
    """The consumer a command speaks for, made when there is none. It has been seen now; if nothing
    else that the command does tells so (DELIVER and CLAIM do), `note_seen` has to record it."""
    cdef Consumer consumer = group.consumer(name)
    if consumer is None:
        return new_consumer(ctx, key, group, name)
    consumer.seen_ms = ctx.steady_ms
    return consumer


# ---------------------------------------------------------------- automatic changes

cpdef Group live_group(Context ctx, bytes key, Stream stream, bytes name):
    """A group after all due automatic changes; None when there is none (any more). The stream
    was taken for writing."""
    cdef Group group = stream.group(name)
    if group is None:
        return None
    if group.ttl_ms and group.is_over(ctx.steady_ms):
        # While nothing may be changed it is not there, but stays, as a key that is due.
        if ctx.keyspace.may_delete:
            end_group(ctx, key, stream, name)
        return None
    if group.has_expired(ctx.steady_ms) and ctx.keyspace.may_delete and ctx.effects.has_room(
            read_effects_most(key, group, b"", min(group.pendings.count, <uint64_t>EXPIRED_MAX))):
        gone = group.take_expired(ctx.steady_ms, EXPIRED_MAX)
        if gone:
            change_pending(ctx, b"ACK", key, name, gone, <uint64_t>len(gone))
    return group


def take_group(Context ctx not None, Args args not None) -> tuple:
    """(key, name, stream, group) of a request whose next words are a key and a group; None for what
    does not exist. The key is read, but the group may be changed."""
    cdef bytes key = ctx.db.key_of(args.take_slice())
    cdef bytes name = args.take()
    cdef Stream stream = ctx.read_for_update(key)
    return key, name, stream, None if stream is None else live_group(ctx, key, stream, name)


cdef list id_words(Context ctx, list ids):
    """Ids, (ms, seq) each, as words of an effect; none where no effects are kept."""
    if not ctx.effects.enabled:
        return []
    return [bytes(make_id(ms, seq, False)) for ms, seq in ids]


cpdef int change_pending(Context ctx, bytes effect, bytes key, bytes name, list ids,
                         uint64_t count) except -1:
    """Report a change of some pending entries, (ms, seq) each, of a group of this name."""
    return ctx.change((effect, key, name, *id_words(ctx, ids)), None, count)


def change_entries(Context ctx not None, tuple effect not None, list ids not None, bytes event,
                   uint64_t count) -> None:
    """Report a change of some entries: these words and the ids, (ms, seq) each, are the effect."""
    ctx.change(effect + tuple(id_words(ctx, ids)), event, count)


cpdef int used(Context ctx, bytes key, Group group) except -1:
    """A command was about this group: its time to live starts again."""
    group.last_used_ms = ctx.steady_ms
    return ctx.keyspace.schedule(ctx.db.index, key, group)


def group_moment(Context ctx not None, bytes key not None, bytes name not None) -> None:
    """A moment noted for a group has come: do what is due, wake a reader for a retry, note the
    next moment."""
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
    if group.retry_waiters and group.next_wake_ms() <= ctx.steady_ms or (
            group.claim_bound() != MAX and group.is_idle(ctx.steady_ms, group.claim_idle())):
        # The readers are served after this; each that blocks again notes the next moment.
        ctx.db.mark_ready(key)
    group.next_expiry_ms()
    ctx.keyspace.schedule_after(ctx.db.index, key, group, ctx.steady_ms)


cdef bint is_refused(Context ctx, list keys, bytes name) except -1:
    """Whether writes are refused: then nothing may be given out, for nothing can be recorded. The
    readers of this group at these (db, key) are retried a little later."""
    if ctx.write_error is None:
        return False
    put_off(ctx, keys, name)
    return True


cdef int put_off(Context ctx, list keys, bytes name) except -1:
    """The readers of this group at these (db, key) are retried a little later."""
    for db_index, key in keys:
        ctx.keyspace.timer_requests.append((ctx.steady_ms + REFUSED_AGAIN_MS, db_index, key, name))
    return 0


cpdef int64_t read_effects_most(bytes key, Group group, bytes consumer, uint64_t ids) noexcept:
    """The maximum size of the effects of a read that makes a consumer, delivers entries and
    names `ids` ids."""
    return (READ_EFFECTS * (EFFECT_BYTES + len(key) + len(group.name) + len(consumer))
            + <int64_t>ids * ID_WORD_BYTES)


cpdef int note_seen(Context ctx, bytes key, Group group, Consumer consumer) except -1:
    """Record that a consumer asked, and got nothing new to own. Of one that asks again and again
    once a second is enough: a crash may take that much of its idle time, and no poll costs a write
    to the journal."""
    cdef Output out = ctx.effects.out
    if not ctx.effects.enabled or ctx.steady_ms - consumer.noted_ms < SEEN_EVERY_MS:
        return 0
    consumer.noted_ms = ctx.steady_ms
    ctx.effects.begin(ctx.db.index, b"$4\r\nSEEN\r\n", 10, 5)
    out.put_bulk_bytes(key)
    out.put_bulk_bytes(group.name)
    out.put_bulk_bytes(consumer.name)
    ctx.effects.put_number(ctx.steady_ms)
    return ctx.effects.finish()


# ---------------------------------------------------------------- reservations

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
