# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XRANGE and XREVRANGE: the entries between two IDs, in either direction."""

from libc.stdint cimport UINT64_MAX as MAX

from millstream.commands.engine.ranges cimport (
    EntryRange, filtered, make_range, take_bound, take_options,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.storage.streams.stream cimport Stream

from millstream.commands.runtime.replies import NULL_ARRAY
from millstream.commands.table.registry import CommandGroup

command = CommandGroup("stream", since="5.0.0")


cdef take_range(Context ctx, Args args, bint reverse):
    """XRANGE and XREVRANGE."""
    cdef EntryRange reply = make_range(None, False, MAX)
    cdef Stream stream
    # As in Redis, the start is checked first, wherever it is.
    args.pos = 3 if reverse else 2
    take_bound(args, &reply.start, False, False)
    args.pos = 2 if reverse else 3
    take_bound(args, &reply.end, True, False)
    args.pos = 4
    filter = take_options(args, &reply.limit)
    stream = ctx.read_stream_at(&args.items[1])
    if stream is None:
        return []
    if reply.limit == 0:
        return NULL_ARRAY
    reply.reverse = reverse
    reply.stream = stream
    return reply if filter is None else filtered(reply, filter)


@command(
    "XRANGE key start end [COUNT count] [where: WHERE n:integer condition [condition ...]]",
    "readonly",
    complexity="O(log n) to find the start and O(m) for the m entries answered",
)
def xrange(Context ctx not None, Args args not None):
    """Returns the entries between two IDs."""
    return take_range(ctx, args, False)


@command(
    "XREVRANGE key end start [COUNT count] [where: WHERE n:integer condition [condition ...]]",
    "readonly",
    complexity="O(log n) to find the end and O(m) for the m entries answered",
)
def xrevrange(Context ctx not None, Args args not None):
    """Returns the entries between two IDs, newest first."""
    return take_range(ctx, args, True)
