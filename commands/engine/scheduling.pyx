# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Entries that are appended at a later time: scheduling, cancelling and firing them.

A scheduled entry is outside the log until it fires: the server appends it with an ordinary automatic
ID, as TAPPEND would. Only a server that accepts changes fires entries; its timer does so
(server/execution/due_work), some at a time.
"""

from libc.stdint cimport UINT64_MAX as NEVER, uint64_t

from millstream.commands.engine.appending cimport check_append, count_appended, new_id, put_entry
from millstream.commands.engine.policies cimport keep_policy_after_append
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport (
    EFFECT_BYTES, FIRE_CODE, SCHEDULE_CODE, UNSCHEDULE_CODE, Effects, apply_compiled,
)
from millstream.commands.runtime.stream_effects cimport (
    NewEntry, id_at, number_at, put_again, stream_of,
)
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId
from millstream.ids cimport Id, make_id
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database, KeyspaceCore as Keyspace
from millstream.storage.streams.schedule cimport (
    Schedule, Scheduled, make_scheduled, size_of, word_count, words_of,
)
from millstream.storage.streams.stream cimport SEALED, Stream

from millstream.commands.engine.refusals import schedule_error, sealed_error
from millstream.errors import CommandError, shown

cdef enum:
    WORDS_ON_STACK = 128
    # The most entries that an entry whose time has passed waits for in its command, and their size.
    EARLIER_MAX = 500
    EARLIER_BYTES_MAX = 1 << 20
    # The delay after which an entry that cannot be appended is retried.
    AGAIN_MS = 1000
    # The pause between two lines about such entries.
    LOG_EVERY_MS = 60000


cdef Schedule schedule_of(Keyspace keyspace, Stream stream):
    """The schedule of a stream; created if the stream has had none."""
    if stream.schedule is None:
        stream.schedule = Schedule()
        keyspace.has_rules = True
    return stream.schedule


# ---------------------------------------------------------------- scheduling

cdef Id schedule_entry(Context ctx, Slice* key, uint64_t due_ms, bytes name, Slice* items,
                       Py_ssize_t count):
    """Schedule an entry for this time, or append it if the time has passed and not too many entries are
    due before it; returns its ticket. The stream is created if necessary. name: None for none; it
    replaces the entry with this name."""
    cdef Stream stream = ctx.write_stream_at(key)
    cdef bint is_due = due_ms <= ctx.now_ms
    cdef Schedule schedule
    cdef Scheduled entry
    cdef Scheduled replaced = None
    cdef NewEntry made
    entry = make_scheduled(EntryId(due_ms, 0), name, items, count)
    if stream is not None:
        check_stream(ctx, stream, is_due)
        schedule = stream.schedule
        if name is not None and schedule is not None:
            replaced = schedule.named(name)
        if is_due and schedule is not None:
            is_due = fire_earlier(ctx, key, stream, entry, replaced)
    if not is_due:
        check_limits(ctx, None if stream is None else <Schedule>stream.schedule, entry, replaced)
    if stream is None:
        stream = ctx.open_stream(key.ptr[:key.size])
    schedule = schedule_of(ctx.keyspace, stream)
    entry.ticket.seq = schedule.last_number + 1
    if is_due:
        made.items = items
        made.count = count
        append_now(ctx, key, stream, schedule, entry, replaced, &made)
    else:
        put_in_schedule(ctx.db, schedule, entry, replaced)
        record_schedule(ctx, key, entry, items, count)
        ctx.keyspace.note_firing(ctx.db.index, ctx.db.key_of(key), schedule)
        ctx.count_change(None, None, 1)
    return make_id(entry.ticket.ms, entry.ticket.seq, True)


cdef int check_stream(Context ctx, Stream stream, bint is_due) except -1:
    """Refuse an entry for a stream that is sealed or has the greatest ID, or one that would be appended now
    and cannot be."""
    cdef EntryId unused
    new_id(ctx, stream, &unused)
    if is_due:
        return check_append(ctx, stream)
    if stream.restrictions & SEALED:
        raise CommandError(sealed_error(stream))
    return 0


cdef int check_limits(Context ctx, Schedule schedule, Scheduled entry, Scheduled replaced) except -1:
    """Refuse an entry if the stream has too many, or too large ones, besides the one that it
    replaces."""
    cdef uint64_t count = 0 if schedule is None else schedule.count
    cdef uint64_t size_bytes = 0 if schedule is None else schedule.size_bytes
    if replaced is not None:
        count -= 1
        size_bytes -= size_of(replaced)
    if ctx.keyspace.scheduled_max and count >= ctx.keyspace.scheduled_max:
        raise schedule_error(f"{count} entries are scheduled, at most {ctx.keyspace.scheduled_max} can be")
    if ctx.keyspace.scheduled_max_bytes and (
            size_bytes + size_of(entry) > ctx.keyspace.scheduled_max_bytes):
        raise schedule_error(
            f"entries of {size_bytes} bytes are scheduled and one of {size_of(entry)} is requested, "
            f"at most {ctx.keyspace.scheduled_max_bytes} bytes can be")
    return 0


cdef int put_in_schedule(Database db, Schedule schedule, Scheduled entry, Scheduled replaced) except -1:
    """Add an entry, and remove the one that it replaces, if any. MemoryError changes nothing."""
    if replaced is not None:
        schedule.prepare_removal(replaced)
    schedule.add(entry)
    db.scheduled += 1
    if replaced is not None:
        schedule.remove(replaced)
        db.scheduled -= 1
    return 0


cdef bint fire_earlier(Context ctx, Slice* key, Stream stream, Scheduled added,
                       Scheduled replaced) except -1:
    """Append the entries that are due before an entry whose time has passed, except the one that it
    replaces; False if some are left."""
    cdef Schedule schedule = stream.schedule
    cdef Scheduled entry = schedule.first()
    cdef bytes name
    cdef list page, pages
    cdef uint64_t size_bytes = 0
    cdef Py_ssize_t left = EARLIER_MAX
    if entry is None or entry.ticket.ms > added.ticket.ms:
        return True
    name = ctx.db.key_of(key)
    pages = schedule.between((0, 0), (added.ticket.ms, NEVER), EARLIER_MAX + 2)
    ctx.effects.require(
        (2 + sum([len(page) for page in pages])) * (EFFECT_BYTES + key.size) + size_of(added))
    for page in pages:
        for entry in page:
            if entry is replaced:
                continue
            if left == 0 or size_bytes > EARLIER_BYTES_MAX or not fire(
                    ctx, name, key, stream, schedule, entry):
                return False
            left -= 1
            size_bytes += size_of(entry)
    return True


cdef int append_now(Context ctx, Slice* key, Stream stream, Schedule schedule, Scheduled entry,
                    Scheduled replaced, NewEntry* made) except -1:
    """Append an entry whose time has passed. Recorded as scheduled and fired."""
    new_id(ctx, stream, &made.id)
    if replaced is not None:
        schedule.prepare_removal(replaced)
    put_entry(ctx, stream, made)
    schedule.last_number = entry.ticket.seq
    if replaced is not None:
        schedule.remove(replaced)
        ctx.db.scheduled -= 1
    ctx.effects.open_group()
    record_schedule(ctx, key, entry, made.items, made.count)
    record_fire(ctx, key, entry, made.id)
    ctx.effects.close_group()
    return count_fired(ctx, key, stream)


cdef int count_fired(Context ctx, Slice* key, Stream stream) except -1:
    """Count and notify like an append, and enforce the stream's policy."""
    ctx.keyspace.scheduled_fired += 1
    count_appended(ctx, key, stream, 1)
    if stream.policy is not None:
        keep_policy_after_append(ctx, ctx.db.key_of(key), stream)
    return 0


# ---------------------------------------------------------------- cancelling

def cancel(Context ctx not None, bytes key not None, Stream stream not None, list entries not None) -> None:
    """Cancel scheduled entries of a stream, which must come from a look-up for writing."""
    cdef Schedule schedule = stream.schedule
    cdef Scheduled entry
    ctx.effects.require(<Py_ssize_t>len(entries) * (EFFECT_BYTES + len(key)))
    for entry in entries:
        schedule.remove(entry)
        ctx.db.scheduled -= 1
        if ctx.effects.enabled:
            # UNSCHEDULE key due number
            ctx.effects.begin(ctx.db.index, UNSCHEDULE_CODE, 3)
            ctx.effects.put_bytes(key)
            put_ticket(ctx.effects, entry)
            ctx.effects.finish()
        ctx.count_change(None, None, 1)


# ---------------------------------------------------------------- firing

def firing_moment(Context ctx not None, bytes key not None, uint64_t most, uint64_t most_bytes) -> tuple:
    """Append the scheduled entries of the stream at a key that are due, in order, until there are
    `most`, or their size is most_bytes; schedule the next time. Returns their number and size."""
    cdef Stream stream = ctx.maintained_stream(key)
    cdef Slice view = Slice(key, len(key))
    cdef Schedule schedule
    cdef Scheduled entry
    cdef uint64_t fired = 0
    cdef uint64_t fired_bytes = 0
    if stream is None or stream.schedule is None:
        return 0, 0
    schedule = stream.schedule
    schedule.noted_ms = NEVER
    while fired < most and fired_bytes < most_bytes:
        entry = schedule.first()
        if entry is None or entry.ticket.ms > ctx.now_ms:
            break
        if not fire(ctx, key, &view, stream, schedule, entry):
            ctx.keyspace.note_firing_at(ctx.db.index, key, schedule, ctx.now_ms + AGAIN_MS)
            return fired, fired_bytes
        fired += 1
        fired_bytes += size_of(entry)
    ctx.keyspace.note_firing(ctx.db.index, key, schedule)
    return fired, fired_bytes


cdef bint fire(Context ctx, bytes key, Slice* view, Stream stream, Schedule schedule,
               Scheduled entry) except -1:
    """Append an entry that is due; False if this is not possible now."""
    cdef Slice[WORDS_ON_STACK] few
    cdef NewEntry made
    cdef object space
    made.items = few
    made.count = word_count(entry)
    if made.count > WORDS_ON_STACK:
        space = bytearray(made.count * sizeof(Slice))
        made.items = <Slice*><char*>(<bytearray>space)
    words_of(entry, made.items)
    if not ctx.effects.has_room(EFFECT_BYTES + len(key)):
        return False
    try:
        check_append(ctx, stream)
        new_id(ctx, stream, &made.id)
        schedule.prepare_removal(entry)
        put_entry(ctx, stream, &made)
    except (CommandError, MemoryError) as error:
        log_unfired(ctx, key, entry, error)
        return False
    schedule.remove(entry)
    ctx.db.scheduled -= 1
    record_fire(ctx, view, entry, made.id)
    count_fired(ctx, view, stream)
    return True


cdef int log_unfired(Context ctx, bytes key, Scheduled entry, error) except -1:
    """Log that an entry cannot be appended, at most one line a minute."""
    if ctx.steady_ms < ctx.keyspace.unfired_log_ms:
        return 0
    ctx.keyspace.unfired_log_ms = ctx.steady_ms + LOG_EVERY_MS
    ctx.server.warn(
        f"the scheduled entry {make_id(entry.ticket.ms, entry.ticket.seq, True)} of stream '{shown(key)}' "
        f"is due and cannot be appended: {error}; this is retried every second")
    return 0


# ---------------------------------------------------------------- effects

cdef int put_ticket(Effects effects, Scheduled entry) except -1:
    effects.put_number(entry.ticket.ms)
    return effects.put_number(entry.ticket.seq)


cdef int record_schedule(Context ctx, Slice* key, Scheduled entry, Slice* items, Py_ssize_t count) except -1:
    """SCHEDULE key due number name field value [field value ...]."""
    cdef Effects effects = ctx.effects
    cdef Py_ssize_t i
    if not effects.enabled:
        return 0
    effects.begin(ctx.db.index, SCHEDULE_CODE, 4 + count)
    effects.put(key.ptr, key.size)
    put_ticket(effects, entry)
    effects.put_bytes(b"" if entry.name is None else entry.name)
    for i in range(count):
        effects.put(items[i].ptr, items[i].size)
    return effects.finish()


cdef int record_fire(Context ctx, Slice* key, Scheduled entry, EntryId entry_id) except -1:
    """FIRE key due number id."""
    cdef Effects effects = ctx.effects
    if not effects.enabled:
        return 0
    effects.begin(ctx.db.index, FIRE_CODE, 4)
    effects.put(key.ptr, key.size)
    put_ticket(effects, entry)
    effects.put_id(entry_id.ms, entry_id.seq)
    return effects.finish()


cdef int apply_schedule(Keyspace keyspace, int db, Args args) except -1:
    cdef Stream stream = stream_of(keyspace, db, args)
    cdef Schedule schedule = schedule_of(keyspace, stream)
    cdef EntryId ticket
    cdef bytes name
    if args.count < 7:
        raise ValueError("SCHEDULE without an entry")
    ticket.ms = number_at(args, 2)
    ticket.seq = number_at(args, 3)
    name = args[4] or None
    if ticket.seq <= schedule.last_number:
        raise ValueError(f"SCHEDULE with number {ticket.seq}, not above the stream's last")
    put_in_schedule(
        keyspace.databases[db], schedule,
        make_scheduled(ticket, name, &args.items[5], args.count - 5),
        None if name is None else schedule.named(name))
    return keyspace.note_firing(db, args[1], schedule)


cdef Scheduled scheduled_at(Schedule schedule, Args args):
    """The scheduled entry of an effect."""
    cdef EntryId ticket
    cdef Scheduled entry = None
    if args.count < 4:
        raise ValueError("an effect on a scheduled entry without a ticket")
    ticket.ms = number_at(args, 2)
    ticket.seq = number_at(args, 3)
    if schedule is not None:
        entry = schedule.find(ticket)
    if entry is None:
        raise ValueError(f"{args[0].decode()} of ticket {ticket.ms}.{ticket.seq}, which is not scheduled")
    return entry


cdef int apply_unschedule(Keyspace keyspace, int db, Args args) except -1:
    """UNSCHEDULE key due number."""
    cdef Stream stream = stream_of(keyspace, db, args)
    cdef Schedule schedule = stream.schedule
    schedule.remove(scheduled_at(schedule, args))
    (<Database>keyspace.databases[db]).scheduled -= 1
    return 0


cdef int apply_fire(Keyspace keyspace, int db, Args args) except -1:
    cdef Slice[WORDS_ON_STACK] few
    cdef Slice* items = few
    cdef object space
    cdef EntryId entry_id
    cdef Stream stream = stream_of(keyspace, db, args)
    cdef Schedule schedule = stream.schedule
    cdef Scheduled entry = scheduled_at(schedule, args)
    cdef Py_ssize_t count = word_count(entry)
    if args.count != 5:
        raise ValueError("FIRE without an ID")
    id_at(args, 4, &entry_id)
    if count > WORDS_ON_STACK:
        space = bytearray(count * sizeof(Slice))
        items = <Slice*><char*>(<bytearray>space)
    words_of(entry, items)
    schedule.prepare_removal(entry)
    put_again(keyspace, db, args, stream, entry_id, items, count)
    schedule.remove(entry)
    (<Database>keyspace.databases[db]).scheduled -= 1
    return 0


apply_compiled(b"SCHEDULE", ~(<uint64_t>1 << 2 | <uint64_t>1 << 3), apply_schedule)
apply_compiled(b"UNSCHEDULE", 1 << 1, apply_unschedule)
apply_compiled(b"FIRE", 1 << 1, apply_fire)
