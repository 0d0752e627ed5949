# Generated from client/aio/stream.py by scripts/client_for_threads.py: change it there.
"""Streams that follow shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, Self

import redis

from millstream.client.codecs import A, Codec
from millstream.client.core import position as positions
from millstream.client.core.argument_checks import function
from millstream.client.core.cluster_nodes import placed
from millstream.client.core.deadlines import check_block
from millstream.client.core.follower import Follower
from millstream.client.core.options import BATCH, MAX_WAIT_S, Options
from millstream.client.core.position import Point, Position
from millstream.client.core.shard_order import Servers
from millstream.client.core.shards import Shard, parse_shards, shard_name
from millstream.client.core.steps import R, Steps
from millstream.client.core.token import Token
from millstream.client.core.values import Values
from millstream.client.core.words import Key
from millstream.client.errors import MillstreamError
from millstream.client.events import Event, Gap
from millstream.client.guards import OneAtATime
from millstream.client.ids import ID
from millstream.client.records import Record, T, V
from millstream.client.redis_py import check_client
from millstream.client.threads.commands import StreamCommands
from millstream.client.threads.concurrency import Reader, Records, opened, record_loop
from millstream.client.threads.running import Runner

SHOWN = 5
"""The shards in the `repr` of a stream."""


class Stream(Reader[V]):
    """One ordered sequence of the records of one shard or many.

    `ms.stream(..)` makes one, and its arguments are described there. A stream is for one thread
    at a time; any thread may call `stop`.

    >>> _ = ms.tappend("teas", {"name": "assam"})
    >>> with ms.stream("teas", "trim_horizon") as stream:
    ...     stream.read(timeout=0)["name"], stream.read(timeout=0)
    ('assam', None)
    """

    def __init__(
        self,
        client: Any,
        shards: Key | Shard | Iterable[Key | Shard],
        position: Position,
        options: Options,
        resolve: Callable[[str], Shard | None] | None,
        on_event: Callable[[Event], Any] | None,
    ) -> None:
        self._shards = parse_shards(shards)
        self._create = options.create
        self._closed = False
        self._runner = Runner(client, function("on_event", on_event))
        check = partial(check_client, kind=redis.Redis)
        servers = Servers(client, resolve, check, placed)
        for shard in self._shards:
            servers.of(shard)
        self._follower = Follower(servers, options, time.monotonic, time.time)
        self._runner.process.in_child(self._follower.close)
        self._start = positions.parse(position)
        self._opened = False
        self._opening = OneAtATime()

    def _open(self) -> Self:
        if not self._opened:
            ticket = object()
            try:
                self._opening.begin(ticket)  # twice at the same time would move the stream back
                self._begin(self._start)
            finally:
                self._opening.end(ticket)
        return self

    def of(self, kind: type[A] | Codec[A], *, dead_letter: Key | None = None) -> Stream[A]:
        """Read records with a `value`: of a dataclass or a pydantic model, or as a codec (`Json`,
        `MsgPack`, `Raw` or one of your own) makes it. Returns this stream.

        A record that does not fit raises InvalidRecord, once: the next call continues after it.
        With `dead_letter` it is copied to the stream of this name, with the reason, and reading
        continues.

        >>> _ = ms.tappend("cakes", {"name": "lemon", "pieces": 12})
        >>> stream = ms.stream("cakes", "earliest").of(Cake)
        >>> stream.read(timeout=1).value
        Cake(name='lemon', pieces=12)
        """
        times = time.monotonic, time.time
        self._follower.values = Values(kind, dead_letter, None, times)
        typed: Any = self
        return typed  # type: ignore[no-any-return]

    def read(self, timeout: float | None = None) -> Record[V] | None:
        """Wait for the next record. None after `timeout` seconds, at the end of the stream, or
        once `stop` was called.

        Raises RecordsExpired once for each gap, if `on_gap` is "raise", and ShardUnavailable if a
        shard has not answered for `max_wait` seconds.

        >>> with ms.stream("quiet") as stream:
        ...     stream.read(timeout=0.01)
        """
        record = self._follower.take()
        if record is not None:
            return record
        self._open()
        return self._run(self._follower.read(timeout))

    def follow(self, block: float = 1.0) -> Iterator[Record[V]]:
        """Iterate over records, and wait for more. Ends at the end of the stream, or within
        `block` seconds, and within a second, of a call of `stop`.

        >>> _ = ms.tappend("closed", {"n": 1}), ms.tseal("closed")
        >>> [record["n"] for record in ms.stream("closed", "trim_horizon").follow()]
        ['1']
        """
        check_block(block)
        records = partial(self._records, block)
        return record_loop(self._follower.stops, records, self._follower.run)

    def _records(self, block: float, begun: int) -> Records[V]:
        follower = self._follower
        while not follower.stops.since(begun):
            record = follower.take()
            if record is None:
                self._open()
                record = self._run(follower.read(block, begun))
            if record is not None:
                yield record
            elif follower.ended:
                break

    def stop(self) -> None:
        """End every `follow` that runs, or the `read` that waits. If none does, the next one ends
        at once. Any thread and any signal handler may call it.

        >>> stream = ms.stream("quiet")
        >>> stream.stop()
        >>> [record for record in stream]
        []
        """
        self._follower.stops.stop()

    def move_to(self, position: Position) -> None:
        """Continue at another position, of any kind that `ms.stream` takes.

        If it raises, the stream has not moved and continues where it was.

        >>> _ = ms.tappend("films", {"n": 1})
        >>> stream = ms.stream("films")
        >>> stream.move_to("trim_horizon")
        >>> stream.read(timeout=0)["n"]
        '1'
        """
        self._begin(positions.parse(position))

    def seek(self, position: Position) -> None:
        """The same as `move_to`.

        >>> stream = ms.stream("films")
        >>> stream.seek("earliest")
        """
        self.move_to(position)

    def _begin(self, start: positions.Start) -> None:
        creates = self._create and not isinstance(start, Token)
        self._run(self._follower.open(self._shards, start, creates))
        self._opened = True

    def heartbeat(self) -> None:
        """Let the places of idle shards advance, and notice new children of sealed shards, while
        nothing is read. Sends at most one request to a server every 5 s.

        >>> ms.stream("quiet").heartbeat()
        """
        self._open()
        self._run(self._follower.heartbeat())

    def lag(self) -> dict[str, int]:
        """The number of entries still to come, by shard.

        >>> stream = ms.stream("boats")
        >>> _ = ms.tappend("boats", {"n": 1})
        >>> stream.lag()
        {'boats': 1}
        """
        self._open()
        return self._run(self._follower.lag())

    def metrics(self) -> dict[str, float]:
        """Numbers: records, requests, buffered, reconnects, gaps, late, watermark_age_s.

        `watermark_age_s` is how long ago every record that there was had been returned. It is about
        0 while the stream is read and idle, and after its end.

        >>> ms.stream("quiet").metrics()["records"]
        0
        """
        self._runner.process.check()
        return self._follower.metrics()

    def close(self) -> None:
        """Release the connections. Closing twice does nothing.

        >>> stream = ms.stream("quiet")
        >>> stream.close()
        """
        self._runner.process.check()
        self._closed = True
        self._follower.close()
        self._runner.lanes.close()

    @property
    def token(self) -> dict[str, Any]:
        """The position of the stream, for `json`. A stream that is opened at it continues after
        the records that were returned.

        >>> stream = ms.stream("quiet")
        >>> stream.token["v"]
        1
        """
        self._runner.process.check()
        return self._follower.token

    @property
    def watermark(self) -> ID:
        """Every record up to this ID was returned, and no more will come.

        >>> ms.stream("quiet").watermark
        ID(ms=0, seq=0)
        """
        self._runner.process.check()
        return self._follower.watermark

    @property
    def gaps(self) -> list[Gap]:
        """The entries that were lost so far: the last 1,000 gaps.

        >>> ms.stream("quiet").gaps
        []
        """
        self._runner.process.check()
        return list(self._follower.gaps)

    @property
    def shards(self) -> list[str]:
        """The names of the shards that are being read.

        >>> ms.stream("quiet").shards
        ['quiet']
        """
        self._runner.process.check()
        return self._follower.shards

    @property
    def ended(self) -> bool:
        """True if every record up to the `end` of the stream was returned, or if every shard is
        sealed and was read to its end.

        >>> ms.stream("quiet").ended
        False
        """
        self._runner.process.check()
        return self._opened and self._follower.ended

    def __repr__(self) -> str:
        names = self._follower.shards if self._opened else [shard_name(s) for s in self._shards]
        shown = ", ".join(names[:SHOWN]) + (", .." if len(names) > SHOWN else "")
        state = "closed" if self._closed else f"watermark {self._follower.watermark}"
        return f"Stream({shown}; {state})"

    def _run(self, steps: Steps[R]) -> R:
        if self._closed:
            raise MillstreamError("the stream is closed")
        return self._runner.run(steps)


def stream(
    ms: StreamCommands[T],
    shards: Key | Shard | Iterable[Key | Shard],
    position: Position = "latest",
    *,
    batch: int = BATCH,
    order: Literal["strict", "available"] = "strict",
    on_gap: Literal["raise", "skip"] = "raise",
    max_wait: float | None = MAX_WAIT_S,
    create: bool = True,
    clock: bool | None = None,
    resolve: Callable[[str], Shard | None] | None = None,
    on_event: Callable[[Event], Any] | None = None,
    end: Point | None = None,
) -> Stream[T]:
    """Follow one shard or many as one ordered sequence.

    `shards` is a key or a list of keys and Shards. `position` is "trim_horizon" or "earliest" (the
    oldest record), "latest" (from now on), a time (the first record at or after it), an ID (the
    first record after it), or the token of a stream. The stream asks for up to `batch` records of a
    shard at once.

    With `end`, the stream ends: "latest" is the newest record that there is at the beginning, a
    time the last record before it, an ID the last record up to it. It may be in the future.

    In `order` "strict", records come by ID, whatever shard they are from. In order "available"
    they are returned as they arrive, in order within each shard. `on_gap` "raise" reports
    lost records as RecordsExpired, "skip" only in `gaps`, the log and to `on_event`. If a shard
    does not answer for `max_wait` seconds, and nothing can be returned without it, calls
    raise ShardUnavailable; None waits forever.

    A shard that does not exist is created, unless `create` is False or the position is a token.
    `clock` is whether to ask for promises by the clock of each server, which bind explicit IDs.
    None asks where they are needed: in a strict stream, while it has several shards. False
    never asks, for IDs that come from elsewhere; then entries have to keep coming to all
    shards. True always asks. `resolve` finds the children of a sealed shard that are on another
    server, by name.

    Raises InvalidPosition, InvalidStream, and redis-py's errors if a server does not answer.

    >>> _ = ms.tappend("s1", {"n": 1}), ms.tappend("s2", {"n": 2})
    >>> with ms.stream(["s1", "s2"], "trim_horizon") as stream:
    ...     stream.read(timeout=1)["n"], stream.read(timeout=1)["n"]
    ('1', '2')
    """
    options = Options(batch, order, on_gap, max_wait, clock, create, positions.parse_end(end))
    return opened(Stream(ms, shards, position, options, resolve, on_event))
