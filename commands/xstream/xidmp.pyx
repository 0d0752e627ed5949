# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Messages that count once however often they are sent: XADD IDMP and IDMPAUTO, XCFGSET.

A producer's message has a name (the idempotent id, iid): the producer's own, or with IDMPAUTO one
made from the fields and values, whose order does not matter. What a stream remembers of them is a
`storage.idempotence.Window`. A repeat is answered with the first id, also after that entry is gone,
and changes nothing but a counter: no entry, no trimming, no event.

A name's time runs from the entry's milliseconds, as in Redis, but at most from now: on a stream whose
ids are ahead of the clock names would otherwise be kept much longer than was asked for.
"""

from libc.stdint cimport uint64_t

from hashlib import blake2b

from millstream.commands.engine.appending cimport window_of
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport id_of, stream_of
from millstream.encoding cimport Slice
from millstream.ids cimport EntryId, make_id
from millstream.storage.blocks.block cimport Entry, View
from millstream.storage.streams.keyspace cimport Keyspace
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.effects import effect
from millstream.commands.table.registry import command
from millstream.commands.runtime.replies import OK
from millstream.errors import NO_SUCH_KEY, SYNTAX, CommandError
from millstream.storage.streams.idempotence import DURATION_S_MAX, MAXSIZE_MAX

TWICE = "ERR syntax error, IDMP/IDMPAUTO specified multiple times"
NO_PRODUCER = "ERR syntax error, IDMP requires a non-empty producer ID"
NO_PRODUCER_AUTO = "ERR syntax error, IDMPAUTO requires a non-empty producer ID"
NO_IID = "ERR syntax error, IDMP requires a non-empty idempotent ID"
NOTHING_TO_SET = "ERR At least one parameter must be specified"
BAD_DURATION = f"ERR IDMP-DURATION must be between 1 and {DURATION_S_MAX} seconds"
BAD_MAXSIZE = f"ERR IDMP-MAXSIZE must be between 1 and {MAXSIZE_MAX} entries"
ENTRY_GONE = "ERR No such message in stream"
OTHER_ENTRY = "ERR IID already exists for this producer with a different stream ID"

ROUND_MS = 100

# Bytes of a name made from an entry's contents.
NAME_BYTES = 16


# ---------------------------------------------------------------- XADD's part

cdef bint take_once(Args args, Once* once) except -1:
    """Take IDMP or IDMPAUTO if the next argument is one and what it needs follows."""
    cdef Py_ssize_t following = args.count - args.pos - 1
    cdef bint auto
    if following >= 2 and args.next_is(b"IDMP"):
        auto = False
    elif following >= 1 and args.next_is(b"IDMPAUTO"):
        auto = True
    else:
        return False
    if once.producer != NULL:
        raise CommandError(TWICE)
    once.producer = args.take_slice()
    if once.producer.size == 0:
        raise CommandError(NO_PRODUCER_AUTO if auto else NO_PRODUCER)
    if not auto:
        once.iid = args.take_slice()
        if once.iid.size == 0:
            raise CommandError(NO_IID)
    return True


cdef bytes name_of(Once* once, Slice* items, Py_ssize_t count):
    """The message's name: as it was given, or made from its fields and values in any order."""
    cdef list pairs = []
    cdef Py_ssize_t i
    cdef bytes field
    cdef bytes value
    if once.iid != NULL:
        return once.iid.ptr[:once.iid.size]
    for i in range(0, count, 2):
        field = items[i].ptr[:items[i].size]
        value = items[i + 1].ptr[:items[i + 1].size]
        pairs.append(b"%d %d %b%b" % (len(field), len(value), field, value))
    pairs.sort()
    return blake2b(b"".join(pairs), digest_size=NAME_BYTES).digest()


cdef bint is_repeat(Context ctx, bytes key, Stream stream, bytes producer, bytes iid,
                    EntryId* first) except -1:
    """Whether the stream has this message already, as entry `first`; a repeat is counted."""
    cdef object window = stream.idempotence
    if window is None:
        return False
    found = window.find(producer, iid, ctx.now_ms)
    if found is None:
        return False
    first.ms, first.seq = found
    window.duplicates += 1
    ctx.change((b"IDMPREPEAT", key), None, 1)
    return True


cdef int note_since(Context ctx, bytes key, Stream stream, bytes producer, bytes iid,
                    EntryId entry_id, uint64_t at_ms) except -1:
    """Remember the message that became an entry; its time runs from at_ms."""
    window_of(stream).add(producer, iid, (entry_id.ms, entry_id.seq), at_ms)
    return ctx.change((b"IDMP", key, producer, iid,
                       bytes(make_id(entry_id.ms, entry_id.seq, False)), at_ms), None, 1)


# ---------------------------------------------------------------- XCFGSET, XIDMPRECORD

@command(
    "XCFGSET", arity=-2, flags="write fast", keys=(1, 1, 1), group="stream", since="8.6.0",
    summary="Sets how many messages of each producer a stream remembers, and for how long.",
    syntax="key [IDMP-DURATION seconds] [IDMP-MAXSIZE entries]",
)
def xcfgset(Context ctx not None, Args args not None):
    """New values clear the messages that the stream remembers. Above 10,000 producers, the stream
    forgets the producer that has been silent longest.
    """
    cdef Stream stream = ctx.write_stream_at(&args.items[1])
    cdef bytes key = ctx.db.key_of(&args.items[1])
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    duration_s = maxsize = None
    args.pos = 2
    while args.pos < args.count:
        if is_given(args, b"IDMP-DURATION", duration_s):
            duration_s = args.take_int()
            if not 1 <= duration_s <= DURATION_S_MAX:
                raise CommandError(BAD_DURATION)
        elif is_given(args, b"IDMP-MAXSIZE", maxsize):
            maxsize = args.take_int()
            if not 1 <= maxsize <= MAXSIZE_MAX:
                raise CommandError(BAD_MAXSIZE)
        else:
            raise CommandError(SYNTAX)
    if duration_s is None and maxsize is None:
        raise CommandError(NOTHING_TO_SET)
    window = window_of(stream)
    window.configure(
        window.duration_s if duration_s is None else duration_s,
        window.maxsize if maxsize is None else maxsize)
    ctx.change((b"IDMPSET", key, window.duration_s, window.maxsize), None, 1)
    return OK


cdef bint is_given(Args args, bytes word, before) except -1:
    """Take an option's word when a value follows it; `before` is the value it had in this request
    already."""
    if args.pos + 1 >= args.count or not args.option(word):
        return False
    if before is not None:
        raise CommandError(f"ERR {word.decode()} specified multiple times")
    return True


@command(
    "XIDMPRECORD", arity=5, flags="write denyoom fast", keys=(1, 1, 1), group="stream",
    since="8.6.2", summary="Records that an existing entry came from a producer's message.",
    syntax="key pid iid stream-id",
)
def xidmprecord(Context ctx not None, Args args not None):
    cdef Stream stream
    cdef EntryId entry_id
    cdef View view
    cdef Entry entry
    producer, iid = args[2], args[3]
    args.pos = 4
    args.take_id(&entry_id, False, 0)
    if not producer:
        raise CommandError("ERR producer ID must be non-empty")
    if not iid:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    if not stream.find(entry_id.ms, entry_id.seq, &view, &entry):
        raise CommandError(ENTRY_GONE)
    known = window_of(stream).find(producer, iid, ctx.now_ms)
    if known is not None and known != (entry_id.ms, entry_id.seq):
        raise CommandError(OTHER_ENTRY)
    if known is None:
        # Redis forgets names in rounds, ten a second: also the name of an old entry is known for
        # a moment.
        oldest_ms = max(0, ctx.now_ms - 1000 * window_of(stream).duration_s + ROUND_MS)
        note_since(ctx, ctx.db.key_of(&args.items[1]), stream, producer, iid, entry_id,
                   max(oldest_ms, min(entry_id.ms, ctx.now_ms)))
    return OK


# ---------------------------------------------------------------- effects

@effect(b"IDMPSET")
def apply_idmpset(Keyspace keyspace, int db, list words):
    """IDMPSET key duration-s maxsize: the window's bounds; new ones forget what is remembered."""
    window_of(stream_of(keyspace, db, words[0])).configure(int(words[1]), int(words[2]))


@effect(b"IDMP")
def apply_idmp(Keyspace keyspace, int db, list words):
    """IDMP key producer iid id ms: the producer's message became this entry."""
    window_of(stream_of(keyspace, db, words[0])).add(
        words[1], words[2], id_of(words[3]), int(words[4]))


@effect(b"IDMPREPEAT")
def apply_idmprepeat(Keyspace keyspace, int db, list words):
    """IDMPREPEAT key: a message was a repeat."""
    window_of(stream_of(keyspace, db, words[0])).duplicates += 1
