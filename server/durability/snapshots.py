"""Writes snapshots: one procedure for SAVE, BGSAVE, BGREWRITEAOF and the recovery from a failed
journal.

*Begin a new journal, capture the keyspace at that tick, write the capture as a new base, publish
both in the manifest, remove the files that they replace.* The steps:

1. prepare (worker): create the journal file; if the old journal works ("attached"), publish a
   manifest that names both, so that the new journal is current from its first frame on.
2. begin (loop): commit the tick so far, switch journals, start the capture.
3. capture (loop, in slices) and write (worker), with a bounded queue between them.
4. publish (worker): sync the base, write the new manifest, rename the base, replace the manifest,
   remove the old files.

If the procedure stops between any two steps, the directory still loads. Without a working journal
(it failed, or appendonly was off), step 1 publishes nothing, and the new journal becomes current
only in step 4; until then commits promise nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from millstream.errors import CommandError
from millstream.server.durability import save_points
from millstream.server.durability.commits import Commits
from millstream.server.durability.data_files import DataFiles, in_words, temporary
from millstream.server.durability.full_disk import FullDisk
from millstream.server.durability.save_points import SavePoints
from millstream.server.durability.workers import Machine, TaskWorker, post
from millstream.storage.files.disk import File
from millstream.storage.files.journal_file import (
    JournalFile,
    create_journal,
    give_back,
    reserve_ahead,
)
from millstream.storage.files.manifest import base_name, journal_name

if TYPE_CHECKING:
    from millstream.storage.files.snapshot_writer import SnapshotWriter

log = logging.getLogger("millstream.persistence")

_SLICE_COST = 256  # Capture.step: half a millisecond if nothing of the streams is in the cache
_QUEUED_SLICES_MAX = 32
_QUEUE_FULL_WAIT_S = 0.002
_WAIT_S = 0.1
_WAITS_MAX = 6000  # ten minutes: meanwhile the old journals use space
_FREED_BLOCKS = 512  # freed in one step, which takes a fraction of a millisecond


# Gets a copy, its last frame, and None; or None, the frame and the error (None: it was cancelled).
Copied = Callable[[File | None, int, BaseException | None], None]


if TYPE_CHECKING:

    class Config(save_points.Config, Protocol):
        """The directives used here; read each time, so that CONFIG SET works."""

        journal_reserve_size: int
        rdbcompression: bool
        stop_writes_on_bgsave_error: bool

    class CaptureLike(Protocol):
        def step(self, max_cost: int, /) -> list[Any] | None: ...
        def close(self) -> None: ...


class Capturable(Protocol):
    """The part of a keyspace that a snapshot needs."""

    def begin_capture(self) -> CaptureLike: ...
    def global_meta(self) -> dict[str, Any]: ...


if TYPE_CHECKING:

    class JournalKeeper(Protocol):
        """The owner of the journal that a snapshot switches."""

        appendonly: bool
        closing: bool
        commits: Commits

        def lacks_space(self) -> bool:
            """True if a full disk causes writes to be refused, now or soon; from any thread."""

        def begins_snapshot(self) -> bool:
            """Commit the tick so far; False when the journal has failed."""

        def snapshot_succeeded(self, size_bytes: int, seq: int) -> None: ...
        def snapshot_failed(self, error: BaseException | None) -> None:
            """The snapshot has failed; None: it was cancelled."""


class Job:
    """One snapshot in progress, from prepare to publish. `kind` is "save" or "rewrite", which of
    INFO's fields show it, or "copy" for a backup; `finished` are journals that will get no more
    frames."""

    def __init__(
        self,
        kind: str,
        number: int,
        journal: str | None,
        attached: bool,
        pause: Callable[[], None],
        started_ms: int,
        finished: tuple[str, ...],
    ) -> None:
        self.kind = kind
        self.number = number
        self.journal = journal
        self.attached = attached
        self.pause = pause
        self.started_ms = started_ms
        self.finished = finished
        self.files_bytes: int | None = None  # the size of all files soon after its beginning
        self.is_short = False  # the disk may be full: the base gets the space that is left
        self.created_ms = self.seq = self.changes = 0
        self.journal_file: JournalFile | None = None
        self.file: File | None = None
        self.writer: SnapshotWriter | None = None
        self.capture: CaptureLike | None = None
        self.global_meta: dict[str, Any] = {}
        self.published = False
        self.waits = 0  # for links that need the old journals
        self.slices_sent = 0  # counted by the loop
        self.slices_written = 0  # counted by the worker
        self.error: BaseException | None = None
        self.cancelled = False
        self.on_copied: Copied | None = None
        self.copy: File | None = None


class Tally:
    """INFO's fields about one kind of snapshot."""

    def __init__(self) -> None:
        self.count = 0
        self.ok = True
        self.last_s = -1


class _Cancelled(Exception):
    """The job was cancelled: the journal failed, appendonly was turned off, or the server stops."""


class Snapshots:
    """The running snapshot, if any, the scheduled one, and the results of the last ones. `worker`
    also runs other tasks that change the manifest, between the steps of a snapshot."""

    def __init__(
        self,
        config: Config,
        files: DataFiles,
        keyspace: Capturable,
        keeper: JournalKeeper,
        machine: Machine,
        worker: TaskWorker,
        full_disk: FullDisk,
    ) -> None:
        self._full_disk = full_disk
        self._config = config
        self._files = files
        self._keyspace = keyspace
        self._keeper = keeper
        self._clock = machine.clock
        self._steady_clock = machine.steady_clock
        self._scheduler = machine.scheduler
        self.worker = worker
        self.job: Job | None = None
        self.suspended = False  # while the data is being replaced, none is started
        # True if a link has to read frames up to this one from the journals.
        self.needs_frame: Callable[[int], bool] = lambda seq: False
        self.suspensions = 0  # counted: the data may have been replaced during each
        self.scheduled: str | None = None
        self.tallies = {"save": Tally(), "rewrite": Tally()}
        self.last_save_s = machine.clock() // 1000
        self.last_duration_s: float | None = None  # of the last snapshot or rewrite
        self.save_points = SavePoints(config, keeper, machine.steady_clock)
        # Entered while the event loop waits for the disk.
        self.busy: Callable[[], AbstractContextManager[None]] = nullcontext

    # Requests

    def save(self) -> None:
        """SAVE: write a snapshot now, after finishing a running rewrite. CommandError when a
        snapshot is running or the save fails."""
        self._refuse_if_suspended()
        if self.job is not None and self.job.kind == "save":
            self._refuse_if_running()
        with self.busy():
            self._save_now()

    def _save_now(self) -> None:
        self._finish_now()
        job = self.job = self._new_job("save", lambda: None)
        self._step(job, self._prepare)
        self._step(job, self._begin_capture)
        self._step(job, self._open_base)
        self._capture_all(job)
        self._step(job, self._publish)
        self._after_publish(job)
        if job.error is not None:
            raise CommandError(f"ERR the snapshot could not be written: {in_words(job.error)}")

    def finish(self) -> None:
        """Finish the running snapshot or rewrite and the one scheduled after it, synchronously.
        Callbacks already posted to the loop then have no effect."""
        if self.job is not None:
            with self.busy():
                self._finish_now()

    def _finish_now(self) -> None:
        while (job := self.job) is not None:
            self.worker.drain()  # submitted steps are complete, the rest is done here
            if job.writer is None:
                self._step(job, self._begin_capture)
                self._step(job, self._open_base)
            if job.capture is not None:
                self._capture_all(job)
            if not job.published:
                self._step(job, self._publish)
            self._after_publish(job)

    def bgsave(self, schedule: bool = False) -> str:
        """BGSAVE [SCHEDULE]; Redis' reply. CommandError when it cannot start now."""
        if schedule and self.job is not None and self.job.kind != "save":
            self._refuse_if_suspended()
            self.scheduled = "save"
            return "Background saving scheduled"
        self._refuse_if_running()
        self.start("save")
        return "Background saving started"

    def rewrite(self) -> str:
        """BGREWRITEAOF; Redis' reply. CommandError when one is running."""
        self._refuse_if_suspended()
        if self.job is not None:
            if self.job.kind == "rewrite":
                raise CommandError("ERR Background append only file rewriting already in progress")
            self.scheduled = "rewrite"
            return "Background append only file rewriting scheduled"
        self.start("rewrite")
        return "Background append only file rewriting started"

    def copy(self, on_copied: Copied) -> Job | None:
        """Write a snapshot to a file without a name, for a backup: no start finds it, and it
        vanishes when it is closed. None, without a call of `on_copied`, while another snapshot
        runs. To cancel the job, set `cancelled`."""
        if self.job is not None or self.suspended:
            return None
        return self.start("copy", on_copied)

    def cancel(self) -> None:
        """Cancel the running snapshot at its next step."""
        if self.job is not None:
            self.job.cancelled = True

    def close(self, tell: Callable[[float], None] | None = None) -> None:
        """Cancel the running snapshot immediately. `tell(seconds)` is called from time to time
        while the disk takes long."""
        job = self.job
        if job is not None:
            job.cancelled = True
            self._end_capture(job)
        self.worker.drain(tell)
        if job is not None and job.file is not None:
            self._discard(job)
        self.worker.stop()

    def suspend(self) -> bool:
        """Start no snapshot until `resume`, and cancel the running one. Returns whether
        none is running: one that is cancelled ends soon."""
        self.suspensions += not self.suspended
        self.suspended = True
        self.scheduled = None
        self.cancel()
        return self.job is None

    def resume(self) -> None:
        self.suspended = False

    def _refuse_if_suspended(self) -> None:
        if self.suspended:
            raise CommandError("ERR the data is being replaced by that of the primary: try later")

    def _refuse_if_running(self) -> None:
        self._refuse_if_suspended()
        if self.job is None:
            return
        if self.job.kind == "save":
            raise CommandError("ERR Background save already in progress")
        if self.job.kind == "copy":
            raise CommandError(
                "ERR a snapshot for a backup is being written: can't BGSAVE right now. Use BGSAVE"
                " SCHEDULE in order to schedule a BGSAVE whenever possible."
            )
        raise CommandError(
            "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE"
            " SCHEDULE in order to schedule a BGSAVE whenever possible."
        )

    # When an automatic snapshot is due

    def start_if_due(self, changes: int, current_bytes: int, base_bytes: int) -> None:
        """Called once a second; the arguments are those of `SavePoints.due`."""
        self._watch_growth(current_bytes)
        is_copying = self.job is not None and self.job.kind == "copy"
        if self.suspended or (self.job is not None and not is_copying):
            return
        kind = self.save_points.due(changes, current_bytes, base_bytes)
        if kind is not None and is_copying:
            self.scheduled = self.scheduled or kind  # before the next backup
        elif kind is not None:
            self.start(kind)

    def _watch_growth(self, current_bytes: int) -> None:
        """Write with the priority of the event loop if the files have doubled meanwhile: on a busy
        machine the journal would grow without limit before the base is written."""
        job = self.job
        if job is None:
            return
        if job.files_bytes is None:
            job.files_bytes = max(current_bytes, self._config.auto_aof_rewrite_min_size)
        elif current_bytes > 2 * job.files_bytes:
            self.worker.set_urgent(True)

    def start_if_freed(self) -> None:
        """Called once a second while writes are refused because of a full disk: what was removed
        meanwhile may leave a base that fits."""
        if self.job is None and not self.suspended and self._full_disk.is_due():
            self.start("rewrite" if self._keeper.appendonly else "save")

    def refuses_writes(self) -> bool:
        """True if writes are refused because the last save failed."""
        if not self._config.stop_writes_on_bgsave_error or self.tallies["save"].ok:
            return False
        return bool(self.save_points.points())

    # The steps

    def start(self, kind: str, on_copied: Copied | None = None) -> Job:
        job = self.job = self._new_job(kind, self.worker.pause)
        job.on_copied = on_copied
        self._in_worker(job, self._prepare, self._after_prepare)
        return job

    def _new_job(self, kind: str, pause: Callable[[], None]) -> Job:
        number = self._files.new_number()
        keeper = self._keeper
        journal = journal_name(number) if keeper.appendonly and kind != "copy" else None
        finished = () if keeper.commits.queued_bytes else self._files.manifest.journals[:-1]
        started_ms = self._steady_clock()
        job = Job(kind, number, journal, keeper.commits.attached, pause, started_ms, finished)
        tally = self.tallies.get(kind)  # none for a backup
        has_failed = not job.attached and (
            keeper.appendonly or (tally is not None and not tally.ok)
        )
        job.is_short = has_failed or keeper.lacks_space()
        if job.is_short:
            keeper.commits.leave_space(True)
        return job

    def _in_worker(
        self, job: Job, step: Callable[[Job], None], then: Callable[[Job], None] | None = None
    ) -> None:
        def task() -> None:
            self._step(job, step)
            if then is not None:
                post(self._scheduler, then, job)

        self.worker.submit(task)

    def _step(self, job: Job, step: Callable[[Job], None]) -> None:
        """Run a step unless an earlier one failed."""
        if job.error is not None:
            return
        try:
            if job.cancelled:
                raise _Cancelled("given up")
            step(job)
        except Exception as error:
            job.error = error

    def _prepare(self, job: Job) -> None:
        """Worker: create the files, and publish the manifest that makes the new journal current."""
        disk = self._files.disk
        if job.is_short:
            self._full_disk.release()
        if job.journal is not None:
            name = job.journal if job.attached else temporary(job.journal)
            job.journal_file = create_journal(disk, name, self._files.directory)
            if not job.is_short:
                # Otherwise the base needs the space. Writes are refused until it is written.
                reserve_ahead(job.journal_file.file, self._config.journal_reserve_size)
            if job.attached:
                self._files.publish_journal(job.journal, job.number + 1, job.finished)
        job.file = disk.create(temporary(base_name(job.number)))

    def _after_prepare(self, job: Job) -> None:
        if job is not self.job:
            return
        if not job.cancelled:
            self._step(job, self._begin_capture)
        if job.error is not None or job.cancelled:
            self._in_worker(job, self._publish, self._after_publish)
            return
        self._in_worker(job, self._open_base)
        self._capture_slice(job)

    def _begin_capture(self, job: Job) -> None:
        """Loop: begin the capture; later effects belong to the new journal and not to the base."""
        if not self._keeper.begins_snapshot() or job.cancelled:
            job.error = _Cancelled("the journal failed")
            return
        opened, job.journal_file = job.journal_file, None
        if opened is not None:
            self._keeper.commits.switch_journal(opened)
        job.seq = self._keeper.commits.last_seq
        job.changes = self._keeper.commits.listener.changes()
        job.created_ms = self._clock()
        job.global_meta = self._keyspace.global_meta()
        job.global_meta["frame_bytes"] = self._keeper.commits.frame_bytes
        if self._keeper.commits.bytes_before_line >= 0:
            job.global_meta["bytes_before_line"] = self._keeper.commits.bytes_before_line
        job.capture = self._keyspace.begin_capture()

    def _capture_slice(self, job: Job) -> None:
        if job is not self.job:
            return
        if job.cancelled or job.error is not None:
            self._end_capture(job)
            self._in_worker(job, self._publish, self._after_publish)
            return
        if job.slices_sent - job.slices_written >= _QUEUED_SLICES_MAX:
            self._scheduler.call_later(_QUEUE_FULL_WAIT_S, self._capture_slice, job)
            return
        captured = self._next_slice(job)
        if captured is None:
            self._end_capture(job)
            self._publish_soon(job)
            return
        if captured:
            job.slices_sent += 1
            self._in_worker(job, self._slice_writer(captured))
        post(self._scheduler, self._capture_slice, job)

    def _publish_soon(self, job: Job) -> None:
        """Publish the base, once no link needs the old journals, which are removed then."""
        if job is not self.job:
            return
        is_kept = job.kind == "copy" or job.cancelled or job.error is not None
        if not is_kept and job.waits < _WAITS_MAX and self.needs_frame(job.seq):
            job.waits += 1
            self._scheduler.call_later(_WAIT_S, self._publish_soon, job)
            return
        self._in_worker(job, self._publish, self._after_publish)

    def _capture_all(self, job: Job) -> None:
        while job.error is None and job.capture is not None:
            captured = self._next_slice(job)
            if captured is None:
                break
            self._step(job, self._slice_writer(captured))
        self._end_capture(job)

    @staticmethod
    def _next_slice(job: Job) -> list[Any] | None:
        """The next keys; None at the end, and after a failed capture, which fails the job."""
        assert job.capture is not None
        try:
            return job.capture.step(_SLICE_COST)
        except Exception as error:
            log.exception("the keys could not be captured")
            job.error = error
            return None

    def _end_capture(self, job: Job) -> None:
        if job.capture is not None:
            job.capture.close()
            job.capture = None

    def _open_base(self, job: Job) -> None:
        from millstream.storage.files.snapshot_format import BASE_SALT_SIZE
        from millstream.storage.files.snapshot_writer import Identity, SnapshotWriter

        assert job.file is not None
        job.writer = SnapshotWriter(
            job.file,
            Identity(
                uuid=self._files.disk.random(16),
                created_ms=job.created_ms,
                seq=job.seq,
                directory=self._files.directory,
                salt=self._files.disk.random(BASE_SALT_SIZE),
            ),
            compressed=self._config.rdbcompression,
            with_rules="rules" in job.global_meta,
            with_slots="slots" in job.global_meta,
            pause=job.pause,
        )

    @staticmethod
    def _slice_writer(captured: list[Any]) -> Callable[[Job], None]:
        def write(job: Job) -> None:
            assert job.writer is not None
            for one in captured:
                job.writer.add(one)
                while one.free_step(_FREED_BLOCKS):
                    job.pause()
            job.slices_written += 1

        return write

    def _publish(self, job: Job) -> None:
        """Worker: make the base current, then remove the files that it replaces."""
        assert job.writer is not None
        assert job.file is not None
        job.writer.finish(job.global_meta)
        if job.on_copied is not None:
            self._detach(job, job.file)
            return
        job.file.sync()
        job.file.close()
        name = base_name(job.number)
        renames = [(job.file.name, name)]
        journals = () if job.journal is None else (job.journal,)
        if job.journal is not None and not job.attached:
            renames.append((temporary(job.journal), job.journal))
        self._files.publish_base(name, journals, job.number + 1, renames)
        job.published = True
        self._files.remove_replaced()

    def _detach(self, job: Job, file: File) -> None:
        """Worker: open the copy for reading, and remove its name."""
        file.close()
        job.copy = self._files.disk.read(file.name)
        job.published = True
        self._files.disk.remove(file.name)

    def _after_publish(self, job: Job) -> None:
        """Loop: record the result, and start the scheduled snapshot."""
        if job is not self.job:
            return
        self._end_capture(job)
        self.job = None
        self.worker.set_urgent(False)
        if job.on_copied is None:
            self._record(job)
        else:
            self._pass_on(job, job.on_copied)
        self._hold_space(job)
        if self.scheduled is not None and not self._keeper.closing:
            kind, self.scheduled = self.scheduled, None
            self.start(kind)

    def _pass_on(self, job: Job, on_copied: Copied) -> None:
        """Give a copy to the backup that it was written for."""
        if job.error is not None:
            self.worker.submit(lambda: self._discard(job))
        is_cancelled = isinstance(job.error, _Cancelled)
        on_copied(None if job.error else job.copy, job.seq, None if is_cancelled else job.error)

    def _record(self, job: Job) -> None:
        """Count the result of a snapshot or rewrite."""
        tally = self.tallies[job.kind]
        tally.count += 1
        duration_ms = self._steady_clock() - job.started_ms
        tally.last_s = duration_ms // 1000
        self.last_duration_s = duration_ms / 1000
        if job.error is None:
            self._note_success(job)
        else:
            self._note_failure(job)

    def _hold_space(self, job: Job) -> None:
        """Hold space for the next full disk; after that, the journal may reserve more."""
        if self._keeper.closing:
            return

        def hold() -> None:
            self._full_disk.hold()
            if job.is_short:
                post(self._scheduler, self._keeper.commits.leave_space, False)

        self.worker.submit(hold)

    def _note_success(self, job: Job) -> None:
        assert job.writer is not None
        assert job.file is not None
        for tally in self.tallies.values():
            tally.ok = True
        log.info(
            "%s is written: %d bytes in %.2f seconds (keys: %d, entries: %d)",
            base_name(job.number),
            job.file.size,
            (self._steady_clock() - job.started_ms) / 1000,
            job.writer.keys,
            job.writer.entries,
        )
        self.last_save_s = self._clock() // 1000
        self.save_points.note_success(job.changes)
        self._full_disk.recovered()
        self._keeper.snapshot_succeeded(job.file.size, job.seq)

    def _note_failure(self, job: Job) -> None:
        error = None if isinstance(job.error, _Cancelled) else job.error
        if error is not None:
            log.error("the snapshot could not be written: %s", in_words(error))
            refuses = job.kind == "save" and self._config.stop_writes_on_bgsave_error
            self.save_points.note_failure(refuses=refuses)
            self.tallies[job.kind].ok = False
        self.worker.submit(lambda: self._discard(job))
        self._keeper.snapshot_failed(error)

    def _discard(self, job: Job) -> None:
        """Worker: close and remove the unused files."""
        if job.journal_file is not None:
            give_back(job.journal_file.file)
            job.journal_file.file.close()
        for file in (job.file, job.copy):
            if file is not None:
                file.close()
        self._files.remove_unfinished(job.number)
