"""One backup that this server sends: a worker reads its files in pieces, and the event loop sends
no more than the connection takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from millstream.server.backup.answer import BackupAnswer
from millstream.server.backup.rests import Rests
from millstream.server.durability.data_files import in_words
from millstream.server.durability.snapshots import Job
from millstream.server.durability.workers import Machine, TaskWorker, post
from millstream.server.replication.backlog import OldData, Piece

log = logging.getLogger("millstream.backup")

_TURN_BYTES = 1 << 20  # sent to one client in one turn of the event loop


class BackupFeed:
    """One backup, and the client that gets it. `client.feed` is this object, as for a replica.
    `on_sent(data_ms)` is called with the time of the data when all is sent, `on_end(client)`
    when the backup has ended early, and `count()` tells how many there are."""

    is_replica = False

    def __init__(
        self,
        client: Any,
        machine: Machine,
        worker: TaskWorker,
        rests: Rests,
        on_sent: Callable[[int], None],
        on_end: Callable[[Any], None],
        count: Callable[[], int],
    ) -> None:
        self.client = client
        self.address: str = client.address
        self.sent_bytes = 0
        self.started_ms = machine.steady_clock()
        self.is_waiting = True  # for the data
        self.job: Job | None = None  # writes the data to a file
        self._machine = machine
        self._worker = worker
        self._rests = rests
        self._on_sent = on_sent
        self._on_end = on_end
        self._count = count
        self._data: OldData | None = None
        self._data_ms = 0
        self._awaits_piece = False  # the worker reads it, or a rest comes before
        self._piece: Piece | None = None
        self._is_last = False  # no piece follows `_piece`
        # The work for the last piece.
        self._read_s = self._sent_s = 0.0
        self._piece_bytes = 0
        self._pump_scheduled = False

    def begin(self, answer: BackupAnswer, data: OldData) -> None:
        """Send the answer and the data."""
        self.is_waiting = False
        self._data = data
        self._data_ms = answer.wall_ms
        self._is_last = data.at_end
        self._send(answer.encode())
        self.pump()

    def drop(self, reason: str) -> None:
        """End the connection: the client has no complete backup."""
        if not self.client.closed:
            log.warning("the backup for %s ends early: %s", self.address, reason)
            self.client.close(after_reply=False)
        self._on_end(self.client)

    def refuse(self, sentence: str) -> None:
        """Answer with an error instead of data."""
        self.client.transmit(b"-" + sentence.encode() + b"\r\n")
        self.client.close(after_reply=True)
        self._on_end(self.client)

    def close(self) -> None:
        """The backup is over. The worker closes the files, after it has read what it reads now,
        because that frees the space of those that were removed meanwhile."""
        self._piece = None
        if self._data is not None:
            self._worker.submit(self._data.close)
            self._data = None

    def tick_second(self, timeout_ms: int) -> None:
        """Keep the connection alive, and end it if the client reads nothing for this time."""
        if self.is_waiting and not self.client.paused:
            self._send(b"\r\n")
        silent_ms = self._machine.steady_clock() - self.client.last_active_ms
        if self.client.output_bytes and silent_ms > timeout_ms:
            self.drop(f"it has read nothing for {timeout_ms // 1000} seconds")

    def _send(self, data: bytes) -> None:
        if not self.client.closed:
            self.sent_bytes += len(data)
            self.client.transmit(data)

    def pump(self) -> None:
        """Send as much as the connection takes; the rest when it takes more, or in a later turn."""
        begun_s = self._rests.thread_s()
        wants_more = self._send_pieces()
        self._sent_s += self._rests.thread_s() - begun_s
        if not wants_more or self._data is None or self._awaits_piece:
            return
        if self._is_last:  # now: the client may close the connection at once
            self._finish()
        else:
            self._read_more()

    def _send_pieces(self) -> bool:
        """True if the connection takes more than has been read."""
        left_bytes = _TURN_BYTES
        while not (self.client.closed or self.client.paused):
            if left_bytes <= 0:
                self._pump_later()
                break
            piece, self._piece = self._piece, None
            if piece is None:
                return True
            left_bytes -= len(piece.data)
            self._send(piece.data)
        return False

    def _pump_later(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._machine.scheduler.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pump_scheduled = False
        self.pump()

    def _read_more(self) -> None:
        self._awaits_piece = True
        rest_s = self._rests.next_s(
            self._read_s, self._sent_s, self._piece_bytes, max(1, self._count())
        )
        self._sent_s = 0.0
        if rest_s:
            self._machine.scheduler.call_later(rest_s, self._submit_read)
        else:
            self._submit_read()

    def _submit_read(self) -> None:
        if self._data is not None:
            self._worker.submit(partial(self._read, self._data))

    def _is_over(self) -> bool:
        return self.client.closed or self.client.feed is not self

    def _read(self, data: OldData) -> None:
        """On the worker."""
        begun_s = self._rests.thread_s()
        try:
            found: Piece | Exception | None = data.next()
        except Exception as error:
            found = error.with_traceback(None)  # which refers to this frame, and so to the data
        self._read_s = self._rests.thread_s() - begun_s
        post(self._machine.scheduler, self._on_read, found, data.at_end)

    def _on_read(self, found: Piece | Exception | None, is_last: bool) -> None:
        self._awaits_piece = False
        if self._is_over():
            self.close()
        elif isinstance(found, Exception):
            self.drop(in_words(found))
        else:
            self._is_last = is_last
            self._piece = found
            self._piece_bytes = 0 if found is None else len(found.data)
            self.pump()

    def _finish(self) -> None:
        seconds = (self._machine.steady_clock() - self.started_ms) / 1000
        log.info(
            "the backup for %s is sent: %d bytes in %.2f seconds",
            self.address, self.sent_bytes, seconds,
        )  # fmt: skip
        self._on_sent(self._data_ms)
        self.close()
        self.client.close(after_reply=True)
