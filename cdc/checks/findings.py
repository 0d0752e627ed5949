"""One line of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from millstream.cdc.sql import one_line

Level: TypeAlias = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """`where` names the source, its table, millstream or the destination. `sql` helps."""

    level: Level
    where: str
    what: str
    sql: str = ""

    @property
    def text(self) -> str:
        """In one line, without the level."""
        return one_line(f"{self.where}: {self.what}" + (f": {self.sql}" if self.sql else ""))


def without_source(text: str, source: str) -> str:
    """The text of a finding in the log of a source, whose lines have its name already."""
    return text.removeprefix(f"{source}: ").removeprefix(f"{source} ")


def error(where: str, what: str, sql: str = "") -> Finding:
    return Finding("error", where, what, sql)


def warning(where: str, what: str, sql: str = "") -> Finding:
    return Finding("warning", where, what, sql)


def ok(where: str, what: str) -> Finding:
    return Finding("ok", where, what)
