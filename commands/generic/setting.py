"""SET and its variants: set a value unconditionally, or on a condition.

IFEQ, IFNE, IFDEQ and IFDNE are Redis 8.4's: a client that has read a value writes or deletes it
only if it is still the same (or has changed), compared directly or by its digest.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.commands.generic.expiry import let_expire
from millstream.commands.generic.frequent import overwrite, overwrite_expiring
from millstream.commands.generic.keys import delete_keys, find, look_up
from millstream.commands.generic.strings import Expiry, as_string, digest, replace, store
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK
from millstream.commands.table.keyspecs import KeyUse
from millstream.commands.table.registry import CommandGroup
from millstream.errors import SYNTAX, CommandError, wrong_arity

command = CommandGroup("string")
COMPARING_WORDS = frozenset({b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})

INT32_MAX = 2**31 - 1
WRONG_NUMKEYS = "ERR invalid numkeys value"
DIGEST_LETTERS = 16
WRONG_DIGEST = f"ERR must be exactly {DIGEST_LETTERS} hexadecimal characters"
NOT_A_STRING = "ERR Key should be of string type if conditions are specified"
UNKNOWN_CONDITION = "ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"
BY_VALUE, BY_DIGEST = (b"IFEQ", b"IFNE"), (b"IFDEQ", b"IFDNE")


def holds(condition: bytes, operand: bytes, value: bytes) -> bool:
    """True if a condition on the value at a key is met; CommandError for an invalid digest."""
    if condition in BY_VALUE:
        return (value == operand) == (condition == b"IFEQ")
    if len(operand) != DIGEST_LETTERS:
        raise CommandError(WRONG_DIGEST)
    return (digest(value) == operand.lower()) == (condition == b"IFDEQ")


class SetOptions:
    """`condition` is NX, XX or one of the IF words with its `operand`; b"" for none."""

    __slots__ = ("condition", "expiry", "operand", "wants_old")

    def __init__(self) -> None:
        self.condition = b""
        self.operand = b""
        self.wants_old = False
        self.expiry = Expiry()

    def take(self, option: bytes, args: Args) -> bool:
        """Take an option of SET and MSETEX; False for another word."""
        if option in (b"NX", b"XX") and self.condition in (b"", option):
            self.condition = option
        elif option == b"KEEPTTL" and not self.expiry.unit:
            self.expiry.keep = True
        else:
            return self.expiry.take(option, args)
        return True

    def take_comparison(self, option: bytes, args: Args) -> bool:
        """Take IFEQ, IFNE, IFDEQ or IFDNE and its operand; False when it is not allowed here."""
        if option not in BY_VALUE + BY_DIGEST or not args.remaining:
            return False
        if self.condition not in (b"", option):
            return False
        self.condition, self.operand = option, args.take()
        return True

    def allows(self, ctx: Context, key: bytes) -> bool:
        """True if the condition for setting a value at the key is met."""
        if not self.condition:
            return True
        exists = find(ctx, key) is not None
        if self.condition in (b"NX", b"XX"):
            return exists == (self.condition == b"XX")
        if not exists:
            return self.condition in (b"IFNE", b"IFDNE")
        value = as_string(look_up(ctx, key))
        return holds(self.condition, self.operand, value or b"")


def _take_set_options(args: Args) -> SetOptions:
    options = SetOptions()
    while args.remaining:
        option = args.take().upper()
        if option == b"GET":
            options.wants_old = True
        elif not options.take(option, args) and not options.take_comparison(option, args):
            raise CommandError(SYNTAX)
    return options


def _use_in_set(words: Sequence[bytes]) -> str:
    options = {word.upper() for word in words[3:]}
    if b"GET" in options:
        return "RW access update"
    return "RW update" if options & COMPARING_WORDS else "OW update"


@command(
    "SET key value [condition: NX | XX | IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest "
    "| IFDNE ifdne-digest] [GET] [expiration: EX seconds | PX milliseconds | EXAT "
    "unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
    "write denyoom hot",
    keys=KeyUse("RW access update", _use_in_set),
)
def set_(ctx: Context, args: Args) -> object:
    """Sets the string value of a key, ignoring its type. The key is created if it doesn't
    exist.

    The reply is OK, or null if a condition prevented the change: NX (the key must not exist), XX
    (it must exist), IFEQ and IFNE (its value must, or must not, equal this one), IFDEQ and IFDNE
    (the same with its DIGEST). If the key does not exist, IFNE and IFDNE set it; IFEQ and IFDEQ do
    not. With GET: the previous value, or null. The key's expiry is removed unless KEEPTTL is given.
    """
    if overwrite(ctx, args) or overwrite_expiring(ctx, args):
        return OK
    key, value = args.take(), args.take()
    if not args.remaining:
        store(ctx, key, value)
        return OK
    options = _take_set_options(args)
    at_ms = options.expiry.moment_ms(ctx, "set")
    old = as_string(look_up(ctx, key)) if options.wants_old else None
    if not options.allows(ctx, key):
        return old
    # An expiry that is replaced is not removed first.
    store(ctx, key, value, keep_expiry=options.expiry.keep or at_ms > 0)
    if at_ms:
        let_expire(ctx, key, at_ms, count=0)
    return old if options.wants_old else OK


@command("SETNX key value", "write denyoom fast", keys="OW insert")
def setnx(ctx: Context, args: Args) -> object:
    """Sets the string value of a key only when the key doesn't exist.

    The reply is 1, or 0 if the key exists."""
    key, value = args.take(), args.take()
    if find(ctx, key) is not None:
        return 0
    store(ctx, key, value)
    return 1


def _set_with_expiry(ctx: Context, args: Args, name: str, unit: bytes) -> object:
    key, number, value = args.take(), args.take(), args.take()
    at_ms = Expiry(unit, number).moment_ms(ctx, name)
    store(ctx, key, value)
    let_expire(ctx, key, at_ms, count=0)
    return OK


@command("SETEX key seconds value", "write denyoom", since="2.0.0", keys="OW update")
def setex(ctx: Context, args: Args) -> object:
    """Sets the string value and expiration time of a key. Creates the key if it doesn't
    exist.

    The reply is OK: like SET with EX."""
    return _set_with_expiry(ctx, args, "setex", b"EX")


@command("PSETEX key milliseconds value", "write denyoom", since="2.6.0", keys="OW update")
def psetex(ctx: Context, args: Args) -> object:
    """Sets both string value and expiration time in milliseconds of a key. The key is
    created if it doesn't exist.

    The reply is OK: like SET with PX."""
    return _set_with_expiry(ctx, args, "psetex", b"PX")


@command(
    "MSET key value [key value ...]",
    "write denyoom request_policy:multi_shard response_policy:all_succeeded",
    since="1.0.1",
    complexity="O(N), N the number of keys",
    keys="OW update",
)
def mset(ctx: Context, args: Args) -> object:
    """Atomically creates or modifies the string values of one or more keys.

    The reply is OK. If a key is given twice, the last value is used."""
    if args.remaining % 2:
        raise wrong_arity("mset")
    while args.remaining:
        store(ctx, args.take(), args.take())
    return OK


@command("GETSET key value", "write denyoom fast", keys="RW access update")
def getset(ctx: Context, args: Args) -> object:
    """Returns the previous string value of a key after setting it to a new value.

    The reply is the previous value, or null: the same as SET with GET."""
    key, value = args.take(), args.take()
    old = as_string(look_up(ctx, key))
    store(ctx, key, value)
    return old


@command(
    "MSETNX key value [key value ...]",
    "write denyoom",
    since="1.0.1",
    complexity="O(N), N the number of keys",
    keys="OW insert",
)
def msetnx(ctx: Context, args: Args) -> object:
    """Atomically modifies the string values of one or more keys only when all keys don't
    exist.

    The reply is 1, or 0 if one of the keys exists; then nothing is set."""
    words = args.rest()
    if len(words) % 2:
        raise wrong_arity("msetnx")
    if any(find(ctx, key) is not None for key in words[::2]):
        return 0
    for key, value in zip(words[::2], words[1::2], strict=True):
        store(ctx, key, value)
    return 1


@command(
    "MSETEX numkeys key value [key value ...] [condition: NX | XX] [expiration: EX seconds | PX "
    "milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
    "write denyoom request_policy:multi_shard response_policy:all_succeeded",
    since="8.4.0",
    complexity="O(N), N the number of keys",
    keys="OW update",
)
def msetex(ctx: Context, args: Args) -> object:
    """Atomically sets multiple string keys with a shared expiration in a single operation.
    Supports flexible argument parsing where condition and expiration flags can appear in
    any order.

    The reply is 1, or 0 if one of the keys exists (NX) or does not exist (XX); then nothing is
    set."""
    count = args.take_int_or(WRONG_NUMKEYS)
    if not 0 < count <= INT32_MAX:
        raise CommandError(WRONG_NUMKEYS)
    if 2 * count > args.remaining:
        raise CommandError("ERR wrong number of key-value pairs")
    pairs = [(args.take(), args.take()) for _ in range(count)]
    options = SetOptions()
    while args.remaining:
        if not options.take(args.take().upper(), args):
            raise CommandError(SYNTAX)
    at_ms = options.expiry.moment_ms(ctx, "msetex")
    if not all(options.allows(ctx, key) for key, _ in pairs):
        return 0
    for key, value in pairs:
        replace(ctx, key, value, keep_expiry=options.expiry.keep)
        if at_ms:
            let_expire(ctx, key, at_ms, count=0)
        ctx.notify(b"set", key)
    return 1


# ---------------------------------------------------------------- deleting on a condition


def _use_in_delex(words: Sequence[bytes]) -> str:
    return "RW delete" if len(words) > 2 else "RM delete"


@command(
    "DELEX key [condition: IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | IFDNE "
    "ifdne-digest]",
    "write fast removes",
    since="8.4.0",
    complexity="O(1) for IFEQ and IFNE, O(N) for IFDEQ and IFDNE, N the length of the value",
    keys=KeyUse("RW delete", _use_in_delex),
)
def delex(ctx: Context, args: Args) -> object:
    """Conditionally removes the specified key based on value or digest comparison.

    The reply is 1, or 0 if the key does not exist or the condition is not met. Without a condition,
    it acts like DEL for one key of any type; with a condition, the key must hold a string.
    """
    key, condition = args.take(), args.rest()
    if not condition:
        return delete_keys(ctx, [key])
    if len(condition) != 2:
        raise wrong_arity("delex")
    value = look_up(ctx, key)
    if value is None:
        return 0
    if not isinstance(value, bytes):
        raise CommandError(NOT_A_STRING)
    word, operand = condition[0].upper(), condition[1]
    if word not in BY_VALUE + BY_DIGEST:
        raise CommandError(UNKNOWN_CONDITION)
    return delete_keys(ctx, [key]) if holds(word, operand, bytes(value)) else 0
