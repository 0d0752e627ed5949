"""DUMP and RESTORE: values in Redis' format, to move them between servers.

The dump of a long stream is made in turns, and sent when its length is known; the dump of a long
string is sent while its checksum is computed. RESTORE also makes the value in turns, and changes
the key only when the value is complete: a malformed payload changes nothing. The journal stores a
stream's payload unchanged; reading it again at start gives the same stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

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
from millstream.commands.runtime.replies import OK, Again, Sliced
from millstream.commands.runtime.stream_effects import IDMPSET
from millstream.commands.table.registry import CommandGroup
from millstream.errors import SYNTAX, CommandError, PayloadError
from millstream.storage.dump import rdb
from millstream.storage.dump.primitives import COMPRESSED_MAX_BYTES, string_head
from millstream.storage.dump.rdb_bytes import crc64
from millstream.storage.dump.stream_reading import STREAM_4
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.idempotence import Window
from millstream.storage.streams.stream import Stream

command = CommandGroup("generic", "@keyspace")

BUSY_KEY = "BUSYKEY Target key name already exists."
INVALID_TTL = "ERR Invalid TTL value, must be >= 0"
INVALID_IDLE_TIME = "ERR Invalid IDLETIME value, must be >= 0"
INVALID_FREQUENCY = "ERR Invalid FREQ value, must be >= 0 and <= 255"
WRONG_CHECKSUM = "ERR DUMP payload version or checksum are wrong"
BAD_FORMAT = "ERR Bad data format"
FREQUENCY_MAX = 255
TTL_AT, PAYLOAD_AT, OPTIONS_AT = 2, 3, 4  # indexes of the words of RESTORE

# The maximum size of the effects of one RESTORE, besides the payload.
EFFECTS_MOST = 3

# Bytes made or sent in one turn; a step costs more than its bytes.
TURN_BYTES = 16_384
STEP_BYTES = 1024
SLICE_BYTES = 262_144
# Steps of reading a payload in one turn: each is at most about a quarter of a millisecond's work.
TURN_STEPS = 8


# ---------------------------------------------------------------- DUMP


class SlicedDump(Sliced):
    """A dump made in steps. All of it is made before the first byte is sent, because the length of
    the bulk string comes first."""

    def __init__(self, source: rdb.StreamDump | rdb.StringDump) -> None:
        self._steps = source.steps()
        self._version = source.version
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0
        self._crc = 0
        self._is_whole = False

    def prepare(self) -> bool:
        """Continue for a turn; False when the dump is complete."""
        work_bytes = 0
        while work_bytes < TURN_BYTES:
            piece = next(self._steps, None)
            if piece is None:
                self._finish()
                return False
            self._add(piece)
            work_bytes += len(piece) + STEP_BYTES
        return True

    def _add(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size_bytes += len(piece)
            self._crc = crc64(piece, self._crc)

    def _finish(self) -> None:
        if not self._is_whole:
            self._is_whole = True
            self._add(rdb.footer(self._version, self._crc))
            self._pieces.appendleft(b"$%d\r\n" % self._size_bytes)
            self._pieces.append(b"\r\n")

    def whole(self) -> bytes:
        """The whole dump at once, without the length before it."""
        while self.prepare():
            pass
        self._pieces.popleft()
        self._pieces.pop()
        return b"".join(self._pieces)

    def next_slice(self) -> bytes:
        taken, size_bytes = [], 0
        while self._pieces and size_bytes < SLICE_BYTES:
            taken.append(self._pieces.popleft())
            size_bytes += len(taken[-1])
        return b"".join(taken)


class SlicedStringDump(Sliced):
    """The dump of a long string, which is sent without a copy: slice by slice, the checksum
    last."""

    def __init__(self, text: bytes) -> None:
        self._head = bytes((rdb.STRING,)) + string_head(text)
        self._text = text
        self._at = -1  # before the head
        self._crc = crc64(self._head)

    def next_slice(self) -> bytes:
        if self._at < 0:
            self._at = 0
            size_bytes = len(self._head) + len(self._text) + rdb.FOOTER_BYTES
            return b"$%d\r\n" % size_bytes + self._head
        if self._at > len(self._text):
            return b""
        piece = self._text[self._at : self._at + SLICE_BYTES]
        self._at += SLICE_BYTES
        self._crc = crc64(piece, self._crc)
        if self._at <= len(self._text):
            return piece
        return piece + rdb.footer(rdb.StringDump.version, self._crc) + b"\r\n"


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
    value = look_up(ctx, args.take())
    if value is None:
        return None
    if isinstance(value, Stream):
        made = SlicedDump(rdb.StreamDump(value, ctx.wall_ahead_ms))
        return made if made.prepare() else made.whole()
    text = bytes(value)
    if len(text) > COMPRESSED_MAX_BYTES:
        return SlicedStringDump(text)
    return SlicedDump(rdb.StringDump(text)).whole()


# ---------------------------------------------------------------- RESTORE


@effect(b"RESTORE")
def apply_restore(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """RESTORE key incarnation payload wall-ahead-ms now-ms: a stream, which replaces any value and
    its expiry. The last words are how far the wall clock was ahead of the steady clock, and the
    steady clock's time."""
    key, incarnation, payload, *clocks = words
    wall_ahead_ms = int(clocks[0]) if clocks else 0
    now_ms = int(clocks[1]) if len(clocks) > 1 else INT64_MAX
    loaded = rdb.whole(rdb.load(payload, int(incarnation), now_ms, wall_ahead_ms))
    keyspace.databases[db_index].set(key, loaded.value)
    keyspace.incarnation = max(keyspace.incarnation, int(incarnation))


@dataclass(slots=True, eq=False, repr=False)
class RestoreOptions:
    """The options after the payload of RESTORE."""

    replace: bool = False
    absolute_ttl: bool = False
    idle_s: int | None = None
    frequency: int | None = None


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


class RestoreJob:
    """Makes the value of a RESTORE, over several turns if necessary."""

    def __init__(
        self, payload: bytes, incarnation: int, now_ms: int, wall_ahead_ms: int = 0
    ) -> None:
        """`now_ms` is of the steady clock; the wall clock is ahead of it by `wall_ahead_ms`."""
        self.payload = payload
        self.wall_ahead_ms = wall_ahead_ms
        self.now_ms = now_ms
        self._steps = self._all_steps(incarnation, now_ms)

    def _all_steps(self, incarnation: int, now_ms: int) -> Generator[None, None, rdb.Loaded]:
        if not (yield from rdb.is_intact(self.payload)):
            raise CommandError(WRONG_CHECKSUM)
        try:
            return (yield from rdb.load(self.payload, incarnation, now_ms, self.wall_ahead_ms))
        except rdb.OtherTypeError as error:
            raise CommandError(f"{BAD_FORMAT}: {error}") from error
        except PayloadError as error:
            raise CommandError(BAD_FORMAT) from error

    def run(self, most_steps: int) -> rdb.Loaded | None:
        """Do some steps; return the value when all are done. CommandError for an invalid
        payload."""
        try:
            for _ in range(most_steps):
                next(self._steps)
        except StopIteration as done:
            loaded: rdb.Loaded = done.value
            return loaded
        return None

    def finish(self) -> rdb.Loaded:
        return rdb.whole(self._steps)


class LaterArgs(OwnedArgs):
    """The words of a RESTORE that continues in a later turn; the payload is in its job."""

    job: RestoreJob


def _loaded(ctx: Context, args: Args, place: int) -> tuple[rdb.Loaded, RestoreJob] | Again:
    """The value of the payload at an index of the words, with the job that made it; or Again if the
    command must be called again."""
    if isinstance(args, LaterArgs):
        job = args.job
    else:
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
    ctx.db.set(key, value)
    if not isinstance(value, Stream):
        ctx.changed(SET, key, value, event=b"new")
        return
    words = (b"RESTORE", key, value.incarnation, job.payload, job.wall_ahead_ms, job.now_ms)
    ctx.changed(*words, event=b"new")
    if kind < STREAM_4:
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
