"""Where a stream continues and what it continues: the end of one shard, the beginning of others."""

from __future__ import annotations

from typing import Any


class Lineage:
    """The parents and the children of a stream, by name, and whether it is sealed. Both are only
    names: the streams may be elsewhere, or gone."""

    __slots__ = ("children", "parents", "sealed")

    def __init__(self) -> None:
        self.sealed = False
        self.parents: list[bytes] = []
        self.children: list[bytes] = []

    def dump(self) -> list[Any]:
        """As in a stream's map (docs/formats.md)."""
        return [self.sealed, list(self.parents), list(self.children)]

    @classmethod
    def load(cls, row: Any) -> Lineage:
        """Make a lineage of what `dump` gave; ValueError when it is malformed."""
        made = cls()
        made.sealed, made.parents, made.children = row
        names = made.parents + made.children
        if not isinstance(made.sealed, bool) or not all(isinstance(name, bytes) for name in names):
            raise ValueError("its lineage is malformed")
        return made
