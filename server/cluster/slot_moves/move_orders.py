"""Orders to move slots, as `millstream cluster` writes them into the store, and their progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millstream.cli_error import CliError
from millstream.server.cluster.cluster_view import ClusterView, by_number, view_of
from millstream.server.cluster.slot_map import new_id
from millstream.server.cluster.slot_moves.move_rules import (
    ENDED,
    in_parts,
    owners_of,
    planned,
    shared_out,
    shown_slots,
)
from millstream.server.cluster.store.records import (
    MAP,
    MOVE,
    SHARD,
    MoveRecord,
    ShardRecord,
    Step,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare, Store, Unreachable
from millstream.server.cluster.store_cli import require_enough
from millstream.server.execution.clocks import wall_clock_ms
from millstream.storage.keyspace.slot_ranges import Ranges

AGAIN_S = 0.3
CONTINUE_LATER = "the moves continue when it is back: `millstream cluster status` shows them"
LIMIT_S = 10.0  # of attempts while etcd cannot be reached
AT_ONCE = 100  # etcd takes 128 changes in a transaction
Tell = Callable[[str], object]  # shows a warning
WORDS = {Step.DONE: "done", Step.HANDING: "handing over", Step.MOVED: "moved, ending"}


async def _read(store: Store, first_s: float, tell: Tell | None = None) -> ClusterView:
    """The contents of the store; Unreachable if it is silent until LIMIT_S after this time."""
    while True:
        try:
            return view_of(await store.read())
        except Unreachable as problem:
            if _now_s() - first_s > LIMIT_S:
                raise
            if tell is not None:
                tell(f"{problem}; retrying for {LIMIT_S:g} seconds")
            tell = None
        await asyncio.sleep(AGAIN_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def order_moves(
    store: Store, ranges: Ranges, target: str, tell: Tell
) -> dict[str, MoveRecord]:
    """Order that the slots move to a shard; the moves by their IDs. CliError if they cannot."""
    view = await _read(store, _now_s(), tell)
    try:
        records = planned(view, ranges, target, wall_clock_ms())
    except ValueError as problem:
        raise CliError(str(problem)) from None
    for shard in [target, *(record.source for record in records)]:
        if view.shards[shard].record.primary not in view.nodes:
            raise CliError(f"shard {shard} has no primary that runs: start its nodes first")
    return await _write(store, view, records)


async def order_equal_shares(store: Store, emptied: str, tell: Tell) -> dict[str, MoveRecord]:
    """Order that all shards get as many slots as the others, and the shard of this name or with
    this node ("": none) no slots; the moves by their IDs. CliError if that is impossible. `tell`
    gets a sentence for each shard that is left out."""
    view = await _read(store, _now_s(), tell)
    named = [_shard_named(view, emptied)] if emptied else []
    running = {name for name, found in view.shards.items() if found.record.primary in view.nodes}
    for first, last, shard in view.map.ranges:
        if shard not in running:
            raise CliError(
                f"shard {shard} has no primary that runs, and the slots {first}-{last}: start its "
                "nodes first"
            )
    stopped = view.shards.keys() - running
    for shard in sorted(stopped.difference(named)):
        tell(f"shard {shard} gets no slots, because it has no primary that runs: start its nodes")
    shown = {name: found for name, found in view.shards.items() if name not in stopped}
    try:
        records = shared_out(view._replace(shards=shown), named, wall_clock_ms())
    except ValueError as problem:
        raise CliError(str(problem)) from None
    return await _write(store, view, [part for record in records for part in in_parts(record)])


def _shard_named(view: ClusterView, text: str) -> str:
    """The shard with this name, or with a node whose ID begins so. CliError if there is none."""
    if text in view.shards:
        return text
    fitting = {
        name
        for name, found in view.shards.items()
        for node in found.record.members
        if node.startswith(text.lower())
    }
    if len(fitting) != 1:
        few = "members of several shards have" if fitting else "no member of a shard has"
        raise CliError(f"{few} an ID that begins with {text}, and no shard has this name")
    return fitting.pop()


async def _write(
    store: Store, view: ClusterView, records: Sequence[MoveRecord]
) -> dict[str, MoveRecord]:
    """Write the moves, if the map is as it was."""
    orders = {new_id(): record for record in records}
    rows = [*orders.items()]
    for at in range(0, len(rows), AT_ONCE):
        part = rows[at : at + AT_ONCE]
        compares = [Compare(MAP, view.map_version), *(Compare(MOVE + id, 0) for id, _ in part)]
        changes = [Change(MOVE + id, encode(record)) for id, record in part]
        if not await _commit(store, compares, changes):
            raise CliError("slots have moved at this moment: try again")
    return orders


async def _commit(store: Store, compares: list[Compare], changes: list[Change]) -> bool:
    """Write new moves; False if a compare does not hold. Again if the outcome is unknown: they are
    written once at most, because each one must be new. CliError if it stays unknown."""
    first_s, is_unclear = _now_s(), False
    while True:
        try:
            if (await store.commit(compares, changes)).done:
                return True
            return (
                is_unclear
                and changes[0].name.removeprefix(MOVE) in (await _read(store, first_s)).moves
            )
        except Unreachable as problem:
            is_unclear = True
            if _now_s() - first_s > LIMIT_S:
                raise CliError(
                    f"{problem}. The slots may move nevertheless: `millstream cluster status` "
                    "shows the moves"
                ) from None
        await asyncio.sleep(AGAIN_S)


async def follow_moves(
    store: Store, orders: dict[str, MoveRecord], show: Callable[[str], object]
) -> dict[str, MoveRecord]:
    """Show each step of the moves until all of them have ended; their last records. Nodes need etcd
    to end a move, and continue when it is back: so does this."""
    last = dict(orders)
    for record in orders.values():
        show(described(record))
    is_lost = False
    while any(record.step not in ENDED for record in last.values()):
        await asyncio.sleep(AGAIN_S)
        try:
            view = view_of(await store.read())
        except Unreachable as problem:
            if not is_lost:
                show(f"{problem}; {CONTINUE_LATER}")
            is_lost = True
            continue
        is_lost = False
        for id, before in last.items():
            found = view.moves.get(id)
            record = _removed(before, view) if found is None else found.record
            last[id] = record
            if _shown_parts(record) != _shown_parts(before):
                show(described(record))
    return last


def _shown_parts(record: MoveRecord) -> tuple[Step, int, str]:
    return record.step, record.retries, record.reason


def _removed(record: MoveRecord, view: ClusterView) -> MoveRecord:
    """The end of a move whose record is not kept any more: the map tells it."""
    if record.step in ENDED:
        return record
    has_moved = owners_of(view.map, record.slots) == {record.target}
    return record._replace(step=Step.DONE if has_moved else Step.CANCELED)


def described(record: MoveRecord) -> str:
    """A line about a move."""
    word = WORDS.get(record.step, record.step.value)
    reason = f" ({record.reason})" if record.reason else ""
    return (
        f"slots {shown_slots(record.slots)} from {record.source} to {record.target}: {word}{reason}"
    )


async def add_shard(store: Store, name: str, members: int | None, durable: int | None) -> str:
    """Add a shard without slots ("": with the next number as its name; None: as large as the first
    one); its name. CliError if that is impossible."""
    view = view_of(await store.read())
    known = sorted(view.shards, key=by_number)
    if not name:
        name = next(one for n in range(len(known) + 1) if (one := f"s{n + 1}") not in view.shards)
    if name in view.shards:
        raise CliError(f"there is a shard {name} already: the cluster has {', '.join(known)}")
    first = view.shards[known[0]].record
    members = first.size if members is None else members
    durable = min(first.durable, members - 1) if durable is None else durable
    require_enough(members, durable)
    record = ShardRecord(new_id(), 0, "", (), members, durable)
    commit = await store.commit([Compare(SHARD + name, 0)], [Change(SHARD + name, encode(record))])
    if not commit.done:
        raise CliError(f"there is a shard {name} already")
    return name
