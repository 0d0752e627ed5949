"""XACKDEL: acknowledging entries for a group and deleting them.

Removals from a group's pending entries are recorded as acknowledgements.
"""

from __future__ import annotations

from millstream.commands.engine.deleting import (
    DELETED,
    NO_SUCH_ENTRY,
    delete_each,
    take_deletion,
)
from millstream.commands.engine.lifecycle import live_group, note_acked, note_freed, note_used
from millstream.commands.engine.references import drop_references, dropped_most, settle_groups
from millstream.commands.engine.trim_options import ACKED, DELREF
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import command


@command(
    "XACKDEL key group [condition: KEEPREF | DELREF | ACKED] {ids: IDS numids id [id ...]}",
    "write fast removes",
    complexity="O(log n) for each id, and a copy of its block",
    keys="RW update delete",
    since="8.2.0",
)
def xackdel(ctx: Context, args: Args) -> list[int]:
    """Acknowledges entries for a group and deletes them, if the option allows it.

    The reply is an array with one number per ID: 1 (acknowledged, and the entry is deleted or was
    gone already), -1 (not pending in this group) or, with ACKED, 2 (acknowledged, but another group
    has not yet read or acknowledged this ID, so an existing entry stays). The options are those of
    XDELEX.
    """
    key, name = args.take(), args.take()
    stream = ctx.read_for_update(key)  # Redis counts it as a reader
    references, first, count = take_deletion(args)
    group = None if stream is None else live_group(ctx, key, stream, name)
    if stream is None or group is None:
        return [NO_SUCH_ENTRY] * count
    ids = args.ids_at(first, count)
    if references in (DELREF, ACKED):
        settle_groups(ctx, key, stream)
    if references == DELREF:
        ctx.effects.require_room(dropped_most(key, stream, len(ids)))
    acked = [entry_id for entry_id in ids if group.pending.acknowledge(*entry_id)]
    if acked:
        note_acked(ctx, key, group.name, acked, len(acked))
        note_freed(ctx, key, group)
    if references == DELREF:
        drop_references(ctx, key, stream, acked)
    deleted = delete_each(ctx, key, stream, acked, only_acked=references == ACKED)
    answers = {
        entry_id: DELETED if answer == NO_SUCH_ENTRY else answer
        for entry_id, answer in zip(acked, deleted, strict=True)
    }
    note_used(ctx, key, group)
    # IDs that were not pending in this group, and repeated IDs, are left out.
    return [answers.pop(entry_id, NO_SUCH_ENTRY) for entry_id in ids]
