# Generated from client/aio/consumer.py by scripts/client_for_threads.py: change it there.
"""Reading a stream as one of the consumers that share a group's entries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

from millstream.client.codecs import A, Codec
from millstream.client.core.argument_checks import flag
from millstream.client.core.deadlines import check_block
from millstream.client.core.deliveries import Deliveries, Terms, entry_id
from millstream.client.core.position import Point
from millstream.client.core.steps import R, Steps
from millstream.client.core.values import Values
from millstream.client.core.words import IdWord, Key, text
from millstream.client.errors import MillstreamError
from millstream.client.records import Record, T, V
from millstream.client.threads.commands import StreamCommands
from millstream.client.threads.concurrency import Reader, Records, opened, record_loop
from millstream.client.threads.running import Runner


class Consumer(Reader[V]):
    """One of the consumers that share a group's entries.

    `ms.consumer(..)` makes one, and its arguments are described there. A consumer is for one thread
    at a time, except for `ack`; any thread may call `stop`.

    >>> _ = ms.tappend("mails", {"to": "ann"})
    >>> with ms.consumer("mails", "senders", position="trim_horizon") as consumer:
    ...     consumer.read(timeout=0)["to"], consumer.read(timeout=0)
    ('ann', None)
    """

    def __init__(
        self,
        client: Any,
        key: Key,
        group: Key,
        terms: Terms,
        position: Point,
        batch: int | None,
        retry_for: float,
    ) -> None:
        self._deliveries = Deliveries(
            client, key, group, terms, position, batch, time.monotonic, retry_for_s=retry_for
        )
        self._key = key
        self._retry_for = retry_for
        self._runner = Runner(client)
        self._closed = False
        self._opened = False

    def _open(self) -> Self:
        if not self._opened:
            self._run(self._deliveries.open())
            self._opened = True
        return self

    def of(self, kind: type[A] | Codec[A], *, dead_letter: Key | None = None) -> Consumer[A]:
        """Read records with a `value`, as `Stream.of`. Returns this consumer.

        A record that does not fit raises InvalidRecord, and stays pending. With `dead_letter` it is
        copied to the stream of this name, with the reason, and acknowledged, and reading continues.

        >>> _ = ms.tappend("pies", {"name": "apple", "pieces": "many"})
        >>> consumer = ms.consumer("pies", "bakers", retry=60, position="earliest")
        >>> consumer.of(Cake, dead_letter="pies:bad").read(timeout=0)
        >>> ms.xlen("pies:bad")
        1
        """
        times = time.monotonic, time.time
        state = self._deliveries
        state.values = Values(kind, dead_letter, state.group, times, self._retry_for)
        typed: Any = self
        return typed  # type: ignore[no-any-return]

    def read(self, timeout: float | None = None) -> Record[V] | None:
        """Wait for the next record; None after `timeout` seconds, at the end of a sealed stream, or
        once `stop` was called.

        While the server cannot be reached, reading waits; after `retry_for` seconds it raises
        ConnectionError.

        >>> with ms.consumer("mails", "readers") as consumer:
        ...     consumer.read(timeout=0.01)
        """
        self._open()
        return self._run(self._deliveries.read(timeout))

    def follow(self, block: float = 1.0, ack: bool = False) -> Iterator[Record[V]]:
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
        check_block(block)
        flag("ack", ack)
        return record_loop(self._deliveries.stops, partial(self._records, block, ack))

    def _records(self, block: float, ack: bool, begun: int) -> Records[V]:
        deliveries = self._deliveries
        while not deliveries.stops.since(begun):
            self._open()
            record = self._run(deliveries.read(block, begun))
            if record is None:
                if deliveries.ended:
                    break
                continue
            yield record
            if ack:
                self._run(deliveries.finish(record))

    def ack(self, *records: Record[Any] | IdWord) -> int:
        """Acknowledge records; returns how many of them were pending. A lost reply is repeated for
        the consumer's `retry_for` seconds.

        >>> _ = ms.tappend("bolts", {"n": 1})
        >>> consumer = ms.consumer("bolts", "crew", retry=60, position="trim_horizon")
        >>> consumer.ack(consumer.read(timeout=1))
        1
        """
        return self._run(self._deliveries.ack([entry_id(record) for record in records]))

    def seek(self, position: Point) -> None:
        """Let the group continue at another position, for all its consumers. Entries that are
        pending stay pending; those that this consumer has fetched and not returned, too.

        >>> _ = ms.tappend("screws", {"n": 1})
        >>> consumer = ms.consumer("screws", "crew", retry=60)
        >>> consumer.seek("earliest")
        >>> consumer.read(timeout=1)["n"]
        '1'
        """
        self._open()
        self._run(self._deliveries.seek(position))

    def stop(self) -> None:
        """End every `follow` that runs, or the `read` that waits. If none does, the next one ends
        at once. Any thread and any signal handler may call it.

        >>> consumer = ms.consumer("mails", "readers")
        >>> consumer.stop()
        >>> [record for record in consumer]
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
        self._open()
        return self._run(self._deliveries.lag())

    def metrics(self) -> dict[str, float]:
        """Numbers: records, requests, reconnects, acknowledged, overdue, missed, buffered.

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

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"records: {self._deliveries.metrics()['records']:g}"
        return f"Consumer({text(self._key)}, group {text(self._deliveries.group)}; {state})"

    def _run(self, steps: Steps[R]) -> R:
        if self._closed:
            raise MillstreamError("the consumer is closed")
        return self._runner.run(steps)


def consumer(
    ms: StreamCommands[T],
    key: Key,
    group: Key,
    *,
    ttl: float = 0.0,
    retry: float | None = None,
    expire: float = 0.0,
    position: Point = "latest",
    batch: int | None = None,
    retry_for: float = 30.0,
) -> Consumer[T]:
    """Read a stream as one of the consumers that share a group's entries.

    The group is created at once, at `position`: "trim_horizon" or "earliest", "latest", an ID (it
    begins after it) or a time (at or after it). It ends when it was not used for `ttl` seconds; 0
    means never. An entry that is not acknowledged within `retry` seconds goes to the next consumer,
    for up to `expire` seconds; 0 means forever.
    Without `retry`, entries are delivered once, and those of a consumer that fails are lost.

    Up to `batch` entries are fetched at once: 10, or 1 without `retry`, because what is fetched
    and not handed out would be lost. With `retry`, the work on a complete batch has to be done
    within that time.

    While the server does not answer, a call repeats its request for `retry_for` seconds, and
    then raises its error. The last attempt may take the connection's `timeout` longer.

    >>> _ = ms.tappend("jobs2", {"n": 1})
    >>> with ms.consumer("jobs2", "crew", retry=60, position="trim_horizon") as consumer:
    ...     job = consumer.read(timeout=1)
    ...     consumer.ack(job)
    1
    """
    terms = Terms(ttl, retry, expire)
    return opened(Consumer(ms, key, group, terms, position, batch, retry_for))
