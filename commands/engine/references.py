"""The effect of removing an entry on groups: KEEPREF, DELREF and ACKED.

A group holds an entry that it has not read yet, or that is pending. KEEPREF, the default, removes
the entry and leaves it pending. DELREF removes it from every group's pending entries. ACKED removes
only entries that no group holds. Without groups nothing is held.

With DELREF, a command that names IDs also removes pending entries that no longer exist. As in
Redis, a trim does not: it removes only what it evicts.
"""

from __future__ import annotations

from millstream.commands.engine.evicting import evict_to, record_passes
from millstream.commands.engine.lifecycle import (
    change_entries,
    live_group,
    note_acked,
    note_freed,
    read_effects_most,
)
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES, ID_WORD_BYTES
from millstream.commands.runtime.stream_effects import EVICTIDS
from millstream.storage.log.trimming import evict_ids
from millstream.storage.streams.retention import unheld
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]


def settle_groups(ctx: Context, key: bytes, stream: Stream) -> None:
    """Apply due automatic changes in every group, so that no group holds expired entries."""
    for name in stream.due_groups(ctx.steady_ms):
        live_group(ctx, key, stream, name)


def dropped_most(key: bytes, stream: Stream, ids: int) -> int:
    """The maximum size of the effects when `ids` IDs leave the groups' pending entries."""
    return sum(
        read_effects_most(key, group, b"", min(ids, group.pending.count))
        for group in stream.groups.values()
    )


def drop_references(ctx: Context, key: bytes, stream: Stream, ids: list[EntryId]) -> None:
    """Remove IDs from every group's pending entries."""
    ctx.effects.require_room(dropped_most(key, stream, len(ids)))
    for group in stream.groups.values():
        gone = [entry_id for entry_id in ids if group.pending.acknowledge(*entry_id)]
        if gone:
            note_acked(ctx, key, group.name, gone, len(gone))
            note_freed(ctx, key, group)


def drop_references_between(
    ctx: Context, key: bytes, stream: Stream, start: EntryId, end: EntryId
) -> None:
    """Remove every entry with start <= ID < end from every group's pending entries."""
    held = {}
    for group in stream.groups.values():
        ids = (row[:2] for row in group.pending.rows(*start, end=end))
        gone = [one for one in ids if one != end and stream.has_entry(*one)]
        if gone:
            held[group] = gone
    ctx.effects.require_room(
        sum(read_effects_most(key, group, b"", len(gone)) for group, gone in held.items())
    )
    for group, gone in held.items():
        note_acked(ctx, key, group.name, gone, 0)
        for entry_id in gone:
            group.pending.acknowledge(*entry_id)
        note_freed(ctx, key, group)


def trim_acked(
    ctx: Context,
    key: bytes,
    stream: Stream,
    keep: int | None,
    minid: EntryId | None,
    limit: int,
    counts: bool,
) -> int:
    """Evict entries from the head, except those that a group holds; returns their number.

    Either `keep` entries stay, or no entry with an ID below `minid`. At most `limit` entries are
    evicted, 0 for no limit. The entries before the first held one are recorded as one range.
    counts: as in `evict_to`.
    """
    settle_groups(ctx, key, stream)
    ids, _ = unheld(stream, keep, minid, limit)
    if not ids:
        return 0
    record_passes(ctx, key, stream)
    together = _leading(stream, ids)
    alone = ids[together:]
    if alone:
        ctx.effects.require_room(2 * (EFFECT_BYTES + len(key)) + len(alone) * ID_WORD_BYTES)
    if together == len(ids) == len(stream):
        return evict_to(ctx, key, stream, "all", counts)
    if together:
        ms, seq = ids[together - 1]
        past = (ms, seq + 1) if seq < 2**64 - 1 else (ms + 1, 0)
        evict_to(ctx, key, stream, past, counts)
    if alone:
        evict_ids(stream, alone)
        # The leading range, if any, has sent the event.
        event = None if together else b"xtrim"
        count = len(alone) if counts else 0
        change_entries(ctx, (EVICTIDS, key), alone, event, count)
    return len(ids)


def _leading(stream: Stream, ids: list[EntryId]) -> int:
    """The number of the first IDs that are the stream's oldest entries without a gap."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        if stream.rank(*ids[middle - 1]) == middle - 1:
            low = middle
        else:
            high = middle - 1
    return low
