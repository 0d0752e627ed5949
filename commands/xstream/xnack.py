"""XNACK: returning pending entries to their group.

A released entry has no owner, and 0 as its last delivery: a claim finds such entries first,
whatever its minimum idle time. It keeps its retry, which is due at once. In a managed group, XNACK
gives entries back as TNACK does, from any owner. Semantics and error texts are those of Redis 8.8.
"""

from __future__ import annotations

from millstream.commands.engine.claiming import named_group
from millstream.commands.engine.lifecycle import change_entries, note_used
from millstream.commands.engine.managed_groups import GiveBack
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.stream_effects import RELEASE
from millstream.commands.table.registry import command
from millstream.errors import BAD_NUMIDS, NEEDS_IDS, TOO_FEW_IDS, CommandError, shown
from millstream.storage.streams.head_eviction import note_pending

BAD_RETRYCOUNT = "ERR Invalid RETRYCOUNT value, must be >= 0"
# The new number of deliveries in the effect: a number, `-` for one less, `=` for no change.
DELIVERIES = {b"SILENT": b"-", b"FAIL": b"=", b"FATAL": b"%d" % (2**63 - 1)}


@command(
    "XNACK key group <mode: SILENT | FAIL | FATAL> {ids: IDS numids id [id ...]} [RETRYCOUNT "
    "count] [FORCE]",
    "write fast",
    since="8.8.0",
    complexity="O(log n) for each id, n the number of the group's pending entries",
)
def xnack(ctx: Context, args: Args) -> int:
    """Returns pending entries to the group without an owner; any consumer can claim them."""
    key, stream, group = named_group(ctx, args)
    mode = _take_mode(args)
    retry_count: int | None = None
    force = False
    first = given = 0
    while args.remaining:
        if args.remaining > 1 and args.option(b"IDS"):
            first = args.pos + 1
            given = args.skip_ids(BAD_NUMIDS, TOO_FEW_IDS)
        elif args.remaining > 1 and args.option(b"RETRYCOUNT"):
            retry_count = _take_retry_count(args)
        elif args.option(b"FORCE"):
            force = True
        else:
            raise CommandError(f"ERR Unrecognized XNACK option '{shown(args[args.pos])}'")
    if not given:
        raise CommandError(NEEDS_IDS)
    ids = args.ids_at(first, given)
    if group.timeout_ms:
        force = force and not group.is_ordered  # an entry that is not pending waits for its key
        new = {entry_id for entry_id in ids if force and stream.has_entry(*entry_id)}
        for entry_id in new:
            note_pending(stream, *entry_id)
        giving = GiveBack(mode, None, retry_count)
        given_back = giving.from_any_owner(ctx, key, stream, group, ids, new)
        note_used(ctx, key, group)
        return given_back
    released = []
    count = DELIVERIES[mode] if retry_count is None else b"%d" % retry_count
    for entry_id in ids:
        if group.pending.has(*entry_id) or (force and stream.has_entry(*entry_id)):
            group.pending.release(*entry_id, count, ctx.steady_ms)
            note_pending(stream, *entry_id)
            released.append(entry_id)
    if released:
        # Released entries can be claimed at once: the effect wakes the readers.
        effect = (RELEASE, key, group.name, ctx.steady_ms, count)
        change_entries(ctx, effect, released, None, len(released))
    note_used(ctx, key, group)
    return len(released)


def _take_mode(args: Args) -> bytes:
    for mode in DELIVERIES:
        if args.option(mode):
            return mode
    raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")


def _take_retry_count(args: Args) -> int:
    count = args.take_int()
    if count < 0:
        raise CommandError(BAD_RETRYCOUNT)
    return count
