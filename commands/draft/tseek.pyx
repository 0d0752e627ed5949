# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TSEEK: the n-th entry after an ID.

It is found with the counts in the skiplist, so that a reader can divide a stream into parts without
reading it.
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.entry_id cimport EntryId, step_up
from millstream.ids cimport make_id
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command
from millstream.errors import NOT_INTEGER, CommandError


@command("TSEEK key after-id n", "readonly fast", complexity="O(log n), n the number of entries")
def tseek(Context ctx not None, Args args not None):
    """Finds the n-th entry after an ID."""
    cdef Stream stream
    cdef EntryId start
    cdef EntryId found
    cdef int64_t wanted
    cdef uint64_t before
    cdef uint64_t count
    args.pos = 2
    args.take_id(&start, True, 0)
    wanted = args.take_int()
    if wanted < 0:
        raise CommandError(NOT_INTEGER)
    stream = ctx.read_stream_at(&args.items[1])
    if stream is None or not step_up(&start):
        return [0, None]
    before = stream.rank_of(start)
    count = min(<uint64_t>wanted, stream.length - before)
    if count == 0:
        return [0, None]
    stream.nth(before + count - 1, &found)
    return [count, make_id(found.ms, found.seq, True)]
