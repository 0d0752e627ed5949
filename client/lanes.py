"""Sending asks and receiving their answers, several at once, each on a connection of its own."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from millstream.client import redis_py
from millstream.client.core.steps import Answer, Ask
from millstream.client.errors import MillstreamError
from millstream.client.probing import Probe

WAIT_MAX_S = 3600.0
"""The core waits again. The system cannot wait for any length of time."""
CLOSED = "the object was closed while a call waited for the server"


class Connections:
    """One connection of each client, kept for its next ask: a pool takes its time."""

    def __init__(self) -> None:
        self._idle: dict[Any, Any] = {}

    def __contains__(self, client: Any) -> bool:
        return client in self._idle

    def borrow(self, client: Any) -> Any:
        connection = self._idle.pop(client, None)
        if connection is not None and readable(connection):
            # Nothing was asked, so the server has closed it.
            connection.disconnect()
            client.connection_pool.release(connection)
            connection = None
        return redis_py.borrow(client) if connection is None else connection

    def give_back(self, client: Any, connection: Any, broken: bool) -> None:
        if broken:
            connection.disconnect()
        elif self._idle.setdefault(client, connection) is connection:
            return
        client.connection_pool.release(connection)

    def close(self) -> None:
        while self._idle:
            client, connection = self._idle.popitem()
            client.connection_pool.release(connection)

    def __del__(self) -> None:
        # A pool counts the connections that it lent, so a forgotten stream must not keep any.
        with contextlib.suppress(Exception):
            self.close()


class Lanes:
    """The asks in flight. Without threads: replies are read when a call waits for them.

    `wait` is for one thread at a time. Any thread may call `together` and `close`.
    """

    def __init__(self, connections: Connections | None = None) -> None:
        self._connections = Connections() if connections is None else connections
        self._in_flight: dict[Ask, tuple[Any, float]] = {}
        self._probes: dict[Ask, Probe] = {}
        """Asks for servers that did not answer: they are sent when the server answers again."""
        self._starting: list[Ask] = []
        self._finished: list[Answer] = []
        self._closed = False

    def start(self, ask: Ask) -> None:
        """Send the commands. An error becomes the answer."""
        try:
            if self._may_hang(ask.server):
                probe = Probe.of(ask.server.client)
                if probe is not None:
                    self._probes[ask] = probe
                    return
            self._start(ask)
        except BaseException as error:
            self._interrupt(ask, error)
            raise

    def _may_hang(self, server: Any) -> bool:
        """Whether connecting might take long: a new connection is needed, and the server fails or
        has an ask to answer."""
        if server.client in self._connections:
            return False
        if server.failing:
            return True
        asked = any(ask.server is server for ask in self._in_flight)
        return asked and not redis_py.has_spare(server.client)

    def _start(self, ask: Ask) -> None:
        try:
            connection = self._send(ask)
        except Exception as error:
            self._finished.append(Answer(ask, error=error))
            return
        deadline_s = time.monotonic() + ask.wait_s + redis_py.timeout_s(ask.server.client)
        self._in_flight[ask] = connection, deadline_s

    def wait(self, asks: Sequence[Ask], seconds: float | None) -> list[Answer]:
        """Start those asks that are not in flight, and wait until there is an answer to any ask.

        Raises MillstreamError if the object is closed, or another thread closes it meanwhile."""
        self._check_open()  # a handler of events may have closed it
        # A signal handler may raise anywhere. An ask that is in none of the lists is started again.
        known = {*self._in_flight, *self._probes, *self._starting}
        known.update(answer.ask for answer in self._finished)
        self._starting += [ask for ask in asks if ask not in known]
        while self._starting:
            self.start(self._starting.pop(0))
        until_s = None if seconds is None else time.monotonic() + seconds
        while True:
            now_s = time.monotonic()
            limits = [deadline_s for _, deadline_s in self._in_flight.values()]
            limits += [probe.deadline_s for probe in self._probes.values()]
            if until_s is not None:
                limits.append(until_s)
            pause_s = 0.0 if self._finished else max(0.0, min(limits, default=now_s) - now_s)
            self._receive(pause_s)
            self._check_open()
            self._end_late_ones()
            idle = not self._in_flight and not self._probes
            if self._finished or (idle and until_s is None):
                break
            if until_s is not None and time.monotonic() >= until_s:
                break
            if idle and until_s is not None:
                time.sleep(min(max(0.0, until_s - time.monotonic()), WAIT_MAX_S))
                break
        finished, self._finished = self._finished, []
        return finished

    def _check_open(self) -> None:
        if self._closed:
            raise MillstreamError(CLOSED)

    def together(self, asks: Sequence[Ask]) -> list[list[Any]]:
        """The replies to each ask, in order. The first error is raised, after all have ended."""
        if len(asks) == 1 and not asks[0].wait_s:
            return [replies_of(self._perform(asks[0]))]
        lanes = Lanes(self._connections)
        answers: dict[Ask, Answer] = {}
        try:
            while left := [ask for ask in asks if ask not in answers]:
                answers |= {answer.ask: answer for answer in lanes.wait(left, None)}
        finally:
            lanes.give_up()
        return [replies_of(answers[ask]) for ask in asks]

    def give_up(self) -> None:
        """Close the connections of the asks in flight."""
        while self._in_flight:
            ask, (connection, _) = self._in_flight.popitem()
            self._connections.give_back(ask.server.client, connection, broken=True)
        while self._probes:
            self._probes.popitem()[1].close()
        self._starting.clear()
        self._finished.clear()

    def close(self) -> None:
        """Give up what is in flight, and give the connections back."""
        self._closed = True
        self.give_up()
        self._connections.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.give_up()

    # ------------------------------------------------------------ one ask

    def _perform(self, ask: Ask) -> Answer:
        """Send one ask and receive its replies, without looking at those in flight."""
        try:
            connection = self._send(ask)
        except Exception as error:
            return Answer(ask, error=error)
        return self._read(ask, connection)

    def _send(self, ask: Ask) -> Any:
        """Send the commands; the connection that they were sent on."""
        connection = self._connections.borrow(ask.server.client)
        try:
            words = [command.words for command in ask.commands]
            connection.send_packed_command(connection.pack_commands(words))
        except BaseException:
            self._connections.give_back(ask.server.client, connection, broken=True)
            raise
        return connection

    def _receive(self, seconds: float) -> None:
        sockets: dict[Ask, tuple[int | None, int]] = {
            ask: (redis_py.socket_number(connection), select.POLLIN)
            for ask, (connection, _) in self._in_flight.items()
        }
        sockets |= {ask: (probe.number, probe.events) for ask, probe in self._probes.items()}
        for ask in ready(sockets, seconds):
            try:
                if ask in self._probes:
                    self._go_on_with(ask)
                elif ask in self._in_flight:  # not if another thread closes the object
                    connection, _ = self._in_flight.pop(ask)
                    self._finished.append(self._read(ask, connection))
            except BaseException as error:
                self._interrupt(ask, error)
                raise

    def _go_on_with(self, ask: Ask) -> None:
        """The server of a probe did something."""
        try:
            answers = self._probes[ask].proceed()
        except OSError as error:
            self._probes.pop(ask).close()
            self._finished.append(Answer(ask, error=error))
            return
        if answers:
            self._probes.pop(ask).close()
            self._start(ask)

    def _interrupt(self, ask: Ask, error: BaseException) -> None:
        probe = self._probes.pop(ask, None)
        if probe is not None:
            probe.close()
        cause = RedisConnectionError(f"the request was interrupted by {type(error).__name__}")
        self._finished.append(Answer(ask, error=cause))

    def _read(self, ask: Ask, connection: Any) -> Answer:
        broken = True
        try:
            answer = Answer(ask, [self._reply(ask, connection, c) for c in ask.commands])
            broken = False
        except Exception as error:
            answer = Answer(ask, error=error)
        finally:
            self._connections.give_back(ask.server.client, connection, broken)
        return answer

    def _reply(self, ask: Ask, connection: Any, command: Any) -> Any:
        try:
            reply = connection.read_response()
        except ResponseError as error:
            reply = error
        return redis_py.read_value(ask.server.client, command, reply)

    def _end_late_ones(self) -> None:
        now_s = time.monotonic()
        for ask, (connection, deadline_s) in list(self._in_flight.items()):
            if now_s >= deadline_s:
                del self._in_flight[ask]
                self._connections.give_back(ask.server.client, connection, broken=True)
                error = redis_py.timed_out(ask.server.client)
                self._finished.append(Answer(ask, error=error))
        for ask, probe in list(self._probes.items()):
            if now_s >= probe.deadline_s and not probe.try_next():
                self._probes.pop(ask).close()
                error = redis_py.timed_out(ask.server.client)
                self._finished.append(Answer(ask, error=error))


def replies_of(answer: Answer) -> list[Any]:
    if answer.error is not None:
        raise answer.error
    for reply in answer.replies:
        if isinstance(reply, ResponseError):
            raise reply
    return answer.replies


def readable(connection: Any) -> bool:
    """Whether a connection has something to read, which may be its end."""
    number = redis_py.socket_number(connection)
    if number is None:
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


def ready(sockets: dict[Ask, tuple[int | None, int]], seconds: float) -> list[Ask]:
    """The asks for whose sockets an event has happened, at most `seconds` later. `sockets` are
    their numbers and the events of `poll`."""
    if not sockets:
        return []
    poll = select.poll()
    by_socket: dict[int, Ask] = {}
    for ask, (number, events) in sockets.items():
        if number is None:
            return [ask]  # disconnected meanwhile: reading says why
        by_socket[number] = ask
        poll.register(number, events)
    # In whole milliseconds, rounded up: a wait that ends early would spin.
    limit_ms = -int(-min(seconds, WAIT_MAX_S) * 1000 // 1)
    return [by_socket[number] for number, _ in poll.poll(limit_ms)]
