"""Sending asks and receiving their answers, several at once, each on a connection of its own."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from redis.exceptions import MovedError, ResponseError

from millstream.client import redis_py
from millstream.client.core.cluster_nodes import ClusterNodes, first_moved
from millstream.client.core.sharing import may_share
from millstream.client.core.steps import Answer, Ask
from millstream.client.errors import MillstreamError
from millstream.client.threads.concurrency import Waker
from millstream.client.threads.interruptible import make_interruptible
from millstream.client.threads.nodes import learn, look, perform_at_nodes, renew
from millstream.client.threads.probing import Probe
from millstream.client.threads.shared_connection import ANSWERS, Loan, SharedConnection, reply_of
from millstream.slot_routing import MOVES_MAX

WAIT_MAX_S = 3600.0
"""The core waits again. The system cannot wait for any length of time."""
CLOSED = "the object was closed while a call waited for the server"
SHARED = "_connections_of_writers"
"""The attribute of a client with its Connections, by process: a child has its own."""


class Connections:
    """One connection of each client, kept for its next ask: a pool takes its time."""

    def __init__(self) -> None:
        self._idle: dict[Any, Any] = {}
        self._writers: WeakSet[Lanes] | None = None
        """Those that share it."""
        self._of_threads: dict[Any, SharedConnection] = {}

    @classmethod
    def shared(cls, client: Any) -> Connections:
        """The connections of all writers of a client. The requests of its threads follow each other
        on one of them; those of the main thread, and long ones, take another one meanwhile."""
        by_process: dict[int, Connections] = vars(client).setdefault(SHARED, {})
        process = os.getpid()
        found = by_process.get(process)
        if found is None:
            made = cls()
            made._writers = WeakSet()
            found = by_process.setdefault(process, made)  # another thread may be first
            for number in [number for number in list(by_process) if number != process]:
                parent = by_process.pop(number, None)
                if parent is not None:
                    parent._idle.clear()
        return found

    def of_threads(self, client: Any) -> SharedConnection | None:
        """The connection to this client's server that threads share, if they do."""
        if self._writers is None:
            return None
        found = self._of_threads.get(client)
        return found or self._of_threads.setdefault(client, SharedConnection(self))

    def join(self, writer: Lanes) -> None:
        assert self._writers is not None
        self._writers.add(writer)

    def leave(self, writer: Lanes) -> None:
        """The last one of those that share it gives the connections back."""
        if self._writers is None:
            self.close()
            return
        self._writers.discard(writer)
        if not self._writers:
            for client in list(self._idle):
                connection = self._idle.pop(client, None)
                if connection is not None:  # not taken by a new writer in another thread
                    client.connection_pool.release(connection)

    def __contains__(self, client: Any) -> bool:
        return client in self._idle

    def borrow(self, loan: Loan) -> Any:
        """A connection for a loan."""
        loan.connection = self._idle.pop(loan.client, None)
        if loan.connection is not None and readable(loan.connection):
            # Nothing was asked, so the server has closed it.
            self.give_back(loan)
        if loan.connection is None:
            make_interruptible(loan.client.connection_pool)
            loan.connection = redis_py.borrow(loan.client)
            redis_py.note_node(loan.client, loan.connection)
        return loan.connection

    def give_back(self, loan: Loan) -> None:
        """End a loan; nothing happens if it has ended."""
        connection = loan.connection
        if connection is None:
            return
        if not loan.complete:
            if self._idle.get(loan.client) is not connection:  # not kept before an interruption
                connection.disconnect()
                loan.client.connection_pool.release(connection)
        elif self._idle.setdefault(loan.client, connection) is not connection:
            loan.client.connection_pool.release(connection)
        loan.connection = None

    def close(self) -> None:
        for client, connection in list(self._idle.items()):
            client.connection_pool.release(connection)
            self._idle.pop(client, None)

    def __del__(self) -> None:
        # A pool counts the connections that it lent, so a forgotten stream must not keep any.
        with contextlib.suppress(Exception):
            self.close()


class Lanes:
    """The asks in flight. Without threads: replies are read when a call waits for them.

    `wait` is for one thread at a time. Any thread may call `together` and `close`.

    A signal handler may raise anywhere. Then an ask that was being sent, or whose replies were
    being read, is in no list; the next `wait` closes its connection and starts it again.
    """

    def __init__(self, connections: Connections | None = None) -> None:
        self._waker: Waker | None = None
        self._connections = Connections() if connections is None else connections
        self._in_flight: dict[Ask, Loan] = {}
        self._probes: dict[Ask, Probe] = {}
        """Asks for servers that did not answer: they are sent when the server answers again."""
        self._finished: list[Answer] = []
        """Answers that the core may not have taken in yet."""
        self._closed = False
        self._shares = False

    @classmethod
    def of_writer(cls, client: Any) -> Lanes:
        """Those of an object that only writes: it keeps no connection of its own."""
        connections = Connections.shared(client)
        lanes = cls(connections)
        connections.join(lanes)
        lanes._shares = True
        return lanes

    def start(self, ask: Ask) -> None:
        """Send the commands. An error becomes the answer."""
        client = client_of(ask)
        if self._may_hang(ask.server, client):
            probe = Probe.of(client)
            if probe is not None:
                self._probes[ask] = probe
                return
        self._start(ask, client)

    def _may_hang(self, server: Any, client: Any) -> bool:
        """True if connecting might take long: a new connection is needed, and the server fails or
        has an ask to answer."""
        if client in self._connections:
            return False
        if server.failing:
            return True
        asked = any(loan.client is client for loan in self._in_flight.values())
        return asked and not redis_py.has_spare(client)

    def _start(self, ask: Ask, client: Any) -> None:
        self._in_flight[ask] = loan = Loan(client)
        try:
            self._send(ask, loan)
        except ANSWERS as error:
            self._finish(ask, Answer(ask, error=error))

    def _finish(self, ask: Ask, answer: Answer) -> None:
        loan = self._in_flight.get(ask)
        if loan is not None:
            note(loan.client, answer)
        self._finished.append(answer)
        self._give_up(ask)
        look(ask.server.client)

    def _give_up(self, ask: Ask) -> None:
        loan = self._in_flight.get(ask)
        if loan is not None:  # not if another thread closes the object
            self._connections.give_back(loan)
            self._in_flight.pop(ask, None)

    def wait(self, asks: Sequence[Ask], seconds: float | None) -> list[Answer]:
        """Start those asks that are not in flight, and wait until there is an answer to any ask.

        `asks` has every ask whose answer the core has not taken in: such an answer is returned
        again, because a signal handler may have raised before the core had it.

        Raises MillstreamError if the object is closed, or another thread closes it meanwhile."""
        self._check_open()  # a handler of events may have closed it
        for ask in [ask for ask, loan in self._in_flight.items() if not loan.waits]:
            self._give_up(ask)
        self._finished = [answer for answer in self._finished if answer.ask in asks]
        known = {*self._in_flight, *self._probes, *(answer.ask for answer in self._finished)}
        for ask in asks:
            if ask not in known:
                if self._waker is not None and ask.server.client not in self._connections:
                    self._waker.before()  # making a connection takes its time
                self.start(ask)
        until_s = None if seconds is None else time.monotonic() + seconds
        while True:
            now_s = time.monotonic()
            limits = [loan.deadline_s for loan in self._in_flight.values()]
            limits += [probe.deadline_s for probe in self._probes.values()]
            if until_s is not None:
                limits.append(until_s)
            pause_s = 0.0 if self._finished else max(0.0, min(limits, default=now_s) - now_s)
            try:
                woken = self._receive(pause_s)
            except Exception:
                self._check_open()  # another thread may have closed the connections
                raise
            self._check_open()
            self._end_late_ones()
            idle = not self._in_flight and not self._probes
            if self._finished or woken or (idle and until_s is None):
                break
            if until_s is not None and time.monotonic() >= until_s:
                break
            if idle and until_s is not None:
                time.sleep(min(max(0.0, until_s - time.monotonic()), WAIT_MAX_S))
                break
        return list(self._finished)

    def wake_with(self, waker: Waker) -> None:
        """Let a waker end waits."""
        self._waker = waker

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
            try:
                while left := [ask for ask in asks if ask not in answers]:
                    answers |= {answer.ask: answer for answer in lanes.wait(left, None)}
            finally:
                lanes.give_up()
        finally:
            lanes.give_up()  # again: a signal handler may have raised in the line before
        return [replies_of(answers[ask]) for ask in asks]

    def give_up(self, asks: Collection[Ask] | None = None) -> None:
        """Close the connections of asks in flight: of all of them, if none are named."""
        for ask in [ask for ask in self._in_flight if asks is None or ask in asks]:
            self._give_up(ask)
        for ask, probe in list(self._probes.items()):
            if asks is None or ask in asks:
                probe.close()
                self._probes.pop(ask, None)
        self._finished = [a for a in self._finished if asks is not None and a.ask not in asks]

    def close(self) -> None:
        """Give up the asks in flight, and give the connections back."""
        self._closed = True
        self.give_up()
        self._connections.leave(self)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.give_up()
            if self._shares:
                self._connections.leave(self)

    # ------------------------------------------------------------ one ask

    def _perform(self, ask: Ask) -> Answer:
        """Send one ask and receive its replies, without looking at those in flight."""
        return perform_at_nodes(ask, self._perform_at)

    def _perform_at(self, ask: Ask) -> Answer:
        shared = self._connections.of_threads(ask.server.client)
        # A signal handler could raise in the main thread, and leave the other ones without replies.
        if shared is not None and may_share(ask) and not is_main_thread():
            return shared.perform(ask)
        loan = Loan(ask.server.client)
        try:
            try:
                self._send(ask, loan)
                self._await_reply(loan)
                return self._read(ask, loan)
            except ANSWERS as error:
                return Answer(ask, error=error)
            finally:
                self._connections.give_back(loan)
        finally:
            self._connections.give_back(loan)  # again: see `together`

    def _send(self, ask: Ask, loan: Loan) -> None:
        """Send the commands on a connection of their own."""
        connection = self._connections.borrow(loan)
        connection.send_packed_command(redis_py.pack(connection, ask.commands))
        loan.deadline_s = time.monotonic() + ask.wait_s + redis_py.timeout_s(loan.client)
        loan.waits = True

    def _await_reply(self, loan: Loan) -> None:
        """redis-py would take a TimeoutError of a signal handler for that of its socket."""
        if not readable(loan.connection, redis_py.timeout_s(loan.client)):
            raise redis_py.timed_out(loan.client)

    def _receive(self, seconds: float) -> bool:
        """Read what arrives. True if the waker has ended the wait."""
        sockets: dict[Ask | None, tuple[int | None, int]] = {
            ask: (redis_py.socket_number(loan.connection), select.POLLIN)
            for ask, loan in self._in_flight.items()
        }
        sockets |= {ask: (probe.number, probe.events) for ask, probe in self._probes.items()}
        if self._waker is not None:
            sockets[None] = (self._waker.number, select.POLLIN)
        has_reason = self._waker is not None and self._waker.before()
        woken = False
        for ask in ready(sockets, 0.0 if has_reason else seconds):
            if ask is None:
                woken = True
            elif ask in self._probes:
                self._go_on_with(ask)
            elif ask in self._in_flight:  # not if another thread closes the object
                self._take_replies(ask, self._in_flight[ask])
        if woken and self._waker is not None:
            self._waker.clear()
        return woken or has_reason

    def _take_replies(self, ask: Ask, loan: Loan) -> None:
        loan.waits = False
        try:
            answer = self._read(ask, loan)
        except ANSWERS as error:
            answer = Answer(ask, error=error)
        moved = first_moved(answer)
        if moved is not None:
            self._follow(ask, answer, moved)
        else:
            self._finish(ask, answer)

    def _follow(self, ask: Ask, answer: Answer, moved: MovedError) -> None:
        """A node of a cluster has named another one: send there what it has not run."""
        self._give_up(ask)
        nodes = learn(ask.server.client, moved)
        none_ran = all(isinstance(reply, MovedError) for reply in answer.replies)
        if none_ran and ask.moves < MOVES_MAX and nodes.is_for_one(ask):
            ask.moves += 1
            self._start(ask, client_of(ask))
        else:
            self._finish(ask, perform_at_nodes(ask, self._perform_at, answer))

    def _go_on_with(self, ask: Ask) -> None:
        """The server of a probe did something."""
        probe = self._probes.pop(ask)
        try:
            answers = probe.proceed()
        except OSError as error:
            probe.close()
            cause = redis_py.failed_connection(probe.client, error)
            self._fail(probe, Answer(ask, error=cause))
            return
        if answers:
            probe.close()
            self._start(ask, client_of(ask))
        else:
            self._probes[ask] = probe

    def _fail(self, probe: Probe, answer: Answer) -> None:
        note(probe.client, answer)
        self._finished.append(answer)

    def _read(self, ask: Ask, loan: Loan) -> Answer:
        replies = [
            redis_py.read_value(loan.client, command, reply_of(loan.connection))
            for command in ask.commands
        ]
        loan.complete = True
        return Answer(ask, replies)

    def _end_late_ones(self) -> None:
        now_s = time.monotonic()
        for ask, loan in list(self._in_flight.items()):
            if now_s >= loan.deadline_s:
                self._finish(ask, Answer(ask, error=redis_py.timed_out(loan.client)))
        for ask, probe in list(self._probes.items()):
            if now_s >= probe.deadline_s and not probe.try_next():
                self._probes.pop(ask).close()
                error = redis_py.timed_out(probe.client)
                self._fail(probe, Answer(ask, error=error))


def client_of(ask: Ask) -> Any:
    """The client of the server that an ask goes to."""
    client: Any = ask.server.client
    nodes = ClusterNodes.of(client)
    if nodes is None:
        return client
    renew(nodes)
    return nodes.of_command(ask.commands[0])


def note(client: Any, answer: Answer) -> None:
    """The answer of a server, which may be a node of a cluster."""
    nodes = ClusterNodes.of(client)
    if nodes is not None:
        nodes.note(client, answer)


def is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def replies_of(answer: Answer) -> list[Any]:
    if answer.error is not None:
        raise answer.error
    for reply in answer.replies:
        if isinstance(reply, ResponseError):
            raise reply
    return answer.replies


def readable(connection: Any, seconds: float = 0.0) -> bool:
    """True if a connection has something to read, at most `seconds` later. It may be its end."""
    number = redis_py.socket_number(connection)
    if number is None:
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(whole_ms(seconds) if seconds else 0))


A = TypeVar("A")


def ready(sockets: dict[A, tuple[int | None, int]], seconds: float) -> list[A]:
    """The asks for whose sockets an event has happened, at most `seconds` later. `sockets` are
    their numbers and the events of `poll`."""
    if not sockets:
        return []
    poll = select.poll()
    by_socket: dict[int, A] = {}
    for ask, (number, events) in sockets.items():
        if number is None:
            return [ask]  # disconnected meanwhile: reading says why
        by_socket[number] = ask
        poll.register(number, events)
    return [by_socket[number] for number, _ in poll.poll(whole_ms(seconds))]


def whole_ms(seconds: float) -> int:
    """For `poll`. Rounded up: a wait that ends early would spin."""
    return -int(-min(seconds, WAIT_MAX_S) * 1000 // 1)
