"""TEXTEND: a reader of a managed group keeps entries longer than its timeout."""

from __future__ import annotations

from millstream.commands.engine.claiming import named_group
from millstream.commands.engine.lifecycle import note_used
from millstream.commands.engine.managed_groups import check_managed, extend_held
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import command
from millstream.errors import BAD_NUMIDS, NEEDS_IDS, SYNTAX, TOO_FEW_IDS, CommandError

TIME_MAX_MS = 86_400_000
BAD_TIME = f"ERR the time must be from 1 to {TIME_MAX_MS}"


@command(
    "TEXTEND key group consumer ms {ids: IDS numids id [id ...]}",
    "write fast",
    complexity="O(log n) for each ID, n the number of the group's pending entries",
)
def textend(ctx: Context, args: Args) -> list[int]:
    """Gives a consumer more time for entries that it holds.

    Their deadline moves to this number of milliseconds from now, and their idle time begins again.
    The reply is a code for each ID: 1, or -1 if the consumer does not hold the entry.
    """
    key, _, group = named_group(ctx, args)
    holder = args.take()
    span_ms = args.take_int_between(1, TIME_MAX_MS, BAD_TIME)
    if not args.option(b"IDS") or not args.remaining:
        raise CommandError(NEEDS_IDS)
    first = args.pos + 1
    given = args.skip_ids(BAD_NUMIDS, TOO_FEW_IDS)
    if args.remaining:
        raise CommandError(SYNTAX)
    args.pos = first
    ids = [args.take_entry_id(dot_allowed=True) for _ in range(given)]
    check_managed(group)
    codes = extend_held(ctx, key, group, holder, span_ms, ids)
    note_used(ctx, key, group)
    return codes
