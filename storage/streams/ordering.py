"""What a stream has beyond its log and its groups, as a snapshot has it: reservations and held
entries, lineage, and whether readers follow it with promises. Most streams have none of it.
"""

from __future__ import annotations

from typing import Any

from millstream.storage.streams import held_form
from millstream.storage.streams.lineage import Lineage
from millstream.storage.streams.stream import Stream


def ordering_meta(stream: Stream) -> dict[str, Any]:
    """The part of a stream's map that describes it; what is held is not packed yet."""
    meta: dict[str, Any] = {}
    if stream.held is not None:
        meta["held"] = held_form.share(stream.held)
    if stream.lineage is not None:
        meta["lineage"] = stream.lineage.dump()
    if stream.is_followed:
        meta["followed"] = True
    return meta


def restore_ordering(stream: Stream, meta: dict[str, Any], steady_ms: int) -> None:
    """Put back what `ordering_meta` gave; ValueError when it does not fit together."""
    if "held" in meta:
        stream.held = held_form.load(meta["held"], stream, steady_ms)
    if "lineage" in meta:
        stream.lineage = Lineage.load(meta["lineage"])
        if stream.lineage.sealed:
            stream.set_sealed()
    if meta.get("followed"):
        stream.set_followed()


def lineage_of(stream: Stream) -> Lineage:
    """The lineage of a stream, made when there is none."""
    if stream.lineage is None:
        stream.lineage = Lineage()
    return stream.lineage


def seal(stream: Stream, children: list[bytes]) -> None:
    """The stream takes no more entries, and continues in these."""
    lineage = lineage_of(stream)
    lineage.sealed = True
    lineage.children = children
    stream.set_sealed()


def add_parents(stream: Stream, parents: list[bytes]) -> list[bytes]:
    """What the stream continues, in addition to what it does; returns those that are new."""
    lineage = lineage_of(stream)
    new = [name for name in parents if name not in lineage.parents]
    lineage.parents += new
    return new


def handed_out_id(stream: Stream) -> tuple[int, int]:
    """The last ID that an entry or a reservation of the stream ever got."""
    if stream.is_reserving:
        assert stream.held is not None
        return stream.held.last_id
    return stream.last_id
