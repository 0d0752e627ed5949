# Generated from client/aio/writer.py by scripts/client_for_threads.py: change it there.
"""Writing to a stream: exactly once, and facts with IDs that are reserved first."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any, Generic, Self, overload

from millstream.client.codecs import A, Codec, codec_of, encoded
from millstream.client.core.argument_checks import flag
from millstream.client.core.batches import check_seq
from millstream.client.core.steps import R, Steps
from millstream.client.core.words import Fields, Key, text
from millstream.client.core.writing import FactFields, WriterState, fact_count, lease_ms
from millstream.client.errors import MillstreamError
from millstream.client.ids import ID
from millstream.client.records import T, V
from millstream.client.threads.commands import StreamCommands
from millstream.client.threads.concurrency import Closing, Opened, Turn, opened
from millstream.client.threads.running import Runner
from millstream.client.tracing import Tracing


class Fact(Opened, FactFields[V]):
    """An entry in the making: a mapping from field to value, with an ID that is reserved.

    Readers do not pass the ID while the fact is open. At the end of its `with` block the fact is
    completed; without fields, or after an exception, it is given up. If the server refuses to
    complete it, it is given up too, and the error is raised.

    >>> with ms.writer("orders", "api-8") as writer:
    ...     with writer.fact() as fact:
    ...         fact["item"] = "tea"
    """

    def __init__(self, writer: Writer[Any], lease_ms: int) -> None:
        super().__init__(lease_ms)
        self._writer = writer

    def _open(self) -> Self:
        if self._reserved is None:
            self._writer._reserve([self], None)
        return self

    @property
    def id(self) -> ID:
        """The ID that the entry will have.

        >>> with ms.writer("orders", "api-8") as writer, writer.fact() as fact:
        ...     fact.id > (0, 0)
        True
        """
        return self._id

    def set(self, value: V) -> None:
        """Set the fields to those of a value, for a writer with a codec (`Writer.of`).

        >>> with ms.writer("cakes2", "baker").of(Cake) as writer, writer.fact() as fact:
        ...     fact.set(Cake("plum", 8))
        """
        codec = self._writer._codec
        if codec is None:
            raise MillstreamError("the writer has no codec: make it with .of(..)")
        self.clear()
        self.update(encoded(codec, value))

    def complete(self) -> None:
        """Complete the fact: its entry becomes visible when everything below it is settled.

        The request is repeated until it is answered. Raises ReservationLost if the lease is over,
        Stalled if too much waits (the fact stays open), ValueError without fields.

        >>> with ms.writer("orders", "api-8") as writer:
        ...     fact = writer.fact()
        ...     fact["item"] = "tea"
        ...     fact.complete()
        """
        self._writer._run(self._writer._state.complete(self))

    def abort(self) -> None:
        """Give the fact up. Nothing happens if it is already completed or given up.

        >>> with ms.writer("orders", "api-8") as writer:
        ...     fact = writer.fact()
        ...     fact.abort()
        """
        if self._settled is None:
            self._writer._run(self._writer._state.abort(self))

    def __exit__(self, kind: object, *_: object) -> None:
        if self._settled is None:
            self._writer._run(self._writer._state.leave(self, failed=kind is not None))


class Writer(Closing, Generic[V]):
    """A writer of one stream, with a name that no other running writer has.

    `ms.writer(..)` makes one, and its arguments are described there. Several threads may use it:
    their calls wait for each other.

    >>> with ms.writer("orders", "api-8") as writer:
    ...     entry_id = writer.append({"item": "tea"})
    """

    def __init__(
        self,
        client: Any,
        key: Key,
        name: Key,
        *,
        lease: float,
        take_over: bool,
        retry_for: float,
    ) -> None:
        unique = secrets.token_hex(8)
        self._state = WriterState(key, name, unique, lease, retry_for, time.monotonic, client)
        self._runner = Runner(client, writes=True)
        self._turn = Turn(self._runner.process)
        self._codec: Codec[Any] | None = None
        self._tracing: Tracing | None = None
        self._key = key
        self._name = name
        self._closed = False
        self._takes_over = flag("take_over", take_over)

    def _open(self) -> Self:
        if self._takes_over:
            self._run(self._state.take_over())
            self._takes_over = False
        return self

    def of(self, kind: type[A] | Codec[A]) -> Writer[A]:
        """Write values: of a dataclass or a pydantic model, or what a codec (`Json`, `MsgPack`,
        `Raw` or one of your own) writes. Returns this writer.

        A value that does not fit raises InvalidFields, and nothing is written.

        >>> with ms.writer("cakes2", "baker").of(Cake) as writer:
        ...     entry_id = writer.append(Cake("lemon", 12))
        """
        self._codec = codec_of(kind)
        typed: Any = self
        return typed  # type: ignore[no-any-return]

    def traced(self) -> Self:
        """Make a span of OpenTelemetry for each append, and add its context to the entries: their
        readers continue the trace. Needs `opentelemetry-api`. Returns this writer.

        >>> with ms.writer("orders", "api-8").traced() as writer:
        ...     entry_id = writer.append({"item": "tea"})
        """
        self._tracing = Tracing(self._key)
        return self

    @overload
    def append(self: Writer[str] | Writer[bytes], fields: Fields) -> ID: ...
    @overload
    def append(self, fields: V) -> ID: ...
    def append(self, fields: Any) -> ID:
        """Append an entry exactly once, and return its ID. Readers are not held back.

        If a reply is lost, the request is repeated for `retry_for` seconds; the server recognizes
        the repeat. After that the ConnectionError is raised, and whether the entry was appended is
        open.

        >>> with ms.writer("orders", "api-8") as writer:
        ...     tea = writer.append({"item": "tea"})
        ...     tea < writer.append([("tag", "a"), ("tag", "b")])
        True
        """
        self._open()
        if self._codec is not None:
            fields = encoded(self._codec, fields)
        if self._tracing is None:
            return self._run(self._state.append(fields))
        with self._tracing.sending():
            fields = self._tracing.with_context(fields)
            return self._run(self._state.append(fields))

    @overload
    def append_many(
        self: Writer[str] | Writer[bytes],
        rows: Iterable[Fields],
        seq: int | None = None,
        *,
        batch: int = 1000,
    ) -> int: ...
    @overload
    def append_many(
        self, rows: Iterable[V], seq: int | None = None, *, batch: int = 1000
    ) -> int: ...
    def append_many(self, rows: Iterable[Any], seq: int | None = None, *, batch: int = 1000) -> int:
        """Append many entries exactly once and in order, `batch` of them in one request; returns
        their number. Only few rows are in memory at once, so `rows` may be a generator.

        With `seq`, the first row has this number, and each other one the number after that of the
        row before. The numbers belong to the writer's name, and a row whose number is not above
        `last_seq()` was appended before: a program that is started again may append the same rows
        with the same numbers. Without `seq`, a row is doubled by a new start only.

        An error leaves the rows before it appended. Repeats and their time are those of `append`.

        >>> with ms.writer("lines", "import:file-2") as writer:
        ...     n = writer.append_many([{"line": "a"}, {"line": "b"}], seq=1)
        ...     n += writer.append_many([{"line": "b"}, {"line": "c"}], seq=2)
        ...     n, writer.last_seq()
        (4, 3)
        """
        self._open()
        codec = self._codec
        if codec is not None:
            rows = (encoded(codec, row) for row in rows)
        tracing = self._tracing
        if tracing is None:
            return self._run(self._state.append_many(rows, check_seq(seq), batch))
        with tracing.sending():
            rows = map(tracing.with_context, rows)
            return self._run(self._state.append_many(rows, check_seq(seq), batch))

    def last_seq(self) -> int | None:
        """The greatest number that a row of a writer with this name has in the stream, None if
        there is none.

        >>> with ms.writer("lines", "import:file-3") as writer:
        ...     writer.last_seq()
        """
        return self._run(self._state.last_seq())

    def fact(self, lease: float | None = None) -> Fact[V]:
        """Reserve an ID for `lease` seconds, the writer's lease if None.

        >>> with ms.writer("orders", "api-8") as writer:
        ...     with writer.fact(lease=5) as fact:
        ...         fact["item"] = "salt"
        """
        return opened(Fact(self, self._state.lease_ms if lease is None else lease_ms(lease)))

    def facts(self, n: int) -> list[Fact[V]]:
        """Reserve `n` consecutive IDs, at most 10,000.

        >>> with ms.writer("orders", "api-8") as writer:
        ...     first, second = writer.facts(2)
        ...     second.id == (first.id.ms, first.id.seq + 1)
        True
        """
        facts: list[Fact[V]] = [Fact(self, self._state.lease_ms) for _ in range(fact_count(n))]
        return self._reserve(facts, n)

    def position(self) -> ID:
        """The position of the stream: everything up to it is settled.

        >>> with ms.writer("orders", "api-8") as writer:
        ...     writer.append({"item": "tea"}) == writer.position()
        True
        """
        return self._run(self._state.position())

    def heartbeat(self) -> None:
        """Restart the leases of the open facts. Call it as often as you like: it sends a request
        at most once in a third of the lease.

        >>> with ms.writer("orders", "api-8") as writer, writer.fact() as fact:
        ...     writer.heartbeat()
        """
        self._run(self._state.heartbeat())

    def metrics(self) -> dict[str, float]:
        """Numbers: appended, completed, aborted, lost, repeats, pending.

        >>> with ms.writer("orders", "api-8") as writer:
        ...     writer.metrics()["pending"]
        0
        """
        self._runner.process.check()
        return self._state.metrics()

    def close(self) -> None:
        """Give up the facts that are open. Closing twice does nothing.

        >>> writer = ms.writer("orders", "api-8")
        >>> writer.close()
        """
        self._turn.run(self._close)

    def _close(self) -> None:
        """If this is interrupted, the writer is not closed, and may be closed again."""
        if not self._closed:
            self._runner.run(self._state.close())
            self._runner.lanes.close()
            self._closed = True

    @property
    def pending(self) -> int:
        """The number of open facts.

        >>> with ms.writer("orders", "api-8") as writer, writer.fact() as fact:
        ...     writer.pending
        1
        """
        self._runner.process.check()
        return self._state.pending

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"open facts: {self._state.pending}"
        return f"Writer({text(self._key)} as {text(self._name)}; {state})"

    def _reserve(self, facts: list[Fact[V]], count: int | None) -> list[Fact[V]]:
        self._open()
        self._run(self._state.reserve(facts, count))
        return facts

    def _run(self, steps: Steps[R]) -> R:
        return self._turn.run(lambda: self._runner.run(self._check_open(steps)))

    def _check_open(self, steps: Steps[R]) -> Steps[R]:
        if self._closed:
            raise MillstreamError("the writer is closed")
        return steps


def writer(
    ms: StreamCommands[T],
    key: Key,
    name: Key,
    *,
    lease: float = 30.0,
    take_over: bool = False,
    retry_for: float = 30.0,
) -> Writer[T]:
    """Write to a stream: exactly once, and facts with IDs that are reserved first.

    Only one running writer at a time may use a name. `lease` is the number of seconds that a
    reservation lasts. `take_over` gives up reservations that an earlier process with this name
    left open. Requests whose reply is lost are repeated for `retry_for` seconds.

    >>> with ms.writer("orders", "api-7") as writer:
    ...     writer.append({"item": "tea"}) < writer.append({"item": "salt"})
    True
    """
    return opened(Writer(ms, key, name, lease=lease, take_over=take_over, retry_for=retry_for))
