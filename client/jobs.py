"""Jobs: the entries that a worker passes to its handler, and what a handler may raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.client.codecs import Codec, InvalidRecord, decoded
from millstream.client.core.argument_checks import duration_ms, number
from millstream.client.records import Record, V

DELAY_MAX_S = 30 * 86_400
"""The limit of the server."""


class Dead(Exception):
    """Raised by a handler: the job can never succeed. It is not retried, and goes to the dead
    letter stream with this text as its reason. Without such a stream it stays in the group, and is
    not delivered until a stream is set.

    >>> raise Dead("no such address")
    Traceback (most recent call last):
    millstream.client.jobs.Dead: no such address
    """


class Retry(Exception):
    """Raised by a handler: the job failed, and is delivered again after `delay` seconds; without
    them, after those of `backoff`.

    >>> raise Retry("the other side is busy", delay=60)
    Traceback (most recent call last):
    millstream.client.jobs.Retry: the other side is busy
    """

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        if delay is not None and not 0 <= number("delay", delay) <= DELAY_MAX_S:
            raise ValueError(f"delay must be from 0 to {DELAY_MAX_S:,} seconds, not {delay!r}")
        if delay is not None:
            duration_ms("delay", delay)
        super().__init__(reason)
        self.delay = delay


@dataclass(eq=False, slots=True)
class Delivery:
    """One delivery of an entry to this worker, for the worker's decisions. Times are those of the
    worker's clock."""

    key: str | bytes
    word: str | bytes
    """The ID as the server wrote it."""
    attempt: int
    begun_s: float
    renew_at_s: float
    """When the worker extends it."""
    until_s: float = 0.0
    """The handler has asked for the time until then."""
    lost: bool = False


class HeldJob(Record[V]):
    """A record with its delivery: the common part of the jobs of both APIs."""

    __slots__ = ("_delivery", "value")
    value: V

    def __init__(self, delivery: Delivery, shard: str, entry: list[Any]) -> None:
        super().__init__(None, shard, entry)
        self._delivery = delivery

    @property
    def attempt(self) -> int:
        """The number of this delivery: 1 for the first one.

        >>> from millstream.client.jobs import Delivery, HeldJob
        >>> HeldJob(Delivery("k", "5-1", 2, 0.0, 0.0), "k", ["5-1", "n", "1"]).attempt
        2
        """
        return self._delivery.attempt

    @property
    def lost(self) -> bool:
        """True if the server may have delivered the entry again, or will: this worker did not
        extend it in time, its handler has passed `time_limit`, or the worker has stopped. The
        result of the handler does not count any more.

        >>> from millstream.client.jobs import Delivery, HeldJob
        >>> HeldJob(Delivery("k", "5-1", 2, 0.0, 0.0), "k", ["5-1", "n", "1"]).lost
        False
        """
        return self._delivery.lost

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process is a plain record: it cannot be extended there."""
        reduced: Any = super().__reduce__()
        return Record, reduced[1]


def decode_job(codec: Codec[Any] | None, job: HeldJob[Any]) -> None:
    """Give a job its value. Dead if it does not fit: another delivery would not help."""
    if codec is None:
        return
    try:
        job.value = decoded(codec, job)
    except InvalidRecord as error:
        raise Dead(error.reason) from error
