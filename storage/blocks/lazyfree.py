"""Lazy freeing: what is large and no longer used is freed a little at a time.

That can be the blocks of a large stream that was deleted, those cut off by a trim, the tables of a
database that was flushed, the pending entries of a group. Freeing a million objects at once would
stop the server for a tenth of a second and more. What is kept here is freed in the server's idle
moments, 1000 objects in about half a millisecond. A thread would hold the interpreter's lock for as
long. Only a server frees in parts (`defer`); everywhere else all is freed at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from millstream.storage.blocks.skiplist import SkipList
    from millstream.storage.streams.keyspace import Keyspace

_AT_ONCE = 1024  # blocks of a trim, or items of a container, that are freed at once
_AT_ONCE_EACH = 16  # blocks of a deleted stream: very many streams may be deleted together
_ALL = 2**64 - 1

Container = list[Any] | dict[Any, Any] | deque[Any]


class Freeable(Protocol):
    def free_step(self, most: int) -> bool:
        """Free about `most` blocks or items; False when none is left."""


class _Items:
    """A container that only this module holds."""

    def __init__(self, items: Container) -> None:
        self._items = items

    def free_step(self, most: int) -> bool:
        remove = self._items.popitem if isinstance(self._items, dict) else self._items.pop
        for _ in range(min(most, len(self._items))):
            remove()
        return len(self._items) > 0


class _Table(_Items):
    """A dict of a database, which a snapshot or a long KEYS may still read."""

    def __init__(self, keyspace: Keyspace, table: dict[Any, Any]) -> None:
        super().__init__(table)
        self._keyspace = keyspace

    def is_read(self) -> bool:
        return self._keyspace.is_walked


WASTE: list[Freeable] = []  # all that is kept to be freed later
_deferring = False


def defer(wanted: bool) -> None:
    """Whether large objects are kept here to be freed later; if not, all that is kept is freed."""
    global _deferring
    _deferring = wanted
    if not wanted:
        WASTE[:] = [item for item in WASTE if not isinstance(item, _Items)]
        while free_step(_AT_ONCE):
            pass


def is_deferring() -> bool:
    return _deferring


def discard(blocks: SkipList) -> None:
    """Take over the blocks of a deleted stream; nothing else may hold the list."""
    if _deferring and blocks.blocks > _AT_ONCE_EACH:
        WASTE.append(blocks)


def discard_part(part: SkipList) -> None:
    """Take over what was cut off from a list, and free the beginning of it at once."""
    if part.free_step(_AT_ONCE):
        WASTE.append(part)


def free_parts(whole: SkipList) -> None:
    """Free all that was cut off from a list: its totals then count only what it has."""
    for part in [item for item in WASTE if getattr(item, "cut_from", None) is whole]:
        part.free_step(_ALL)
        WASTE.remove(part)


def discard_table(keyspace: Keyspace, table: dict[Any, Any]) -> None:
    """Take over a dict of a database. A dict with few keys may have many blocks, so the number of
    keys does not matter."""
    if _deferring and table:
        WASTE.append(_Table(keyspace, table))


def discard_items(items: Container) -> None:
    """Take over a container that nothing else holds; a short one is freed at once."""
    if _deferring and len(items) > _AT_ONCE:
        WASTE.append(_Items(items))


def discard_pending(shared: Freeable) -> None:
    """Take over the pending entries of a deleted group."""
    WASTE.append(shared)


def has_waste() -> bool:
    """Whether anything is kept to be freed later."""
    return bool(WASTE)


def free_step(most: int) -> bool:
    """Free about `most` blocks or items; whether more can be freed now. What a snapshot or a long
    KEYS reads can be freed only after its end."""
    for place in range(len(WASTE) - 1, -1, -1):
        item = WASTE[place]
        if isinstance(item, _Table) and item.is_read():
            continue
        if not item.free_step(most):
            # Freeing values may have added to the list, so that the place need not be the last.
            del WASTE[place]
        return True
    return False
