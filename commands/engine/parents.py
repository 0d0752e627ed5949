"""A stream that continues others: its last ID, and the names of its parents."""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.stream_effects import SETID, stream_at
from millstream.errors import SYNTAX, CommandError
from millstream.ids import Id
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.sealing import add_parents
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

BUSY = "BUSYKEY Target key name already exists."


def take_names(args: Args) -> list[bytes]:
    """Take all remaining words as names, at least one, without repetitions."""
    names = args.rest()
    if not names or len(set(names)) != len(names):
        raise CommandError(SYNTAX)
    return names


def raise_last_id(ctx: Context, key: bytes, stream: Stream, last: EntryId) -> None:
    """Raise the last ID of a stream without entries."""
    if stream.last_id >= last:
        return
    stream.raise_last_id(*last)
    deleted = bytes(Id(*stream.max_deleted_id))
    ctx.changed(SETID, key, bytes(Id(*last)), stream.entries_added, deleted, event=None, count=0)


def continue_parents(ctx: Context, key: bytes, stream: Stream, parents: list[bytes]) -> None:
    new = add_parents(stream, parents)
    ctx.keyspace.has_ordering = True
    ctx.changed(b"PARENTS", key, *new, event=None)


@effect(b"PARENTS")
def apply_parents(keyspace: Keyspace, db: int, words: list[bytes]) -> None:
    """PARENTS key parent [parent ...]: more parents of the stream."""
    add_parents(stream_at(keyspace, db, words[0]), words[1:])
    keyspace.has_ordering = True
