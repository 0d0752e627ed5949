"""The cluster slots whose state differs from the map, because they move between two shards.

The shard that gets the slots of a move has an import: their keys arrive. The shard that gives them
away has a departure from the frame on in which it stops to serve them. When a move has ended on one
of the sides, the keys there are freed in steps. The keys of all these slots are hidden: no command
lists or counts them, none expires or is evicted, and no timer changes them. What becomes due for a
hidden key is set aside until its slot is served.

Effects change these states (commands/runtime/slot_effects). A base has them in its global metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from millstream.storage.blocks import lazyfree
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.slot_keys import keys_of_slots, some_keys_of
from millstream.storage.keyspace.slot_ranges import Ranges, checked_ranges, ranges_of, slots_of

if TYPE_CHECKING:

    class KeyspaceLike(Protocol):
        databases: list[Any]
        timer_requests: list[Any]
        steady_ms: int
        expiring: bool
        expiry_noted: bool
        retention_schedule: Any
        firing_schedule: Any
        hidden_slots: frozenset[int]
        on_slots_hidden: Callable[[], None] | None

        def is_walked(self) -> bool: ...


# What is due for a hidden key: its expiry, trimming, scheduled entries; or the timer of a group or
# of leases.
EXPIRY, TRIM, FIRING, TIMER = "expiry", "trim", "firing", "timer"
_KEY_COST = 4  # freeing a key takes as long as freeing this number of blocks
_SOON_MS = 0  # a time that has already passed
_OWNED_MAX = 256  # moves to this shard that are remembered


class Import(NamedTuple):
    """Slots that arrive from a shard: everything up to frame `number` of its line of history
    `history` is here, as far as the slots up to `copied` are concerned (-1: none)."""

    id: str
    ranges: Ranges
    shard: str
    history: str
    number: int
    copied: int


class Departure(NamedTuple):
    """Slots that are not served here any more, and the shard that gets them; "" in data of earlier
    versions."""

    id: str
    ranges: Ranges
    shard: str


class SlotStates:
    """The imports and departures of a keyspace by the IDs of their moves. `unfinished` has the
    parts of values that arrive in several pieces, by key, until the last one. `owned` has the last
    moves that have brought slots, in order, and `epoch` is the greatest one of the maps after which
    slots were served or freed."""

    def __init__(self, keyspace: KeyspaceLike) -> None:
        self.imports: dict[str, Import] = {}
        self.left: dict[str, Departure] = {}
        self.unfinished: dict[bytes, bytearray] = {}
        self.owned: dict[str, None] = {}
        self.epoch = 0
        self._keyspace = keyspace
        self._freeing: set[int] = set()
        self._is_queued = False
        self._set_aside: dict[int, dict[tuple[str, int, bytes, bytes | None], None]] = {}

    def __bool__(self) -> bool:
        """True if a slot is hidden."""
        return bool(self.imports or self.left or self._freeing)

    # ------------------------------------------------------------ changes

    def begin_import(self, made: Import) -> None:
        """Begin an import, or note its progress. ValueError if another move has one of the slots,
        or if the slots of the import change."""
        self.check_import(made)
        is_new = made.id not in self.imports
        if is_new:
            self._finish_freeing(set(slots_of(made.ranges)))
        self.imports[made.id] = made
        if is_new:
            self._changed()

    def leave(self, move: str, ranges: Ranges, shard: str) -> None:
        """Serve these slots no longer. ValueError if another move has one of them."""
        self.check_new(move, ranges)
        self.left[move] = Departure(move, ranges, shard)
        self._changed()

    def stay(self, move: str) -> None:
        """Serve the slots of a departure again. ValueError if there is none with this ID."""
        self.check_left(move)
        self._show(self.left.pop(move).ranges)

    def own(self, move: str, epoch: int) -> None:
        """Serve the slots of an import, which is complete. ValueError if there is none with this
        ID."""
        self.check_arriving(move)
        self.epoch = max(self.epoch, epoch)
        self._note_owned(move)
        self._show(self.imports.pop(move).ranges)

    def _note_owned(self, move: str) -> None:
        self.owned[move] = None
        if len(self.owned) > _OWNED_MAX:
            del self.owned[next(iter(self.owned))]

    def drop(self, move: str, epoch: int) -> None:
        """Forget a move, and free the keys of its slots, in steps if there is a server."""
        self.epoch = max(self.epoch, epoch)
        gone = self.imports.pop(move, None) or self.left.pop(move, None)
        if gone is None:
            return
        slots = set(slots_of(gone.ranges))
        self._forget_work(slots)
        self._freeing |= slots
        self._free_later()
        self._changed()

    def empty(self, slots: Iterable[int]) -> int:
        """Remove the keys of these slots now; return their number."""
        wanted = set(slots)
        self._forget_unfinished(wanted)
        removed = 0
        for db in self._used():
            for key in keys_of_slots(db, wanted):
                db.drop(key)
                removed += 1
        return removed

    def _used(self) -> list[Any]:
        """A cluster has keys only in the first database. `millstream check` has 10,000, and applies
        many effects on slots."""
        return self._keyspace.databases[:1]

    def clear(self) -> None:
        """Forget everything: other data follows."""
        was_used = bool(self)
        self.imports.clear()
        self.left.clear()
        self.owned.clear()
        self.epoch = 0
        self.unfinished.clear()
        self._freeing.clear()
        self._set_aside.clear()
        self._is_queued = False
        if was_used:
            self._changed()

    def _moves(self) -> list[Import | Departure]:
        return [*self.imports.values(), *self.left.values()]

    def check_import(self, made: Import) -> None:
        """ValueError unless `begin_import` is possible."""
        known = self.imports.get(made.id)
        if known is None:
            self.check_new(made.id, made.ranges)
        elif known.ranges != made.ranges:
            raise ValueError(f"the import {made.id} has other slots")

    def check_new(self, move: str, ranges: Ranges) -> None:
        """ValueError if there is this move already, or another one has one of its slots."""
        slots = set(slots_of(ranges))
        if move in self.imports or move in self.left:
            raise ValueError(f"the move {move} is known already")
        for other in self._moves():
            if not slots.isdisjoint(slots_of(other.ranges)):
                raise ValueError(f"the moves {move} and {other.id} have slots in common")

    def check_left(self, move: str) -> None:
        """ValueError unless slots have left with this move."""
        if move not in self.left:
            raise ValueError(f"no slots have left with the move {move}")

    def check_arriving(self, move: str) -> None:
        """ValueError unless there is this import."""
        if move not in self.imports:
            raise ValueError(f"there is no import {move}")

    def _show(self, ranges: Ranges) -> None:
        """Serve these slots, and do what was set aside for their keys."""
        self._changed()
        keyspace = self._keyspace
        for slot in slots_of(ranges):
            for kind, db, key, name in self._set_aside.pop(slot, ()):
                if kind == TIMER:
                    keyspace.timer_requests.append((keyspace.steady_ms, db, key, name))
                elif kind == EXPIRY:
                    keyspace.databases[db].due.note_again(key)
                elif kind == TRIM:
                    keyspace.retention_schedule.note(_SOON_MS, db, key)
                else:
                    keyspace.firing_schedule.note(_SOON_MS, db, key)
        keyspace.expiry_noted = True

    def _changed(self) -> None:
        """Hide the slots that are in one of the states."""
        keyspace = self._keyspace
        hidden = set(self._freeing)
        for move in self._moves():
            hidden.update(slots_of(move.ranges))
        if hidden != keyspace.hidden_slots:
            keyspace.hidden_slots = frozenset(hidden)
            if keyspace.on_slots_hidden is not None:
                keyspace.on_slots_hidden()

    # ------------------------------------------------------------ hidden keys

    def hides(self, key: bytes) -> bool:
        """True if a key is in a hidden slot."""
        return cluster_slot_of(key) in self._keyspace.hidden_slots

    def set_aside(self, kind: str, db: int, key: bytes, name: bytes | None = None) -> bool:
        """Postpone what is due for a key until its slot is served. False if it is served now."""
        slot = cluster_slot_of(key)
        if slot not in self._keyspace.hidden_slots:
            return False
        if slot not in self._freeing:
            # Once: the effects that arrive for a group may schedule its timer again and again.
            self._set_aside.setdefault(slot, {})[kind, db, key, name] = None
        return True

    def _forget_work(self, slots: set[int]) -> None:
        self._forget_unfinished(slots)
        for slot in slots.intersection(self._set_aside):
            del self._set_aside[slot]

    def _forget_unfinished(self, slots: set[int]) -> None:
        for key in [key for key in self.unfinished if cluster_slot_of(key) in slots]:
            del self.unfinished[key]

    # ------------------------------------------------------------ freeing

    def is_freeing(self, ranges: Ranges) -> bool:
        """True if keys that were dropped with one of these slots are not freed yet."""
        return not self._freeing.isdisjoint(slots_of(ranges))

    def free_step(self, most: int) -> bool:
        """Free about `most` objects; False when none is left. Called while the server has nothing
        else to do (blocks/lazyfree)."""
        most = max(1, most // _KEY_COST)
        keys = 0
        for db in self._used():
            found = some_keys_of(db, self._freeing, most - keys) if keys < most else []
            for key in found:
                db.drop(key)
            keys += len(found)
        if keys < most and self._freeing:
            self._freeing.clear()
            self._changed()
        self._is_queued = bool(self._freeing)
        return self._is_queued

    def _free_later(self) -> None:
        """Free in steps if a server runs. A snapshot or a long reply may still read the keys; while
        effects are loaded, others that follow may need the slots."""
        if not lazyfree.is_deferring():
            while self.free_step(1000):
                pass
        else:
            self._queue()

    def _queue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            lazyfree.free_when_unread(self, self._is_read)

    def _is_read(self) -> bool:
        return self._keyspace.is_walked() or not self._keyspace.expiring

    def free_now(self) -> None:
        """Free what is left of dropped slots, without a server."""
        self._finish_freeing(set(self._freeing))
        self._changed()

    def _finish_freeing(self, slots: set[int]) -> None:
        """Free everything in these slots now, before other keys arrive."""
        slots = slots & self._freeing
        if slots:
            self.empty(slots)
            self._freeing -= slots

    # ------------------------------------------------------------ snapshots

    def dump(self) -> dict[str, Any]:
        """The states as msgpack-able values (docs/formats.md, slots)."""
        made: dict[str, Any] = {
            "imports": [list(move) for move in self.imports.values()],
            "left": [list(move) for move in self.left.values()],
            "freeing": ranges_of(self._freeing),
        }
        if self.unfinished:
            made["unfinished"] = {key: bytes(parts) for key, parts in self.unfinished.items()}
        if self.epoch:
            made["owned"], made["epoch"] = list(self.owned), self.epoch
        return made

    def load(self, meta: Mapping[str, Any]) -> None:
        """Restore the result of `dump`; ValueError when it is malformed."""
        self.clear()
        for move, ranges, shard, history, number, copied in meta["imports"]:
            made = Import(move, checked_ranges(ranges), shard, history, number, copied)
            self.begin_import(made)
        for move, ranges, *shard in meta["left"]:
            self.leave(move, checked_ranges(ranges), shard[0] if shard else "")
        for move in meta.get("owned", ()):
            self._note_owned(move)
        self.epoch = meta.get("epoch", 0)
        self.unfinished = {
            key: bytearray(parts) for key, parts in meta.get("unfinished", {}).items()
        }
        self._freeing = set(slots_of(meta["freeing"]))
        if self._freeing:
            self._changed()
            self._queue()  # their keys are loaded after this
