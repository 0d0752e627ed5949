# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""TAPPENDONCE: an entry that is sent again is not appended again, however late.

A writer that gets no answer cannot know what became of its entry; it sends it again, and the server
has to know. Two ways to tell: the entry's own id, where ids come from elsewhere and rise; or a
number that rises with what a producer sends, of which the server keeps the last one. Neither is
forgotten by time, as XADD's IDMP is: a job may be restarted a week later. The append and the
producer's number are one effect, so no crash can leave one without the other.
"""

from libc.stdint cimport uint32_t, uint64_t

from millstream.commands.appending cimport append_entry, append_numbered, stream_to_append
from millstream.commands.arguments cimport Args
from millstream.commands.context cimport Context
from millstream.commands.effects cimport stream_of
from millstream.encoding cimport Slice
from millstream.ids cimport EntryId, id_less, parse_u64
from millstream.storage.block cimport payload_of
from millstream.storage.keyspace cimport Keyspace
from millstream.storage.producers cimport NOT_THERE, Producers
from millstream.storage.stream cimport Stream

from millstream.commands.effects import effect
from millstream.commands.registry import command
from millstream.errors import NOT_INTEGER, SYNTAX, CommandError, wrong_arity

cdef enum:
    NAME_BYTES_MAX = 1024
    # Producers forgotten behind one append, where stream-producers-max was lowered.
    FORGOTTEN_MAX = 64

ID_ZERO = "ERR The ID specified in TAPPENDONCE must be greater than 0.0"
NO_NAME = "ERR TAPPENDONCE requires a non-empty producer name"
LONG_NAME = f"ERR a producer's name may have at most {NAME_BYTES_MAX} bytes"


@command(
    "TAPPENDONCE", arity=-6, flags="write denyoom fast", keys=(1, 1, 1), group="stream",
    summary="Appends an entry unless it was appended before; answers its id, or nil.",
    syntax="key <ID id | PRODUCER name seq> field value [field value ...]", complexity="O(1)",
)
def tappendonce(Context ctx not None, Args args not None):
    args.pos = 2
    if args.next_is(b"ID", 2):
        return append_above(ctx, args)
    if args.next_is(b"PRODUCER", 8):
        return append_from(ctx, args)
    raise CommandError(SYNTAX)


cdef int check_fields(Args args, Py_ssize_t start) except -1:
    """At least one field, and each with a value, from this word on."""
    if args.count < start + 2 or (args.count - start) & 1:
        raise wrong_arity("tappendonce")
    return 0


cdef append_above(Context ctx, Args args):
    """ID id field value ...: append with this id if it is above the stream's last."""
    cdef Stream stream
    cdef EntryId entry_id
    check_fields(args, 4)
    args.take_id(&entry_id, True, 0)
    if entry_id.ms == 0 and entry_id.seq == 0:
        raise CommandError(ID_ZERO)
    stream = ctx.db.writable_at(&args.items[1])
    if stream is None:
        stream = stream_to_append(ctx, &args.items[1], &args.items[4], args.count - 4)
    elif not id_less(stream.last_ms, stream.last_seq, entry_id.ms, entry_id.seq):
        return None
    return append_entry(ctx, &args.items[1], stream, entry_id, &args.items[4], args.count - 4,
                        True)


cdef append_from(Context ctx, Args args):
    """PRODUCER name seq field value ...: append if the producer's seq is above its last."""
    cdef Stream stream
    cdef EntryId entry_id
    cdef Slice* word
    cdef Slice* items = &args.items[5]
    cdef Py_ssize_t count = args.count - 5
    cdef uint64_t seq
    cdef uint32_t slot
    cdef bytes name
    check_fields(args, 5)
    word = take_name(args)
    seq = take_seq(args)
    stream = ctx.db.writable_at(&args.items[1])
    if stream is None:
        stream = stream_to_append(ctx, &args.items[1], items, count)
    if stream.producers is None:
        stream.producers = Producers()
    name = stream.producers.name_of(word.ptr, word.size)
    if stream.producers.has_sent(name, seq):
        return None
    payload_of(items, count)
    stream.next_id(ctx.now_ms, &entry_id)
    make_room(ctx, &args.items[1], stream.producers, name)
    slot = stream.producers.reserve(name)
    return append_numbered(ctx, &args.items[1], stream, entry_id, items, count, name, seq, slot)


cdef Slice* take_name(Args args) except NULL:
    cdef Slice* word = args.take_slice()
    if word.size == 0:
        raise CommandError(NO_NAME)
    if word.size > NAME_BYTES_MAX:
        raise CommandError(f"{LONG_NAME}; this one has {word.size}")
    return word


cdef uint64_t take_seq(Args args) except? 0:
    """0 to 2^64-1, written as Redis writes integers."""
    cdef Slice* word = args.take_slice()
    cdef uint64_t seq
    if parse_u64(word.ptr, word.size, &seq) < 0 or (word.size > 1 and word.ptr[0] == c'0'):
        raise CommandError(NOT_INTEGER)
    return seq


cdef int make_room(Context ctx, Slice* key, Producers producers, bytes name) except -1:
    """Forget the producers that were silent longest where there are too many, one more counted if
    this one is new."""
    cdef uint64_t most = ctx.keyspace.producers_max
    cdef int forgotten = 0
    while forgotten < FORGOTTEN_MAX and producers.count >= most and (
            producers.count > most or producers.find(name) == NOT_THERE):
        gone = producers.drop_oldest()
        ctx.effects.record(ctx.db.index, b"PRODUCERDROP", ctx.db.key_of(key), gone)
        forgotten += 1
    return 0


@effect(b"PRODUCERDROP")
def apply_producer_drop(Keyspace keyspace, int db, list words):
    """PRODUCERDROP key name: a producer is forgotten."""
    cdef Stream stream = stream_of(keyspace, db, words[0])
    if stream.producers is None or not stream.producers.drop(words[1]):
        raise ValueError(f"PRODUCERDROP of {words[1]!r}, which is not there")
