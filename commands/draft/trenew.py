"""TRENEW: keeping reservations longer."""

from __future__ import annotations

from millstream.commands.engine.lifecycle import live_held, renew
from millstream.commands.engine.reservation_arguments import (
    BAD_LEASE,
    LEASE_MAX_MS,
    take_reserved_ids,
    take_writer,
)
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES, ID_WORD_BYTES
from millstream.commands.table.registry import command
from millstream.errors import CommandError


@command(
    "TRENEW key writer milliseconds [id [id ...]]",
    "write fast",
    complexity="O(n), n the number of reservations",
)
def trenew(ctx: Context, args: Args) -> int:
    """Restarts the leases of a writer's reservations; returns their number.

    Each lease starts over with this length. Without IDs, all leases of the writer are restarted.
    IDs that are not reserved by the writer are ignored.
    """
    key, writer = args.take(), take_writer(args)
    lease_ms = args.take_int_or(BAD_LEASE)
    if not 1 <= lease_ms <= LEASE_MAX_MS:
        raise CommandError(BAD_LEASE)
    named = take_reserved_ids(args) or None
    stream = ctx.write_stream(key)
    held = None if stream is None else live_held(ctx, key, stream)
    if held is None:
        return 0
    chosen = held.reserved_by(writer, named)
    ctx.effects.require_room(EFFECT_BYTES + len(key) + ID_WORD_BYTES * len(chosen))
    renew(ctx, key, held, chosen, lease_ms)
    return len(chosen)
