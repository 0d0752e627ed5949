"""Commands on whole databases: find keys, count them, flush, swap.

An expired key is not found, and a look-up deletes it. A flush marks the keys ready, so that blocked
readers of a stream are notified that it was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from millstream.commands.generic.keys import (
    DB_OUT_OF_RANGE,
    INT32_MAX,
    INT32_MIN,
    NOT_IN_CLUSTER,
    alive,
    type_name,
)
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.replies import OK, PAUSE, ArrayHead, LongReply, Several
from millstream.commands.runtime.slot_effects import FLUSHSLOTS
from millstream.commands.table.registry import CommandGroup
from millstream.errors import SYNTAX, CommandError
from millstream.glob import is_literal, matcher
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.key_walk import KeyIterator
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_keys import flush, visible_count
from millstream.storage.keyspace.slot_ranges import ranges_of, ranges_text
from millstream.storage.keyspace.swapdb import swap_databases

command = CommandGroup("server", "@keyspace")
generic_command = CommandGroup("generic", "@keyspace")

SCAN_COUNT = 10  # keys examined by a SCAN without COUNT
SCAN_COUNT_MAX = 10_000  # per call: other clients are served between two calls
CURSOR_START, CURSOR_END = b"0", 2**64
KEYS_AT_ONCE = 4096  # KEYS searches a database with more keys in steps
LOOKS = 1024  # keys, and slots for keys, examined in one step
KEYS_PER_PART = 128
ANY_KEY = b"*"
RANDOM_TRIES = 100  # to find a random key while others are hidden


if TYPE_CHECKING:

    class ShownDirectives(Protocol):
        def shown(self, name: str) -> str:
            """A directive's value in the form of CONFIG GET."""

    class Saving(Protocol):
        def save(self) -> None:
            """Writes a snapshot before it returns."""

    class DatabasesHost(Protocol):
        @property
        def config(self) -> ShownDirectives: ...
        @property
        def snapshots(self) -> Saving: ...

        def log(self, message: str) -> None: ...

        def random_number(self) -> int:
            """64 random bits."""


# ---------------------------------------------------------------- finding


@generic_command(
    "KEYS pattern",
    "readonly request_policy:all_shards nondeterministic_output_order @dangerous",
    complexity="O(N), N the number of keys in the database",
)
def keys(ctx: Context, args: Args) -> object:
    r"""Returns all key names that match a pattern.

    `*` matches any text, `?` any byte, `[a-z]` and `[^x]` sets of bytes, and `\` the next byte
    literally. A pattern with any of these may have at most 1,024 bytes. Other clients are served
    while a large database is searched; the reply has the keys as they were when the command ran.
    """
    pattern = args.take()
    many = len(ctx.db) > KEYS_AT_ONCE
    if many and is_literal(pattern):
        return alive(ctx.db, [] if ctx.db.get(pattern) is None else [pattern])
    matches = None if pattern == ANY_KEY else matcher(pattern)
    if many:
        return LongReply(_matching(ctx.db.walk(), matches))
    return alive(ctx.db, list(filter(matches, ctx.db.keys()) if matches else ctx.db.keys()))


def _matching(walk: KeyIterator, matches: Callable[[bytes], object] | None) -> Iterator[object]:
    """All keys are examined first, because their number precedes them."""
    found: list[bytes] = []
    try:
        while (keys := walk.step(LOOKS)) is not None:
            found += keys if matches is None else filter(matches, keys)
            yield PAUSE
    finally:
        walk.close()
    yield from in_parts(found)


def in_parts(keys: list[bytes]) -> Iterator[object]:
    """The parts of a long reply that lists keys."""
    yield ArrayHead(len(keys))
    for start in range(0, len(keys), KEYS_PER_PART):
        yield Several(keys[start : start + KEYS_PER_PART])


def _take_cursor(args: Args) -> int:
    word = args.take()
    if word == CURSOR_START:
        return 0
    if not word.isdigit() or len(word) > 20 or int(word) >= CURSOR_END:
        raise CommandError("ERR invalid cursor")
    return int(word)


@generic_command(
    "SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]",
    "readonly nondeterministic_output request_policy:special response_policy:special",
    since="2.8.0",
    complexity="O(1) for every call, O(N) for a complete iteration",
)
def scan(ctx: Context, args: Args) -> object:
    """Iterates over the key names in the database.

    The reply is [next cursor, keys]. Cursor 0 starts an iteration, and a next cursor of 0 ends it.
    A key that exists during the whole iteration is returned at least once. COUNT is the number of
    keys that a call examines, at most 10,000, not the number that it returns. A TYPE that no key
    can have matches nothing.
    """
    cursor = _take_cursor(args)
    if not args.remaining:
        return _scanned(ctx, *ctx.db.slots.scan(cursor, SCAN_COUNT))
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
    following, found = ctx.db.slots.scan(
        cursor, count if count < SCAN_COUNT_MAX else SCAN_COUNT_MAX
    )
    if pattern is not None:
        matches = matcher(pattern)
        found = [key for key in found if matches(key)]
    if wanted_type is not None:
        found = [key for key in found if type_name(ctx.db.get(key)) == wanted_type]
    return _scanned(ctx, following, found)


def _scanned(ctx: Context, following: int, found: list[bytes]) -> list[object]:
    return [b"%d" % following if following else CURSOR_START, alive(ctx.db, found)]


@generic_command(
    "RANDOMKEY",
    "readonly request_policy:all_shards response_policy:special nondeterministic_output",
)
def randomkey(ctx: Context[DatabasesHost], args: Args) -> object:
    """Returns a random key name from the database.

    The reply is null if the database is empty."""
    if ctx.keyspace.hidden_slots:
        return _random_visible(ctx)
    while (key := ctx.db.key_at(ctx.server.random_number())) is not None:
        # The look-up deletes an expired key, unless changes are not allowed now.
        if ctx.db.get(key) is not None or not ctx.keyspace.may_delete:
            return key
    return None


def _random_visible(ctx: Context[DatabasesHost]) -> bytes | None:
    """A random key that is in no hidden slot. If nearly all are, the first one that is found."""
    slots, hidden = ctx.db.slots, ctx.keyspace.hidden_slots
    for _ in range(RANDOM_TRIES):
        key = ctx.db.key_at(ctx.server.random_number())
        if key is not None and alive(ctx.db, [key]):
            return key
    for slot in slots.used_cluster_slots():
        if slot not in hidden and (found := alive(ctx.db, slots.keys_in(slot, RANDOM_TRIES))):
            return found[0]
    return None


@command("DBSIZE", "readonly fast request_policy:all_shards response_policy:agg_sum")
def dbsize(ctx: Context, args: Args) -> object:
    """Returns the number of keys in the database.

    Expired keys count until they are deleted."""
    return visible_count(ctx.db)


# ---------------------------------------------------------------- flushing


@effect(b"FLUSHDB", keys=())
def apply_flushdb(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    flush(keyspace.databases[db_index])


@effect(b"FLUSHALL", keys=())
def apply_flushall(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    for db in keyspace.databases:
        flush(db)


def _flush(args: Args, databases: list[Database]) -> int:
    """Remove all keys of these databases; returns their number."""
    if not args.option(b"ASYNC"):
        args.option(b"SYNC")
    args.finish()
    return sum(flush(db) for db in databases)


def _flushed(ctx: Context, name: bytes) -> tuple[bytes, ...]:
    """The effect of a flush. While slots are hidden it names the others: what it means for one slot
    does not depend on which ones are hidden where it is read."""
    hidden = ctx.keyspace.hidden_slots
    if not hidden:
        return (name,)
    return FLUSHSLOTS, ranges_text(ranges_of(set(range(CLUSTER_SLOTS)) - hidden))


@command(
    "FLUSHDB [flush-type: ASYNC | SYNC]",
    "write audited removes request_policy:all_shards response_policy:all_succeeded @dangerous",
    complexity="O(N), N the number of keys in the database",
)
def flushdb(ctx: Context, args: Args) -> object:
    """Removes all keys from the current database.

    The reply is OK. ASYNC and SYNC are the same here."""
    removed = _flush(args, [ctx.db])
    if removed:
        ctx.changed_databases(*_flushed(ctx, b"FLUSHDB"), count=removed, db_index=ctx.db.index)
    return OK


@command(
    "FLUSHALL [flush-type: ASYNC | SYNC]",
    "write audited removes request_policy:all_shards response_policy:all_succeeded @dangerous",
    complexity="O(N), N the number of keys in all databases",
)
def flushall(ctx: Context[DatabasesHost], args: Args) -> object:
    """Removes all keys from all databases.

    The reply is OK. ASYNC and SYNC make no difference here. With a journal, the keys are in
    it until the next rewrite or snapshot. Without one, if save points are set, an empty snapshot
    replaces the last one immediately, unless a snapshot is being written.
    """
    removed = _flush(args, ctx.keyspace.databases)
    # A flush of nothing is not recorded: the last flush in the journal is one that removed keys.
    ctx.changed_databases(*(_flushed(ctx, b"FLUSHALL") if removed else ()), count=removed + 1)
    # Without a journal, a start would load the keys again. With one, a new base would remove the
    # frames from which the keys can be restored. Not inside a transaction, whose effects must stay
    # in one frame.
    config = ctx.server.config
    if ctx.may_block and config.shown("appendonly") == "no" and config.shown("save"):
        try:
            ctx.server.snapshots.save()
        except CommandError:
            pass  # logged already
        except Exception as error:  # an error reply would say that the keys are still there
            ctx.server.log(f"the snapshot after FLUSHALL has failed: {error!r}")
    return OK


# ---------------------------------------------------------------- swapping


@effect(b"SWAPDB", keys=())
def apply_swapdb(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """SWAPDB a b: exchange the keys of two databases."""
    swap_databases(keyspace, int(words[0]), int(words[1]))


def _take_index(args: Args, which: str) -> int:
    refusal = f"ERR invalid {which} DB index"
    number = args.take_int_or(refusal)
    if not INT32_MIN <= number <= INT32_MAX:
        raise CommandError(refusal)
    return number


@command(
    "SWAPDB index1 index2",
    "write fast audited @dangerous",
    since="4.0.0",
    complexity="O(N), N the number of keys in the two databases",
)
def swapdb(ctx: Context, args: Args) -> object:
    """Swaps two databases.

    The reply is OK. Clients stay in the database that they selected and find the other database's
    keys there. Readers blocked on a key are served from the keys that are now in their database.
    """
    if ctx.keyspace.clustered:
        raise CommandError(NOT_IN_CLUSTER % "SWAPDB")
    first, second = _take_index(args, "first"), _take_index(args, "second")
    databases = range(len(ctx.keyspace.databases))
    if first not in databases or second not in databases:
        raise CommandError(DB_OUT_OF_RANGE)
    effect = (b"SWAPDB", first, second) if first != second else ()
    if effect:
        swap_databases(ctx.keyspace, first, second)
    ctx.changed_databases(*effect, count=1)
    return OK
