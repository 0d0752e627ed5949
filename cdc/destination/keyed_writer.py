"""Changes of a target with a key: clones and appends.

Each fold is loaded into a temporary table and applied by at most three statements. The statements
depend on the fold only through its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.fold import Effect, Fold, Rekeyed, RowKeys, Truncated, fold
from millstream.cdc.destination.route import Route
from millstream.cdc.destination.staging import (
    OP,
    UNCHANGED_COLUMN,
    Staging,
    Texts,
    insert_staged,
    moving_sql,
    same_key,
    set_values,
)
from millstream.cdc.protocol.pgoutput import UNCHANGED
from millstream.cdc.sql import identifier
from millstream.cdc.streams.changes import Change, Row

REKEYED = "k"


class KeyedWriter:
    """Applies changes to one target in the transaction of a session."""

    def __init__(self, session: TargetSession, to: Route) -> None:
        self._session = session
        self._route = to
        self._target = to.target.sql
        self._staging = Staging(session, to)
        self._keys = RowKeys(to.key)
        self._keeps_deleted = to.kind.keeps_deleted

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes, in the order in which the source made them."""
        for run in _runs(fold(changes, self._keys, only_rows=self._keeps_deleted)):
            if isinstance(run, Truncated):
                self._session.run(f"DELETE FROM {self._target} AS t WHERE {self._route.of_sid}")
            elif isinstance(run, list):
                self._rekey(run)
            else:
                self._fold(run)

    def flush(self) -> None:
        """Nothing is held: `apply` has written everything."""

    # ------------------------------------------------------------ folds

    def _fold(self, made: Fold) -> None:
        columns = self._staged(made.columns)
        places = [made.columns.index(name) for name in columns if made.columns]
        self._load(columns, list(self._rows(made, columns, places)))
        effects = {step.effect for step in made.steps.values()}
        if effects & {Effect.DELETED, Effect.REPLACED}:
            self._delete()
        if effects & {Effect.PUT, Effect.REPLACED}:
            self._put(columns, f"s.{OP} IN ('i', 'r')")
        if Effect.CHANGED in effects:
            self._change(columns, Effect.CHANGED.value)

    def _rows(
        self, made: Fold, columns: Sequence[str], places: Sequence[int]
    ) -> Iterator[list[bytes | None]]:
        nothing = [None] * len(columns)
        key_places = [columns.index(name) for name in self._route.key if name in columns]
        for key, (effect, row) in made.steps.items():
            values: list[bytes | None]
            unchanged = None
            if effect is Effect.DELETED:
                values = list(nothing)
                for place, value in zip(key_places, key, strict=False):
                    values[place] = _text(value)
            else:
                values, unchanged = self._values(columns, places, row)
            yield [effect.value.encode(), unchanged, *values]

    def _values(
        self, columns: Sequence[str], places: Sequence[int], row: Row
    ) -> tuple[list[bytes | None], bytes | None]:
        """The values of a row, and the list of those that have not changed."""
        values = [row[place] for place in places]
        if UNCHANGED not in values:
            return values, None  # type: ignore[return-value]
        numbers = self._staging.numbers
        unchanged = [
            numbers[name] for name, value in zip(columns, values, strict=True) if value is UNCHANGED
        ]
        return [_text(value) for value in values], f"{{{','.join(unchanged)}}}".encode()

    def _load(self, columns: Sequence[str], rows: Sequence[Texts]) -> None:
        numbers = self._staging.numbers
        self._staging.load([OP, UNCHANGED_COLUMN, *(numbers[name] for name in columns)], rows)

    def _staged(self, columns: Sequence[str]) -> list[str]:
        """Those of an entry's columns that go into the temporary table; always those of the
        key."""
        listed = [name for name in columns if name in self._staging.numbers]
        return listed or list(self._route.key)

    # ------------------------------------------------------------ statements

    @property
    def _key_numbers(self) -> dict[str, str]:
        return {name: self._staging.numbers[name] for name in self._route.key}

    def _delete(self) -> None:
        self._session.run(
            f"DELETE FROM {self._target} AS t USING {self._staging.table} AS s"
            f" WHERE s.{OP} IN ('d', 'r') AND {same_key(self._route, self._key_numbers)}"
        )

    def _put(self, columns: Sequence[str], condition: str) -> None:
        """Insert staged rows, or put their values into the rows with their keys."""
        insert_staged(self._session, self._route, self._staging, columns, condition)

    def _change(self, columns: Sequence[str], op: str) -> int:
        """Update rows, without the values that have not changed; the number of rows found. With
        REKEYED, rows are found by their old keys, and their keys are updated, too."""
        route, numbers = self._route, self._staging.numbers
        values = {name: self._or_unchanged(name) for name in columns}
        key = set(route.key) if op != REKEYED else set()
        made = {
            route.columns[name]: value
            for name, value in values.items()
            if name in route.columns and name not in key
        }
        made.update(set_values(route, values))
        found = self._staging.old if op == REKEYED else {name: numbers[name] for name in route.key}
        moved = {name: made[name] for name in made if name in route.target.fixed}
        count = 0
        if moved:
            if op == REKEYED:  # the whole key at once: a part of it may be the key of another row
                moved |= {name: made[name] for name in route.key_columns()}
            condition = f"s.{OP} = '{op}' AND {same_key(route, found)}"
            count = self._session.run(moving_sql(route, self._staging.table, moved, condition))
            found = {name: numbers[name] for name in route.key}
            made = {name: value for name, value in made.items() if name not in moved}
        if not made:
            return count
        assigned = ", ".join(f"{identifier(name)} = {value}" for name, value in made.items())
        return self._session.run(
            f"UPDATE {self._target} AS t SET {assigned} FROM {self._staging.table} AS s"
            f" WHERE s.{OP} = '{op}' AND {same_key(route, found)}"
        )

    def _or_unchanged(self, name: str) -> str:
        """The new value of a column of `s`, or the present value of `t`."""
        number = self._staging.numbers[name]
        if name not in self._route.columns:
            return f"s.{number}"
        present = f"t.{identifier(self._route.columns[name])}"
        return (
            f"CASE WHEN '{number}' = ANY (s.{UNCHANGED_COLUMN}) THEN {present} ELSE s.{number} END"
        )

    # ------------------------------------------------------------ changed keys

    def _rekey(self, run: list[Rekeyed]) -> None:
        """Updates that change keys, of which none uses the key of another one."""
        source_columns = run[0].change.columns
        columns = self._staged(source_columns)
        places = [source_columns.index(name) for name in columns]
        rows: list[Texts] = []
        for one in run:
            values, unchanged = self._values(columns, places, one.change.row)
            rows.append([REKEYED.encode(), unchanged, *values, *map(_text, one.old_key)])
        names = [self._staging.numbers[name] for name in columns]
        self._staging.load([OP, UNCHANGED_COLUMN, *names, *self._staging.old.values()], rows)
        if self._keeps_deleted:  # a row that the source deleted may have the new key
            self._session.run(
                f"DELETE FROM {self._target} AS t USING {self._staging.table} AS s"
                f" WHERE {same_key(self._route, self._key_numbers)}"
            )
        if self._change(columns, REKEYED) < len(run):
            self._put(columns, f"s.{UNCHANGED_COLUMN} IS NULL")


def _text(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _runs(
    segments: Iterable[Fold | Rekeyed | Truncated],
) -> Iterator[Fold | Truncated | list[Rekeyed]]:
    """The segments; changed keys that do not depend on each other's order are put together."""
    run: list[Rekeyed] = []
    used: set[Row] = set()
    for segment in segments:
        if isinstance(segment, Rekeyed):
            keys = {segment.old_key, segment.key}
            if run and (keys & used or run[0].change.columns != segment.change.columns):
                yield run
                run, used = [], set()
            run.append(segment)
            used |= keys
            continue
        if run:
            yield run
            run, used = [], set()
        yield segment
    if run:
        yield run
