"""What a Stream reports to `on_event`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

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
