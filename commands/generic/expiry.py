"""The expiry of keys: EXPIRE and its variants set it, TTL and its variants return it, PERSIST
removes it.

An expiry is a unix time in milliseconds. All forms are converted to it before an effect is
recorded, so that replaying a journal gives the same result. An expiry in the past deletes the key
at once: no later read can find it, even if the clock goes back.
"""

from __future__ import annotations

from millstream.commands.generic.frequent import extend_expiry
from millstream.commands.generic.keys import INT64_MAX, INT64_MIN, delete_keys, find
from millstream.commands.generic.value_effects import EXPIRE
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.registry import CommandGroup
from millstream.errors import CommandError, shown

command = CommandGroup("generic", "@keyspace")

CONDITIONS = (b"NX", b"XX", b"GT", b"LT")
NO_CONDITIONS: frozenset[bytes] = frozenset()
NX_WITH_OTHERS = "ERR NX and XX, GT or LT options at the same time are not compatible"
GT_WITH_LT = "ERR GT and LT options at the same time are not compatible"


def invalid_expiry(name: str) -> CommandError:
    """Redis' error for an expiry that is not a positive 64-bit number of milliseconds."""
    return CommandError(f"ERR invalid expire time in '{name}' command")


def is_due(ctx: Context, at_ms: int) -> bool:
    """True if a new expiry is in the past, so that it deletes its key. Not in requests of a source
    that this server follows: the source deletes the key itself."""
    return at_ms <= ctx.now_ms and ctx.keyspace.expiring


def let_expire(
    ctx: Context, key: bytes, at_ms: int, *, event: bytes | None = b"expire", count: int = 1
) -> None:
    """Set a future expiry of an existing key. `count` is 0 if the expiry belongs to a change of the
    value, which counts."""
    ctx.db.set_expiry(key, at_ms)
    ctx.changed(EXPIRE, key, at_ms, event=event, count=count)


def let_stay(ctx: Context, key: bytes) -> bool:
    """Remove a key's expiry, record that and send the event; False when it had none."""
    if not ctx.db.expiry_ms(key):
        return False
    ctx.db.set_expiry(key, 0)
    ctx.changed(EXPIRE, key, 0, event=b"persist")
    return True


# ---------------------------------------------------------------- setting


def _take_conditions(args: Args) -> frozenset[bytes]:
    given = set()
    while args.remaining:
        word = args.take()
        if word.upper() not in CONDITIONS:
            raise CommandError(f"ERR Unsupported option {shown(word)}")
        given.add(word.upper())
    if b"NX" in given and len(given) > 1:
        raise CommandError(NX_WITH_OTHERS)
    if {b"GT", b"LT"} <= given:
        raise CommandError(GT_WITH_LT)
    return frozenset(given)


def _allowed(conditions: frozenset[bytes], at_ms: int, current_ms: int) -> bool:
    """True if a new expiry may be set; a current expiry of 0 (none) counts as later than any
    time."""
    if b"NX" in conditions and current_ms:
        return False
    if b"XX" in conditions and not current_ms:
        return False
    if b"GT" in conditions and not (current_ms and at_ms > current_ms):
        return False
    return not (b"LT" in conditions and current_ms and at_ms >= current_ms)


def expire_from_now(ctx: Context, key: bytes, ttl_ms: int) -> None:
    """PEXPIRE of an existing key: an expiry in the past deletes it at once."""
    at_ms = ctx.now_ms + ttl_ms
    if not INT64_MIN <= ttl_ms <= INT64_MAX - ctx.now_ms:
        raise invalid_expiry("pexpire")
    _expire_at(ctx, key, at_ms)


def _expire_at(ctx: Context, key: bytes, at_ms: int) -> None:
    if is_due(ctx, at_ms):
        delete_keys(ctx, [key])
    else:
        let_expire(ctx, key, at_ms)


def _expire(ctx: Context, args: Args, name: str, *, base_ms: int, unit_ms: int) -> int:
    key, position = args.take(), args.pos
    args.pos += 1
    conditions = _take_conditions(args) if args.remaining else NO_CONDITIONS
    args.pos = position
    at_ms = args.take_int() * unit_ms
    if not INT64_MIN <= at_ms <= INT64_MAX - base_ms:
        raise invalid_expiry(name)
    at_ms += base_ms
    if find(ctx, key) is None:
        return 0
    if conditions and not _allowed(conditions, at_ms, ctx.db.expiry_ms(key)):
        return 0
    _expire_at(ctx, key, at_ms)
    return 1


@command("EXPIRE key seconds [condition: NX | XX | GT | LT]", "write fast hot")
def expire(ctx: Context, args: Args) -> object:
    """Sets the expiration time of a key in seconds.

    The reply is 1, or 0 if the key does not exist or a condition is not met. NX: the key has no
    expiry. XX: it has one. GT and LT: the new time is later, or earlier, than the current one (a
    key without expiry counts as never expiring). A time of 0 or less deletes the key immediately.
    """
    if extend_expiry(ctx, args, ctx.now_ms, 1000):
        return 1
    return _expire(ctx, args, "expire", base_ms=ctx.now_ms, unit_ms=1000)


@command("PEXPIRE key milliseconds [condition: NX | XX | GT | LT]", "write fast hot", since="2.6.0")
def pexpire(ctx: Context, args: Args) -> object:
    """Sets the expiration time of a key in milliseconds.

    Works like EXPIRE, in milliseconds."""
    if extend_expiry(ctx, args, ctx.now_ms, 1):
        return 1
    return _expire(ctx, args, "pexpire", base_ms=ctx.now_ms, unit_ms=1)


@command(
    "EXPIREAT key unix-time-seconds [condition: NX | XX | GT | LT]", "write fast hot", since="1.2.0"
)
def expireat(ctx: Context, args: Args) -> object:
    """Sets the expiration time of a key to a Unix timestamp.

    Works like EXPIRE, with an absolute time in seconds since 1970."""
    if extend_expiry(ctx, args, 0, 1000):
        return 1
    return _expire(ctx, args, "expireat", base_ms=0, unit_ms=1000)


@command(
    "PEXPIREAT key unix-time-milliseconds [condition: NX | XX | GT | LT]",
    "write fast hot",
    since="2.6.0",
)
def pexpireat(ctx: Context, args: Args) -> object:
    """Sets the expiration time of a key to a Unix milliseconds timestamp.

    Works like EXPIRE, with an absolute time in milliseconds since 1970."""
    if extend_expiry(ctx, args, 0, 1):
        return 1
    return _expire(ctx, args, "pexpireat", base_ms=0, unit_ms=1)


@command("PERSIST key", "write fast", since="2.2.0")
def persist(ctx: Context, args: Args) -> object:
    """Removes the expiration time of a key.

    The reply is 1, or 0 if the key does not exist or has no expiry."""
    key = args.take()
    return int(find(ctx, key) is not None and let_stay(ctx, key))


# ---------------------------------------------------------------- returning


def _seconds(ms: int) -> int:
    """Milliseconds rounded to seconds; negative values, which are not times, do not change."""
    return (ms + 500) // 1000 if ms >= 0 else ms


def _time_left(ctx: Context, args: Args) -> int:
    at_ms = ctx.take_expiry_ms(args)
    return max(0, at_ms - ctx.now_ms) if at_ms >= 0 else at_ms


@command("TTL key", "readonly fast hot nondeterministic_output")
def ttl(ctx: Context, args: Args) -> object:
    """Returns the expiration time in seconds of a key.

    The reply is the seconds left, -1 if the key has no expiry, -2 if it does not exist."""
    at_ms = ctx.take_expiry_ms(args)
    return _seconds(max(0, at_ms - ctx.now_ms)) if at_ms >= 0 else at_ms


@command("PTTL key", "readonly fast hot nondeterministic_output", since="2.6.0")
def pttl(ctx: Context, args: Args) -> object:
    """Returns the expiration time in milliseconds of a key.

    The reply is the milliseconds left, -1 if the key has no expiry, -2 if it does not exist."""
    return _time_left(ctx, args)


@command("EXPIRETIME key", "readonly fast hot", since="7.0.0")
def expiretime(ctx: Context, args: Args) -> object:
    """Returns the expiration time of a key as a Unix timestamp.

    The reply is the number of seconds since 1970, -1 if the key has no expiry, -2 if it does not
    exist."""
    return _seconds(ctx.take_expiry_ms(args))


@command("PEXPIRETIME key", "readonly fast hot", since="7.0.0")
def pexpiretime(ctx: Context, args: Args) -> object:
    """Returns the expiration time of a key as a Unix milliseconds timestamp.

    The reply is the number of milliseconds since 1970, -1 if the key has no expiry, -2 if it does
    not exist."""
    return ctx.take_expiry_ms(args)
