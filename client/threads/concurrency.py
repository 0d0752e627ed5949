"""Differences between threads and tasks in the objects that users hold; written by hand.

`millstream.client.aio.concurrency` has the same names for asyncio.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from millstream.client.core.deadlines import Stops
from millstream.client.errors import MillstreamError
from millstream.client.guards import OwnProcess
from millstream.client.records import Record, V

R = TypeVar("R")


class Opened:
    """An object that is open when a method returns it."""

    def __enter__(self) -> Self:
        return self

    def _open(self) -> Self:
        """Ask the server, the first time."""
        raise NotImplementedError


Made = TypeVar("Made", bound=Opened)


def opened(made: Made) -> Made:
    """A new object as a method returns it: open."""
    return made._open()


class Closing(Opened):
    """An object that is closed at the end of its `with` block."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class Reader(Closing, Generic[V]):
    """A stream or a consumer."""

    def __iter__(self) -> Iterator[Record[V]]:
        """A loop over the object is `follow`: it waits for records, and never gives None."""
        return self.follow()

    def __next__(self) -> Record[V] | None:
        """The next record, or None when there is none now. It never waits for records, and never
        raises StopIteration."""
        return self.read(0)

    def follow(self) -> Iterator[Record[V]]:
        raise NotImplementedError

    def read(self, timeout: float | None = None) -> Record[V] | None:
        raise NotImplementedError


class Turn:
    """Lets one thread at a time use an object; others wait."""

    def __init__(self, process: OwnProcess) -> None:
        self._process = process
        self._lock = threading.RLock()

    def run(self, work: Callable[[], R]) -> R:
        self._process.check()  # first: a thread of the parent may have held the lock
        nested = is_owned(self._lock)  # by a call that was interrupted by a signal handler
        try:
            with self._lock:
                return work()
        finally:
            if not nested:
                let_go(self._lock)  # again: a signal handler may have raised in the line before


def is_owned(lock: Any) -> bool:
    """True if this thread holds an RLock."""
    return bool(lock._is_owned())


def let_go(lock: Any) -> None:
    """Release an RLock if this thread holds it."""
    while is_owned(lock):
        lock.release()


class Waker:
    """Ends a wait for the server early. `number` is for `poll`."""

    def __init__(self, before: Callable[[], bool] = lambda: False) -> None:
        """`before` is called before each wait; if it returns True, there is no wait."""
        self.before = before
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self.number = self._receiver.fileno()
        self._woken = False

    def wake(self) -> None:
        """Any thread and any signal handler may call it. The wait ends, or the next one."""
        if self._woken:
            return
        try:
            self._woken = True
            self._sender.send(b"!")
        except OSError:  # closed, or full
            pass
        except BaseException:  # of a signal handler
            self._woken = False
            raise

    def clear(self) -> None:
        """After a wait. Call it before looking for the reason of the wake."""
        with contextlib.suppress(OSError):
            self._receiver.recv(64)
        self._woken = False  # last: a wake in between is seen by the look

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


class Done(threading.Event):
    """Something that happens once."""


class Guard:
    """Lets one thread at a time use an object. It is quicker than `Turn`, and `lock` has no
    statement of Python that a signal handler could interrupt."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()

    def check(self) -> None:
        """Refuses a signal handler that has interrupted the use by its own thread."""
        if is_owned(self.lock):
            raise MillstreamError(
                "a signal handler has called a method in the middle of another call"
            )


class Room:
    """Waiting for room in a buffer."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def wait(self, has_room: Callable[[], bool]) -> None:
        with self._condition:
            while not has_room():
                self._condition.wait()

    def freed(self) -> None:
        """There may be more room."""
        with self._condition:
            self._condition.notify_all()


class Background:
    """Work that runs while the program does something else."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)

    def start(self) -> None:
        """Nothing happens the second time."""
        if self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()


class Promise:
    """An object with a result that arrives later."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> int:
        raise NotImplementedError


def finished(result: Any) -> None:
    """A handler of events has ended when it returns."""


Records = Generator[Record[V], None, None]


def record_loop(
    stops: Stops,
    records: Callable[[int], Records[V]],
    run: Callable[[int], Iterable[Record[V]]] = lambda begun: (),
) -> Iterator[Record[V]]:
    """A loop over records, from the first one until it ends in any way. `records(begun)` makes the
    generator of the records; `begun` is for `Stops.since`. `run(begun)` are the records that come
    before its next one, without a wait."""
    ticket = object()
    try:
        try:
            begun = stops.begin_follow(ticket)
            for record in records(begun):
                yield record
                yield from run(begun)
        finally:
            stops.end_follow(ticket)
    finally:
        stops.end_follow(ticket)  # again: a signal handler may have raised there
