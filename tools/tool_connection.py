"""One connection to a server, by URL, for tools: replies as they come, errors as one sentence.

The tools also work with Redis. redis-py knows the URLs and makes the connection; requests and
replies do not pass through its commands, because these differ between its versions.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream import url_file
from millstream.backoff import Backoff
from millstream.cli_error import CliError
from millstream.errors import printable
from millstream.remote import (
    DEFAULT_URL,
    add_password,
    connect_reason_of,
    reason_of,
    url_reason_of,
)
from millstream.seconds import Seconds
from millstream.server_url import shown_url, split_url
from millstream.url_file import url_file_option, url_of_file

Word = bytes | str | int
F = TypeVar("F", bound=Callable[..., Any])
# Between two attempts to connect again.
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 2.0
STREAM_BYTES = 1 << 20


class ToolError(CliError):
    """Ends a tool with one sentence and exit code 1."""


class Unreachable(ToolError):
    """The server cannot be reached, the connection broke, or the server still loads its data."""


class ToolConnection:
    """An open connection. Replies are bytes, int, None, lists of these, or a ResponseError.

    Unreachable when the server cannot be reached or the connection breaks.
    """

    def __init__(self, url: str, timeout_s: float = 10) -> None:
        shown = shown_url(url)
        self.name = printable(shown or "given")
        try:
            _check_parts(url)
            pool: Any = redis.ConnectionPool.from_url(
                url,
                protocol=2,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
            )
            add_password(pool.connection_kwargs)
            self._connection: Any = pool.make_connection()
            self.user = str(pool.connection_kwargs.get("username") or "")
            self.password = str(pool.connection_kwargs.get("password") or "")
            self.db = int(pool.connection_kwargs.get("db") or 0)
            self.names_db = bool(pool.connection_kwargs.get("db") is not None)
        except (ValueError, TypeError) as problem:
            reason = url_reason_of(problem)
            name = f" {self.name}" if shown else ""
            raise ToolError(f"the URL{name} is invalid: {reason}") from None
        self.host = str(pool.connection_kwargs.get("host", "127.0.0.1"))
        self.uses_tls = url.startswith("rediss:")
        self._connect()

    def _connect(self) -> None:
        try:
            self._connection.connect()
        except (redis.RedisError, OSError) as problem:
            reason = connect_reason_of(problem, uses_tls=self.uses_tls)
            is_refused = isinstance(problem, redis.AuthenticationError)
            kind = ToolError if is_refused else Unreachable
            raise kind(f"{self.name}: {reason}") from problem

    def reconnect(self, within_s: float = math.inf) -> None:
        """Connect until the server answers, with pauses that grow to two seconds. ToolError if it
        refuses the user or the password; Unreachable if no attempt within this time succeeds."""
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        end_s = time.monotonic() + within_s
        while True:
            threading.Event().wait(backoff.next_s())
            try:
                self._connection.disconnect()
                self._connect()
                (reply,) = self.pipeline([["PING"]])
            except Unreachable:
                if time.monotonic() >= end_s:
                    raise
                continue
            if not is_loading(reply):  # a refusal is an answer, too
                return
            if time.monotonic() >= end_s:
                raise Unreachable(f"{self.name}: {reply}")

    def close(self) -> None:
        self._connection.disconnect()

    def pipeline(self, requests: Sequence[Sequence[Word]]) -> list[Any]:
        """The replies to requests that are sent together; errors of single requests are replies."""
        if not requests:
            return []
        try:
            self._connection.send_packed_command(self._connection.pack_commands(requests))
            return [self._reply() for _ in requests]
        except (redis.ConnectionError, redis.TimeoutError, OSError) as problem:
            raise Unreachable(f"{self.name}: {reason_of(problem)}") from problem

    def _reply(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error
        except (redis.AuthenticationError, redis.exceptions.BusyLoadingError) as error:
            return error  # connection errors for redis-py, but the connection stays open

    def call(self, *words: Word) -> Any:
        """The reply to one request; ToolError when the server refuses it."""
        (reply,) = self.pipeline([words])
        return self.checked(reply)

    def checked(self, reply: Any) -> Any:
        """A reply of a pipeline; ToolError if it is an error."""
        if is_loading(reply):
            raise Unreachable(f"{self.name}: {reply}")
        if isinstance(reply, redis.exceptions.MovedError):  # its text is without the first word
            raise ToolError(
                f"{self.name}: the key belongs to another node of the cluster, at "
                f"{reply.host}:{reply.port}: give that one, or the gateway"
            )
        if isinstance(reply, redis.RedisError):
            raise ToolError(f"{self.name}: {reply}")
        return reply

    def stream(self, *words: Word) -> Iterator[bytes]:
        """Send a request whose answer is not a reply: its bytes as they arrive, until the server
        closes the connection. Unreachable when the connection breaks or the server is silent for
        the timeout."""
        try:
            self._connection.send_packed_command(self._connection.pack_commands([words]))
            while data := self._connection._sock.recv(STREAM_BYTES):
                yield data
        except (redis.RedisError, OSError) as problem:
            raise Unreachable(f"{self.name}: {reason_of(problem)}") from problem


def wants_password(answer: object) -> bool:
    """True if an error says that the server serves only clients that log in."""
    return isinstance(answer, redis.AuthenticationError) and "required" in str(answer)


def lacks_permission(answer: object) -> bool:
    """True if an error says that the user may not run the command."""
    return isinstance(answer, redis.exceptions.NoPermissionError)


def is_loading(reply: object) -> bool:
    """True if the server still loads its data."""
    return isinstance(reply, redis.exceptions.BusyLoadingError)


def is_of_other_node(reply: object) -> bool:
    """True if a node of a cluster says that a key belongs to another one, or to none."""
    return isinstance(reply, redis.exceptions.MovedError | redis.exceptions.ClusterDownError)


def is_error(reply: object) -> bool:
    """True if the server refused a request of a pipeline."""
    return isinstance(reply, redis.RedisError)


def _check_parts(url: str) -> None:
    """ValueError if a URL cannot be read, names no socket, or has a path that is not the number of
    a database: redis-py would use 0."""
    parts = split_url(url)
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("it names no socket, as unix:///path/to/socket does")
    name = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and name and not name.isdecimal():
        raise ValueError(f"{printable(name)} is not the number of a database")


def database_of(url: str) -> int | None:
    """The database that a URL names; None if it names none, or cannot be read."""
    try:
        database = redis.ConnectionPool.from_url(url).connection_kwargs.get("db")
        return None if database is None else int(database)
    except (ValueError, TypeError):
        return None


def _chosen_url(ctx: click.Context, param: click.Parameter, url: str) -> str:
    return url_of_file(ctx, param.name or "", "--url") or url


def chosen_url(server: str | None, url: str) -> str:
    """The URL of a tool that also takes it as an argument."""
    if server is not None and url_file.KEY in click.get_current_context().meta:
        raise click.UsageError("URL and --url-file exclude each other.")
    return server or url


def url_option(command: F) -> F:
    """The options that name the server."""
    of_url = click.option(
        "--url",
        envvar="MILLSTREAM_URL",
        default=DEFAULT_URL,
        show_default=True,
        callback=_chosen_url,
        metavar="URL",
        help="Server: redis://, rediss:// or unix://; also from MILLSTREAM_URL. The password can "
        "come from REDISCLI_AUTH.",
    )
    return of_url(url_file_option(ToolError)(command))


def timeout_option(title: str) -> Callable[[F], F]:
    """The option --timeout of a tool that may wait for a long time."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=Seconds(0.001, 86_400),
        default=60,
        show_default=True,
        metavar="SECONDS",
        help=title,
    )
