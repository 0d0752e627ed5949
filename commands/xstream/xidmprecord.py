"""XIDMPRECORD: recording that an existing entry came from a producer's message."""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.runtime.stream_effects import IDMP, window_of
from millstream.commands.table.registry import command
from millstream.errors import NO_SUCH_KEY, CommandError
from millstream.ids import Id

ENTRY_GONE = "ERR No such message in stream"
OTHER_ENTRY = "ERR IID already exists for this producer with a different stream ID"

ROUND_MS = 100


@command("XIDMPRECORD key pid iid stream-id", "write denyoom fast", since="8.6.2")
def xidmprecord(ctx: Context, args: Args) -> Simple:
    """Records that an existing entry came from a producer's message."""
    key, producer, iid = args.take(), args.take(), args.take()
    entry_id = args.take_entry_id()
    if not producer:
        raise CommandError("ERR producer ID must be non-empty")
    if not iid:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = ctx.write_stream(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    if not stream.has_entry(*entry_id):
        raise CommandError(ENTRY_GONE)
    window = window_of(stream)
    known = window.find(producer, iid, ctx.now_ms)
    if known is not None and known != entry_id:
        raise CommandError(OTHER_ENTRY)
    if known is None:
        # Redis removes expired names ten times per second, so it knows even the name of an old
        # entry for a moment.
        oldest_ms = max(0, ctx.now_ms - 1000 * window.duration_s + ROUND_MS)
        since_ms = max(oldest_ms, min(entry_id[0], ctx.now_ms))
        window.add(producer, iid, entry_id, since_ms)
        ctx.changed(IDMP, key, producer, iid, bytes(Id(*entry_id)), since_ms, event=None)
    return OK
