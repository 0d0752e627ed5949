"""The parts of a stream besides its log and groups, in a snapshot: reservations and held entries,
scheduled entries, lineage, and whether readers have promises about it. Most streams have none of
these.
"""

from __future__ import annotations

from typing import Any

from millstream.storage.reservations import held_snapshot
from millstream.storage.streams import schedule_snapshot
from millstream.storage.streams.lineage import Lineage
from millstream.storage.streams.schedule import Schedule
from millstream.storage.streams.stream import Stream


def ordering_meta(stream: Stream) -> dict[str, Any]:
    """These parts in a stream's map; held and scheduled entries are not packed yet."""
    meta: dict[str, Any] = {}
    if stream.held is not None:
        meta["held"] = held_snapshot.share(stream.held)
    if stream.schedule is not None:
        meta["schedule"] = schedule_snapshot.SharedSchedule(stream.schedule)
    if stream.lineage is not None:
        meta["lineage"] = stream.lineage.dump()
    if stream.is_followed:
        meta["followed"] = True
    return meta


def restore_ordering(
    stream: Stream, meta: dict[str, Any], steady_ms: int, schedule: Schedule | None = None
) -> None:
    """Restore the result of `ordering_meta`; ValueError when the parts are inconsistent. schedule:
    that of the metadata, if it is already made."""
    if "held" in meta:
        stream.held = held_snapshot.load(meta["held"], stream, steady_ms)
    if "schedule" in meta:
        made = schedule_snapshot.load(meta["schedule"]) if schedule is None else schedule
        stream.schedule = made
    if "lineage" in meta:
        stream.lineage = Lineage.load(meta["lineage"])
        if stream.lineage.sealed:
            stream.set_sealed()
    if meta.get("followed"):
        stream.set_followed()
