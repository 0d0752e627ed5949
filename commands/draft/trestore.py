"""TRESTORE: the last step of restoring one stream from a backup.

The entries were appended to a key of their own before, by as many requests as necessary. This
command gives that stream everything else that the backup has and moves it to its key, in one step:
no reader ever sees a part of a restored stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.commands.generic.expiry import let_expire
from millstream.commands.generic.keys import tell_overwritten
from millstream.commands.generic.migration import BUSY_KEY
from millstream.commands.runtime.arguments import Args, OwnedArgs
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES, effect
from millstream.commands.runtime.replies import OK, Again, Simple
from millstream.commands.table.registry import command
from millstream.errors import CommandError, shown
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import RetentionPolicy, Stream

if TYPE_CHECKING:
    from millstream.commands.later.stream_state import StateJob

BAD_STATE = "ERR the state does not belong to the entries of the stream"
STATE_AT = 3  # the index of the word
_ORDERING = ("held", "lineage", "followed")


class LaterArgs(OwnedArgs):
    """The words of a TRESTORE that continues in a later turn; the state is in its job."""

    job: StateJob


def _put(keyspace: Keyspace, db_index: int, source: bytes, key: bytes, made: Stream) -> None:
    keyspace.databases[db_index].delete(source)
    keyspace.databases[db_index].set(key, made)


def _note_ordering(keyspace: Keyspace, meta: dict[str, Any]) -> None:
    keyspace.has_ordering = keyspace.has_ordering or any(name in meta for name in _ORDERING)
    keyspace.has_rules = (
        keyspace.has_rules
        or "schedule" in meta
        or any("rules" in group for group in meta["groups"])
        or ("policy" in meta and RetentionPolicy.load(meta["policy"]).evict != 0)
    )


@effect(b"TRESTORE", keys=((1, 0), (2, 0)))
def apply_trestore(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """TRESTORE source key incarnation state: complete the stream at `source`, which may not exist,
    and move it to `key`, where it replaces any value and its expiry."""
    from millstream.commands.later.stream_state import completed

    source, key, incarnation, state = words
    entries = keyspace.databases[db_index].get(source)
    made, meta = completed(entries, state, int(incarnation), keyspace.steady_ms)
    _put(keyspace, db_index, source, key, made)
    _note_ordering(keyspace, meta)
    keyspace.incarnation = max(keyspace.incarnation, int(incarnation))


@command(
    "TRESTORE source key state [REPLACE]",
    "write denyoom @dangerous",
    complexity="O(N), N the blocks, groups, pending and scheduled entries of the stream. Groups and"
    " scheduled entries are loaded in turns, except in a transaction; the rest is done in one step",
    keys="RW access delete, OW update",
)
def trestore(ctx: Context, args: Args) -> Simple | Again:
    """Completes a stream of a backup, whose entries were appended to another key.

    `millstream restore --stream` appends the entries to `source` and sends this command last. The
    reply is OK. The state is a map in msgpack: the counters, groups, consumers, pending entries,
    retention policy, producers, reservations and scheduled entries of the stream. It is an error if
    the state does not belong to the entries, or if the key exists and REPLACE is not given; then
    nothing changes.
    """
    source, key, state = args.take(), args.take(), args.take()
    replace = args.option(b"REPLACE")
    args.finish()
    old = ctx.db.get(key)
    if old is not None and not replace:
        raise CommandError(BUSY_KEY)
    try:
        if isinstance(args, LaterArgs):
            job, state = args.job, args.job.state
        else:
            from millstream.commands.later.stream_state import StateJob

            job = StateJob(state, ctx.steady_ms)
        while not job.run():
            if ctx.may_block:
                return _later(args, job)
        incarnation = ctx.keyspace.next_incarnation(ctx.steady_ms)
        made, meta = job.complete(ctx.db.get(source), incarnation), job.meta
        if ctx.keyspace.clustered:
            _check_dead_letters(key, meta)
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


def _check_dead_letters(key: bytes, meta: dict[str, Any]) -> None:
    """Refuse groups whose dead letters would be in another slot than the stream, as TGROUP does."""
    for group in meta["groups"]:
        target = (group.get("rules") or {}).get("dead_letter")
        if target and cluster_slot_of(target) != cluster_slot_of(key):
            raise CommandError(
                f"CROSSSLOT the dead letter stream '{shown(target)}' of group"
                f" '{shown(group['name'])}' is in another slot than the stream '{shown(key)}':"
                " give both names the same {tag}"
            )


def _later(args: Args, job: StateJob) -> Again:
    if not isinstance(args, LaterArgs):
        args = LaterArgs([b"" if i == STATE_AT else args[i] for i in range(len(args))])
        args.job = job
    args.pos = 1
    return Again(args)
