"""Connections that may be interrupted at any moment, for asyncio: a task can be cancelled, too."""

from __future__ import annotations

import math
from typing import Any

from redis.exceptions import ResponseError

from millstream.client import redis_py
from millstream.client.threads.interruptible import Counting, interruptible


class Interruptible(Counting):
    """Additions to a class of redis-py's connections."""

    is_connected: Any
    check_health: Any

    async def connect(self) -> None:
        if self.interrupted and not self.subscribed:
            await self.disconnect()
        if not self.is_connected:
            self.connecting = True
            await super().connect()  # type: ignore[misc]
            self.connecting = False

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.unanswered += 1
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]
        self.unanswered = 0

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect()
        if check_health:
            await self.check_health()  # may connect again
        self.note_sent(command)
        await super().send_packed_command(command, check_health=False)  # type: ignore[misc]

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            reply = await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError:
            self.note_reply(kwargs)
            raise
        self.note_reply(kwargs, reply)
        return reply


def make_interruptible(pool: Any) -> None:
    """For the connections that a pool makes from now on."""
    pool.connection_class = interruptible(pool.connection_class, Interruptible)


async def close_if_interrupted(connection: Any) -> None:
    """Called before a connection is used again that is not from a pool."""
    if getattr(connection, "interrupted", False):
        await connection.disconnect(nowait=True)


class ClientBase:
    """The common base class of connections and pipelines."""

    async def _send_command_parse_response(self, conn: Any, *args: Any, **options: Any) -> Any:
        redis_py.check_watch(self, conn)
        await close_if_interrupted(conn)  # one that is not from the pool
        return await super()._send_command_parse_response(  # type: ignore[misc]
            conn, *args, **options
        )

    async def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        redis_py.note_node(getattr(self, "home", self), connection)
        with more_time(connection, options.pop("wait_s", 0.0)):
            base: Any = super()
            return await base.parse_response(connection, command_name, **options)


class more_time:
    """Gives a connection more time for its replies: the time that the server may wait."""

    def __init__(self, connection: Any, wait_s: float) -> None:
        self._connection = connection
        self._wait_s = wait_s
        self._timeout_s = connection.socket_timeout

    def __enter__(self) -> None:
        if self._wait_s and self._timeout_s is not None:
            total_s = self._timeout_s + self._wait_s
            self._connection.socket_timeout = None if math.isinf(total_s) else total_s

    def __exit__(self, *_: object) -> None:
        self._connection.socket_timeout = self._timeout_s
