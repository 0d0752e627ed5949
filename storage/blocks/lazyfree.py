"""Lazy freeing of large objects, in small steps.

Such objects are the blocks of a deleted stream, the blocks removed by a trim, the tables of a
flushed database, and the pending entries of a group. Freeing a million objects at once would block
the server for a tenth of a second or more. This module keeps the objects and frees them while the
server is idle, 1000 objects in about half a millisecond. A thread would hold the interpreter's lock
for the same time. Only a server frees lazily (`defer`); elsewhere everything is freed immediately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from millstream.storage.blocks.skiplist import SkipList

_AT_ONCE = 1024  # blocks of a trim, or items of a container, that are freed immediately
_AT_ONCE_EACH = 16  # the same for blocks of a deleted stream: many streams may be deleted together
_ALL = 2**64 - 1

Container = list[Any] | dict[Any, Any] | deque[Any]


class Freeable(Protocol):
    def free_step(self, most: int) -> bool:
        """Free about `most` blocks or items; False when none is left."""


class _Items:
    """A container that has no other reference."""

    def __init__(self, items: Container) -> None:
        self._items = items

    def free_step(self, most: int) -> bool:
        remove = self._items.popitem if isinstance(self._items, dict) else self._items.pop
        for _ in range(min(most, len(self._items))):
            remove()
        return len(self._items) > 0


class _Table:
    """A table of a database, which a snapshot or a long KEYS may still read."""

    def __init__(self, table: Freeable, is_read: Callable[[], bool]) -> None:
        self.free_step = table.free_step
        self.is_read = is_read


TO_FREE: list[Freeable] = []  # everything to be freed later
_deferring = False


def defer(wanted: bool) -> None:
    """Turn lazy freeing on or off. Turning it off frees everything that is waiting."""
    global _deferring
    _deferring = wanted
    if not wanted:
        TO_FREE[:] = [item for item in TO_FREE if not isinstance(item, _Items | _Table)]
        while free_step(_AT_ONCE):
            pass


def is_deferring() -> bool:
    return _deferring


def discard(blocks: SkipList) -> None:
    """Free the blocks of a deleted stream; there must be no other reference to the list."""
    if _deferring and blocks.blocks > _AT_ONCE_EACH:
        TO_FREE.append(blocks)


def discard_part(part: SkipList) -> None:
    """Free blocks that were cut off from a list: the first ones immediately, the rest later."""
    if part.free_step(_AT_ONCE):
        TO_FREE.append(part)


def free_parts(whole: SkipList) -> None:
    """Free everything that was cut off from a list; its totals then count only its own blocks."""
    for part in [item for item in TO_FREE if getattr(item, "cut_from", None) is whole]:
        part.free_step(_ALL)
        TO_FREE.remove(part)


def discard_table(table: dict[Any, Any] | Freeable, is_read: Callable[[], bool]) -> None:
    """Free a dict or the slots of a database once no reader is left. The number of keys does
    not matter, because few keys may have many blocks."""
    if _deferring and table:
        items = _Items(table) if isinstance(table, dict) else table
        TO_FREE.append(_Table(items, is_read))


def free_when_unread(freeable: Freeable, is_read: Callable[[], bool]) -> None:
    """Free something in steps once no reader is left, also if the server has not started yet."""
    TO_FREE.append(_Table(freeable, is_read))


def discard_items(items: Container) -> None:
    """Free a container that has no other reference; a short one is freed immediately."""
    if _deferring and len(items) > _AT_ONCE:
        TO_FREE.append(_Items(items))


def discard_pending(shared: Freeable) -> None:
    """Free the pending entries of a deleted group."""
    TO_FREE.append(shared)


def free_step(most: int) -> bool:
    """Free about `most` blocks or items; return whether more can be freed now. Objects that a
    snapshot or a long KEYS reads can be freed only after its end."""
    for index in range(len(TO_FREE) - 1, -1, -1):
        item = TO_FREE[index]
        if isinstance(item, _Table) and item.is_read():
            continue
        if not item.free_step(most):
            # Freeing values may have appended to the list, so this may not be the last index.
            del TO_FREE[index]
        return True
    return False
