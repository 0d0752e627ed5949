"""Routes: the kind of a table, its target, and the target's columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from millstream.cdc.config import Table
from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.offsets import AppliedOffset
from millstream.cdc.destination.target import TargetColumn, TargetError, TargetTable
from millstream.cdc.sql import identifier, literal, shown
from millstream.cdc.streams.changes import Change
from millstream.cdc.streams.snapshot_entries import CopyBegin, CopyEnd
from millstream.cdc.streams.source_state import Identity, SourceColumn


class ChangeWriter(Protocol):
    """Applies changes to a target."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Take changes, in the order in which the source made them."""

    def flush(self) -> None:
        """Write what is not written yet; the last transaction is complete."""


class CopyLoader(Protocol):
    """Applies a copy to a target: `begin`, blocks of rows, `end`."""

    def begin(self, entry: CopyBegin, offset: AppliedOffset) -> None: ...

    def load(self, text: bytes) -> None:
        """Load rows in COPY's text format."""

    def end(self, entry: CopyEnd, offset: AppliedOffset) -> None: ...


class FirstCopy(Enum):
    """The effect of a table's first copy on the rows that the target has."""

    KEEPS = "keeps"
    DELETES = "deletes"
    REFUSES = "refuses"


class TableKind(ABC):
    """The way in which a table is applied to its target. Each value of a table's `type` has a
    subclass in table_kinds, which is the only place that knows in what the kinds differ."""

    own_columns: Mapping[str, str] = {}
    """Columns of the target that the source does not have, with their types in SQL."""
    key_columns: Sequence[str] = ()
    """Those of them that belong to the key."""
    needs_key = False
    keeps_deleted = False
    """DELETE and TRUNCATE have no effect."""
    has_whole_transactions = False
    """Changes can only be applied by whole transactions of the source."""
    has_copy_table = False
    """A copy is loaded into a table next to the target, and compared with the target."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @abstractmethod
    def first_copy(self, has_key: bool) -> FirstCopy: ...

    @abstractmethod
    def writer(self, session: TargetSession, to: Route) -> ChangeWriter: ...

    @abstractmethod
    def copy_loader(self, session: TargetSession, to: Route, names: Sequence[str]) -> CopyLoader:
        """`names` are the source's columns that COPY sends."""


@dataclass(frozen=True)
class Route:
    """The way of one source's table to its target.

    `columns` maps a source's column to the target's. `key` has the source's columns of the key;
    without a key, rows are found by all their values. `sid` is the target's column for the sid.
    """

    kind: TableKind
    target: TargetTable
    sid_value: str
    sid: str | None
    columns: Mapping[str, str]
    key: tuple[str, ...]
    source_types: Mapping[str, str]

    @property
    def table(self) -> Table:
        return self.kind.table

    @property
    def of_sid(self) -> str:
        """The condition that a row `t` of the target belongs to this source."""
        return self.sid_of("t")

    def sid_of(self, alias: str) -> str:
        """The condition that a row of the target with this alias belongs to this source."""
        if self.sid is None:
            return "true"
        return f"{alias}.{identifier(self.sid)} = {literal(self.sid_value)}"

    def column(self, source: str) -> TargetColumn:
        return self.target.columns[self.columns[source]]

    def key_columns(self) -> list[str]:
        """The names of the key's columns at the target, without the sid's."""
        return [self.columns[name] for name in self.key]


def route(
    kind: TableKind,
    target: TargetTable,
    sid: str,
    sid_column: str,
    columns: Sequence[SourceColumn],
    identity: Identity,
    is_shared: bool = False,
) -> Route:
    """Find the route of a table. TargetError if the target cannot take them."""
    table = kind.table
    own = sid_column if sid_column and sid_column in target.columns else None
    if own is None and is_shared:
        raise TargetError(
            f"{target.sql} has no column {sid_column!r}, but takes the rows of several sources:"
            f" ALTER TABLE {target.sql} ADD {identifier(sid_column or 'sid')} text NOT NULL"
        )
    missing = [name for name in kind.own_columns if name not in target.columns]
    if missing:
        raise TargetError(
            f"{target.sql} is a {table.type} without the column {', '.join(map(shown, missing))}"
        )
    mapped = {
        name: table.rename.get(name, name)
        for name in (column.name for column in columns)
        if _takes(kind, target, table.rename.get(name, name), own)
    }
    key = _key(kind, target, own, columns, identity, mapped)
    types = {column.name: column.type for column in columns}
    return Route(kind, target, sid, own, mapped, key, types)


def extended(to: Route, names: Sequence[str]) -> Route:
    """The route, with columns that the source's table got after its copy and the target has."""
    more = {
        name: to.table.rename.get(name, name)
        for name in names
        if name not in to.columns
        and _takes(to.kind, to.target, to.table.rename.get(name, name), to.sid)
    }
    return replace(to, columns={**to.columns, **more}) if more else to


def _takes(kind: TableKind, target: TargetTable, name: str, sid: str | None) -> bool:
    column = target.columns.get(name)
    if column is None or column.generated or name == sid or name in kind.table.set:
        return False
    return name not in kind.own_columns


def _key(
    kind: TableKind,
    target: TargetTable,
    sid: str | None,
    columns: Sequence[SourceColumn],
    identity: Identity,
    mapped: Mapping[str, str],
) -> tuple[str, ...]:
    """The columns of the key; empty for a target without one."""
    table = kind.table
    key = tuple(column.name for column in columns if column.key)
    wanted = {table.rename.get(name, name) for name in key}
    wanted |= {sid} if sid else set()
    wanted |= set(kind.key_columns)
    if key and all(name in mapped for name in key) and frozenset(wanted) in target.unique:
        return key
    if identity == "full" and not kind.needs_key:
        return ()
    if not key:
        raise TargetError(f"{table.full_name} has no key: a {table.type} needs one")
    names = ", ".join(identifier(name) for name in sorted(wanted))
    absent = ", ".join(shown(name) for name in sorted(wanted) if name not in target.columns)
    if absent:
        raise TargetError(f"{target.sql} lacks {absent} of the key ({names}): ALTER TABLE")
    raise TargetError(
        f"{target.sql} has no unique index over ({names}):"
        f" CREATE UNIQUE INDEX ON {target.sql} ({names})"
    )
