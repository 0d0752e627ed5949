"""What is needed at the sources, in millstream and at the destination, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from millstream.pipeline.cdc.preparing import Place

Level: TypeAlias = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One line of a check. `sql` mends it."""

    level: Level
    where: str
    what: str
    sql: str = ""

    @property
    def line(self) -> str:
        return f"{self.where}: {self.what}" + (f": {self.sql}" if self.sql else "")


def before_reading(place: Place) -> list[Finding]:
    return []
