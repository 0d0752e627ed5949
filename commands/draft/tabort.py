"""TABORT and TRENEW: giving reservations up, and keeping them longer.

An ID that is given up is not used again; the position advances past it without an entry. The end of
a lease has the same effect as TABORT (commands/engine/lifecycle).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.engine.lifecycle import give_up, live_held, renew
from millstream.commands.engine.restrictions import BAD_LEASE, LEASE_MAX_MS, take_writer
from millstream.commands.runtime.applying import stream_of
from millstream.commands.runtime.effects import EFFECT_BYTES, ID_WORD_BYTES, effect
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError
from millstream.ids import parse

if TYPE_CHECKING:
    from millstream.commands.runtime.arguments import Args
    from millstream.commands.runtime.context import Context
    from millstream.storage.streams.held import Held
    from millstream.storage.streams.keyspace import Keyspace

EntryIds = list[tuple[int, int]]


def _take_ids(args: Args) -> EntryIds:
    """Take all remaining words as IDs, without repetitions."""
    ids = [args.take_entry_id(dot_allowed=True) for _ in range(args.remaining)]
    return list(dict.fromkeys(ids))


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
    named = _take_ids(args)
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
    named = _take_ids(args) or None
    stream = ctx.write_stream(key)
    held = None if stream is None else live_held(ctx, key, stream)
    if held is None:
        return 0
    chosen = held.reserved_by(writer, named)
    ctx.effects.require_room(EFFECT_BYTES + len(key) + ID_WORD_BYTES * len(chosen))
    renew(ctx, key, held, chosen, lease_ms)
    return len(chosen)


# ---------------------------------------------------------------- effects


def _held_at(keyspace: Keyspace, db: int, key: bytes) -> Held:
    held = stream_of(keyspace, db, key).held
    if held is None:
        raise ValueError(f"key {key!r} has no reservations")
    return held


@effect(b"ABORT", wakes_readers=True)
def apply_abort(keyspace: Keyspace, db: int, words: list[bytes]) -> None:
    """ABORT key id [id ...]: give up reservations, by TABORT or at the end of their leases."""
    held = _held_at(keyspace, db, words[0])
    for text in words[1:]:
        if not held.give_up_id(*parse(text)):
            raise ValueError(f"ABORT of {text!r}, which is not reserved")
    held.tidy()
    held.release_into(stream_of(keyspace, db, words[0]))
    keyspace.databases[db].reservations -= len(words) - 1


@effect(b"LEASE")
def apply_lease(keyspace: Keyspace, db: int, words: list[bytes]) -> None:
    """LEASE key lease-ms id [id ...]: change the length of leases."""
    held = _held_at(keyspace, db, words[0])
    for text in words[2:]:
        if not held.renew_lease(*parse(text), int(words[1]), keyspace.steady_ms):
            raise ValueError(f"LEASE of {text!r}, which is not reserved")
    keyspace.databases[db].note_lease_moment(words[0], held, held.next_deadline_ms)
