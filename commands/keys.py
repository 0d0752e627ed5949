"""Commands on keys of any type: delete, find, list, flush.

A deletion records the keys that were there, a flush records itself; both mark the keys ready, so
that readers blocked on a stream learn that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.commands.effects import effect
from millstream.commands.glob import matcher
from millstream.commands.registry import command
from millstream.commands.replies import OK, Simple
from millstream.errors import SYNTAX, CommandError

if TYPE_CHECKING:
    from millstream.commands.arguments import Args
    from millstream.commands.context import Context
    from millstream.storage.keyspace import Database, Keyspace

SCAN_COUNT = 10  # keys looked at by a SCAN without COUNT
CURSOR_END = 2**64


@effect(b"DEL")
def apply_del(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    for key in words:
        keyspace.databases[db_index].delete(key)


@effect(b"FLUSHDB")
def apply_flushdb(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    keyspace.databases[db_index].clear()


@effect(b"FLUSHALL")
def apply_flushall(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    for db in keyspace.databases:
        db.clear()


def type_name(db: Database, key: bytes) -> bytes:
    """What TYPE answers: ``string``, ``stream`` or ``none``."""
    value = db.get(key)
    if value is None:
        return b"none"
    return b"string" if isinstance(value, bytes) else b"stream"


def delete_keys(ctx: Context, keys: Iterable[bytes]) -> int:
    """Delete and record; the number of keys that were there."""
    gone = [key for key in keys if ctx.db.delete(key)]
    if gone:
        ctx.keyspace.dirty += len(gone)
        ctx.effects.record(ctx.db.index, b"DEL", *gone)
    return len(gone)


@command(
    "DEL",
    arity=-2,
    flags="write",
    keys=(1, -1, 1),
    group="generic",
    summary="Deletes one or more keys.",
    syntax="key [key ...]",
    complexity="O(N), N the number of keys",
    categories=("keyspace",),
)
def del_(ctx: Context, args: Args) -> object:
    """The number of keys that existed. Groups and pending entries of a stream go with it."""
    return delete_keys(ctx, args.rest())


@command(
    "UNLINK",
    arity=-2,
    flags="write fast",
    keys=(1, -1, 1),
    group="generic",
    summary="Deletes one or more keys.",
    syntax="key [key ...]",
    complexity="O(N), N the number of keys",
    categories=("keyspace",),
)
def unlink(ctx: Context, args: Args) -> object:
    """The same as DEL, which frees the value at once: a stream takes time in proportion to its
    blocks."""
    return delete_keys(ctx, args.rest())


@command(
    "EXISTS",
    arity=-2,
    flags="readonly fast",
    keys=(1, -1, 1),
    group="generic",
    summary="Determines whether one or more keys exist.",
    syntax="key [key ...]",
    complexity="O(N), N the number of keys",
    categories=("keyspace",),
)
def exists(ctx: Context, args: Args) -> object:
    """The number of keys that exist; a key named twice counts twice."""
    return sum(ctx.db.get(key) is not None for key in args.rest())


@command(
    "TYPE",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    group="generic",
    summary="Determines the type of value stored at a key.",
    syntax="key",
    categories=("keyspace",),
)
def type_(ctx: Context, args: Args) -> object:
    return Simple(type_name(ctx.db, args.take()))


@command(
    "KEYS",
    arity=2,
    flags="readonly",
    group="generic",
    summary="Returns all key names that match a pattern.",
    syntax="pattern",
    complexity="O(N), N the number of keys in the database",
    categories=("keyspace", "dangerous"),
)
def keys(ctx: Context, args: Args) -> object:
    r"""`*` any text, `?` any byte, `[a-z]` and `[^x]` sets, `\` takes the next byte as it is. A
    pattern with any of these may have at most 1,024 bytes."""
    return list(filter(matcher(args.take()), ctx.db.keys()))


def _take_cursor(args: Args) -> int:
    word = args.take()
    if not word.isdigit() or len(word) > 20 or int(word) >= CURSOR_END:
        raise CommandError("ERR invalid cursor")
    return int(word)


@command(
    "SCAN",
    arity=-2,
    flags="readonly",
    group="generic",
    summary="Iterates over the key names in the database.",
    syntax="cursor [MATCH pattern] [COUNT count] [TYPE type]",
    complexity="O(1) for every call, O(N) for a complete iteration",
    categories=("keyspace",),
)
def scan(ctx: Context, args: Args) -> object:
    """[next cursor, keys]; cursor 0 begins, a next cursor of 0 ends. A key that is there all the
    time is returned at least once. COUNT is how many keys a call looks at, not how many it
    returns."""
    cursor = _take_cursor(args)
    pattern: bytes | None = None
    wanted_type: bytes | None = None
    count = SCAN_COUNT
    while args.remaining >= 2:
        if args.option(b"MATCH"):
            pattern = args.take()
        elif args.option(b"COUNT"):
            count = args.take_int()
            if count < 1:
                raise CommandError(SYNTAX)
        elif args.option(b"TYPE"):
            wanted_type = args.take().lower()
        else:
            raise CommandError(SYNTAX)
    args.finish()
    following, found = ctx.db.scan(cursor, count)
    if pattern is not None:
        matches = matcher(pattern)
        found = [key for key in found if matches(key)]
    if wanted_type is not None:
        found = [key for key in found if type_name(ctx.db, key) == wanted_type]
    return [str(following).encode(), found]


@command(
    "DBSIZE",
    arity=1,
    flags="readonly fast",
    group="server",
    summary="Returns the number of keys in the database.",
    categories=("keyspace",),
)
def dbsize(ctx: Context, args: Args) -> object:
    return len(ctx.db)


def _flush(ctx: Context, args: Args, databases: list[Database]) -> None:
    if not args.option(b"ASYNC"):
        args.option(b"SYNC")
    args.finish()
    for db in databases:
        ctx.keyspace.dirty += db.clear()


@command(
    "FLUSHDB",
    arity=-1,
    flags="write",
    group="server",
    summary="Removes all keys from the current database.",
    syntax="[ASYNC | SYNC]",
    complexity="O(N), N the number of keys in the database",
    categories=("keyspace", "dangerous"),
)
def flushdb(ctx: Context, args: Args) -> object:
    """OK. ASYNC and SYNC are the same here."""
    _flush(ctx, args, [ctx.db])
    ctx.effects.record(ctx.db.index, b"FLUSHDB")
    return OK


@command(
    "FLUSHALL",
    arity=-1,
    flags="write",
    group="server",
    summary="Removes all keys from all databases.",
    syntax="[ASYNC | SYNC]",
    complexity="O(N), N the number of keys in all databases",
    categories=("keyspace", "dangerous"),
)
def flushall(ctx: Context, args: Args) -> object:
    """OK. ASYNC and SYNC are the same here."""
    _flush(ctx, args, ctx.keyspace.databases)
    ctx.effects.record(-1, b"FLUSHALL")
    return OK
