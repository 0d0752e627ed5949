"""TCREATE: an empty stream, with its first possible ID and the streams that it continues."""

from __future__ import annotations

from millstream.commands.engine.parents import BUSY, continue_parents, raise_last_id, take_names
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError


@command("TCREATE key [FLOOR id] [parents: PARENTS name [name ...]]", "write denyoom fast")
def tcreate(ctx: Context, args: Args) -> Simple:
    """Creates an empty stream.

    FLOOR is the stream's last ID: all entries come after it. PARENTS names the streams that this
    one continues; they may be on other servers.
    """
    key = args.take()
    floor = (0, 0)
    parents: list[bytes] = []
    while args.remaining:
        if args.option(b"FLOOR"):
            floor = args.take_entry_id(dot_allowed=True)
        elif args.option(b"PARENTS"):
            parents = take_names(args)
        else:
            raise CommandError(SYNTAX)
    if ctx.db.get(key) is not None:
        raise CommandError(BUSY)
    stream = ctx.open_stream(key)
    raise_last_id(ctx, key, stream, floor)
    if parents:
        continue_parents(ctx, key, stream, parents)
    else:
        ctx.changed_databases(count=1)
    return OK
