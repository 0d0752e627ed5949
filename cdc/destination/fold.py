"""Folding: many changes of the same keys become at most one change of each key. Without I/O.

Applying a fold gives the same as applying its changes one by one, where an insert or an update with
a whole row puts the row in place of any other with its key, an update with unchanged values changes
the row if there is one, and a delete deletes it. A changed key, a TRUNCATE and a change of the
table's columns end a fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from millstream.cdc.protocol.pgoutput import UNCHANGED
from millstream.cdc.streams.changes import (
    DELETE,
    INSERT,
    START,
    TRUNCATE,
    Change,
    EntryError,
    Row,
    picker,
)

Key: TypeAlias = Row


class Effect(Enum):
    """The effect of the changes on a key."""

    DELETED = "d"
    PUT = "i"
    """The row is there; columns that only the target has keep their values."""
    REPLACED = "r"
    """The row was deleted and inserted: columns that only the target has get their defaults."""
    CHANGED = "u"
    """Values of the row change, if there is one; UNCHANGED stands for those that do not."""


class FoldStep(NamedTuple):
    effect: Effect
    row: Row


@dataclass(slots=True)
class Fold:
    """The effect of changes on each key. All rows have the same columns."""

    columns: tuple[str, ...]
    steps: dict[Key, FoldStep] = field(default_factory=dict)


@dataclass(slots=True)
class Rekeyed:
    """An update that changed the key."""

    old_key: Key
    key: Key
    change: Change


@dataclass(slots=True)
class Truncated:
    """The table was emptied."""

    change: Change


Segment: TypeAlias = Fold | Rekeyed | Truncated


def put_together(prior: Row, row: Row) -> Row:
    """The new row, with values of the prior one where it has UNCHANGED."""
    if UNCHANGED not in row:
        return row
    return tuple(old if new is UNCHANGED else new for old, new in zip(prior, row, strict=True))


def after_put(prior: FoldStep | None, row: Row) -> FoldStep | None:
    """An insert, or an update; None if it has no effect."""
    whole = UNCHANGED not in row
    if prior is None:
        return FoldStep(Effect.PUT if whole else Effect.CHANGED, row)
    effect, before = prior
    if effect is Effect.DELETED:
        return FoldStep(Effect.REPLACED, row) if whole else prior
    if effect is Effect.CHANGED:
        return FoldStep(Effect.PUT if whole else Effect.CHANGED, put_together(before, row))
    return FoldStep(effect, put_together(before, row))


class RowKeys:
    """Finds the key of a change; `columns` are the columns of the key, by their source names."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._picks: dict[tuple[str, ...], object] = {}

    def new(self, change: Change) -> Key:
        """The key of the new row."""
        key = self._of(change.columns, change.row, change)
        if UNCHANGED in key:  # a large value: the entry has it as a part of the old key
            key = put_together(self._of(change.old_columns, change.old, change), key)
            values = dict(zip(self.columns, key, strict=True))
            change.row = tuple(
                values.get(name, value)
                for name, value in zip(change.columns, change.row, strict=True)
            )
        return key

    def old(self, change: Change) -> Key | None:
        """The key of the old row; None if the entry does not have it: it is that of the new row."""
        if not change.old_columns:
            return None
        return self._of(change.old_columns, change.old, change)

    def deleted(self, change: Change) -> Key:
        """The key of the row that a delete removes; EntryError if the entry does not have it."""
        key = self.old(change)
        if key is None:
            raise EntryError(f"the delete {change.id[0]}.{change.id[1]} has no key")
        return key

    def _of(self, columns: tuple[str, ...], row: Row, change: Change) -> Key:
        pick = self._picks.get(columns)
        if pick is None:
            try:
                pick = picker([columns.index(name) for name in self.columns])
            except ValueError:
                raise EntryError(
                    f"the entry {change.id[0]}.{change.id[1]} lacks a column of the key"
                    f" ({', '.join(self.columns)})"
                ) from None
            self._picks[columns] = pick
        return pick(row)  # type: ignore[operator, no-any-return]


def fold(changes: Iterable[Change], keys: RowKeys, only_rows: bool = False) -> Iterator[Segment]:
    """Folds, with changed keys and TRUNCATEs between them, in the order in which they have to be
    applied. With `only_rows`, DELETE and TRUNCATE have no effect."""
    made: Fold | None = None
    for change in changes:
        op = change.op
        if op == START or (only_rows and op in (DELETE, TRUNCATE)):
            continue
        if op == TRUNCATE:
            if made is not None:
                yield made
                made = None
            yield Truncated(change)
            continue
        if op == DELETE:
            made = made or Fold(())
            made.steps[keys.deleted(change)] = FoldStep(Effect.DELETED, ())
            continue
        key = keys.new(change)
        old_key = None if op == INSERT else keys.old(change)
        if old_key is not None and old_key != key:
            if made is not None:
                yield made
                made = None
            yield Rekeyed(old_key, key, change)
            continue
        if made is None:
            made = Fold(change.columns)
        elif made.columns != change.columns:
            if made.columns:
                yield made
                made = Fold(change.columns)
            else:
                made.columns = change.columns
        step = after_put(made.steps.get(key), change.row)
        if step is not None:
            made.steps[key] = step
    if made is not None and made.steps:
        yield made
