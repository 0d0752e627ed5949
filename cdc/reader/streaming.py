"""Reading a slot: one replication connection, from its first message to its end.

The source gets a status message at least every second, whatever else the reader waits for. A
confirmed position is durable in millstream. If reading is blocked for 10 s, the connection is
closed, so that the source can be shut down.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine

import psycopg

from millstream.cdc.protocol.pgoutput import decode
from millstream.cdc.protocol.replication_stream import Keepalive, Received, ReplicationStream
from millstream.cdc.reader.outgoing import Outgoing
from millstream.cdc.reader.report import SourceReport
from millstream.cdc.streams.translator import ChangeEntry, Described, TransactionCut, Translator

STATUS_S = 1.0
SLOW_S = 3.0
STUCK_S = 10.0
SILENCE_S = 60.0
"""A source that does not answer for this long counts as lost."""
MESSAGES_IN_A_TURN = 200


class StuckError(Exception):
    """The connection was closed because reading was blocked. The report has the reason."""


class Streaming:
    """Reads one connection, which has been started, until an error ends it.

    `paused` returns the reason why no further transaction may be read now, or None; `described`
    gets the columns of each table before its first change and after the table was changed.
    """

    def __init__(
        self,
        replication: ReplicationStream,
        translator: Translator,
        outgoing: Outgoing,
        paused: Callable[[], str | None],
        report: SourceReport,
        described: Callable[[Described], None],
    ) -> None:
        self._replication = replication
        self._translator = translator
        self._outgoing = outgoing
        self._paused = paused
        self._report = report
        self._described = described
        self._heard = time.monotonic()
        self._idle_lsn = 0
        self._paused_since: float | None = None

    async def run(self) -> None:
        """psycopg.Error when the connection breaks, StuckError, ReplacedError, DecodeError."""
        await first_of(self._receive(), self._outgoing.run(), self._keep_alive())

    # ------------------------------------------------------------ messages

    async def _receive(self) -> None:
        while True:
            await self._outgoing.writable()
            if not self._translator.inside:
                await self._while_paused()
            if self._take_some():
                await asyncio.sleep(0)
            else:
                self._outgoing.nothing_more()
                await self._replication.readable()

    def _take_some(self) -> bool:
        """Process messages until other tasks should run; False if no further message has
        arrived."""
        for _ in range(MESSAGES_IN_A_TURN):
            received = self._replication.receive_now()
            if received is None:
                return False
            self._take(received)
            is_between = not self._translator.inside
            if not self._outgoing.is_writable or (is_between and self._paused() is not None):
                break
        return True

    def _take(self, received: Received) -> None:
        self._heard = time.monotonic()
        if received.end_lsn > self._report.source_lsn:
            self._report.source_lsn = received.end_lsn
        if isinstance(received, Keepalive):
            self._keepalive(received)
            return
        for output in self._translator.feed(decode(received.payload)):
            if isinstance(output, ChangeEntry):
                self._outgoing.add(output)
                self._report.changes[output.table.full_name][output.op] += 1
            elif isinstance(output, TransactionCut):
                self._outgoing.commit(output)
            else:
                self._described(output)

    def _keepalive(self, keepalive: Keepalive) -> None:
        self._idle_lsn = keepalive.end_lsn
        if keepalive.wants_reply:
            self._confirm()
            self._idle()

    def _idle(self) -> None:
        """Between transactions, everything that the source has sent is durable."""
        if not self._translator.inside:
            self._outgoing.idle_until(self._idle_lsn)

    async def _while_paused(self) -> None:
        while (problem := self._paused()) is not None:
            self._paused_since = self._paused_since or time.monotonic()
            self._report.became("paused", problem)
            self._outgoing.nothing_more()
            await asyncio.sleep(STATUS_S / 10)
        self._paused_since = None

    # ------------------------------------------------------------ status

    def _confirm(self, wants_reply: bool = False) -> None:
        lsn = self._outgoing.state.durable_lsn
        self._replication.confirm(lsn, wants_reply)
        self._report.confirmed_lsn = lsn

    def durable(self, lsn: int) -> None:
        """Everything before `lsn` is in millstream: confirm it."""
        self._report.durable_lsn = lsn
        self._confirm()

    async def _keep_alive(self) -> None:
        while True:
            self._idle()
            now = time.monotonic()
            self._report.heard = time.time() - (now - self._heard)
            self._confirm(wants_reply=now - self._heard > SILENCE_S / 2)
            stuck = min(filter(None, [self._paused_since, self._outgoing.stuck_since]), default=now)
            if now - stuck > STUCK_S:
                raise StuckError
            if now - self._heard > SILENCE_S and self._paused_since is None:
                raise psycopg.OperationalError(f"the source has not answered for {SILENCE_S:g} s")
            if now - (self._outgoing.stuck_since or now) > SLOW_S and not self._outgoing.is_failing:
                self._report.became("waiting", "millstream does not answer")
            elif self._paused_since is None and not self._outgoing.is_failing:
                self._report.became("reading")
            # wait_for of Python 3.11 can lose a cancellation; timeout does not.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STATUS_S / 2):
                    await self._replication.flushed()
            await asyncio.sleep(STATUS_S / 2)


async def first_of(*works: Coroutine[object, object, None]) -> None:
    """Run coroutines together until one ends; return or raise as it does."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
