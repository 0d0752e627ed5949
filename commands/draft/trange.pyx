# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TRANGE: the entries between two IDs."""

from libc.stdint cimport UINT64_MAX as MAX

from millstream.commands.engine.ranges cimport (
    EntryRange, filtered, make_range, take_bound, take_options,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command


@command(
    "TRANGE key start end [COUNT n] [where: WHERE n:integer condition [condition ...]]",
    "readonly",
    complexity="O(log n) to find the start and O(m) for the m entries answered",
)
def trange(Context ctx not None, Args args not None):
    """Returns the entries between two IDs, both included."""
    cdef EntryRange reply = make_range(None, True, MAX)
    cdef Stream stream
    args.pos = 2
    take_bound(args, &reply.start, False, True)
    take_bound(args, &reply.end, True, True)
    filter = take_options(args, &reply.limit)
    stream = ctx.read_stream_at(&args.items[1])
    if stream is None or reply.limit == 0:
        return []
    reply.stream = stream
    return reply if filter is None else filtered(reply, filter)
