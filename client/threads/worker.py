# Generated from client/aio/worker.py by scripts/client_for_threads.py: change it there.
"""A worker: handlers for the entries of a group, several at once."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from millstream.client.codecs import A, Codec, codec_of
from millstream.client.core import argument_checks
from millstream.client.core.options import WorkerOptions, different_keys, worker_options
from millstream.client.core.position import Point, group_start
from millstream.client.core.words import Key, text
from millstream.client.core.working import Work
from millstream.client.errors import MillstreamError
from millstream.client.guards import OwnProcess
from millstream.client.jobs import Delivery, HeldJob
from millstream.client.records import T, V
from millstream.client.threads.commands import StreamCommands
from millstream.client.threads.concurrency import Waker
from millstream.client.threads.crew import Crew, check_handler, with_values
from millstream.client.threads.running import Runner
from millstream.client.tracing import Tracing

H = TypeVar("H", bound=Callable[[Any], Any])


class Job(HeldJob[V]):
    """An entry that a worker passes to its handler: a record with the number of its delivery.

    >>> worker = ms.worker("calls", "crew")
    >>> @worker.handler
    ... def call(job):
    ...     print(job["who"], job.attempt, job.lost)
    ...     worker.stop()
    >>> _ = ms.tappend("calls", {"who": "ann"})
    >>> worker.run()
    ann 1 False
    """

    __slots__ = ("_worker",)

    def __init__(
        self, worker: Worker[Any], delivery: Delivery, shard: str, entry: list[Any]
    ) -> None:
        super().__init__(delivery, shard, entry)
        self._worker = worker

    def extend(self, seconds: float) -> bool:
        """Keep the job for at least this time. The worker extends its jobs anyway, every third of
        the timeout: this is for a time in which the program cannot. It also postpones `time_limit`.

        Returns False if the job is lost.

        >>> worker = ms.worker("films", "encoders")
        >>> @worker.handler
        ... def encode(job):
        ...     worker.stop()
        ...     print(job.extend(600))
        >>> _ = ms.tappend("films", {"n": 1})
        >>> worker.run()
        True
        """
        return self._worker._extend(self._delivery, seconds)


class Worker(Generic[V]):
    """Runs a handler for each entry of a group, several at once.

    `ms.worker(..)` makes one, and its arguments are described there.

    >>> worker = ms.worker("mails2", "senders", concurrency=4)
    >>> @worker.handler
    ... def send(job):
    ...     print("to", job["to"])
    ...     worker.stop()
    >>> _ = ms.tappend("mails2", {"to": "ann"})
    >>> worker.run()
    to ann
    """

    def __init__(
        self,
        client: Any,
        keys: Sequence[Key],
        group: Key,
        start: str,
        options: WorkerOptions,
        retry_for: float,
    ) -> None:
        consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._client = client
        self._options = options
        self._work = Work(
            client, keys, (group, consumer), start, options, time.monotonic, retry_for
        )
        self._process = OwnProcess()
        self._handler: Callable[[Any], Any] | None = None
        self._codec: Codec[Any] | None = None
        self._tracing: Tracing | None = None
        self._group = group
        self._keys = keys
        self._runner: Runner | None = None
        self._waker: Waker | None = None

    def of(self, kind: type[A] | Codec[A]) -> Worker[A]:
        """Give jobs a `value`, as `Stream.of` does for records. A job that does not fit is dead:
        its handler is not called, and it goes to the `dead_letter` of the worker with the reason.
        Returns this worker.

        >>> worker = ms.worker("cakes4", "bakers").of(Cake)
        >>> @worker.handler
        ... def bake(job):
        ...     print(job.value.name)
        ...     worker.stop()
        >>> _ = ms.tappend("cakes4", {"name": "plum", "pieces": 8})
        >>> worker.run()
        plum
        """
        self._codec = codec_of(kind)
        typed: Any = self
        return typed  # type: ignore[no-any-return]

    def traced(self) -> Self:
        """Make a span of OpenTelemetry for each call of the handler. Its parent is the span that
        has sent the job, if its writer was `traced()`. Needs `opentelemetry-api`. Returns this
        worker.

        >>> worker = ms.worker("mails3", "senders").traced()
        """
        self._tracing = Tracing(group=self._group)
        return self

    def handler(self, function: H) -> H:
        """Set the function that is called with each job: a decorator.

        The job is done when the function returns. If it raises `Dead`, the job is not retried.
        After `Retry(delay=..)` it is delivered again after that time, and after any other exception
        as `backoff` says. The text of the exception is the reason in the dead letter.

        >>> worker = ms.worker("mails3", "senders")
        >>> @worker.handler
        ... def send(job):
        ...     if "@" not in job["to"]:
        ...         raise Dead("no such address")
        """
        check_handler(function)
        if self._handler is not None:
            raise ValueError("the worker has a handler already")
        self._handler = function
        return function

    def run(self) -> None:
        """Work until `stop` is called. Then no more jobs are taken, those that have not begun are
        given back, and those that run get `drain` seconds to end.

        While the server does not answer, the worker waits for it. An exception of a signal handler
        ends it at once.

        >>> worker = ms.worker("mails3", "senders")
        >>> _ = worker.handler(print)
        >>> worker.stop()
        >>> worker.run()
        """
        self._process.check()
        if self._handler is None:
            raise MillstreamError("the worker has no handler: decorate one with @worker.handler")
        if self._runner is not None:
            raise MillstreamError("the worker runs already: make another one")
        ticket = object()
        work = self._work
        begun = work.stops.begin_follow(ticket)
        if work.stops.since(begun):
            work.stops.end_follow(ticket)
            return
        self._waker = waker = Waker(work.before_wait)
        self._runner = runner = Runner(self._client)
        runner.lanes.wake_with(waker)
        size = self._options.concurrency
        handler = with_values(self._codec, self._tracing, self._handler)
        crew = Crew(size, handler, self._job, work.finish, waker)
        work.crew = crew
        try:
            try:
                runner.run(work.run(begun))
            except BaseException:
                runner.run(work.abort())
                raise
        finally:
            self._runner = self._waker = None
            work.stops.end_follow(ticket)
            crew.close()
            runner.lanes.close()
            waker.close()

    def stop(self) -> None:
        """End `run`; if it does not run, the next one ends at once. Any thread and any signal
        handler may call it.

        >>> worker = ms.worker("mails3", "senders")
        >>> worker.stop()
        """
        self._work.stops.stop()
        waker = self._waker
        if waker is not None:
            waker.wake()

    def metrics(self) -> dict[str, float]:
        """Numbers: done, failed, dead, lost, given_back, extended, requests, reconnects, running.

        `failed` counts deliveries whose handler raised an exception or passed `time_limit`, `dead`
        the jobs that are not retried, `lost` results that do not count because the job was not
        extended in time, and `given_back` jobs that had not begun.

        >>> ms.worker("mails3", "senders").metrics()["done"]
        0
        """
        return self._work.metrics()

    def __repr__(self) -> str:
        keys = ", ".join(map(text, self._keys))
        state = "waits for run()" if self._runner is None else f"running jobs: {self._work.running}"
        return f"Worker({keys}, group {text(self._group)}; {state})"

    def _job(self, delivery: Delivery, shard: str, entry: list[Any]) -> Job[Any]:
        return Job(self, delivery, shard, entry)

    def _extend(self, delivery: Delivery, seconds: float) -> bool:
        runner = self._runner
        if runner is None:  # the worker has stopped
            return False
        return runner.run(self._work.extend(delivery, seconds))


def worker(
    ms: StreamCommands[T],
    keys: Key | Sequence[Key],
    group: Key,
    *,
    concurrency: int = 8,
    timeout: float = 30.0,
    backoff: Sequence[float] | None = None,
    max_deliver: int | None = None,
    dead_letter: Key | None = None,
    configure: bool = True,
    position: Point = "trim_horizon",
    time_limit: float | None = None,
    drain: float = 30.0,
    breaker: int = 20,
    retry_for: float = 30.0,
) -> Worker[T]:
    """Work on the entries of a group: a handler is called for each one, `concurrency` at once.

    `keys` is a stream or a list of streams, the most important first: a read takes from the first
    ones, and every 16th read begins at the last. All have a group of this name. When the worker
    starts, it sets the rules of the group (TGROUP) and creates it at `position` if it is missing:
    "trim_horizon" or "earliest", "latest", an ID or a time. Rules that are None stay as they are;
    with `configure=False` all do.

    A job that this program does not keep, because it crashed, is delivered again after `timeout`
    seconds. A worker extends its jobs while their handlers run, for up to `time_limit` seconds, if
    it is set. A job that fails is delivered again after the first of the `backoff` seconds, then
    after the second, and so on. After `max_deliver` deliveries it goes to the stream `dead_letter`;
    `max_deliver` needs it.

    After `breaker` failures in a row, the worker waits for 1 second, then tries one job, waits for
    2 seconds if it fails, and so on up to 60, until a job succeeds. 0 means never.

    `run` waits for its first reply, and `Job.extend` for its own, for up to `retry_for` seconds.

    >>> worker = ms.worker(
    ...     ["mail:high", "mail"], "senders", timeout=30, backoff=[1, 10, 60], max_deliver=5,
    ...     dead_letter="mail:dead",
    ... )
    >>> @worker.handler
    ... def send(job):
    ...     print(job.shard, job["to"])
    ...     if job.shard == "mail":
    ...         worker.stop()
    >>> _ = ms.tappend("mail", {"to": "ann"}), ms.tappend("mail:high", {"to": "bob"})
    >>> worker.run()
    mail:high bob
    mail ann
    """
    listed = different_keys("keys", keys)
    argument_checks.name("group", group)
    options = worker_options(
        configure=configure,
        concurrency=concurrency,
        timeout=timeout,
        backoff=backoff,
        max_deliver=max_deliver,
        dead_letter=dead_letter,
        drain=drain,
        breaker=breaker,
        time_limit=time_limit,
    )
    if dead_letter and text(dead_letter) in map(text, listed):
        raise ValueError(f"{dead_letter!r} cannot be its own dead_letter stream")
    argument_checks.duration_ms("retry_for", retry_for)
    return Worker(ms, listed, group, group_start(position), options, retry_for)
