"""Plain values beside the streams: locks, sessions and counters that stream users keep.

A value is `bytes` in the database. SET and its kin put one there whatever was before; APPEND, INCR
and their kin change one and keep its expiry. That difference is in the effects too: `SET` takes the
expiry away, `UPDATE` and `EXTEND` do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.commands.arguments import parse_integer
from millstream.commands.effects import effect
from millstream.commands.expiry import invalid_expiry, let_expire, let_stay
from millstream.commands.keys import (
    INT64_MAX,
    INT64_MIN,
    delete_keys,
    find,
    look_up,
    tell_overwritten,
)
from millstream.commands.registry import command
from millstream.commands.replies import OK
from millstream.errors import NOT_INTEGER, SYNTAX, WRONG_TYPE, CommandError, wrong_arity

if TYPE_CHECKING:
    from millstream.commands.arguments import Args
    from millstream.commands.context import Context
    from millstream.storage.keyspace import Keyspace

LIMIT_MIN_BYTES = 1024**2  # the least that proto-max-bulk-len can be
TOO_LONG = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
OVERFLOW = "ERR increment or decrement would overflow"


# ---------------------------------------------------------------- values in the database


@effect(b"SET")
def apply_set(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """SET key value: whatever was there is gone, its expiry too."""
    key, value = words
    keyspace.databases[db_index].set(key, value)


@effect(b"UPDATE")
def apply_update(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """UPDATE key value: a new value at a key, whose expiry stays."""
    key, value = words
    keyspace.databases[db_index].set(key, value, True)


@effect(b"EXTEND")
def apply_extend(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """EXTEND key bytes: more bytes at the end of a string."""
    key, more = words
    db = keyspace.databases[db_index]
    if db.string_bytes(key) is None:
        raise ValueError(f"EXTEND of a key that has no string: {key!r}")
    db.extend(key, more)


def as_string(value: object) -> bytes | None:
    """What was found at a key, as a reply takes it; WRONGTYPE when it is no string."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes):
        return bytes(value)
    raise CommandError(WRONG_TYPE)


def put_string(ctx: Context, key: bytes, value: bytes, *, keep_expiry: bool = False) -> None:
    """Put a string under a key, whatever was there, and record it."""
    keeps = keep_expiry and ctx.db.expiry_ms(key) != 0
    ctx.db.set(key, value, keeps)
    ctx.keyspace.dirty += 1
    ctx.effects.record(ctx.db.index, b"UPDATE" if keeps else b"SET", key, value)


def store(ctx: Context, key: bytes, value: bytes, *, keep_expiry: bool = False) -> None:
    """As `put_string`, and send the events."""
    old = ctx.db.get(key)
    put_string(ctx, key, value, keep_expiry=keep_expiry)
    if ctx.events:
        if old is None:
            ctx.notify(b"n", b"new", key)
        else:
            tell_overwritten(ctx, key, old, value)
        ctx.notify(b"$", b"set", key)


# ---------------------------------------------------------------- options about the expiry


@dataclass(slots=True)
class Expiry:
    """What a command's options say about the expiry: `unit` with its number, or nothing."""

    unit: bytes = b""
    number: bytes = b""
    keep: bool = False
    persist: bool = False

    def take(self, option: bytes, args: Args) -> bool:
        """Take an EX, PX, EXAT or PXAT and its number; False when it cannot stand here."""
        if option not in (b"EX", b"PX", b"EXAT", b"PXAT") or not args.remaining:
            return False
        if self.keep or self.persist or self.unit not in (b"", option):
            return False
        self.unit, self.number = option, args.take()
        return True

    def moment_ms(self, ctx: Context, name: str) -> int:
        """The moment asked for, 0 when there is none; Redis' errors."""
        if not self.unit:
            return 0
        number = parse_integer(self.number)
        if number is None:
            raise CommandError(NOT_INTEGER)
        at_ms = number if self.unit[:1] == b"P" else number * 1000
        if not 0 < at_ms <= INT64_MAX:
            raise invalid_expiry(name)
        if not self.is_absolute:
            at_ms += ctx.now_ms
        if at_ms > INT64_MAX:
            raise invalid_expiry(name)
        return at_ms

    @property
    def is_absolute(self) -> bool:
        return self.unit in (b"EXAT", b"PXAT")


# ---------------------------------------------------------------- reading


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
    return as_string(look_up(ctx, args.take()))


@command(
    "MGET",
    arity=-2,
    flags="readonly fast",
    keys=(1, -1, 1),
    group="string",
    summary="Atomically returns the string values of one or more keys.",
    syntax="key [key ...]",
    complexity="O(N), N the number of keys",
)
def mget(ctx: Context, args: Args) -> object:
    """The values in order, null for a key that does not exist or holds no string."""
    values = [look_up(ctx, key) for key in args.rest()]
    return [as_string(value) if isinstance(value, bytes) else None for value in values]


@command(
    "STRLEN",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    group="string",
    since="2.2.0",
    summary="Returns the length of a string value.",
    syntax="key",
)
def strlen(ctx: Context, args: Args) -> object:
    """Its bytes, 0 when the key does not exist."""
    key = args.take()
    size_bytes = ctx.db.string_bytes(key)
    if size_bytes is None:
        as_string(look_up(ctx, key))
        return 0
    ctx.db.look_up(key)
    return size_bytes


@command(
    "GETDEL",
    arity=2,
    flags="write fast",
    keys=(1, 1, 1),
    group="string",
    since="6.2.0",
    summary="Returns the string value of a key after deleting the key.",
    syntax="key",
)
def getdel(ctx: Context, args: Args) -> object:
    """The value that was there, or null."""
    key = args.take()
    value = as_string(look_up(ctx, key))
    if value is not None:
        delete_keys(ctx, [key])
    return value


def _take_getex_options(args: Args) -> Expiry:
    expiry = Expiry()
    while args.remaining:
        option = args.take().upper()
        if option == b"PERSIST" and not expiry.unit:
            expiry.persist = True
        elif not expiry.take(option, args):
            raise CommandError(SYNTAX)
    return expiry


@command(
    "GETEX",
    arity=-2,
    flags="write fast",
    keys=(1, 1, 1),
    group="string",
    since="6.2.0",
    summary="Returns the string value of a key after setting its expiration time.",
    syntax="key [EX seconds | PX milliseconds | EXAT unix-time-seconds | "
    "PXAT unix-time-milliseconds | PERSIST]",
)
def getex(ctx: Context, args: Args) -> object:
    """The value, or null. Without an option it changes nothing; PERSIST takes the expiry away, and
    a moment that has passed deletes the key."""
    key = args.take()
    expiry = _take_getex_options(args)
    value = as_string(look_up(ctx, key))
    if value is None:
        return None
    at_ms = expiry.moment_ms(ctx, "getex")
    if expiry.is_absolute and at_ms <= ctx.now_ms:
        delete_keys(ctx, [key])
    elif at_ms:
        let_expire(ctx, key, at_ms)
        ctx.keyspace.dirty += 1
    elif expiry.persist:
        let_stay(ctx, key)
    return value


# ---------------------------------------------------------------- setting


def _take_set_options(args: Args) -> tuple[bytes, bool, Expiry]:
    """(NX or XX or nothing, whether GET was given, what becomes of the expiry)."""
    condition, wants_old, expiry = b"", False, Expiry()
    while args.remaining:
        option = args.take().upper()
        if option in (b"NX", b"XX") and condition in (b"", option):
            condition = option
        elif option == b"GET":
            wants_old = True
        elif option == b"KEEPTTL" and not expiry.unit:
            expiry.keep = True
        elif not expiry.take(option, args):
            raise CommandError(SYNTAX)
    return condition, wants_old, expiry


@command(
    "SET",
    arity=-3,
    flags="write denyoom",
    keys=(1, 1, 1),
    group="string",
    summary="Sets the string value of a key, ignoring its type. "
    "The key is created if it doesn't exist.",
    syntax="key value [NX | XX] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | "
    "PXAT unix-time-milliseconds | KEEPTTL]",
)
def set_(ctx: Context, args: Args) -> object:
    """OK, or null when NX or XX kept the value from being set. With GET: the value that was there
    before, or null. An expiry that the key had goes, unless KEEPTTL is given."""
    key, value = args.take(), args.take()
    if not args.remaining:
        store(ctx, key, value)
        return OK
    condition, wants_old, expiry = _take_set_options(args)
    at_ms = expiry.moment_ms(ctx, "set")
    old = as_string(look_up(ctx, key)) if wants_old else None
    if condition:
        exists = find(ctx, key) is not None
        if exists == (condition == b"NX"):
            return old
    store(ctx, key, value, keep_expiry=expiry.keep)
    if at_ms:
        let_expire(ctx, key, at_ms)
    return old if wants_old else OK


@command(
    "SETNX",
    arity=3,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="string",
    summary="Sets the string value of a key only when the key doesn't exist.",
    syntax="key value",
)
def setnx(ctx: Context, args: Args) -> object:
    """1, or 0 when the key exists."""
    key, value = args.take(), args.take()
    if find(ctx, key) is not None:
        return 0
    store(ctx, key, value)
    return 1


def _set_with_expiry(ctx: Context, args: Args, name: str, unit: bytes) -> object:
    key, number, value = args.take(), args.take(), args.take()
    at_ms = Expiry(unit, number).moment_ms(ctx, name)
    store(ctx, key, value)
    let_expire(ctx, key, at_ms)
    return OK


@command(
    "SETEX",
    arity=4,
    flags="write denyoom",
    keys=(1, 1, 1),
    group="string",
    since="2.0.0",
    summary="Sets the string value and expiration time of a key. "
    "Creates the key if it doesn't exist.",
    syntax="key seconds value",
)
def setex(ctx: Context, args: Args) -> object:
    """OK: as SET with EX."""
    return _set_with_expiry(ctx, args, "setex", b"EX")


@command(
    "PSETEX",
    arity=4,
    flags="write denyoom",
    keys=(1, 1, 1),
    group="string",
    since="2.6.0",
    summary="Sets both string value and expiration time in milliseconds of a key. "
    "The key is created if it doesn't exist.",
    syntax="key milliseconds value",
)
def psetex(ctx: Context, args: Args) -> object:
    """OK: as SET with PX."""
    return _set_with_expiry(ctx, args, "psetex", b"PX")


@command(
    "MSET",
    arity=-3,
    flags="write denyoom",
    keys=(1, -1, 2),
    group="string",
    since="1.0.1",
    summary="Atomically creates or modifies the string values of one or more keys.",
    syntax="key value [key value ...]",
    complexity="O(N), N the number of keys",
)
def mset(ctx: Context, args: Args) -> object:
    """OK. Of a key that is named twice the last value stays."""
    if args.remaining % 2:
        raise wrong_arity("mset")
    while args.remaining:
        store(ctx, args.take(), args.take())
    return OK


# ---------------------------------------------------------------- changing


def _change(ctx: Context, key: bytes, value: bytes, *effect_words: bytes) -> None:
    """Put a changed value in place, its expiry kept, and record this effect."""
    is_new = ctx.db.get(key) is None
    ctx.db.set(key, value, True)
    ctx.keyspace.dirty += 1
    ctx.effects.record(ctx.db.index, *effect_words)
    if is_new:
        ctx.notify(b"n", b"new", key)


def _check_length(ctx: Context, size_bytes: int) -> None:
    """Refuse a string that no request could carry."""
    if size_bytes > LIMIT_MIN_BYTES and size_bytes > ctx.server.longest_string_bytes:
        raise CommandError(TOO_LONG)


@command(
    "APPEND",
    arity=3,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="string",
    since="2.0.0",
    summary="Appends a string to the value of a key. Creates the key if it doesn't exist.",
    syntax="key value",
    complexity="O(N), N the length of what is appended; O(the value's length) after a read of it",
)
def append(ctx: Context, args: Args) -> object:
    """The length of the value afterwards."""
    key, more = args.take(), args.take()
    size_bytes = ctx.db.string_bytes(key)
    if size_bytes is None:
        as_string(find(ctx, key))
        _change(ctx, key, more, b"SET", key, more)
        size_bytes = len(more)
    else:
        _check_length(ctx, size_bytes + len(more))
        size_bytes = ctx.db.extend(key, more)
        ctx.keyspace.dirty += 1
        ctx.effects.record(ctx.db.index, b"EXTEND", key, more)
    ctx.notify(b"$", b"append", key)
    return size_bytes


def _add(ctx: Context, key: bytes, amount: int) -> int:
    """The value at a key as a number, with this added: stored and returned."""
    old = as_string(find(ctx, key))
    number = 0 if old is None else parse_integer(old)
    if number is None:
        raise CommandError(NOT_INTEGER)
    number += amount
    if not INT64_MIN <= number <= INT64_MAX:
        raise CommandError(OVERFLOW)
    text = str(number).encode()
    _change(ctx, key, text, b"UPDATE", key, text)
    ctx.notify(b"$", b"incrby", key)
    return number


@command(
    "INCR",
    arity=2,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="string",
    summary="Increments the integer value of a key by one. "
    "Uses 0 as initial value if the key doesn't exist.",
    syntax="key",
)
def incr(ctx: Context, args: Args) -> object:
    """The value afterwards, a signed 64-bit integer. The expiry stays."""
    return _add(ctx, args.take(), 1)


@command(
    "DECR",
    arity=2,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="string",
    summary="Decrements the integer value of a key by one. "
    "Uses 0 as initial value if the key doesn't exist.",
    syntax="key",
)
def decr(ctx: Context, args: Args) -> object:
    """The value afterwards, a signed 64-bit integer. The expiry stays."""
    return _add(ctx, args.take(), -1)


@command(
    "INCRBY",
    arity=3,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="string",
    summary="Increments the integer value of a key by a number. "
    "Uses 0 as initial value if the key doesn't exist.",
    syntax="key increment",
)
def incrby(ctx: Context, args: Args) -> object:
    """The value afterwards, a signed 64-bit integer. The expiry stays."""
    key = args.take()
    return _add(ctx, key, args.take_int())


@command(
    "DECRBY",
    arity=3,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="string",
    summary="Decrements a number from the integer value of a key. "
    "Uses 0 as initial value if the key doesn't exist.",
    syntax="key decrement",
)
def decrby(ctx: Context, args: Args) -> object:
    """The value afterwards, a signed 64-bit integer. The expiry stays."""
    key = args.take()
    amount = args.take_int()
    if amount == INT64_MIN:
        raise CommandError("ERR decrement would overflow")
    return _add(ctx, key, -amount)
