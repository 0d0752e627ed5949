"""DUMP and RESTORE: values in Redis' format, to move them between servers.

The dump of a long stream is made in turns, and sent when its length is known; the dump of a long
string is sent while its checksum is computed. RESTORE also makes the value in turns, and changes
the key only when the value is complete: a malformed payload changes nothing. The journal stores a
stream's payload unchanged; reading it again at start gives the same stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.generic.expiry import is_due, let_expire
from millstream.commands.generic.keys import (
    INT64_MAX,
    Value,
    delete_keys,
    look_up,
    tell_overwritten,
)
from millstream.commands.generic.value_effects import SET
from millstream.commands.runtime.arguments import Args, OwnedArgs
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES, effect
from millstream.commands.runtime.replies import OK, Again
from millstream.commands.runtime.stream_effects import IDMPSET
from millstream.commands.table.registry import CommandGroup
from millstream.errors import SYNTAX, CommandError
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.idempotence import Window
from millstream.storage.streams.stream import Stream

if TYPE_CHECKING:
    from millstream.commands.later.dumped_values import RestoreJob
    from millstream.storage.dump.rdb import Loaded

command = CommandGroup("generic", "@keyspace")

BUSY_KEY = "BUSYKEY Target key name already exists."
INVALID_TTL = "ERR Invalid TTL value, must be >= 0"
INVALID_IDLE_TIME = "ERR Invalid IDLETIME value, must be >= 0"
INVALID_FREQUENCY = "ERR Invalid FREQ value, must be >= 0 and <= 255"
FREQUENCY_MAX = 255
TTL_AT, PAYLOAD_AT, OPTIONS_AT = 2, 3, 4  # indexes of the words of RESTORE

# The maximum size of the effects of one RESTORE, besides the payload.
EFFECTS_MOST = 3

# Steps of reading a payload in one turn: each is at most about a quarter of a millisecond's work.
TURN_STEPS = 8


# ---------------------------------------------------------------- DUMP


@command(
    "DUMP key",
    "readonly nondeterministic_output",
    since="2.6.0",
    complexity="O(N), N the bytes of the value",
)
def dump(ctx: Context, args: Args) -> object:
    """Returns a serialized representation of the value stored at a key.

    The reply is the value in Redis' own format, without the key and its expiry; null if the key
    does not exist. RESTORE creates a key from it, here or in Redis.
    """
    from millstream.commands.later.dumped_values import dump_of

    value = look_up(ctx, args.take())
    if value is None:
        return None
    return dump_of(value if isinstance(value, Stream) else bytes(value), ctx.wall_ahead_ms)


# ---------------------------------------------------------------- RESTORE


@effect(b"RESTORE")
def apply_restore(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """RESTORE key incarnation payload wall-ahead-ms now-ms: a stream, which replaces any value and
    its expiry. The last words are how far the wall clock was ahead of the steady clock, and the
    steady clock's time."""
    from millstream.commands.later.dumped_values import value_of

    key, incarnation, payload, *clocks = words
    wall_ahead_ms = int(clocks[0]) if clocks else 0
    now_ms = int(clocks[1]) if len(clocks) > 1 else INT64_MAX
    value = value_of(payload, int(incarnation), now_ms, wall_ahead_ms)
    keyspace.databases[db_index].set(key, value)
    keyspace.incarnation = max(keyspace.incarnation, int(incarnation))


class RestoreOptions:
    """The options after the payload of RESTORE."""

    def __init__(self) -> None:
        self.replace = False
        self.absolute_ttl = False
        self.idle_s: int | None = None
        self.frequency: int | None = None


def _take_options(args: Args) -> RestoreOptions:
    options = RestoreOptions()
    while args.remaining:
        if args.option(b"REPLACE"):
            options.replace = True
        elif args.option(b"ABSTTL"):
            options.absolute_ttl = True
        elif args.remaining > 1 and options.frequency is None and args.option(b"IDLETIME"):
            options.idle_s = args.take_int()
            if options.idle_s < 0:
                raise CommandError(INVALID_IDLE_TIME)
        elif args.remaining > 1 and options.idle_s is None and args.option(b"FREQ"):
            options.frequency = args.take_int()
            if not 0 <= options.frequency <= FREQUENCY_MAX:
                raise CommandError(INVALID_FREQUENCY)
        else:
            raise CommandError(SYNTAX)
    return options


class LaterArgs(OwnedArgs):
    """The words of a RESTORE that continues in a later turn; the payload is in its job."""

    job: RestoreJob


def _loaded(ctx: Context, args: Args, place: int) -> tuple[Loaded, RestoreJob] | Again:
    """The value of the payload at an index of the words, with the job that made it; or Again if the
    command must be called again."""
    if isinstance(args, LaterArgs):
        job = args.job
    else:
        from millstream.commands.later.dumped_values import RestoreJob

        incarnation = ctx.keyspace.next_incarnation(ctx.steady_ms)
        job = RestoreJob(args[place], incarnation, ctx.steady_ms, ctx.wall_ahead_ms)
    if not ctx.may_block:
        return job.finish(), job
    loaded = job.run(TURN_STEPS)
    if loaded is not None:
        return loaded, job
    if isinstance(args, LaterArgs):
        args.pos = 1
        return Again(args)
    later = LaterArgs([b"" if i == place else args[i] for i in range(len(args))])
    later.job = job
    return Again(later)


def _require_room(ctx: Context, key: bytes, value: Value, payload: bytes) -> None:
    """CommandError when the journal has no room for the effects. Their size does not follow from
    the words of the request: a string is recorded unpacked, and a later turn has no payload."""
    value_bytes = len(payload if isinstance(value, Stream) else value)
    ctx.effects.require_room(value_bytes + EFFECTS_MOST * (len(key) + EFFECT_BYTES))


def _put(ctx: Context, key: bytes, value: Value, kind: int, job: RestoreJob) -> None:
    """Set the value and record it. The old value is removed first, so the key always is new."""
    from millstream.commands.later.dumped_values import lacks_window

    ctx.db.set(key, value)
    if not isinstance(value, Stream):
        ctx.changed(SET, key, value, event=b"new")
        return
    words = (b"RESTORE", key, value.incarnation, job.payload, job.wall_ahead_ms, job.now_ms)
    ctx.changed(*words, event=b"new")
    if lacks_window(kind):
        _set_window(ctx, key, value)


def _set_window(ctx: Context, key: bytes, stream: Stream) -> None:
    """Set the configured bounds of the idempotence window if the payload has none."""
    window = Window(ctx.keyspace.idmp_duration_s, ctx.keyspace.idmp_maxsize)
    if not window.is_blank():
        stream.idempotence = window
        words = (IDMPSET, key, window.duration_s, window.maxsize)
        ctx.changed(*words, event=None, count=0)


@command(
    "RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
    "write denyoom @dangerous",
    since="2.6.0",
    complexity="O(N), N the bytes of the value",
    keys="OW update",
)
def restore(ctx: Context, args: Args) -> object:
    """Creates a key from the serialized representation of a value.

    The reply is OK. `ttl` is in milliseconds, 0 for none; with ABSTTL it is a Unix time. An
    existing key is an error unless REPLACE is given. Readers blocked on the key are served.
    """
    key = args.take()
    args.pos = OPTIONS_AT
    options = _take_options(args)
    old = ctx.db.get(key)
    if old is not None and not options.replace:
        raise CommandError(BUSY_KEY)
    args.pos = TTL_AT
    at_ms = args.take_int()
    if at_ms < 0:
        raise CommandError(INVALID_TTL)
    if at_ms and not options.absolute_ttl:
        at_ms = min(at_ms + ctx.now_ms, INT64_MAX)
    made = _loaded(ctx, args, PAYLOAD_AT)
    if isinstance(made, Again):
        return made
    (value, kind), job = made
    if at_ms and is_due(ctx, at_ms):
        ctx.keyspace.expired_count += 1
        delete_keys(ctx, [key])
        return OK
    _require_room(ctx, key, value, job.payload)
    _put(ctx, key, value, kind, job)
    if at_ms:
        let_expire(ctx, key, at_ms, event=None, count=0)
    if options.idle_s is not None:
        ctx.db.set_idle_s(key, options.idle_s)
    ctx.notify(b"restore", key)
    if old is not None:
        tell_overwritten(ctx, key, old, value)
    return OK
