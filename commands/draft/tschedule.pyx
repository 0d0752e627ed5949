# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TSCHEDULE: entries that are appended at a later time."""

from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from millstream.commands.engine.scheduling cimport schedule_entry
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Slice

from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError, wrong_arity

cdef enum:
    NAME_BYTES_MAX = 1024

LONG_NAME = "ERR a name must have at most 1024 bytes"
BAD_TIME = "ERR invalid expire time in 'tschedule' command"


@command(
    "TSCHEDULE key AT|IN ms name field value [field value ...]",
    "write denyoom fast hot nondeterministic_output",
    complexity="O(log n), n the number of the stream's scheduled entries",
)
def tschedule(Context ctx not None, Args args not None):
    """Appends an entry to a stream at a later time, and returns its ticket.

    AT is a Unix time in milliseconds, IN a number of milliseconds from now. The stream is created if
    it doesn't exist. Until its time, the entry is not in the stream. Then the server appends it, with
    an automatic ID. If the time has passed, the entry is appended before the reply, after those that
    are due before it; if these are more than 500, it waits for its turn. The ticket is `due.number`;
    the number counts the entries that were scheduled in this stream. A name that is not empty is
    unique in the stream: scheduling it again replaces the entry.
    """
    cdef bint is_span
    cdef int64_t time_ms
    cdef Slice* word
    cdef bytes name = None
    if args.count & 1 == 0:
        raise wrong_arity("tschedule")
    args.pos = 2
    is_span = args.next_is(b"IN")
    if not is_span and not args.next_is(b"AT"):
        raise CommandError(SYNTAX)
    time_ms = args.take_int()
    if time_ms < 0 or is_span and <uint64_t>time_ms > <uint64_t>INT64_MAX - ctx.now_ms:
        raise CommandError(BAD_TIME)
    word = args.take_slice()
    if word.size > NAME_BYTES_MAX:
        raise CommandError(LONG_NAME)
    if word.size:
        name = word.ptr[:word.size]
    return schedule_entry(
        ctx, &args.items[1], time_ms + (ctx.now_ms if is_span else 0), name, &args.items[5],
        args.count - 5)
