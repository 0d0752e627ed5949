"""From replication messages to entries: fields, numbering, cuts. Without I/O.

An entry's ID is `<commit LSN>.<place>`. The place is counted from 1 over all rows that the slot
sends, whether or not their table is configured, so that a row has the same ID whenever it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from millstream.cdc.config import Table
from millstream.cdc.protocol.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Ignored,
    Insert,
    Message,
    Relation,
    Row,
    Truncate,
    Update,
)

EPOCH = datetime(1970, 1, 1)

Words: TypeAlias = list[bytes]
"""The fields of an entry: name, value, name, value ..."""


class ProtocolError(Exception):
    """The order of the messages violates the protocol."""


@dataclass(slots=True)
class ChangeEntry:
    """A change of one row, or a TRUNCATE of one table."""

    table: Table
    op: bytes
    lsn: int
    place: int
    words: Words


@dataclass(frozen=True, slots=True)
class TransactionCut:
    """A transaction of the source ended at `end_lsn`. `rows` are its entries."""

    lsn: int
    end_lsn: int
    at: str
    rows: int


@dataclass(frozen=True, slots=True)
class Described:
    """A table's columns, before its first change and after each change of the table."""

    table: Table
    relation: Relation


Output: TypeAlias = ChangeEntry | TransactionCut | Described


def time_text(microseconds: int) -> str:
    """A time of a source, `2026-11-22T15:04:05.250000Z`."""
    time = EPOCH + timedelta(microseconds=microseconds)
    return f"{time.isoformat(timespec='microseconds')}Z"


class Translator:
    """Turns the messages of one connection into entries and cuts."""

    def __init__(self, tables: Sequence[Table], by_oid: Mapping[int, Table] | None = None) -> None:
        """`by_oid` has the tables that were copied. They are the same after they were renamed."""
        self._by_oid = dict(by_oid or {})
        self._tables: Mapping[tuple[str, str], Table] = {
            (table.schema, table.name): table for table in tables
        }
        self._layouts: dict[int, RelationLayout] = {}
        self._begun: Begin | None = None
        self._at = b""
        self._place = 0
        self._rows = 0

    @property
    def inside(self) -> bool:
        """True if a transaction has begun and not ended."""
        return self._begun is not None

    def feed(self, message: Message) -> list[Output]:
        """Translate one message. ProtocolError if it is not allowed at this point."""
        match message:  # the frequent ones first
            case Insert(relation_id, new):
                return self._change(relation_id, b"insert", new, None, False)
            case Update(relation_id, old, old_is_key, new):
                return self._change(relation_id, b"update", new, old, old_is_key)
            case Delete(relation_id, old, old_is_key):
                return self._change(relation_id, b"delete", None, old, old_is_key)
            case Begin():
                if self._begun is not None:
                    raise ProtocolError("a transaction begins inside another one")
                self._begun, self._place, self._rows = message, 0, 0
                self._at = time_text(message.committed_us).encode()
            case Commit():
                return [self._commit(message)]
            case Relation():
                return self._describe(message)
            case Truncate(relation_ids):
                outputs: list[Output] = []
                for relation_id in relation_ids:
                    outputs += self._change(relation_id, b"truncate", None, None, False)
                return outputs
            case Ignored():
                pass
        return []

    def _describe(self, relation: Relation) -> list[Output]:
        """A relation comes again without a change, such as after a TRUNCATE."""
        known = self._layouts.get(relation.id)
        if known is not None and known.relation == relation:
            return []
        table = self._by_oid.get(relation.id)
        if table is None:
            table = self._tables.get((relation.schema, relation.name))
        if table is not None:
            self._by_oid[relation.id] = table
        self._layouts[relation.id] = RelationLayout(table, relation)
        return [] if table is None else [Described(table, relation)]

    def _commit(self, commit: Commit) -> TransactionCut:
        begun = self._transaction()
        if commit.commit_lsn != begun.commit_lsn:
            raise ProtocolError("a transaction ends at another place than it announced")
        self._begun = None
        return TransactionCut(commit.commit_lsn, commit.end_lsn, self._at.decode(), self._rows)

    def _transaction(self) -> Begin:
        if self._begun is None:
            raise ProtocolError("a change outside a transaction")
        return self._begun

    def _change(
        self, relation_id: int, op: bytes, new: Row | None, old: Row | None, old_is_key: bool
    ) -> list[Output]:
        begun = self._transaction()
        self._place += 1
        layout = self._layouts.get(relation_id)
        if layout is None:
            raise ProtocolError(f"a change of the relation {relation_id}, which was not described")
        if layout.table is None:
            return []
        if new is None:
            words = [b"@op", op, b"@at", self._at]
        else:
            words = layout.new_words(op, self._at, new, None if old_is_key else old)
        if old is not None:
            words += layout.old_words(old, old_is_key)
        self._rows += 1
        return [ChangeEntry(layout.table, op, begun.commit_lsn, self._place, words)]


class RelationLayout:
    """Turns the rows of one relation into fields. `table` is None if it is not configured."""

    __slots__ = ("_columns", "_has_all", "_keys", "_name", "_whole", "_width", "relation", "table")

    def __init__(self, table: Table | None, relation: Relation) -> None:
        self.table = table
        self.relation = relation
        self._name = f"{relation.schema}.{relation.name}"
        self._width = len(relation.columns)
        self._columns = [
            (number, column.name, field_name(column.name), b"@old:" + column.name.encode())
            for number, column in enumerate(relation.columns)
            if table is not None and kept(table, column.name)
        ]
        self._keys = {number for number, column in enumerate(relation.columns) if column.is_key}
        self._has_all = len(self._columns) == self._width
        self._whole = [b"@op", b"", b"@at", b""]
        """The words of an entry with all columns, without the values."""
        for _, _, field, _ in self._columns:
            self._whole += (field, b"")

    def new_words(self, op: bytes, at: bytes, new: Row, old: Row | None) -> Words:
        """The words of an entry with a new row. A large value that was not sent is taken from the
        old row, if the old row is complete."""
        self._check_width(new)
        if self._has_all and None not in new and UNCHANGED not in new:  # most rows
            words = self._whole.copy()
            words[1], words[3] = op, at
            words[5::2] = new  # type: ignore[assignment]
            return words
        words = [b"@op", op, b"@at", at]
        nulls: list[str] = []
        unchanged: list[str] = []
        for number, column, field, _ in self._columns:
            value = new[number]
            if value is UNCHANGED and old is not None:
                value = old[number]
            if value is None:
                nulls.append(column)
            elif value is UNCHANGED:
                unchanged.append(column)
            else:
                words += (field, value)  # type: ignore[arg-type]
        words += names_words(b"@null", nulls) + names_words(b"@unchanged", unchanged)
        return words

    def old_words(self, old: Row, only_key: bool) -> Words:
        """The old row, or the columns of the replica identity in it."""
        self._check_width(old)
        words: Words = []
        nulls: list[str] = []
        for number, column, _, field in self._columns:
            if only_key and number not in self._keys:
                continue
            value = old[number]
            if isinstance(value, bytes):
                words += (field, value)
            elif value is None:
                nulls.append(column)
        return words + names_words(b"@old-null", nulls)

    def _check_width(self, row: Row) -> None:
        if len(row) != self._width:
            raise ProtocolError(
                f"a row of {self._name} has {len(row)} columns, its table {self._width}"
            )


def field_name(column: str) -> bytes:
    """A column as a field: names that begin with @ are ours."""
    return (f"@{column}" if column.startswith("@") else column).encode()


def kept(table: Table, column: str) -> bool:
    return not table.columns or column in table.columns


def names_words(name: bytes, columns: list[str]) -> Words:
    """A field with a list of columns; none without columns."""
    return [name, names_json(tuple(columns))] if columns else []


@lru_cache(maxsize=1000)  # a table's rows have the same columns, again and again
def names_json(columns: tuple[str, ...]) -> bytes:
    return json.dumps(columns, ensure_ascii=False).encode()
