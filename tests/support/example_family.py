"""XLAST and XDROPLAST: the last entry of a stream, returned and deleted."""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import command
from millstream.ids import Id


@command("XLAST key", "readonly fast")
def xlast(ctx: Context, args: Args) -> Id | None:
    """Returns the ID of the last entry of a stream.

    Null for a key that does not exist and for a stream without entries.
    """
    stream = ctx.read_stream(args.take())
    if stream is None or stream.newest_id is None:
        return None
    return Id(*stream.newest_id)


@command("XDROPLAST key", "write fast")
def xdroplast(ctx: Context, args: Args) -> int:
    """Deletes the last entry of a stream.

    1, or 0 when there was no entry.
    """
    key = args.take()
    stream = ctx.write_stream(key)
    if stream is None or stream.newest_id is None:
        return 0
    last = stream.newest_id
    stream.delete_id(*last)
    ctx.changed(b"XDEL", key, bytes(Id(*last)), event=b"xdel")
    return 1
