"""Differences between tasks and threads in the objects that users hold; written by hand.

`millstream.client.threads.concurrency` has the same names for threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import Any, Generic, Self, TypeVar

from millstream.client.core.deadlines import Stops
from millstream.client.guards import OwnProcess
from millstream.client.records import Record, V

R = TypeVar("R")


class Opened:
    """An object that is opened when it is awaited, entered or first used: `__init__` cannot wait
    for the server."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def _open(self) -> Self:
        """Ask the server, the first time."""
        raise NotImplementedError


Made = TypeVar("Made", bound=Opened)


def opened(made: Made) -> Made:
    """A new object as a method returns it: not open yet."""
    return made


class Closing(Opened):
    """An object that is closed at the end of its `with` block."""

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError


class Reader(Closing, Generic[V]):
    """A stream or a consumer."""

    def __aiter__(self) -> AsyncIterator[Record[V]]:
        """A loop over the object is `follow`: it waits for records, and never gives None."""
        return self.follow()

    def follow(self) -> AsyncIterator[Record[V]]:
        raise NotImplementedError


class Turn:
    """Lets one task at a time use an object; others wait."""

    def __init__(self, process: OwnProcess) -> None:
        self._process = process
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], Awaitable[R]]) -> R:
        self._process.check()  # first: a task of the parent may have held the lock
        async with self._lock:
            return await work()


class Waker:
    """Ends a wait for the server early. `future` is for `asyncio.wait`."""

    def __init__(self, before: Callable[[], bool] = lambda: False) -> None:
        """`before` is called before each wait; if it returns True, there is no wait."""
        self.before = before
        self._loop = asyncio.get_running_loop()
        self.future = self._loop.create_future()
        self._woken = False

    def wake(self) -> None:
        """Any thread and any signal handler may call it. The wait ends, or the next one."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.wake_here)

    def wake_here(self) -> None:
        """The same for tasks of the loop."""
        if not self.future.done():
            self.future.set_result(None)

    def clear(self) -> None:
        """After a wait. Call it before looking for the reason of the wake."""
        self.future = self._loop.create_future()
        self._woken = False

    def close(self) -> None:
        self.future.cancel()


class Done:
    """Something that happens once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        """False if it has not happened after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout)
        return self._event.is_set()


class Guard:
    """Lets one thread at a time use an object. Tasks take turns anyway."""

    def __init__(self) -> None:
        self.lock = contextlib.nullcontext()

    def check(self) -> None:
        """Nothing interrupts the use."""


class Room:
    """Waiting for room in a buffer."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self, has_room: Callable[[], bool]) -> None:
        while not has_room():
            self._event.clear()
            await self._event.wait()

    def freed(self) -> None:
        """There may be more room."""
        self._event.set()


class Background:
    """Work that runs while the program does something else."""

    def __init__(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        self._work = work
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Nothing happens the second time."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def _run(self) -> None:
        await self._work()

    async def join(self) -> None:
        """Wait for its end."""
        if self._task is not None:
            await asyncio.wait([self._task])


class Promise:
    """An object with a result that arrives later: `await` it."""

    __slots__ = ()

    async def result(self, timeout: float | None = None) -> int:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, int]:
        return self.result().__await__()


async def finished(result: Any) -> None:
    """Wait for a handler of events, which may be a coroutine."""
    if inspect.isawaitable(result):
        await result


Records = AsyncGenerator[Record[V], None]


class RecordLoop(Generic[V]):
    """The iterator of a loop over records. It runs from the first record until the loop ends in any
    way.

    An asynchronous generator alone would run on after `break`, until a task of the event loop
    closes it, and a `stop` in this time would be lost.
    """

    def __init__(
        self,
        stops: Stops,
        records: Callable[[int], Records[V]],
        run: Callable[[int], Iterable[Record[V]]] = lambda begun: (),
    ) -> None:
        """`records(begun)` makes the generator of the records; `begun` is for `Stops.since`.
        `run(begun)` are the records that come before its next one, without a wait."""
        self._stops = stops
        self._make_run = run
        self._make = records
        self._records: Records[V] | None = None
        self._run: Iterable[Record[V]] = ()
        self._ticket = object()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[V]:
        for record in self._run:
            return record
        try:
            if self._records is None:
                self._begun = self._stops.begin_follow(self._ticket)
                self._records = self._make(self._begun)
            record = await anext(self._records)
            self._run = self._make_run(self._begun)
            return record
        except BaseException:  # the end, an error or a cancellation
            self._end()
            raise

    async def aclose(self) -> None:
        """End the loop, as for an asynchronous generator."""
        self._end()
        if self._records is not None:
            await self._records.aclose()

    def _end(self) -> None:
        self._run = ()
        self._stops.end_follow(self._ticket)

    def __del__(self) -> None:
        self._end()


def record_loop(
    stops: Stops,
    records: Callable[[int], Records[V]],
    run: Callable[[int], Iterable[Record[V]]] = lambda begun: (),
) -> AsyncIterator[Record[V]]:
    """A loop over records, with `break`, `stop` and errors."""
    return RecordLoop(stops, records, run)
