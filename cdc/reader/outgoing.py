"""The entries on their way to millstream, and how far everything is durable.

One request is in flight at a time, while the next batch is filled. A cut and its durable LSN go
with the request after the one that carried the entries before the cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from millstream.backoff import Backoff
from millstream.cdc.reader.report import SourceReport
from millstream.cdc.streams.key_names import SourceKeys
from millstream.cdc.streams.source_state import SourceState
from millstream.cdc.streams.stream_appender import (
    Entries,
    RefusedError,
    SourceOffset,
    StreamAppender,
)
from millstream.cdc.streams.translator import ChangeEntry, TransactionCut
from millstream.pipeline.server_connection import ServerError

LINGER_S = 0.05
"""The time that a commit waits for others that are sent with it."""


class Outgoing:
    """Takes entries and cuts from the reader, and sends them in its own task.

    `durable` is called with each new durable LSN, `sent` with the bytes of each batch.
    """

    def __init__(
        self,
        appender: StreamAppender,
        keys: SourceKeys,
        state: SourceState,
        report: SourceReport,
        durable: Callable[[int], None],
        sent: Callable[[int], None],
    ) -> None:
        self.state = state
        self.stuck_since: float | None = None
        """Since when a request has not been answered as it should be; monotonic."""
        self.is_failing = False
        """True if the last request failed; it is repeated."""
        self._appender = appender
        self._keys = {table.full_name: keys.changes(table).encode() for table in keys.source.tables}
        self._report = report
        self._durable = durable
        self._sent = sent
        self._filling = Entries()
        self._next_offset: SourceOffset | None = None  # for the batch that is being filled
        self._offset: SourceOffset | None = None  # to be sent with the next request
        self._rows = 0  # since the last cut that was handed to a batch
        self._due_at: float | None = None
        self._is_due = False
        self._in_flight = False
        self._request: asyncio.Future[int] | None = None
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    # ------------------------------------------------------------ the reader's side

    def add(self, entry: ChangeEntry) -> None:
        key = self._keys[entry.table.full_name]
        self._filling.add(key, entry.lsn, entry.place, entry.words)
        if self._filling.is_full:
            self._writable.clear()
            self._wake()

    def commit(self, cut: TransactionCut) -> None:
        """A transaction has ended, and with it everything before `cut.end_lsn`."""
        self._rows += cut.rows
        self._next_offset = SourceOffset(cut.end_lsn, cut.lsn, cut.at, self._rows)
        if self._due_at is None:
            self._due_at = time.monotonic() + LINGER_S
        elif time.monotonic() >= self._due_at:
            self._wake()

    def nothing_more(self) -> None:
        """Nothing else has arrived: what is complete is sent at once."""
        if self._next_offset is not None:
            self._wake()

    def idle_until(self, lsn: int) -> None:
        """Between transactions: the source has nothing for us before `lsn`."""
        if self.is_empty and lsn > self.state.durable_lsn:
            self._offset = SourceOffset(lsn)
            self._wake()

    async def writable(self) -> None:
        """Wait until another entry may be added."""
        await self._writable.wait()

    @property
    def is_writable(self) -> bool:
        return self._writable.is_set()

    @property
    def is_empty(self) -> bool:
        """True if everything that was added is durable."""
        pending = self._filling.count or self._next_offset or self._offset
        return not pending and not self._in_flight

    def _wake(self) -> None:
        self._is_due = True
        self._news.set()

    # ------------------------------------------------------------ sending

    async def run(self) -> None:
        """Send until an error ends it: ReplacedError."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._is_due or self._offset is not None:
                await self._send_next()

    async def _send_next(self) -> None:
        offset, self._offset = self._offset, None
        batch, next_offset, self._next_offset = self._filling, self._next_offset, None
        self._filling, self._due_at, self._is_due = Entries(), None, False
        if next_offset is not None:
            self._rows = 0
        self._in_flight = True
        self._writable.set()
        state = None if offset is None else replace(self.state, durable_lsn=offset.durable_lsn)
        await self._send(state, offset, batch)
        self._in_flight = False
        if state is not None and offset is not None:
            self.state = state
            self._report.committed = offset.at or self._report.committed
            self._durable(state.durable_lsn)
        self._sent(batch.size_bytes)
        self._offset = next_offset

    async def settled(self) -> None:
        """Wait until the request in flight has ended, in one way or another, after `run` was
        cancelled."""
        if self._request is not None:
            await asyncio.wait([self._request])

    async def _send(
        self, state: SourceState | None, offset: SourceOffset | None, batch: Entries
    ) -> None:
        backoff = Backoff()
        while True:
            started = time.monotonic()
            self.stuck_since = self.stuck_since or started
            try:
                self._request = asyncio.ensure_future(
                    asyncio.to_thread(self._appender.send, state, offset, batch)
                )
                self._report.repeated += await asyncio.shield(self._request)
            except (ServerError, RefusedError) as error:
                self.is_failing = True
                self._report.became("waiting", str(error))
            else:
                self.stuck_since, self.is_failing = None, False
                return
            await asyncio.sleep(backoff.next_s())
