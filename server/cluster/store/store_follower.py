"""Keeps up with the contents of a store: reads all, then watches.

A watch may stay silent, and cannot see that the store was restored. So everything is read again
every LOOK_S seconds, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from millstream.server.cluster.store.store import (
    Changes,
    Compacted,
    Contents,
    Refused,
    Store,
    Unreachable,
)

log = logging.getLogger("millstream.cluster")

LOOK_S = 5.0
PAUSE_S = 0.5  # between two beginnings


class StoreFollower:
    """Calls `note` with the contents whenever they may have changed, and at least every LOOK_S
    seconds and one call of the store; `lose` whenever they cannot be read. `note_gap` is called
    before what follows a gap: what the store had meanwhile was perhaps not seen. After an
    unexpected error, it begins again.

    The contents may be older than those before: the store was restored from an old copy then."""

    def __init__(
        self,
        store: Store,
        note: Callable[[Contents], object],
        lose: Callable[[Unreachable | Refused], object],
        note_gap: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._note = note
        self._note_gap = note_gap
        self._lose = lose
        self._contents = Contents(0, {})
        self._wanted = asyncio.Event()

    def look_soon(self) -> None:
        """Read everything now: the watch may be late."""
        self._wanted.set()

    async def run(self) -> None:
        """Run until this task is cancelled."""
        while True:
            try:
                self._take(await self._store.read())
                await self._watch_and_look()
            except Compacted:
                self._note_gap()
                continue
            except (Unreachable, Refused) as problem:
                self._lose(problem)
            except Exception:  # for example a lack of memory
                log.critical("the contents of etcd cannot be used", exc_info=True)
            self._note_gap()
            await asyncio.sleep(PAUSE_S)

    def _take(self, contents: Contents) -> None:
        self._contents = contents
        self._note(contents)

    async def _watch_and_look(self) -> None:
        """Returns when the watch has ended or has missed something."""
        self._wanted.clear()
        watching = asyncio.create_task(self._watch(self._contents.revision))
        watching.add_done_callback(lambda task: self._wanted.set())
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wanted.wait()
                self._wanted.clear()
                if watching.done():
                    return watching.result()
                if not await self._look():
                    return
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, revision: int) -> None:
        try:
            async for changes in self._store.watch(revision):
                self._take(_changed(self._contents, changes))
        except Unreachable:
            pass  # the next read, which other endpoints may answer, tells whether the store is lost

    async def _look(self) -> bool:
        """Read everything. Whether the watch has seen all of it."""
        before = self._contents.revision
        found = await self._store.read()
        if before <= found.revision < self._contents.revision:
            return True  # the watch has seen more meanwhile
        was_seen = found.revision >= before and found.values == self._contents.values
        if not was_seen:
            self._note_gap()
        self._take(found)
        return was_seen


def _changed(contents: Contents, changes: Changes) -> Contents:
    values = dict(contents.values)
    for name, value in changes.values.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
    return Contents(changes.revision, values)
