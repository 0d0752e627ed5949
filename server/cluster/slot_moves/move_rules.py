"""Functions about moves of slots, without any state: ranges, the map after a move, and plans."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from millstream.server.cluster.cluster_view import ClusterView, Found
from millstream.server.cluster.store.records import (
    MAP,
    MOVE,
    MOVED_RANGES_MAX,
    MoveRecord,
    SlotRanges,
    Step,
)
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS
from millstream.storage.keyspace.slot_ranges import Ranges, ranges_of, slots_of

UNDECIDED = frozenset({Step.PLANNED, Step.COPYING, Step.HANDING})  # the source owns the slots
ENDED = frozenset({Step.DONE, Step.CANCELED, Step.FAILED})
OWNED = frozenset({Step.MOVED, Step.DONE})  # the target does
RUNNING = frozenset({Step.COPYING, Step.HANDING, Step.MOVED})
_ORDER = {step: at for at, step in enumerate((Step.COPYING, Step.HANDING, Step.MOVED), start=1)}
PART_SLOTS = 1024
RUNNING_MAX = 2  # moves of a shard at a time
NOT_A_RANGE = "is not a slot or range of slots, such as 5 or 0-5460"


def count_of(ranges: Ranges) -> int:
    return sum(last + 1 - first for first, last in ranges)


def overlap(one: Ranges, other: Ranges) -> bool:
    return any(a <= d and c <= b for a, b in one for c, d in other)


def owners_of(slot_map: SlotRanges, ranges: Ranges) -> frozenset[str]:
    """The shards that own these slots; "" is among them if one has no owner."""
    found = set()
    for first, last in ranges:
        at = first
        for begin, end, shard in slot_map.ranges:
            if end < at:
                continue
            if begin > last:
                break
            if begin > at:
                found.add("")
            found.add(shard)
            at = end + 1
        if at <= last:
            found.add("")
    return frozenset(found)


def owned_by(slot_map: SlotRanges, shard: str) -> Ranges:
    return tuple((first, last) for first, last, name in slot_map.ranges if name == shard)


def moved_map(slot_map: SlotRanges, ranges: Ranges, target: str) -> SlotRanges:
    """The map after a move: the next epoch."""
    owners = _owners(slot_map)
    for first, last in ranges:
        owners[first : last + 1] = [target] * (last + 1 - first)
    rows = []
    first = 0
    for shard, group in groupby(owners):
        size = sum(1 for _ in group)
        if shard:
            rows.append((first, first + size - 1, shard))
        first += size
    return SlotRanges(slot_map.epoch + 1, tuple(rows))


def running_of(moves: Mapping[str, Found[MoveRecord]], shard: str) -> int:
    """The number of moves to and from a shard that have begun."""
    return sum(
        shard in (found.record.source, found.record.target) and found.record.step in RUNNING
        for found in moves.values()
    )


def problem_of(move: str, found: Found[MoveRecord], view: ClusterView) -> str:
    """The reason why a planned move cannot begin at all; "" if there is none."""
    record = found.record
    for shard in (record.source, record.target):
        if shard not in view.shards:
            return f"there is no shard {shard}"
    if record.source == record.target or owners_of(view.map, record.slots) != {record.source}:
        return f"the slots are not all those of shard {record.source}"
    for other, (one, version, _) in view.moves.items():
        is_earlier = (version, other) < (found.version, move)
        is_before = one.step in RUNNING or (one.step is Step.PLANNED and is_earlier)
        if other != move and is_before and overlap(one.slots, record.slots):
            return f"the move {other} has some of the slots"
    return ""


def gains_slots(changed: Collection[str], view: ClusterView, led_shard: str) -> bool:
    """True if these changes of the store give slots to this shard; not if it is ""."""
    moves = [view.moves.get(name.removeprefix(MOVE)) for name in changed]
    return any(
        found is not None and (found.record.target, found.record.step) == (led_shard, Step.MOVED)
        for found in moves
    )


def may_keep_later(changed: Collection[str], view: ClusterView, led_shard: str) -> bool:
    """True if a node need not have these changes of the store on its disk at once, because all of
    them are about moves, and it does nothing because of them before they are there. `led_shard`:
    the shard whose primary it is, or "".

    The source has `handing` on its disk before the slots leave, and the target `moved` before it
    serves them. The source may drop them after `done` was written."""
    if any(name != MAP and not name.startswith(MOVE) for name in changed):
        return False
    for move in changed:
        found = view.moves.get(move.removeprefix(MOVE))
        if found is None:
            continue
        record = found.record
        at_once = {
            record.source: record.step not in OWNED,
            record.target: record.step not in (Step.HANDING, Step.DONE),
        }
        if at_once.get(led_shard):
            return False
    return True


def are_moves_older(view: ClusterView, seen: ClusterView) -> bool:
    """True if the moves in a view are in an earlier state than they were seen in: the store was
    restored. The record of a hand-over is not removed before it has another step."""
    for move, known in seen.moves.items():
        found = view.moves.get(move)
        if found is not None and _is_earlier(found.record, known.record):
            return True
        is_gone = found is None and view.map.epoch == seen.map.epoch
        if is_gone and known.record.step is Step.HANDING:
            return True
    return False


def _is_earlier(record: MoveRecord, known: MoveRecord) -> bool:
    """True if this is no state of a move after the known one: an earlier one, or another end."""
    has_ended = known.step in ENDED or known.step is Step.MOVED
    is_same_end = (known.step in OWNED) == (record.step in OWNED)
    return _progress(record) < _progress(known) or (has_ended and not is_same_end)


def _progress(record: MoveRecord) -> tuple[bool, int, int]:
    """Greater for a later state of a move: it goes back from a hand-over to copying with one more
    retry."""
    return record.step in ENDED, record.retries, _ORDER.get(record.step, 0)


# Plans


def parse_slots(text: str) -> Ranges:
    """`0-100,200`, also with spaces in place of commas. ValueError if it is wrong."""
    if not text.strip():
        raise ValueError("no slots are given")
    ranges = []
    for part in re.split(r"\s*,\s*|\s+", text.strip()):
        if not part:
            raise ValueError("a comma has no slot before or after it: write them as in 0-9,20")
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(f"{part} {NOT_A_RANGE}")
        begin, end = int(first), int(last or first)
        if not begin <= end < CLUSTER_SLOTS:
            raise ValueError(f"{part} {NOT_A_RANGE}: they are 0 to {CLUSTER_SLOTS - 1}")
        ranges.append((begin, end))
    return united(ranges)


def united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same slots in order. ValueError if one of them is given twice."""
    found: set[int] = set()
    for slot in slots_of(ranges):
        if slot in found:
            raise ValueError(f"Slot {slot} specified multiple times")  # as in Redis
        found.add(slot)
    return ranges_of(found)


def shown_slots(ranges: Ranges) -> str:
    """As CLUSTER MIGRATION STATUS shows them."""
    return " ".join(f"{first}-{last}" for first, last in ranges)


def planned(view: ClusterView, ranges: Ranges, target: str, created_ms: int) -> list[MoveRecord]:
    """The moves of these slots to a shard, one for each shard that owns some of them. ValueError if
    that is impossible."""
    if target not in view.shards:
        raise ValueError(f"there is no shard {target}")
    by_owner: dict[str, list[int]] = {}
    owners = _owners(view.map)
    for slot in slots_of(ranges):
        by_owner.setdefault(owners[slot], []).append(slot)
    if "" in by_owner:
        raise ValueError(f"slot has no owner: {by_owner[''][0]}")
    by_owner.pop(target, None)
    if not by_owner:
        raise ValueError(f"shard {target} owns these slots already")
    found = []
    for source, slots in sorted(by_owner.items()):
        rows = ranges_of(slots)
        for other in view.moves.values():
            if other.record.step not in ENDED and overlap(other.record.slots, rows):
                raise ValueError(
                    f"some of the slots {shown_slots(other.record.slots)} move to shard "
                    f"{other.record.target} already"
                )
        for at in range(0, len(rows), MOVED_RANGES_MAX):
            part = rows[at : at + MOVED_RANGES_MAX]
            found.append(MoveRecord(part, source, target, Step.PLANNED, created_ms))
    return found


def _owners(slot_map: SlotRanges) -> list[str]:
    """The shard that owns each slot; "" if there is none."""
    owners = [""] * CLUSTER_SLOTS
    for first, last, shard in slot_map.ranges:
        owners[first : last + 1] = [shard] * (last + 1 - first)
    return owners


def shared_out(view: ClusterView, emptied: Sequence[str], created_ms: int) -> list[MoveRecord]:
    """The moves after which each shard owns as many slots as the others, and the emptied ones none.
    As few slots as possible move. ValueError if that is impossible."""
    if any(found.record.step not in ENDED for found in view.moves.values()):
        raise ValueError(
            "slots are moving at this moment: wait for their end, or use `millstream cluster "
            "cancel`"
        )
    owned = {name: [*slots_of(owned_by(view.map, name))] for name in view.shards}
    kept = sorted(set(view.shards) - set(emptied), key=lambda one: (-len(owned[one]), one))
    if not kept:
        raise ValueError("there is no other shard for the slots")
    total = sum(map(len, owned.values()))
    size, more = divmod(total, len(kept))
    wanted = {name: size + (at < more) for at, name in enumerate(kept)}
    surplus = [
        (name, slots[wanted.get(name, 0) :])
        for name, slots in sorted(owned.items())
        if len(slots) > wanted.get(name, 0)
    ]
    found = []
    for target in sorted(kept):
        missing = wanted[target] - len(owned[target])
        while missing > 0:
            source, slots = surplus[-1]
            taken = slots[-missing:]
            del slots[-missing:]
            missing -= len(taken)
            if not slots:
                surplus.pop()
            found.append(MoveRecord(ranges_of(taken), source, target, Step.PLANNED, created_ms))
    return found


def in_parts(record: MoveRecord) -> list[MoveRecord]:
    """A planned move as several, with at most PART_SLOTS slots each: less is copied again after a
    failure, and less is there twice at a time."""
    slots = [*slots_of(record.slots)]
    return [
        record._replace(slots=ranges_of(slots[at : at + PART_SLOTS]))
        for at in range(0, len(slots), PART_SLOTS)
    ]
