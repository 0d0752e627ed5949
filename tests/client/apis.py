"""Both APIs of the client with one way of calling: a test has one text for sync and asyncio.

`Api.connect` gives a connection of either API. An object of the asyncio API is wrapped: what has
to be awaited is run on an event loop until it is done, `async with` becomes `with`, `async for`
becomes `for`, and `next(stream)` is `await stream.read(timeout=0)`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from millstream import client as sync_client
from millstream.client import Shard, aio

NAMES = ("sync", "asyncio")


class Api:
    """One of the two APIs. `close` closes what `connect` has made."""

    def __init__(self, name: str) -> None:
        assert name in NAMES
        self.name = name
        self._loop = None if name == "sync" else asyncio.new_event_loop()
        self._made: list[Any] = []

    def connect(self, url: str, **options: Any) -> Any:
        if self._loop is None:
            made: Any = sync_client.connect(url, **options)
        else:
            made = Driven(aio.connect(url, **options), self._loop)
        self._made.append(made)
        return made

    def shard(self, key: str | bytes, ms: Any, name: str | None = None) -> Shard:
        """A shard on the server of a connection."""
        return Shard(key, unwrap(ms), name)

    def close(self) -> None:
        for ms in self._made:
            ms.close() if self._loop is None else ms.aclose()
        if self._loop is not None:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            assert not left, f"tasks were left: {left}"


WRAPPED = (
    *(aio.Stream, aio.Writer, aio.Consumer, aio.Worker, aio.Producer),
    *(aio.Fact, aio.Pipeline, aio.Receipt),
)


class Driven:
    """An object of the asyncio API that is used like one of the sync API."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.__dict__["inner"] = inner
        self.__dict__["loop"] = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not inspect.ismethod(value) or name == "stop":
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple(map(unwrap, args))
            kwargs = {word: unwrap(arg) for word, arg in kwargs.items()}
            return self._finish(value(*args, **kwargs))

        return call

    def _finish(self, result: Any) -> Any:
        if hasattr(result, "__anext__"):
            return self._iterate(result)
        if isinstance(result, aio.Pipeline):  # awaiting one would begin a transaction
            return Driven(result, self.loop)
        if inspect.isawaitable(result):
            result = self.loop.run_until_complete(_awaited(result))
        if isinstance(result, list):
            return [self._wrapped(one) for one in result]
        return self._wrapped(result)

    def _wrapped(self, result: Any) -> Any:
        kinds = (
            aio.Stream,
            aio.Writer,
            aio.Consumer,
            aio.Worker,
            aio.Producer,
            aio.Receipt,
            aio.Fact,
            aio.Pipeline,
        )
        return Driven(result, self.loop) if isinstance(result, kinds) else result

    def _iterate(self, records: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self.loop.run_until_complete(_awaited(anext(records)))
                except StopAsyncIteration:
                    return
        finally:
            self.loop.run_until_complete(records.aclose())

    def __enter__(self) -> Any:
        self.loop.run_until_complete(self.inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.loop.run_until_complete(self.inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(aiter(self.inner))

    def __next__(self) -> Any:
        return self.read(timeout=0)

    def __getitem__(self, name: Any) -> Any:
        return self.inner[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        self.inner[name] = value

    def __delitem__(self, name: Any) -> None:
        del self.inner[name]

    def __len__(self) -> int:
        return len(self.inner)

    def __repr__(self) -> str:
        return repr(self.inner)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def unwrap(value: Any) -> Any:
    return value.inner if isinstance(value, Driven) else value


def take(stream: Any, count: int, timeout: float = 10.0) -> list[Any]:
    """The next `count` records. AssertionError if one of them does not come."""
    found = []
    for _ in range(count):
        record = stream.read(timeout=timeout)
        assert record is not None, f"record {len(found) + 1} of {count} did not come: {found}"
        found.append(record)
    return found


def drain(stream: Any, count: int) -> None:
    """Read `count` records, in one run of the event loop where there is one."""
    if not isinstance(stream, Driven):
        for _ in range(count):
            assert stream.read(timeout=10) is not None
        return
    inner = stream.inner

    async def read() -> None:
        for _ in range(count):
            assert await inner.read(timeout=10) is not None

    stream.loop.run_until_complete(read())


def rest(stream: Any) -> list[Any]:
    """All records up to the end of a stream of sealed shards."""
    return list(stream.follow())


def ids(records: Iterable[Any]) -> list[str]:
    return [str(record.id) for record in records]
