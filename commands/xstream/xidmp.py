"""Idempotent messages, which are added once however often they are sent: XADD IDMP and IDMPAUTO,
XCFGSET.

A producer's message has a name (the idempotent ID, iid): chosen by the producer, or with IDMPAUTO
computed from the fields and values in any order. A stream stores the names in a `Window`
(storage/streams/idempotence). The reply to a repeat is the first ID, even if that entry was
removed. A repeat changes only a counter: no entry, no trimming, no event.

A name's time begins at the entry's milliseconds, as in Redis, but at the latest now: otherwise
names would be kept too long in a stream whose IDs are ahead of the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.engine.appending import window_of
from millstream.commands.runtime.applying import id_of, stream_of
from millstream.commands.runtime.effects import effect
from millstream.commands.runtime.replies import OK
from millstream.commands.table.registry import command
from millstream.errors import NO_SUCH_KEY, SYNTAX, CommandError
from millstream.ids import Id
from millstream.storage.streams.idempotence import DURATION_S_MAX, MAXSIZE_MAX

if TYPE_CHECKING:
    from millstream.commands.runtime.arguments import Args
    from millstream.commands.runtime.context import Context
    from millstream.commands.runtime.replies import Simple
    from millstream.storage.streams.keyspace import Keyspace
    from millstream.storage.streams.stream import Stream

TWICE = "ERR syntax error, IDMP/IDMPAUTO specified multiple times"
NO_PRODUCER = "ERR syntax error, IDMP requires a non-empty producer ID"
NO_PRODUCER_AUTO = "ERR syntax error, IDMPAUTO requires a non-empty producer ID"
NO_IID = "ERR syntax error, IDMP requires a non-empty idempotent ID"
NOTHING_TO_SET = "ERR At least one parameter must be specified"
BAD_DURATION = f"ERR IDMP-DURATION must be between 1 and {DURATION_S_MAX} seconds"
BAD_MAXSIZE = f"ERR IDMP-MAXSIZE must be between 1 and {MAXSIZE_MAX} entries"
ENTRY_GONE = "ERR No such message in stream"
OTHER_ENTRY = "ERR IID already exists for this producer with a different stream ID"

ROUND_MS = 100
NAME_BYTES = 16  # of a name computed from an entry's contents


# ---------------------------------------------------------------- for XADD

Message = tuple[bytes, bytes | None]  # producer and iid; None: computed from the entry


def take_message(args: Args, taken: Message | None) -> Message | None:
    """Take IDMP or IDMPAUTO if the next argument is one of them and its operands follow; else None.
    `taken` is the message that was taken before."""
    following = args.remaining - 1
    if following >= 2 and args.option(b"IDMP"):
        auto = False
    elif following >= 1 and args.option(b"IDMPAUTO"):
        auto = True
    else:
        return None
    if taken is not None:
        raise CommandError(TWICE)
    producer = args.take()
    if not producer:
        raise CommandError(NO_PRODUCER_AUTO if auto else NO_PRODUCER)
    iid = None if auto else args.take()
    if iid == b"":
        raise CommandError(NO_IID)
    return producer, iid


def name_of(fields: list[bytes]) -> bytes:
    """A message's name computed from its fields and values, in any order."""
    from hashlib import blake2b

    pairs = sorted(
        b"%d %d %b%b" % (len(field), len(value), field, value)
        for field, value in zip(fields[::2], fields[1::2], strict=True)
    )
    return blake2b(b"".join(pairs), digest_size=NAME_BYTES).digest()


def repeated_id(ctx: Context, key: bytes, stream: Stream, producer: bytes, iid: bytes) -> Id | None:
    """The ID of the earlier entry of this message, None if it is new. A repeat is counted."""
    window = stream.idempotence
    found = None if window is None else window.find(producer, iid, ctx.now_ms)
    if window is None or found is None:
        return None
    window.duplicates += 1
    ctx.changed(b"IDMPREPEAT", key, event=None)
    return Id(*found)


# ---------------------------------------------------------------- XCFGSET, XIDMPRECORD


@command("XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE entries]", "write fast", since="8.6.0")
def xcfgset(ctx: Context, args: Args) -> Simple:
    """Sets how many messages of each producer a stream remembers, and for how long.

    New values clear the messages that the stream remembers. Above 10,000 producers, the stream
    forgets the producer that has been idle longest.
    """
    key = args.take()
    stream = ctx.write_stream(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    duration_s = maxsize = None
    while args.remaining:
        if _is_given(args, b"IDMP-DURATION", duration_s):
            duration_s = args.take_int()
            if not 1 <= duration_s <= DURATION_S_MAX:
                raise CommandError(BAD_DURATION)
        elif _is_given(args, b"IDMP-MAXSIZE", maxsize):
            maxsize = args.take_int()
            if not 1 <= maxsize <= MAXSIZE_MAX:
                raise CommandError(BAD_MAXSIZE)
        else:
            raise CommandError(SYNTAX)
    if duration_s is None and maxsize is None:
        raise CommandError(NOTHING_TO_SET)
    window = window_of(stream)
    window.configure(
        window.duration_s if duration_s is None else duration_s,
        window.maxsize if maxsize is None else maxsize,
    )
    ctx.changed(b"IDMPSET", key, window.duration_s, window.maxsize, event=None)
    return OK


def _is_given(args: Args, word: bytes, before: int | None) -> bool:
    """Take an option's word if a value follows it; `before` is its earlier value in this
    request."""
    if args.remaining < 2 or not args.option(word):
        return False
    if before is not None:
        raise CommandError(f"ERR {word.decode()} specified multiple times")
    return True


@command("XIDMPRECORD key pid iid stream-id", "write denyoom fast", since="8.6.2")
def xidmprecord(ctx: Context, args: Args) -> Simple:
    """Records that an existing entry came from a producer's message."""
    key, producer, iid = args.take(), args.take(), args.take()
    entry_id = args.take_entry_id()
    if not producer:
        raise CommandError("ERR producer ID must be non-empty")
    if not iid:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = ctx.write_stream(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    if not stream.has_entry(*entry_id):
        raise CommandError(ENTRY_GONE)
    window = window_of(stream)
    known = window.find(producer, iid, ctx.now_ms)
    if known is not None and known != entry_id:
        raise CommandError(OTHER_ENTRY)
    if known is None:
        # Redis removes expired names ten times per second, so it knows even the name of an old
        # entry for a moment.
        oldest_ms = max(0, ctx.now_ms - 1000 * window.duration_s + ROUND_MS)
        since_ms = max(oldest_ms, min(entry_id[0], ctx.now_ms))
        window.add(producer, iid, entry_id, since_ms)
        ctx.changed(b"IDMP", key, producer, iid, bytes(Id(*entry_id)), since_ms, event=None)
    return OK


# ---------------------------------------------------------------- effects


@effect(b"IDMPSET")
def apply_idmpset(keyspace: Keyspace, db: int, words: list[bytes]) -> None:
    """IDMPSET key duration-s maxsize: set the window's bounds; a change removes all names."""
    window_of(stream_of(keyspace, db, words[0])).configure(int(words[1]), int(words[2]))


@effect(b"IDMP")
def apply_idmp(keyspace: Keyspace, db: int, words: list[bytes]) -> None:
    """IDMP key producer iid id ms: store the name of the message of this entry."""
    window_of(stream_of(keyspace, db, words[0])).add(
        words[1], words[2], id_of(words[3]), int(words[4])
    )


@effect(b"IDMPREPEAT")
def apply_idmprepeat(keyspace: Keyspace, db: int, words: list[bytes]) -> None:
    """IDMPREPEAT key: count a repeated message."""
    window_of(stream_of(keyspace, db, words[0])).duplicates += 1
