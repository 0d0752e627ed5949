"""Reading a stream as one of the consumers that share a group's entries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from millstream.client.core.deliveries import Deliveries, Terms
from millstream.client.core.waiting import check_block
from millstream.client.core.words import IdWord
from millstream.client.errors import MillstreamError
from millstream.client.ids import ID
from millstream.client.records import Record, T
from millstream.client.running import Runner

if TYPE_CHECKING:
    from typing import Self

    from millstream.client.core.steps import R, Steps
    from millstream.client.core.words import Key


class Consumer(Generic[T]):
    """One of the consumers that share a group's entries.

    `ms.consumer(..)` makes one, and its arguments are described there. A consumer is for one thread
    at a time; any thread may call `ack` and `stop`.

    >>> _ = ms.tappend("mails", {"to": "ann"})
    >>> with ms.consumer("mails", "senders", position="trim_horizon") as consumer:
    ...     next(consumer)["to"], next(consumer)
    ('ann', None)
    """

    def __init__(
        self,
        client: Any,
        key: Key,
        group: Key,
        terms: Terms,
        position: str | ID,
        batch: int | None,
        retry_for: float,
    ) -> None:
        self._deliveries = Deliveries(
            client, key, group, terms, position, batch, time.monotonic, retry_for_s=retry_for
        )
        self._runner = Runner(client)
        self._closed = False
        self._run(self._deliveries.open())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record[T]]:
        """A loop over the consumer is `follow`: it waits for records, and never gives None."""
        return self.follow()

    def __next__(self) -> Record[T] | None:
        """The next record, or None when there is none now. It never waits for records, and never
        raises StopIteration."""
        return self.read(0)

    def read(self, timeout: float | None = None) -> Record[T] | None:
        """Wait for the next record; None after `timeout` seconds, at the end of a sealed stream, or
        once `stop` was called.

        While the server cannot be reached, reading waits; after `retry_for` seconds it raises
        ConnectionError.

        >>> with ms.consumer("mails", "readers") as consumer:
        ...     consumer.read(timeout=0.01)
        """
        return self._run(self._deliveries.read(timeout))

    def follow(self, block: float = 1.0, ack: bool = False) -> Iterator[Record[T]]:
        """Iterate over records, and wait for more. Ends within `block` seconds, and within a
        second, of a call of `stop`; or when the stream is sealed and every entry is delivered and,
        with `retry`, acknowledged.

        With `ack`, each record is acknowledged when the next one is requested, or when the loop
        ends on its own; not after `break` or an exception.

        >>> _ = ms.tappend("parts", {"n": 1})
        >>> consumer = ms.consumer("parts", "crew", retry=60, position="trim_horizon")
        >>> for record in consumer.follow(ack=True):
        ...     consumer.stop()
        >>> consumer.metrics()["acknowledged"]
        1
        """
        deliveries = self._deliveries
        check_block(block)
        ticket = object()
        try:
            try:
                begun = deliveries.stops.begin_follow(ticket)
                while not deliveries.stops.since(begun):
                    record = self._run(deliveries.read(block, begun))
                    if record is None:
                        if deliveries.ended:
                            break
                        continue
                    yield record
                    if ack:
                        self._run(deliveries.finish(record))
            finally:
                deliveries.stops.end_follow(ticket)
        finally:
            deliveries.stops.end_follow(ticket)  # again: a signal handler may have raised there

    def ack(self, *records: Record[T] | IdWord) -> int:
        """Acknowledge records; returns how many of them were pending. A lost reply is repeated for
        the consumer's `retry_for` seconds.

        >>> _ = ms.tappend("bolts", {"n": 1})
        >>> consumer = ms.consumer("bolts", "crew", retry=60, position="trim_horizon")
        >>> consumer.ack(consumer.read(timeout=1))
        1
        """
        return self._run(self._deliveries.ack([entry_id(record) for record in records]))

    def stop(self) -> None:
        """End every `follow` that runs, or the `read` that waits. If none does, the next one ends
        at once. Any thread and any signal handler may call it.

        >>> consumer = ms.consumer("mails", "readers")
        >>> consumer.stop()
        >>> list(consumer.follow())
        []
        """
        self._deliveries.stops.stop()

    def heartbeat(self) -> None:
        """Keep the group alive while nothing is read. Call it as often as you like: it sends a
        request at most once in a third of the group's `ttl`.

        >>> ms.consumer("mails", "readers", ttl=60).heartbeat()
        """
        self._run(self._deliveries.heartbeat())

    def lag(self) -> int | None:
        """The number of entries that the group has not delivered; None if it is not known.

        >>> consumer = ms.consumer("nuts", "crew")
        >>> _ = ms.tappend("nuts", {"n": 1})
        >>> consumer.lag()
        1
        """
        return self._run(self._deliveries.lag())

    def metrics(self) -> dict[str, float]:
        """Numbers: records, requests, reconnects, acknowledged, missed, buffered.

        >>> ms.consumer("mails", "readers").metrics()["records"]
        0
        """
        self._runner.process.check()
        return self._deliveries.metrics()

    def close(self) -> None:
        """Acknowledge what `follow(ack=True)` has finished, which is tried once, and release the
        connections. Closing twice does nothing.

        >>> consumer = ms.consumer("mails", "readers")
        >>> consumer.close()
        """
        self._runner.process.check()
        if self._closed:
            return
        try:
            self._run(self._deliveries.close())
        finally:
            self._runner.lanes.close()
            self._closed = True

    @property
    def missed(self) -> int:
        """The number of entries that were removed from the stream before they could be delivered or
        redelivered.

        >>> ms.consumer("mails", "readers").missed
        0
        """
        self._runner.process.check()
        return self._deliveries.missed

    def _run(self, steps: Steps[R]) -> R:
        if self._closed:
            raise MillstreamError("the consumer is closed")
        return self._runner.run(steps)


def entry_id(record: Record[T] | IdWord) -> ID:
    if isinstance(record, Record):
        return record.id
    if isinstance(record, int):
        return ID(record)
    return record if isinstance(record, ID) else ID.parse(record)
