"""Idempotent messages, which are added once however often they are sent (IDMP, IDMPAUTO).

A producer's message has a name (the idempotent ID, iid): chosen by the producer, or with IDMPAUTO
computed from the fields and values in any order. A stream stores the names in a `Window`
(storage/streams/idempotence). The reply to a repeat is the first ID, even if that entry was
removed. A repeat changes only a counter: no entry, no trimming, no event.

A name's time begins at the entry's milliseconds, as in Redis, but at the latest now: otherwise
names would be kept too long in a stream whose IDs are ahead of the clock.
"""

from __future__ import annotations

import struct

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.stream_effects import IDMPREPEAT
from millstream.errors import CommandError
from millstream.ids import Id
from millstream.storage.streams.stream import Stream

TWICE = "ERR syntax error, IDMP/IDMPAUTO specified multiple times"
NO_PRODUCER = "ERR syntax error, IDMP requires a non-empty producer ID"
NO_PRODUCER_AUTO = "ERR syntax error, IDMPAUTO requires a non-empty producer ID"
NO_IID = "ERR syntax error, IDMP requires a non-empty idempotent ID"

_U64_MAX = 2**64 - 1

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
    """A message's name computed from its fields and values, in any order.

    It is that of Redis 8.6, so a message is recognized after its stream was moved from there.

    XXH3 of each pair, as two halves; their sums and exclusive ors are combined.
    """
    from xxhash import xxh3_128_intdigest

    sums, xors = [0, 0], [0, 0]  # low and high halves
    for field, value in zip(fields[::2], fields[1::2], strict=True):
        pair = xxh3_128_intdigest(field + len(field).to_bytes(8, "little") + value)
        for i, half in enumerate((pair & _U64_MAX, pair >> 64)):
            sums[i] = sums[i] + half & _U64_MAX
            xors[i] ^= half
    return struct.pack("<QQ", sums[0] ^ _rotated(xors[1]), sums[1] ^ _rotated(xors[0]))


def _rotated(number: int) -> int:
    """A number of 64 bits, rotated to the left by one bit."""
    return number << 1 & _U64_MAX | number >> 63


def repeated_id(ctx: Context, key: bytes, stream: Stream, producer: bytes, iid: bytes) -> Id | None:
    """The ID of the earlier entry of this message, None if it is new. A repeat is counted."""
    window = stream.idempotence
    found = None if window is None else window.find(producer, iid, ctx.now_ms)
    if window is None or found is None:
        return None
    window.duplicates += 1
    ctx.changed(IDMPREPEAT, key, event=None)
    return Id(*found)
