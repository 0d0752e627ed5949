"""The captures of a keyspace that are being taken: one for a snapshot, any number of single slots.

Each gets a key before it changes. A stream has the mark of the snapshot that has captured it, so
that its later changes cost nothing. With a capture of slots, `capture_number` is a number that no
captured stream has as its mark, so each change is reported.
"""

from __future__ import annotations

from typing import Any

from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.database import Database, Value
from millstream.storage.keyspace.keyspace import Keyspace


class SeveralCaptures:
    """A capture of all keys or None, and captures of slots."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.by_slot: dict[int, list[Any]] = {}

    def before_change(self, database: Database, key: bytes, value: Value | None) -> None:
        if self.whole is not None:
            self.whole.before_change(database, key, value)
        for one in self.by_slot.get(cluster_slot_of(key), ()):
            one.before_change(database, key, value)


def present_capture(keyspace: Keyspace) -> Any:
    """The capture of all keys that is being taken, or None."""
    capture = keyspace.capture
    return capture.whole if isinstance(capture, SeveralCaptures) else capture


def add_capture(keyspace: Keyspace, capture: object) -> int:
    """Report changes to a capture of all keys; returns its number, with which it marks the streams
    that it has captured."""
    keyspace.capture_number += 1
    number = keyspace.capture_number
    if isinstance(keyspace.capture, SeveralCaptures):
        keyspace.capture_number += 1
        keyspace.capture.whole = capture
    else:
        keyspace.capture = capture
    return number


def add_slot_capture(keyspace: Keyspace, capture: object, slot: int) -> None:
    """Report changes of keys of this slot to a capture."""
    if not isinstance(keyspace.capture, SeveralCaptures):
        keyspace.capture = SeveralCaptures(keyspace.capture)
    keyspace.capture_number += 2
    keyspace.capture.by_slot.setdefault(slot, []).append(capture)


def remove_capture(keyspace: Keyspace, capture: object, slot: int | None = None) -> None:
    """Report no more changes to a capture."""
    present = keyspace.capture
    if present is capture:
        keyspace.capture = None
    elif isinstance(present, SeveralCaptures):
        if present.whole is capture:
            present.whole = None
        elif slot is not None and capture in present.by_slot.get(slot, ()):
            present.by_slot[slot].remove(capture)
            if not present.by_slot[slot]:
                del present.by_slot[slot]
        if not present.by_slot:
            keyspace.capture = present.whole
