"""Columns that are GENERATED ALWAYS AS IDENTITY: PostgreSQL allows no UPDATE of them.

A row whose value changes is deleted and inserted again, with all its other values.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.cdc.destination.route import Route
from millstream.cdc.sql import identifier


def moving_sql(to: Route, staged: str, values: Mapping[str, str], condition: str) -> str:
    """The statement that gives target rows `t` new values from staged rows `s`, for any columns.
    Rows that have these values already are left alone.

    `values` are expressions in SQL by the target's column; the first one can be sorted.
    """
    present = ", ".join(f"t.{identifier(name)}" for name in values)
    wanted = ", ".join(values.values())
    kept = [name for name in to.target.columns if _is_kept(to, name) and name not in values]
    returned = [f"t.{identifier(name)} AS k{number}" for number, name in enumerate(kept)]
    returned += [f"{value} AS v{number}" for number, value in enumerate(values.values())]
    inserted = [f"k{number}" for number in range(len(kept))]
    inserted += [f"v{number}" for number in range(len(values))]
    # Sorted: all rows have been deleted before the first one is inserted with its new value.
    return (
        f"WITH d AS (DELETE FROM {to.target.sql} AS t USING {staged} AS s WHERE {condition}"
        f" AND ROW({present}) IS DISTINCT FROM ROW({wanted}) RETURNING {', '.join(returned)})"
        f" INSERT INTO {to.target.sql} ({', '.join(map(identifier, [*kept, *values]))})"
        f" OVERRIDING SYSTEM VALUE SELECT {', '.join(inserted)} FROM d ORDER BY v0"
    )


def moving_one_sql(to: Route, one_row: str, values: Mapping[str, str]) -> str:
    """The statement that gives the row that a subquery finds new values, and returns where it is
    then. `values` are expressions in SQL by the target's column."""
    kept = [name for name in to.target.columns if _is_kept(to, name) and name not in values]
    names = [identifier(name) for name in kept]
    return (
        f"WITH d AS (DELETE FROM {to.target.sql} WHERE (tableoid, ctid) = ({one_row}) RETURNING *)"
        f" INSERT INTO {to.target.sql} ({', '.join([*names, *map(identifier, values)])})"
        f" OVERRIDING SYSTEM VALUE SELECT {', '.join([*names, *values.values()])} FROM d"
        " RETURNING tableoid, ctid"
    )


def _is_kept(to: Route, name: str) -> bool:
    return not to.target.columns[name].generated
