"""XSETID: a stream's last ID and counters, for tools that copy streams between servers."""

from __future__ import annotations

from millstream.commands.engine.appending import check_promise
from millstream.commands.engine.refusals import sealed_error
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.runtime.stream_effects import SETID, set_last_id
from millstream.commands.table.registry import command
from millstream.errors import NO_SUCH_KEY, SYNTAX, CommandError
from millstream.ids import Id

NO_ID = (0, 0)
BELOW_TOP = "ERR The ID specified in XSETID is smaller than the target stream top item"
BELOW_PROVIDED = "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
BELOW_DELETED = "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
RESERVED = "ERR XSETID is refused while IDs of the stream are reserved"
TOO_FEW = "ERR The entries_added specified in XSETID is smaller than the target stream length"


@command(
    "XSETID key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
    "write denyoom fast",
    since="5.0.0",
)
def xsetid(ctx: Context, args: Args) -> Simple:
    """Sets a stream's last ID and counters.

    For tools that copy streams between servers. A stream that has handed out reservations, or
    continues another one, does not accept an ID below its last one: an ID that was given up is
    never used again, and all entries come after those of the parents."""
    key = args.take()
    last = args.take_entry_id()
    added = None
    deleted = NO_ID
    while args.remaining:
        if args.remaining >= 2 and args.option(b"ENTRIESADDED"):
            added = args.take_int()
            if added < 0:
                raise CommandError("ERR entries_added must be positive")
        elif args.remaining >= 2 and args.option(b"MAXDELETEDID"):
            deleted = args.take_entry_id()
            if last < deleted:
                raise CommandError(BELOW_PROVIDED)
        else:
            raise CommandError(SYNTAX)
    stream = ctx.write_stream(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    if stream.is_sealed:
        raise CommandError(sealed_error(stream))
    if stream.is_reserving:
        raise CommandError(RESERVED)
    if (stream.held is not None or stream.lineage is not None) and last < stream.last_id:
        raise CommandError(BELOW_TOP)
    check_promise(ctx, stream, *last, "XSETID", False)
    if last < stream.max_deleted_id:
        raise CommandError(BELOW_DELETED)
    if stream.newest_id is not None:
        if last < stream.newest_id:
            raise CommandError(BELOW_TOP)
        if added is not None and added < len(stream):
            raise CommandError(TOO_FEW)
    if added is None:
        added = stream.entries_added
    if deleted == NO_ID:
        deleted = stream.max_deleted_id
    set_last_id(ctx.keyspace, stream, last, added, deleted)
    ctx.changed(SETID, key, bytes(Id(*last)), added, bytes(Id(*deleted)), event=b"xsetid")
    return OK
