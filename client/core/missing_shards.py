"""The shards that a stream needs and that do not exist where they were looked for.

A child of a sealed shard may be created a moment later, so one that is missing is not an error at
once: a warning comes first, and the error after the time that the stream waits for a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.client.errors import MillstreamError

WARN_AFTER_S = 1.0


@dataclass(slots=True)
class Absence:
    """A shard that did not exist from the first to the last time that it was looked for."""

    since_s: float
    seen_s: float
    told: bool = False

    def lasted_s(self) -> float:
        return self.seen_s - self.since_s


class Absent:
    """The missing shards of one stream, by name. `limit_s` is after how long one is an error; None
    for never."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._warn_after_s = WARN_AFTER_S if limit_s is None else min(WARN_AFTER_S, limit_s / 2)
        self._shards: dict[str, Absence] = {}

    def looked_for(self, name: str, exists: bool, now_s: float) -> None:
        if exists:
            self._shards.pop(name, None)
            return
        absence = self._shards.setdefault(name, Absence(now_s, now_s))
        absence.seen_s = now_s

    def news(self) -> Iterator[str]:
        """The shards that have been missing for so long that a warning is due, each once."""
        for name, absence in self._shards.items():
            if not absence.told and absence.lasted_s() >= self._warn_after_s:
                absence.told = True
                yield name

    def too_long(self, name: str, begun_s: float) -> bool:
        """True if the shard has been missing for so long that it is an error, as was seen at
        `begun_s` or later."""
        absence = self._shards.get(name)
        if absence is None or self._limit_s is None or absence.seen_s < begun_s:
            return False
        return absence.lasted_s() >= self._limit_s

    def next_end_s(self, now_s: float) -> float:
        """The time at which a shard will have been missing for too long; infinity for never."""
        if self._limit_s is None:
            return float("inf")
        ends = (absence.since_s + self._limit_s for absence in self._shards.values())
        return min((end_s for end_s in ends if end_s > now_s), default=float("inf"))


def missing_child(key: str | bytes, parents: tuple[str, ...]) -> MillstreamError:
    """The cause of the error for a child, with the cure."""
    named = ", ".join(map(repr, parents))
    return MillstreamError(
        f"{named} is sealed and continues in it, but the key {key!r} does not exist on the server "
        "where it was looked for; create it there with TCREATE or, if it is on another server, let "
        "the stream's `resolve` return its Shard"
    )
