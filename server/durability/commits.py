"""The journal of each tick: numbers the frames, and decides when replies may be sent.

This module contains the hold (`commit`, `durable_seq`). Under `appendfsync always` a reply waits
until its frame is synced; a journal that `appendonly no` has ended still holds its replies.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from millstream.errors import CommandError
from millstream.server.durability.data_files import in_words, misconf
from millstream.server.durability.directory_loader import FRAME_BYTES
from millstream.server.durability.workers import Machine, post
from millstream.server.monitor.histogram import Histogram
from millstream.storage.files import journal_writer as frames
from millstream.storage.files.disk import File
from millstream.storage.files.journal_file import JournalFile
from millstream.storage.files.journal_writer import UNBOUNDED, Journal

log = logging.getLogger("millstream.persistence")

FIRST_EFFECT_MAX = 128
TOO_LARGE = (
    "ERR the request or transaction would record more than %d bytes in the journal at once; send it"
    " in parts"
)


class Config(Protocol):
    """The directives used here; read each time, so that CONFIG SET works."""

    appendfsync: str
    journal_reserve_size: int


def unwritable(journal: Journal, error: OSError) -> str:
    """The sentence about a failed journal."""
    return f"{journal.name} cannot be written: {in_words(error)}"


class Hooks:
    """Callbacks of a persistence; set by server/wiring."""

    def __init__(self) -> None:
        # on_durable(seq): replies up to this frame may be sent.
        self.on_durable: Callable[[int], None] = lambda seq: None
        # The journal was synced; called after `on_durable` if both are due.
        self.on_synced: Callable[[], None] = lambda: None
        # on_failed(sentence): called while `durable_seq` still says which replies may be sent; it
        # then rises to `last_seq`.
        self.on_failed: Callable[[str], None] = lambda sentence: None
        # Refused writes are accepted again.
        self.on_writes_accepted: Callable[[], None] = lambda: None
        # Fewer frames may wait for the disk.
        self.on_queue: Callable[[], None] = lambda: None
        # Commit the effects of this tick so far; called before a capture.
        self.flush_tick: Callable[[], None] = lambda: None
        self.count_changes: Callable[[], int] = lambda: 0
        # on_commit(seq, payload): called for every frame, unless it is None.
        self.on_commit: Callable[[int, bytes], None] | None = None
        # The data has changed without a frame.
        self.on_gap: Callable[[], None] = lambda: None
        # first_effect(seq): an effect of at most FIRST_EFFECT_MAX bytes for the beginning of the
        # next frame; called once.
        self.first_effect: Callable[[int], bytes] | None = None


class Commits(Hooks, ABC):
    """Writes frames to the current journal. All methods are called on the loop's thread, except
    those of JournalOwner.

    `attached`: whether a start would find data written to the journal now. `frame_bytes` is the
    size of all frames so far: their payloads, and FRAME_BYTES for each. `bytes_before_line` is the
    same at the beginning of the newest line of history; -1: unknown.
    """

    def __init__(self, config: Config, machine: Machine) -> None:
        super().__init__()
        self._config = config
        self._scheduler = machine.scheduler
        self._worker = machine.new_worker("millstream-journal", 0)
        self.last_seq = 0
        self.durable_seq = 0
        self.frame_bytes = 0
        self.bytes_before_line = -1
        self.attached = False
        self.sync_times = Histogram()
        self._journal: Journal | None = None
        self._ending: list[Journal] = []  # ended by appendonly no, not completely synced yet
        self._stopped: Journal | None = None  # the journal that a stop waits for
        self._older_bytes = 0  # in the journals before the current one

    def commit(self, payload: bytes | None) -> int:
        """Record one tick's effects; return their sequence number. `durable_seq` says when to send
        replies.

        None: the effects could not be encoded. The journal then fails, like after a write error,
        because no frame may follow a missing one.
        """
        seq = self.last_seq = self.last_seq + 1
        journal = self._journal
        if payload is not None:
            if self.first_effect is not None:
                payload = self.first_effect(seq) + payload
                self.line_begins()
                self.first_effect = None
            self.frame_bytes += FRAME_BYTES + len(payload)
        if payload is None and journal is not None:
            journal.fail(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        elif (
            payload is None or journal is None or journal.append(seq, payload) or not self.attached
        ) and not self._ending:
            self.durable_seq = seq
        if payload is None:
            self.on_gap()
        elif self.on_commit is not None:
            self.on_commit(seq, payload)
        return seq

    def line_begins(self) -> None:
        """The next frame begins a line of history."""
        self.bytes_before_line = self.frame_bytes

    @property
    def on_disk_seq(self) -> int:
        """The last sequence number that is on the disk; -1 while there is no current journal."""
        journal = self._journal
        if journal is None or not self.attached or journal.error is not None:
            return -1
        return journal.synced_seq

    @property
    def synced_before_reply_seq(self) -> int:
        """The last frame that will be on the disk before a reply of this tick is sent; with
        `always`, that of the tick itself. -1 while there is no current journal."""
        on_disk = self.on_disk_seq
        is_always = on_disk >= 0 and self._journal is not None and self._journal.mode == "always"
        return self.last_seq + 1 if is_always else on_disk

    def sync_soon(self) -> None:
        """Sync the journal without waiting for the next regular sync; `on_synced` reports the
        end."""
        if self._journal is not None:
            self._journal.sync_soon()

    @property
    def queued_bytes(self) -> int:
        """Memory used by frames that wait to be written."""
        queued_bytes = sum(journal.queued_bytes for journal in self._ending)
        return queued_bytes + (self._journal.queued_bytes if self._journal is not None else 0)

    def is_queue_full(self, limit_bytes: int) -> bool:
        """True if to add no frames to the journal for now; `on_queue` reports when to check again.
        `on_queue` reports written but unsynced frames only after this method returned True."""
        journal = self._journal
        if journal is None:
            return False
        limit_bytes -= sum(other.queued_bytes for other in self._ending)
        if not journal.is_full(limit_bytes):
            return False
        journal.tell_written = True
        return journal.is_full(limit_bytes)  # checked again: the worker may have missed the flag

    def make_room(self, payload_bytes: int) -> int:
        """Ensure space in the journal for a tick's effects of this size; return the maximum size.
        CommandError when no frame can be that large, and, with the text of `writable_error`, when
        the disk is full."""
        if self._journal is None:
            return UNBOUNDED
        first_bytes = 0 if self.first_effect is None else FIRST_EFFECT_MAX
        if payload_bytes + first_bytes > frames.PAYLOAD_MAX:
            raise CommandError(TOO_LARGE % frames.PAYLOAD_MAX)
        try:
            return self._journal.make_room(payload_bytes + first_bytes) - first_bytes
        except OSError as error:
            raise CommandError(misconf(error).decode()) from error

    def set_fsync(self, mode: str) -> None:
        """CONFIG SET appendfsync. It applies from the next frame on; the loop does not wait."""
        journal = self._journal
        if journal is None:
            return
        journal.set_mode(mode)
        if self.attached and journal.error is None:
            if mode != "always":
                self.durable_seq = max(self.durable_seq, journal.written_seq)
            else:  # earlier data is shown again when it is durable
                self.durable_seq = min(self.durable_seq, journal.synced_seq)
            self.on_durable(self.durable_seq)
        self.on_queue()

    # The current journal

    def switch_journal(self, opened: JournalFile) -> None:
        if self._journal is not None:
            self._older_bytes += self._journal.size_bytes
            self._journal.rotate(opened)
        else:
            self._journal = self._new_journal(opened)

    def _new_journal(self, opened: JournalFile) -> Journal:
        journal = Journal(
            opened,
            self.last_seq + 1,
            self._config.appendfsync,
            self._worker,
            self,
            self._config.journal_reserve_size,
        )
        journal.sync_file = self._sync_timed
        journal.request_space()
        return journal

    def _sync_timed(self, file: File) -> None:
        """Sync a journal, on the worker's thread."""
        begun_ns = time.perf_counter_ns()
        file.sync()
        self.sync_times.add(time.perf_counter_ns() - begun_ns)

    def _drop_journal(self) -> None:
        """Continue without a journal: no reply waits any more."""
        if self._journal is not None:
            if self.attached:
                self._older_bytes += self._journal.size_bytes
            self._journal.abandon()
        self._journal = None
        self.attached = False
        self._raise_durable()
        self.on_queue()

    def _end_journal(self) -> None:
        """Continue without a journal. Replies that wait for this one are released when it is
        synced."""
        journal, self._journal = self._journal, None
        attached, self.attached = self.attached, False
        if journal is not None:
            self._older_bytes += journal.size_bytes
            if attached:
                self._ending.append(journal)
            journal.end()
        self.on_queue()

    def _all_journals(self) -> list[Journal]:
        now = self._journal or self._stopped
        return [*self._ending, *([now] if now is not None else [])]

    # Callbacks of a journal, from any thread; they are posted to the loop.

    def journal_synced(self, journal: Journal, seq: int) -> None:
        post(self._scheduler, self._journal_was_synced, journal, seq)

    def journal_failed(self, journal: Journal, error: OSError) -> None:
        post(self._scheduler, self._on_journal_failed, journal, error)

    def journal_written(self, journal: Journal, seq: int) -> None:
        post(self._scheduler, self._on_written, journal, seq)

    def journal_space(self, journal: Journal, error: OSError | None) -> None:
        post(self._scheduler, self._on_space, journal, error)

    @abstractmethod
    def _on_journal_failed(self, journal: Journal, error: OSError) -> None:
        """A journal has failed, possibly one that is not current any more."""

    @abstractmethod
    def _on_space(self, journal: Journal, error: OSError | None) -> None:
        """Space for a journal could not be reserved, or can be again (None)."""

    # Replies

    def _journal_was_synced(self, journal: Journal, seq: int) -> None:
        if journal is self._journal and self.attached and seq > self.durable_seq:
            self.durable_seq = seq
            self.on_durable(seq)
        elif journal in self._ending:
            self._on_ending_synced(journal, seq)
        self.on_synced()
        self.on_queue()

    def _on_written(self, journal: Journal, seq: int) -> None:
        """Under everysec and no: the worker has written frames from before the change of modes."""
        if journal is self._journal and self.attached and journal.mode != "always":
            self.durable_seq = max(self.durable_seq, seq)
            self.on_durable(self.durable_seq)
        self.on_queue()

    def _on_ending_synced(self, journal: Journal, seq: int) -> None:
        """Release the replies that wait for a journal that appendonly no has ended."""
        self.durable_seq = max(self.durable_seq, seq)
        self.on_durable(seq)
        if seq == journal.last_seq:
            self._ending.remove(journal)
            self._catch_up()

    def _on_ending_failed(self, journal: Journal, sentence: str) -> None:
        self._ending.remove(journal)
        log.error("%s", sentence)
        self.on_failed(sentence)
        self._catch_up()
        self.on_queue()

    def _catch_up(self) -> None:
        """A journal that appendonly no has ended is complete: release the replies that waited only
        for it."""
        journal = self._journal
        if journal is None or not self.attached:
            self._raise_durable()
        elif not self._ending:
            reached = journal.synced_seq if journal.mode == "always" else journal.written_seq
            self.durable_seq = max(self.durable_seq, reached)
            self.on_durable(self.durable_seq)

    def _raise_durable(self) -> None:
        """Release all replies, except those that wait for a journal that appendonly no has
        ended."""
        if self.durable_seq < self.last_seq and not self._ending:
            self.durable_seq = self.last_seq
            self.on_durable(self.last_seq)

    def _finish_ending(self) -> bool:
        """Release the replies that wait for ended journals, because the loop will not run the
        worker's callbacks any more. False if one of these journals is not completely on the
        disk."""
        failed = False
        for journal in list(self._ending):
            if journal.error is None:
                self._on_ending_synced(journal, journal.last_seq)
            else:
                failed = True
                self._on_ending_failed(journal, unwritable(journal, journal.error))
        return not failed
