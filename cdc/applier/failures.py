"""Errors that stop a table, and what is reported of them."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from millstream.cdc.destination.history_snapshot import CopyVanished
from millstream.cdc.destination.snapshot_loader import CopyLost
from millstream.cdc.destination.target import TargetError
from millstream.cdc.streams.changes import EntryError, Id

STOPPING = (psycopg.Error, TargetError, EntryError, CopyLost, CopyVanished)
# Errors that return until the change or the target is different: features that are missing,
# cardinality, values, constraints, functions in SQL and in other languages, names and privileges,
# views with CHECK OPTION, limits such as an index row's size, and PL/pgSQL's RAISE.
STOPPING_CLASSES = ("0A", "21", "22", "23", "2F", "38", "39", "42", "44", "54", "P0")
NOT_IN_PREREQUISITE_STATE = "55000"  # a delete from a published target without a replica identity


def stops(error: BaseException) -> bool:
    """True if an error stops its table: a retry without a change fails with it again."""
    if isinstance(error, psycopg.Error):
        state = error.sqlstate or ""
        return state[:2] in STOPPING_CLASSES or state == NOT_IN_PREREQUISITE_STATE
    return isinstance(error, STOPPING)


@dataclass(frozen=True)
class Failure:
    """The change, or the part of a copy, that cannot be applied. `is_lost`: the copy must be made
    again."""

    id: Id
    text: str
    is_lost: bool = False

    @property
    def id_text(self) -> str:
        return f"{self.id[0]}.{self.id[1]}"
