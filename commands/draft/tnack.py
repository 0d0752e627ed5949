"""TNACK: a reader of a managed group gives entries back, for now or for later.

Only entries that the reader holds are touched, so a reader that has lost an entry cannot disturb
the next one. The empty name stands for the readers of TREAD, which have none.
"""

from __future__ import annotations

from millstream.commands.engine.claiming import named_group
from millstream.commands.engine.given_options import note_option, quoted
from millstream.commands.engine.lifecycle import note_used, read_effects_most
from millstream.commands.engine.managed_groups import GiveBack, check_managed, held_ids
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import command
from millstream.errors import BAD_NUMIDS, NEEDS_IDS, SYNTAX, TOO_FEW_IDS, CommandError

DELAY_MAX_MS = 30 * 86_400_000
BAD_DELAY = f"ERR DELAY must be from 0 to {DELAY_MAX_MS}"
BAD_REASON = "ERR REASON must have at most 1024 bytes"
REASON_MAX_BYTES = 1024
DELAY_WITH_FATAL = f"{SYNTAX}, DELAY cannot be used with FATAL"
MODES = (b"SILENT", b"FAIL", b"FATAL")


@command(
    "TNACK key group consumer [mode: SILENT | FAIL | FATAL] [DELAY ms] [REASON text] "
    "<which: {ids: IDS numids id [id ...]} | ALL>",
    "write fast",
    complexity="O(log n) for each ID, n the number of the group's pending entries; with ALL O(n)",
)
def tnack(ctx: Context, args: Args) -> list[int] | int:
    """Gives entries that a consumer holds back to their group, for now or for later.

    The reply is a code for each ID: 1 if the entry was given back, 2 if it was copied to the dead
    letter stream, 3 if it is dead and not copied yet, -1 if the consumer does not hold it. With
    ALL, the number of entries: all that the consumer held.
    """
    key, stream, group = named_group(ctx, args)
    holder = args.take()
    mode, delay_ms, reason = b"FAIL", None, b""
    first = count = 0
    given: dict[bytes, bytes] = {}
    while args.remaining:
        word = next((word for word in MODES if args.option(word)), None)
        if word is not None:
            note_option(given, word, b"mode")
            mode = word
        elif args.remaining > 1 and args.option(b"DELAY"):
            note_option(given, b"DELAY")
            delay_ms = args.take_int_between(0, DELAY_MAX_MS, BAD_DELAY)
        elif args.remaining > 1 and args.option(b"REASON"):
            note_option(given, b"REASON")
            reason = args.take()
            if len(reason) > REASON_MAX_BYTES:
                raise CommandError(BAD_REASON)
        elif args.remaining > 1 and args.option(b"IDS"):
            note_option(given, b"IDS", b"which")
            first = args.pos + 1
            count = args.skip_ids(BAD_NUMIDS, TOO_FEW_IDS)
        elif args.option(b"ALL"):
            note_option(given, b"ALL", b"which")
        else:
            raise CommandError(f"ERR Unrecognized TNACK option '{quoted(args[args.pos])}'")
    everything = b"ALL" in given.values()
    if not count and not everything:
        raise CommandError(NEEDS_IDS)
    if mode == b"FATAL" and delay_ms is not None:
        raise CommandError(DELAY_WITH_FATAL)
    ids = [] if everything else ids_at(args, first, count)
    check_managed(group)
    if everything:
        ids = held_ids(group, holder)
        ctx.effects.require_room(read_effects_most(key, group, b"", len(ids)))
    giving = GiveBack(mode, delay_ms, None, reason)
    codes = giving.from_holder(ctx, key, stream, group, holder, ids)
    note_used(ctx, key, group)
    return len(codes) if everything else codes


def ids_at(args: Args, first: int, count: int) -> list[tuple[int, int]]:
    args.pos = first
    return [args.take_entry_id(dot_allowed=True) for _ in range(count)]
