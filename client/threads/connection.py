# Generated from client/aio/connection.py by scripts/client_for_threads.py: change it there.
"""A connection to a server: redis-py's client with the commands of millstream; repeats of single
commands, and errors of this package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Literal, Self, overload

import redis
import redis.client
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from millstream.client import redis_py
from millstream.client.core.decoding import read_reply
from millstream.client.core.reads_and_waits import block_s, is_read
from millstream.client.core.repeating import (
    LIMIT_TRIES,
    ReadRepeats,
    RefusedRepeats,
    is_too_long,
)
from millstream.client.core.steps import Command, R
from millstream.client.core.words import check_length, text
from millstream.client.errors import Sealed, refusal
from millstream.client.queued import QueuedCommands
from millstream.client.records import T
from millstream.client.threads.commands import NAMES, StreamCommands
from millstream.client.threads.consumer import consumer as new_consumer
from millstream.client.threads.interruptible import (
    ClientBase,
    close_if_interrupted,
    make_interruptible,
)
from millstream.client.threads.letters import dead_letters as read_dead_letters
from millstream.client.threads.letters import redrive as redrive_entries
from millstream.client.threads.nodes import (
    close_client,
    execute_at_node,
    execute_queued,
    watch_at_node,
)
from millstream.client.threads.producer import producer as new_producer
from millstream.client.threads.schedules import cancel as cancel_scheduled
from millstream.client.threads.schedules import schedule as schedule_entry
from millstream.client.threads.schedules import scheduled as scheduled_entries
from millstream.client.threads.stream import stream as new_stream
from millstream.client.threads.worker import worker as new_worker
from millstream.client.threads.writer import writer as new_writer
from millstream.remote import NOT_SERVED


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

    >>> with connect(url) as client:
    ...     client.ping()
    True
    """
    options = redis_py.options(Retry, timeout, redis_options)
    redis_py.check_url(url)
    client: Any = Millstream.from_url(url, **options)
    return client  # type: ignore[no-any-return]


class Pipeline(ClientBase, QueuedCommands, redis.client.Pipeline, Generic[T]):
    """redis-py's pipeline with the commands of millstream. Each method queues its command, and
    `execute` returns what the methods of a connection return.

    >>> with ms.pipeline() as pipe:
    ...     _ = pipe.tappend("orders", {"item": "tea"})
    ...     _ = pipe.xlen("orders")
    ...     len(pipe.execute())
    2
    """

    home: Any
    """The client that has made the pipeline."""

    @classmethod
    def of(cls, home: Any, transaction: bool, shard_hint: str | None) -> Self:
        """A pipeline of a client.

        >>> len(Pipeline.of(ms, True, None))
        0
        """
        made = cls(home.connection_pool, home.response_callbacks, transaction, shard_hint)
        made.home = home
        return made

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def reset(self) -> None:  # type: ignore[override]  # so is redis-py's own
        """Forget the queued commands, and give the connection back."""
        close_if_interrupted(self.connection)
        base: Any = super()
        base.reset()

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the queued commands, and return their replies."""
        queued = self._begin()
        send = super().execute
        try:
            redis_py.check_watch(self, self.connection)
            replies = execute_queued(self, send, raise_on_error=raise_on_error)
        except ResponseError as error:
            raise self._refusal(error) from None
        finally:
            self.reset()
        return self._replies(queued, replies)

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command at once: WATCH, or one after it."""
        base: Any = super()
        if self.connection is not None:
            return base.immediate_execute_command(*args, **options)
        send = partial(base.immediate_execute_command, *args, **options)
        return watch_at_node(self, send, args)


class Millstream(ClientBase, StreamCommands[T], redis.Redis, Generic[T]):
    """A `redis.Redis` that also has the commands of millstream, streams, writers,
    consumers and workers.

    Reads are repeated after a broken connection. A write is sent once; a Writer repeats it safely.
    Any thread may use a client.

    >>> ms.set("greeting", "hello"), ms.get("greeting")
    (True, 'hello')
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("connection_pool") is not None:
            make_interruptible(kwargs["connection_pool"])  # may be used at once
        super().__init__(*args, **kwargs)
        make_interruptible(self.connection_pool)
        callback: Any = read_reply
        for name in NAMES:
            self.set_response_callback(name, callback)

    def __enter__(self) -> Self:
        base: Any = super()
        base.__enter__()
        return self

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command as words, and return redis-py's form of the reply."""
        return execute(self, args, options)

    def _ask(self, command: Command[R]) -> R:
        return ask(self, command)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline[T]:
        """Commands that are sent together; in one transaction, unless `transaction` is False.

        >>> with ms.pipeline() as pipe:
        ...     _ = pipe.tappend("orders", {"item": "tea"})
        ...     _ = pipe.tinfo("orders")
        ...     new, info = pipe.execute()
        >>> info["last-id"] == new
        True
        """
        return Pipeline.of(self, transaction, shard_hint)

    close = close_client
    stream = new_stream
    writer = new_writer
    producer = new_producer
    consumer = new_consumer
    worker = new_worker
    tschedule = schedule = schedule_entry
    tscheduled = scheduled = scheduled_entries
    tcancel = cancel = cancel_scheduled
    tredrive = redrive = redrive_entries
    dead_letters = read_dead_letters


def execute(client: Any, words: Sequence[Any], options: dict[str, Any]) -> Any:
    """Send a command. A read is repeated after a broken connection, and any command that nodes of
    a cluster have refused without running it."""
    if wait_s := block_s(words):
        options["wait_s"] = wait_s
    repeats = ReadRepeats(is_read(words))
    refusals: RefusedRepeats | None = None
    while True:
        try:
            return execute_at_node(client, words, options)
        except NOT_SERVED:
            if refusals is None:
                refusals = RefusedRepeats(redis_py.timeout_s(client), time.monotonic)
            pause_s = refusals.pause_s()
            if pause_s is None:
                raise
        except (RedisConnectionError, ResponseError) as error:
            if is_too_long(error, words):
                _check_length(client, words)
            pause_s = repeats.pause_s(error)
            if pause_s is None:
                raise
        time.sleep(pause_s)


def _check_length(client: Any, words: Sequence[Any]) -> None:
    for _ in range(LIMIT_TRIES):
        try:
            limits = client.config_get("proto-max-bulk-len")
        except RedisError:  # it may not be allowed
            continue
        check_length(words, limits)
        return


def ask(client: Any, command: Command[R]) -> R:
    """The reply to a command, as the command reads it."""
    try:
        options = {"wait_s": command.wait_s} if command.wait_s else {}
        return command.read(client.execute_command(*command.words, **options))
    except ResponseError as error:
        refused = refusal(error, command.words, redis_py.address(client))
        if isinstance(refused, Sealed):
            _name_children(client, refused, command.words[1])
        raise refused from None


def _name_children(client: Any, sealed: Sealed, key: Any) -> None:
    with suppress(RedisError):
        info = client.tinfo(key)
        if info is not None:
            sealed.children = list(map(text, info["children"]))
