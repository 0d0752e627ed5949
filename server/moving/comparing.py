"""Compares the streams and strings of two sides, key by key.

Differences of a server that changes count only if they are still there after some time. A field
that one side does not have is not compared; the result names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from millstream.server.moving.key_states import Filters, Place, Side, State, is_same_expiry
from millstream.storage.dump.base_making import id_text, shown_key
from millstream.storage.dump.digests import GroupRow, PendingRow
from millstream.storage.dump.rdb import UNOWNED

_LOOK_S = 0.2


@dataclass
class Result:
    """The first difference of each key that differs, as a sentence; and what was not compared."""

    keys: int = 0
    different: dict[Place, str] = field(default_factory=dict)
    not_compared: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def as_dict(self, names: tuple[str, str]) -> dict[str, Any]:
        return {
            "a": names[0],
            "b": names[1],
            "keys": self.keys,
            "different": [
                {"db": database, "key": shown_key(key), "difference": sentence}
                for (database, key), sentence in sorted(self.different.items())
            ],
            "not_compared": sorted(self.not_compared),
            "notes": self.notes,
        }


class Comparison:
    """Compares two sides. `as_replica`: B is a replica of A, and Redis does not replicate some of
    it."""

    def __init__(self, a: Side, b: Side, *, as_replica: bool = False) -> None:
        self._a = a
        self._b = b
        self._as_replica = as_replica
        self.result = Result()

    def run(
        self,
        filters: Filters,
        settle_s: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Result:
        """Compare all keys; differences count after `settle_s` seconds."""
        ours, theirs = map(_without_due, (self._a.states(filters), self._b.states(filters)))
        places = sorted({*ours, *theirs})
        self.result.keys = len(places)
        self.result.notes = filters.unmatched()
        left = {
            place: sentence
            for place in places
            if (sentence := self._difference(place, ours.get(place), theirs.get(place)))
        }
        deadline_s = clock() + settle_s
        while left and (self._a.is_live or self._b.is_live) and clock() < deadline_s:
            sleep(min(_LOOK_S, settle_s))
            left = {
                place: sentence
                for place in left
                if (sentence := self._difference(place, *self._again(place, ours, theirs)))
            }
        self.result.different = left
        return self.result

    def _again(
        self, place: Place, ours: dict[Place, State], theirs: dict[Place, State]
    ) -> tuple[State | None, State | None]:
        a = self._a.state(place) if self._a.is_live else ours.get(place)
        return a, self._b.state(place) if self._b.is_live else theirs.get(place)

    def _difference(self, place: Place, a: State | None, b: State | None) -> str:
        """The first difference of a key; "" if there is none."""
        a, b = (state if state and not _is_due(state) else None for state in (a, b))
        if a is None and b is None:  # deleted or expired meanwhile
            return ""
        if a is None or b is None:
            return f"only in {(self._b if a is None else self._a).name}"
        return next(self._differences(place, a, b), "")

    # ------------------------------------------------------------ fields

    def _differences(self, place: Place, a: State, b: State) -> Iterator[str]:
        if (a.value is None) != (b.value is None):
            yield "a string in one, a stream in the other"
            return
        if a.value != b.value:
            yield "the strings differ"
        if a.entries != b.entries:
            yield self._first_entry(place)
        yield from self._unequal("length", a.length, b.length)
        yield from self._unequal("last ID", id_text(a.last_id), id_text(b.last_id))
        yield from self._unequal("entries added", a.entries_added, b.entries_added)
        yield from self._unequal("greatest deleted ID", a.max_deleted_id, b.max_deleted_id)
        yield from self._unequal("producers", a.producers, b.producers)
        yield from self._groups(a, b)
        yield from self._expiry(a, b)

    def _unequal(self, what: str, a: object, b: object) -> Iterator[str]:
        if a is None or b is None:
            if a is not b:
                self.result.not_compared.add(what)
        elif a != b:
            yield f"{what}: {a} and {b}"

    def _first_entry(self, place: Place) -> str:
        """The first entry that differs."""
        pairs = zip_longest(self._a.entries(place), self._b.entries(place))
        for one, other in pairs:
            if one == other:
                continue
            if one is None or other is None or one[0] != other[0]:
                ids = [entry[0] for entry in (one, other) if entry is not None]
                first = min(ids)
                has_it = self._a if one is not None and one[0] == first else self._b
                return f"entry {id_text(first)} is only in {has_it.name}"
            return f"entry {id_text(one[0])} has other fields"
        return "the entries changed meanwhile"

    def _expiry(self, a: State, b: State) -> Iterator[str]:
        ours, theirs = (a.expiry_ms, a.is_expiry_exact), (b.expiry_ms, b.is_expiry_exact)
        if not is_same_expiry(ours, theirs):
            yield f"expiry: {a.expiry_ms} and {b.expiry_ms}"

    # ------------------------------------------------------------ groups

    def _groups(self, a: State, b: State) -> Iterator[str]:
        if (
            a.has_consumers_without_name != b.has_consumers_without_name
        ):  # an import leaves them out
            self.result.not_compared.add("consumers with an empty name")
        for name in sorted({*a.groups, *b.groups}):
            shown = f'group "{shown_key(name)}"'
            one, other = a.groups.get(name), b.groups.get(name)
            if one is None or other is None:
                yield f"{shown} is only in {(self._b if one is None else self._a).name}"
                continue
            for sentence in self._group(a, b, one, other):
                yield f"{shown}, {sentence}"

    def _group(self, a: State, b: State, one: GroupRow, other: GroupRow) -> Iterator[str]:
        yield from self._unequal("offset", id_text(one.offset), id_text(other.offset))
        if a.has_entries_read and b.has_entries_read:
            above = a.entries_added is not None and one.entries_read > a.entries_added
            if self._as_replica and not self._a.replicates_entries_read:
                self.result.not_compared.add("entries read")
            elif not self._as_replica or not above:
                yield from self._unequal("entries read", one.entries_read, other.entries_read)
        elif a.has_entries_read != b.has_entries_read:
            self.result.not_compared.add("entries read")
        if self._as_replica:
            one = _with_owners(one, other)
        yield from self._consumers(a, b, one, other)
        for row, its in zip_longest(one.pending, other.pending):
            if row is None or its is None or row[:2] != its[:2]:
                yield f"pending entry {id_text(min(r[:2] for r in (row, its) if r))} is in one only"
                return
            yield from self._pending(a, b, row, its)

    def _consumers(self, a: State, b: State, one: GroupRow, other: GroupRow) -> Iterator[str]:
        names, others = set(one.consumers), set(other.consumers)
        names.discard(b"")
        others.discard(b"")
        if self._as_replica or a.is_replayed or b.is_replayed:
            # A replica and an AOF lack consumers without pending entries.
            if names != others and not self._as_replica:
                self.result.not_compared.add("consumers without pending entries")
            busy = {row.owner for row in (*one.pending, *other.pending)}
            names, others = names & busy, others & busy
        for name in sorted(names ^ others):
            yield f'consumer "{shown_key(name)}" is in one only'
        if self._as_replica:
            return
        for name in sorted(names & others):
            mine, its = a.consumers[one.name, name], b.consumers[one.name, name]
            for what, moment, another in zip(("seen", "active"), mine, its, strict=True):
                if any(self._unequal(f"{what} times", moment, another)):
                    yield f'{what} time of "{shown_key(name)}": {moment} and {another}'

    def _pending(self, a: State, b: State, row: PendingRow, its: PendingRow) -> Iterator[str]:
        shown = f"pending entry {row.ms}-{row.seq}"
        # Reading one's own history counts a delivery, which is not replicated.
        if row.owner != its.owner:
            yield f"{shown} has another owner"
        elif self._as_replica:
            if _is_ahead(its, row):
                yield f"{shown} has a later time or a greater count in the replica"
        elif (not a.is_replayed and _is_ahead(its, row)) or (
            not b.is_replayed and _is_ahead(row, its)
        ):
            yield f"{shown}: time and count {row[3:]} and {its[3:]}"


def _is_due(state: State) -> bool:
    """True if a key has expired. A server does not show it, and an import leaves it out."""
    return state.expiry_ms is not None and state.expiry_ms <= time.time_ns() // 1_000_000


def _without_due(states: dict[Place, State]) -> dict[Place, State]:
    return {place: state for place, state in states.items() if not _is_due(state)}


def _with_owners(group: GroupRow, replica: GroupRow) -> GroupRow:
    """The group as a Redis before 8.8 has it that follows a millstream server: pending entries
    without an owner belong to a consumer."""
    if UNOWNED not in replica.consumers or any(not row.owner for row in replica.pending):
        return group
    pending = [row._replace(owner=row.owner or UNOWNED) for row in group.pending]
    return group._replace(pending=pending, consumers=sorted({*group.consumers, UNOWNED}))


def _is_ahead(row: PendingRow, other: PendingRow) -> bool:
    """True if an entry has a later time or a greater count than the other."""
    return row.deliveries > other.deliveries or row.delivered_ms > other.delivered_ms
