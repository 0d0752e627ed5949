"""TABORT: giving reservations up.

An ID that is given up is not used again; the position advances past it without an entry. The end of
a lease has the same effect as TABORT (commands/engine/lifecycle).
"""

from __future__ import annotations

from millstream.commands.engine.lifecycle import give_up, live_held
from millstream.commands.engine.reservation_arguments import take_reserved_ids, take_writer
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES, ID_WORD_BYTES
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError


@command(
    "TABORT key writer [ids: id [id ...] | except: EXCEPT id [id ...]]",
    "write",
    complexity="O(n), n the number of reservations",
)
def tabort(ctx: Context, args: Args) -> int:
    """Gives up reservations of a writer; returns their number.

    Without IDs, all reservations of the writer are given up; with EXCEPT, all but these. IDs
    that are not reserved by the writer are ignored.
    """
    key, writer = args.take(), take_writer(args)
    spares = args.option(b"EXCEPT")
    if spares and not args.remaining:
        raise CommandError(SYNTAX)
    named = take_reserved_ids(args)
    stream = ctx.write_stream(key)
    held = None if stream is None else live_held(ctx, key, stream)
    if stream is None or held is None:
        return 0
    if spares:
        chosen = held.reserved_except(writer, set(named))
    else:
        chosen = held.reserved_by(writer, named or None)
    if chosen:
        ctx.effects.require_room(EFFECT_BYTES + len(key) + ID_WORD_BYTES * len(chosen))
        give_up(ctx, key, stream, chosen)
    return len(chosen)
