"""The connection to the server: requests that are sent together, and their replies as they come.

One connection serves all browsers. Replies do not pass through redis-py's commands, so they are the
same with every version of it. After an error the next request connects again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis.asyncio
from redis import RedisError, ResponseError
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from millstream.remote import (
    NOT_SERVED,
    add_password,
    connect_reason_of,
    info_fields,
    reason_of,
)
from millstream.server_url import split_url

TIMEOUT_S = 10.0
Word = bytes | str | int


class Unavailable(Exception):
    """The server cannot be reached, or refuses everything; the text is one sentence."""


class RequestRefused(Exception):
    """The server refused a request; the text is its error."""


class NotServed(RequestRefused):
    """A node of a cluster does not serve the slot of the key, or not now."""


class ServerFacts(NamedTuple):
    """INFO, and whether the server has the command TINFO, which Redis lacks."""

    info: dict[str, str]
    has_tinfo: bool


class Requests:
    """Requests to one server, or to the nodes of a cluster; `name` is the address without
    secrets."""

    name: str

    async def close(self) -> None:
        raise NotImplementedError

    async def batch(
        self, requests: Sequence[Sequence[Word]], db: int = 0, begin: Sequence[Word] = ()
    ) -> list[Any]:
        """The replies to requests in a database; an error of a single request is its reply.
        Unavailable when the connection fails, Refused if the database cannot be used or if `begin`,
        a request before them, is refused."""
        raise NotImplementedError

    async def call(self, *words: Word, db: int = 0) -> Any:
        """The reply to one request; Refused if it is an error."""
        (reply,) = await self.batch([words], db)
        if isinstance(reply, ResponseError):
            kind = NotServed if isinstance(reply, NOT_SERVED) else RequestRefused
            raise kind(str(reply))
        return reply

    async def transaction(self, requests: Sequence[Sequence[Word]], db: int = 0) -> list[Any]:
        """The replies to requests that run together or not at all; Refused by the first error."""
        *queued, executed = await self.batch([*requests, ("EXEC",)], db, begin=("MULTI",))
        for reply in (*queued, *(executed if isinstance(executed, list) else [executed])):
            if isinstance(reply, ResponseError):
                raise RequestRefused(str(reply))
        done: list[Any] = executed
        return done

    async def describe(self) -> ServerFacts:
        """INFO and what else pages depend on. Unavailable if there is no server, Refused if it lets
        no database be used."""
        (text, found) = await self.batch([("INFO",), ("COMMAND", "INFO", "TINFO")])
        if is_error(text):
            raise Unavailable(f"{self.name}: {text}")
        return ServerFacts(info_fields(text), isinstance(found, list) and bool(found and found[0]))

    async def primaries(self) -> Sequence[Requests]:
        """The servers whose keys are the streams."""
        return [self]

    def may_serve(self, key: bytes) -> bool:
        """False if the node of a key is known not to answer."""
        return True


class ServerLink(Requests):
    """Requests to one server."""

    def __init__(self, url: str, timeout_s: float | None = TIMEOUT_S) -> None:
        """ValueError for an invalid URL."""
        split_url(url)
        self._pool: Any = redis.asyncio.ConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=TIMEOUT_S,
            client_name="millstream-dashboard",
            retry=Retry(NoBackoff(), 0),
        )
        settings = self._pool.connection_kwargs
        add_password(settings)
        self.name = str(settings.get("path") or f"{settings.get('host')}:{settings.get('port')}")
        self.host = str(settings.get("host") or "127.0.0.1")
        self.uses_tls = url.startswith("rediss:")
        self._connection: AbstractConnection | None = None
        self._lock = asyncio.Lock()
        self._db: int | None = None  # the one that is selected; None on a new connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect()
            self._connection = None

    async def batch(
        self, requests: Sequence[Sequence[Word]], db: int = 0, begin: Sequence[Word] = ()
    ) -> list[Any]:
        if not requests:
            return []
        async with self._lock:
            try:
                return await self._send(requests, db, begin)
            except (RedisError, OSError) as problem:
                is_connected = self._connection is not None
                await self._drop()
                reason = (
                    reason_of(problem)
                    if is_connected
                    else connect_reason_of(problem, uses_tls=self.uses_tls)
                )
                raise Unavailable(f"{self.name}: {reason}") from problem
            except asyncio.CancelledError:  # replies may be left in the connection
                await self._drop()
                raise

    async def _send(
        self, requests: Sequence[Sequence[Word]], db: int, begin: Sequence[Word]
    ) -> list[Any]:
        if self._connection is None:
            connection: Any = self._pool.make_connection()
            await connection.connect()
            self._connection, self._db = connection, None
        if db != self._db:
            await self._begin(self._connection, ("SELECT", db))
            self._db = db
        if begin:
            await self._begin(self._connection, begin)
        return await self._exchange(self._connection, requests)

    async def _begin(self, connection: AbstractConnection, request: Sequence[Word]) -> None:
        """Send a request alone: if it is refused, what follows would run in another way."""
        (reply,) = await self._exchange(connection, [request])
        if is_error(reply):
            raise RequestRefused(str(reply))

    async def _exchange(
        self, connection: AbstractConnection, requests: Sequence[Sequence[Word]]
    ) -> list[Any]:
        await connection.send_packed_command(connection.pack_commands(requests))
        return [await self._reply(connection) for _ in requests]

    async def _reply(self, connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


def is_error(reply: object) -> bool:
    return isinstance(reply, ResponseError)
