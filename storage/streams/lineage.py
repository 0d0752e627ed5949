"""The streams that a stream continues, and the streams that continue it after it is sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.storage.streams.stream import Stream


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


def lineage_of(stream: Stream) -> Lineage:
    """The lineage of a stream, created if necessary."""
    if stream.lineage is None:
        stream.lineage = Lineage()
    return stream.lineage


def seal(stream: Stream, children: list[bytes]) -> None:
    """Seal a stream: it accepts no more entries, and continues in these children."""
    lineage = lineage_of(stream)
    lineage.sealed = True
    lineage.children = children
    stream.set_sealed()


def add_parents(stream: Stream, parents: list[bytes]) -> list[bytes]:
    """Add parents to a stream; returns those that are new."""
    lineage = lineage_of(stream)
    new = [name for name in parents if name not in lineage.parents]
    lineage.parents += new
    return new
