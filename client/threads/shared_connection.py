"""One connection for the requests of many threads.

`millstream.client.aio.shared_connection` does the same for asyncio.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from millstream.client import redis_py
from millstream.client.core.sharing import error_of_its_own
from millstream.client.core.steps import Answer, Ask

ANSWERS = (RedisError, UnicodeError)
"""The errors that become the answer to an ask. Any other one is of a signal handler, and is
raised."""
LOOK_S = 1.0
"""A thread that waits for a reply looks this often whether the connection was closed."""


class Loan:
    """A connection in use for an ask. It is made before the connection is taken and is known until
    the connection is given back, so an interruption loses no connection."""

    __slots__ = ("client", "complete", "connection", "deadline_s", "waits")

    def __init__(self, client: Any) -> None:
        self.client = client
        self.connection: Any = None
        self.deadline_s = 0.0
        self.waits = False
        """True if the commands were sent, and no reply was read yet."""
        self.complete = False
        """True if all replies were read: only then is the connection used again."""


class Lender(Protocol):
    """The source of connections."""

    def borrow(self, loan: Loan) -> Any: ...

    def give_back(self, loan: Loan) -> None: ...


class Request:
    """An ask on its way. Its thread waits for `turn`: then it has the answer, or reads."""

    __slots__ = ("answer", "ask", "turn")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.answer: Answer | None = None
        self.turn = threading.Lock()
        self.turn.acquire()

    def settle(self, answer: Answer) -> None:
        self.answer = answer
        self.wake()

    def wake(self) -> None:
        """With the lock of the connection: the thread may have been woken, and not run yet."""
        if self.turn.locked():
            self.turn.release()


class SharedConnection:
    """The requests of many threads on one connection: each is sent at once, without a wait for the
    replies to those before it. Replies come in the order of the requests.

    One of the threads that wait reads. When it has its reply, it passes on those that have arrived
    with it, and lets the thread of the next one read. All uses of the connection are made under one
    lock, which is free while the thread that reads waits for a reply.

    If the connection is lost, all requests that were sent fail. The main thread does not take part:
    a signal handler can raise an exception there before any statement, and the others would wait
    for it.
    """

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self._lock = threading.Lock()
        self._sent: deque[Request] = deque()
        """Those without a reply. The thread of the first one reads."""
        self._loan: Loan | None = None
        self._failures: list[Exception] = []
        """The last error of a connection that could not be made, and how many there were."""
        self._failed = 0

    def perform(self, ask: Ask) -> Answer:
        """Send the commands and wait for the replies. An error becomes the answer."""
        request = Request(ask)
        failed = self._failed
        with self._lock:
            reads = self._send(request, failed)
        if not reads:
            request.turn.acquire()
            if request.answer is not None:
                return request.answer
        try:
            return self._read(request)
        except BaseException as error:
            # Not by a signal handler: by a debugger, or another thread. No thread would read.
            with self._lock:
                if request.answer is None:
                    self._fail(RedisConnectionError(f"the thread that read has ended: {error!r}"))
            raise

    # ------------------------------------------------------------ with the lock

    def _send(self, request: Request, failed: int) -> bool:
        """Send a request. True if its thread reads. `failed` is from before the thread had the
        lock: if a connection could not be made since then, this one would not be either."""
        if self._loan is None:
            if self._failed != failed:
                request.settle(Answer(request.ask, error=error_of_its_own(self._failures[0])))
                return False
            loan = Loan(request.ask.server.client)
            try:
                self._lender.borrow(loan)
            except ANSWERS as error:
                self._failures = [error]
                self._failed += 1
                self._lender.give_back(loan)
                request.settle(Answer(request.ask, error=error))
                return False
            self._loan = loan
        connection = self._loan.connection
        try:
            packed = redis_py.pack(connection, request.ask.commands)
        except Exception as error:  # also one of Python, as for a number of too many digits
            request.settle(Answer(request.ask, error=error))
            self._end_if_idle()
            return False
        self._sent.append(request)
        try:
            # A PING between requests would take the reply of another one.
            connection.send_packed_command(packed, check_health=len(self._sent) == 1)
        except ANSWERS as error:
            self._fail(error)
            return False
        return len(self._sent) == 1

    def _fail(self, error: Exception) -> None:
        """The connection is lost, and the replies with it."""
        loan, self._loan = self._loan, None
        if loan is not None:
            self._lender.give_back(loan)
        while self._sent:
            request = self._sent.popleft()
            # Each thread gets an exception of its own: raising one changes it.
            request.settle(Answer(request.ask, error=error_of_its_own(error)))

    def _end_if_idle(self) -> None:
        loan = self._loan
        if loan is not None and not self._sent:
            self._loan = None
            loan.complete = True
            self._lender.give_back(loan)

    def _take_replies(self, connection: Any) -> None:
        """Read what has arrived: at least one reply has."""
        while self._sent:
            request = self._sent[0]
            replies = [reply_of(connection) for _ in request.ask.commands]
            self._sent.popleft()
            request.settle(redis_py.answer(request.ask, replies))
            if not redis_py.has_data(connection):
                break

    # ------------------------------------------------------------ reading

    def _read(self, request: Request) -> Answer:
        """Read until this request has its answer; then let the next thread read."""
        client: Any = request.ask.server.client
        until_s = time.monotonic() + redis_py.timeout_s(client)
        poll = select.poll()
        with self._lock:
            loan = self._loan
            if loan is None or request.answer is not None:
                assert request.answer is not None
                return request.answer
            number = redis_py.socket_number(loan.connection)
            arrived = number is None
            if number is not None:
                poll.register(number, select.POLLIN)
        while True:
            left_s = until_s - time.monotonic()
            arrived = arrived or bool(poll.poll(max(0.0, min(left_s, LOOK_S)) * 1000))
            with self._lock:
                if request.answer is not None:  # another thread has found the connection lost
                    return request.answer
                if arrived:
                    try:
                        self._take_replies(loan.connection)
                    except ANSWERS as error:
                        self._fail(error)
                elif left_s <= 0:
                    self._fail(redis_py.timed_out(client))
                if request.answer is not None:
                    if self._sent:
                        self._sent[0].wake()  # it reads
                    else:
                        self._end_if_idle()
                    return request.answer
                arrived = False


def reply_of(connection: Any) -> Any:
    """The next reply; an error is one, too."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
