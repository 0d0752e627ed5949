"""Connections that may be interrupted at any moment.

A signal handler can raise while a connection is made, or between a request and its reply. redis-py
then gives the connection back to its pool, and the next command takes the late reply for its own.
These connections count the replies that are still to come. One that was interrupted is closed
before it is used again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

from redis.exceptions import ResponseError

from millstream.client import redis_py
from millstream.client.redis_py import Packed


class Counting:
    """Notes of a connection of either API about itself: before something begins, and after it
    has ended, so an interruption leaves the note."""

    unanswered = 0
    """The number of replies to come; more than 0 while the connection is closed, too."""
    connecting = False
    """True while the connection is being made. redis-py closes it between two attempts."""
    is_of_cluster = False
    """True if the server has said that it is a node of a cluster."""

    @property
    def interrupted(self) -> bool:
        """True if it has to be closed, if it is not in use."""
        return self.connecting or self.unanswered > 0

    @property
    def subscribed(self) -> bool:
        """True if it is of a subscription, whose replies are read later."""
        return bool(getattr(self, "_connect_callbacks", ()))

    def pack_commands(self, commands: Iterable[Any]) -> Packed:
        words = list(commands)
        return Packed(super().pack_commands(words), len(words))  # type: ignore[misc]

    def note_sent(self, command: Any) -> None:
        self.unanswered += getattr(command, "commands", 1)

    def note_reply(self, options: dict[str, Any], reply: Any = None) -> None:
        if self.connecting and isinstance(reply, dict):  # that to HELLO
            mode = reply.get("mode", reply.get(b"mode"))
            self.is_of_cluster = mode in ("cluster", b"cluster")
        if self.unanswered and not options.get("push_request"):
            self.unanswered -= 1


class Interruptible(Counting):
    """Additions to a class of redis-py's connections."""

    _sock: Any
    check_health: Any

    def connect(self) -> None:
        if self.interrupted and not self.subscribed:
            self.disconnect()
        if not self._sock:
            self.connecting = True
            super().connect()  # type: ignore[misc]
            self.connecting = False

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.unanswered += 1
        super().disconnect(*args, **kwargs)  # type: ignore[misc]
        self.unanswered = 0

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self._sock:
            self.connect()
        if check_health:
            self.check_health()  # may connect again
        self.note_sent(command)
        super().send_packed_command(command, check_health=False)  # type: ignore[misc]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            reply = super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError:
            self.note_reply(kwargs)
            raise
        self.note_reply(kwargs, reply)
        return reply


@cache
def interruptible(kind: type[Any], added: type[Any] = Interruptible) -> type[Any]:
    """The class of connections that adds this to one of redis-py's."""
    return kind if issubclass(kind, added) else type(kind.__name__, (added, kind), {})


def make_interruptible(pool: Any) -> None:
    """For the connections that a pool makes from now on."""
    pool.connection_class = interruptible(pool.connection_class)


def close_if_interrupted(connection: Any) -> None:
    """Called before a connection is used again that is not from a pool."""
    if getattr(connection, "interrupted", False):
        connection.disconnect()


class ClientBase:
    """The common base class of connections and pipelines."""

    def _send_command_parse_response(self, conn: Any, *args: Any, **options: Any) -> Any:
        redis_py.check_watch(self, conn)
        close_if_interrupted(conn)  # one that is not from the pool
        return super()._send_command_parse_response(conn, *args, **options)  # type: ignore[misc]

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        redis_py.note_node(getattr(self, "home", self), connection)
        wait_s = options.pop("wait_s", 0.0)
        if wait_s and connection.socket_timeout is not None:
            limit_s = None if math.isinf(wait_s) else wait_s + connection.socket_timeout
            if not connection.can_read(timeout=limit_s):
                connection.disconnect()
                raise redis_py.timed_out(self)
        return super().parse_response(connection, command_name, **options)  # type: ignore[misc]
