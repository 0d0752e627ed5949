"""TCANCEL: cancelling entries that would be appended at a later time."""

from __future__ import annotations

from millstream.commands.engine.scheduling import cancel
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError
from millstream.storage.streams.schedule import Schedule, Scheduled


@command(
    "TCANCEL key <tickets: ticket [ticket ...] | names: NAME name [name ...]>",
    "write fast removes",
    complexity="O(log n) for each entry, n the number of the stream's scheduled entries",
)
def tcancel(ctx: Context, args: Args) -> int:
    """Cancels scheduled entries of a stream, by their tickets or by their names.

    The reply is the number of cancelled entries. Entries that have fired, and unknown ones, do not
    count. The stream stays, even if it is empty.
    """
    key = args.take()
    by_name = args.option(b"NAME")
    if not args.remaining:
        raise CommandError(SYNTAX)
    names: list[bytes] = []
    tickets: list[tuple[int, int]] = []
    while args.remaining:
        if by_name:
            names.append(args.take())
        else:
            tickets.append(args.take_entry_id(dot_allowed=True))
    stream = ctx.write_stream(key)
    if stream is None or stream.schedule is None:
        return 0
    found = _found(stream.schedule, names, tickets)
    if found:
        cancel(ctx, key, stream, found)
    return len(found)


def _found(
    schedule: Schedule, names: list[bytes], tickets: list[tuple[int, int]]
) -> list[Scheduled]:
    """The entries with these names and tickets, each once."""
    named = (schedule.entry_named(name) for name in names)
    numbered = (schedule.entry(*ticket) for ticket in tickets)
    return list(dict.fromkeys(entry for entry in (*named, *numbered) if entry is not None))
