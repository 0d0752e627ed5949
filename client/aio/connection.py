"""A connection to a server, for asyncio: redis-py's client with the commands of millstream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import redis
import redis.asyncio
import redis.asyncio.client
from redis.asyncio.retry import Retry
from redis.exceptions import ResponseError

from millstream.client import redis_py
from millstream.client.aio.commands import StreamCommands
from millstream.client.aio.consumer import Consumer
from millstream.client.aio.interruptible import close_if_interrupted, make_interruptible
from millstream.client.aio.lanes import more_time
from millstream.client.aio.stream import Stream
from millstream.client.aio.writer import Writer
from millstream.client.commands import NAMES, read_reply
from millstream.client.core.command_words import block_s, is_read
from millstream.client.core.deliveries import Terms
from millstream.client.core.options import Options
from millstream.client.core.position import Position
from millstream.client.core.repeating import LIMIT_TRIES, ReadRepeats, is_too_long
from millstream.client.core.shards import Shard
from millstream.client.core.words import check_length, text
from millstream.client.errors import Sealed, refusal
from millstream.client.events import Event
from millstream.client.ids import ID
from millstream.client.queued import QueuedCommands
from millstream.client.records import T

if TYPE_CHECKING:
    from typing import Self

    from millstream.client.core.steps import Command, R
    from millstream.client.core.words import Key


@overload
def connect(
    url: str = ..., *, timeout: float = ..., decode_responses: Literal[False], **redis_options: Any
) -> Millstream[bytes]: ...
@overload
def connect(
    url: str = ...,
    *,
    timeout: float = ...,
    decode_responses: Literal[True] = ...,
    **redis_options: Any,
) -> Millstream[str]: ...
@overload
def connect(
    url: str = ..., *, timeout: float = ..., decode_responses: bool, **redis_options: Any
) -> Millstream[str] | Millstream[bytes]: ...
def connect(
    url: str = "redis://localhost:6455", *, timeout: float = 5.0, **redis_options: Any
) -> Millstream[Any]:
    """A connection to a server, made when it is first used.

    `timeout` is how many seconds to wait for a connection and for a reply. Where a command waits,
    the time that it waits comes on top. All other options are redis-py's. Text is `str`; bytes that
    are not UTF-8 become surrogates, and `text.encode("utf-8", "surrogateescape")` gives them back.
    With `decode_responses=False` it is bytes everywhere.

    >>> async with connect(url) as client:
    ...     await client.ping()
    True
    """
    options = redis_py.options(Retry, timeout, redis_options)
    client: Any = Millstream.from_url(url, **options)
    return client  # type: ignore[no-any-return]


class _Client:
    """The common base class of connections and pipelines."""

    async def _send_command_parse_response(self, conn: Any, *args: Any, **options: Any) -> Any:
        redis_py.check_watch(self, conn)
        await close_if_interrupted(conn)  # one that is not from the pool
        return await super()._send_command_parse_response(  # type: ignore[misc]
            conn, *args, **options
        )

    async def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        with more_time(connection, options.pop("wait_s", 0.0)):
            return await super().parse_response(  # type: ignore[misc]
                connection, command_name, **options
            )


class Pipeline(  # type: ignore[misc]  # so is redis-py's own
    _Client, QueuedCommands, redis.asyncio.client.Pipeline, Generic[T]
):
    """redis-py's pipeline with the commands of millstream. Each method queues its command, and
    `execute` returns what the methods of a connection return.

        async with ms.pipeline() as pipe:
            pipe.tappend("orders", {"item": "tea"}).xlen("orders")
            new, length = await pipe.execute()
    """

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def reset(self) -> None:  # type: ignore[override]  # so is redis-py's own
        """Forget the queued commands, and give the connection back."""
        await close_if_interrupted(self.connection)
        await super().reset()  # type: ignore[no-untyped-call]

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the queued commands, and return their replies."""
        queued = self._begin()
        try:
            redis_py.check_watch(self, self.connection)
            replies: list[Any] = await super().execute(raise_on_error)
        except ResponseError as error:
            raise self._refusal(error) from None
        finally:
            await self.reset()
        return self._replies(queued, replies)


class Millstream(  # type: ignore[misc]  # so is redis-py's own class
    _Client, StreamCommands[T], redis.asyncio.Redis, Generic[T]
):
    """A `redis.asyncio.Redis` that also has the commands of millstream, and streams, writers and
    consumers.

    Reads are repeated after a broken connection. A write is sent once: if its reply is lost, the
    ConnectionError says so, and a Writer is the way to repeat it. All tasks of one
    event loop may share it: the loop that used it first.

        await ms.set("greeting", "hello")
        async with ms.stream("orders") as stream:
            record = await stream.read(timeout=0)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        make_interruptible(self.connection_pool)
        callback: Any = read_reply
        for name in NAMES:
            self.set_response_callback(name, callback)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command as words, and return redis-py's form of the reply."""
        if wait_s := block_s(args):
            options["wait_s"] = wait_s
        repeats = ReadRepeats(is_read(args))
        while True:
            try:
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            except (redis.ConnectionError, ResponseError) as error:
                if is_too_long(error, args):
                    await self._check_length(args)
                pause_s = repeats.pause_s(error)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def _check_length(self, words: Sequence[Any]) -> None:
        for _ in range(LIMIT_TRIES):
            try:
                limits = await self.config_get("proto-max-bulk-len")
            except redis.RedisError:  # it may not be allowed
                continue
            check_length(words, limits)
            return

    async def _ask(self, command: Command[R]) -> R:
        try:
            options = {"wait_s": command.wait_s} if command.wait_s else {}
            return command.read(await self.execute_command(*command.words, **options))
        except ResponseError as error:
            refused = refusal(error, command.words, redis_py.address(self))
            if isinstance(refused, Sealed):
                await self._name_children(refused, command.words[1])
            raise refused from None

    async def _name_children(self, sealed: Sealed, key: Any) -> None:
        with suppress(redis.RedisError):
            info = await self.tinfo(key)
            if info is not None:
                sealed.children = list(map(text, info["children"]))

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline[T]:
        """Commands that are sent together; in one transaction, unless `transaction` is False.

        >>> async with ms.pipeline() as pipe:
        ...     _ = pipe.tappend("orders", {"item": "tea"})
        ...     _ = pipe.tinfo("orders")
        ...     new, info = await pipe.execute()
        >>> info["last-id"] == new
        True
        """
        return Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    # ------------------------------------------------------------ streams, writers, consumers

    def stream(
        self,
        shards: Key | Shard | Iterable[Key | Shard],
        position: Position = "latest",
        *,
        batch: int = 100,
        order: Literal["strict", "available"] = "strict",
        on_gap: Literal["raise", "skip"] = "raise",
        max_wait: float | None = 30.0,
        create: bool = True,
        clock: bool | None = None,
        resolve: Callable[[str], Shard | None] | None = None,
        on_event: Callable[[Event], Any] | None = None,
    ) -> Stream[T]:
        """Follow one shard or many as one ordered sequence.

        `shards` is a key or a list of keys and Shards. `position` is "trim_horizon" (the oldest
        record), "latest" (from now on), a time, or the token of a stream. The stream asks for up to
        `batch` records of a shard at once.

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

        >>> _ = await ms.tappend("s1", {"n": 1}), await ms.tappend("s2", {"n": 2})
        >>> async with ms.stream(["s1", "s2"], "trim_horizon") as stream:
        ...     (await stream.read(timeout=1))["n"], (await stream.read(timeout=1))["n"]
        ('1', '2')
        """
        return Stream(
            self,
            shards,
            position,
            Options(batch, order, on_gap, max_wait, clock, create),
            resolve,
            on_event,
        )

    def writer(
        self,
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

        >>> async with ms.writer("orders", "api-7") as writer:
        ...     await writer.append({"item": "tea"}) < await writer.append({"item": "salt"})
        True
        """
        return Writer(self, key, name, lease=lease, take_over=take_over, retry_for=retry_for)

    def consumer(
        self,
        key: Key,
        group: Key,
        *,
        ttl: float = 0.0,
        retry: float | None = None,
        expire: float = 0.0,
        position: str | ID = "latest",
        batch: int | None = None,
        retry_for: float = 30.0,
    ) -> Consumer[T]:
        """Read a stream as one of the consumers that share a group's entries.

        The group is created at once, at `position`: "trim_horizon", "latest" or an ID. It ends when
        it was not used for `ttl` seconds; 0 means never. An entry that is not acknowledged within
        `retry` seconds goes to the next consumer, for up to `expire` seconds; 0 means forever.
        Without `retry`, entries are delivered once, and those of a consumer that fails are lost.

        Up to `batch` entries are fetched at once: 10, or 1 without `retry`, because what is fetched
        and not handed out would be lost. With `retry`, the work on a complete batch has to be done
        within that time.

        While the server does not answer, a call repeats its request for `retry_for` seconds, and
        then raises its error. The last attempt may take the connection's `timeout` longer.

        >>> _ = await ms.tappend("jobs2", {"n": 1})
        >>> async with ms.consumer("jobs2", "crew", retry=60, position="trim_horizon") as consumer:
        ...     job = await consumer.read(timeout=1)
        ...     await consumer.ack(job)
        1
        """
        return Consumer(
            self,
            key,
            group,
            Terms(ttl, retry, expire),
            position,
            batch,
            retry_for,
        )
