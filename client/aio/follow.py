"""The iterator of a loop with `async for` over records."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Generic, Self

from millstream.client.core.waiting import Stops
from millstream.client.records import Record, T

Records = AsyncGenerator[Record[T], None]


class Follow(Generic[T]):
    """Runs from the first record until the loop ends in any way.

    An asynchronous generator alone would run on after `break`, until a task of the event loop
    closes it, and a `stop` in this time would be lost.
    """

    def __init__(
        self,
        stops: Stops,
        records: Callable[[int], Records[T]],
        run: Callable[[int], Iterable[Record[T]]] = lambda begun: (),
    ) -> None:
        """`records(begun)` makes the generator of the records; `begun` is for `Stops.since`.
        `run(begun)` are the records that come before its next one, without a wait."""
        self._stops = stops
        self._make_run = run
        self._make = records
        self._records: Records[T] | None = None
        self._run: Iterable[Record[T]] = ()
        self._ticket = object()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[T]:
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
