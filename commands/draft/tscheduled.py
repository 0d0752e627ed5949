"""TSCHEDULED: the entries of a stream that are appended at a later time."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.commands.engine.given_options import note_option
from millstream.commands.engine.ranges import take_bounds
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import ArrayHead, LongReply, Several
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError
from millstream.storage.streams.schedule import Scheduled

EVERY_ENTRY = 2**64 - 1
ROWS_AT_ONCE = 128


@command(
    "TSCHEDULED key start end [COUNT n]",
    "readonly",
    complexity="O(log n) to find the start and O(m) for the m entries returned",
)
def tscheduled(ctx: Context, args: Args) -> LongReply | list[object]:
    """Returns the scheduled entries of a stream between two tickets, in the order of their time.

    Each is an array of its ticket, its name (empty without one), and its fields and values. `-` and
    `+` are the first and the last ticket, a number without a second part is a Unix time in
    milliseconds, and `(` excludes the ticket.
    """
    key = args.take()
    start, end = take_bounds(args, True)
    limit = EVERY_ENTRY
    given: dict[bytes, bytes] = {}
    while args.remaining:
        if not args.option(b"COUNT"):
            raise CommandError(SYNTAX)
        note_option(given, b"COUNT")
        limit = max(0, args.take_int())
    stream = ctx.read_stream(key)
    if stream is None or stream.schedule is None:
        return []
    return LongReply(_rows(stream.schedule.between(start, end, limit)))


def _rows(pages: list[list[Scheduled]]) -> Iterator[object]:
    yield ArrayHead(sum(map(len, pages)))
    for page in pages:
        for first in range(0, len(page), ROWS_AT_ONCE):
            yield Several(entry.reply for entry in page[first : first + ROWS_AT_ONCE])
