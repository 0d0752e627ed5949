"""A stream and its groups, read from replies of the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millstream.remote import pairs

StreamKey = tuple[int, bytes]  # database, key


@dataclass
class GroupInfo:
    """A group as XINFO GROUPS shows it; `oldest_ms` is the time in the ID of its oldest entry that
    is pending or not delivered. `missed`: entries that were trimmed before the group read them."""

    name: bytes
    consumers: int
    pending: int
    last_id: bytes
    lag: int | None
    oldest_ms: int | None = None
    missed: int = 0


@dataclass
class StreamInfo:
    """A stream as XINFO STREAM shows it."""

    db: int
    key: bytes
    length: int
    first_id: bytes | None
    last_id: bytes | None
    added: int | None
    size_bytes: int | None
    groups: list[GroupInfo] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # TINFO

    @property
    def lag(self) -> int | None:
        """The largest lag of its groups."""
        return max((one.lag for one in self.groups if one.lag is not None), default=None)

    @property
    def oldest_ms(self) -> int | None:
        return min(
            (one.oldest_ms for one in self.groups if one.oldest_ms is not None), default=None
        )


def read_stream(db: int, key: bytes, stream: object, groups: list[Any], last: object) -> StreamInfo:
    """From the replies of XINFO STREAM, XINFO GROUPS, and of TINFO. A server without TINFO gives
    the reply of MEMORY USAGE."""
    facts = pairs(stream)
    details = pairs(last)
    size_bytes = details.get("bytes", last)
    first, newest = facts.get("first-entry"), facts.get("last-entry")
    return StreamInfo(
        db,
        key,
        facts["length"],
        first[0] if first else None,
        newest[0] if newest else facts.get("last-generated-id"),
        facts.get("entries-added"),
        size_bytes if isinstance(size_bytes, int) else None,
        [_read_group(pairs(row)) for row in groups],
        details,
    )


def _read_group(facts: dict[str, Any]) -> GroupInfo:
    return GroupInfo(
        facts["name"],
        facts["consumers"],
        facts["pending"],
        facts["last-delivered-id"],
        facts.get("lag"),
        missed=facts.get("entries-missed", 0),
    )
