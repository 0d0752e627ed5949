"""Replies that list groups or consumers: XINFO, and the summary of XPENDING.

A reply shows one moment, and there may be some hundred thousand of each. What is shown is
therefore copied into rows when the command runs, a few milliseconds' work for 300,000 consumers
(`storage/streams/shared_groups`). Sorting by name and looking through the pending entries is done
in steps, and the reply is sent in slices. Decision 030 has the figures.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, cast

from millstream.commands.engine.group_lag import Ends, ends_of, lag_of
from millstream.commands.engine.references import settle_groups
from millstream.commands.runtime.replies import (
    NULL_ARRAY,
    PAUSE,
    ArrayHead,
    LongReply,
    MapHead,
    Several,
)
from millstream.ids import Id
from millstream.storage.dump.primitives import ahead_ms, shifted_ms
from millstream.storage.streams.shared_groups import (
    PendingByConsumer,
    shared_groups,
    shared_members,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from millstream.commands.runtime.context import Context
    from millstream.storage.streams.group import Group
    from millstream.storage.streams.shared_groups import GroupParts, SharedGroups, SharedMembers
    from millstream.storage.streams.stream import Stream

SORTED_AT_ONCE = 8192  # names, about two milliseconds' work
LOOKS = 20_000  # records looked at in one step, about a millisecond's work
ROWS_AT_ONCE = 128  # pending entries made into one part of a reply
EVERY_RECORD = 2**64 - 1


def _in_order(
    names: Sequence[bytes | None], places: Sequence[int]
) -> Generator[object, None, tuple[int, Iterable[int]]]:
    """Sort the places of names, without those of None, in steps; returns their number and the
    places in order. Each run is sorted here; the runs are merged while the reply is made."""
    name_of = cast("Callable[[int], bytes]", names.__getitem__)
    runs = []
    for start in range(0, len(places), SORTED_AT_ONCE):
        if start:
            yield PAUSE
        run = places[start : start + SORTED_AT_ONCE]
        runs.append(sorted([place for place in run if names[place] is not None], key=name_of))
    count = sum(map(len, runs))
    return count, runs[0] if len(runs) == 1 else merge(*runs, key=name_of)


# ---------------------------------------------------------------- consumers


def consumers_reply(ctx: Context, group: Group) -> LongReply:
    """XINFO CONSUMERS: a map for each consumer, by name."""
    return LongReply(_consumers(shared_members(group), ctx.steady_ms))


def _consumers(members: SharedMembers, now_ms: int) -> Iterator[object]:
    names = members.names
    count, places = yield from _in_order(names, range(len(names)))
    yield ArrayHead(count)
    for place in places:
        seen_ms, active_ms, pending = members.row(place)
        yield {
            b"name": names[place],
            b"pending": pending,
            b"idle": now_ms - seen_ms if seen_ms < now_ms else 0,
            b"inactive": -1 if active_ms < 0 else max(now_ms - active_ms, 0),
        }


def pending_summary(group: Group) -> LongReply | list[object]:
    """[total, first ID, last ID, [[consumer, pending], ...]]; the total counts unowned entries, the
    consumers are those that own any, by name."""
    ends = group.pending_ends()
    if ends is None:
        return [0, None, None, NULL_ARRAY]
    total = group.pending_count
    return LongReply(_summary(total, Id(*ends[0]), Id(*ends[1]), shared_members(group)))


def _summary(total: int, first: Id, last: Id, members: SharedMembers) -> Iterator[object]:
    count, places = yield from _in_order(members.names, members.owners())
    yield ArrayHead(4)
    yield Several([total, first, last])
    yield ArrayHead(count)
    for place in places:
        yield [members.names[place], b"%d" % members.row(place)[2]]


# ---------------------------------------------------------------- groups


def live_group_count(ctx: Context, stream: Stream) -> int:
    """How many groups a stream has, without those whose time to live has ended."""
    return stream.count_live_groups(ctx.steady_ms)


def groups_reply(ctx: Context, key: bytes, stream: Stream) -> LongReply:
    """XINFO GROUPS: a map for each group, by name."""
    settle_groups(ctx, key, stream)
    groups = shared_groups(stream.groups, False, ctx.steady_ms)
    return LongReply(_groups(groups, ends_of(stream)))


def _groups(groups: SharedGroups, ends: Ends) -> Iterator[object]:
    count, places = yield from _in_order(groups.names, range(len(groups.names)))
    yield ArrayHead(count)
    for place in places:
        offset, entries_read, pending, consumers = groups.row(place)
        head = {b"name": groups.names[place], b"consumers": consumers, b"pending": pending}
        yield head | _progress(ends, offset, entries_read)


def _progress(ends: Ends, offset: tuple[int, int], entries_read: int) -> dict[bytes, object]:
    return {
        b"last-delivered-id": Id(*offset),
        b"entries-read": entries_read if entries_read != -1 else None,
        b"lag": lag_of(ends, offset, entries_read),
    }


# ---------------------------------------------------------------- XINFO STREAM FULL


def full_groups_reply(ctx: Context, key: bytes, stream: Stream, limit: int | None) -> LongReply:
    """The groups of XINFO STREAM FULL, with up to `limit` pending entries (None: all) of each group
    and of each of its consumers."""
    settle_groups(ctx, key, stream)
    groups = shared_groups(stream.groups, True, ctx.steady_ms)
    ahead = ahead_ms(ctx.now_ms, ctx.steady_ms)
    most = EVERY_RECORD if limit is None else limit
    return LongReply(_full_groups(groups, ends_of(stream), most, ahead))


def _full_groups(groups: SharedGroups, ends: Ends, limit: int, ahead: int) -> Iterator[object]:
    """`ahead`: how far the wall clock, which the reply uses, is ahead of the steady clock."""
    count, places = yield from _in_order(groups.names, range(len(groups.names)))
    yield ArrayHead(count)
    for place in places:
        offset, entries_read, pending, _ = groups.row(place)
        yield MapHead(7)
        yield Several([b"name", groups.names[place]])
        progress = _progress(ends, offset, entries_read)
        yield Several(word for pair in progress.items() for word in pair)
        shown = min(pending, limit)
        yield Several([b"pel-count", pending, b"pending", ArrayHead(shown)])
        parts = groups.parts[place]
        if parts is None:
            yield Several([b"consumers", []])
        else:
            yield from _full_group(parts, shown, limit, ahead)


def _full_group(parts: GroupParts, shown: int, limit: int, ahead: int) -> Iterator[object]:
    """The pending entries of a group and its consumers."""
    pending = PendingByConsumer(parts, limit)
    for start in range(0, shown, ROWS_AT_ONCE):
        yield Several(pending.next_rows(min(ROWS_AT_ONCE, shown - start), ahead))
    while pending.step(LOOKS):
        yield PAUSE
    members = parts.members
    count, places = yield from _in_order(members.names, range(len(members.names)))
    yield Several([b"consumers", ArrayHead(count)])
    for place in places:
        seen_ms, active_ms, owned = members.row(place)
        yield MapHead(5)
        yield Several([b"name", members.names[place], b"seen-time", shifted_ms(seen_ms, ahead)])
        yield Several([b"active-time", shifted_ms(active_ms, ahead), b"pel-count", owned])
        listed = pending.count(place)
        yield Several([b"pending", ArrayHead(listed)])
        for start in range(0, listed, ROWS_AT_ONCE):
            yield Several(pending.rows(place, start, ROWS_AT_ONCE, ahead))
