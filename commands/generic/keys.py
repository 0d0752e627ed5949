"""Commands on single keys of any type: delete, rename, copy, move, inspect.

All changes use the methods of the database, which take care of expiry, watchers, waiting readers
and a running capture; this module has Redis' syntax, error texts and events. A deletion records the
keys that existed.

A copy of a stream shares its blocks with the original, because sealed blocks never change; its cost
is a walk over the blocks and the groups' pending entries. It is another stream with an incarnation
of its own, which the effect names. A renamed stream keeps its incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.commands.engine.evicting import record_passes
from millstream.commands.generic.value_effects import DEL
from millstream.commands.runtime.arguments import Args, parse_integer
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.table.containers import Container
from millstream.commands.table.registry import CommandGroup
from millstream.errors import NO_SUCH_KEY, SYNTAX, CommandError
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.database import Appended, Database, Sum
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

command = CommandGroup("generic", "@keyspace")

Value = bytes | Stream

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EMBEDDED_MAX_BYTES = 41  # of key and string together; longer strings are `raw` for OBJECT ENCODING

NONE, STRING, STREAM = Simple(b"none"), Simple(b"string"), Simple(b"stream")

NOT_IN_CLUSTER = "ERR %s is not allowed in cluster mode"
NO_COPY_IN_CLUSTER = "ERR Copying to another database is not allowed in cluster mode"
SAME_OBJECT = "ERR source and destination objects are the same"
DB_OUT_OF_RANGE = "ERR DB index is out of range"
INT32_RANGE = f"ERR value is out of range, value must between {INT32_MIN} and {INT32_MAX}"
NO_FREQUENCIES = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that "
    "when switching between policies at runtime LRU and LFU data will take some time to adjust."
)


# ---------------------------------------------------------------- shared with other modules


def look_up(ctx: Context, key: bytes) -> Value | None:
    """The value at a key for a command that reads it: a use of the key, counted as hit or miss."""
    value = ctx.db.read(key)
    if value is None:
        ctx.notify(b"keymiss", key)
    return value


def look_up_no_touch(ctx: Context, key: bytes) -> Value | None:
    """Like `look_up`, for commands that do not count as a use of the key."""
    value = ctx.db.get(key)
    ctx.count_look_up(key, value is not None)
    return value


def find(ctx: Context, key: bytes) -> Value | None:
    """The value at a key for a command that will change it: a use of the key, not counted."""
    return ctx.db.use(key)


def type_name(value: Value | None) -> Simple:
    """The reply to TYPE: ``string``, ``stream`` or ``none``."""
    if value is None:
        return NONE
    return STRING if isinstance(value, bytes) else STREAM


def tell_overwritten(
    ctx: Context, key: bytes, old: Value, new: Value, db_index: int | None = None
) -> None:
    """Send the events of a value that was replaced."""
    ctx.notify(b"overwritten", key, db_index)
    if type_name(old) != type_name(new):
        ctx.notify(b"type_changed", key, db_index)


def alive(db: Database, keys: list[bytes]) -> list[bytes]:
    """The keys that exist, without those in hidden slots; expired ones are deleted."""
    hidden = db.keyspace.hidden_slots
    if hidden:
        keys = [key for key in keys if cluster_slot_of(key) not in hidden]
    if not db.expiries:
        return keys
    return [key for key in keys if db.get(key) is not None]


def delete_keys(ctx: Context, keys: Iterable[bytes]) -> int:
    """Delete keys, record that and send the events; returns the number of keys that existed."""
    gone = [key for key in keys if ctx.db.delete(key)]
    if gone:
        ctx.changed(DEL, *gone, event=None, count=len(gone))
        for key in gone:
            ctx.notify(b"del", key)
    return len(gone)


def take_database(ctx: Context, args: Args, refusal: str = "") -> Database:
    """Take the number of a database; Redis' errors when it is invalid. In a cluster, `refusal` is
    the error for another one than database 0."""
    number = args.take_int()
    if not INT32_MIN <= number <= INT32_MAX:
        raise CommandError(INT32_RANGE)
    if refusal and number and ctx.keyspace.clustered:
        raise CommandError(refusal)
    if not 0 <= number < len(ctx.keyspace.databases):
        raise CommandError(DB_OUT_OF_RANGE)
    return ctx.keyspace.databases[number]


# ---------------------------------------------------------------- deleting and inspecting


@command(
    "DEL key [key ...]",
    "write hot removes request_policy:multi_shard response_policy:agg_sum",
    complexity="O(N), N the number of keys",
    keys="RM delete",
)
def del_(ctx: Context, args: Args) -> object:
    """Deletes one or more keys.

    The reply is the number of keys that existed. The groups and pending entries of a stream are
    deleted with it.
    """
    keys = ctx.take_present(args)
    return delete_keys(ctx, keys) if keys else 0


@command(
    "UNLINK key [key ...]",
    "write fast hot removes request_policy:multi_shard response_policy:agg_sum",
    since="4.0.0",
    complexity="O(N), N the number of keys",
    keys="RM delete",
)
def unlink(ctx: Context, args: Args) -> object:
    """Deletes one or more keys.

    Does the same as DEL, because both free the memory of a large stream in small steps.
    """
    keys = ctx.take_present(args)
    return delete_keys(ctx, keys) if keys else 0


@command(
    "EXISTS key [key ...]",
    "readonly fast hot request_policy:multi_shard response_policy:agg_sum",
    complexity="O(N), N the number of keys",
    keys="RO",
)
def exists(ctx: Context, args: Args) -> object:
    """Determines whether one or more keys exist.

    The reply is the number of keys that exist; a key given twice counts twice."""
    return ctx.count_existing(args)


@command(
    "TOUCH key [key ...]",
    "readonly fast request_policy:multi_shard response_policy:agg_sum",
    since="3.2.1",
    complexity="O(N), N the number of keys",
    keys="RO",
)
def touch(ctx: Context, args: Args) -> object:
    """Returns the number of existing keys out of those specified after updating the time
    they were last accessed.

    The reply is the number of keys that exist. It updates access times even for a client with
    CLIENT NO-TOUCH on.
    """
    count = 0
    for key in args.rest():
        if look_up_no_touch(ctx, key) is not None:
            ctx.db.touch(key)
            count += 1
    return count


@command("TYPE key", "readonly fast hot", keys="RO")
def type_(ctx: Context, args: Args) -> object:
    """Determines the type of value stored at a key.

    The reply is `string`, `stream`, or `none` if the key does not exist."""
    return type_name(ctx.take_value(args))


# ---------------------------------------------------------------- renaming and moving


@effect(b"RENAME", keys=((1, 0), (3, 2)))
def apply_rename(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """RENAME key db new-key: move the value and its expiry; replaces any value at the new key."""
    key, to_db, new_key = words
    db = keyspace.databases[db_index]
    if db.get(key) is None:
        raise ValueError(f"RENAME of a key that is not there: {key!r}")
    db.rename(key, keyspace.databases[int(to_db)], new_key)


def move_value(ctx: Context, key: bytes, to: Database, new_key: bytes) -> None:
    """Rename and record; `key` exists, and is not the new key."""
    # The old value is removed first, so this always is a new key.
    ctx.notify(b"new", new_key, to.index)
    ctx.db.rename(key, to, new_key)
    ctx.changed(b"RENAME", key, to.index, new_key, event=None)


def _rename(ctx: Context, args: Args, *, only_new: bool) -> bool:
    """Rename a key; return whether it was renamed: not if the new name is the same, or with
    only_new exists."""
    key, new_key = args.take(), args.take()
    value = find(ctx, key)
    if value is None:
        raise CommandError(NO_SUCH_KEY)
    if key == new_key:
        return False
    old = ctx.db.get(new_key)
    if old is not None and only_new:
        return False
    move_value(ctx, key, ctx.db, new_key)
    ctx.notify(b"rename_from", key)
    ctx.notify(b"rename_to", new_key)
    if old is not None:
        tell_overwritten(ctx, new_key, old, value)
    return True


@command("RENAME key newkey", "write", keys="RW access delete, OW update")
def rename(ctx: Context, args: Args) -> object:
    """Renames a key and overwrites the destination.

    The reply is OK. The expiry moves with the key. A stream stays the same stream, with its groups,
    pending entries and incarnation. Readers blocked on the new key are served; an XREADGROUP
    blocked on the old key ends with an error.
    """
    _rename(ctx, args, only_new=False)
    return OK


@command("RENAMENX key newkey", "write fast", keys="RW access delete, OW insert")
def renamenx(ctx: Context, args: Args) -> object:
    """Renames a key only when the target key name doesn't exist.

    The reply is 1, or 0 if the new key exists."""
    return int(_rename(ctx, args, only_new=True))


@command("MOVE key db", "write fast", keys="RW access update")
def move(ctx: Context, args: Args) -> object:
    """Moves a key to another database.

    The reply is 1, or 0 if the key does not exist here or already exists there. The expiry moves
    with the key.
    """
    if ctx.keyspace.clustered:
        raise CommandError(NOT_IN_CLUSTER % "MOVE")
    key = args.take()
    to = take_database(ctx, args)
    if to is ctx.db:
        raise CommandError(SAME_OBJECT)
    if find(ctx, key) is None or to.get(key) is not None:
        return 0
    move_value(ctx, key, to, key)
    ctx.notify(b"move_from", key)
    ctx.notify(b"move_to", key, to.index)
    return 1


# ---------------------------------------------------------------- copying


def duplicate(value: Value, incarnation: int, now_ms: int) -> Value:
    """An independent value with the same content; a stream with another incarnation."""
    if isinstance(value, bytes):
        return value
    from millstream.storage.streams.stream_snapshot import copy_stream

    return copy_stream(value, incarnation, now_ms)


@effect(b"COPY", keys=((1, 0), (3, 2)))
def apply_copy(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """COPY key db new-key incarnation: copy the value and its expiry; replaces any value at the new
    key."""
    key, to_db, new_key, incarnation = words
    db, to = keyspace.databases[db_index], keyspace.databases[int(to_db)]
    value = db.get(key)
    if value is None:
        raise ValueError(f"COPY of a key that is not there: {key!r}")
    to.set(new_key, duplicate(value, int(incarnation), keyspace.steady_ms))
    keyspace.incarnation = max(keyspace.incarnation, int(incarnation))
    to.set_expiry(new_key, db.expiry_ms(key))


def _take_copy_options(ctx: Context, args: Args) -> tuple[Database, bool]:
    """(the database to copy to, whether to replace what is there)."""
    to, replace = ctx.db, False
    while args.remaining:
        if args.option(b"REPLACE"):
            replace = True
        elif args.remaining >= 2 and args.option(b"DB"):
            to = take_database(ctx, args)
        else:
            raise CommandError(SYNTAX)
    if ctx.keyspace.clustered and to is not ctx.db:
        raise CommandError(NO_COPY_IN_CLUSTER)
    return to, replace


@command(
    "COPY source destination [DB destination-db] [REPLACE]",
    "write denyoom",
    since="6.2.0",
    complexity="O(1) for strings; for a stream O(N), N its blocks, groups and pending entries",
    keys="RO access, OW update",
)
def copy(ctx: Context, args: Args) -> object:
    """Copies the value of a key to a new key.

    The reply is 1, or 0 if the source does not exist, or if the destination exists and REPLACE is
    not given. The copy has the same expiry. The copy of a stream has all entries, groups, consumers
    and pending entries; it shares the memory of the entries, and has its own `incarnation` in
    TINFO.
    """
    key, new_key = args.take(), args.take()
    to, replace = _take_copy_options(ctx, args)
    if to is ctx.db and key == new_key:
        raise CommandError(SAME_OBJECT)
    value = look_up(ctx, key)
    if value is None:
        return 0
    old = to.get(new_key)
    if old is not None and not replace:
        return 0
    incarnation = 0
    if isinstance(value, Stream):
        record_passes(ctx, key, value)  # the copy continues after them
        incarnation = ctx.keyspace.next_incarnation(ctx.steady_ms)
    to.set(new_key, duplicate(value, incarnation, ctx.steady_ms))
    # The old value is removed first, so this always is a new key.
    ctx.notify(b"new", new_key, to.index)
    to.set_expiry(new_key, ctx.db.expiry_ms(key))
    ctx.changed(b"COPY", key, to.index, new_key, incarnation, event=None)
    ctx.notify(b"copy_to", new_key, to.index)
    if old is not None:
        tell_overwritten(ctx, new_key, old, value, to.index)
    return 1


# ---------------------------------------------------------------- OBJECT

object_command = Container(
    "OBJECT",
    "generic",
    "A container for object introspection commands.",
    since="2.2.3",
    tags="@keyspace",
)

OBJECT_HELP = """\
OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
ENCODING <key>
    Return the kind of internal representation used in order to store the value
    associated with a <key>.
FREQ <key>
    Return the access frequency index of the <key>. The returned integer is
    proportional to the logarithm of the recent access frequency of the key.
IDLETIME <key>
    Return the idle time of the <key>, that is the approximated number of
    seconds elapsed since the last access to the key.
REFCOUNT <key>
    Return the number of references of the value associated with the specified
    <key>.
HELP
    Prints this help."""


@object_command("HELP", "loading stale", since="6.2.0")
def object_help(ctx: Context, args: Args) -> object:
    """Returns helpful text about the different subcommands."""
    return [Simple(line.encode()) for line in OBJECT_HELP.splitlines()]


def _object_at(ctx: Context, key: bytes) -> Value | None:
    """The value at a key. As in Redis, that counts as a look-up, but not as a use of the key, and
    sends no keymiss event."""
    value = ctx.db.get(key)
    ctx.count_look_up(key, value is not None, reports_miss=False)
    return value


def encoding_name(key: bytes, value: Value) -> bytes:
    """The reply to OBJECT ENCODING."""
    if isinstance(value, Stream):
        return b"stream"
    if isinstance(value, Appended):
        return b"raw"
    if not isinstance(value, Sum) and parse_integer(value) is not None:
        return b"int"
    return b"embstr" if len(key) + len(value) <= EMBEDDED_MAX_BYTES else b"raw"


@object_command("ENCODING key", "readonly nondeterministic_output", keys="RO")
def object_encoding(ctx: Context, args: Args) -> object:
    """Returns the internal encoding of a Redis object.

    The reply is `stream`; for a string `int`, `embstr` (up to 41 bytes with its key) or `raw`, as
    in Redis. Null if the key does not exist.
    """
    key = args.take()
    value = _object_at(ctx, key)
    return None if value is None else encoding_name(key, value)


@object_command("FREQ key", "readonly nondeterministic_output", since="4.0.0", keys="RO")
def object_freq(ctx: Context, args: Args) -> object:
    """Returns the logarithmic access frequency counter of a Redis object.

    The reply is always an error for a key that exists: keys are not evicted, so there are no
    frequencies."""
    if _object_at(ctx, args.take()) is None:
        return None
    raise CommandError(NO_FREQUENCIES)


@object_command("IDLETIME key", "readonly nondeterministic_output", keys="RO")
def object_idletime(ctx: Context, args: Args) -> object:
    """Returns the time since the last access to a Redis object.

    The reply is the number of seconds since the key was last read or written; null if it does not
    exist."""
    key = args.take()
    return None if _object_at(ctx, key) is None else ctx.db.idle_s(key)


@object_command("REFCOUNT key", "readonly nondeterministic_output", keys="RO")
def object_refcount(ctx: Context, args: Args) -> object:
    """Returns the reference count of a value of a key.

    The reply is 1, because keys do not share values; null if the key does not exist."""
    return None if _object_at(ctx, args.take()) is None else 1
