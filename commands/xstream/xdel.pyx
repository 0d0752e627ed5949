# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XDEL: deleting entries by their IDs. XDELEX and XACKDEL are in `xdelex`."""

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport Ids, record_deletion
from millstream.storage.log.trimming cimport delete_entry
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command

cdef enum:
    # Deleting more takes longer than most requests.
    FEW_IDS = 10


@command(
    "XDEL key id [id ...]",
    "write fast hot removes",
    since="5.0.0",
    complexity="O(log n) for each id, and a copy of its block",
    keys="RW delete",
)
def xdel(Context ctx not None, Args args not None):
    """Deletes entries by ID and returns the number deleted."""
    cdef Stream stream = ctx.write_stream_at(&args.items[1])
    cdef Ids ids
    cdef size_t deleted = 0
    cdef size_t i
    if stream is None:
        return 0
    ids = Ids.__new__(Ids)
    args.pos = 2
    ids.take(args, False)
    for i in range(ids.count):
        if delete_entry(stream, ids.items[i]):
            ids.items[deleted] = ids.items[i]
            deleted += 1
    ids.count = deleted
    if deleted:
        key = ctx.db.key_of(&args.items[1])
        record_deletion(ctx.effects, ctx.db.index, key, ids)
        ctx.count_change(key, b"xdel", deleted)
    ctx.timed_alone = args.count > FEW_IDS
    return deleted
