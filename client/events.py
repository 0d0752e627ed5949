"""Events that a Stream reports to `on_event`, and the error for lost entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from millstream.client.errors import MillstreamError
from millstream.client.ids import ID


@dataclass(frozen=True, slots=True)
class ShardOpened:
    """A stream begins to read a shard: one of those it was given, or a child of a sealed one."""

    shard: str


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """A sealed shard was read to its end. `children` are the names of the shards after it."""

    shard: str
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that were removed before they were read.

    `after` is the last place that was reached. `resumed` is the ID after which reading continued;
    `0.0` if the key was deleted and created again, None if the shard no longer exists.
    """

    shard: str
    after: ID
    resumed: ID | None


class RecordsExpired(MillstreamError):
    """Entries were evicted, or their stream deleted, before the stream read them.

    `shard` is the shard's name, `after` the last place that was reached, and `resumed` the ID after
    which reading continues; None if the shard no longer exists.
    """

    def __init__(self, shard: str, after: ID, resumed: ID | None) -> None:
        self.shard = shard
        self.after = after
        self.resumed = resumed
        goes_on = (
            "and the shard was deleted" if resumed is None else f"reading continues at {resumed}"
        )
        super().__init__(
            f"entries of the shard {shard!r} after {after} were removed before they were read; "
            f"{goes_on}"
        )

    def __reduce__(self) -> tuple[type[RecordsExpired], tuple[str, ID, ID | None]]:
        return type(self), (self.shard, self.after, self.resumed)


@dataclass(frozen=True, slots=True)
class ShardMissing:
    """A stream waits for a shard that does not exist: a child that is not where it was looked for,
    or a key that was deleted.

    `parents` are the names of the sealed shards that continue in it. After `max_wait` a missing
    child is a ShardUnavailable.
    """

    shard: str
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The server of these shards does not answer. The stream tries again until it does."""

    shards: tuple[str, ...]
    cause: BaseException


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The server of these shards answers again."""

    shards: tuple[str, ...]


Event: TypeAlias = ShardOpened | ShardEnded | ShardMissing | Gap | Disconnected | Reconnected
