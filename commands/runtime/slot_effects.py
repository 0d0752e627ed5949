"""The effects of cluster slots that move between two shards, and of the keys that are copied.

* IMPORT, at the target: a move has begun, or its copy has come to a frame of the source.
* LEAVE, at the source: the slots are not served from this frame on.
* STAY, at the source: they are served again.
* OWN, at the target: the import is complete, and its slots are served.
* DROPSLOTS, at both: the keys of the slots are freed, and the move is forgotten.
* FLUSHSLOTS, STREAMS, KEYPART, at the target: the keys of slots are removed, for FLUSHALL or before
  a slot is copied; small streams, as a snapshot has them; a part of a stream.
"""

from __future__ import annotations

from millstream.commands.runtime.effects import EFFECT_BYTES, Effects, apply_effects, effect
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_keys import flush
from millstream.storage.keyspace.slot_ranges import (
    Ranges,
    checked_ranges,
    parse_ranges,
    ranges_text,
    slots_of,
)
from millstream.storage.keyspace.slot_states import Import

IMPORT, LEAVE, STAY, OWN, DROPSLOTS = b"IMPORT", b"LEAVE", b"STAY", b"OWN", b"DROPSLOTS"
FLUSHSLOTS, STREAMS, KEYPART = b"FLUSHSLOTS", b"STREAMS", b"KEYPART"
_ALL = 2**31


# ---------------------------------------------------------------- the state of slots

# An effect is recorded before the state changes: requests that waited for the slots may run then,
# and theirs have to follow it.


@effect(IMPORT, keys=())
def apply_import(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """IMPORT id slots shard history n [slot]."""
    move, slots, shard, history, number, *copied = words
    made = Import(
        move.decode(),
        parse_ranges(slots),
        shard.decode(),
        history.decode(),
        int(number),
        int(copied[0]) if copied else -1,
    )
    keyspace.slot_states.begin_import(made)


def note_import(keyspace: Keyspace, effects: Effects, made: Import) -> None:
    """Begin an import, or note its progress. ValueError if another move has one of the slots, or if
    the slots of the import change."""
    slots = ranges_text(checked_ranges(made.ranges))
    effects.require_room(EFFECT_BYTES + len(slots))
    keyspace.slot_states.check_import(made)
    copied = () if made.copied < 0 else (made.copied,)
    words = made.id.encode(), slots, made.shard.encode(), made.history.encode(), made.number
    effects.record(-1, IMPORT, *words, *copied)
    keyspace.slot_states.begin_import(made)


@effect(LEAVE, keys=())
def apply_leave(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """LEAVE id slots [shard]."""
    move, slots, *shard = words
    keyspace.slot_states.leave(move.decode(), parse_ranges(slots), b"".join(shard).decode())


def note_left(keyspace: Keyspace, effects: Effects, move: str, ranges: Ranges, shard: str) -> None:
    """Serve these slots no longer: this shard gets them. ValueError if another move has one of
    them."""
    slots = ranges_text(checked_ranges(ranges))
    effects.require_room(EFFECT_BYTES + len(slots))
    keyspace.slot_states.check_new(move, ranges)
    effects.record(-1, LEAVE, move.encode(), slots, shard.encode())
    keyspace.slot_states.leave(move, ranges, shard)


@effect(STAY, keys=())
def apply_stay(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """STAY id."""
    (move,) = words
    keyspace.slot_states.stay(move.decode())


def note_stay(keyspace: Keyspace, effects: Effects, move: str) -> None:
    """Serve the slots of a departure again. ValueError if there is none."""
    effects.require_room(EFFECT_BYTES)
    keyspace.slot_states.check_left(move)
    effects.record(-1, STAY, move.encode())
    keyspace.slot_states.stay(move)


@effect(OWN, keys=())
def apply_own(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """OWN id [epoch]."""
    move, *epoch = words
    keyspace.slot_states.own(move.decode(), int(epoch[0]) if epoch else 0)


def note_owned(keyspace: Keyspace, effects: Effects, move: str, epoch: int) -> None:
    """Serve the slots of an import, as the map with this epoch says. ValueError if there is
    none."""
    effects.require_room(EFFECT_BYTES)
    keyspace.slot_states.check_arriving(move)
    effects.record(-1, OWN, move.encode(), epoch)
    keyspace.slot_states.own(move, epoch)


@effect(DROPSLOTS, keys=())
def apply_dropslots(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """DROPSLOTS id [epoch]."""
    move, *epoch = words
    keyspace.slot_states.drop(move.decode(), int(epoch[0]) if epoch else 0)


def note_dropped(keyspace: Keyspace, effects: Effects, move: str, epoch: int) -> None:
    """Forget an import or a departure, and free its keys, as the map with this epoch says; nothing
    if it is not known."""
    states = keyspace.slot_states
    if move in states.imports or move in states.left:
        note_absent(keyspace, effects, move, epoch)


def note_absent(keyspace: Keyspace, effects: Effects, move: str, epoch: int) -> None:
    """The same, with an effect in any case: who has it on the disk has not this move."""
    effects.require_room(EFFECT_BYTES)
    effects.record(-1, DROPSLOTS, move.encode(), epoch)
    keyspace.slot_states.drop(move, epoch)


# ---------------------------------------------------------------- the keys that are copied


@effect(FLUSHSLOTS, keys=())
def apply_flushslots(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """FLUSHSLOTS slots [incarnation]."""
    slots, *incarnation = words
    keyspace.incarnation = max(keyspace.incarnation, *map(int, incarnation), 0)
    wanted = frozenset(slots_of(parse_ranges(slots)))
    hidden = keyspace.hidden_slots
    if len(wanted) + len(hidden) == CLUSTER_SLOTS and wanted.isdisjoint(hidden):
        for db in keyspace.databases:  # quicker, as for FLUSHALL
            flush(db)
    else:
        keyspace.slot_states.empty(wanted)


@effect(STREAMS, keys=())
def apply_streams(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """STREAMS section blocks."""
    from millstream.storage.capture.small_loader import SmallLoader

    section, blocks = words
    SmallLoader(section, blocks).step(keyspace, _ALL)


@effect(KEYPART)
def apply_keypart(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
    """KEYPART key kind data."""
    from millstream.storage.capture.key_parts import restore_part

    key, kind, data = words
    restore_part(keyspace, key, int(kind), data)


def import_payload(keyspace: Keyspace, effects: Effects, payload: bytes) -> None:
    """Apply and record effects that come from the source of an import. EffectError if that fails:
    the import has to be dropped then. CommandError without space in the journal: nothing was
    done."""
    effects.require_room(len(payload) + EFFECT_BYTES)
    expiring, keyspace.expiring = keyspace.expiring, False  # the source says what has expired
    try:
        keyspace.dirty += apply_effects(keyspace, payload)
    finally:
        keyspace.expiring = expiring
    effects.record_payload(payload)


def empty_some(keyspace: Keyspace, effects: Effects, slot: int, most: int) -> bool:
    """Delete at most this number of keys of a slot, before it is copied again; False when none is
    left."""
    db = keyspace.databases[0]
    keys = db.slots.keys_in(slot, most)
    if keys:
        effects.require_room(EFFECT_BYTES + sum(map(len, keys)) + 10 * len(keys))
        for key in keys:
            db.drop(key)
        effects.record(0, b"DEL", *keys)
    return len(keys) == most
