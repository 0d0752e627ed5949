"""Sockets that the poller reads: every byte arrives once and in order, and callbacks, timers and
transports of the event loop work as without it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from tests.support.in_process import InProcessServer

from millstream.server.net.connection import Connection
from millstream.server.net.poller import make_poller

PING = b"*1\r\n$4\r\nPING\r\n"
PONG = b"+PONG\r\n"
UNREAD_MAX = 262_144  # that a client may send before its socket is not read any more


class Served:
    """A server's connections on a real loop, of which each has its own client socket."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.in_process = InProcessServer(loop=self.loop)
        self.executor = self.in_process.executor
        self.poller = make_poller(self.loop, self.executor)
        self.gone: list[Connection] = []
        self.made: list[Connection] = []
        self.server: asyncio.Server
        self.clients: Any = SimpleNamespace(
            next_id=lambda: len(self.made) + 1,
            steady_ms=self.in_process.now_ms,
            opened=lambda client: setattr(client, "authenticated", True),
            closed=self.gone.append,
        )

    def new_connection(self) -> Any:
        self.made.append(Connection(self.clients, self.executor, self.poller))
        return self.made[-1]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self.server.sockets[0].getsockname()[1]
        return await asyncio.open_connection("127.0.0.1", port)


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    served = Served()
    served.server = await served.loop.create_server(served.new_connection, "127.0.0.1", 0)
    try:
        yield served
    finally:
        served.server.close()
        for connection in served.made:
            connection.close(False)
        await asyncio.sleep(0)
        if served.poller is not None:
            served.poller.close()


def run(body: Callable[[Served], Awaitable[None]], *, on_uvloop: bool = True) -> None:
    """Run one test on a loop of its own, with a limit in case that nothing wakes it."""

    async def limited() -> None:
        async with asyncio.timeout(15), serving() as served:
            await body(served)

    factory = uvloop.new_event_loop if on_uvloop else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(limited())


async def exchange(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], times: int = 3
) -> None:
    """PING and its reply. The poller reads the socket from the second time on."""
    reader, writer = streams
    for _ in range(times):
        writer.write(PING)
        assert await reader.readexactly(len(PONG)) == PONG


def test_requests_are_read_after_the_transport_has_stopped() -> None:
    async def body(served: Served) -> None:
        streams = await served.connect()
        await exchange(streams)
        assert not served.made[0].transport.is_reading()
        await exchange(streams, 100)

    run(body)


def test_libuv_does_not_wake_for_requests_of_clients() -> None:
    async def body(served: Served) -> None:
        one, other = await served.connect(), await served.connect()
        await exchange(one)
        await exchange(other)
        watched = Path(f"/proc/self/fdinfo/{served.loop._get_backend_id()}")  # type: ignore[attr-defined]
        numbers = {int(line.split()[1]) for line in watched.read_text().splitlines()[3:] if line}
        assert numbers.isdisjoint(connection.file_number for connection in served.made)

    run(body)


def test_another_loop_reads_by_its_transports() -> None:
    async def body(served: Served) -> None:
        assert served.poller is None
        streams = await served.connect()
        await exchange(streams, 5)
        assert served.made[0].transport.is_reading()

    run(body, on_uvloop=False)


def test_more_bytes_than_one_reading_arrive_in_order() -> None:
    async def body(served: Served) -> None:
        reader, writer = streams = await served.connect()
        await exchange(streams)
        values = [os.urandom(size) for size in (1, 262_144, 700_000, 3_000_000)]
        for value in values:
            writer.write(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%b\r\n" % (len(value), value))
        for value in values:
            assert await reader.readuntil(b"\r\n") == b"$%d\r\n" % len(value)
            assert await reader.readexactly(len(value) + 2) == value + b"\r\n"

    run(body)


def test_the_end_of_input_is_seen_after_the_last_request() -> None:
    async def body(served: Served) -> None:
        reader, writer = streams = await served.connect()
        await exchange(streams)
        writer.write(PING)
        writer.write_eof()
        assert await reader.read() == PONG
        assert served.gone == served.made

    run(body)


def test_a_reset_connection_is_closed() -> None:
    async def body(served: Served) -> None:
        streams = await served.connect()
        await exchange(streams)
        own = streams[1].get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        streams[1].transport.abort()
        while not served.gone:
            await asyncio.sleep(0)

    run(body)


def test_a_client_that_is_closed_in_a_turn_is_not_read() -> None:
    async def body(served: Served) -> None:
        one, other = await served.connect(), await served.connect()
        await exchange(one)
        await exchange(other)
        writers = one[1], other[1]
        served.made[1].close(False)
        for writer in writers:
            writer.write(PING)
        assert await one[0].readexactly(len(PONG)) == PONG
        with contextlib.suppress(ConnectionResetError):
            assert await other[0].read() == b""

    run(body)


def test_callbacks_timers_and_threads_run_between_requests() -> None:
    async def body(served: Served) -> None:
        streams = await served.connect()
        await exchange(streams)
        found: list[str] = []
        served.loop.call_soon(found.append, "soon")
        served.loop.call_later(0.001, found.append, "later")
        await asyncio.to_thread(served.loop.call_soon_threadsafe, found.append, "thread")
        while len(found) < 3:
            await exchange(streams, 1)
        assert sorted(found) == ["later", "soon", "thread"]

    run(body)


def test_clients_are_served_between_endless_callbacks() -> None:
    async def body(served: Served) -> None:
        streams = await served.connect()
        await exchange(streams)
        turns = 0

        def again() -> None:
            nonlocal turns
            turns += 1
            handle[0] = served.loop.call_soon(again)

        handle = [served.loop.call_soon(again)]
        await exchange(streams, 10)
        handle[0].cancel()
        assert turns

    run(body)


def test_changes_of_several_clients_end_in_one_tick() -> None:
    async def body(served: Served) -> None:
        one, other = await served.connect(), await served.connect()
        await exchange(one)
        await exchange(other)
        sockets = [streams[1].get_extra_info("socket") for streams in (one, other)]
        before = served.in_process.persistence.last_seq
        for own in sockets:  # both are ready before the loop looks
            os.write(
                own.fileno(), b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\nb\r\n"
            )
        for reader, _ in (one, other):
            await reader.readuntil(b"\r\n")
        assert served.in_process.persistence.last_seq == before + 1

    run(body)


def test_a_paused_client_is_read_again() -> None:
    async def body(served: Served) -> None:
        reader, writer = streams = await served.connect()
        await exchange(streams)
        connection = served.made[0]
        connection.blocked = True
        many = 200_000
        writer.write(PING * many)
        while connection.query_buffer_bytes <= UNREAD_MAX:
            await asyncio.sleep(0)
        assert connection.query_buffer_bytes < len(PING) * many
        connection.blocked = False
        served.executor.resume(connection)
        assert await reader.readexactly(len(PONG) * many) == PONG * many

    run(body)


def test_a_closed_poller_leaves_the_loop_working() -> None:
    async def body(served: Served) -> None:
        assert served.poller is not None
        await exchange(await served.connect())
        served.poller.close()
        served.poller.close()
        await asyncio.sleep(0.001)
        later = await served.connect()
        await exchange(later)

    run(body)


def test_requests_around_urgent_data_are_run() -> None:
    async def body(served: Served) -> None:
        streams = await served.connect()
        await exchange(streams)
        own = streams[1].get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(own)) as plain:
            plain.send(PING[:4])
            plain.send(b"X", socket.MSG_OOB)
            plain.send(PING[4:])
        assert await streams[0].readexactly(len(PONG)) == PONG
        await exchange(streams)

    run(body)


def test_requests_after_sent_descriptors_are_run(tmp_path: Path) -> None:
    async def body(served: Served) -> None:
        path = str(tmp_path / "socket")
        server = await served.loop.create_unix_server(served.new_connection, path)
        streams = await asyncio.open_unix_connection(path)
        await exchange(streams)
        own = streams[1].get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(own)) as plain:
            socket.send_fds(plain, [PING], [own])
            plain.send(PING)
        assert await streams[0].readexactly(2 * len(PONG)) == 2 * PONG
        server.close()

    run(body)


def xadd(value: bytes) -> bytes:
    return b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\n%b\r\n" % value


def fail_next_batch(served: Served, error: BaseException) -> list[BaseException]:
    """The next batch fails before its requests have run, and its client may run again."""
    failures: list[BaseException] = []

    def fail() -> None:
        if not failures:
            failures.append(error)
            served.executor.resume(served.made[0])
            raise error

    served.executor.eviction_work.enforce_limit = fail  # type: ignore[method-assign]
    served.executor.memory_limit = 1
    return failures


def test_a_client_whose_batch_failed_runs_nothing_more() -> None:
    async def body(served: Served) -> None:
        reported: list[Any] = []
        served.loop.set_exception_handler(lambda loop, context: reported.append(context))
        one, other = await served.connect(), await served.connect()
        await exchange(one)
        await exchange(other)
        failures = fail_next_batch(served, MemoryError("of a test"))
        for streams, value in ((one, b"1"), (other, b"2")):  # both are ready at the same time
            os.write(streams[1].get_extra_info("socket").fileno(), xadd(value))
        await other[0].readuntil(b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await one[0].read() == b""
        assert [context["exception"] for context in reported] == failures
        assert served.in_process.stream().length == 1
        assert served.made[0].closed
        assert served.executor.current is None

    run(body)


def test_clients_are_served_after_an_interrupt_of_the_loop() -> None:
    loop = uvloop.new_event_loop()
    stopped = KeyboardInterrupt("of a test")

    async def begin() -> tuple[Any, Served, Any, Any]:
        context = serving()
        served = await context.__aenter__()
        one, other = await served.connect(), await served.connect()
        await exchange(one)
        await exchange(other)
        fail_next_batch(served, stopped)
        return context, served, one, other

    def send(*clients: Any) -> None:
        for streams in clients:  # they are ready at the same time
            os.write(streams[1].get_extra_info("socket").fileno(), xadd(b"1"))

    async def go_on(context: Any, served: Served, one: Any, other: Any) -> None:
        async with asyncio.timeout(10):
            await other[0].readuntil(b"\r\n")
            by_transport = await served.connect()
            by_transport[1].write(xadd(b"2"))
            await by_transport[0].readuntil(b"\r\n")
        assert served.made[0].closed
        await context.__aexit__(None, None, None)

    parts = loop.run_until_complete(begin())
    loop.call_soon(send, *parts[2:])
    limit = loop.call_later(10, loop.stop)
    with pytest.raises(KeyboardInterrupt) as found:
        loop.run_forever()
    limit.cancel()
    assert found.value is stopped
    loop.run_until_complete(go_on(*parts))
    loop.close()


def test_a_loop_that_cannot_be_polled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def body(served: Served) -> None:
        assert "transports of the event loop read" in caplog.text
        assert "the event loop is not uvloop's" in caplog.text

    run(body, on_uvloop=False)
