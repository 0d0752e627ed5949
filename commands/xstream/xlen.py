"""XLEN: the number of entries of a stream."""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import command


@command("XLEN key", "readonly fast", since="5.0.0", keys="RO")
def xlen(ctx: Context, args: Args) -> int:
    """Returns the number of entries of a stream."""
    stream = ctx.read_stream(args.take())
    return 0 if stream is None else len(stream)
