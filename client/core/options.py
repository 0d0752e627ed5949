"""The caller's options for reading a stream and for working on jobs, and their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.client.core.argument_checks import batch, duration_ms, flag, key, number, whole
from millstream.client.core.position import End
from millstream.client.core.words import text
from millstream.client.jobs import DELAY_MAX_S

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
    end: End | None = None

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


TIMEOUT_MAX_S = 86_400
BACKOFFS_MAX = 16
DELIVERIES_MAX = 1_000_000
"""The limit of the server."""
CONCURRENCY_MAX = 10_000


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker; `worker_options` checks them. Rules of the group that are None stay
    as they are."""

    configure: bool
    concurrency: int
    timeout_ms: int
    backoff_ms: Sequence[int] | None
    max_deliver: int | None
    dead_letter: str | bytes | None
    drain_s: float
    breaker: int
    time_limit_s: float | None


def worker_options(
    *,
    configure: bool,
    concurrency: int,
    timeout: float,
    backoff: Sequence[float] | None,
    max_deliver: int | None,
    dead_letter: str | bytes | None,
    drain: float,
    breaker: int,
    time_limit: float | None,
) -> WorkerOptions:
    """The options in the server's units; ValueError if one of them is not valid."""
    if not 0 < number("timeout", timeout) <= TIMEOUT_MAX_S:
        raise ValueError(f"timeout must be above 0 and at most {TIMEOUT_MAX_S:,} seconds")
    if time_limit is not None and not number("time_limit", time_limit) > 0:
        raise ValueError(f"time_limit must be None or above 0 seconds, not {time_limit!r}")
    if not number("drain", drain) >= 0:
        raise ValueError(f"drain must be a number of seconds from 0 on, not {drain!r}")
    if configure and max_deliver and not dead_letter:
        raise ValueError(
            "max_deliver needs a dead_letter stream: a job that was delivered so often goes there"
        )
    return WorkerOptions(
        flag("configure", configure),
        whole("concurrency", concurrency, CONCURRENCY_MAX),
        duration_ms("timeout", timeout),
        None if backoff is None else _delays(backoff),
        _from_zero("max_deliver", max_deliver, DELIVERIES_MAX),
        None if dead_letter is None else key("dead_letter", dead_letter),
        drain,
        _from_zero("breaker", breaker) or 0,
        time_limit,
    )


def different_keys(name: str, keys: Any) -> list[Any]:
    """A key, or a list of different ones."""
    is_one = isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable)
    listed = [keys] if is_one else list(keys)
    for one in listed:
        key(name, one)
    if not listed or len({text(one) for one in listed}) != len(listed):
        raise ValueError(f"{name} must be a stream, or different streams, not {keys!r}")
    return listed


def _delays(backoff: Any) -> list[int]:
    if not isinstance(backoff, (list, tuple)) or len(backoff) > BACKOFFS_MAX:
        raise ValueError(f"backoff must be a list of at most {BACKOFFS_MAX} seconds")
    if any(number("backoff", delay) > DELAY_MAX_S for delay in backoff):
        raise ValueError(f"a delay of backoff must be at most {DELAY_MAX_S:,} seconds")
    return [duration_ms("backoff", delay) for delay in backoff]


def _from_zero(name: str, value: int | None, most: int | None = None) -> int | None:
    if value is None or (type(value) is int and value == 0):
        return value
    return whole(name, value, most)
