"""Counters: strings that are numbers. INCR and its variants keep the key's expiry.

INCRBYFLOAT adds as Redis does on x86-64, in C's `long double` (commands/generic/long_double).
INCREX, of Redis 8.8, adds within bounds and sets an expiry.
"""

from __future__ import annotations

from millstream.commands.generic import long_double
from millstream.commands.generic.expiry import is_due, let_expire, let_stay
from millstream.commands.generic.frequent import add_to_integer
from millstream.commands.generic.keys import INT64_MAX, INT64_MIN, delete_keys, find
from millstream.commands.generic.long_double import LongDouble
from millstream.commands.generic.strings import Expiry, as_string, change
from millstream.commands.generic.value_effects import UPDATE
from millstream.commands.runtime.arguments import Args, parse_integer
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import Raw
from millstream.commands.table.registry import CommandGroup
from millstream.errors import NOT_INTEGER, SYNTAX, CommandError
from millstream.storage.keyspace.database import Sum

command = CommandGroup("string")

OVERFLOW = "ERR increment or decrement would overflow"
NOT_FLOAT = "ERR value is not a valid float"
NOT_FINITE = "ERR increment would produce NaN or Infinity"


def _add(ctx: Context, key: bytes, amount: int) -> int:
    """Add to the number at a key; store and return the sum."""
    old = as_string(find(ctx, key))
    number = 0 if old is None else parse_integer(old)
    if number is None:
        raise CommandError(NOT_INTEGER)
    number += amount
    if not INT64_MIN <= number <= INT64_MAX:
        raise CommandError(OVERFLOW)
    text = b"%d" % number
    change(ctx, key, text, UPDATE, key, text, event=b"incrby")
    return number


@command("INCR key", "write denyoom fast hot", keys="RW access update")
def incr(ctx: Context, args: Args) -> object:
    """Increments the integer value of a key by one. Uses 0 as initial value if the key
    doesn't exist.

    The reply is the new value, a signed 64-bit integer. The expiry is kept."""
    total = add_to_integer(ctx, args, 1)
    return _add(ctx, args.take(), 1) if total is None else total


@command("DECR key", "write denyoom fast hot", keys="RW access update")
def decr(ctx: Context, args: Args) -> object:
    """Decrements the integer value of a key by one. Uses 0 as initial value if the key
    doesn't exist.

    The reply is the new value, a signed 64-bit integer. The expiry is kept."""
    total = add_to_integer(ctx, args, -1)
    return _add(ctx, args.take(), -1) if total is None else total


@command("INCRBY key increment", "write denyoom fast hot", keys="RW access update")
def incrby(ctx: Context, args: Args) -> object:
    """Increments the integer value of a key by a number. Uses 0 as initial value if the key
    doesn't exist.

    The reply is the new value, a signed 64-bit integer. The expiry is kept."""
    key, amount = args.take(), args.take_int()
    total = add_to_integer(ctx, args, amount)
    return _add(ctx, key, amount) if total is None else total


@command("DECRBY key decrement", "write denyoom fast hot", keys="RW access update")
def decrby(ctx: Context, args: Args) -> object:
    """Decrements a number from the integer value of a key. Uses 0 as initial value if the
    key doesn't exist.

    The reply is the new value, a signed 64-bit integer. The expiry is kept."""
    key = args.take()
    amount = args.take_int()
    if amount == INT64_MIN:
        raise CommandError("ERR decrement would overflow")
    return _add(ctx, key, -amount)


# ---------------------------------------------------------------- floating point


def _float_at(ctx: Context, key: bytes) -> LongDouble:
    """The number at a key, 0 when it does not exist."""
    old = as_string(find(ctx, key))
    number = long_double.ZERO if old is None else long_double.parse(old)
    if number is None:
        raise CommandError(NOT_FLOAT)
    return number


@command(
    "INCRBYFLOAT key increment:double", "write denyoom fast", since="2.6.0", keys="RW access update"
)
def incrbyfloat(ctx: Context, args: Args) -> object:
    """Increment the floating point value of a key by a number. Uses 0 as initial value if
    the key doesn't exist.

    The reply is the new value, as text with up to 17 decimals. The expiry is kept."""
    key = args.take()
    number = _float_at(ctx, key)
    amount = long_double.parse(args.take())
    if amount is None:
        raise CommandError(NOT_FLOAT)
    total = long_double.add(number, amount)
    if total is None or total.infinite:
        raise CommandError(NOT_FINITE)
    text = long_double.format_human(total)
    change(ctx, key, Sum(text), UPDATE, key, text, event=b"incrbyfloat")
    return text


# ---------------------------------------------------------------- within bounds


class Increment:
    """The options of INCREX. `kind` is BYINT, BYFLOAT or b"" for neither, with its `amount`."""

    def __init__(self) -> None:
        self.kind = b""
        self.amount = b"1"
        self.lower: bytes | None = None
        self.upper: bytes | None = None
        self.saturates = False
        self.only_first_expiry = False
        self.expiry = Expiry()

    def take(self, option: bytes, args: Args) -> bool:
        """Take an option; False when it is not allowed here: each may be given once."""
        if option in (b"BYINT", b"BYFLOAT") and not self.kind and args.remaining:
            self.kind, self.amount = option, args.take()
        elif option == b"LBOUND" and self.lower is None and args.remaining:
            self.lower = args.take()
        elif option == b"UBOUND" and self.upper is None and args.remaining:
            self.upper = args.take()
        elif option == b"SATURATE" and not self.saturates:
            self.saturates = True
        elif option == b"ENX" and not (self.only_first_expiry or self.expiry.persist):
            self.only_first_expiry = True
        else:
            return self._take_expiry(option, args)
        return True

    def _take_expiry(self, option: bytes, args: Args) -> bool:
        if self.expiry.unit or self.expiry.persist:
            return False
        if option == b"PERSIST" and not self.only_first_expiry:
            self.expiry.persist = True
            return True
        return self.expiry.take(option, args)


def _take_increment(args: Args) -> Increment:
    increment = Increment()
    while args.remaining:
        if not increment.take(args.take().upper(), args):
            raise CommandError(SYNTAX)
    if increment.only_first_expiry and not increment.expiry.unit:
        raise CommandError("ERR ENX flag requires an expiration")
    return increment


class Outcome:
    """A number before and after, as texts, and the difference; `value` None: nothing changes."""

    def __init__(self, value: bytes | None, reply: object) -> None:
        self.value = value
        self.reply = reply


def _integer(text: bytes, name: str) -> int:
    number = parse_integer(text)
    if number is None:
        raise CommandError(f"ERR {name} is not an integer or out of range")
    return number


def _add_within(ctx: Context, key: bytes, increment: Increment) -> Outcome:
    """Add integers: the sum, or with SATURATE the bound that it exceeds."""
    amount = _integer(increment.amount, "Increment")
    lower = INT64_MIN if increment.lower is None else _integer(increment.lower, "LBOUND")
    upper = INT64_MAX if increment.upper is None else _integer(increment.upper, "UBOUND")
    _check_bounds(lower > upper)
    old = as_string(find(ctx, key))
    number = 0 if old is None else parse_integer(old)
    if number is None:
        raise CommandError(NOT_INTEGER)
    total = number + amount
    if not lower <= total <= upper:
        if not increment.saturates:
            return Outcome(None, [number, 0])
        total = max(lower, min(upper, total))
    if not INT64_MIN <= total - number <= INT64_MAX:
        raise CommandError("ERR applied increment would overflow")
    return Outcome(str(total).encode(), [total, total - number])


def _float(text: bytes, name: str) -> LongDouble:
    number = long_double.parse(text)
    if number is None:
        raise CommandError(f"ERR {name} is not a valid float")
    return number


def _add_float_within(ctx: Context, key: bytes, increment: Increment) -> Outcome:
    """Like `_add_within`, for floating point numbers."""
    amount = _float(increment.amount, "Increment")
    if amount.infinite:
        raise CommandError("ERR BYFLOAT increment cannot be Infinity")
    given, largest = increment, long_double.LARGEST
    lower = long_double.SMALLEST if given.lower is None else _float(given.lower, "LBOUND")
    upper = largest if given.upper is None else _float(given.upper, "UBOUND")
    _check_bounds(long_double.is_greater(lower, upper))
    number = _float_at(ctx, key)
    if number.infinite:
        raise CommandError("ERR value cannot be Infinity")
    total = long_double.add(number, amount)
    assert total is not None  # both are finite
    passed = long_double.is_greater(lower, total) or long_double.is_greater(total, upper)
    if passed and not increment.saturates:
        return Outcome(None, _float_pair(ctx, number, long_double.ZERO))
    if passed:
        total = lower if long_double.is_greater(lower, total) else upper
        amount = long_double.subtract(total, number) or long_double.ZERO
    if total.infinite or amount.infinite:
        raise CommandError("ERR applied increment would be Infinity")
    return Outcome(long_double.format_human(total), _float_pair(ctx, total, amount))


def _check_bounds(crossed: bool) -> None:
    if crossed:
        raise CommandError("ERR LBOUND can't be greater than UBOUND")


def _float_pair(ctx: Context, value: LongDouble, applied: LongDouble) -> list[object]:
    """Two doubles in RESP3, their texts in RESP2."""
    texts = [long_double.format_human(number) for number in (value, applied)]
    if ctx.session.resp == 2:
        return list(texts)
    return [Raw(b",%b\r\n" % text) for text in texts]


@command(
    "INCREX key [increment: BYFLOAT float | BYINT integer] [SATURATE] [LBOUND lowerbound] "
    "[UBOUND upperbound] [expiration: EX seconds | PX milliseconds | EXAT unix-time-seconds | "
    "PXAT unix-time-milliseconds | PERSIST] [ENX]",
    "write denyoom fast",
    since="8.8.0",
    keys="RW access update",
)
def increx(ctx: Context, args: Args) -> object:
    """Increments the numeric value of a key by a number and sets its expiration time. Uses
    0 as initial value if the key doesn't exist.

    The reply is the new value and the number that was added, which is 1 without BYINT and BYFLOAT.
    If the sum is outside LBOUND and UBOUND, or outside the type's range, the value and the expiry
    do not change, and the reply says that 0 was added; with SATURATE, the value is set to the bound
    instead. ENX sets the expiry only if the key has none.
    """
    key = args.take()
    increment = _take_increment(args)
    at_ms = increment.expiry.moment_ms(ctx, "increx")
    by_float = increment.kind == b"BYFLOAT"
    outcome = (_add_float_within if by_float else _add_within)(ctx, key, increment)
    if outcome.value is not None:
        _apply(ctx, key, outcome.value, increment, at_ms)
    return outcome.reply


def _apply(ctx: Context, key: bytes, value: bytes, increment: Increment, at_ms: int) -> None:
    """Store the sum, then set or remove the expiry; an expiry in the past deletes the key."""
    by_float = increment.kind == b"BYFLOAT"
    if increment.only_first_expiry and ctx.db.expiry_ms(key):
        at_ms = 0
    if at_ms and is_due(ctx, at_ms):
        delete_keys(ctx, [key])
        return
    event = b"incrbyfloat" if by_float else b"incrby"
    change(ctx, key, Sum(value) if by_float else value, UPDATE, key, value, event=event)
    if at_ms:
        let_expire(ctx, key, at_ms, count=0)
    elif increment.expiry.persist:
        let_stay(ctx, key)
