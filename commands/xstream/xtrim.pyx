# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XTRIM: evicting the oldest entries of a stream."""

from millstream.commands.engine.trim_options cimport (
    Trim, begin_trim, check_trim, take_trim, trim_stream,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError

NO_STRATEGY = "ERR syntax error, XTRIM must be called with a trimming strategy"


@command(
    "XTRIM key {trim: <strategy: MAXLEN | MINID> [operator: = | ~] threshold [LIMIT count]} "
    "[condition: KEEPREF | DELREF | ACKED]", "write removes nondeterministic_output",
    complexity="O(n) of evicted blocks", keys="RW delete", since="5.0.0",
)
def xtrim(Context ctx not None, Args args not None):
    """Evicts old entries and returns the number evicted.

    Evicts the oldest entries until at most `threshold` entries are left (MAXLEN) or no ID is
    below `threshold` (MINID); with `~` it evicts only whole nodes. DELREF also removes the entries
    from every group's pending entries. ACKED keeps entries that a group has not yet read or
    acknowledged.
    """
    cdef Stream stream
    cdef Trim trim
    begin_trim(&trim)
    args.pos = 2
    while args.pos < args.count:
        if not take_trim(args, &trim):
            raise CommandError(SYNTAX)
    if not trim.by_length and not trim.by_id and not trim.limit:
        raise CommandError(NO_STRATEGY)
    check_trim(&trim)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None:
        return 0
    return trim_stream(ctx, ctx.db.key_of(&args.items[1]), stream, &trim, True)
