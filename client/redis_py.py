"""The uses of redis-py beyond its documented interface.

It holds for redis-py 5 to 8; the tests run with the oldest and the newest of them.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.client.core.requests import READS
from millstream.client.core.steps import Command
from millstream.client.errors import InvalidStream, refusal


def options(retry: Callable[..., Any], timeout: float, given: dict[str, Any]) -> dict[str, Any]:
    """The options of `from_url`. A command is never repeated by redis-py itself, because it
    cannot know which ones may be repeated."""
    for name in ("retry", "retry_on_error", "retry_on_timeout"):
        if name in given:
            raise TypeError(
                f"connect() takes no {name!r}: reads are repeated after a broken connection, and "
                "writes never are; a Writer repeats them safely"
            )
    own = {
        "protocol": 3,
        "decode_responses": True,
        # Bytes that are not UTF-8 become text with surrogates, as in `os.fsdecode`: one such entry
        # must not stop a reader for ever.
        "encoding_errors": "surrogateescape",
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
    }
    return {**own, **given, "retry": retry(NoBackoff(), 0)}


class Packer(redis.connection.HiredisRespSerializer):
    """redis-py's fast serializer of commands. It has no option `encoding_errors`, so text with
    surrogates is encoded here, as in the asyncio API."""

    def pack(self, *words: Any) -> list[Any]:
        """The command as RESP."""
        try:
            packed: list[Any] = super().pack(*words)
        except UnicodeEncodeError:
            packed = super().pack(*map(raw, words))
        return packed


def raw(word: Any) -> Any:
    return word.encode("utf-8", "surrogateescape") if isinstance(word, str) else word


def address(client: Any) -> str:
    """The server of a client, for error messages."""
    kwargs = client.connection_pool.connection_kwargs
    if "path" in kwargs:
        return f"the server at {kwargs['path']}"
    return f"the server at {kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"


def check_client(client: Any, kind: type) -> None:
    """Raises InvalidStream if this is not a connection of the right API."""
    if isinstance(client, kind):
        return
    module = "millstream.client.aio" if kind is redis.asyncio.Redis else "millstream.client"
    raise InvalidStream(
        f"the client {client!r} of a shard is not a connection that this stream can use: "
        f"make one with {module}.connect"
    )


def timeout_s(client: Any) -> float:
    """How long the client waits for a reply."""
    seconds = client.connection_pool.connection_kwargs.get("socket_timeout")
    return math.inf if seconds is None else float(seconds)


def socket_addresses(client: Any) -> tuple[list[tuple[int, Any]], bool]:
    """The families and addresses of a client's server for `socket`, and whether the connection is
    encrypted. No address if the pool decides about it (as for Sentinel) or none is found."""
    pool = client.connection_pool
    kwargs = pool.connection_kwargs
    if "path" in kwargs:
        return [(socket.AF_UNIX, kwargs["path"])], False
    if "host" not in kwargs:
        return [], False
    try:
        found = socket.getaddrinfo(
            kwargs["host"], kwargs.get("port", 6379), type=socket.SOCK_STREAM
        )
    except OSError:
        return [], False
    addresses = [(int(family), address) for family, _, _, _, address in found]
    return addresses, issubclass(pool.connection_class, redis.SSLConnection)


def command_name(words: Sequence[Any]) -> str:
    """The command in upper case. redis-py has some commands as one word with a space."""
    name = words[0]
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    return str(name).upper().split(" ")[0]


def is_read(words: Sequence[Any]) -> bool:
    name = command_name(words)
    if name == "TREAD":
        return not any(upper(word) == b"GROUP" for word in words)
    return name in READS


def upper(word: Any) -> bytes | None:
    """A word of a command, for comparison with an option; None for what is not text."""
    if isinstance(word, str):
        word = word.encode("utf-8", "surrogateescape")
    return word.upper() if isinstance(word, bytes) else None


def block_s(words: Sequence[Any]) -> float:
    """For how long a server may wait before it replies, as the words of the command say."""
    name = command_name(words)
    if name in WAITS_AT:
        at = WAITS_AT[name]
        return milliseconds_s(words[at]) if len(words) > at else 0.0
    option = OPTIONS.get(name)
    if option is None:
        return 0.0
    for word, value in pairwise(words[1:]):
        if upper(word) == option:
            return milliseconds_s(value)
        if upper(word) == b"STREAMS":
            break
    return 0.0


def milliseconds_s(word: Any) -> float:
    """In seconds; 0 ms stands for ever."""
    try:
        milliseconds = int(word)
    except (TypeError, ValueError):
        return 0.0
    return milliseconds / 1000 if milliseconds else math.inf


OPTIONS = dict.fromkeys(("TREAD", "TMREAD", "TPEEK", "XREAD", "XREADGROUP"), b"BLOCK")
WAITS_AT = {"WAIT": 2, "WAITAOF": 3}
"""Where the milliseconds of these commands are."""


def waits_for_exec(pipeline: Any) -> bool:
    """Whether the next command of a pipeline runs in a transaction, where no command waits."""
    if pipeline.explicit_transaction:
        return True
    asyncio_flag = getattr(pipeline, "is_transaction", None)
    transaction = pipeline.transaction if asyncio_flag is None else asyncio_flag
    return bool(transaction) and not pipeline.watching


def timed_out(client: Any) -> RedisTimeoutError:
    return RedisTimeoutError(f"{address(client)} did not reply in time")


def read_value(client: Any, command: Command[Any], reply: Any) -> Any:
    """A reply as the command reads it; an error as one of this package where there is one."""
    if isinstance(reply, ResponseError):
        if command.accepts is not None and str(reply).startswith(command.accepts):
            return None
        return refusal(reply, command.words, address(client))
    return command.read(reply)


def borrow(client: Any) -> Any:
    """A connection of the client's pool, connected; for asyncio, to be awaited."""
    pool = client.connection_pool
    return pool.get_connection("_") if OLD_POOL else pool.get_connection()


def has_spare(client: Any) -> bool:
    """Whether the client's pool has a connection that is not in use."""
    return bool(getattr(client.connection_pool, "_available_connections", ()))


def socket_number(connection: Any) -> int | None:
    """The number of a connection's socket; None if it is not connected."""
    sock = connection._sock
    return None if sock is None else int(sock.fileno())


OLD_POOL = int(redis.__version__.split(".")[0]) < 6
"""Until redis-py 5, a pool takes the name of the command."""
