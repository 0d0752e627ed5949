"""TRESTORE: the last step of restoring one stream from a backup.

The entries were appended to a key of their own before, by as many requests as necessary. This
command gives that stream everything else that the backup has and moves it to its key, in one step:
no reader ever sees a part of a restored stream.
"""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]

from millstream.commands.generic.expiry import let_expire
from millstream.commands.generic.keys import tell_overwritten
from millstream.commands.generic.migration import BUSY_KEY
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES, effect
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.table.registry import command
from millstream.errors import CommandError
from millstream.storage.capture.ordering_snapshot import restore_ordering
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import load_stream

BAD_STATE = "ERR the state does not belong to the entries of the stream"
_MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, TypeError)
_ORDERING = ("held", "lineage", "followed")


def _completed(
    entries: object, state: bytes, incarnation: int, steady_ms: int
) -> tuple[Stream, dict[str, Any]]:
    """The stream with its whole state, and that state as a map. ValueError when the two do not fit
    together."""
    if entries is not None and not isinstance(entries, Stream):
        raise ValueError("the entries are not in a stream")
    try:
        meta = msgpack.unpackb(state, strict_map_key=False)
        blocks = () if entries is None else entries.blocks()
        own = {"incarnation": incarnation, "open": bool(blocks)}
        made = load_stream({**meta, **own}, blocks, steady_ms)
        restore_ordering(made, meta, steady_ms)
    except (*_MALFORMED, msgpack.UnpackException) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    for group in made.groups.values():
        group.restart_ttl(steady_ms)
    if made.held is not None:
        made.held.restart_leases(steady_ms)
    return made, meta


def _put(keyspace: Keyspace, db_index: int, source: bytes, key: bytes, made: Stream) -> None:
    keyspace.databases[db_index].delete(source)
    keyspace.databases[db_index].set(key, made)


def _note_ordering(keyspace: Keyspace, meta: dict[str, Any]) -> None:
    keyspace.has_ordering = keyspace.has_ordering or any(name in meta for name in _ORDERING)


@effect(b"TRESTORE", keys=((1, 0), (2, 0)))
def apply_trestore(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """TRESTORE source key incarnation state: complete the stream at `source`, which may not exist,
    and move it to `key`, where it replaces any value and its expiry."""
    source, key, incarnation, state = words
    entries = keyspace.databases[db_index].get(source)
    made, meta = _completed(entries, state, int(incarnation), keyspace.steady_ms)
    _put(keyspace, db_index, source, key, made)
    _note_ordering(keyspace, meta)
    keyspace.incarnation = max(keyspace.incarnation, int(incarnation))


@command(
    "TRESTORE source key state [REPLACE]",
    "write denyoom @dangerous",
    complexity="O(N), N the blocks, groups and pending entries of the stream. It is executed in one"
    " step: 400,000 pending entries delay other clients by 30 to 40 ms",
    keys="RW access delete, OW update",
)
def trestore(ctx: Context, args: Args) -> Simple:
    """Completes a stream of a backup, whose entries were appended to another key.

    `millstream restore --stream` appends the entries to `source` and sends this command last. The
    reply is OK. The state is a map in msgpack: the counters, groups, consumers, pending entries,
    retention policy, producers and reservations of the stream. It is an error if the state does not
    belong to the entries, or if the key exists and REPLACE is not given; then nothing changes.
    """
    source, key, state = args.take(), args.take(), args.take()
    replace = args.option(b"REPLACE")
    args.finish()
    old = ctx.db.get(key)
    if old is not None and not replace:
        raise CommandError(BUSY_KEY)
    incarnation = ctx.keyspace.next_incarnation(ctx.steady_ms)
    try:
        made, meta = _completed(ctx.db.get(source), state, incarnation, ctx.steady_ms)
    except ValueError as error:
        raise CommandError(f"{BAD_STATE}: {error}") from None
    ctx.effects.require_room(len(state) + len(source) + 2 * (len(key) + EFFECT_BYTES))
    _put(ctx.keyspace, ctx.db.index, source, key, made)
    _note_ordering(ctx.keyspace, meta)
    ctx.notify(b"new", key)
    ctx.changed(b"TRESTORE", source, key, incarnation, state, event=None)
    at_ms = meta.get("expires_ms")
    if isinstance(at_ms, int) and at_ms > ctx.now_ms:
        let_expire(ctx, key, at_ms, event=None, count=0)
    ctx.notify(b"restore", key)
    if old is not None:
        tell_overwritten(ctx, key, old, made)
    return OK
