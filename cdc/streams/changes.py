"""From the entries of a table's stream to changes of rows. Without I/O.

The field names of an entry rarely differ from those of the previous entry. Therefore each
combination of names is analysed once, as a `_Shape`; reading an entry then only selects values by
their places.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from millstream.cdc.protocol.pgoutput import UNCHANGED, Value

Id: TypeAlias = tuple[int, int]
Entry: TypeAlias = tuple[Id, list[bytes]]
Row: TypeAlias = tuple[Value, ...]
Pick: TypeAlias = Callable[[Sequence[Any]], tuple[Any, ...]]

INSERT, UPDATE, DELETE, TRUNCATE, START = b"insert", b"update", b"delete", b"truncate", b"start"

NULL, UNCHANGED_LIST, OLD, OLD_NULL = b"@null", b"@unchanged", b"@old:", b"@old-null"
LISTS = (NULL, UNCHANGED_LIST, OLD_NULL)
SHAPES_MAX = 1000


class EntryError(Exception):
    """An entry that the reader of a source cannot have written; the text names it."""


@dataclass(slots=True)
class Change:
    """One change of a row, or a TRUNCATE.

    `row` has the values of `columns`, an old row those of `old_columns`: the names at the source.
    """

    id: Id
    op: bytes
    at: bytes
    columns: tuple[str, ...]
    row: Row
    old_columns: tuple[str, ...]
    old: Row

    @property
    def lsn(self) -> int:
        return self.id[0]

    def value(self, column: str) -> Value:
        """The new value of a column; KeyError if the entry does not have the column."""
        try:
            return self.row[self.columns.index(column)]
        except ValueError:
            raise KeyError(column) from None


@dataclass(frozen=True, slots=True)
class _Shape:
    """The places of an entry's values in its words, to which NULL and UNCHANGED are added."""

    columns: tuple[str, ...]
    pick: Pick
    old_columns: tuple[str, ...]
    pick_old: Pick


class EntryReader:
    """Reads the entries of one stream. Columns come in the order of `columns`; others follow."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._order = {name: number for number, name in enumerate(columns)}
        self._lists: dict[tuple[bytes, ...], Pick] = {}
        self._shapes: dict[tuple[Any, ...], _Shape] = {}

    def read(self, id_: Id, words: list[bytes]) -> Change:
        """One entry, from its field names and values. EntryError if it is malformed."""
        names = tuple(words[::2])
        lists = self._lists.get(names)
        if lists is None:
            lists = self._lists_of(id_, names)
        key = (names, lists(words))
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shape(id_, key)
        words += (None, UNCHANGED)  # type: ignore[arg-type]
        return Change(
            id_,
            words[1],
            words[3],
            shape.columns,
            shape.pick(words),
            shape.old_columns,
            shape.pick_old(words),
        )

    def _lists_of(self, id_: Id, names: tuple[bytes, ...]) -> Pick:
        if names[:2] != (b"@op", b"@at"):
            raise EntryError(f"the entry {id_[0]}.{id_[1]} does not begin with @op and @at")
        if len(self._lists) >= SHAPES_MAX:
            self._lists.clear()
        pick = picker([2 * names.index(name) + 1 for name in LISTS if name in names])
        self._lists[names] = pick
        return pick

    def _shape(self, id_: Id, key: tuple[tuple[bytes, ...], tuple[bytes, ...]]) -> _Shape:
        names, texts = key
        lists = dict(zip([name for name in LISTS if name in names], texts, strict=True))
        new: dict[str, int] = {}
        old: dict[str, int] = {}
        try:
            for number, name in enumerate(names):
                if name in LISTS or number < 2:
                    continue
                if name.startswith(OLD):
                    old[name[len(OLD) :].decode()] = 2 * number + 1
                else:
                    new[name.removeprefix(b"@").decode()] = 2 * number + 1
            null, unchanged = len(names) * 2, len(names) * 2 + 1
            new.update(dict.fromkeys(json.loads(lists.get(NULL, b"[]")), null))
            new.update(dict.fromkeys(json.loads(lists.get(UNCHANGED_LIST, b"[]")), unchanged))
            old.update(dict.fromkeys(json.loads(lists.get(OLD_NULL, b"[]")), null))
        except ValueError as error:
            raise EntryError(f"the entry {id_[0]}.{id_[1]} cannot be read: {error}") from None
        if len(self._shapes) >= SHAPES_MAX:
            self._shapes.clear()
        columns, old_columns = self._ordered(new), self._ordered(old)
        shape = _Shape(
            columns,
            picker([new[name] for name in columns]),
            old_columns,
            picker([old[name] for name in old_columns]),
        )
        self._shapes[key] = shape
        return shape

    def _ordered(self, names: dict[str, int]) -> tuple[str, ...]:
        for name in names:
            self._order.setdefault(name, len(self._order))
        return tuple(sorted(names, key=self._order.__getitem__))


def picker(places: Sequence[int]) -> Pick:
    """A function that returns the values at these places as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        (place,) = places
        return lambda values: (values[place],)
    return lambda values: ()
