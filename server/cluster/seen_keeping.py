"""Writes what a node sees in the store to its disk, while the loop of the server continues.

What the node does because of it waits for that (`MemberService`). When slots move between two
shards, most nodes of a cluster do nothing because of that. The steps of a move follow each other
quickly, and these nodes write once for several of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.server.cluster.store.seen_store import SeenStore

log = logging.getLogger("millstream.cluster")

LATER_S = 0.2


class SeenKeeping:
    """`is_writing`: nothing may be noted in `seen`, and no order be carried out. `on_written(done)`
    is called when that is over, and `spawn` begins a task."""

    def __init__(
        self,
        seen: SeenStore,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_written: Callable[[bool], object],
    ) -> None:
        self.is_writing = False
        self._seen = seen
        self._spawn = spawn
        self._on_written = on_written
        self._is_to_write = False
        self._is_urgent = asyncio.Event()

    def write_later(self) -> None:
        """Write what was noted, within LATER_S."""
        if not self._is_to_write:
            self._is_to_write = True
            self._is_urgent.clear()
            self._spawn(self._write())

    def write_now(self) -> None:
        """Write what was noted."""
        self.write_later()
        self.is_writing = True
        self._is_urgent.set()

    def hurry(self) -> None:
        """There is an order: what waits to be written is written now."""
        if self._is_to_write:
            self.write_now()

    def stop(self) -> None:
        """The server stops."""
        if self._is_to_write and not self.is_writing:
            self._seen.write()

    async def _write(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATER_S):
                await self._is_urgent.wait()
        self.is_writing = True
        done = False
        try:
            done = await asyncio.to_thread(self._seen.write)
        except Exception:  # for example, no thread can be started
            log.critical("what was seen in etcd cannot be written", exc_info=True)
        finally:
            self.is_writing = self._is_to_write = False
        self._on_written(done)
