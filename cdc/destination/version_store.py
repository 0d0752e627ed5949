"""The versions of a history at the destination: looking up the last ones, and writing new ones.

All statements work on many keys at once, through a temporary table. A second one, `touched`, has
what earlier parts of a transaction did to a key: the start of the version that they made, and of
the version that they ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.fold import Key
from millstream.cdc.destination.route import Route
from millstream.cdc.destination.staging import OP, UNCHANGED_COLUMN, Staging, Texts, set_values
from millstream.cdc.destination.versions import (
    DELETED,
    END,
    LAST_TEXT,
    START,
    Last,
    Made,
    Version,
    time_sql,
)
from millstream.cdc.protocol.pgoutput import Value
from millstream.cdc.sql import identifier, literal

N, START_AT, BASE_AT, END_AT, IS_DELETED = "_n", "_start", "_base", "_end", "_deleted"
MADE_AT, ENDED_AT = "_made", "_ended"
LAST = f"'{LAST_TEXT}'"
IS_OPEN = f"t.{END} = {LAST}"


class VersionStore:
    """The versions of one source's rows in one history, in the transaction of a session."""

    def __init__(self, session: TargetSession, to: Route) -> None:
        self._session = session
        self._route = to
        self._target = to.target.sql
        time = to.target.columns[START].base_type
        extra = [(N, "integer"), (START_AT, time), (BASE_AT, time), (END_AT, time)]
        self._staging = Staging(session, to, [*extra, (IS_DELETED, "boolean")])
        self._keys = [self._staging.numbers[name] for name in to.key]
        self._touched = self._staging.table + "_t"
        self._time = time
        self._has_touched = False

    # ------------------------------------------------------------ conditions

    def _key_is(self, other: str) -> str:
        """The condition that a row `t` of the target has the key of another table's row."""
        conditions = [self._route.of_sid]
        for name, number in zip(self._route.key, self._keys, strict=True):
            conditions.append(f"t.{identifier(self._route.columns[name])} = {other}.{number}")
        return " AND ".join(conditions)

    def _same(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{number} = {other}.{number}" for number in self._keys)

    # ------------------------------------------------------------ looking up

    def last(self, keys: Sequence[Key]) -> dict[Key, Last]:
        """The last version of each key that has any."""
        self._stage_keys(keys)
        rows = self._session.rows(
            f"SELECT s.{N}, (extract(epoch FROM o.{START}) * 1000000)::bigint,"
            f" (extract(epoch FROM o.{END}) * 1000000)::bigint FROM {self._staging.table} AS s"
            f" CROSS JOIN LATERAL (SELECT t.{START}, t.{END} FROM {self._target} AS t"
            f" WHERE {self._key_is('s')} ORDER BY t.{START} DESC LIMIT 1) AS o"
        )
        return {keys[number]: Last(start, end) for number, start, end in rows}

    def open_values(self, key: Key, columns: Sequence[str]) -> dict[str, Value]:
        """Values of the open version of a key, as texts; empty if it has none."""
        self._stage_keys([key])
        found = self._texts(columns, IS_OPEN, "")
        return found.get(0, {})

    def _stage_keys(self, keys: Sequence[Key]) -> None:
        rows: list[Texts] = [[b"%d" % n, *map(_text, key)] for n, key in enumerate(keys)]
        self._staging.load([N, *self._keys], rows)

    def _texts(
        self, columns: Sequence[str], condition: str, join: str
    ) -> dict[int, dict[str, Value]]:
        """The values of the versions of the staged keys, by the keys' numbers."""
        listed = "".join(f", t.{identifier(self._route.columns[name])}::text" for name in columns)
        rows = self._session.rows(
            f"SELECT s.{N}{listed} FROM {self._staging.table} AS s {join}"
            f" JOIN {self._target} AS t ON {self._key_is('s')} AND {condition}"
        )
        return {
            row[0]: {
                name: None if value is None else value.encode()
                for name, value in zip(columns, row[1:], strict=True)
            }
            for row in rows
        }

    # ------------------------------------------------------------ writing

    def write(self, made: Mapping[Key, Made], last: Mapping[Key, Last], is_partial: bool) -> None:
        """End the open versions and insert the new ones. `is_partial`: remember what was done."""
        numbers = self._staging.numbers
        versions = [(key, one) for key, own in made.items() for one in own.versions]
        columns = self._used_columns([one for _, one in versions])
        rows = [
            self._ending(key, own, last[key].start_us, len(columns))
            for key, own in made.items()
            if own.end_us is not None
        ]
        rows += [self._beginning(key, one, columns) for key, one in versions]
        if not rows:
            return
        values = [numbers[name] for name in columns]
        head = [OP, START_AT, BASE_AT, END_AT, IS_DELETED, UNCHANGED_COLUMN]
        self._staging.load([*head, *self._keys, *values], rows)
        self._session.run(
            f"UPDATE {self._target} AS t SET {END} = s.{END_AT}, {DELETED} = s.{IS_DELETED}"
            f" FROM {self._staging.table} AS s WHERE s.{OP} = 'e' AND {self._key_is('s')}"
            f" AND t.{START} = s.{START_AT}"
        )
        if versions:
            self._insert(columns)
        if is_partial:
            self._remember()

    def _used_columns(self, versions: Sequence[Version]) -> list[str]:
        """The columns that are inserted, without those of the key. A column that has a value in no
        new version and no version before it keeps its default."""
        names = [name for name in self._staging.numbers if name not in self._route.key]
        if any(one.base_us is not None for one in versions):
            return names
        used = {name for one in versions for name in one.values}
        return [name for name in names if name in used]

    def _ending(self, key: Key, made: Made, start_us: int, width: int) -> Texts:
        assert made.end_us is not None
        times = [time_sql(start_us).encode(), None, time_sql(made.end_us).encode()]
        deleted = b"t" if made.deleted else b"f"
        return [b"e", *times, deleted, None, *map(_text, key), *[None] * width]

    def _beginning(self, key: Key, one: Version, columns: Sequence[str]) -> Texts:
        base = None if one.base_us is None else time_sql(one.base_us).encode()
        times = [time_sql(one.start_us).encode(), base, time_sql(one.end_us).encode()]
        unchanged = None
        if one.base_us is not None:
            missing = [self._staging.numbers[name] for name in columns if name not in one.values]
            unchanged = f"{{{','.join(missing)}}}".encode() if missing else None
        values = [_text(one.values.get(name)) for name in columns]
        deleted = b"t" if one.deleted else b"f"
        return [b"b", *times, deleted, unchanged, *map(_text, key), *values]

    def _insert(self, columns: Sequence[str]) -> None:
        route = self._route
        values = {name: self._value(name) for name in [*route.key, *columns]}
        made = {route.columns[name]: sql for name, sql in values.items() if name in route.columns}
        made.update(set_values(route, values))
        made.update({START: f"s.{START_AT}", END: f"s.{END_AT}", DELETED: f"s.{IS_DELETED}"})
        if route.sid is not None:
            made[route.sid] = literal(route.sid_value)
        self._session.run(
            f"INSERT INTO {self._target} ({', '.join(map(identifier, made))})"
            f" OVERRIDING SYSTEM VALUE SELECT {', '.join(made.values())}"
            f" FROM {self._staging.table} AS s LEFT JOIN {self._target} AS t"
            f" ON {self._key_is('s')} AND t.{START} = s.{BASE_AT} WHERE s.{OP} = 'b'"
        )

    def _value(self, name: str) -> str:
        number = self._staging.numbers[name]
        if name in self._route.key or name not in self._route.columns:
            return f"s.{number}"
        before = f"t.{identifier(self._route.columns[name])}"
        return (
            f"CASE WHEN '{number}' = ANY (s.{UNCHANGED_COLUMN}) THEN {before} ELSE s.{number} END"
        )

    def end_all(self, at_us: int, kept: Sequence[Key]) -> None:
        """The table was emptied: end all open versions, except for those of keys that were inserted
        again."""
        self._stage_keys(kept)
        again = f"SELECT FROM {self._staging.table} AS s WHERE {self._key_is('s')}"
        condition = f"{IS_OPEN} AND NOT EXISTS ({again})"
        if self._has_touched:
            part = f"SELECT FROM {self._touched} AS u WHERE {self._key_is('u')}"
            condition += f" AND NOT EXISTS ({part} AND t.{START} = u.{MADE_AT})"
        self._session.run(
            f"UPDATE {self._target} AS t SET {DELETED} = true,"
            f" {END} = greatest({literal(time_sql(at_us))}::{self._time},"
            f" t.{START} + interval '1 microsecond')"
            f" WHERE {self._route.of_sid} AND {condition}"
        )

    # ------------------------------------------------------------ transactions in parts

    def _remember(self) -> None:
        if not self._has_touched:
            self._session.run(
                f"CREATE TEMP TABLE IF NOT EXISTS {self._touched.removeprefix('pg_temp.')}"
                f" ON COMMIT DELETE ROWS AS SELECT {', '.join(self._keys)},"
                f" {START_AT} AS {MADE_AT}, {START_AT} AS {ENDED_AT}"
                f" FROM {self._staging.table} WITH NO DATA"
            )
            self._session.run(f"TRUNCATE {self._touched}")
            self._has_touched = True
        keys = ", ".join(self._keys)
        self._session.run(
            f"INSERT INTO {self._touched} ({keys}, {MADE_AT}, {ENDED_AT}) SELECT {keys},"
            f" max({START_AT}) FILTER (WHERE {OP} = 'b'),"
            f" max({START_AT}) FILTER (WHERE {OP} = 'e')"
            f" FROM {self._staging.table} GROUP BY {keys}"
        )

    def take_back(self, keys: Sequence[Key], columns: Sequence[str]) -> dict[Key, dict[str, Value]]:
        """Take back what earlier parts did to these keys; the values of the versions they made."""
        if not self._has_touched:
            return {}
        self._stage_keys(keys)
        join = f"JOIN {self._touched} AS u ON {self._same('s', 'u')}"
        found = self._texts(columns, f"t.{START} = u.{MADE_AT}", join)
        self._undo(f"EXISTS (SELECT FROM {self._staging.table} AS s WHERE {self._same('s', 'u')})")
        return {keys[number]: values for number, values in found.items()}

    def take_back_all(self) -> None:
        """Take back what earlier parts did to all keys."""
        if self._has_touched:
            self._undo("true")

    def _undo(self, condition: str) -> None:
        self._session.run(
            f"DELETE FROM {self._target} AS t USING {self._touched} AS u"
            f" WHERE {condition} AND {self._key_is('u')} AND t.{START} = u.{MADE_AT}"
        )
        self._session.run(
            f"UPDATE {self._target} AS t SET {END} = {LAST}, {DELETED} = false"
            f" FROM {self._touched} AS u"
            f" WHERE {condition} AND {self._key_is('u')} AND t.{START} = u.{ENDED_AT}"
        )
        self._session.run(f"DELETE FROM {self._touched} AS u WHERE {condition}")

    def forget(self) -> None:
        """The transaction is complete."""
        if self._has_touched:
            self._session.run(f"TRUNCATE {self._touched}")


def _text(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None
