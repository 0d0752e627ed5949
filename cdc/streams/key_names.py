"""The keys of a pipeline in millstream."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.cdc.config import Source, Table

ALIVE_S = 15
"""The time for which a report at an `alive` key is valid, if no other follows."""


def escaped(name: str) -> str:
    """A name as a part of a key."""
    return name.replace("%", "%25").replace(":", "%3A")


def unescaped(name: str) -> str:
    """The name of a part of a key."""
    return name.replace("%3A", ":").replace("%25", "%")


@dataclass(frozen=True)
class SourceKeys:
    """The keys of one source."""

    prefix: str
    source: Source

    @property
    def cuts(self) -> str:
        """The stream of cuts."""
        return f"{self.prefix}:{escaped(self.source.database)}:{escaped(self.source.sid)}"

    @property
    def state(self) -> str:
        return f"{self.cuts}:state"

    @property
    def alive(self) -> str:
        return f"{self.cuts}:alive"

    @property
    def pattern(self) -> str:
        """The pattern of SCAN that all other keys of the source match."""
        return re.sub(r"([\\*?\[\]^])", r"\\\1", self.cuts) + ":*"

    def changes(self, table: Table) -> str:
        """The stream of a table's changes."""
        return f"{self.cuts}:{escaped(table.full_name)}"

    def table_name(self, key: str) -> str | None:
        """`schema.table` for the key of a table's state; None for any other key."""
        name = key.removeprefix(f"{self.cuts}:").removesuffix(":state")
        is_state = key == f"{self.cuts}:{name}:state" and ":" not in name
        return unescaped(name) if is_state else None

    def columns(self, table: Table) -> str:
        """The columns that a table has had since its copy."""
        return columns_key(self.changes(table))

    def copy(self, table: Table) -> str:
        """The stream of a copy in progress."""
        return f"{self.changes(table)}:copy"

    def table_state(self, table: Table) -> str:
        return f"{self.changes(table)}:state"

    def resume(self, table: Table) -> str:
        """Exists while `millstream cdc resume` asks `apply` to retry a stopped table."""
        return f"{self.changes(table)}:resume"


def columns_key(changes: str) -> str:
    """The key of the columns of a table whose stream of changes has this key."""
    return f"{changes}:columns"


def apply_alive(prefix: str) -> str:
    """The status that `apply` reports about itself."""
    return f"{prefix}:apply:alive"
