"""A connection that was interrupted is closed before it is used again."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio.retry
import redis.retry
from redis.backoff import AbstractBackoff
from tests.client.apis import NAMES, Driven
from tests.support.server import Server

from millstream.client.aio.interruptible import Interruptible
from millstream.client.redis_py import Packer
from millstream.client.threads.interruptible import interruptible


class Interrupted(BaseException):
    """Raised by a signal handler."""


class OtherPort(AbstractBackoff):
    """Gives the connection another port after a failed attempt."""

    connection: Any

    def __init__(self, port: int) -> None:
        self.port = port

    def compute(self, failures: int) -> float:
        self.connection.port = self.port
        return 0.0


class Connections:
    """Makes connections of either API; the first attempt to connect finds no server."""

    def __init__(self, api: str, server: Server) -> None:
        self.loop = None if api == "sync" else asyncio.new_event_loop()
        self._server = server

    def make(self, **options: Any) -> Any:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            options |= {"host": "127.0.0.1", "port": unused.getsockname()[1]}
        is_sync = self.loop is None
        kind: Any = interruptible(redis.Connection)
        if not is_sync:
            kind = interruptible(redis.asyncio.Connection, Interruptible)
        retry: Any = redis.retry.Retry if is_sync else redis.asyncio.retry.Retry
        made = kind(retry=retry(OtherPort(self._server.port), 1), **options)
        made.retry._backoff.connection = made  # redis-py has copied it
        return made if self.loop is None else Driven(made, self.loop)

    def close(self) -> None:
        if self.loop is not None:
            self.loop.close()


@pytest.fixture(params=NAMES)
def connections(request: pytest.FixtureRequest, server: Server) -> Iterator[Connections]:
    made = Connections(request.param, server)
    yield made
    made.close()


def ask(connection: Any, word: str) -> Any:
    """Connects, as a pool does before a connection is used, and sends a request."""
    connection.connect()
    connection.send_command("ECHO", word)
    return connection.read_response()


def test_a_reply_is_due_after_a_connect_that_was_repeated(connections: Connections) -> None:
    connection = connections.make()
    connection.connect()
    connection.send_command("ECHO", "interrupted")
    assert ask(connection, "next") == b"next"
    connection.disconnect()


def test_a_reply_is_due_after_a_health_check_connected_again(
    connections: Connections, server: Server
) -> None:
    connection = connections.make(health_check_interval=1000)
    connection.connect()
    connection.send_command("CLIENT", "ID")
    with redis.Redis(port=server.port) as other:
        other.client_kill_filter(_id=connection.read_response())
    getattr(connection, "inner", connection).next_health_check = -1
    connection.send_command("ECHO", "interrupted")
    assert ask(connection, "next") == b"next"
    connection.disconnect()


def test_a_repeated_connect_that_is_interrupted_begins_again(connections: Connections) -> None:
    prepared: list[object] = []

    def prepare(connection: Any) -> Any:
        prepared.append(connection)
        if len(prepared) == 1:
            raise Interrupted
        return connection.on_connect()

    async def prepare_async(connection: Any) -> None:
        await prepare(connection)

    is_sync = connections.loop is None
    connection = connections.make(redis_connect_func=prepare if is_sync else prepare_async)
    with pytest.raises(Interrupted):
        connection.connect()
    assert ask(connection, "next") == b"next"
    assert len(prepared) == 2
    connection.disconnect()


SIGNALS = """
import random, signal
from millstream.client.redis_py import Packer

class Late(Exception): pass

def raise_late(*_): raise Late

signal.signal(signal.SIGALRM, raise_late)
command = ("XADD", "key", b"*", "name", 5, "value", 1.5)
packer, interruptions = Packer(), 0
while interruptions < 1000:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.random() * 2e-4 + 1e-6)
        for _ in range(200): packer.pack(*command)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Late:
        interruptions += 1
print("alive")
"""


def test_a_signal_while_a_command_is_written_is_harmless() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize(
    "words",
    [
        ("GET", "k"),
        ("CONFIG GET", "dir"),
        (b"SET", b"", bytearray(b"x"), memoryview(b"y"), 5, -1, 1.5, float("inf"), "\u00e9"),
    ],
)
def test_commands_are_written_as_redis_py_does(words: tuple[Any, ...]) -> None:
    encode = redis.connection.Encoder("utf-8", "strict", False).encode
    theirs = redis.connection.PythonRespSerializer(6000, encode)
    assert b"".join(Packer().pack(*words)) == b"".join(theirs.pack(*words))


@pytest.mark.parametrize("word", [None, True, {}, object()])
def test_a_word_that_redis_py_refuses_is_refused(word: object) -> None:
    with pytest.raises(redis.DataError):
        Packer().pack("SET", "k", word)
