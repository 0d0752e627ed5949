"""Foreign keys between targets: which targets belong together, and which ones come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from millstream.cdc.destination.target import TargetName
from millstream.cdc.protocol.session import Connection

Reference: TypeAlias = tuple[TargetName, TargetName]
"""A table with a foreign key, and the table that it references."""

# With session_replication_role = replica, no foreign key is checked.
REFERENCES = """
SELECT cn.nspname, c.relname, pn.nspname, p.relname
  FROM unnest(%s::text[], %s::text[]) AS w (schema, name)
  JOIN pg_namespace cn ON cn.nspname = w.schema
  JOIN pg_class c ON c.relnamespace = cn.oid AND c.relname = w.name
  JOIN pg_constraint f ON f.conrelid = c.oid AND f.contype = 'f'
  JOIN pg_class p ON p.oid = f.confrelid
  JOIN pg_namespace pn ON pn.oid = p.relnamespace
 WHERE current_setting('session_replication_role') <> 'replica'
"""


def read_references(connection: Connection, names: Iterable[TargetName]) -> list[Reference]:
    """The foreign keys between these tables, without those of a table to itself."""
    wanted = set(names)
    if len(wanted) < 2:
        return []
    listed = sorted(wanted)
    parameters = [[one[0] for one in listed], [one[1] for one in listed]]
    with connection.cursor() as cursor:
        cursor.execute(REFERENCES, parameters)
        found = {((row[0], row[1]), (row[2], row[3])) for row in cursor}
    return sorted(one for one in found if one[0] != one[1] and one[1] in wanted)


def parents_first(
    names: Sequence[TargetName], references: Sequence[Reference]
) -> dict[TargetName, int]:
    """The places of tables in an order in which each table follows those that it references. In a
    cycle, the table that was listed first follows the others.

    >>> parents_first([("s", "c"), ("s", "p")], [(("s", "c"), ("s", "p"))])
    {('s', 'p'): 0, ('s', 'c'): 1}
    """
    parents: dict[TargetName, list[TargetName]] = {name: [] for name in names}
    for child, parent in references:
        if child in parents and parent in parents:
            parents[child].append(parent)
    places: dict[TargetName, int] = {}
    begun: set[TargetName] = set()
    for name in parents:
        waiting = [name]
        while waiting:
            one = waiting[-1]
            rest = [parent for parent in parents[one] if parent not in begun]
            begun.add(one)
            if rest:
                waiting.append(rest[0])
                continue
            waiting.pop()
            places.setdefault(one, len(places))
    return places


def connected(references: Sequence[Reference]) -> dict[TargetName, TargetName]:
    """For each table with a foreign key to or from it, the first table of those that are connected
    with it.

    >>> connected([(("s", "c"), ("s", "b")), (("s", "b"), ("s", "a"))])[("s", "c")]
    ('s', 'a')
    """
    first: dict[TargetName, TargetName] = {}

    def find(name: TargetName) -> TargetName:
        while first.setdefault(name, name) != name:
            name = first[name]
        return name

    for child, parent in references:
        one, other = sorted((find(child), find(parent)))
        first[other] = one
    return {name: find(name) for name in list(first)}
