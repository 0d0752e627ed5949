"""Sending asks and receiving their answers, several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from millstream.client import redis_py
from millstream.client.aio.concurrency import Waker
from millstream.client.aio.interruptible import make_interruptible, more_time
from millstream.client.aio.nodes import perform_at_nodes
from millstream.client.aio.shared_connection import SharedConnection, reply_of
from millstream.client.core.sharing import may_share
from millstream.client.core.steps import Answer, Ask
from millstream.client.errors import MillstreamError
from millstream.client.threads.lanes import CLOSED, WAIT_MAX_S, replies_of

CANCEL_AGAIN_S = 0.1


class Lanes:
    """The asks in flight. A cancelled wait leaves them in flight."""

    def __init__(self, shares: bool = False) -> None:
        """`shares`: other objects of the client use the same connection."""
        self._shares = shares
        self._waker: Waker | None = None
        self._in_flight: dict[asyncio.Task[Answer], Ask] = {}
        self._finished: list[Answer] = []
        """Answers that the core may not have taken in yet."""
        self._closed = False

    @classmethod
    def of_writer(cls, client: Any) -> Lanes:
        """Those of an object that only writes: its requests follow those of others."""
        return cls(shares=True)

    async def _perform(self, ask: Ask) -> Answer:
        return await perform_at_nodes(ask, self._perform_at)

    async def _perform_at(self, ask: Ask) -> Answer:
        if self._shares and may_share(ask):
            return await SharedConnection.of(ask.server.client).perform(ask)
        return await perform(ask)

    async def wait(self, asks: Sequence[Ask], seconds: float | None) -> list[Answer]:
        """Start those asks that are not in flight, and wait until there is an answer to any ask.

        `asks` has every ask whose answer the core has not taken in: such an answer is returned
        again, because the task may have been interrupted before the core had it.

        Raises MillstreamError if the object is closed, or another task closes it meanwhile."""
        self._check_open()  # a handler of events may have closed it
        self._finished = [answer for answer in self._finished if answer.ask in asks]
        known = {*self._in_flight.values(), *(answer.ask for answer in self._finished)}
        for ask in asks:
            if ask not in known:
                self._in_flight[asyncio.create_task(self._perform(ask))] = ask
        if self._finished:
            seconds = 0.0
        if seconds is not None:
            seconds = min(seconds, WAIT_MAX_S)
        await self._first(seconds)
        self._check_open()
        for task in [task for task in self._in_flight if task.done()]:
            self._finished.append(task.result())
            self._in_flight.pop(task, None)
        return list(self._finished)

    async def _first(self, seconds: float | None) -> None:
        """Wait until a task has ended, or the waker ends the wait."""
        awaited: set[asyncio.Future[Any]] = {*self._in_flight}
        if self._waker is not None:
            awaited.add(self._waker.future)
            if self._waker.before():
                seconds = 0.0
        if awaited:
            await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds or 0.0)
        if self._waker is not None and self._waker.future.done():
            self._waker.clear()

    def wake_with(self, waker: Waker) -> None:
        """Let a waker end waits."""
        self._waker = waker

    def _check_open(self) -> None:
        if self._closed:
            raise MillstreamError(CLOSED)

    async def together(self, asks: Sequence[Ask]) -> list[list[Any]]:
        """The replies to each ask, in order. The first error is raised, after all have ended."""
        if len(asks) == 1:
            answers = [await self._perform(asks[0])]
        else:
            answers = await asyncio.gather(*map(self._perform, asks))
        return [replies_of(answer) for answer in answers]

    async def close(self) -> None:
        """Give up what is in flight."""
        self._closed = True
        self._finished.clear()
        await self.give_up(list(self._in_flight.values()))

    async def give_up(self, asks: Sequence[Ask]) -> None:
        """Close the connections of asks in flight. The cancellation is repeated, because
        `asyncio.wait_for` of Python 3.11 can lose it, and redis-py uses that."""
        tasks = [task for task, ask in self._in_flight.items() if ask in asks]
        for task in tasks:
            self._in_flight.pop(task, None)
        while tasks:
            for task in tasks:
                task.cancel()
            _, pending = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
            tasks = list(pending)


async def perform(ask: Ask) -> Answer:
    """Send the commands and receive the replies. An error becomes the answer."""
    client: Any = ask.server.client
    connection = None
    broken = True
    try:
        make_interruptible(client.connection_pool)
        connection = await redis_py.borrow(client)
        redis_py.note_node(client, connection)
        await connection.send_packed_command(redis_py.pack(connection, ask.commands))
        with more_time(connection, ask.wait_s):
            replies = [
                redis_py.read_value(client, command, await reply_of(connection))
                for command in ask.commands
            ]
        broken = False
        return Answer(ask, replies)
    except OSError as error:
        return Answer(ask, error=redis_py.failed_connection(client, error))
    except Exception as error:
        return Answer(ask, error=error)
    finally:
        if connection is not None:
            if broken:
                await connection.disconnect(nowait=True)
            await client.connection_pool.release(connection)
