"""TSEAL: the end of a stream, and where it continues."""

from __future__ import annotations

from millstream.commands.engine.lifecycle import live_held
from millstream.commands.engine.parents import BUSY, continue_parents, raise_last_id, take_names
from millstream.commands.engine.refusals import sealed_error
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES, effect
from millstream.commands.runtime.stream_effects import stream_at
from millstream.commands.table.registry import command
from millstream.errors import NO_SUCH_KEY, CommandError
from millstream.ids import Id
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.reservations.held import handed_out_id
from millstream.storage.streams.sealing import lineage_of, seal
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]
HAS_SCHEDULED = "ERR the stream has scheduled entries: cancel them, or wait until they are due"


@command(
    "TSEAL key [ELSEWHERE] [children: CHILDREN name:key [name:key ...]]",
    "write",
    complexity="O(n), n the number of children",
)
def tseal(ctx: Context, args: Args) -> Id:
    """Seals a stream: it accepts no more entries, and its children continue it.

    The reply is the final ID, which is the last one handed out. Open reservations can still be
    settled. Each child is created with this stream as its parent and the final ID as its last ID;
    with ELSEWHERE the children are on other servers, and only their names are kept.
    """
    key = args.take()
    elsewhere = args.option(b"ELSEWHERE")
    children = take_names(args) if args.option(b"CHILDREN") else []
    args.finish()
    stream = ctx.write_stream(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    live_held(ctx, key, stream)
    final = handed_out_id(stream)
    if stream.is_sealed:
        if children and set(children) != set(lineage_of(stream).children):
            raise CommandError(sealed_error(stream))
        return Id(*final, True)
    if not elsewhere:
        _check_children(ctx, key, children)
    if stream.schedule:
        raise CommandError(HAS_SCHEDULED)
    ctx.effects.require_room(_effects_bytes(key, children))
    _seal(ctx, key, stream, children)
    if not elsewhere:
        for child in children:
            _adopt(ctx, key, child, final)
    return Id(*final, True)


def _check_children(ctx: Context, key: bytes, children: list[bytes]) -> None:
    """Check that each child that exists is a stream that never had an entry."""
    for child in children:
        value = ctx.db.get(child)
        if value is None and child != key:
            continue
        if not isinstance(value, Stream) or child == key or not _is_unused(value):
            raise CommandError(BUSY)


def _effects_bytes(key: bytes, children: list[bytes]) -> int:
    """The maximum size of the effects: SEAL, and STREAM, SETID and PARENTS for each child."""
    of_child = sum(len(key) + 4 * len(child) + 3 * EFFECT_BYTES for child in children)
    return len(key) + EFFECT_BYTES + of_child


def _is_unused(stream: Stream) -> bool:
    return stream.entries_added == 0 and stream.held is None and not stream.is_sealed


def _seal(ctx: Context, key: bytes, stream: Stream, children: list[bytes]) -> None:
    seal(stream, children)
    ctx.keyspace.has_ordering = True
    ctx.changed(b"SEAL", key, *children, event=None)


def _adopt(ctx: Context, parent: bytes, child: bytes, final: EntryId) -> None:
    """Create a child of a stream, or make an unused stream its child."""
    stream = ctx.open_stream(child)
    raise_last_id(ctx, child, stream, final)
    continue_parents(ctx, child, stream, [parent])


@effect(b"SEAL", wakes_readers=True)
def apply_seal(keyspace: Keyspace, db: int, words: list[bytes]) -> None:
    """SEAL key [child ...]: the stream accepts no more entries and continues in these children."""
    seal(stream_at(keyspace, db, words[0]), words[1:])
    keyspace.has_ordering = True
