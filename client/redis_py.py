"""The uses of redis-py beyond its documented interface.

It holds for redis-py 5 to 8; the tests run with the oldest and the newest of them.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis
import redis.asyncio
import redis.retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError, WatchError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.client.core.argument_checks import TIMEOUT_MAX_S, number
from millstream.client.core.cluster_nodes import FOUND
from millstream.client.core.steps import Answer, Ask, Command
from millstream.client.core.words import word_bytes
from millstream.client.errors import InvalidStream, refusal
from millstream.client.word_packing import packed_command, packed_words
from millstream.server_url import split_url
from millstream.slot_routing import Address


def check_url(url: Any) -> None:
    """redis-py's own error would contain a part of the password."""
    if not isinstance(url, str):
        raise ValueError(f"url must be text, such as redis://localhost:6455, not {url!r}")
    split_url(url)


def options(retry: Callable[..., Any], timeout: float, given: dict[str, Any]) -> dict[str, Any]:
    """The options of `from_url`. A command is never repeated by redis-py itself, because it
    cannot know which ones may be repeated."""
    for name in ("retry", "retry_on_error", "retry_on_timeout"):
        if name in given:
            raise TypeError(
                f"connect() takes no {name!r}: reads are repeated after a broken connection, and "
                "writes never are; a Writer repeats them safely"
            )
    if timeout is not None and not 0 < number("timeout", timeout) <= TIMEOUT_MAX_S:
        raise ValueError(
            f"timeout must be above 0 and at most {TIMEOUT_MAX_S:,} seconds, or None for no limit, "
            f"not {timeout!r}"
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
    if retry is redis.retry.Retry:  # asyncio has no such option
        own["command_packer"] = Packer()
    return {**own, **given, "retry": retry(NoBackoff(), 0)}


class Packer:
    """Writes commands as RESP, with text that has surrogates, as in the asyncio API.

    hiredis' function for it is not used: it ends the process with a segmentation fault when a
    signal handler raises an exception at that moment.
    """

    def pack(self, *words: Any) -> list[bytes]:
        """The command as RESP. A first word with blanks is several words, as in redis-py."""
        if type(words[0]) is str and " " not in words[0]:
            packed = packed_command(words)
            if packed is not None:
                return [packed]
        first = word_bytes(words[0]).split()
        count = len(first) + len(words) - 1
        return [b"*%d\r\n%b" % (count, packed_words([*first, *words[1:]]))]


class Packed(list[Any]):
    """Commands as they are sent, and how many they are."""

    def __init__(self, pieces: Iterable[Any], commands: int) -> None:
        super().__init__(pieces)
        self.commands = commands


def pack(connection: Any, commands: Sequence[Command[Any]]) -> Any:
    """Commands as a connection sends them."""
    pieces = []
    for command in commands:
        packed = command.packed or packed_command(command.words)
        if packed is None:
            return connection.pack_commands([command.words for command in commands])
        pieces.append(packed)
    return Packed([b"".join(pieces)] if len(pieces) > 1 else pieces, len(pieces))


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


def own_address(client: Any) -> Address:
    """The host and the port of a client's server."""
    kwargs = client.connection_pool.connection_kwargs
    if "path" in kwargs:
        return Address("127.0.0.1", 0)
    return Address(str(kwargs.get("host", "localhost")), int(kwargs.get("port", 6379)))


def node_client(home: Any, node: Address, kinds: Any) -> Any:
    """A client of another node of a cluster, with the options of this one. `kinds` is the module
    of the API with its classes. A Unix socket leads to one node only."""
    pool = home.connection_pool
    kind = pool.connection_class
    options = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if not name.startswith(OF_ONE_POOL)
    }
    if options.pop("path", None) is not None:
        kind = kinds.Connection
    options |= {"host": node.host, "port": node.port}
    own_pool = kinds.ConnectionPool(
        connection_class=kind, max_connections=pool.max_connections, **options
    )
    made = type(home)(connection_pool=own_pool)
    made.response_callbacks = home.response_callbacks
    return made


def timeout_s(client: Any) -> float:
    """The time that the client waits for a reply."""
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


def waits_for_exec(pipeline: Any) -> bool:
    """True if the next command of a pipeline runs in a transaction, where no command waits."""
    if pipeline.explicit_transaction:
        return True
    asyncio_flag = getattr(pipeline, "is_transaction", None)
    transaction = pipeline.transaction if asyncio_flag is None else asyncio_flag
    return bool(transaction) and not pipeline.watching


def is_transaction(pipeline: Any) -> bool:
    """True if a pipeline's commands are sent with MULTI and EXEC."""
    asyncio_flag = getattr(pipeline, "is_transaction", None)
    transaction = pipeline.transaction if asyncio_flag is None else asyncio_flag
    return bool(transaction or pipeline.explicit_transaction)


def watch_lost(cause: Exception) -> WatchError:
    return WatchError(f"the keys are on another node now: begin again with WATCH ({cause})")


def check_watch(pipeline: Any, connection: Any) -> None:
    """Raises WatchError if a pipeline has lost the connection on which it watches keys."""
    if not getattr(pipeline, "watching", False):
        return
    connected = connection is not None and is_connected(connection)
    if not connected or getattr(connection, "interrupted", False):
        raise WatchError("the connection that watched the keys was lost: begin again with WATCH")


def is_connected(connection: Any) -> bool:
    if hasattr(connection, "is_connected"):
        return bool(connection.is_connected)
    return connection._sock is not None  # redis-py 5 without asyncio


def timed_out(client: Any) -> RedisTimeoutError:
    return RedisTimeoutError(f"{address(client)} did not reply in time")


def failed_connection(client: Any, error: OSError) -> RedisConnectionError:
    """An error of the system as one of redis-py that names the server."""
    return RedisConnectionError(f"{address(client)}: {error}")


def read_value(client: Any, command: Command[Any], reply: Any) -> Any:
    """A reply as the command reads it; an error as one of this package where there is one."""
    if isinstance(reply, ResponseError):
        if command.accepts is not None and str(reply).startswith(command.accepts):
            return None
        return refusal(reply, command.words, address(client))
    return command.read(reply)


def answer(ask: Ask, replies: list[Any]) -> Answer:
    """The replies to an ask, as its commands read them."""
    try:
        client = ask.server.client
        pairs = zip(ask.commands, replies, strict=True)
        return Answer(ask, [read_value(client, *pair) for pair in pairs])
    except Exception as error:
        return Answer(ask, error=error)


def borrow(client: Any) -> Any:
    """A connection of the client's pool, connected; for asyncio, to be awaited."""
    pool = client.connection_pool
    return pool.get_connection("_") if OLD_POOL else pool.get_connection()


def note_node(client: Any, connection: Any) -> None:
    """Note at the client if the server of a connection belongs to a cluster."""
    if getattr(connection, "is_of_cluster", False):
        setattr(client, FOUND, True)


def write(connection: Any, pieces: Sequence[bytes]) -> None:
    """Send bytes on a connection of asyncio without a wait. A lost connection is seen by the task
    that reads."""
    with contextlib.suppress(OSError, RuntimeError):
        connection._writer.writelines(pieces)


def has_data(connection: Any) -> bool:
    """True if a connection of threads has received something that was not read."""
    pending = getattr(connection._sock, "pending", None)  # TLS
    if pending is not None and pending():
        return True
    reader = getattr(connection._parser, "_reader", None)  # hiredis
    return bool(connection.can_read(0) if reader is None else reader.has_data())


def has_spare(client: Any) -> bool:
    """True if the client's pool has a connection that is not in use."""
    return bool(getattr(client.connection_pool, "_available_connections", ()))


def socket_number(connection: Any) -> int | None:
    """The number of a connection's socket; None if it is not connected."""
    sock = connection._sock
    return None if sock is None else int(sock.fileno())


OF_ONE_POOL = ("maint_", "oss_cluster_", "orig_", "himport_", "event_dispatcher")
"""The beginnings of the options that a pool adds for itself."""
OLD_POOL = int(redis.__version__.split(".")[0]) < 6
"""Until redis-py 5, a pool takes the name of the command."""
