"""The data of this server, as the links of moving slots read and change it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from millstream.commands.later.effect_slots import divide
from millstream.commands.later.slot_pieces import SlotPieces
from millstream.commands.runtime import slot_effects
from millstream.commands.runtime.effects import Effects
from millstream.server.cluster.slot_moves.move_rules import overlap
from millstream.server.cluster.slot_moves.slot_records import Place
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_ranges import Ranges, ranges_of
from millstream.storage.keyspace.slot_states import Departure, Import


class SlotData:
    """Each change is recorded as effects of the tick. ValueError if it does not fit the state;
    CommandError if there is no space for its frame."""

    def __init__(self, keyspace: Keyspace, effects: Effects) -> None:
        self._keyspace = keyspace
        self._effects = effects

    @property
    def imports(self) -> Mapping[str, Import]:
        """The slots that arrive, by the ID of their move."""
        return self._keyspace.slot_states.imports

    @property
    def departures(self) -> Mapping[str, Departure]:
        """The slots that have left and are not dropped yet."""
        return self._keyspace.slot_states.left

    @property
    def owned(self) -> Collection[str]:
        """The last moves that have brought slots."""
        return self._keyspace.slot_states.owned

    @property
    def epoch(self) -> int:
        """The greatest one of the maps after which slots were served or freed."""
        return self._keyspace.slot_states.epoch

    def is_freeing(self, ranges: Ranges) -> bool:
        """True if earlier data of these slots is not freed yet. After a failover, slots may have
        left and not be dropped, although the primary before had dropped them."""
        has_left = any(overlap(ranges, one.ranges) for one in self.departures.values())
        return has_left or self._keyspace.slot_states.is_freeing(ranges)

    # The target

    def note_import(self, move: str, ranges: Ranges, shard: str, place: Place) -> None:
        made = Import(move, ranges, shard, *place)
        slot_effects.note_import(self._keyspace, self._effects, made)

    def note_owned(self, move: str, epoch: int) -> None:
        slot_effects.note_owned(self._keyspace, self._effects, move, epoch)

    def take(self, payload: bytes) -> None:
        """Apply a piece or effects. EffectError: the import cannot continue."""
        slot_effects.import_payload(self._keyspace, self._effects, payload)

    def empty_some(self, slot: int, most: int) -> int:
        """Delete at most this number of keys of an arriving slot; return how many there were."""
        keys = self._keyspace.databases[0].slots.count_in(slot)
        if keys:
            slot_effects.empty_some(self._keyspace, self._effects, slot, most)
        return keys

    # The source

    def shown_of(self, slots: Iterable[int]) -> Ranges:
        """Those of these slots that have keys and are not hidden."""
        hidden, known = self._keyspace.hidden_slots, self._keyspace.databases[0].slots
        return ranges_of(slot for slot in slots if slot not in hidden and known.count_in(slot))

    def capture(self, slot: int) -> SlotPieces:
        """A capture of a slot as it is after the last frame."""
        return SlotPieces(self._keyspace, slot)

    def divide(self, payload: bytes, wanted: bytearray) -> bytes:
        """The effects of a frame on the slots whose byte is 1."""
        return divide(payload, wanted)

    def note_left(self, move: str, ranges: Ranges, shard: str) -> None:
        slot_effects.note_left(self._keyspace, self._effects, move, ranges, shard)

    def note_stay(self, move: str) -> None:
        slot_effects.note_stay(self._keyspace, self._effects, move)

    # Both

    def note_dropped(self, move: str, epoch: int) -> None:
        slot_effects.note_dropped(self._keyspace, self._effects, move, epoch)

    def note_absent(self, move: str) -> None:
        slot_effects.note_absent(self._keyspace, self._effects, move, self.epoch)


def end_moves(keyspace: Keyspace, effects: Effects, owns: Callable[[int], bool]) -> None:
    """End all moves, with the slots that this server owns. CommandError without space for the
    effects."""
    states = keyspace.slot_states
    for move, arriving in [*states.imports.items()]:
        if owns(arriving.ranges[0][0]):
            slot_effects.note_owned(keyspace, effects, move, states.epoch)
        else:
            slot_effects.note_dropped(keyspace, effects, move, states.epoch)
    for move, left in [*states.left.items()]:
        if owns(left.ranges[0][0]):
            slot_effects.note_stay(keyspace, effects, move)
        else:
            slot_effects.note_dropped(keyspace, effects, move, states.epoch)
