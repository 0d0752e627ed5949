# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TRESERVE: reserving an ID for an entry that is completed later (`tcomplete`).

A program that also writes somewhere else needs the ID of its entry before the entry is final. It
reserves the ID under its name, does its work, and completes the entry. Readers get nothing above an ID
that is still open (storage/reservations/held).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp

from millstream.commands.engine.appending cimport new_id
from millstream.commands.engine.lifecycle cimport live_held
from millstream.commands.runtime.arguments cimport Args, parse_int
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport RESERVE_CODE, Effects
from millstream.commands.runtime.replies cimport Encodable
from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId, id_less, step_up
from millstream.ids cimport make_id, parse_id
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database, KeyspaceCore as Keyspace
from millstream.storage.reservations.held cimport Held, handed_out
from millstream.storage.reservations.held_segments cimport Writer
from millstream.storage.streams.stream cimport SEALED, Stream

from millstream.commands.engine.refusals import reservations_error, sealed_error
from millstream.commands.engine.reservation_arguments import (
    BAD_COUNT, BAD_LEASE, BAD_WRITER, COUNT_MAX, LEASE_DEFAULT_MS, LEASE_MAX_MS, WRITER_BYTES_MAX,
)
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.stream_effects import stream_at
from millstream.commands.table.registry import command
from millstream.errors import EXHAUSTED, SYNTAX, CommandError

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


@command(
    "TRESERVE key writer [COUNT n] [LEASE ms]", "write denyoom fast hot",
    complexity="O(n), n the number of IDs",
)
def treserve(Context ctx not None, Args args not None):
    """Reserves IDs for entries that a writer completes later.

    The reply is the reserved ID; with COUNT, an array of consecutive IDs. The stream is created if
    it doesn't exist. Readers get no entry above a reserved ID.
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
    cdef Effects effects = ctx.effects
    cdef Writer writer = held.writers.recent
    if writer is None or not is_named(writer, name):
        writer = held.writers.use(name.ptr[:name.size], ctx.keyspace.writers_max)
    new_id(ctx, stream, &first)
    held.reserve(stream, first, count, writer, lease_ms, ctx.steady_ms + lease_ms)
    ctx.db.reservations += count
    if effects.enabled:
        # RESERVE key writer lease-ms first-id count
        effects.begin(ctx.db.index, RESERVE_CODE, 5)
        effects.put_bytes(key)
        effects.put_bytes(writer.name)
        effects.put_number(lease_ms)
        effects.put_id(first.ms, first.seq)
        effects.put_number(count)
        effects.finish()
    if held.next_deadline_ms < held.scheduled_ms:
        ctx.db.note_lease_moment(key, held, held.next_deadline_ms)
    if ctx.db.waiting:
        ctx.db.mark_ready(key)  # the positions of other writers may have advanced
    ctx.count_change(None, None, count)
    return first


cdef Held held_of(Keyspace keyspace, Stream stream):
    """The reservations of a stream; created if the stream has had none."""
    cdef Held held
    if stream.held is None:
        stream.held = Held()
        keyspace.has_ordering = True
    held = stream.held
    held.segments.node_entries = keyspace.node_entries
    held.segments.node_bytes = keyspace.node_bytes
    return held


@effect(b"RESERVE")
def apply_reserve(Keyspace keyspace, int db, list words):
    """RESERVE key writer lease-ms first-id count."""
    cdef Stream stream = stream_at(keyspace, db, words[0])
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
    held.reserve(stream, first, count, held.writers.use(words[1], keyspace.writers_max), lease_ms,
                 keyspace.steady_ms + lease_ms)
    (<Database>keyspace.databases[db]).reservations += count
    keyspace.databases[db].note_lease_moment(words[0], held, held.next_deadline_ms)
