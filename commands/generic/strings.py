"""Strings: locks, sessions and counters of applications that use streams.

A value is `bytes` in the database. This module has the functions that all string commands share,
the commands that read, and those that change a part; `setting` has SET and its variants, `counters`
INCR and its variants. SET replaces any value; APPEND, INCR and SETRANGE change a value and keep its
expiry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.commands.generic.expiry import invalid_expiry, is_due, let_expire, let_stay
from millstream.commands.generic.keys import (
    INT64_MAX,
    delete_keys,
    find,
    look_up,
    tell_overwritten,
)
from millstream.commands.generic.value_effects import EXTEND, PADDED, PATCH, SET, UPDATE
from millstream.commands.runtime.arguments import Args, parse_integer
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import CommandGroup
from millstream.errors import NOT_INTEGER, SYNTAX, WRONG_TYPE, CommandError
from millstream.storage.keyspace.string_changes import extend, patch, string_bytes

command = CommandGroup("string")

LIMIT_MIN_BYTES = 1024**2  # the minimum of proto-max-bulk-len
TOO_LONG = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
OFFSET_OUT_OF_RANGE = "ERR offset is out of range"


if TYPE_CHECKING:

    class StringLimit(Protocol):
        proto_max_bulk_len: int

    class StringHost(Protocol):
        @property
        def config(self) -> StringLimit: ...


# ---------------------------------------------------------------- values in the database


def as_string(value: object) -> bytes | None:
    """The value found at a key as plain bytes for a reply; WRONGTYPE for a stream."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes):
        return bytes(value)
    raise CommandError(WRONG_TYPE)


def put_string(ctx: Context, key: bytes, value: bytes, *, keep_expiry: bool = False) -> None:
    """Set a string at a key, replacing any value, and record it."""
    keeps = keep_expiry and ctx.db.expiry_ms(key) != 0
    ctx.db.set(key, value, keeps)
    ctx.changed(UPDATE if keeps else SET, key, value, event=None)


def replace(ctx: Context, key: bytes, value: bytes, *, keep_expiry: bool = False) -> None:
    """Like `put_string`, with the events of a new or overwritten key."""
    old = ctx.db.get(key)
    put_string(ctx, key, value, keep_expiry=keep_expiry)
    if ctx.events:
        if old is None:
            ctx.notify(b"new", key)
        else:
            tell_overwritten(ctx, key, old, value)


def store(ctx: Context, key: bytes, value: bytes, *, keep_expiry: bool = False) -> None:
    """Like `replace`, with the event of SET."""
    if not ctx.events and not ctx.db.expiring_count:
        put_string(ctx, key, value)  # no events are published, and no key can have expired
        return
    replace(ctx, key, value, keep_expiry=keep_expiry)
    ctx.notify(b"set", key)


# ---------------------------------------------------------------- options about the expiry


class Expiry:
    """The expiry in a command's options: `unit` with its number, or none."""

    __slots__ = ("keep", "number", "persist", "unit")

    def __init__(self, unit: bytes = b"", number: bytes = b"") -> None:
        self.unit = unit
        self.number = number
        self.keep = False
        self.persist = False

    def take(self, option: bytes, args: Args) -> bool:
        """Take EX, PX, EXAT or PXAT and its number; False when it is not allowed here."""
        if option not in (b"EX", b"PX", b"EXAT", b"PXAT") or not args.remaining:
            return False
        if self.keep or self.persist or self.unit not in (b"", option):
            return False
        self.unit, self.number = option, args.take()
        return True

    def moment_ms(self, ctx: Context, name: str) -> int:
        """The requested expiry in unix milliseconds, 0 for none; Redis' errors."""
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


@command("GET key", "readonly fast hot")
def get(ctx: Context, args: Args) -> object:
    """Returns the string value of a key.

    The reply is the value, or null if the key does not exist."""
    return as_string(look_up(ctx, args.take()))


@command(
    "MGET key [key ...]",
    "readonly fast request_policy:multi_shard",
    complexity="O(N), N the number of keys",
)
def mget(ctx: Context, args: Args) -> object:
    """Atomically returns the string values of one or more keys.

    The reply is the values in order, null for a key that does not exist or does not hold a
    string."""
    values = [look_up(ctx, key) for key in args.rest()]
    return [as_string(value) if isinstance(value, bytes) else None for value in values]


@command("STRLEN key", "readonly fast", since="2.2.0", keys="RO")
def strlen(ctx: Context, args: Args) -> object:
    """Returns the length of a string value.

    The reply is the length in bytes, 0 if the key does not exist."""
    key = args.take()
    size_bytes = string_bytes(ctx.db, key)
    if size_bytes is None:
        as_string(look_up(ctx, key))
        return 0
    ctx.db.look_up(key)
    return size_bytes


def _cut(value: bytes, start: int, end: int) -> bytes:
    """The bytes from start to end, both included; a negative number counts from the end."""
    size = len(value)
    if start < 0 and end < 0 and start > end:
        return b""
    start = max(0, size + start if start < 0 else start)
    end = max(0, size + end if end < 0 else end)
    return value[start : end + 1]


def _range(ctx: Context, args: Args) -> bytes:
    key, start, end = args.take(), args.take_int(), args.take_int()
    return _cut(as_string(look_up(ctx, key)) or b"", start, end)


@command(
    "GETRANGE key start:integer end:integer",
    "readonly",
    since="2.4.0",
    complexity="O(N), N the length of the returned string",
)
def getrange(ctx: Context, args: Args) -> object:
    """Returns a substring of the string stored at a key.

    The reply is the bytes from start to end, both included and counted from 0. Negative numbers
    count from the end; -1 is the last byte. Empty if the range is empty or the key does not exist.
    """
    return _range(ctx, args)


@command(
    "SUBSTR key start:integer end:integer",
    "readonly",
    complexity="O(N), N the length of the returned string",
)
def substr(ctx: Context, args: Args) -> object:
    """Returns a substring from a string value.

    Does the same as GETRANGE; the name is from before Redis 2.0."""
    return _range(ctx, args)


@command("DIGEST key", "readonly fast", since="8.4.0", complexity="O(N), N the length of the value")
def digest_(ctx: Context, args: Args) -> object:
    """Returns the XXH3 hash of a string value.

    The reply is 16 hexadecimal digits, or null if the key does not exist. IFDEQ and IFDNE of SET
    and DELEX compare with this value.
    """
    value = as_string(look_up(ctx, args.take()))
    return None if value is None else digest(value)


def digest(value: bytes) -> bytes:
    """The 64-bit XXH3 of a value, as 16 hexadecimal digits."""
    from xxhash import xxh3_64_hexdigest

    return xxh3_64_hexdigest(value).encode()


@command("GETDEL key", "write fast removes", since="6.2.0", keys="RW access delete")
def getdel(ctx: Context, args: Args) -> object:
    """Returns the string value of a key after deleting the key.

    The reply is the previous value, or null."""
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
    "GETEX key [expiration: EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT "
    "unix-time-milliseconds | PERSIST]",
    "write fast",
    since="6.2.0",
    keys="RW access update",
)
def getex(ctx: Context, args: Args) -> object:
    """Returns the string value of a key after setting its expiration time.

    The reply is the value, or null. Without an option it changes nothing. PERSIST removes the
    expiry, and a time in the past deletes the key.
    """
    key = args.take()
    expiry = _take_getex_options(args)
    value = as_string(look_up(ctx, key))
    if value is None:
        return None
    at_ms = expiry.moment_ms(ctx, "getex")
    if expiry.is_absolute and is_due(ctx, at_ms):
        delete_keys(ctx, [key])
    elif at_ms:
        let_expire(ctx, key, at_ms)
    elif expiry.persist:
        let_stay(ctx, key)
    return value


# ---------------------------------------------------------------- changing


def change(ctx: Context, key: bytes, value: bytes, *effect: bytes, event: bytes) -> None:
    """Store a changed value, keep its expiry, record this effect and send the event."""
    is_new = ctx.events and ctx.db.get(key) is None
    ctx.db.set(key, value, True)
    if is_new:
        ctx.notify(b"new", key)
    ctx.changed(*effect, event=event)


def _check_length(ctx: Context[StringHost], size_bytes: int) -> None:
    """Refuse a string above proto-max-bulk-len."""
    if size_bytes > LIMIT_MIN_BYTES and size_bytes > ctx.server.config.proto_max_bulk_len:
        raise CommandError(TOO_LONG)


@command(
    "APPEND key value",
    "write denyoom fast",
    since="2.0.0",
    complexity="O(N), N the length of what is appended; O(the value's length) after a read of it",
    keys="RW insert",
)
def append(ctx: Context, args: Args) -> object:
    """Appends a string to the value of a key. Creates the key if it doesn't exist.

    The reply is the new length of the value."""
    key, more = args.take(), args.take()
    size_bytes = string_bytes(ctx.db, key)
    if size_bytes is None:
        as_string(find(ctx, key))
        change(ctx, key, more, SET, key, more, event=b"append")
        size_bytes = len(more)
    else:
        _check_length(ctx, size_bytes + len(more))
        size_bytes = extend(ctx.db, key, more)
        ctx.changed(EXTEND, key, more, event=b"append")
    return size_bytes


@command(
    "SETRANGE key offset value",
    "write denyoom",
    since="2.2.0",
    complexity="O(N), N the length of the value afterwards",
    keys="RW update",
)
def setrange(ctx: Context, args: Args) -> object:
    """Overwrites a part of a string value with another by an offset. Creates the key if it
    doesn't exist.

    The reply is the new length of the value. If the value ends before the offset, it is padded with
    zero bytes. An empty value changes nothing.
    """
    key, offset, part = args.take(), args.take_int(), args.take()
    if offset < 0:
        raise CommandError(OFFSET_OUT_OF_RANGE)
    size_bytes = string_bytes(ctx.db, key)
    if size_bytes is None:
        as_string(find(ctx, key))
    if not part:
        return size_bytes or 0
    _check_length(ctx, offset + len(part))
    is_new = size_bytes is None
    size_bytes = patch(ctx.db, key, offset, part)
    if is_new:
        ctx.notify(b"new", key)
    ctx.changed(PADDED if is_new else PATCH, key, b"%d" % offset, part, event=b"setrange")
    return size_bytes
