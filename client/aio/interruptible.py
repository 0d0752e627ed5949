"""Connections that may be interrupted at any moment, for asyncio.

A task can be cancelled, and a signal handler can raise, while a connection is made, or between a
request and its reply. redis-py then gives the connection back to its pool, and the next command
takes the late reply for its own. These connections count the replies that are still to come. One
that was interrupted is closed before it is used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from redis.exceptions import ResponseError

from millstream.client.interruptible import Packed


class Interruptible:
    """What is added to a class of redis-py's connections."""

    is_connected: Any
    unanswered = 0
    """The number of replies to come; more than 0 while a connection is made or closed, too. It
    grows before something begins, and shrinks after the end, so an interruption leaves it above
    0."""

    async def connect(self) -> None:
        if self.unanswered and not getattr(self, "_connect_callbacks", ()):
            await self.disconnect()  # not a subscription, whose replies are read later
        if not self.is_connected:
            self.unanswered = 1
            await super().connect()  # type: ignore[misc]
            self.unanswered -= 1

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.unanswered += 1
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]
        self.unanswered = 0

    def pack_commands(self, commands: Iterable[Any]) -> Packed:
        words = list(commands)
        return Packed(super().pack_commands(words), len(words))  # type: ignore[misc]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect()
        self.unanswered += getattr(command, "commands", 1)
        await super().send_packed_command(command, check_health)  # type: ignore[misc]

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            reply = await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError:
            self._note_reply(kwargs)
            raise
        self._note_reply(kwargs)
        return reply

    def _note_reply(self, kwargs: dict[str, Any]) -> None:
        if self.unanswered and not kwargs.get("push_request"):
            self.unanswered -= 1


@cache
def interruptible(kind: type[Any]) -> type[Any]:
    """The class of connections that adds this to one of redis-py's."""
    if issubclass(kind, Interruptible):
        return kind
    return type(kind.__name__, (Interruptible, kind), {})


def make_interruptible(pool: Any) -> None:
    """For the connections that a pool makes from now on."""
    pool.connection_class = interruptible(pool.connection_class)


async def close_if_interrupted(connection: Any) -> None:
    """Called before a connection is used again that is not from a pool."""
    if connection is not None and getattr(connection, "unanswered", False):
        await connection.disconnect(nowait=True)
