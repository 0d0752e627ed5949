"""The captures of a keyspace that are being taken: one for a snapshot, any number of single slots.

Each gets a key before it changes. A stream has the mark of the snapshot that has captured it, so
that its later changes cost nothing. With a capture of slots, `capture_number` is a number that no
captured stream has as its mark, so each change is reported.
"""

from __future__ import annotations

from typing import Any

from millstream.storage.keyspace.database import Database, Value
from millstream.storage.keyspace.keyspace import Keyspace


class SeveralCaptures:
    """Several captures in place of one."""

    def __init__(self, captures: tuple[Any, ...]) -> None:
        self.captures = captures

    def before_change(self, database: Database, key: bytes, value: Value | None) -> None:
        for one in self.captures:
            one.before_change(database, key, value)


def present_captures(keyspace: Keyspace) -> tuple[Any, ...]:
    """The captures that are being taken."""
    if keyspace.capture is None:
        return ()
    if isinstance(keyspace.capture, SeveralCaptures):
        return keyspace.capture.captures
    return (keyspace.capture,)


def add_capture(keyspace: Keyspace, capture: object, *, marks: bool) -> int:
    """Report changes to a new capture; returns its number. `marks`: it marks the streams that it
    has captured."""
    present = present_captures(keyspace)
    keyspace.capture_number += 1
    number = keyspace.capture_number
    if not marks or present:
        keyspace.capture_number += 1
    keyspace.capture = SeveralCaptures((*present, capture)) if present else capture
    return number


def remove_capture(keyspace: Keyspace, capture: object) -> None:
    """Report no more changes to a capture."""
    left = tuple(one for one in present_captures(keyspace) if one is not capture)
    keyspace.capture = SeveralCaptures(left) if len(left) > 1 else left[0] if left else None
