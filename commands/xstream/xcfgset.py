"""XCFGSET: how many idempotent messages a stream remembers, and for how long."""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.runtime.stream_effects import IDMPSET, window_of
from millstream.commands.table.registry import command
from millstream.errors import NO_SUCH_KEY, SYNTAX, CommandError
from millstream.storage.streams.idempotence import DURATION_S_MAX, MAXSIZE_MAX

NOTHING_TO_SET = "ERR At least one parameter must be specified"
BAD_DURATION = f"ERR IDMP-DURATION must be between 1 and {DURATION_S_MAX} seconds"
BAD_MAXSIZE = f"ERR IDMP-MAXSIZE must be between 1 and {MAXSIZE_MAX} entries"


@command("XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE entries]", "write fast", since="8.6.0")
def xcfgset(ctx: Context, args: Args) -> Simple:
    """Sets how many messages of each producer a stream remembers, and for how long.

    New values clear the messages that the stream remembers. Above 10,000 producers, the stream
    forgets the producer that has been idle longest.
    """
    key = args.take()
    stream = ctx.write_stream(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    duration_s = maxsize = None
    while args.remaining:
        if _is_given(args, b"IDMP-DURATION", duration_s):
            duration_s = args.take_int()
            if not 1 <= duration_s <= DURATION_S_MAX:
                raise CommandError(BAD_DURATION)
        elif _is_given(args, b"IDMP-MAXSIZE", maxsize):
            maxsize = args.take_int()
            if not 1 <= maxsize <= MAXSIZE_MAX:
                raise CommandError(BAD_MAXSIZE)
        else:
            raise CommandError(SYNTAX)
    if duration_s is None and maxsize is None:
        raise CommandError(NOTHING_TO_SET)
    window = window_of(stream)
    window.configure(
        window.duration_s if duration_s is None else duration_s,
        window.maxsize if maxsize is None else maxsize,
    )
    ctx.changed(IDMPSET, key, window.duration_s, window.maxsize, event=None)
    return OK


def _is_given(args: Args, word: bytes, before: int | None) -> bool:
    """Take an option's word if a value follows it; `before` is its earlier value in this
    request."""
    if args.remaining < 2 or not args.option(word):
        return False
    if before is not None:
        raise CommandError(f"ERR {word.decode()} specified multiple times")
    return True
