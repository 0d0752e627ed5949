"""A connection to a live server: one URL, and errors that name the server and its reply.

An `Address` is pickled for Spark's workers; a `Server` is opened in the process that uses it. All
requests may be sent twice, both reads and `TAPPENDONCE`. After a connection error the connection is
opened again and the request is repeated, until the option `timeout` expires. A restart of the
server therefore only delays a job.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.backoff import Backoff
from millstream.pipeline.source_options import SourceOptions, check_server_url
from millstream.remote import next_step, reason_of, url_reason_of
from millstream.server_url import shown_url

Word = bytes | str | int
Command = Sequence[Word]
Answer = TypeVar("Answer")

TIMEOUT_S = 30
TIMEOUT_S_MAX = 3600
KEYS_PER_SCAN = 1000
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0

# Temporary failures: a connection that broke, a server that is still loading its data.
_PASSING = (redis.ConnectionError, redis.TimeoutError)
_REFUSED = (redis.AuthenticationError, redis.exceptions.AuthorizationError)


class ServerError(Exception):
    """The server cannot be reached or refused a request. The text names the server and the
    reason."""


class Unreachable(ServerError):
    """The server does not answer. A later attempt may succeed."""


@dataclass(frozen=True)
class Address:
    """Address and credentials: the options `server`, `username`, `password`, `db` and `timeout`
    (seconds)."""

    url: str
    username: str | None
    password: str | None
    db: int | None
    timeout_s: int

    @classmethod
    def from_options(cls, options: SourceOptions) -> Address:
        url = options.required("server")
        check_server_url(url)
        return cls(
            url,
            options.text("username"),
            options.text("password"),
            options.integer("db", 0, 0, 1 << 30) if "db" in options else None,
            options.integer("timeout", TIMEOUT_S, 1, TIMEOUT_S_MAX),
        )

    def __str__(self) -> str:
        """The URL without user, password and parameters."""
        return shown_url(self.url) or "given"

    def open(self, persistent: bool = True) -> ServerConnection:
        return ServerConnection(self, persistent)


class ServerConnection:
    """A pool of connections to one server; threads may share it.

    Replies are bytes, int, None, and lists of these.

    Without `persistent`, the first connection error is a ServerError: for a caller that reports the
    error and repeats the request.
    """

    def __init__(self, address: Address, persistent: bool = True) -> None:
        self.address = address
        self._persistent = persistent
        given = {
            "username": address.username,
            "password": address.password,
            "db": address.db,
            # A Unix socket has no such option.
            "socket_keepalive": None if address.url.startswith("unix:") else True,
        }
        try:
            pool: Any = redis.ConnectionPool.from_url(
                address.url,
                protocol=2,
                socket_timeout=address.timeout_s,
                socket_connect_timeout=address.timeout_s,
                retry=Retry(NoBackoff(), 0),  # `_persist` retries: redis-py's has no time limit
            )
            # As arguments, these would be overridden by the URL's, and a wrong database be read.
            pool.connection_kwargs.update({name: x for name, x in given.items() if x is not None})
            pool.connection_class(**pool.connection_kwargs)  # refuses the URL's unknown options
            self._client: Any = redis.Redis.from_pool(pool)
        except (ValueError, TypeError) as error:
            reason = url_reason_of(error)
            raise ServerError(f"the address {address} is invalid: {reason}") from error

    def __enter__(self) -> ServerConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def connect(self) -> None:
        """Open a connection. ServerError at once if that is impossible: for a user who waits. A
        server that still loads its data can be reached."""
        pool = self._client.connection_pool
        try:
            pool.release(pool.get_connection())
        except redis.BusyLoadingError:
            return
        except _PASSING as error:
            raise self._unreachable(error, waited_s=0) from error
        except redis.RedisError as error:
            raise ServerError(f"the server at {self.address} answered: {error}") from error

    def call(self, *words: Word) -> Any:
        """Run one command; ServerError when the server refuses it."""
        (reply,) = self.pipeline([words])
        return self.checked(reply)

    def scan(self, pattern: Word, kind: str | None = None) -> Iterator[bytes]:
        """The keys that match a pattern, of one type if `kind` is given. A key may come twice."""
        of_kind = () if kind is None else ("TYPE", kind)
        cursor: Word = 0
        while True:
            cursor, keys = self.call(
                "SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN, *of_kind
            )
            yield from keys
            if int(cursor) == 0:
                return

    def pipeline(self, commands: Iterable[Command]) -> list[Any]:
        """Send all commands together; the reply to a refused command is the error."""
        return self._run(list(commands), transaction=False)

    def transaction(self, commands: Iterable[Command]) -> list[Any]:
        """Like `pipeline`, but atomic: all commands run without others in between, or none runs."""
        return self._run(list(commands), transaction=True)

    def transaction_if(self, key: str, value: bytes, commands: Iterable[Command]) -> bool:
        """Like `transaction`, if the string at `key` has this value; whether it has."""
        wanted = list(commands)

        def once() -> bool:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.watch(key)
                if pipeline.get(key) != value:
                    return False
                pipeline.multi()
                for command in wanted:
                    pipeline.execute_command(*command)
                try:
                    pipeline.execute()
                except redis.WatchError:
                    return False
                return True

        return self._persist(once)

    def encoded(self, request: bytes) -> Any:
        """Send an encoded request; the reply to a refused request is the error."""

        (reply,) = self.encoded_many(request, 1)
        return reply

    def encoded_many(self, requests: bytes, count: int) -> list[Any]:
        """Send `count` encoded requests together; their replies as those of `pipeline`."""

        def once() -> list[Any]:
            connection = self._client.connection_pool.get_connection()
            try:
                connection.send_packed_command([requests], check_health=False)
                return [self._answered(connection) for _ in range(count)]
            finally:
                self._client.connection_pool.release(connection)

        return self._persist(once)

    def _answered(self, connection: Any) -> Any:
        """The next reply. ServerError after a protocol error, because the server then closes the
        connection."""
        reply = _read_reply(connection)
        if isinstance(reply, redis.ResponseError) and str(reply).startswith("Protocol error"):
            connection.disconnect()
            raise ServerError(f"the server at {self.address} answered: {reply}") from reply
        return reply

    def checked(self, reply: Any) -> Any:
        """Return the reply; ServerError if it is an error."""
        if isinstance(reply, redis.ReadOnlyError):
            raise ServerError(
                f"the server at {self.address} is a replica, which takes no writes: set the option"
                f" 'server' to its primary ({reply})"
            ) from reply
        if isinstance(reply, redis.RedisError):
            raise ServerError(f"the server at {self.address} answered: {reply}") from reply
        return reply

    def _run(self, commands: list[Command], transaction: bool) -> list[Any]:
        def once() -> list[Any]:
            with self._client.pipeline(transaction=transaction) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                replies: list[Any] = pipeline.execute(raise_on_error=False)
                return replies

        return self._persist(once) if commands else []

    def _persist(self, attempt: Callable[[], Answer]) -> Answer:
        """The result of the attempt, which is repeated after temporary failures until the
        timeout."""
        end_s, backoff = time.monotonic() + self.address.timeout_s, Backoff(PAUSE_S, PAUSE_S_MAX)
        while True:
            pause_s = backoff.next_s()
            try:
                return attempt()
            except _PASSING as error:
                if not self._persistent:
                    raise self._unreachable(error, waited_s=0) from error
                if _is_lasting(error) or time.monotonic() + pause_s > end_s:
                    raise self._unreachable(error, self.address.timeout_s) from error
            except redis.RedisError as error:
                raise ServerError(f"the server at {self.address} answered: {error}") from error
            time.sleep(pause_s)

    def _unreachable(self, error: redis.RedisError, waited_s: int) -> ServerError:
        if isinstance(error, _REFUSED):
            return ServerError(
                f"the server at {self.address} refused the user or the password: {error}"
            )
        if _is_lasting(error):
            return ServerError(f"no TLS with the server at {self.address}: {error}")
        what = f"did not answer for {waited_s} s" if waited_s else "cannot be reached"
        text = f"the server at {self.address} {what}: {reason_of(error)}{next_step(error)}"
        return Unreachable(text)


def _read_reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _is_lasting(error: redis.RedisError) -> bool:
    """True if another attempt would fail, too: a wrong password, an untrusted certificate."""
    return isinstance(error, _REFUSED) or isinstance(error.__context__, ssl.SSLError)
