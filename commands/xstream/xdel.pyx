# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XDEL: deleting entries by their IDs. XDELEX and XACKDEL are in `xdelex`."""

from millstream.commands.engine.delivery cimport Ids
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.entry_id cimport EntryId
from millstream.storage.log.trimming cimport delete_entry
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command

cdef enum:
    # Deleting more takes longer than most requests.
    FEW_IDS = 10


@command(
    "XDEL key id [id ...]",
    "write fast hot",
    since="5.0.0",
    complexity="O(log n) for each id, and a copy of its block",
    keys="RW delete",
)
def xdel(Context ctx not None, Args args not None):
    """Deletes entries by ID and returns the number deleted."""
    cdef Stream stream = ctx.write_stream_at(&args.items[1])
    cdef Ids gone
    cdef EntryId at
    cdef Py_ssize_t _i
    if stream is None:
        return 0
    args.pos = 2
    while args.pos < args.count:
        args.take_id(&at, False, 0)
    gone = Ids.__new__(Ids)
    args.pos = 2
    for _i in range(2, args.count):
        args.take_id(&at, False, 0)
        if delete_entry(stream, at):
            gone.add(at.ms, at.seq)
    if gone.count:
        record_deleted(ctx, ctx.db.key_of(&args.items[1]), gone)
    ctx.timed_alone = args.count > FEW_IDS
    return gone.count


cdef int record_deleted(Context ctx, bytes key, Ids gone) except -1:
    """Record and count deleted entries."""
    if ctx.effects.enabled:
        ctx.effects.begin(ctx.db.index, b"$4\r\nXDEL\r\n", 10, 2 + gone.count)
        ctx.effects.out.put_bulk_bytes(key)
        gone.put(ctx.effects.out)
        ctx.effects.finish()
    return ctx.count_change(key, b"xdel", gone.count)
