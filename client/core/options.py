"""The caller's options for reading a stream, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.client.core.argument_checks import batch, flag, number

BATCH = 100
"""The records of a shard that a stream asks for at once."""
CONSUMER_BATCH = 10
MAX_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a stream; ValueError if one of them is not valid."""

    batch: int
    order: str
    on_gap: str
    max_wait_s: float | None
    clock: bool | None
    create: bool

    def __post_init__(self) -> None:
        batch(self.batch)
        if self.order not in ("strict", "available"):
            raise ValueError(f"order must be 'strict' or 'available', not {self.order!r}")
        if self.on_gap not in ("raise", "skip"):
            raise ValueError(f"on_gap must be 'raise' or 'skip', not {self.on_gap!r}")
        if self.max_wait_s is not None and not number("max_wait", self.max_wait_s) >= 0:
            raise ValueError(f"max_wait must be None or at least 0, not {self.max_wait_s!r}")
        if self.clock is not None:
            flag("clock", self.clock)
        flag("create", self.create)

    @property
    def strict(self) -> bool:
        return self.order == "strict"
