# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TAPPEV: appending an entry and evicting old ones, by their number or their age."""

from libc.stdint cimport int64_t, uint64_t

from millstream.commands.engine.appending cimport (
    NewEntry, append_entry, new_id, stream_to_append,
)
from millstream.commands.engine.evicting cimport evict_to, evict_to_length
from millstream.commands.runtime.arguments cimport Args, is_word
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Slice
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError, wrong_arity


cdef boundary_by_age(Context ctx, Stream stream, uint64_t age_ms):
    """The first ID to keep so that every kept entry is younger than age_ms."""
    cdef uint64_t now_ms = max(ctx.now_ms, stream.last_ms)
    if age_ms == 0:
        return "all"
    if age_ms > now_ms:
        return None
    return now_ms - age_ms + 1, 0


@command(
    "TAPPEV key COUNT|TIME n [field value ...]", "write denyoom fast removes_without_entry nondeterministic_output",
    complexity="O(1) and O(n) of evicted blocks",
)
def tappev(Context ctx not None, Args args not None):
    """Appends an entry and evicts old ones, or only evicts."""
    cdef Stream stream
    cdef NewEntry entry
    cdef Slice* unit = &args.items[2]
    cdef int64_t keep
    cdef bint by_count = is_word(unit, b"COUNT")
    cdef uint64_t evicted
    if args.count & 1:
        raise wrong_arity("tappev")
    if not by_count and not is_word(unit, b"TIME"):
        raise CommandError(SYNTAX)
    args.pos = 3
    keep = args.take_int()
    if keep < 0:
        raise CommandError(f"ERR The {'COUNT' if by_count else 'TIME'} argument must be >= 0.")
    reply = None
    if args.count > 4:
        entry.items = &args.items[4]
        entry.count = args.count - 4
        stream = stream_to_append(ctx, &args.items[1], entry.items, entry.count)
        new_id(ctx, stream, &entry.id)
        reply = append_entry(ctx, &args.items[1], stream, &entry, True)
    else:
        stream = ctx.write_stream_at(&args.items[1])
        if stream is None:
            return 0
    key = ctx.db.key_of(&args.items[1])
    if by_count:
        evicted = evict_to_length(ctx, key, stream, <uint64_t>keep, reply is None)
    else:
        evicted = evict_to(ctx, key, stream, boundary_by_age(ctx, stream, keep), reply is None)
    return evicted if reply is None else reply
