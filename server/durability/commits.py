"""The journal of each tick: numbers the frames, and decides when replies may be sent.

This module contains the hold (`commit`, `durable_seq`). Under `appendfsync always` a reply waits
until its frame is synced; a journal that `appendonly no` has ended still holds its replies.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from millstream.commands.runtime.effects import changes_only_groups
from millstream.errors import CommandError
from millstream.server.durability.data_files import in_words, misconf
from millstream.server.durability.directory_loader import FRAME_BYTES, Loader
from millstream.server.durability.workers import Machine, TaskWorker, post
from millstream.server.monitor.histogram import Histogram
from millstream.server.protocol.outbox import FrameNumbers
from millstream.storage.files import journal_writer as frames
from millstream.storage.files.disk import File
from millstream.storage.files.frame_times import TIME_BYTES_MAX, encode_time
from millstream.storage.files.journal_file import JournalFile
from millstream.storage.files.journal_writer import UNBOUNDED, Journal

log = logging.getLogger("millstream.persistence")

FIRST_EFFECT_MAX = 128
TOO_LARGE = (
    "ERR the request or transaction would record more than %d bytes in the journal at once; send it"
    " in parts"
)


if TYPE_CHECKING:

    class Config(Protocol):
        """The directives used here; read each time, so that CONFIG SET works."""

        appendfsync: str
        appendfsync_groups: str
        journal_reserve_size: int


def unwritable(journal: Journal, error: OSError) -> str:
    """The sentence about a failed journal."""
    return f"{journal.name} cannot be written: {in_words(error)}"


if TYPE_CHECKING:

    class Replies(Protocol):
        """The holder of replies: the outbox."""

        def durable(self, seq: int) -> None:
            """Replies up to this frame may be sent."""

    class Listener(Protocol):
        """The source of the journal's effects, which it notifies: the executor."""

        def changes(self) -> int:
            """The number of changes so far."""

        def journal_failed(self) -> None:
            """Called while `durable_seq` still says which replies may be sent; it then rises to
            `last_seq`."""

        def check_due(self) -> None:
            """Refused writes are accepted again."""

        def on_queue(self) -> None:
            """Fewer frames may wait for the disk."""

        def flush_tick(self) -> None:
            """Commit the effects of this tick so far."""

    class FrameListener(Protocol):
        """The receiver of reports about frames: replication."""

        def durable(self, seq: int) -> None:
            """Called after the replies up to this frame were sent."""

        def synced(self) -> None:
            """The journal was synced; called after `durable` if both are due."""

        def data_changed(self) -> None:
            """The data has changed without a frame."""

    class JournalRecovery(Protocol):
        """Handles the failures of journals: the persistence."""

        def journal_failed(self, journal: Journal, error: OSError) -> None:
            """A journal has failed, possibly one that is not current any more."""

        def space_changed(self, journal: Journal, error: OSError | None) -> None:
            """Space for a journal could not be reserved, or can be again (None)."""


class Unheard:
    """The listener before the executor is built."""

    def durable(self, seq: int) -> None: ...

    def changes(self) -> int:
        return 0

    def journal_failed(self) -> None: ...
    def check_due(self) -> None: ...
    def on_queue(self) -> None: ...
    def flush_tick(self) -> None: ...


Keep = Callable[[int, bytes], None]
NEVER_NS = 2**63 - 1  # longer than any sync


class Commits(FrameNumbers):
    """Writes frames to the current journal. All methods are called on the loop's thread, except
    those of JournalOwner.

    `attached`: whether a start would find data written to the journal now. `frame_bytes` is the
    size of all frames so far: their payloads, and FRAME_BYTES for each. `bytes_before_line` is the
    same at the beginning of the newest line of history; -1: unknown. `first_effect(seq)`,
    unless it is None, returns an effect of at most FIRST_EFFECT_MAX bytes for the beginning of the
    next frame; it is called once.
    `note_slow_sync(milliseconds)` is called for a sync under `appendfsync always` that took at
    least `slow_sync_ns`.
    """

    def __init__(
        self, config: Config, machine: Machine, worker: TaskWorker, recovery: JournalRecovery
    ) -> None:
        self.last_seq = 0
        self.durable_seq = 0
        self.frame_bytes = 0
        self.bytes_before_line = -1
        self.attached = False
        # Whether frames that change only groups need not be synced before their replies.
        self.frees_groups = config.appendfsync_groups == "everysec"
        self.sync_times = Histogram()
        self.slow_sync_ns = NEVER_NS
        self.note_slow_sync: Callable[[int], object] = lambda milliseconds: None
        self._leaves_space = False
        self.first_effect: Callable[[int], bytes] | None = None
        self.journal: Journal | None = None
        self.older_bytes = 0  # in the journals before the current one
        unheard = Unheard()
        self.listener: Listener = unheard
        self._replies: Replies = unheard
        self._config = config
        self._clock = machine.clock
        self._timed_s = -1  # the last time in the journal; -1: the next frame gets one
        self._scheduler = machine.scheduler
        self._worker = worker
        self._recovery = recovery
        self._followers: list[FrameListener] = []
        self._keepers: dict[str, Keep] = {}
        self._keep_frame: Keep | None = None
        self._ending: list[Journal] = []  # ended by appendonly no, not completely synced yet
        self._stopped: Journal | None = None  # the journal that a stop waits for

    def listen(self, replies: Replies, listener: Listener) -> None:
        """Tell the outbox and the executor from now on."""
        self._replies, self.listener = replies, listener

    def follow(self, follower: FrameListener) -> None:
        """Tell replication from now on, after the executor."""
        self._followers.append(follower)

    def keep_frames(self, keep: Keep | None, keeper: str = "replicas") -> None:
        """Call `keep(seq, payload)` for every frame from now on, in place of an earlier function of
        this keeper; None: for none."""
        self._keepers.pop(keeper, None)
        if keep is not None:
            self._keepers[keeper] = keep
        all_keepers = tuple(self._keepers.values())

        def keep_all(seq: int, payload: bytes) -> None:
            for one in all_keepers:
                one(seq, payload)

        self._keep_frame = keep_all if len(all_keepers) > 1 else next(iter(all_keepers), None)

    def flush_tick(self) -> None:
        """Commit the effects of this tick so far."""
        self.listener.flush_tick()

    def _tell_durable(self, seq: int) -> None:
        self._replies.durable(seq)
        for follower in self._followers:
            follower.durable(seq)

    def tell_synced(self) -> None:
        for follower in self._followers:
            follower.synced()

    def commit(self, payload: bytes | None) -> int:
        """Record one tick's effects; return their sequence number. `durable_seq` says when to send
        replies.

        None: the effects could not be encoded. The journal then fails, like after a write error,
        because no frame may follow a missing one.
        """
        must_sync = True
        if payload is not None:
            must_sync = not (self.frees_groups and changes_only_groups(payload))
            now_s = self._clock() // 1000
            if now_s != self._timed_s:
                self._timed_s = now_s
                payload = encode_time(now_s) + payload
        return self._record(payload, must_sync)

    def commit_received(self, payload: bytes) -> int:
        """Record a frame of the primary, with the same effects. It is always synced before this
        server says that it has it, because replies of the primary may wait for that."""
        self._timed_s = -1
        return self._record(payload)

    def _record(self, payload: bytes | None, must_sync: bool = True) -> int:
        seq = self.last_seq = self.last_seq + 1
        journal = self.journal
        if payload is not None:
            if self.first_effect is not None:
                payload = self.first_effect(seq) + payload
                must_sync = True
                self.line_begins()
                self.first_effect = None
            self.frame_bytes += FRAME_BYTES + len(payload)
        if payload is None:
            if journal is not None:
                journal.fail(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
            is_durable = journal is None
        else:
            is_written = journal is None or journal.append(seq, payload, must_sync)
            is_durable = is_written or not self.attached
        if is_durable and not self._ending:
            self.durable_seq = seq
        if payload is None:
            for follower in self._followers:
                follower.data_changed()
        elif self._keep_frame is not None:
            self._keep_frame(seq, payload)
        return seq

    def line_begins(self) -> None:
        """The next frame begins a line of history."""
        self.bytes_before_line = self.frame_bytes

    @property
    def on_disk_seq(self) -> int:
        """The last sequence number that is on the disk; -1 while there is no current journal."""
        journal = self.journal
        if journal is None or not self.attached or journal.error is not None:
            return -1
        return journal.synced_seq

    @property
    def synced_before_reply_seq(self) -> int:
        """The last frame that will be on the disk before a reply of this tick is sent; with
        `always`, that of the tick itself. -1 while there is no current journal."""
        on_disk = self.on_disk_seq
        journal = self.journal
        if on_disk < 0 or journal is None or journal.mode != "always" or self.frees_groups:
            return on_disk
        return self.last_seq + 1

    def sync_soon(self) -> None:
        """Sync the journal without waiting for the next regular sync; `on_synced` reports the
        end."""
        if self.journal is not None:
            self.journal.sync_soon()

    @property
    def queued_bytes(self) -> int:
        """Memory used by frames that wait to be written."""
        queued_bytes = 0 if self.journal is None else self.journal.queued_bytes
        for journal in self._ending:
            queued_bytes += journal.queued_bytes
        return queued_bytes

    def is_queue_full(self, limit_bytes: int) -> bool:
        """True if the journal takes no frames for now; `on_queue` reports when to check again.
        `on_queue` reports written but unsynced frames only after this method returned True."""
        journal = self.journal
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
        if self.journal is None:
            return UNBOUNDED
        return self._room(self.journal.make_room, payload_bytes)

    def make_last_room(self, payload_bytes: int) -> int:
        """The same for commands that only remove, which may use the last space."""
        if self.journal is None:
            return UNBOUNDED
        return self._room(self.journal.make_last_room, payload_bytes)

    def _room(self, make: Callable[[int], int], payload_bytes: int) -> int:
        added_bytes = TIME_BYTES_MAX + (0 if self.first_effect is None else FIRST_EFFECT_MAX)
        if payload_bytes + added_bytes > frames.PAYLOAD_MAX:
            raise CommandError(TOO_LARGE % frames.PAYLOAD_MAX)
        try:
            return make(payload_bytes + added_bytes) - added_bytes
        except OSError as error:
            raise CommandError(misconf(error).decode()) from error

    def leave_space(self, leaves: bool) -> None:
        """While `leaves`, the journal reserves no space in advance: a base needs it."""
        self._leaves_space = leaves
        if self.journal is not None:
            self.journal.leaves_space = leaves
            if not leaves:
                self.journal.request_space()

    def set_fsync(self, mode: str) -> None:
        """CONFIG SET appendfsync. It applies from the next frame on; the loop does not wait."""
        journal = self.journal
        if journal is None:
            return
        journal.set_mode(mode)
        if self.attached and journal.error is None:
            if mode != "always":
                self.durable_seq = max(self.durable_seq, journal.written_seq)
            else:  # earlier data is shown again when it is durable
                self.durable_seq = min(self.durable_seq, journal.synced_seq)
            self._tell_durable(self.durable_seq)
        self.listener.on_queue()

    def set_group_fsync(self, mode: str) -> None:
        """CONFIG SET appendfsync-groups. After a change to `always`, replies wait for the earlier
        frames of groups, too."""
        was_free, self.frees_groups = self.frees_groups, mode == "everysec"
        journal = self.journal
        if was_free and mode == "always" and journal is not None and journal.mode == "always":
            journal.sync_soon()
            if self.attached and journal.error is None:
                self.durable_seq = min(self.durable_seq, journal.synced_seq)

    # The current journal

    def switch_journal(self, opened: JournalFile) -> None:
        self._timed_s = -1
        if self.journal is not None:
            self.older_bytes += self.journal.size_bytes
            self.journal.rotate(opened)
        else:
            self.journal = self._new_journal(opened)

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
        journal.leaves_space = self._leaves_space
        journal.request_space()
        return journal

    def _sync_timed(self, file: File) -> None:
        """Sync a journal, on the worker's thread."""
        begun_ns = time.perf_counter_ns()
        file.sync()
        taken_ns = time.perf_counter_ns() - begun_ns
        self.sync_times.add(taken_ns)
        if taken_ns >= self.slow_sync_ns and self._config.appendfsync == "always":
            post(self._scheduler, self.note_slow_sync, taken_ns // 1_000_000)

    def ended_failed(self, journal: Journal, sentence: str) -> None:
        """Handle the failure of a journal that appendonly no has ended, if it is one."""
        if journal in self._ending:
            self._on_ending_failed(journal, sentence)

    @property
    def works(self) -> bool:
        """True if frames go to a current journal that has not failed."""
        return self.attached and self.journal is not None and not self.journal.error

    def attach(self) -> None:
        """The base of the current journal is written."""
        assert self.journal is not None
        self.attached = True
        self.journal.sync_soon()  # commands that wait for a sync may have waited for a journal
        self._scheduler.call_soon_threadsafe(self.tell_synced)

    def continue_at(self, opened: JournalFile | None, seq: int, older_bytes: int) -> None:
        """Continue after frame `seq`, in this journal; None: without one. `older_bytes` is the size
        of the journals before it."""
        self.last_seq = self.durable_seq = seq
        self.older_bytes = older_bytes
        self.attached = opened is not None
        if opened is not None:
            self.journal = self._new_journal(opened)

    def abandon_journal(self) -> None:
        """Write nothing more to the journal, all frames of which are on the disk."""
        journal, self.journal = self.journal, None
        self.attached = False
        if journal is not None:
            journal.abandon()

    def take_sizes(self, loader: Loader) -> None:
        """Continue the sizes that the loaded files have."""
        self.frame_bytes, self.bytes_before_line = loader.frame_bytes, loader.bytes_before_line

    def current_bytes(self) -> int:
        """Bytes of the journals after the base."""
        return self.older_bytes + (self.journal.size_bytes if self.journal is not None else 0)

    def stop_journal(
        self, tell_waiting: Callable[[float], None], note_failed: Callable[[Journal, int], None]
    ) -> bool:
        """Write and sync all recorded effects; False when that fails or there is no current
        journal."""
        journal, self.journal = self.journal, None
        self._stopped = journal or self._stopped
        attached, self.attached = self.attached, False
        if journal is None:
            return False
        self.older_bytes += journal.size_bytes
        synced = True
        try:
            journal.close(tell_waiting)
        except OSError as error:
            synced = False
            if attached:
                note_failed(journal, self.last_seq)
                log.error("%s", unwritable(journal, error))
                self.listener.journal_failed()
        self._raise_durable()
        self.listener.on_queue()
        return attached and synced

    def drop_journal(self) -> None:
        """Continue without a journal: no reply waits any more."""
        if self.journal is not None:
            if self.attached:
                self.older_bytes += self.journal.size_bytes
            self.journal.abandon()
        self.journal = None
        self.attached = False
        self._raise_durable()
        self.listener.on_queue()

    def end_journal(self) -> None:
        """Continue without a journal. Replies that wait for this one are released when it is
        synced."""
        journal, self.journal = self.journal, None
        attached, self.attached = self.attached, False
        if journal is not None:
            self.older_bytes += journal.size_bytes
            if attached:
                self._ending.append(journal)
            journal.end()
        self.listener.on_queue()

    def all_journals(self) -> list[Journal]:
        now = self.journal or self._stopped
        return [*self._ending, *([now] if now is not None else [])]

    # Callbacks of a journal, from any thread; they are posted to the loop.

    def journal_synced(self, journal: Journal, seq: int) -> None:
        post(self._scheduler, self._journal_was_synced, journal, seq)

    def journal_failed(self, journal: Journal, error: OSError) -> None:
        post(self._scheduler, self._recovery.journal_failed, journal, error)

    def journal_written(self, journal: Journal, seq: int) -> None:
        post(self._scheduler, self._on_written, journal, seq)

    def journal_released(self, journal: Journal, seq: int) -> None:
        post(self._scheduler, self._on_released, journal, seq)

    def journal_space(self, journal: Journal, error: OSError | None) -> None:
        post(self._scheduler, self._recovery.space_changed, journal, error)

    # Replies

    def _journal_was_synced(self, journal: Journal, seq: int) -> None:
        if journal is self.journal and self.attached and seq > self.durable_seq:
            self.durable_seq = seq
            self._tell_durable(seq)
        elif journal in self._ending:
            self._on_ending_synced(journal, seq)
        self.tell_synced()
        self.listener.on_queue()

    def _on_written(self, journal: Journal, seq: int) -> None:
        """Under everysec and no: the worker has written frames from before the change of modes."""
        if journal is self.journal and self.attached and journal.mode != "always":
            self.durable_seq = max(self.durable_seq, seq)
            self._tell_durable(self.durable_seq)
        self.listener.on_queue()

    def _on_released(self, journal: Journal, seq: int) -> None:
        """Frames that need not be synced are written, and the earlier ones are synced."""
        is_current = journal is self.journal and self.attached and self.frees_groups
        if is_current and seq > self.durable_seq:
            self.durable_seq = seq
            self._tell_durable(seq)
        self.listener.on_queue()

    def _on_ending_synced(self, journal: Journal, seq: int) -> None:
        """Release the replies that wait for a journal that appendonly no has ended."""
        self.durable_seq = max(self.durable_seq, seq)
        self._tell_durable(seq)
        if seq == journal.last_seq:
            self._ending.remove(journal)
            self._catch_up()

    def _on_ending_failed(self, journal: Journal, sentence: str) -> None:
        self._ending.remove(journal)
        log.error("%s", sentence)
        self.listener.journal_failed()
        self._catch_up()
        self.listener.on_queue()

    def _catch_up(self) -> None:
        """A journal that appendonly no has ended is complete: release the replies that waited only
        for it."""
        journal = self.journal
        if journal is None or not self.attached:
            self._raise_durable()
        elif not self._ending:
            reached = journal.synced_seq if journal.mode == "always" else journal.written_seq
            self.durable_seq = max(self.durable_seq, reached)
            self._tell_durable(self.durable_seq)

    def _raise_durable(self) -> None:
        """Release all replies, except those that wait for a journal that appendonly no has
        ended."""
        if self.durable_seq < self.last_seq and not self._ending:
            self.durable_seq = self.last_seq
            self._tell_durable(self.last_seq)

    def finish_ending(self) -> bool:
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
