"""XDELEX: deleting entries by their IDs, with a choice of what happens to references to them."""

from __future__ import annotations

from millstream.commands.engine.deleting import NO_SUCH_ENTRY, delete_each, take_deletion
from millstream.commands.engine.references import drop_references, settle_groups
from millstream.commands.engine.trim_options import ACKED, DELREF
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import command


@command(
    "XDELEX key [condition: KEEPREF | DELREF | ACKED] {ids: IDS numids id [id ...]}",
    "write fast removes",
    complexity="O(log n) for each id, and a copy of its block",
    keys="RW delete",
    since="8.2.0",
)
def xdelex(ctx: Context, args: Args) -> list[int]:
    """Deletes entries by ID, with a choice of what happens to references to them.

    The reply is an array with one number per ID: 1 (deleted), -1 (no such entry) or, with ACKED, 2
    (a group has not yet read or acknowledged this ID, whether or not its entry exists). KEEPREF,
    the default, leaves pending entries pending. DELREF removes the IDs from every group's pending
    entries, whether or not their entries still exist.
    """
    key = args.take()
    stream = ctx.write_stream(key)
    references, first, count = take_deletion(args)
    if stream is None:
        return [NO_SUCH_ENTRY] * count
    ids = args.ids_at(first, count)
    if references in (DELREF, ACKED):
        settle_groups(ctx, key, stream)
    if references == DELREF:
        drop_references(ctx, key, stream, ids)
    return delete_each(ctx, key, stream, ids, only_acked=references == ACKED)
