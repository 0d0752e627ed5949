"""Persistence: the journal and the snapshots of one server, from load to close.

`commits` writes the journal and says when replies may be sent. This module contains the recovery
from a failed journal: it is abandoned, and all data is written to a new base and journal.
`snapshots` writes these, `data_files` manages the current files, `data_loading` reads them.

The event loop waits for the disk only in these cases: SAVE (also for SHUTDOWN and DEBUG RELOAD) and
`finish` before it, loading, and `close`; when the directory is locked again after all files were
removed; when a large frame does not fit into the reserved space of the journal; and in the small
write(2) of `appendfsync everysec` and `no`. Workers are passed in, so a test can run every step by
hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from millstream.errors import CommandError, DataError
from millstream.server.durability import commits, snapshots
from millstream.server.durability.commits import Commits, unwritable
from millstream.server.durability.data_file_watch import DataFileWatch
from millstream.server.durability.data_files import DataFiles, in_words, misconf
from millstream.server.durability.data_loading import DataLoading, without_collections
from millstream.server.durability.directory_loader import Loader, LoadReport, Progress, Restorable
from millstream.server.durability.full_disk import FullDisk
from millstream.server.durability.refusal import Refusal
from millstream.server.durability.snapshots import Capturable, Snapshots
from millstream.server.durability.unsynced import UnsyncedFrames
from millstream.server.durability.workers import Machine, post
from millstream.storage.files.journal_file import RESERVE_LEAST, JournalFile
from millstream.storage.files.journal_writer import Journal

if TYPE_CHECKING:
    from millstream.storage.files.snapshot_format import BlockType

log = logging.getLogger("millstream.persistence")

_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 60.0
# If both share a processor, a command would otherwise wait for the writer's time slice, 3 ms.
_SNAPSHOT_NICENESS = 10


if TYPE_CHECKING:

    class Config(snapshots.Config, commits.Config, Protocol):
        """The directives used here; read each time, so that CONFIG SET works."""

        appendonly: bool
        aof_load_truncated: bool

    class KeyspaceLike(Restorable, Capturable, Protocol):
        """The part of a keyspace that is saved and loaded."""


class Persistence:
    """See the module's docstring. All methods are called on the loop's thread.

    `base_seq` is the last frame in the base.
    """

    def __init__(
        self,
        config: Config,
        machine: Machine,
        keyspace: KeyspaceLike,
        apply_effects: Callable[[bytes], int],
        block_type: BlockType[Any],
    ) -> None:
        """`block_type` is the class Block."""
        self._config: Config = config
        self._scheduler = machine.scheduler
        self._worker = machine.new_worker("millstream-journal", 0)
        self.commits = Commits(config, machine, self._worker, self)
        self._disk = machine.disk
        self._machine = machine
        self.appendonly = config.appendonly
        self.closing = False
        self.files = DataFiles(machine.disk)
        snapshot_worker = machine.new_worker("millstream-snapshot", _SNAPSHOT_NICENESS)
        self.full_disk = FullDisk(config, machine.disk, machine.steady_clock)
        self.snapshots = Snapshots(
            config, self.files, keyspace, self, machine, snapshot_worker, self.full_disk
        )
        self.refusal = Refusal(self.snapshots.refuses_writes, self._tell_writable)
        self.unsynced = UnsyncedFrames(config, self.commits.all_journals, machine.clock)
        self._watch = DataFileWatch(
            self.files,
            self.refusal,
            machine.scheduler,
            self._worker,
            is_attached=lambda: self.commits.attached,
            is_replacing=lambda: self.snapshots.job is not None,
        )
        self.base_bytes = 0
        self.base_seq = 0
        self._retry_s = _RETRY_FIRST_S
        self._retry_set = False
        self.data_loading = DataLoading(
            machine, lambda: Loader(machine.disk, keyspace, apply_effects, block_type)
        )

    def start_workers(self) -> None:
        """Start the threads that a stop and a snapshot need, while that is possible."""
        self._worker.start()
        self.snapshots.worker.start()

    # -------------------------------------------------------------------------- refused writes

    def writable_error(self) -> bytes | None:
        """The MISCONF error while write commands are refused, else None."""
        return self.refusal.error

    def may_remove(self) -> bool:
        """True if commands that only remove may run while writes are refused."""
        return self.refusal.allows_removals

    def _tell_writable(self) -> None:
        self._scheduler.call_soon_threadsafe(self.commits.listener.check_due)

    def space_changed(self, journal: Journal, error: OSError | None) -> None:
        """Space for a journal could not be reserved, or can be again (None)."""
        if journal is not self.commits.journal:
            return
        if error is None and self.refusal.space is not None:
            log.warning("%s: space can be reserved again, writes are accepted", journal.name)
        elif error is not None and self.refusal.space is None:
            wanted_bytes = self._config.journal_reserve_size
            log.error(
                "%s: not even %d bytes of journal-reserve-size %d could be reserved: %s;"
                " writes are refused until there is space, except commands that only remove",
                journal.name,
                min(wanted_bytes, RESERVE_LEAST),
                wanted_bytes,
                in_words(error),
            )
        self.refusal.space = None if error is None else misconf(error)
        self.refusal.update()

    # ---------------------------------------------------------------------------------- recovery

    def journal_failed(self, journal: Journal, error: OSError) -> None:
        """A journal has failed, possibly one that is not current any more."""
        commits, sentence = self.commits, unwritable(journal, error)
        commits.ended_failed(journal, sentence)
        if journal is not commits.journal:
            return
        log.error("%s; writes are refused until a new journal works", sentence)
        self.refusal.journal = misconf(error)
        self.refusal.space = None
        self.refusal.update()
        if commits.attached:
            self.unsynced.note_failed(journal, commits.last_seq)
            commits.listener.journal_failed()
        commits.drop_journal()
        self.snapshots.cancel()
        self._retry_later()

    def _retry_later(self) -> None:
        if not self._retry_set and not self.closing:
            self._retry_set = True
            self._scheduler.call_later(self._retry_s, self._retry)
            self._retry_s = min(self._retry_s * 2, _RETRY_MAX_S)

    def _retry(self) -> None:
        self._retry_set = False
        if self.closing or self.commits.attached or not self.appendonly:
            return
        if self.snapshots.job is not None or self.snapshots.suspended:
            self._retry_later()
        else:
            self.snapshots.start("rewrite")

    # --------------------------------------------------------------------------------- snapshots

    # The interface for snapshots (JournalKeeper).

    def lacks_space(self) -> bool:
        """True if a full disk causes writes to be refused, now or soon; from any thread."""
        journal = self.commits.journal
        return self.refusal.space is not None or (journal is not None and journal.is_short())

    def begins_snapshot(self) -> bool:
        self.commits.flush_tick()
        return self.commits.journal is None or self.commits.journal.error is None

    def snapshot_succeeded(self, size_bytes: int, seq: int) -> None:
        if self.refusal.lost is not None:
            self.files.lock_again()
        commits = self.commits
        commits.older_bytes = 0
        self.base_bytes = size_bytes
        self.base_seq = seq
        if commits.journal is not None and not commits.attached:
            self.refusal.journal = None
            self.unsynced.forget_failed()
            self._retry_s = _RETRY_FIRST_S
            log.warning("the journal works: writes are recorded in %s", commits.journal.name)
            commits.attach()
        self.refusal.update()

    def end_writing(self, then: Callable[[], None]) -> None:
        """Write nothing more to the journal, all frames of which are on the disk: the files are
        about to be changed and loaded again. `then()` is called when it is closed."""
        self.data_loading.is_running = True
        self.commits.abandon_journal()
        self._worker.submit(lambda: post(self._scheduler, then))

    def journal_was_lost(self, error: Exception) -> None:
        """Handle files that could not be changed after `end_writing` as a failed journal: the data
        in memory is written to a new base."""
        self.data_loading.is_running = False
        log.error("the journal cannot be continued: %s; writes are refused", in_words(error))
        self.refusal.journal = misconf(error)
        self.refusal.update()
        self._retry_later()

    def take_over(self, opened: JournalFile | None, seq: int, older_bytes: int = 0) -> None:
        """Continue with other files, which end with frame `seq` and are published already. `opened`
        is the last journal, None without one, `older_bytes` the size of those before it. Without
        appendonly it gets no more frames. Frames of the old journal do not count any more."""
        self.commits.abandon_journal()
        if opened is not None and not self.appendonly:
            older_bytes += opened.file.size
            self._worker.submit(opened.file.close)
            opened = None
        self.refusal.journal = self.refusal.space = None
        self.unsynced.forget_failed()
        self.commits.continue_at(opened, seq, older_bytes)
        self.refusal.update()
        self.commits.listener.on_queue()

    def snapshot_failed(self, error: BaseException | None) -> None:
        if self.appendonly and not self.commits.attached:
            # The new journal is useless without its base: begin again with another one.
            if self.refusal.journal is None and error is not None:
                self.refusal.journal = misconf(error)
            self.commits.drop_journal()
            self._retry_later()
        self.refusal.update()

    # ------------------------------------------------------------------------- once a second, etc.

    def tick_second(self, changes: int) -> None:
        """Once a second: sync, and start a rewrite or a save when it is due.

        `changes` is the keyspace's change counter.
        """
        if self.refusal.error is not None and self.refusal.allows_removals:
            self.snapshots.start_if_freed()
        if self.commits.journal is not None:
            self.commits.journal.tick_second()
        self._watch.check()
        self.snapshots.start_if_due(changes, self.current_bytes(), self.base_bytes)

    def current_bytes(self) -> int:
        """Bytes of the base and of the journals after it."""
        return self.base_bytes + self.commits.current_bytes()

    def set_appendonly(self, wanted: bool) -> None:
        """CONFIG SET appendonly. On: a journal becomes current when its base is written."""
        if wanted == self.appendonly or self.closing or self.loading:
            return  # while data is loaded: this is called again afterwards
        if not wanted:
            # The journal must have all effects from the time when it was on.
            self.commits.flush_tick()
        self.appendonly = wanted
        self.snapshots.cancel()
        if not wanted:
            log.warning(
                "appendonly is off: data written from now on is lost with the process unless a"
                " snapshot has it"
            )
            self.snapshots.scheduled = None
            self.commits.end_journal()
            self.refusal.clear()
        elif self.snapshots.suspended:  # the data is being replaced, perhaps with a journal
            self._retry_later()
        elif self.snapshots.job is None:
            self.snapshots.start("rewrite")
        else:
            self.snapshots.scheduled = "rewrite"

    def _stop_journal(self) -> bool:
        return self.commits.stop_journal(self.unsynced.tell_waiting, self.unsynced.note_failed)

    @property
    def lacks_base(self) -> bool:
        """True if a start would not find all data: the journal has failed and no new base is
        written yet, or the files were removed."""
        return (
            self.appendonly
            and not self.loading
            and (not self.commits.attached or self.refusal.lost is not None)
        )

    def write_base(self) -> None:
        """Write the data that the journal cannot record to a new base, synchronously. CommandError
        when that fails."""
        self.snapshots.finish()
        if self.lacks_base:
            self.snapshots.save()
            self.refusal.lost = None
            self.refusal.update()

    def close(self, *, tries_base: bool = True) -> bool:
        """Stop: cancel the running snapshot, sync the journal, unlock the directory.

        If the journal has failed, or fails now, one attempt is made to write a new base (unless
        `tries_base` is False). Returns False when some data is not on the disk; the log says which.
        """
        if self.closing:
            return True
        self.commits.flush_tick()
        keeps = self.appendonly and not self.loading
        saved = not (keeps and self.lacks_base) or (tries_base and self._write_last_base())
        self.closing = True
        self.snapshots.close(self.unsynced.tell_waiting)
        if not self._stop_journal() and keeps and saved:  # the journal has just failed
            saved = tries_base and self._write_last_base()
            self.snapshots.close(self.unsynced.tell_waiting)
            self._stop_journal()
        if keeps and not saved:
            self.unsynced.tell_unsaved()
        self._worker.drain(self.unsynced.tell_waiting)
        ended = self.commits.finish_ending()
        self._worker.stop()
        self._disk.unlock()
        return saved and ended

    def _write_last_base(self) -> bool:
        try:
            self.write_base()
        except CommandError as error:
            log.error("the last attempt to save the data failed: %s", error.message[4:])
        self._worker.drain()
        return not self.lacks_base

    # ------------------------------------------------------------------------------------- loading

    @property
    def loading(self) -> bool:
        """True if the data in memory is incomplete, because it is being loaded."""
        return self.data_loading.is_running

    def load(self, progress: Progress | None = None) -> LoadReport:
        """Read the directory into the keyspace and begin to write. DataError when it cannot be
        trusted.

        `progress(bytes_done, bytes_total)` is called about once per MiB.
        """
        report = LoadReport()
        with without_collections():
            for _ in self.load_slices(report, progress):
                pass
        return report

    def load_slices(
        self, report: LoadReport, progress: Progress | None = None
    ) -> Generator[None, None, None]:
        """`load` as an iterator: a server can serve clients between two steps. The first step locks
        the directory and reads the manifest. If the iterator is closed before its end, the files
        are not changed."""
        return self.data_loading.start(self.files, report, progress, self._after_frames)

    def _after_frames(self, loader: Loader, report: LoadReport) -> None:
        files = self.files
        if files.manifest.base is not None:
            self.snapshots.last_save_s = loader.created_ms // 1000
            self.base_bytes = loader.base_bytes
            self.base_seq = loader.base_seq
        last_seq = loader.next_seq - 1
        self.commits.take_sizes(loader)
        if loader.torn is not None:
            if not self._config.aof_load_truncated:
                raise files.refusal_of(loader.torn, last_seq)
            files.cut(loader.torn, report, last_seq)
        if not self.appendonly and files.manifest.journals:
            report.notes.append(
                "appendonly is off: the journal was loaded but new changes are not added to it"
            )
        opened = files.continued_journal() if self.appendonly else None
        self.full_disk.hold()  # before the journal reserves space
        journals = files.manifest.journals
        older_bytes = files.sizes_of(journals if opened is None else journals[:-1])
        self.commits.continue_at(opened, last_seq, older_bytes)

    def begin_reading(self) -> Loader:
        """A loader for the current files, which fills the running keyspace."""
        return self.data_loading.begin()

    def end_reading(self) -> None:
        """The loader has read all frames."""
        loader = self.data_loading.loader
        self.data_loading.is_running = False
        self.base_bytes, self.base_seq = loader.base_bytes, loader.base_seq
        self.commits.take_sizes(loader)
        self.set_appendonly(self._config.appendonly)  # it may have changed meanwhile

    def read_again(self, empty: Callable[[], None]) -> LoadReport:
        """Load the data on the disk into the running keyspace, which `empty()` clears first.

        A running snapshot or rewrite is finished first: the journal may need its base, and its
        capture must not include loaded data. All effects so far are written to the journal first.
        CommandError, without any change, when the disk does not have all data; DataError when the
        files cannot be read: the keyspace must then not be used any more.
        """
        self.commits.flush_tick()
        self.snapshots.finish()
        self._worker.drain()
        commits = self.commits
        if self.appendonly and not commits.works:
            raise CommandError("ERR the journal does not hold all data now; see INFO persistence")
        report = LoadReport()
        loader = self.data_loading.read_again(self.files.manifest, report, empty)
        if loader.torn is not None or (
            commits.attached and loader.next_seq - 1 != commits.last_seq
        ):
            raise DataError(
                f"the journal ends at frame {loader.next_seq - 1} of {commits.last_seq}"
            )
        return report
