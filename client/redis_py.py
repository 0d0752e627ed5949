"""What this package needs of redis-py beyond its documented interface, in one place.

It holds for redis-py 5 to 8; the tests run with the oldest and the newest of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.client.core.requests import READS
from millstream.client.core.steps import Command
from millstream.client.errors import refusal

REPEATS = 3
REPEAT_FIRST_S = 0.02


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
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
    }
    return {**own, **given, "retry": retry(NoBackoff(), 0)}


def address(client: Any) -> str:
    """The server of a client, for error messages."""
    kwargs = client.connection_pool.connection_kwargs
    if "path" in kwargs:
        return f"the server at {kwargs['path']}"
    return f"the server at {kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"


def timeout_s(client: Any) -> float:
    """How long the client waits for a reply."""
    seconds = client.connection_pool.connection_kwargs.get("socket_timeout")
    return math.inf if seconds is None else float(seconds)


def may_repeat(error: Exception) -> bool:
    """Whether the same read may get a reply with a new connection."""
    return isinstance(error, RedisConnectionError) and not isinstance(error, AuthenticationError)


def is_read(words: Sequence[Any]) -> bool:
    name = words[0]
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    first = str(name).upper().split(" ")[0]
    if first == "TREAD":
        return not any(
            isinstance(word, (str, bytes)) and word in ("GROUP", b"GROUP") for word in words
        )
    return first in READS


def block_s(words: Sequence[Any]) -> float:
    """How long a server may wait because of a BLOCK in XREAD, XREADGROUP or a command like them."""
    for word, value in pairwise(words):
        if isinstance(word, (str, bytes)) and word.upper() in ("BLOCK", b"BLOCK"):
            try:
                milliseconds = int(value)
            except (TypeError, ValueError):
                return 0.0
            return milliseconds / 1000 if milliseconds else math.inf
        if word in ("STREAMS", b"STREAMS"):
            break
    return 0.0


BLOCKING = frozenset(["TREAD", "TMREAD", "TPEEK", "XREAD", "XREADGROUP"])


def timed_out(client: Any) -> RedisTimeoutError:
    return RedisTimeoutError(f"{address(client)} did not reply in time")


def read_value(client: Any, command: Command[Any], reply: Any) -> Any:
    """A reply as the command reads it; an error as one of this package where there is one."""
    if isinstance(reply, ResponseError):
        if command.accepts is not None and str(reply).startswith(command.accepts):
            return None
        return refusal(reply, command.name, address(client))
    return command.read(reply)


def borrow(client: Any) -> Any:
    """A connection of the client's pool, connected; for asyncio, to be awaited."""
    pool = client.connection_pool
    return pool.get_connection("_") if OLD_POOL else pool.get_connection()


def socket_number(connection: Any) -> int | None:
    """The number of a connection's socket; None if it is not connected."""
    sock = connection._sock
    return None if sock is None else int(sock.fileno())


OLD_POOL = int(redis.__version__.split(".")[0]) < 6
"""Until redis-py 5, a pool wants to know the command."""
