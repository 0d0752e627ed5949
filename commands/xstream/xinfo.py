"""XINFO: information about a stream, its groups and their consumers.

These commands do not refresh a group's time to live. Expired entries and groups are not shown, even
if their timer has not run yet. Radix-tree figures are computed as for Redis' tree, which does not
exist here.
"""

from __future__ import annotations

from millstream.commands.engine.group_replies import StreamFields
from millstream.commands.engine.lifecycle import live_group
from millstream.commands.engine.listings import (
    consumers_reply,
    full_groups_reply,
    groups_reply,
)
from millstream.commands.engine.ranges import first_entries
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import Encodable, MapHead, Several
from millstream.commands.table.containers import Container
from millstream.errors import NO_SUCH_KEY, CommandError, shown
from millstream.storage.streams.idempotence import DURATION_S, MAXSIZE, Window
from millstream.storage.streams.stream import Stream

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

    The reply is a map: length, IDs, counters, and the first and the last entry. With FULL, also the
    first entries and all details of the groups.
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

    The reply is a map for each group, sorted by name. `entries-missed` is only there if entries
    were trimmed before the group read them: it is their number since the group was created.
    """
    key = args.take()
    return groups_reply(ctx, key, _stream(ctx, key))


@xinfo_command(
    "CONSUMERS key group", "nondeterministic_output", complexity="O(n), n the number of consumers"
)
def xinfo_consumers(ctx: Context, args: Args) -> Encodable:
    """Returns the consumers of a consumer group.

    The reply is a map for each consumer, sorted by name. In milliseconds, `idle` is the time since
    the consumer's last request, and `inactive` the time since it last received an entry (-1:
    never).
    """
    key, name = args.take(), args.take()
    group = live_group(ctx, key, _stream(ctx, key), name)
    if group is None:
        raise CommandError(
            f"NOGROUP No such consumer group '{shown(name)}' for key name '{shown(key)}'"
        )
    return consumers_reply(ctx, group)


def _stream(ctx: Context, key: bytes) -> Stream:
    # For writing, because a look-up removes a group that has ended.
    stream = ctx.read_for_update(key)
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    return stream
