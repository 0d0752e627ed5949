"""XDELEX and XACKDEL: removing entries by their IDs, with a reply for each ID.

An option decides about references to the entry (`references`). Deletions are recorded as one
effect, XDEL, as those of the command XDEL; removals from a group's pending entries are recorded as
acknowledgements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.engine.lifecycle import (
    change_entries,
    change_pending,
    live_group,
    note_used,
)
from millstream.commands.engine.references import (
    ACKED,
    DELREF,
    drop_references,
    dropped_most,
    settle_groups,
    take_reference_handling,
)
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError

if TYPE_CHECKING:
    from millstream.commands.runtime.arguments import Args
    from millstream.commands.runtime.context import Context
    from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

IDS_NOT_POSITIVE = "ERR Number of IDs must be a positive integer"
IDS_TOO_FEW = "ERR The `numids` parameter must match the number of arguments"

# The replies for an ID.
NO_SUCH_ENTRY, DELETED, REFERENCED = -1, 1, 2


def _report_deleted(ctx: Context, key: bytes, gone: list[EntryId]) -> None:
    if gone:
        change_entries(ctx, (b"XDEL", key), gone, b"xdel", len(gone))


# ---------------------------------------------------------------- one reply per ID


def _take_options(args: Args) -> tuple[bytes, int, int]:
    """Take the handling of references and the block of IDs, in any order; returns the handling, the
    index of the first ID and their number. Of several IDS blocks the last one counts. The IDs are
    parsed later, so a malformed ID is reported only if the stream exists. A second word for
    references is not an option, as in Redis."""
    references = None
    first = count = 0
    while args.remaining:
        if references is None and (references := take_reference_handling(args)):
            continue
        if args.remaining < 2 or not args.option(b"IDS"):
            raise CommandError(SYNTAX)
        first = args.pos + 1
        count = args.skip_ids(IDS_NOT_POSITIVE, IDS_TOO_FEW)
    if not count:
        raise CommandError(SYNTAX)
    return references or b"KEEPREF", first, count


@command(
    "XDELEX key [condition: KEEPREF | DELREF | ACKED] {ids: IDS numids id [id ...]}",
    "write fast",
    complexity="O(log n) for each id, and a copy of its block",
    keys="RW delete",
    since="8.2.0",
)
def xdelex(ctx: Context, args: Args) -> list[int]:
    """Deletes entries by ID, with a choice of what happens to references to them.

    An array with one number per ID: 1 (deleted), -1 (no such entry) or, with ACKED, 2 (a group
    has not yet read or acknowledged this ID, whether or not its entry exists). KEEPREF, the
    default, leaves pending entries pending. DELREF removes the IDs from every group's pending
    entries, whether or not their entries still exist.
    """
    key = args.take()
    stream = ctx.write_stream(key)
    references, first, count = _take_options(args)
    if stream is None:
        return [NO_SUCH_ENTRY] * count
    ids = args.ids_at(first, count)
    if references in (DELREF, ACKED):
        settle_groups(ctx, key, stream)
    if references == DELREF:
        drop_references(ctx, key, stream, ids)
    return _delete_each(ctx, key, stream, ids, only_acked=references == ACKED)


def _delete_each(
    ctx: Context, key: bytes, stream: Stream, ids: list[EntryId], *, only_acked: bool
) -> list[int]:
    """Delete entries, with only_acked only those that no group holds; returns a reply for each
    ID."""
    answers = []
    gone = []
    for entry_id in ids:
        if only_acked and stream.is_held(*entry_id):
            answers.append(REFERENCED)
        elif stream.delete_id(*entry_id):
            gone.append(entry_id)
            answers.append(DELETED)
        else:
            answers.append(NO_SUCH_ENTRY)
    _report_deleted(ctx, key, gone)
    return answers


@command(
    "XACKDEL key group [condition: KEEPREF | DELREF | ACKED] {ids: IDS numids id [id ...]}",
    "write fast",
    complexity="O(log n) for each id, and a copy of its block",
    keys="RW update delete",
    since="8.2.0",
)
def xackdel(ctx: Context, args: Args) -> list[int]:
    """Acknowledges entries for a group and deletes them, if the option allows it.

    An array with one number per ID: 1 (acknowledged, and the entry is deleted or was gone
    already), -1 (not pending in this group) or, with ACKED, 2 (acknowledged, but another group has
    not yet read or acknowledged this ID, so an existing entry stays). The options are those of
    XDELEX.
    """
    key, name = args.take(), args.take()
    stream = ctx.read_for_update(key)  # Redis counts it as a reader
    references, first, count = _take_options(args)
    group = None if stream is None else live_group(ctx, key, stream, name)
    if stream is None or group is None:
        return [NO_SUCH_ENTRY] * count
    ids = args.ids_at(first, count)
    if references in (DELREF, ACKED):
        settle_groups(ctx, key, stream)
    if references == DELREF:
        ctx.effects.require_room(dropped_most(key, stream, len(ids)))
    acked = [entry_id for entry_id in ids if group.acknowledge(*entry_id)]
    if acked:
        change_pending(ctx, b"ACK", key, group.name, acked, len(acked))
    if references == DELREF:
        drop_references(ctx, key, stream, acked)
    deleted = _delete_each(ctx, key, stream, acked, only_acked=references == ACKED)
    answers = {
        entry_id: DELETED if answer == NO_SUCH_ENTRY else answer
        for entry_id, answer in zip(acked, deleted, strict=True)
    }
    note_used(ctx, key, group)
    # IDs that were not pending in this group, and repeated IDs, are left out.
    return [answers.pop(entry_id, NO_SUCH_ENTRY) for entry_id in ids]
