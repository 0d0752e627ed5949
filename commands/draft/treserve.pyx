# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TRESERVE and TCOMPLETE: reserve an ID, complete the entry later.

A program that also writes somewhere else needs the ID of its entry before the entry is final. It
reserves the ID under its name, does its work, and completes the entry. Readers get nothing above an ID
that is still open (storage/streams/held).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp

from millstream.commands.engine.appending cimport new_id
from millstream.commands.engine.lifecycle cimport live_held, release
from millstream.commands.runtime.arguments cimport Args, parse_int
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport Encodable
from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.ids cimport make_id, parse_id
from millstream.storage.blocks.open_block cimport payload_of
from millstream.storage.streams.held cimport Held, handed_out
from millstream.storage.streams.held_segments cimport (
    Run, Slot, Writer, list_of_words, pack_list, words_of,
)
from millstream.storage.streams.keyspace_core cimport DatabaseCore as Database, KeyspaceCore as Keyspace
from millstream.storage.streams.stream cimport SEALED, Stream

from millstream.commands.engine.restrictions import (
    BAD_COUNT, BAD_LEASE, BAD_WRITER, COUNT_MAX, LEASE_DEFAULT_MS, LEASE_MAX_MS, WRITER_BYTES_MAX,
    fact_done, fact_lost, held_error, no_reservation, other_entry, reservations_error, sealed_error,
)
from millstream.commands.runtime.applying import stream_of
from millstream.commands.runtime.effects import effect
from millstream.commands.table.registry import command
from millstream.errors import EXHAUSTED, SYNTAX, CommandError, wrong_arity

cdef enum:
    # Reserving more takes longer than most requests.
    FEW_IDS = 100

cdef uint32_t LEASE_MS = LEASE_DEFAULT_MS
cdef int64_t LEASE_MOST_MS = LEASE_MAX_MS
cdef int64_t COUNT_MOST = COUNT_MAX
cdef Py_ssize_t WRITER_BYTES_MOST = WRITER_BYTES_MAX


cdef int check_writer(Slice* word) except -1:
    if not 1 <= word.size <= WRITER_BYTES_MOST:
        raise CommandError(BAD_WRITER)
    return 0


cdef bint is_named(Writer writer, Slice* word) noexcept:
    return PyBytes_GET_SIZE(writer.name) == word.size and memcmp(
        PyBytes_AS_STRING(writer.name), word.ptr, word.size) == 0


cdef bint take_number(Args args, int64_t most, int64_t* number) except -1:
    """Take a number from 1 to `most`; False if the word is not such a number."""
    cdef Slice* word = args.take_slice()
    return parse_int(word.ptr, word.size, number) == 0 and 1 <= number[0] <= most


# ---------------------------------------------------------------- TRESERVE

@command(
    "TRESERVE key writer [COUNT n] [LEASE ms]", "write denyoom fast hot",
    complexity="O(n), n the number of IDs",
)
def treserve(Context ctx not None, Args args not None):
    """Reserves IDs for entries that a writer completes later.

    The reserved ID; with COUNT, an array of consecutive IDs. The stream is created if it doesn't
    exist. Readers get no entry above a reserved ID.
    """
    cdef bytes key = ctx.db.key_of(&args.items[1])
    cdef int64_t count = 0
    cdef int64_t lease_ms = LEASE_MS
    cdef uint64_t number
    cdef Stream stream
    cdef EntryId first
    args.pos = 2
    check_writer(args.take_slice())
    while args.pos < args.count:
        if args.next_is(b"COUNT"):
            if not take_number(args, COUNT_MOST, &count):
                raise CommandError(BAD_COUNT)
        elif args.next_is(b"LEASE"):
            if not take_number(args, LEASE_MOST_MS, &lease_ms):
                raise CommandError(BAD_LEASE)
        else:
            raise CommandError(SYNTAX)
    number = <uint64_t>max(1, count)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is not None:
        check_reserve(ctx, key, stream, number)
    elif number > ctx.keyspace.reservations_max:
        raise reservations_error(ctx, None, number)
    else:
        stream = ctx.open_stream(key)
    first = reserve_ids(ctx, key, stream, &args.items[2], number, lease_ms)
    if count == 0:
        return make_id(first.ms, first.seq, True)
    ctx.timed_alone = count > FEW_IDS
    return reserved_ids(first, number)


cdef class ReservedIds(Encodable):
    """The reply of a TRESERVE with COUNT: consecutive IDs."""

    cdef EntryId first
    cdef uint64_t count

    cdef int encode(self, Output out, int resp) except -1:
        cdef EntryId at = self.first
        cdef uint64_t _
        out.put_head(c'*', self.count)
        for _ in range(self.count):
            out.put_id(at.ms, at.seq, True)
            step_up(&at)
        return 0


cdef ReservedIds reserved_ids(EntryId first, uint64_t count):
    cdef ReservedIds made = ReservedIds.__new__(ReservedIds)
    made.first = first
    made.count = count
    return made


cdef int check_reserve(Context ctx, bytes key, Stream stream, uint64_t count) except -1:
    """Refuse reservations if the stream is sealed or has too many, or if not enough IDs are
    left."""
    cdef Held held = live_held(ctx, key, stream)
    cdef EntryId last
    if stream.restrictions & SEALED:
        raise CommandError(sealed_error(stream))
    if held is not None and held.reservations + count > ctx.keyspace.reservations_max or (
            count > ctx.keyspace.reservations_max):
        raise reservations_error(ctx, stream, count)
    last = handed_out(stream)
    if last.ms == MAX and MAX - last.seq < count:
        raise CommandError(EXHAUSTED)
    return 0


cdef EntryId reserve_ids(Context ctx, bytes key, Stream stream, Slice* name, uint64_t count,
                         int64_t lease_ms) except *:
    """Reserve `count` IDs of a stream, after `check_reserve`; returns the first."""
    cdef Held held = held_of(ctx.keyspace, stream)
    cdef EntryId first
    cdef Output out = ctx.effects.out
    cdef Writer writer = held.recent
    if writer is None or not is_named(writer, name):
        writer = held.writer(name.ptr[:name.size], ctx.keyspace.writers_max)
    new_id(ctx, stream, &first)
    held.reserve(stream, first, count, writer, lease_ms, ctx.steady_ms + lease_ms)
    ctx.db.reservations += count
    if ctx.effects.enabled:
        # RESERVE key writer lease-ms first-id count
        ctx.effects.begin(ctx.db.index, b"$7\r\nRESERVE\r\n", 13, 6)
        out.put_bulk_bytes(key)
        out.put_bulk_bytes(writer.name)
        ctx.effects.put_number(lease_ms)
        out.put_id(first.ms, first.seq, False)
        ctx.effects.put_number(count)
        ctx.effects.finish()
    if held.next_deadline_ms < held.scheduled_ms:
        ctx.db.note_lease_moment(key, held, held.next_deadline_ms)
    if ctx.db.waiting:
        ctx.db.mark_ready(key)  # the positions of other writers may have advanced
    ctx.count_change(None, None, count)
    return first


cdef Held held_of(Keyspace keyspace, Stream stream):
    """The reservations of a stream; created if the stream has had none."""
    if stream.held is None:
        stream.held = Held()
        keyspace.has_ordering = True
    (<Held>stream.held).node_entries = keyspace.node_entries
    (<Held>stream.held).node_bytes = keyspace.node_bytes
    return stream.held


@effect(b"RESERVE")
def apply_reserve(Keyspace keyspace, int db, list words):
    """RESERVE key writer lease-ms first-id count."""
    cdef Stream stream = stream_of(keyspace, db, words[0])
    cdef Held held = held_of(keyspace, stream)
    cdef EntryId first
    cdef EntryId last = handed_out(stream)
    cdef uint64_t count = int(words[4])
    cdef uint64_t lease_ms = int(words[2])
    if parse_id(words[3], len(words[3]), False, 0, &first) < 0:
        raise ValueError(f"{words[3]!r} is not an ID")
    if not id_less(last.ms, last.seq, first.ms, first.seq):
        raise ValueError(f"RESERVE of {words[3]!r}, which is not above the last ID")
    if count == 0:
        raise ValueError(f"RESERVE of no IDs, from {words[3]!r} on")
    held.reserve(stream, first, count, held.writer(words[1], keyspace.writers_max), lease_ms,
                 keyspace.steady_ms + lease_ms)
    (<Database>keyspace.databases[db]).reservations += count
    keyspace.databases[db].note_lease_moment(words[0], held, held.next_deadline_ms)


# ---------------------------------------------------------------- TCOMPLETE

@command(
    "TCOMPLETE key writer id field value [field value ...]", "write denyoom fast hot",
    complexity="O(1), and O(n) of the entries that become visible",
)
def tcomplete(Context ctx not None, Args args not None):
    """Completes a reserved entry; returns the stream's position.

    The position after the completion: entries up to it are visible. If the reply is lost, send the
    same request again: FACTDONE means that the entry exists, with these fields.
    """
    cdef bytes key = ctx.db.key_of(&args.items[1])
    cdef EntryId entry_id
    cdef Stream stream
    cdef Held held
    cdef Slot reservation = None
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t first
    cdef uint64_t before
    if args.count & 1:
        raise wrong_arity("tcomplete")
    args.pos = 2
    check_writer(args.take_slice())
    args.take_id(&entry_id, True, 0)
    payload_of(&args.items[4], args.count - 4)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None:
        raise no_reservation(entry_id.ms, entry_id.seq, None)
    held = live_held(ctx, key, stream)
    if held is not None:
        reservation = held.find_open(&entry_id, &index)
    if reservation is None or not is_named(reservation.writer, &args.items[2]):
        raise refused(stream, held, reservation, entry_id, args)
    first = held.first
    if index != first and ctx.keyspace.held_max_bytes and (
            held.size_bytes > ctx.keyspace.held_max_bytes):
        raise held_error(ctx, stream)
    before = stream.entries_added
    complete(ctx, key, stream, held, reservation, index, args)
    if index == first:
        release(ctx, key, stream, held, before)
    else:
        ctx.db.mark_ready_at(&args.items[1])
    return make_id(stream.last_ms, stream.last_seq, True)


cdef object refused(Stream stream, Held held, Slot reservation, EntryId entry_id, Args args):
    """The reason why a writer cannot complete an ID. FACTDONE only if the entry is the one that the
    request describes: a program that has mixed up its IDs must not take another entry for its own.
    """
    cdef bytes name = args[2]
    cdef EntryId last = handed_out(stream)
    cdef Slot segment
    cdef Writer owner
    if reservation is not None:
        return no_reservation(entry_id.ms, entry_id.seq, reservation.writer.name)
    if held is None or id_less(last.ms, last.seq, entry_id.ms, entry_id.seq) or (
            not held.may_have_reserved(name, &entry_id)):
        return no_reservation(entry_id.ms, entry_id.seq, None)
    segment = held.find_entry(&entry_id)
    if segment is None:
        if not stream.has_entry(entry_id.ms, entry_id.seq):
            return fact_lost(entry_id.ms, entry_id.seq)
        same = stream.encoded_entry(entry_id.ms, entry_id.seq) == described(entry_id, args)
    else:
        owner = (<Run>segment).writer_of(entry_id) if type(segment) is Run else segment.writer
        same = is_same(segment, entry_id, args) and (
            held.has_forgotten if owner is None else owner.name == name)
    if same:
        return fact_done(entry_id.ms, entry_id.seq)
    return other_entry(entry_id.ms, entry_id.seq)


cdef bint is_same(Slot segment, EntryId entry_id, Args args) except -1:
    """Whether a held entry has the fields of a request."""
    cdef Py_ssize_t i
    if type(segment) is Run:
        return (<Run>segment).entries.encoded_entry(entry_id.ms, entry_id.seq) == described(
            entry_id, args)
    return list_of_words(segment.words) == [args[i] for i in range(4, args.count)]


cdef bytes described(EntryId entry_id, Args args):
    """The entry that a TCOMPLETE describes, encoded as EntryLog.encoded_entry does."""
    cdef Output out = Output()
    cdef Py_ssize_t i
    out.put_head(c'*', 2)
    out.put_id(entry_id.ms, entry_id.seq, False)
    out.put_head(c'*', args.count - 4)
    for i in range(4, args.count):
        out.put_bulk(args.items[i].ptr, args.items[i].size)
    return out.take()


cdef int complete(Context ctx, bytes key, Stream stream, Held held, Slot reservation,
                  Py_ssize_t index, Args args) except -1:
    """Settle a reservation with the words of the request, and record it."""
    cdef Writer writer = reservation.writer
    cdef EntryId entry_id = reservation.id
    cdef Output out = ctx.effects.out
    cdef Py_ssize_t i
    if held.recent is not writer:
        held.writer(writer.name, ctx.keyspace.writers_max)
    held.complete(stream, reservation, index, &args.items[4], args.count - 4)
    ctx.db.reservations -= 1
    if ctx.effects.enabled:
        # COMPLETE key writer id field value ...
        ctx.effects.begin(ctx.db.index, b"$8\r\nCOMPLETE\r\n", 14, args.count)
        out.put_bulk_bytes(key)
        out.put_bulk_bytes(writer.name)
        out.put_id(entry_id.ms, entry_id.seq, False)
        for i in range(4, args.count):
            out.put_bulk(args.items[i].ptr, args.items[i].size)
        ctx.effects.finish()
    held.tidy()
    return ctx.count_change(None, None, 1)


@effect(b"COMPLETE", wakes_readers=True)
def apply_complete(Keyspace keyspace, int db, list words):
    """COMPLETE key writer id field value [field value ...]."""
    cdef Stream stream = stream_of(keyspace, db, words[0])
    cdef Held held = stream.held
    cdef EntryId entry_id
    cdef Slot reservation
    cdef Py_ssize_t index
    cdef bytes packed = pack_list(words[3:])
    cdef object space = bytearray(len(words) * sizeof(Slice))
    cdef Slice* items = <Slice*><char*>(<bytearray>space)
    if parse_id(words[2], len(words[2]), False, 0, &entry_id) < 0:
        raise ValueError(f"{words[2]!r} is not an ID")
    reservation = None if held is None else held.find_open(&entry_id, &index)
    if reservation is None or reservation.writer.name != words[1]:
        raise ValueError(f"COMPLETE of {words[2]!r}, which is not reserved by {words[1]!r}")
    held.complete(stream, reservation, index, items, words_of(packed, items))
    held.writer(words[1], keyspace.writers_max)
    held.tidy()
    held.release(stream)
    (<Database>keyspace.databases[db]).reservations -= 1
