"""The parts of a stream besides its log and groups, in a snapshot: reservations and held entries,
lineage, and whether readers have promises about it. Most streams have none of these.
"""

from __future__ import annotations

from typing import Any

from millstream.storage.streams import held_snapshot
from millstream.storage.streams.lineage import Lineage
from millstream.storage.streams.stream import Stream


def ordering_meta(stream: Stream) -> dict[str, Any]:
    """These parts in a stream's map; held entries are not packed yet."""
    meta: dict[str, Any] = {}
    if stream.held is not None:
        meta["held"] = held_snapshot.share(stream.held)
    if stream.lineage is not None:
        meta["lineage"] = stream.lineage.dump()
    if stream.is_followed:
        meta["followed"] = True
    return meta


def restore_ordering(stream: Stream, meta: dict[str, Any], steady_ms: int) -> None:
    """Restore the result of `ordering_meta`; ValueError when the parts are inconsistent."""
    if "held" in meta:
        stream.held = held_snapshot.load(meta["held"], stream, steady_ms)
    if "lineage" in meta:
        stream.lineage = Lineage.load(meta["lineage"])
        if stream.lineage.sealed:
            stream.set_sealed()
    if meta.get("followed"):
        stream.set_followed()


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


def handed_out_id(stream: Stream) -> tuple[int, int]:
    """The last ID that was given to an entry or a reservation of the stream."""
    if stream.is_reserving:
        assert stream.held is not None
        return stream.held.last_id
    return stream.last_id
