"""Plain values beside the streams: SET and GET. A value is `bytes` in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.effects import effect
from millstream.commands.registry import command
from millstream.commands.replies import OK
from millstream.errors import SYNTAX, WRONG_TYPE, CommandError

if TYPE_CHECKING:
    from millstream.commands.arguments import Args
    from millstream.commands.context import Context
    from millstream.storage.keyspace import Database, Keyspace

EXPIRY_OPTIONS = (b"EX", b"PX", b"EXAT", b"PXAT")


def string_at(db: Database, key: bytes) -> bytes | None:
    """The string under this key, None when there is nothing; WRONGTYPE for a stream."""
    value = db.get(key)
    if value is None or isinstance(value, bytes):
        return value
    raise CommandError(WRONG_TYPE)


@effect(b"SET")
def apply_set(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    key, value = words
    keyspace.databases[db_index].set(key, value)


def store(ctx: Context, key: bytes, value: bytes) -> None:
    """Put a string under a key, whatever was there, and record it."""
    ctx.db.set(key, value)
    ctx.keyspace.dirty += 1
    ctx.effects.record(ctx.db.index, b"SET", key, value)


@command(
    "GET",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    group="string",
    summary="Returns the string value of a key.",
    syntax="key",
)
def get(ctx: Context, args: Args) -> object:
    """The value, or null when the key does not exist."""
    return string_at(ctx.db, args.take())


def _take_set_options(args: Args) -> tuple[bytes | None, bool]:
    """(NX or XX or None, whether GET was given)."""
    condition: bytes | None = None
    wants_old = False
    while args.remaining:
        option = args.take().upper()
        if option in (b"NX", b"XX") and condition in (None, option):
            condition = option
        elif option == b"GET":
            wants_old = True
        elif option in EXPIRY_OPTIONS and args.remaining:
            raise CommandError(
                f"ERR SET with {option.decode()} is not supported: keys do not expire in this "
                "version"
            )
        elif option != b"KEEPTTL":  # there is none to keep
            raise CommandError(SYNTAX)
    return condition, wants_old


@command(
    "SET",
    arity=-3,
    flags="write denyoom",
    keys=(1, 1, 1),
    group="string",
    summary="Sets the string value of a key, ignoring its type. "
    "The key is created if it doesn't exist.",
    syntax="key value [NX | XX] [GET] [KEEPTTL]",
)
def set_(ctx: Context, args: Args) -> object:
    """OK, or null when NX or XX kept the value from being set. With GET: the value that was there
    before, or null. Options that make keys expire (EX, PX, EXAT, PXAT) are refused."""
    key, value = args.take(), args.take()
    condition, wants_old = _take_set_options(args)
    old = string_at(ctx.db, key) if wants_old else None
    if condition is not None:
        exists = ctx.db.get(key) is not None
        if exists == (condition == b"NX"):
            return old
    store(ctx, key, value)
    return old if wants_old else OK
