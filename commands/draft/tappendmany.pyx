# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TAPPENDMANY: TAPPENDONCE for many entries of several streams in one request.

They share the cost of the request, the look-up of the stream, the reply and the producer's number.
Every word is checked before the first entry is appended. The entries of a stream are recorded as
plain appends; the last one records the producer's number. All effects are in one frame.
"""

from libc.stdint cimport UINT64_MAX, int64_t, uint64_t

from millstream.commands.draft.tappendonce cimport (
    FORGOTTEN_MAX, NAME_BYTES_MAX, limit_producers, take_name,
)
from millstream.commands.engine.appending cimport (
    NewEntry, check_above_promise, check_append, count_appended, new_id, put_entry,
)
from millstream.commands.engine.policies cimport keep_policy_after_append
from millstream.commands.runtime.arguments cimport Args, parse_int
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport record_append, record_append_once
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport parse_id, parse_u64
from millstream.storage.blocks.open_block cimport payload_of
from millstream.storage.reservations.held cimport handed_out
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command
from millstream.errors import EXHAUSTED, SYNTAX, CommandError
from millstream.storage.streams.producers import Producers

cdef enum:
    # The maximum of entries of one TAPPENDMANY, which take some milliseconds.
    MANY_MAX = 10000
    # The size of an effect in addition to the words of its entry, and the size of each word's
    # frame.
    EFFECT_BYTES = 128
    WORD_BYTES = 16


@command(
    "TAPPENDMANY numkeys key [key ...] <ID | PRODUCER name> <numentries <id-or-seq numfields "
    "field value [field value ...]> [...]> [...]", "write denyoom",
    complexity="O(n), n the number of entries", keys="RW update",
)
def tappendmany(Context ctx not None, Args args not None):
    """Appends entries to one or more streams, except those appended before; returns the number
    appended.
    """
    cdef Sending sending
    cdef Py_ssize_t entries_start
    cdef Py_ssize_t i
    cdef int64_t appended = 0
    sending.keys = take_key_count(args)
    args.pos += sending.keys
    sending.name = NULL
    if args.next_is(b"PRODUCER"):
        sending.name = take_name(args, "TAPPENDMANY")
    elif not args.next_is(b"ID"):
        raise CommandError(SYNTAX)
    entries_start = args.pos
    last_seqs = []
    check_sending(ctx, args, &sending, last_seqs)
    args.pos = entries_start
    for i in range(sending.keys):
        if sending.name == NULL:
            appended += append_all_above(ctx, args, &args.items[2 + i])
        else:
            appended += append_all_from(
                ctx, args, &args.items[2 + i], sending.name, last_seqs[i])
    return appended


cdef struct Sending:
    Py_ssize_t keys
    Slice* name  # of the producer; NULL where entries have ids
    int64_t entries
    int64_t effects_most  # bytes that the effects may take


cdef Py_ssize_t take_key_count(Args args) except -1:
    cdef Slice* word = args.take_slice()
    cdef int64_t count
    if parse_int(word.ptr, word.size, &count) < 0 or count < 1:
        raise CommandError("ERR numkeys must be a positive integer")
    if count > args.count - args.pos:
        raise CommandError("ERR numkeys is greater than the number of words that follow it")
    return count


cdef int64_t take_entry_count(Args args) except -1:
    cdef Slice* word
    cdef int64_t count
    if args.pos >= args.count:
        raise CommandError("ERR there are entries for fewer keys than numkeys says")
    word = args.take_slice()
    if parse_int(word.ptr, word.size, &count) < 0 or count < 1:
        raise CommandError("ERR numentries must be a positive integer")
    return count


cdef inline bint take_sent(Args args, bint numbered, NewEntry* sent) noexcept:
    """Take the next entry. False if it is malformed; `fault_of` then returns the reason."""
    cdef int64_t fields
    cdef Slice* word = &args.items[args.pos]
    sent.id.ms = 0
    if args.count - args.pos < 4:
        return False
    if numbered:
        if parse_u64(word.ptr, word.size, &sent.id.seq) < 0 or (
                word.size > 1 and word.ptr[0] == c'0'):
            return False
    elif parse_id(word.ptr, word.size, True, 0, &sent.id) < 0:
        return False
    word += 1
    if word.size == 1 and 49 <= word.ptr[0] <= 57:
        fields = word.ptr[0] - 48
    elif parse_int(word.ptr, word.size, &fields) < 0 or fields < 1:
        return False
    if fields > (args.count - args.pos - 2) >> 1:
        return False
    sent.items = word + 1
    sent.count = 2 * fields
    args.pos += 2 + sent.count
    return True


cdef str fault_of(Args args, bint numbered):
    """The fault in the entry at the cursor, which `take_sent` has refused."""
    cdef Slice* word = &args.items[args.pos]
    cdef EntryId entry_id
    cdef int64_t fields
    if args.count - args.pos < 4:
        return "has no field, or fewer entries follow than numentries says"
    if numbered:
        if parse_u64(word.ptr, word.size, &entry_id.seq) < 0 or (
                word.size > 1 and word.ptr[0] == c'0'):
            return "has a seq that is not an integer from 0 to 18446744073709551615"
    elif parse_id(word.ptr, word.size, True, 0, &entry_id) < 0:
        return "has an invalid stream ID"
    word += 1
    if parse_int(word.ptr, word.size, &fields) < 0 or fields < 1:
        return "has a numfields that is not a positive integer"
    return "has fewer fields and values than numfields says"


cdef int check_sending(Context ctx, Args args, Sending* sending, list last_seqs) except -1:
    """Refuse malformed entries, entries without space, and keys of another type before anything is
    changed. Appends the last seq of each stream's entries to `last_seqs`."""
    cdef Py_ssize_t i
    sending.entries = 0
    sending.effects_most = 0
    for i in range(sending.keys):
        last_seqs.append(check_group(ctx, args, &args.items[2 + i], sending))
    if args.pos < args.count:
        raise CommandError(
            f"ERR {args.count - args.pos} words follow the last entry; numkeys, numentries or "
            "numfields is too small")
    ctx.effects.require(sending.effects_most)
    return 0


cdef object check_group(Context ctx, Args args, Slice* key, Sending* sending):
    """Check the entries of one stream, whose IDs or seqs must ascend; returns the last seq.
    WRONGTYPE for a key of another type."""
    cdef Stream stream
    cdef bint numbered = sending.name != NULL
    cdef int64_t count = take_entry_count(args)
    cdef int64_t i
    cdef EntryId before = EntryId(0, 0)
    cdef Py_ssize_t start = args.pos
    cdef NewEntry sent
    if count > MANY_MAX - sending.entries:
        raise CommandError(f"ERR one TAPPENDMANY may have at most {MANY_MAX} entries")
    for i in range(count):
        sending.entries += 1
        if not take_sent(args, numbered, &sent):
            raise CommandError(f"ERR entry {sending.entries} {fault_of(args, numbered)}")
        if not numbered and sent.id.ms == 0 and sent.id.seq == 0:
            raise CommandError(f"ERR entry {sending.entries} has the ID 0.0; IDs are greater")
        if i and not id_less(before.ms, before.seq, sent.id.ms, sent.id.seq):
            raise CommandError(
                f"ERR entry {sending.entries} has {'a seq' if numbered else 'an ID'} that is not "
                "above that of the entry before it")
        before = sent.id
        sending.effects_most += (<int64_t>payload_of(sent.items, sent.count)
                                 + WORD_BYTES * sent.count + key.size + EFFECT_BYTES)
    stream = ctx.write_stream_at(key)
    if stream is not None and stream.restrictions:
        check_restrictions(ctx, args, sending, stream, start, count)
    check_stream(ctx, key, stream, sending, sent.id.seq)
    return sent.id.seq


cdef int check_restrictions(Context ctx, Args args, Sending* sending, Stream stream,
                            Py_ssize_t start, int64_t count) except -1:
    """Refuse new entries if the stream is sealed or holds too much, and IDs that break a promise to
    readers. Entries that were appended before are ignored."""
    cdef EntryId last = handed_out(stream)
    cdef Py_ssize_t end = args.pos
    cdef bint numbered = sending.name != NULL
    cdef NewEntry sent
    cdef bint is_new = False
    args.pos = start
    for _ in range(count):
        take_sent(args, numbered, &sent)
        if numbered:
            is_new = stream.producers is None or not stream.producers.has_sent(
                sending.name.ptr[:sending.name.size], sent.id.seq)
        elif id_less(last.ms, last.seq, sent.id.ms, sent.id.seq):
            is_new = True
            check_above_promise(ctx, stream, sent.id, "TAPPENDMANY", True)
    args.pos = end
    if is_new:
        check_append(ctx, stream)
    return 0


cdef int check_stream(Context ctx, Slice* key, Stream stream, Sending* sending,
                      uint64_t last_seq) except -1:
    """Refuse the entries up to `last_seq` if no more IDs exist, and add the size of the stream's
    other effects."""
    cdef EntryId last
    cdef int64_t surplus = 0
    sending.effects_most += key.size + EFFECT_BYTES
    if stream is None or sending.name == NULL:
        return 0
    last = handed_out(stream)
    if last.ms == UINT64_MAX and UINT64_MAX - last.seq < <uint64_t>sending.entries and (
            stream.producers is None or not stream.producers.has_sent(
                sending.name.ptr[:sending.name.size], last_seq)):
        raise CommandError(EXHAUSTED)
    if stream.producers is not None:
        surplus = <int64_t>len(stream.producers) + 1 - <int64_t>ctx.keyspace.producers_max
    if surplus > 0:
        sending.effects_most += min(surplus, <int64_t>FORGOTTEN_MAX) * (
            NAME_BYTES_MAX + key.size + EFFECT_BYTES)
    sending.effects_most += sending.name.size
    return 0


cdef int64_t append_all_above(Context ctx, Args args, Slice* key) except -1:
    """Append the entries of one stream whose IDs are above its last ID; returns their number."""
    cdef Stream stream = ctx.open_stream(ctx.db.key_of(key))
    cdef int64_t count = take_entry_count(args)
    cdef int64_t appended = 0
    cdef EntryId last = handed_out(stream)
    cdef NewEntry sent
    for _ in range(count):
        take_sent(args, False, &sent)
        if not id_less(last.ms, last.seq, sent.id.ms, sent.id.seq):
            continue
        put_counted(ctx, stream, &sent)
        appended += 1
        record_append(
            ctx.effects, ctx.db.index, ctx.db.key_of(key), sent.id, sent.items, sent.count)
    return after_appends(ctx, key, stream, appended)


cdef int64_t append_all_from(Context ctx, Args args, Slice* key, Slice* name,
                             last_seq) except -1:
    """Append the entries of one stream whose seqs are above the producer's last one; returns their
    number. The last entry has the number last_seq."""
    cdef Stream stream = ctx.open_stream(ctx.db.key_of(key))
    cdef int64_t count = take_entry_count(args)
    cdef int64_t sent_before = 0
    cdef NewEntry sent
    cdef bytes producer
    if stream.producers is None:
        stream.producers = Producers()
    producer = name.ptr[:name.size]
    while sent_before < count:
        take_sent(args, True, &sent)
        if not stream.producers.has_sent(producer, sent.id.seq):
            break
        sent_before += 1
    if sent_before == count:
        return 0
    limit_producers(ctx, key, stream.producers, producer)
    append_rest(ctx, args, key, stream, &sent, producer, last_seq)
    return after_appends(ctx, key, stream, count - sent_before)


cdef inline int put_counted(Context ctx, Stream stream, const NewEntry* entry) except -1:
    put_entry(ctx, stream, entry)
    return ctx.count_change(None, None, 1)


cdef int append_rest(Context ctx, Args args, Slice* key, Stream stream, NewEntry* sent,
                     bytes producer, last_seq) except -1:
    """Append an entry and those after it, up to the one numbered `last_seq`. Each effect is
    recorded after the next entry was appended. If an append fails, the last effect can then record
    the producer's number."""
    cdef NewEntry entry
    cdef NewEntry recorded
    cdef uint64_t number = 0
    cdef bytes key_bytes = ctx.db.key_of(key)
    cdef uint64_t last = last_seq
    cdef bint some = False
    before = stream.producers.put(producer, last_seq)
    try:
        while True:
            entry = sent[0]
            new_id(ctx, stream, &entry.id)
            put_counted(ctx, stream, &entry)
            if some:
                record_append(ctx.effects, ctx.db.index, key_bytes, recorded.id, recorded.items,
                              recorded.count)
            recorded = entry
            number = sent.id.seq
            some = True
            if number == last:
                break
            take_sent(args, True, sent)
    except BaseException:
        stream.producers.put_back(producer, number if some else before)
        raise
    finally:
        if some:
            record_append_once(ctx.effects, ctx.db.index, key_bytes, &recorded, producer, number)
    return 0


cdef int64_t after_appends(Context ctx, Slice* key, Stream stream, int64_t appended) except -1:
    """Notify once and enforce the stream's policy; returns the number appended."""
    if appended == 0:
        return 0
    count_appended(ctx, key, stream, 0)
    if stream.policy is not None:
        keep_policy_after_append(ctx, ctx.db.key_of(key), stream)
    return appended
