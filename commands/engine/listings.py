"""Replies that list groups or consumers: XINFO, and the summary of XPENDING.

A reply shows one moment, and there may be hundreds of thousands of groups or consumers. Their
figures are therefore copied into rows when the command runs, a few milliseconds' work for 300,000
consumers (`storage/groups/shared_groups`). Sorting by name and searching the pending entries is
done in steps, and the reply is sent in slices. Decision 030 has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import cast

from millstream.clock_offset import shifted_ms
from millstream.commands.engine.group_replies import (
    ConsumerRows,
    GroupProgress,
    GroupRows,
    OwnerRows,
    StreamEnds,
    few_consumers,
    few_groups,
    few_owners,
)
from millstream.commands.engine.references import settle_groups
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import (
    PAUSE,
    ArrayHead,
    Encodable,
    LongReply,
    MapHead,
    Several,
)
from millstream.ids import Id
from millstream.storage.groups.group import Group
from millstream.storage.groups.shared_groups import (
    GroupParts,
    PendingByConsumer,
    SharedGroups,
    SharedMembers,
    shared_groups,
    shared_members,
)
from millstream.storage.streams.head_eviction import counted_groups
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

SORTED_AT_ONCE = 8192  # names, about two milliseconds' work
LOOKS = 20_000  # records examined in one step, about a millisecond's work
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


def named_rows(
    names: Sequence[bytes | None], numbers: Sequence[int], make: Callable[[list[int]], object]
) -> Iterator[object]:
    """The array of the rows with these numbers, by name, in parts that `make` makes."""
    count, ordered = yield from _in_order(names, numbers)
    yield ArrayHead(count)
    rest = iter(ordered)
    while part := list(islice(rest, ROWS_AT_ONCE)):
        yield make(part)


# ---------------------------------------------------------------- consumers


def consumers_reply(ctx: Context, group: Group) -> Encodable:
    """XINFO CONSUMERS: a map for each consumer, by name."""
    now_ms = ctx.steady_ms
    few = few_consumers(group, now_ms)
    if few is not None:
        return few
    members = shared_members(group)
    numbers = range(len(members.names))
    return LongReply(
        named_rows(members.names, numbers, lambda part: ConsumerRows(part, members, now_ms))
    )


def pending_summary(group: Group) -> Encodable:
    """XPENDING without a range; the consumers are those that own any pending entries, by name."""
    return few_owners(group) or LongReply(
        _summary(group.pending.count, group.pending.ends() or (), shared_members(group))
    )


def _summary(total: int, ends: tuple[EntryId, ...], members: SharedMembers) -> Iterator[object]:
    yield Several([ArrayHead(4), total, *(Id(*entry_id) for entry_id in ends)])
    yield from named_rows(members.names, members.owners(), lambda part: OwnerRows(part, members, 0))


# ---------------------------------------------------------------- groups


def groups_reply(ctx: Context, key: bytes, stream: Stream) -> Encodable:
    """XINFO GROUPS: a map for each group, by name."""
    settle_groups(ctx, key, stream)
    few = few_groups(stream, ctx.steady_ms)
    if few is not None:
        return few
    groups, ends = shared_groups(counted_groups(stream), False, ctx.steady_ms), StreamEnds(stream)
    numbers = range(len(groups.names))
    return LongReply(named_rows(groups.names, numbers, lambda part: GroupRows(part, groups, ends)))


# ---------------------------------------------------------------- XINFO STREAM FULL


def full_groups_reply(ctx: Context, key: bytes, stream: Stream, limit: int | None) -> LongReply:
    """The groups of XINFO STREAM FULL, with up to `limit` pending entries (None: all) of each group
    and of each of its consumers."""
    settle_groups(ctx, key, stream)
    groups = shared_groups(counted_groups(stream), True, ctx.steady_ms)
    most = EVERY_RECORD if limit is None else limit
    return LongReply(_full_groups(groups, StreamEnds(stream), most, ctx.wall_ahead_ms))


def _full_groups(
    groups: SharedGroups, ends: StreamEnds, limit: int, ahead: int
) -> Iterator[object]:
    """`ahead`: milliseconds by which the wall clock, which the reply uses, is ahead of the steady
    clock."""
    count, places = yield from _in_order(groups.names, range(len(groups.names)))
    yield ArrayHead(count)
    for place in places:
        pending = groups.pending(place)
        missed = groups.missed(place)
        yield MapHead(8 if missed else 7)
        yield Several([b"name", groups.names[place], GroupProgress(groups, ends, place)])
        shown = min(pending, limit)
        yield Several([b"pel-count", pending, b"pending", ArrayHead(shown)])
        parts = groups.parts[place]
        if parts is None:
            yield Several([b"consumers", []])
        else:
            yield from _full_group(parts, shown, limit, ahead)
        if missed:
            yield Several([b"entries-missed", missed])


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
