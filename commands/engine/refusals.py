"""The errors of a refused write: a stream is sealed or holds too much, or an ID is not reserved.

The texts name what the writer needs to know: where a sealed stream continues, or the reservation
that blocks it.
"""

from __future__ import annotations

from millstream.commands.runtime.context import Context
from millstream.errors import CommandError, shown
from millstream.ids import Id
from millstream.storage.reservations.held import Held
from millstream.storage.streams.stream import Stream


def sealed_error(stream: Stream) -> str:
    """The refusal of a sealed stream; it names the children."""
    children = stream.lineage.children if stream.lineage is not None else []
    if not children:
        return "SEALED the stream is sealed; it has no children"
    names = ", ".join(f"'{shown(name)}'" for name in children)
    return f"SEALED the stream is sealed; it continues in {names}"


def stalled_error(ctx: Context, stream: Stream, what: str) -> CommandError:
    """The refusal of a stream that holds too much; it names the oldest reservation."""
    held: Held | None = stream.held
    assert held is not None
    oldest = held.oldest_id
    assert oldest is not None
    lease = held.lease_of(*oldest)
    assert lease is not None
    writer, _, deadline_ms = lease
    return CommandError(
        f"STALLED {what}; the oldest reservation is {Id(*oldest, True)} of writer "
        f"'{shown(writer)}', and its lease ends in {max(0, deadline_ms - ctx.steady_ms)} ms"
    )


def held_error(ctx: Context, stream: Stream) -> CommandError:
    """The refusal of an entry that would be held, above `stream-held-max-bytes`."""
    assert stream.held is not None
    return stalled_error(ctx, stream, f"{stream.held.size_bytes} bytes are held")


def reservations_error(ctx: Context, stream: Stream | None, requested: int) -> CommandError:
    """The refusal of a TRESERVE above `stream-reservations-max`."""
    limit = ctx.keyspace.reservations_max
    reserved = 0 if stream is None or stream.held is None else stream.held.reservations
    what = f"{reserved} IDs are reserved and {requested} requested, at most {limit} can be"
    if stream is None or not reserved:
        return CommandError(f"STALLED {what}")
    return stalled_error(ctx, stream, what)


def schedule_error(what: str) -> CommandError:
    """The refusal of a TSCHEDULE above `stream-scheduled-max` or `stream-scheduled-max-bytes`."""
    return CommandError(f"STALLED {what}; cancel some, or wait until they are due")


def no_reservation(ms: int, seq: int, owner: bytes | None) -> CommandError:
    """The error for an ID that the writer has never reserved, or that belongs to another one."""
    if owner is None:
        return CommandError(f"NORESERVATION {Id(ms, seq, True)} is not reserved by this writer")
    return CommandError(
        f"NORESERVATION {Id(ms, seq, True)} is reserved by another writer, '{shown(owner)}'"
    )


def other_entry(ms: int, seq: int) -> CommandError:
    return CommandError(
        f"NORESERVATION {Id(ms, seq, True)} is the ID of another entry: its fields differ from "
        "those of this request, or another program has appended it"
    )


def fact_done(ms: int, seq: int) -> CommandError:
    return CommandError(
        f"FACTDONE the entry with the ID {Id(ms, seq, True)} and these fields exists already"
    )


def fact_lost(ms: int, seq: int) -> CommandError:
    return CommandError(
        f"FACTLOST {Id(ms, seq, True)} was given up, or its lease is over, or its entry is gone"
    )
