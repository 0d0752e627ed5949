"""One connection for the requests of many tasks.

`millstream.client.threads.shared_connection` does the same for threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from millstream.client import redis_py
from millstream.client.aio.interruptible import make_interruptible
from millstream.client.core.sharing import error_of_its_own
from millstream.client.core.steps import Answer, Ask

SHARED = "_shared_connection"
"""The attribute of a client with its SharedConnection."""


class Request:
    """An ask, and the future of its answer. The future is cancelled with the task that waits."""

    __slots__ = ("answer", "ask")

    def __init__(self, ask: Ask, answer: asyncio.Future[Answer]) -> None:
        self.ask = ask
        self.answer = answer

    def settle(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Each task gets an exception of its own: raising one changes it."""
        if not isinstance(error, Exception):  # the task that reads was cancelled
            error = RedisConnectionError("the connection was closed before the server replied")
        self.settle(Answer(self.ask, error=error_of_its_own(error)))


class SharedConnection:
    """The requests of many tasks on one connection: each is sent at once, without a wait for the
    replies to those before it. A task reads the replies, which come in the order of the requests.

    The connection belongs to the pool while no request is on its way. If it is lost, all requests
    that were sent fail, and those that were not sent go to the next one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Request] = deque()
        """Not sent yet."""
        self._sent: deque[Request] = deque()
        self._connection: Any = None
        """The connection that requests may be sent on."""
        self._will_send = False
        """True if `_send_all` will be called soon."""
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, client: Any) -> SharedConnection:
        """That of a client, in this event loop."""
        found: SharedConnection | None = getattr(client, SHARED, None)
        if found is None or found._loop is not asyncio.get_running_loop():
            found = cls()
            setattr(client, SHARED, found)
        return found

    async def perform(self, ask: Ask) -> Answer:
        """Send the commands and wait for the replies. An error becomes the answer."""
        request = Request(ask, self._loop.create_future())
        self._waiting.append(request)
        if self._reader is None:
            self._reader = self._loop.create_task(self._run())
        elif not self._will_send and self._connection is not None:
            # Soon, and not now: other tasks have requests, too, and one call sends all of them.
            self._will_send = True
            self._loop.call_soon(self._send_all)
        return await request.answer

    def _send_all(self) -> None:
        """Send what waits."""
        self._will_send = False
        connection = self._connection
        if connection is None or not connection.is_connected:
            return  # the reader sends it on the next connection
        pieces: list[bytes] = []
        while self._waiting:
            request = self._waiting.popleft()
            if request.answer.done():  # cancelled
                continue
            try:
                packed = redis_py.pack(connection, request.ask.commands)
            except Exception as error:
                request.fail(error)
                continue
            connection.note_sent(packed)
            self._sent.append(request)
            pieces += packed
        if pieces:
            redis_py.write(connection, pieces)

    async def _run(self) -> None:
        """Read replies until no request is left."""
        try:
            while self._waiting:
                await self._use_connection()
        finally:
            self._reader = None
            for request in self._waiting:  # cancelled, as at the end of the event loop
                request.fail(asyncio.CancelledError())
            self._waiting.clear()

    async def _use_connection(self) -> None:
        """Send and read on one connection, while there is something to read."""
        client: Any = self._waiting[0].ask.server.client
        connection = None
        last: tuple[Request, Answer] | None = None
        failed: BaseException | None = None
        try:
            make_interruptible(client.connection_pool)
            connection = await redis_py.borrow(client)
            await connection.check_health()
            redis_py.note_node(client, connection)
            self._connection = connection
            self._send_all()
            while self._sent:
                request = self._sent[0]
                replies = [await reply_of(connection) for _ in request.ask.commands]
                self._sent.popleft()
                answer = redis_py.answer(request.ask, replies)
                if self._waiting and not self._sent:
                    self._send_all()
                if self._sent:
                    request.settle(answer)
                else:
                    last = request, answer
        except OSError as error:
            failed = redis_py.failed_connection(client, error)
        except BaseException as error:
            failed = error
        finally:
            self._connection = None
            if failed is not None:
                lost = self._sent or self._waiting
                for request in lost:
                    request.fail(failed)
                lost.clear()
            if connection is not None:
                if failed is not None:
                    await connection.disconnect(nowait=True)
                await client.connection_pool.release(connection)
            if last is not None:  # the task may end the event loop, so the connection comes first
                last[0].settle(last[1])
        if failed is not None and not isinstance(failed, Exception):
            raise failed


async def reply_of(connection: Any) -> Any:
    """The next reply; an error is one, too."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
