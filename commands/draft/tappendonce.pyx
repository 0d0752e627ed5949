# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TAPPENDONCE: an entry that is sent twice is appended once, however late it is
repeated.

A writer that gets no reply does not know whether its entry was appended, so it sends the entry
again and the server must recognize it. There are two ways: the entry's own ID, if IDs come from
elsewhere and ascend; or an ascending number of the producer, of which the server stores the last
one. Unlike XADD's IDMP neither expires, because a job may be restarted a week later. The append and
the producer's number are one effect, so a crash cannot separate them.
"""

from libc.stdint cimport uint64_t

from millstream.commands.engine.appending cimport (
    NewEntry, append_entry, append_numbered, check_above_promise, check_append, new_id,
    stream_to_append,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport parse_u64
from millstream.storage.blocks.open_block cimport payload_of
from millstream.storage.keyspace.keyspace_core cimport KeyspaceCore as Keyspace
from millstream.storage.reservations.held cimport handed_out
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.stream_effects import stream_at
from millstream.commands.table.registry import command
from millstream.errors import NOT_INTEGER, SYNTAX, CommandError, wrong_arity
from millstream.storage.streams.producers import Producers

ID_ZERO = "ERR The ID specified in TAPPENDONCE must be greater than 0.0"
NO_NAME = "ERR {} requires a non-empty producer name"
LONG_NAME = f"ERR a producer's name may have at most {NAME_BYTES_MAX} bytes"


@command(
    "TAPPENDONCE key <ID id | PRODUCER name seq> field value [field value ...]",
    "write denyoom fast",
)
def tappendonce(Context ctx not None, Args args not None):
    """Appends an entry unless it was appended before; returns its ID, or nil."""
    args.pos = 2
    if args.next_is(b"ID"):
        return append_above(ctx, args)
    if args.next_is(b"PRODUCER"):
        return append_from(ctx, args)
    raise CommandError(SYNTAX)


cdef int check_fields(Args args, Py_ssize_t start) except -1:
    """Check that there is at least one field from this word on, and a value for each."""
    if args.count < start + 2 or (args.count - start) & 1:
        raise wrong_arity("tappendonce")
    return 0


cdef append_above(Context ctx, Args args):
    """ID id field value ...: append with this ID if it is above the stream's last ID."""
    cdef Stream stream
    cdef NewEntry entry
    cdef EntryId last
    check_fields(args, 4)
    args.take_id(&entry.id, True, 0)
    entry.items = &args.items[4]
    entry.count = args.count - 4
    if entry.id.ms == 0 and entry.id.seq == 0:
        raise CommandError(ID_ZERO)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is not None:
        last = handed_out(stream)
        if not id_less(last.ms, last.seq, entry.id.ms, entry.id.seq):
            return None
        check_above_promise(ctx, stream, entry.id, "TAPPENDONCE", True)
    stream = stream_to_append(ctx, &args.items[1], entry.items, entry.count)
    return append_entry(ctx, &args.items[1], stream, &entry, True)


cdef append_from(Context ctx, Args args):
    """PRODUCER name seq field value ...: append if the producer's seq is above its last."""
    cdef Stream stream
    cdef NewEntry entry
    cdef Slice* word
    cdef uint64_t seq
    cdef bytes name
    check_fields(args, 5)
    entry.items = &args.items[5]
    entry.count = args.count - 5
    word = take_name(args, "TAPPENDONCE")
    seq = take_seq(args)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None:
        stream = stream_to_append(ctx, &args.items[1], entry.items, entry.count)
    if stream.producers is None:
        stream.producers = Producers()
    name = word.ptr[:word.size]
    if stream.producers.has_sent(name, seq):
        return None
    payload_of(entry.items, entry.count)
    if stream.restrictions:
        check_append(ctx, stream)
    new_id(ctx, stream, &entry.id)
    limit_producers(ctx, &args.items[1], stream.producers, name)
    return append_numbered(ctx, &args.items[1], stream, &entry, name, seq)


cdef Slice* take_name(Args args, str command_name) except NULL:
    cdef Slice* word = args.take_slice()
    if word.size == 0:
        raise CommandError(NO_NAME.format(command_name))
    if word.size > NAME_BYTES_MAX:
        raise CommandError(f"{LONG_NAME}; this one has {word.size}")
    return word


cdef uint64_t take_seq(Args args) except? 0:
    """Take a number from 0 to 2^64-1, in the form in which Redis writes integers."""
    cdef Slice* word = args.take_slice()
    cdef uint64_t seq
    if parse_u64(word.ptr, word.size, &seq) < 0 or (word.size > 1 and word.ptr[0] == c'0'):
        raise CommandError(NOT_INTEGER)
    return seq


cdef int limit_producers(Context ctx, Slice* key, producers, bytes name) except -1:
    """Remove the producers with the oldest last append until the stream has at most the limit,
    which includes this producer."""
    cdef uint64_t most = ctx.keyspace.producers_max
    cdef int forgotten = 0
    while forgotten < FORGOTTEN_MAX and <uint64_t>len(producers) >= most and (
            <uint64_t>len(producers) > most or name not in producers):
        gone = producers.drop_oldest()
        ctx.change((b"PRODUCERDROP", ctx.db.key_of(key), gone), None, 0)
        forgotten += 1
    return 0


@effect(b"PRODUCERDROP")
def apply_producer_drop(Keyspace keyspace, int db, list words):
    """PRODUCERDROP key name: forget a producer."""
    cdef Stream stream = stream_at(keyspace, db, words[0])
    if stream.producers is None or not stream.producers.drop(words[1]):
        raise ValueError(f"PRODUCERDROP of {words[1]!r}, which is not there")
