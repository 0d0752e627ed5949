"""The columns that a table of a source has had since its copy, as the reader saw them.

The entries of a stream name columns, without types. The record adds the types, and it tells a
column that was renamed from one that was added: both have a new name, only the latter has a new
number. Without I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

from millstream.cdc.streams.source_state import SourceColumn


@dataclass(frozen=True)
class RecordedColumn:
    """A column under one of its names. `number` is its number in the source's catalog. `default` is
    the text of the value that rows got which were there before the column; None without one."""

    name: str
    type: str
    number: int
    default: str | None = None


@dataclass(frozen=True)
class ColumnRecord:
    """Every name of every column, in the order in which the reader saw them."""

    columns: tuple[RecordedColumn, ...] = field(default=())

    def to_json(self) -> str:
        return json.dumps([asdict(column) for column in self.columns], ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes | None) -> ColumnRecord:
        """The record with this text; an empty one if there is no text, or an unknown one: the
        record only helps."""
        try:
            listed = json.loads(text or b"[]")
            return cls(tuple(RecordedColumn(**column) for column in listed))
        except (TypeError, ValueError):
            return cls()

    def with_columns(self, columns: Iterable[RecordedColumn]) -> ColumnRecord:
        """The record with further columns. A column that is there already gets its present type."""
        found = {(column.name, column.number): column for column in self.columns}
        for column in columns:
            found[column.name, column.number] = column
        return ColumnRecord(tuple(found.values()))

    def with_copied(self, columns: Iterable[SourceColumn]) -> ColumnRecord:
        """The record with the columns of the copy, of which earlier programs stored no numbers."""
        copied = ColumnRecord(
            tuple(
                RecordedColumn(column.name, column.type, column.number)
                for column in columns
                if column.number
            )
        )
        return copied.with_columns(self.columns)

    def latest(self, name: str) -> RecordedColumn | None:
        """The column that had this name last."""
        return next((one for one in reversed(self.columns) if one.name == name), None)

    def other_name(self, name: str, is_wanted: Callable[[str], bool]) -> str | None:
        """The other name of a column that fulfils a condition, if there is exactly one; None if the
        name belonged to several columns."""
        numbers = {column.number for column in self.columns if column.name == name}
        if len(numbers) != 1:
            return None
        names = {
            column.name
            for column in self.columns
            if column.number in numbers and column.name != name and is_wanted(column.name)
        }
        return names.pop() if len(names) == 1 else None
