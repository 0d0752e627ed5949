# Generated from client/aio/producer.py by scripts/client_for_threads.py: change it there.
"""Appending many entries, each exactly once, without waiting for each."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Self, overload

from millstream.client.codecs import A, Codec, codec_of, encoded
from millstream.client.core.argument_checks import timeout_s
from millstream.client.core.batches import check_seq
from millstream.client.core.producing import (
    Batch,
    ProducerOptions,
    Producing,
    producer_options,
)
from millstream.client.core.words import Fields, Key, text
from millstream.client.errors import MillstreamError
from millstream.client.log import log
from millstream.client.records import T, V
from millstream.client.threads.commands import StreamCommands
from millstream.client.threads.concurrency import (
    Background,
    Closing,
    Done,
    Guard,
    Promise,
    Room,
    Turn,
    Waker,
    opened,
)
from millstream.client.threads.running import Runner
from millstream.client.tracing import Tracing
from millstream.client.word_packing import Entry

YIELD_EVERY = 64
"""A program that does nothing but append lets the sender run so often. A thread would otherwise
wait up to 5 ms for Python's lock, twice for each batch."""


class Receipt(Promise):
    """The result of an entry that a producer has taken; it arrives later.

    >>> with ms.producer("clicks") as producer:
    ...     receipt = producer.append({"page": "home"})
    ...     receipt.result(), receipt.done()
    (1, True)
    """

    __slots__ = ("_batch", "seq")

    def __init__(self, batch: Batch, seq: int) -> None:
        self._batch = batch
        self.seq = seq
        """The number of the entry."""

    def done(self) -> bool:
        """True if the stream has the entry, or it is known that it was not appended.

        >>> with ms.producer("clicks") as producer:
        ...     receipt = producer.append({"page": "home"})
        >>> receipt.done()
        True
        """
        return self._batch.done.is_set()

    def result(self, timeout: float | None = None) -> int:
        """Wait until the stream has the entry, and return its number. Raises the error that has
        prevented it, and TimeoutError after `timeout` seconds.

        >>> with ms.producer("clicks", "site") as producer:
        ...     producer.append({"page": "home"}).result(timeout=10)
        1
        """
        done: Any = self._batch.done
        limit_s = timeout_s("timeout", timeout)
        if not (done.is_set() or done.wait(limit_s)):
            raise TimeoutError(f"the entry {self.seq} is not appended yet")
        error = self.error
        if error is not None:
            raise error
        return self.seq

    @property
    def error(self) -> Exception | None:
        """The error that has prevented the entry; None if there is none, or not yet.

        >>> with ms.producer("clicks") as producer:
        ...     producer.append({"page": "home"}).error
        """
        return self._batch.error_of(self.seq)

    def add_done_callback(self, function: Callable[[Receipt], Any]) -> None:
        """Call a function with this receipt when it is done: in the producer's thread, or at once.

        >>> with ms.producer("clicks") as producer:
        ...     receipt = producer.append({"page": "home"})
        ...     receipt.add_done_callback(lambda receipt: print(receipt.seq, receipt.error))
        1 None
        """
        self._batch.callbacks.append(partial(function, self))
        if self.done():
            self._batch.call_back()

    def __repr__(self) -> str:
        state = "waits" if not self.done() else "appended" if self.error is None else "failed"
        return f"Receipt({self.seq} {state})"


class Producer(Closing, Generic[V]):
    """Appends many entries to a stream, each exactly once, and in order.

    `ms.producer(..)` makes one, and its arguments are described there. Several threads may use it.

    >>> with ms.producer("clicks") as producer:
    ...     for page in ("home", "cart", "home"):
    ...         _ = producer.append({"page": page})
    >>> ms.xlen("clicks") >= 3
    True
    """

    def __init__(self, client: Any, key: Key, name: Key | None, options: ProducerOptions) -> None:
        self._state = Producing(
            key, name, secrets.token_hex(8), options, time.monotonic, Done, Guard()
        )
        self._codec: Codec[Any] | None = None
        self._tracing: Tracing | None = None
        self._key = key
        self._name = name
        self._room = Room()
        self._waker: Any = None
        self._sender: Background | None = None
        self._started = False
        self._runner = Runner(client, writes=True)
        self._turn = Turn(self._runner.process)
        self._closed = False

    def _open(self) -> Self:
        self._turn.run(self._start)
        return self

    def _start(self) -> None:
        """If this is interrupted, the next use continues it."""
        if self._closed:
            raise MillstreamError("the producer is closed")
        if self._sender is None:
            self._runner.run(self._state.begin())
            self._waker = self._waker or Waker()
            self._runner.lanes.wake_with(self._waker)
            self._sender = Background(self._send, "millstream-producer")
        self._sender.start()
        self._started = True

    def _send(self) -> None:
        """The work of the producer's own task."""
        try:
            self._runner.run(self._state.run(self._room.freed))
        except Exception as error:
            self._state.fail(error)
        except BaseException:
            self._state.fail(MillstreamError("the producer's task was cancelled"))
            raise
        finally:
            self._room.freed()

    def of(self, kind: type[A] | Codec[A]) -> Producer[A]:
        """Write values, as `Writer.of`. Returns this producer.

        >>> with ms.producer("cakes3").of(Cake) as producer:
        ...     receipt = producer.append(Cake("lemon", 12))
        """
        self._codec = codec_of(kind)
        typed: Any = self
        return typed  # type: ignore[no-any-return]

    def traced(self) -> Self:
        """Make a span of OpenTelemetry for each append, and add its context to the entries: their
        readers continue the trace. Needs `opentelemetry-api`. Returns this producer.

        >>> with ms.producer("clicks").traced() as producer:
        ...     receipt = producer.append({"page": "home"})
        """
        self._tracing = Tracing(self._key)
        return self

    @overload
    def append(
        self: Producer[str] | Producer[bytes], fields: Fields, seq: int | None = None
    ) -> Receipt: ...
    @overload
    def append(self, fields: V, seq: int | None = None) -> Receipt: ...
    def append(self, fields: Any, seq: int | None = None) -> Receipt:
        """Add an entry to the next batch, and return its receipt without waiting for the server.
        Waits while the buffer is full.

        `seq` is the number of the entry. It must be above that of the entry before, and is one more
        without an argument. An entry whose number is not above `last_seq` was appended before, and
        is not appended again.

        Raises InvalidFields for fields that cannot be sent, and the error that has ended the
        producer.

        >>> with ms.producer("lines", "import:file-1") as producer:
        ...     for seq, line in enumerate(["a", "b"], 1):
        ...         _ = producer.append({"line": line}, seq)
        """
        if not self._started:
            self._open()
        self._runner.process.check()
        if self._codec is not None:
            fields = encoded(self._codec, fields)
        if self._tracing is not None:
            with self._tracing.sending():
                fields = self._tracing.with_context(fields)
        entry = Entry(fields)
        if not self._state.has_room:
            self._room.wait(lambda: self._state.has_room)
        batch, number, wakes = self._state.add(entry, seq if seq is None else check_seq(seq))
        if wakes:
            self._waker.wake()
        if number % YIELD_EVERY == 0:
            time.sleep(0)
        return Receipt(batch, number)

    def flush(self) -> None:
        """Send everything now, and wait until all entries that were added before are appended.
        Raises the first error of an entry since the last flush.

        >>> with ms.producer("clicks", linger=60) as producer:
        ...     receipt = producer.append({"page": "home"})
        ...     producer.flush()
        ...     receipt.done()
        True
        """
        self._runner.process.check()
        self._push()
        error = self._state.take_error()
        if error is not None:
            raise error

    def _push(self) -> None:
        batch: Any = self._state.push()
        if batch is not None:
            self._waker.wake()
            batch.done.wait()

    def close(self) -> None:
        """Send everything, and end the producer. Raises as `flush` does. Closing twice does
        nothing.

        >>> producer = ms.producer("clicks")
        >>> producer.close()
        """
        self._turn.run(self._close)

    def _close(self) -> None:
        """If this is interrupted, the producer may be closed again."""
        if self._closed:
            return
        self._state.close()
        self._room.freed()
        if self._sender is not None:
            self._sender.start()
            self._waker.wake()
            self._sender.join()
        self._runner.lanes.close()
        if self._waker is not None:
            self._waker.close()
        self._closed = True
        error = self._state.take_error()
        if error is not None:
            raise error

    def __exit__(self, *failed: object) -> None:
        try:
            self.close()
        except Exception as error:
            if failed[0] is None:
                raise
            log.error("the producer could not append all entries: %s", error)

    def __repr__(self) -> str:
        name = "" if self._name is None else f" as {text(self._name)}"
        state = "closed" if self._closed else f"entries that wait: {self._state.pending}"
        return f"Producer({text(self._key)}{name}; {state})"

    @property
    def last_seq(self) -> int | None:
        """The number of the last entry that the stream had from a producer with this name when this
        one was opened; None if there was none, or the producer has no name.

        >>> with ms.producer("clicks", "site") as producer:
        ...     producer.last_seq is None or producer.last_seq > 0
        True
        """
        return self._state.last_seq

    @property
    def pending(self) -> int:
        """The number of entries that are not appended yet.

        >>> with ms.producer("clicks") as producer:
        ...     producer.pending
        0
        """
        return self._state.pending

    def metrics(self) -> dict[str, float]:
        """Numbers: appended, refused, batches, repeats, pending.

        >>> with ms.producer("clicks") as producer:
        ...     producer.metrics()["batches"]
        0
        """
        return self._state.metrics()


def producer(
    ms: StreamCommands[T],
    key: Key,
    name: Key | None = None,
    *,
    linger: float = 0.005,
    max_batch: int = 1000,
    buffer: int = 2**24,
    retry_for: float = 30.0,
) -> Producer[T]:
    """Append many entries to a stream, each exactly once, without waiting for each.

    Entries are sent in batches: when there are `max_batch` entries or 256 KB, when the first one
    has waited for `linger` seconds, and with `flush`. While a batch is on its way, the next one
    fills. At most `buffer` bytes wait; then `append` waits. A batch whose reply is lost is repeated
    for `retry_for` seconds; after that the producer has ended with the error.

    With a `name`, the numbers of the entries continue over restarts of the program: `last_seq` is
    the number of the last one, and what is appended again with the same numbers is not doubled.
    Only one running producer at a time may use a name.

    >>> with ms.producer("clicks", linger=0.01) as producer:
    ...     receipt = producer.append({"page": "home"})
    ...     receipt.result()
    1
    """
    return opened(Producer(ms, key, name, producer_options(linger, max_batch, buffer, retry_for)))
