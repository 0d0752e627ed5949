"""The RDB of a base, which another process makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class DumpOrder(NamedTuple):
    """A base, the file for the RDB (descriptors of both), the Redis that has to load it, and by how
    much the wall clock is ahead of the steady clock. Without `with_keys`, the RDB has no keys.
    `memory_bytes` is the most that the process may use."""

    base: int
    rdb: int
    redis: str
    wall_ahead_ms: int
    with_keys: bool
    memory_bytes: int


@dataclass
class Dumped:
    """The contents of the RDB; `lost` counts the streams that lose something, and `examples` has
    sentences about the first ones."""

    streams: int = 0
    strings: int = 0
    entries: int = 0
    lost: int = 0
    examples: list[str] = field(default_factory=list)


class Dumper(Protocol):
    """Runs on a thread of its own."""

    def dump(self, order: DumpOrder) -> Dumped:
        """Write the RDB; DataError when that fails."""

    def stop(self) -> None:
        """End the process that is running, from any thread."""
