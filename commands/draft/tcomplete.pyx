# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TCOMPLETE: completing an entry whose ID was reserved (`treserve`)."""

from libc.stdint cimport uint64_t

from millstream.commands.draft.treserve cimport check_writer, is_named
from millstream.commands.engine.lifecycle cimport live_held, release
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport COMPLETE_CODE, Effects
from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport make_id, parse_id
from millstream.storage.blocks.open_block cimport payload_of
from millstream.storage.keyspace.keyspace_core cimport DatabaseCore as Database, KeyspaceCore as Keyspace
from millstream.storage.reservations.held cimport Held, handed_out
from millstream.storage.reservations.held_segments cimport (
    Run, Slot, Writer, list_of_words, pack_list, words_of,
)
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.refusals import (
    fact_done, fact_lost, held_error, no_reservation, other_entry,
)
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.stream_effects import stream_at
from millstream.commands.table.registry import command
from millstream.errors import wrong_arity
from millstream.storage.log.log_ranges import encoded_entry


@command(
    "TCOMPLETE key writer id field value [field value ...]", "write denyoom fast hot",
    complexity="O(1), and O(n) of the entries that become visible",
)
def tcomplete(Context ctx not None, Args args not None):
    """Completes a reserved entry; returns the stream's position.

    The reply is the position after the completion: entries up to it are visible. If the reply is
    lost, send the same request again: FACTDONE means that the entry exists, with these fields.
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
        reservation = held.segments.find_open(&entry_id, &index)
    if reservation is None or not is_named(reservation.writer, &args.items[2]):
        raise refused(stream, held, reservation, entry_id, args)
    first = held.segments.first
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
            not held.writers.may_have_reserved(name, &entry_id)):
        return no_reservation(entry_id.ms, entry_id.seq, None)
    segment = held.segments.find_entry(&entry_id)
    if segment is None:
        if not stream.has_entry(entry_id.ms, entry_id.seq):
            return fact_lost(entry_id.ms, entry_id.seq)
        same = encoded_entry(stream, entry_id.ms, entry_id.seq) == described(entry_id, args)
    else:
        owner = (<Run>segment).writer_of(entry_id) if type(segment) is Run else segment.writer
        same = is_same(segment, entry_id, args) and (
            held.writers.has_forgotten if owner is None else owner.name == name)
    if same:
        return fact_done(entry_id.ms, entry_id.seq)
    return other_entry(entry_id.ms, entry_id.seq)


cdef bint is_same(Slot segment, EntryId entry_id, Args args) except -1:
    """True if a held entry has the fields of a request."""
    cdef Py_ssize_t i
    if type(segment) is Run:
        return encoded_entry((<Run>segment).entries, entry_id.ms, entry_id.seq) == described(
            entry_id, args)
    return list_of_words(segment.words) == [args[i] for i in range(4, args.count)]


cdef bytes described(EntryId entry_id, Args args):
    """The entry that a TCOMPLETE describes, encoded as log_ranges.encoded_entry does."""
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
    cdef Effects effects = ctx.effects
    cdef Py_ssize_t i
    if held.writers.recent is not writer:
        held.writers.use(writer.name, ctx.keyspace.writers_max)
    held.complete(stream, reservation, index, &args.items[4], args.count - 4)
    ctx.db.reservations -= 1
    if effects.enabled:
        # COMPLETE key writer id field value ...
        effects.begin(ctx.db.index, COMPLETE_CODE, args.count - 1)
        effects.put_bytes(key)
        effects.put_bytes(writer.name)
        effects.put_id(entry_id.ms, entry_id.seq)
        for i in range(4, args.count):
            effects.put(args.items[i].ptr, args.items[i].size)
        effects.finish()
    held.segments.tidy()
    return ctx.count_change(None, None, 1)


@effect(b"COMPLETE", wakes_readers=True)
def apply_complete(Keyspace keyspace, int db, list words):
    """COMPLETE key writer id field value [field value ...]."""
    cdef Stream stream = stream_at(keyspace, db, words[0])
    cdef Held held = stream.held
    cdef EntryId entry_id
    cdef Slot reservation
    cdef Py_ssize_t index
    cdef bytes packed = pack_list(words[3:])
    cdef object space = bytearray(len(words) * sizeof(Slice))
    cdef Slice* items = <Slice*><char*>(<bytearray>space)
    if parse_id(words[2], len(words[2]), False, 0, &entry_id) < 0:
        raise ValueError(f"{words[2]!r} is not an ID")
    reservation = None if held is None else held.segments.find_open(&entry_id, &index)
    if reservation is None or reservation.writer.name != words[1]:
        raise ValueError(f"COMPLETE of {words[2]!r}, which is not reserved by {words[1]!r}")
    held.complete(stream, reservation, index, items, words_of(packed, items))
    held.writers.use(words[1], keyspace.writers_max)
    held.segments.tidy()
    held.release(stream)
    (<Database>keyspace.databases[db]).reservations -= 1
