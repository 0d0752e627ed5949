"""The streams that a stream continues, and the streams that continue it after it is sealed."""

from __future__ import annotations

from typing import Any


class Lineage:
    """The parents and the children of a stream, by name, and whether it is sealed. The streams with
    these names may be on other servers, or deleted."""

    __slots__ = ("children", "parents", "sealed")

    def __init__(self) -> None:
        self.sealed = False
        self.parents: list[bytes] = []
        self.children: list[bytes] = []

    def dump(self) -> list[Any]:
        """The form in a stream's map (docs/formats.md)."""
        return [self.sealed, list(self.parents), list(self.children)]

    @classmethod
    def load(cls, row: Any) -> Lineage:
        """Make a lineage from the result of `dump`; ValueError when it is malformed."""
        made = cls()
        made.sealed, made.parents, made.children = row
        names = made.parents + made.children
        if not isinstance(made.sealed, bool) or not all(isinstance(name, bytes) for name in names):
            raise ValueError("its lineage is malformed")
        return made
