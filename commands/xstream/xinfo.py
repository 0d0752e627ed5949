"""XINFO and TINFO: information about a stream, its groups and their consumers.

These commands do not refresh a group's time to live. Expired entries and groups are not shown, even
if their timer has not run yet. Radix-tree figures are computed as for Redis' tree, which does not
exist here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.draft.tpolicy import policy_reply
from millstream.commands.engine.group_replies import StreamFields, shown_count
from millstream.commands.engine.lifecycle import live_group, live_held
from millstream.commands.engine.listings import (
    consumers_reply,
    full_groups_reply,
    groups_reply,
    live_group_count,
)
from millstream.commands.engine.ranges import first_entries
from millstream.commands.runtime.replies import MapHead, Several
from millstream.commands.table.containers import Container
from millstream.commands.table.registry import command
from millstream.errors import NO_SUCH_KEY, CommandError, shown
from millstream.ids import Id
from millstream.storage.streams.held import handed_out_id
from millstream.storage.streams.idempotence import DURATION_S, MAXSIZE, Window
from millstream.storage.streams.lineage import Lineage
from millstream.storage.streams.retention import bytes_of

if TYPE_CHECKING:
    from millstream.commands.runtime.arguments import Args
    from millstream.commands.runtime.context import Context
    from millstream.commands.runtime.replies import Encodable
    from millstream.storage.streams.stream import Stream

Fields = dict[bytes, object]
UINT64_MAX = 2**64 - 1

# Entries, and pending entries of each group and consumer, that FULL shows.
FULL_COUNT = 10
# Names in the map of FULL.
FULL_FIELDS = 15
# The number of listpacks for which the nodes of Redis' radix tree are counted; for more they are
# extrapolated.
COUNTED_NODES = 16

xinfo_command = Container(
    "XINFO",
    "stream",
    "A container for stream introspection commands.",
    since="5.0.0",
    tags="readonly",
)


@xinfo_command("STREAM key [full-block: FULL [COUNT count]]")
def xinfo_stream(ctx: Context, args: Args) -> Encodable | Several:
    """Returns information about a stream.

    A map: length, IDs, counters, and the first and the last entry. With FULL, also the first
    entries and all details of the groups.
    """
    key = args.take()
    stream = _stream(ctx, key)
    if not args.remaining:
        return _stream_fields(ctx, stream, is_full=False)
    limit = _full_limit(args)
    groups = full_groups_reply(ctx, key, stream, limit)
    counters = _stream_fields(ctx, stream, is_full=True)
    entries = first_entries(stream, limit)
    return Several([MapHead(FULL_FIELDS), counters, b"entries", entries, b"groups", groups])


def _full_limit(args: Args) -> int | None:
    """Take FULL [COUNT n]: the maximum of each list, None for all."""
    is_full = args.option(b"FULL")
    if is_full and args.remaining == 2 and args.option(b"COUNT"):
        count = args.take_int()
        return FULL_COUNT if count < 0 else count or None
    if not is_full or args.remaining:
        raise CommandError(
            f"ERR unknown subcommand or wrong number of arguments for '{shown(args[1])}'. "
            "Try XINFO HELP."
        )
    return FULL_COUNT


def _stream_fields(ctx: Context, stream: Stream, *, is_full: bool) -> StreamFields:
    window = stream.idempotence
    idempotence = NO_IDEMPOTENCE if window is None else _idempotence_fields(ctx, window)
    return StreamFields(stream, ctx.steady_ms, COUNTED_NODES, idempotence, is_full)


def _idempotence_fields(ctx: Context, window: Window) -> bytes:
    window.expire(ctx.now_ms)
    producers, names = window.tracked()
    return _encoded(
        window.duration_s, window.maxsize, producers, names, window.added, window.duplicates
    )


def _encoded(*values: int) -> bytes:
    """The fields about messages that count once, encoded: the same in RESP2 and RESP3."""
    pairs = zip(IDEMPOTENCE, values, strict=True)
    return b"".join(b"$%d\r\n%b\r\n:%d\r\n" % (len(name), name, value) for name, value in pairs)


IDEMPOTENCE = (
    b"idmp-duration",
    b"idmp-maxsize",
    b"pids-tracked",
    b"iids-tracked",
    b"iids-added",
    b"iids-duplicates",
)
NO_IDEMPOTENCE = _encoded(DURATION_S, MAXSIZE, 0, 0, 0, 0)


@xinfo_command("GROUPS key", complexity="O(n), n the number of groups")
def xinfo_groups(ctx: Context, args: Args) -> Encodable:
    """Returns the consumer groups of a stream.

    A map for each group, sorted by name."""
    key = args.take()
    return groups_reply(ctx, key, _stream(ctx, key))


@xinfo_command(
    "CONSUMERS key group", "nondeterministic_output", complexity="O(n), n the number of consumers"
)
def xinfo_consumers(ctx: Context, args: Args) -> Encodable:
    """Returns the consumers of a consumer group.

    A map for each consumer, sorted by name. In milliseconds, `idle` is the time since the
    consumer's last request, and `inactive` the time since it last received an entry (-1: never).
    """
    key, name = args.take(), args.take()
    group = live_group(ctx, key, _stream(ctx, key), name)
    if group is None:
        raise CommandError(
            f"NOGROUP No such consumer group '{shown(name)}' for key name '{shown(key)}'"
        )
    return consumers_reply(ctx, group)


@command("TINFO key", "readonly")
def tinfo(ctx: Context, args: Args) -> Fields | None:
    """Returns details of a stream as a whole."""
    key = args.take()
    stream = ctx.read_for_update(key)
    if stream is None:
        return None
    return {
        b"first-id": None if stream.first_id is None else Id(*stream.first_id, True),
        b"last-id": Id(*stream.last_id, True),
        b"max-evicted-id": Id(*stream.max_evicted_id, True),
        b"length": len(stream),
        b"entries-added": shown_count(stream.entries_added),
        b"entries-evicted": stream.entries_evicted,
        b"entries-deleted": stream.entries_deleted,
        b"blocks": stream.block_count,
        b"bytes": bytes_of(stream),
        b"groups": live_group_count(ctx, stream),
        b"producers": 0 if stream.producers is None else len(stream.producers),
        b"policy": policy_reply(stream.policy),
        b"incarnation": stream.incarnation,
    } | _ordering_fields(ctx, key, stream)


def _ordering_fields(ctx: Context, key: bytes, stream: Stream) -> Fields:
    """Reservations, promises and lineage."""
    held = live_held(ctx, key, stream)
    oldest = None if held is None else held.oldest_id
    lineage = stream.lineage or Lineage()
    promised = (ctx.keyspace.promised_ms, UINT64_MAX) if stream.is_followed else None
    return {
        b"handed-out-id": Id(*handed_out_id(stream), True),
        b"reservations": 0 if held is None else held.reservations,
        b"held": 0 if held is None else held.entries,
        b"held-bytes": 0 if held is None else held.size_bytes,
        b"oldest-reservation": None if oldest is None else Id(*oldest, True),
        b"writers": 0 if held is None else len(held.writers),
        b"promised-id": None if promised is None else Id(*promised, True),
        b"sealed": int(stream.is_sealed),
        b"parents": lineage.parents,
        b"children": lineage.children,
    }


def _stream(ctx: Context, key: bytes) -> Stream:
    # For writing, because a look-up removes a group that has ended.
    stream = ctx.read_for_update(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    return stream
