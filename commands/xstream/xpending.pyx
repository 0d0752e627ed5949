# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XPENDING: a summary or a list of a group's pending entries. Semantics and error texts are those of
Redis 8.6.
"""

from libc.stdint cimport int64_t

from millstream.commands.engine.claiming cimport Target, take_target
from millstream.commands.engine.group_replies cimport pending_range
from millstream.commands.engine.lifecycle cimport note_used
from millstream.commands.engine.ranges cimport take_bound
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer

from millstream.commands.engine.listings import pending_summary
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError


@command(
    "XPENDING key group [filters: [IDLE min-idle-time:integer] start end count [consumer]]",
    "readonly nondeterministic_output",
    complexity="O(log n) to find the start and O(m) for the m pending entries looked at",
    since="5.0.0",
)
def xpending(Context ctx not None, Args args not None):
    """Returns a summary or a list of a group's pending entries."""
    cdef Target target
    cdef Consumer owner
    cdef int64_t min_idle_ms = 0
    cdef int64_t limit
    cdef EntryId start, end
    cdef bytes name
    if args.count == 3:
        target = take_target(ctx, args)
        note_used(ctx, target.key, target.group)
        return pending_summary(target.group)
    if not 6 <= args.count <= 9:
        raise CommandError(SYNTAX)
    args.pos = 3
    if args.next_is(b"IDLE"):
        min_idle_ms = args.take_int()
        if args.count < 8:
            raise CommandError(SYNTAX)
    # The count is checked before the IDs, as in Redis.
    args.pos += 2
    limit = args.take_int()
    args.pos -= 3
    take_bound(args, &start, False, False)
    take_bound(args, &end, True, False)
    args.pos += 1
    name = args.take() if args.pos < args.count else None
    args.pos = 1
    target = take_target(ctx, args)
    note_used(ctx, target.key, target.group)
    owner = None if name is None else target.group.pending.consumer(name)
    if name is not None and owner is None:
        return []
    return pending_range(target.group, start, end, limit, min_idle_ms, ctx.steady_ms, owner)
