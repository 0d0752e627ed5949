# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Appending to a stream, for TAPPEND, TAPPEV, XADD and others: these functions change the stream, record
the effect, and mark the key ready for waiting readers. A stream with a policy is trimmed after each
append (`policies`).
"""

from libc.stdint cimport UINT64_MAX as NEVER, uint64_t

from millstream.commands.engine.policies cimport keep_policy_after_append
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport (
    record_append, record_append_once, window_of,
)
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, step_up
from millstream.ids cimport Id, make_id
from millstream.storage.blocks.open_block cimport payload_of
from millstream.storage.reservations.held cimport Held, handed_out
from millstream.storage.streams.stream cimport FOLLOWED, RESERVING, SEALED, Stream

from millstream.commands.engine.refusals import held_error, sealed_error
from millstream.commands.runtime.stream_effects import IDMP
from millstream.errors import EXHAUSTED, CommandError

cdef Stream stream_to_append(Context ctx, Slice* key, Slice* items, Py_ssize_t count):
    """The stream for an entry with these words, created if necessary."""
    cdef Stream stream = ctx.write_stream_at(key)
    if stream is None:
        payload_of(items, count)
        stream = ctx.open_stream(key.ptr[:key.size])
    elif stream.restrictions:
        check_append(ctx, stream)
    return stream


cdef int check_append(Context ctx, Stream stream) except -1:
    """Refuse an append to a stream that is sealed or holds too much."""
    if stream.restrictions & SEALED:
        raise CommandError(sealed_error(stream))
    if stream.restrictions & RESERVING and ctx.keyspace.held_max_bytes and (
            (<Held>stream.held).size_bytes > ctx.keyspace.held_max_bytes):
        raise held_error(ctx, stream)
    return 0


cdef int restricted_id(Context ctx, Stream stream, EntryId* out) except -1:
    """`new_id` for a stream with reservations or promises."""
    cdef uint64_t now_ms = ctx.now_ms
    out[0] = handed_out(stream)
    if stream.restrictions & FOLLOWED:
        now_ms = max(now_ms, ctx.keyspace.promised_ms + 1)
    if now_ms > out.ms:
        out.ms = now_ms
        out.seq = 0
    elif not step_up(out):
        raise CommandError(EXHAUSTED)
    return 0


def check_promise(Context ctx not None, Stream stream not None, uint64_t ms, uint64_t seq,
                  str name not None, bint dotted) -> None:
    """`check_above_promise` for callers in Python."""
    check_above_promise(ctx, stream, EntryId(ms, seq), name, dotted)


cdef int check_above_promise(Context ctx, Stream stream, EntryId entry_id, str name,
                             bint dotted) except -1:
    """Refuse an ID within the promise to readers of the stream that no entry up to an ID will be
    added."""
    if stream.restrictions & FOLLOWED and entry_id.ms <= ctx.keyspace.promised_ms:
        promised = bytes(make_id(ctx.keyspace.promised_ms, NEVER, dotted)).decode()
        raise CommandError(f"ERR The ID specified in {name} is not above {promised}: readers were "
                           "promised that nothing comes up to there")
    return 0


cdef Id append_entry(Context ctx, Slice* key, Stream stream, const NewEntry* entry, bint dotted):
    """Append one entry, record it, mark its key ready; returns its ID."""
    cdef bytes name = ctx.db.key_of(key)  # before any change, because it may need memory
    put_entry(ctx, stream, entry)
    record_append(ctx.effects, ctx.db.index, name, entry.id, entry.items, entry.count)
    return after_append(ctx, key, stream, entry.id, dotted)


cdef Id append_numbered(Context ctx, Slice* key, Stream stream, const NewEntry* entry,
                        bytes producer, uint64_t seq):
    """Like append_entry, for the entry with a producer's number `seq`. After a failure neither the
    entry nor the number is stored."""
    cdef bytes name = ctx.db.key_of(key)
    before = stream.producers.put(producer, seq)
    try:
        put_entry(ctx, stream, entry)
    except BaseException:
        stream.producers.put_back(producer, before)
        raise
    record_append_once(ctx.effects, ctx.db.index, name, entry, producer, seq)
    return after_append(ctx, key, stream, entry.id, True)


cdef Id append_message(Context ctx, Slice* key, Stream stream, const NewEntry* entry,
                       bytes producer, bytes iid):
    """Like append_entry, for the entry of a producer's message `iid` (XADD IDMP). After a failure
    neither the entry nor the message is stored."""
    cdef bytes name = ctx.db.key_of(key)
    cdef uint64_t at_ms = min(entry.id.ms, ctx.now_ms)
    cdef tuple effect = (IDMP, name, producer, iid,
                         bytes(make_id(entry.id.ms, entry.id.seq, False)), at_ms)
    cdef Id appended
    window = window_of(stream)
    window.put(producer, iid, (entry.id.ms, entry.id.seq), at_ms)
    try:
        put_entry(ctx, stream, entry)
    except BaseException:
        window.put_back(producer, iid)
        raise
    ctx.effects.open_group()
    record_append(ctx.effects, ctx.db.index, name, entry.id, entry.items, entry.count)
    appended = after_append(ctx, key, stream, entry.id, False)
    ctx.change(effect, None, 0)
    ctx.effects.close_group()
    window.trim(producer, at_ms)
    return appended


cdef inline Id after_append(Context ctx, Slice* key, Stream stream, EntryId entry_id, bint dotted):
    """Count and notify, enforce the stream's policy; returns the ID."""
    count_appended(ctx, key, stream, 1)
    if stream.policy is not None:
        keep_policy_after_append(ctx, ctx.db.key_of(key), stream)
    return make_id(entry_id.ms, entry_id.seq, dotted)


cdef int count_appended(Context ctx, Slice* key, Stream stream, uint64_t count) except -1:
    """Count recorded appends, notify if the entries are visible, and mark the key ready: waiting
    readers are served after the command."""
    ctx.db.mark_ready_at(key)
    if stream.restrictions & RESERVING:
        (<Held>stream.held).segments.tidy()
        return ctx.count_change(None, None, count)
    return ctx.count_change(ctx.db.key_of(key) if ctx.events else None, b"xadd", count)
