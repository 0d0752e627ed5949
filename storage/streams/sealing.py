"""Sealing a stream, and linking it with the streams before and after it."""

from __future__ import annotations

from millstream.storage.streams.lineage import Lineage
from millstream.storage.streams.stream import Stream


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
