"""A stream and its groups, read from replies of the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millstream.remote import pairs

StreamKey = tuple[int, bytes]  # database, key


@dataclass
class GroupInfo:
    """A group as XINFO GROUPS shows it; `oldest_ms` is the time in the ID of its oldest entry that
    is pending or not delivered. `missed`: entries that were trimmed before the group read them.
    `rules` is the reply of TINFO GROUP; empty if the server has no rules of groups."""

    name: bytes
    consumers: int
    pending: int
    last_id: bytes
    lag: int | None
    oldest_ms: int | None = None
    missed: int = 0
    rules: dict[str, Any] = field(default_factory=dict)

    @property
    def dead_letters(self) -> int | None:
        """The number of entries ever copied to its dead letter stream; None without rules."""
        copied: int | None = self.rules.get("dead-letters")
        return copied


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

    @property
    def dead_letters(self) -> int | None:
        """The number of entries that its groups have copied to dead letter streams; None if the
        server has no rules of groups."""
        found = [one.dead_letters for one in self.groups if one.dead_letters is not None]
        return sum(found) if found else None


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
