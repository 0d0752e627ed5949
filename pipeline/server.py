"""A connection to a live server: one URL, and errors that say which server answered what.

An `Address` is what travels to Spark's workers; a `Server` is opened where it is used. Everything
that is sent may be sent twice, reads and `TAPPENDONCE` alike, so a connection that breaks is opened
again and the request repeated, until the option `timeout` is used up: a server that restarts costs
a job some seconds and not its life.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.pipeline.options import OptionError, Options

Word = bytes | str | int
Command = Sequence[Word]
Answer = TypeVar("Answer")

TIMEOUT_S = 30
TIMEOUT_S_MAX = 3600
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0

# Temporary failures: a connection that broke, a server that is still loading its data.
_PASSING = (redis.ConnectionError, redis.TimeoutError)
_BAD_URL = (
    "option 'server' cannot be read as redis://user:password@host:port/db. Characters such as / and"
    " # in a password are written %2F and %23, or give it as option 'password'"
)
_REFUSED = (redis.AuthenticationError, redis.exceptions.AuthorizationError)


class ServerError(Exception):
    """The server cannot be reached or refused something; names the server and says what."""


@dataclass(frozen=True)
class Address:
    """Where the server is and who we are there, as the options `server`, `username`, `password`,
    `db` and `timeout` (seconds) say it."""

    url: str
    username: str | None
    password: str | None
    db: int | None
    timeout_s: int

    @classmethod
    def from_options(cls, options: Options) -> Address:
        url = options.required("server")
        _check_url(url)
        return cls(
            url,
            options.text("username"),
            options.text("password"),
            options.integer("db", 0, 0, 1 << 30) if "db" in options else None,
            options.integer("timeout", TIMEOUT_S, 1, TIMEOUT_S_MAX),
        )

    def __str__(self) -> str:
        """The URL as it may be shown: without user, password and parameters."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def open(self) -> Server:
        return Server(self)


def _check_url(url: str) -> None:
    """OptionError for what is no address. It does not show the URL, which may hold a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise OptionError(
            "option 'server' must be a URL such as redis://localhost:6455 (rediss: with TLS)"
        )
    try:
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        raise OptionError(_BAD_URL) from None
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise OptionError(_BAD_URL)


class Server:
    """One connection. Replies are plain: bytes, int, None, lists of these."""

    def __init__(self, address: Address) -> None:
        self.address = address
        given = {
            "username": address.username,
            "password": address.password,
            "db": address.db,
        }
        try:
            pool: Any = redis.ConnectionPool.from_url(
                address.url,
                protocol=2,
                socket_timeout=address.timeout_s,
                socket_connect_timeout=address.timeout_s,
                socket_keepalive=True,
                retry=Retry(NoBackoff(), 0),  # ours: redis-py's do not say how long they take
            )
            # Not as arguments: the URL's would win, and a wrong database be read silently.
            pool.connection_kwargs.update({name: x for name, x in given.items() if x is not None})
            self._client: Any = redis.Redis.from_pool(pool)
        except (ValueError, TypeError) as error:
            raise ServerError(f"the address {address} is not understood: {error}") from error

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def call(self, *words: Word) -> Any:
        """One command; ServerError when it is refused."""
        (reply,) = self.pipeline([words])
        return self.checked(reply)

    def pipeline(self, commands: Iterable[Command]) -> list[Any]:
        """The replies of all commands, sent together; a refused one's reply is the error."""
        return self._run(list(commands), transaction=False)

    def transaction(self, commands: Iterable[Command]) -> list[Any]:
        """As `pipeline`, all at one moment: nothing comes between, or nothing is done at all."""
        return self._run(list(commands), transaction=True)

    def encoded(self, request: bytes) -> Any:
        """The reply to one request that is encoded already; a refused one's reply is the error."""

        def once() -> Any:
            connection = self._client.connection_pool.get_connection()
            try:
                connection.send_packed_command([request], check_health=False)
                return connection.read_response()
            except redis.ResponseError as error:
                return error
            finally:
                self._client.connection_pool.release(connection)

        return self._persist(once)

    def checked(self, reply: Any) -> Any:
        """The reply, unless it is an error."""
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
        """The attempt's answer; after a temporary failure it is repeated until time is up."""
        end, pause_s = time.monotonic() + self.address.timeout_s, PAUSE_S
        while True:
            try:
                return attempt()
            except _PASSING as error:
                if _is_lasting(error) or time.monotonic() + pause_s > end:
                    raise self._unreachable(error) from error
            except redis.RedisError as error:
                raise ServerError(f"the server at {self.address} answered: {error}") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _unreachable(self, error: redis.RedisError) -> ServerError:
        if isinstance(error, _REFUSED):
            return ServerError(
                f"the server at {self.address} refused the user or the password: {error}"
            )
        if _is_lasting(error):
            return ServerError(f"no TLS with the server at {self.address}: {error}")
        return ServerError(
            f"the server at {self.address} did not answer for {self.address.timeout_s} s: {error}"
        )


def _is_lasting(error: redis.RedisError) -> bool:
    """Whether a broken connection would break again: a wrong password, a foreign certificate."""
    return isinstance(error, _REFUSED) or isinstance(error.__context__, ssl.SSLError)
