"""Keeps the data: journal, background snapshots, rewrite, loading.

One act serves SAVE, BGSAVE, BGREWRITEAOF, the automatic rewrite, CONFIG SET appendonly yes and the
recovery from a failed journal: *begin a new journal, capture the keyspace at that very tick, write
the capture as a new base, publish both in the manifest, remove what it replaces*. The steps:

1. prepare (worker): create the journal file; while the old journal is sound ("attached"), publish a
   manifest that names old and new, so that frames in the new one count from the first.
2. begin (loop): commit the tick so far, switch journals, start the capture.
3. capture (loop, in slices) and write (worker), with a bounded queue between them.
4. publish (worker): base synced and renamed, manifest replaced, old files removed.

Stopping between any two steps leaves a directory that loads. When no sound journal is there to be
attached to (it failed, or appendonly was off) step 1 publishes nothing and the new journal counts
only from step 4 on; until then commits promise nothing.

The event loop waits for the disk only where that is meant: in SAVE (also SHUTDOWN's and DEBUG
RELOAD's) and in `finish` before it, loading, and `close`; in CONFIG SET appendfsync, until what is
queued is written, and CONFIG SET appendonly no, until it is synced; when the directory's lock is
taken anew after all files were gone; and in the small write(2) of `appendfsync everysec` and `no`.
Workers are passed in, so a test can run every step by hand.
"""

import errno
import gc
import logging
import os
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from millstream.errors import CommandError, DataError
from millstream.server.config import SAVE_POINTS_DEFAULT
from millstream.server.loading import Loader, LoadReport, Progress, Restorable
from millstream.storage.disk import Disk, File
from millstream.storage.journal import (
    RESERVE_LEAST,
    Journal,
    TornEnd,
    create_journal,
    cut_torn_end,
    reserve_ahead,
)
from millstream.storage.manifest import (
    NAME,
    Manifest,
    base_name,
    journal_name,
    load_manifest,
    store_manifest,
    sweep,
)
from millstream.storage.snapshot import BlockType, SnapshotWriter

log = logging.getLogger("millstream.persistence")

_SLICE_KEYS = 64
_QUEUED_SLICES_MAX = 32
_QUEUE_FULL_WAIT_S = 0.002
_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 60.0
_AUTO_RETRY_MS = 5_000
_BGSAVE_ERROR = (
    b"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to "
    b"disk. Commands that may modify the data set are disabled, because this instance is "
    b"configured to report errors during writes if RDB snapshotting fails "
    b"(stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB "
    b"error."
)


class Config(Protocol):
    """The directives used here; read anew each time, so that CONFIG SET works.

    `save` is Redis' text ("3600 1 300 100"), "" for none, None for the default: Redis' points when
    appendonly is off, none when it is on.
    """

    appendonly: bool
    appendfsync: str
    save: str | None
    auto_aof_rewrite_percentage: int
    auto_aof_rewrite_min_size: int
    stop_writes_on_bgsave_error: bool
    journal_reserve_size: int


class Scheduler(Protocol):
    """The part of an asyncio event loop that is needed."""

    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> object: ...
    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> object: ...


class CaptureLike(Protocol):
    def step(self, max_keys: int, /) -> list[Any] | None: ...
    def close(self) -> None: ...


class KeyspaceLike(Restorable, Protocol):
    def begin_capture(self) -> CaptureLike: ...
    def global_meta(self) -> dict[str, Any]: ...


class TaskWorker(Protocol):
    """Runs tasks one after the other, away from the event loop."""

    def submit(self, task: Callable[[], None]) -> None: ...
    def drain(self) -> None: ...
    def stop(self) -> None: ...
    def pause(self) -> None:
        """Called inside long tasks: let the event loop have the interpreter for a moment."""


class ThreadWorker:
    """A thread that runs tasks in order; started by the first one."""

    # A waiting thread gets the interpreter's lock only when the holder sleeps or after 5 ms.
    _WORK_S = 0.0002
    _REST_S = 0.00005

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._name = name
        self._rested = 0.0
        self._thread: threading.Thread | None = None

    def submit(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def drain(self) -> None:
        if self._thread is not None:
            done = threading.Event()
            self._tasks.put(done.set)
            done.wait()

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def pause(self) -> None:
        if time.perf_counter() - self._rested > self._WORK_S:
            time.sleep(self._REST_S)
            self._rested = time.perf_counter()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("a task of %s failed", self._name)


@dataclass
class _Job:
    """One snapshot on its way from prepare to publish."""

    kind: str  # "save" or "rewrite": which of INFO's fields show it
    number: int
    journal: str | None
    attached: bool
    pause: Callable[[], None]
    started_ms: int
    created_ms: int = 0
    seq: int = 0
    changes: int = 0
    journal_file: File | None = None
    file: File | None = None
    writer: SnapshotWriter | None = None
    capture: CaptureLike | None = None
    global_meta: dict[str, Any] = field(default_factory=dict)
    published: bool = False
    slices_sent: int = 0  # counted by the loop
    slices_written: int = 0  # counted by the worker
    error: BaseException | None = None
    cancelled: bool = False


class _Cancelled(Exception):
    """The job was given up: the journal failed, appendonly went off, or the server stops."""


class Persistence:
    """See the module's text. All methods are called on the loop's thread.

    Hooks, set by the executor: `on_durable(seq)`, `on_synced()` (the journal was forced to disk; it
    comes behind `on_durable` where both do), `on_failed(sentence)` (called while `durable_seq`
    still tells what may be answered; then it rises to `last_seq`), `on_writable()` (writes were
    refused and are not any more), `flush_tick()` (commit the effects of this tick so far: called
    before a capture) and `count_changes()`.
    """

    def __init__(
        self,
        config: Config,
        disk: Disk,
        keyspace: KeyspaceLike,
        apply_effects: Callable[[Any, bytes], int],
        clock: Callable[[], int],
        scheduler: Scheduler,
        *,
        block_type: BlockType[Any],
        new_worker: Callable[[str], TaskWorker] = ThreadWorker,
    ) -> None:
        """`clock` gives milliseconds since the epoch; `block_type` is the class Block."""
        self._config = config
        self._disk = disk
        self._keyspace = keyspace
        self._apply = apply_effects
        self._clock = clock
        self._scheduler = scheduler
        self._block_type = block_type
        self._journal_worker = new_worker("millstream-journal")
        self._snapshot_worker = new_worker("millstream-snapshot")
        self.on_durable: Callable[[int], None] = lambda seq: None
        self.on_synced: Callable[[], None] = lambda: None
        self.on_failed: Callable[[str], None] = lambda sentence: None
        self.on_writable: Callable[[], None] = lambda: None
        self.flush_tick: Callable[[], None] = lambda: None
        self.count_changes: Callable[[], int] = lambda: self._changes_seen
        self.last_seq = 0
        self.durable_seq = 0
        self.loading = False
        self._appendonly = config.appendonly
        self._manifest = Manifest()
        self._next_number = 1
        self._journal: Journal | None = None
        self._attached = False
        self._journal_error: bytes | None = None
        self._space_error: bytes | None = None
        self._lost_error: bytes | None = None
        self._misconf: bytes | None = None
        self._older_bytes = 0
        self._base_bytes = 0
        self._job: _Job | None = None
        self._scheduled: str | None = None
        self._closing = False
        self._retry_s = _RETRY_FIRST_S
        self._retry_set = False
        self._looking = False
        self._changes_seen = 0
        self._loader = self._new_loader()
        self._init_statistics()

    def _new_loader(self) -> Loader:
        return Loader(self._disk, self._keyspace, self._apply, self._block_type)

    def _init_statistics(self) -> None:
        self.last_save_s = self._clock() // 1000
        self.changes_at_save = 0
        self._saves = self._rewrites = 0
        self._save_ok = self._rewrite_ok = True
        self._save_s = self._rewrite_s = -1
        self._auto_after_ms = 0
        self._load_start_ms = 0
        self._loaded_keys = 0

    # ------------------------------------------------------------------------------------ commit

    def commit(self, payload: bytes | None) -> int:
        """Record one tick's effects; their sequence number. `durable_seq` says when to answer.

        None: they could not be put into words. The journal then fails, as when it cannot be
        written: no frame may come behind one that is missing.
        """
        seq = self.last_seq = self.last_seq + 1
        journal = self._journal
        if payload is None and journal is not None:
            journal.fail(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        elif (
            payload is None or journal is None or journal.append(seq, payload) or not self._attached
        ):
            self.durable_seq = seq
        return seq

    @property
    def synced_seq(self) -> int:
        """The last sequence number that is on the disk, or, with `always`, will be before anything
        is answered: that of the tick under way, too. -1 while no journal counts."""
        journal = self._journal
        if journal is None or not self._attached or journal.error is not None:
            return -1
        return self.last_seq + 1 if journal.mode == "always" else journal.synced_seq

    def sync_soon(self) -> None:
        """Force the journal to disk without waiting for the next time it is due; `on_synced` tells
        when it is done."""
        if self._journal is not None:
            self._journal.sync_soon()

    def writable_error(self) -> bytes | None:
        """The MISCONF error while write commands must be refused, else None."""
        return self._misconf

    def _set_misconf(self) -> None:
        config = self._config
        before = self._misconf
        self._misconf = self._lost_error or self._journal_error or self._space_error
        if self._misconf is None and not self._save_ok and config.stop_writes_on_bgsave_error:
            self._misconf = _BGSAVE_ERROR if self._save_points() else None
        if before is not None and self._misconf is None:
            self._scheduler.call_soon_threadsafe(self.on_writable)

    # What a journal tells, from any thread: carried over to the loop.

    def journal_synced(self, journal: Journal, seq: int) -> None:
        self._post(self._on_synced, journal, seq)

    def journal_failed(self, journal: Journal, error: OSError) -> None:
        self._post(self._on_journal_failed, journal, error)

    def journal_space(self, journal: Journal, error: OSError | None) -> None:
        self._post(self._on_space, journal, error)

    def _post(self, callback: Callable[..., object], *args: Any) -> None:
        try:
            self._scheduler.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            log.debug("the event loop is closed")

    def _on_synced(self, journal: Journal, seq: int) -> None:
        if journal is self._journal and self._attached and seq > self.durable_seq:
            self.durable_seq = seq
            self.on_durable(seq)
        self.on_synced()

    def _on_space(self, journal: Journal, error: OSError | None) -> None:
        if journal is not self._journal:
            return
        if error is None and self._space_error is not None:
            log.warning("%s: space can be reserved again, writes are taken", journal.name)
        elif error is not None and self._space_error is None:
            wanted_bytes = self._config.journal_reserve_size
            log.error(
                "%s: not even %d bytes of journal-reserve-size %d could be reserved ahead: %s;"
                " writes are refused until they can",
                journal.name,
                min(wanted_bytes, RESERVE_LEAST),
                wanted_bytes,
                _words(error),
            )
        self._space_error = None if error is None else _misconf(error)
        self._set_misconf()

    def _on_journal_failed(self, journal: Journal, error: OSError) -> None:
        if journal is not self._journal:
            return
        sentence = f"{journal.name} cannot be written: {_words(error)}"
        log.error("%s; writes are refused until a new journal works", sentence)
        self._journal_error = _misconf(error)
        self._space_error = None
        self._set_misconf()
        if self._attached:
            self.on_failed(sentence)
        self._drop_journal()
        self._cancel_job()
        self._retry_later()

    def _drop_journal(self) -> None:
        """Go on without a journal: nothing waits any more."""
        if self._journal is not None:
            if self._attached:
                self._older_bytes += self._journal.size_bytes
            self._journal.abandon()
        self._journal = None
        self._attached = False
        self._raise_durable()

    def _raise_durable(self) -> None:
        if self.durable_seq < self.last_seq:
            self.durable_seq = self.last_seq
            self.on_durable(self.last_seq)

    # ---------------------------------------------------------------------------------- recovery

    def _retry_later(self) -> None:
        if not self._retry_set and not self._closing:
            self._retry_set = True
            self._scheduler.call_later(self._retry_s, self._retry)
            self._retry_s = min(self._retry_s * 2, _RETRY_MAX_S)

    def _retry(self) -> None:
        self._retry_set = False
        if self._closing or self._attached or not self._appendonly:
            return
        if self._job is not None:
            self._retry_later()
        else:
            self._start("rewrite")

    # --------------------------------------------------------------------------------- snapshots

    def save(self) -> None:
        """SAVE: write a snapshot now, once a rewrite under way is finished. CommandError when a
        snapshot is running or it fails."""
        if self._job is not None and self._job.kind == "save":
            self._refuse_if_running()
        self.finish()
        job = self._job = self._new_job("save", lambda: None)
        self._step(job, self._prepare)
        self._step(job, self._begin_capture)
        self._step(job, self._open_base)
        self._capture_all(job)
        self._step(job, self._publish)
        self._after_publish(job)
        if job.error is not None:
            raise CommandError(f"ERR the snapshot could not be written: {_words(job.error)}")

    def finish(self) -> None:
        """Bring the snapshot or rewrite under way, and the one scheduled behind it, to an end
        before this returns. What was posted to the loop for it finds it gone."""
        while (job := self._job) is not None:
            self._snapshot_worker.drain()  # the steps handed out are done, the rest is done here
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
        if schedule and self._job is not None and self._job.kind == "rewrite":
            self._scheduled = "save"
            return "Background saving scheduled"
        self._refuse_if_running()
        self._start("save")
        return "Background saving started"

    def rewrite(self) -> str:
        """BGREWRITEAOF; Redis' reply. CommandError when one is running."""
        if self._job is not None:
            if self._job.kind == "rewrite":
                raise CommandError("ERR Background append only file rewriting already in progress")
            self._scheduled = "rewrite"
            return "Background append only file rewriting scheduled"
        self._start("rewrite")
        return "Background append only file rewriting started"

    def _refuse_if_running(self) -> None:
        if self._job is None:
            return
        if self._job.kind == "save":
            raise CommandError("ERR Background save already in progress")
        raise CommandError(
            "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE"
            " SCHEDULE in order to schedule a BGSAVE whenever possible."
        )

    def _new_job(self, kind: str, pause: Callable[[], None]) -> _Job:
        number = self._next_number
        self._next_number += 1
        journal = journal_name(number) if self._appendonly else None
        return _Job(kind, number, journal, self._attached, pause, self._clock())

    def _start(self, kind: str) -> None:
        job = self._job = self._new_job(kind, self._snapshot_worker.pause)
        self._in_worker(job, self._prepare, self._after_prepare)

    def _in_worker(
        self,
        job: _Job,
        step: Callable[[_Job], None],
        then: Callable[[_Job], None] | None = None,
    ) -> None:
        def task() -> None:
            self._step(job, step)
            if then is not None:
                self._post(then, job)

        self._snapshot_worker.submit(task)

    def _step(self, job: _Job, step: Callable[[_Job], None]) -> None:
        """Run a step unless an earlier one failed."""
        if job.error is not None:
            return
        try:
            if job.cancelled:
                raise _Cancelled("given up")
            step(job)
        except Exception as error:
            job.error = error

    def _prepare(self, job: _Job) -> None:
        """Worker: the files, and the manifest that lets the new journal's frames count."""
        if job.journal is not None:
            job.journal_file = create_journal(self._disk, job.journal)
            reserve_ahead(job.journal_file, self._config.journal_reserve_size)
            if job.attached:
                manifest = self._manifest.with_journal(job.journal)
                self._publish_manifest(Manifest(manifest.base, manifest.journals, job.number + 1))
        job.file = self._disk.create(base_name(job.number) + ".tmp")

    def _publish_manifest(self, manifest: Manifest) -> None:
        store_manifest(self._disk, manifest)
        self._manifest = manifest

    def _after_prepare(self, job: _Job) -> None:
        if job is not self._job:
            return
        if not job.cancelled:
            self._step(job, self._begin_capture)
        if job.error is not None or job.cancelled:
            self._in_worker(job, self._publish, self._after_publish)
            return
        self._in_worker(job, self._open_base)
        self._capture_slice(job)

    def _begin_capture(self, job: _Job) -> None:
        """Loop: from here on effects belong to the new journal and not to the base."""
        self.flush_tick()
        if job.cancelled or (self._journal is not None and self._journal.error is not None):
            job.error = _Cancelled("the journal failed")
            return
        self._switch_journal(job)
        job.seq = self.last_seq
        job.changes = self.count_changes()
        job.created_ms = self._clock()
        job.global_meta = self._keyspace.global_meta()
        job.capture = self._keyspace.begin_capture()

    def _switch_journal(self, job: _Job) -> None:
        file, job.journal_file = job.journal_file, None
        if file is None:
            return
        if self._journal is not None:
            self._older_bytes += self._journal.size_bytes
            self._journal.rotate(file)
        else:
            self._journal = self._new_journal(file)

    def _new_journal(self, file: File) -> Journal:
        journal = Journal(
            file,
            self.last_seq + 1,
            self._config.appendfsync,
            self._journal_worker,
            self,
            self._config.journal_reserve_size,
        )
        journal.request_space()
        return journal

    def _capture_slice(self, job: _Job) -> None:
        if job is not self._job:
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
            self._in_worker(job, self._publish, self._after_publish)
            return
        if captured:
            job.slices_sent += 1
            self._in_worker(job, self._slice_writer(captured))
        self._post(self._capture_slice, job)

    def _capture_all(self, job: _Job) -> None:
        while job.error is None and job.capture is not None:
            captured = self._next_slice(job)
            if captured is None:
                break
            self._step(job, self._slice_writer(captured))
        self._end_capture(job)

    @staticmethod
    def _next_slice(job: _Job) -> list[Any] | None:
        """The next keys; None at the end, and when they cannot be captured: the job has failed."""
        assert job.capture is not None
        try:
            return job.capture.step(_SLICE_KEYS)
        except Exception as error:
            log.exception("the keys could not be captured")
            job.error = error
            return None

    def _end_capture(self, job: _Job) -> None:
        if job.capture is not None:
            job.capture.close()
            job.capture = None

    def _open_base(self, job: _Job) -> None:
        assert job.file is not None
        job.writer = SnapshotWriter(
            job.file,
            uuid=uuid.uuid4().bytes,
            created_ms=job.created_ms,
            seq=job.seq,
            pause=job.pause,
        )

    @staticmethod
    def _slice_writer(captured: list[Any]) -> Callable[[_Job], None]:
        def write(job: _Job) -> None:
            assert job.writer is not None
            for one in captured:
                job.writer.add(one)
            job.slices_written += 1

        return write

    def _publish(self, job: _Job) -> None:
        """Worker: make the base count, then remove what it replaces."""
        assert job.writer is not None
        assert job.file is not None
        job.writer.finish(job.global_meta)
        job.file.sync()
        job.file.close()
        name = base_name(job.number)
        self._disk.rename(job.file.name, name)
        journals = () if job.journal is None else (job.journal,)
        self._publish_manifest(Manifest(name, journals, job.number + 1))
        job.published = True
        try:
            sweep(self._disk, self._manifest)
        except OSError as error:
            log.warning("old files could not be removed: %s", _words(error))

    def _after_publish(self, job: _Job) -> None:
        """Loop: take note of how it went, and go on with what waited for it."""
        if job is not self._job:
            return
        self._end_capture(job)
        self._job = None
        seconds = (self._clock() - job.started_ms) // 1000
        ok = job.error is None
        if job.kind == "save":
            self._saves += 1
            self._save_s = seconds
        else:
            self._rewrites += 1
            self._rewrite_s = seconds
        if ok:
            self._note_success(job)
        else:
            self._note_failure(job)
        self._set_misconf()
        if self._scheduled is not None and not self._closing:
            kind, self._scheduled = self._scheduled, None
            self._start(kind)

    def _note_success(self, job: _Job) -> None:
        self._save_ok = self._rewrite_ok = True
        if job.writer is not None and job.file is not None:
            log.info(
                "%s is written: %d keys, %d entries, %d bytes, %.2f seconds",
                base_name(job.number),
                job.writer.keys,
                job.writer.entries,
                job.file.size,
                (self._clock() - job.started_ms) / 1000,
            )
        if self._lost_error is not None:
            self._lock_again()
        self.last_save_s = self._clock() // 1000
        self.changes_at_save = job.changes
        self._older_bytes = 0
        self._base_bytes = job.file.size if job.file is not None else 0
        if self._journal is not None and not self._attached:
            self._attached = True
            self._journal_error = None
            self._retry_s = _RETRY_FIRST_S
            log.warning("the journal works: writes are recorded in %s", self._journal.name)

    def _lock_again(self) -> None:
        """The files were taken away and all data is written anew: perhaps into a new directory."""
        self._disk.unlock()
        try:
            self._disk.lock()
        except DataError as error:
            log.error("%s", error)

    def _note_failure(self, job: _Job) -> None:
        assert job.error is not None
        cancelled = isinstance(job.error, _Cancelled)
        if not cancelled:
            log.error("the snapshot could not be written: %s", _words(job.error))
            self._auto_after_ms = self._clock() + _AUTO_RETRY_MS
            if job.kind == "save":
                self._save_ok = False
            else:
                self._rewrite_ok = False
        self._snapshot_worker.submit(lambda: self._discard(job))
        if self._attached or not self._appendonly:
            return
        # The new journal counts for nothing without its base: begin again with another.
        if self._journal_error is None and not cancelled:
            self._journal_error = _misconf(job.error)
        self._drop_journal()
        self._retry_later()

    def _discard(self, job: _Job) -> None:
        """Worker: remove the unfinished base. The rest stays: an unsure manifest may name it."""
        for file in (job.journal_file, job.file):
            if file is not None:
                file.close()
        temporary = base_name(job.number) + ".tmp"
        try:
            if temporary in self._disk.names():
                self._disk.remove(temporary)
        except OSError as error:
            log.warning("%s could not be removed: %s", temporary, _words(error))

    def _cancel_job(self) -> None:
        if self._job is not None:
            self._job.cancelled = True

    # ------------------------------------------------------------------------- once a second, etc.

    def tick_second(self, changes: int) -> None:
        """Once a second: sync, and start a rewrite or a save when it is due.

        `changes` is the keyspace's change counter.
        """
        self._changes_seen = changes
        if self._journal is not None:
            self._journal.tick_second()
        self._look_for_files()
        if self._job is not None or self._clock() < self._auto_after_ms:
            return
        if self._attached and self._has_grown():
            self._start("rewrite")
        elif self._journal_error is None and self._save_point_reached(changes):
            self._start("save")

    def _look_for_files(self) -> None:
        """Notice that the files were taken away: what goes to them now, no start would find."""
        if not self._attached:
            self._on_files(self._manifest, None)
        elif not self._looking:
            self._looking = True
            self._journal_worker.submit(self._look_in_worker)

    def _look_in_worker(self) -> None:
        manifest, job = self._manifest, self._job
        names = [NAME] if job is not None else [NAME, *manifest.files]
        lost = next((name for name in names if not self._disk.holds(name)), None)
        self._post(self._on_files, manifest, lost)

    def _on_files(self, manifest: Manifest, lost: str | None) -> None:
        self._looking = False
        if lost is not None and lost != NAME and manifest is not self._manifest:
            return  # it was replaced meanwhile
        if not self._attached:
            lost = None
        if lost is not None and self._lost_error is None:
            log.error(
                "%s in the data directory %s is gone, or the directory is another one than at the"
                " start: writes are refused, the next start would not find them; put back what is"
                " missing, or make the directory and write all data anew with BGREWRITEAOF",
                lost,
                self._disk.directory,
            )
        elif lost is None and self._lost_error is not None:
            log.warning("the data directory is there again, writes are taken")
        self._lost_error = None if lost is None else _misconf(_gone())
        self._set_misconf()

    def _has_grown(self) -> bool:
        percentage = self._config.auto_aof_rewrite_percentage
        current = self._current_bytes()
        if not percentage or current < self._config.auto_aof_rewrite_min_size:
            return False
        return current * 100 // max(self._base_bytes, 1) - 100 >= percentage

    def _current_bytes(self) -> int:
        journal = self._journal.size_bytes if self._journal is not None else 0
        return self._base_bytes + self._older_bytes + journal

    def _save_points(self) -> list[tuple[int, int]]:
        text = self._config.save
        if text is None:
            text = "" if self._appendonly else SAVE_POINTS_DEFAULT
        numbers = [int(word) for word in re.findall(r"\d+", text)]
        return list(zip(numbers[::2], numbers[1::2], strict=False))

    def _save_point_reached(self, changes: int) -> bool:
        since_s = self._clock() // 1000 - self.last_save_s
        new = changes - self.changes_at_save
        return any(since_s >= seconds and new >= least for seconds, least in self._save_points())

    def set_fsync(self, mode: str) -> None:
        """CONFIG SET appendfsync."""
        if self._journal is not None:
            self._journal.set_mode(mode)
            if self._attached and self._journal.error is None:
                if mode != "always":
                    self._raise_durable()
                else:  # what was answered so far is shown again once it is safe
                    self.durable_seq = min(self.durable_seq, self._journal.synced_seq)

    def set_appendonly(self, wanted: bool) -> None:
        """CONFIG SET appendonly. On: a journal counts once the base it belongs to is written."""
        if wanted == self._appendonly or self._closing:
            return
        if not wanted:
            self.flush_tick()  # the journal answers for all that was done while it was on
        self._appendonly = wanted
        self._cancel_job()
        if not wanted:
            log.warning(
                "appendonly is off: what is written from now on and is not in a snapshot is lost"
                " with the process"
            )
            self._scheduled = None
            self._stop_journal()
            self._journal_error = self._space_error = self._lost_error = None
            self._set_misconf()
        elif self._job is None:
            self._start("rewrite")
        else:
            self._scheduled = "rewrite"

    def _stop_journal(self) -> None:
        journal, self._journal = self._journal, None
        attached, self._attached = self._attached, False
        if journal is None:
            return
        self._older_bytes += journal.size_bytes
        try:
            journal.close()
        except OSError as error:
            if attached:
                self.on_failed(f"{journal.name} cannot be written: {_words(error)}")
        self._raise_durable()

    def close(self) -> None:
        """Stop: the running snapshot is given up, the journal is synced, the directory is free."""
        if self._closing:
            return
        self.flush_tick()
        self._closing = True
        job = self._job
        if job is not None:
            job.cancelled = True
            self._end_capture(job)
        self._snapshot_worker.drain()
        if job is not None and job.file is not None:
            self._discard(job)
        self._snapshot_worker.stop()
        self._stop_journal()
        self._journal_worker.stop()
        self._disk.unlock()

    # ------------------------------------------------------------------------------------- loading

    def load(self, progress: Progress | None = None) -> LoadReport:
        """Read the directory into the keyspace and begin to write. DataError: it cannot be trusted.

        `progress(bytes_done, bytes_total)` is called about once a MiB.
        """
        report = LoadReport()
        with _without_collections():
            for _ in self.load_slices(report, progress):
                pass
        return report

    def load_slices(self, report: LoadReport, progress: Progress | None = None) -> Iterator[None]:
        """`load` as an iterator: a server may answer other clients between two steps."""
        self.loading = True
        started_ms = self._load_start_ms = self._clock()
        self._disk.lock()
        try:
            yield from self._load(report, progress)
        except OSError as error:
            raise _unreadable(error) from error
        report.seconds = (self._clock() - started_ms) / 1000
        report.bytes = self._loader.done_bytes
        self._loaded_keys = report.keys
        self.loading = False
        for note in report.notes:
            log.warning("%s", note)

    def _load(self, report: LoadReport, progress: Progress | None) -> Iterator[None]:
        self._open_manifest(report)
        loader = self._loader = self._new_loader()
        yield from loader.read(self._manifest, report, progress)
        if self._manifest.base is not None:
            self.last_save_s = loader.created_ms // 1000
            self._base_bytes = loader.base_bytes
        self.last_seq = self.durable_seq = loader.next_seq - 1
        self._after_frames(loader.torn, report)

    def read_again(self, empty: Callable[[], None]) -> LoadReport:
        """Load what the disk has into the running keyspace, which `empty()` clears before.

        A snapshot or rewrite under way is finished before: the journal may need its base, and its
        capture must not meet what is loaded. Whatever was done so far is in the journal first.
        CommandError, and nothing is touched, when the disk has not all of it; DataError when the
        files cannot be read: the keyspace is then not to be used any more.
        """
        self.flush_tick()
        self.finish()
        self._journal_worker.drain()
        journal = self._journal
        if self._appendonly and (not self._attached or journal is None or journal.error):
            raise CommandError("ERR the journal does not hold all data now; see INFO persistence")
        report = LoadReport()
        loader = self._new_loader()
        with _without_collections():
            empty()
            try:
                for _ in loader.read(self._manifest, report):
                    pass
            except OSError as error:
                raise _unreadable(error) from error
        if loader.torn is not None or (self._attached and loader.next_seq - 1 != self.last_seq):
            raise DataError(f"the journal ends at frame {loader.next_seq - 1} of {self.last_seq}")
        return report

    def _open_manifest(self, report: LoadReport) -> None:
        manifest = load_manifest(self._disk)
        if manifest is None:
            manifest = Manifest()
            store_manifest(self._disk, manifest)
        self._manifest = manifest
        self._next_number = manifest.next_number
        report.base, report.journals = manifest.base, manifest.journals
        report.removed = sweep(self._disk, manifest)
        if report.removed:
            report.notes.append(f"removed unfinished files: {', '.join(report.removed)}")

    def _after_frames(self, torn: TornEnd | None, report: LoadReport) -> None:
        names = self._manifest.journals
        if torn is not None:
            kept = torn.kept(names)
            if kept != names:
                self._publish_manifest(Manifest(self._manifest.base, kept, self._next_number))
            cut_torn_end(self._disk, names, torn)
            sweep(self._disk, self._manifest)
            report.torn_bytes = torn.torn_bytes
            report.notes.append(
                f"{names[torn.index]} ended in an unfinished write at offset {torn.offset}:"
                f" {torn.torn_bytes} bytes were cut off, frame {self.last_seq} is the last one"
            )
            names = kept
        if not self._appendonly:
            if names:
                report.notes.append(
                    "appendonly is off: the journal was loaded but new changes are not added to it"
                )
            self._older_bytes = self._sizes_of(names)
            return
        if not names:
            names = (self._first_journal(),)
        self._continue_journal(names)

    def _first_journal(self) -> str:
        name = journal_name(self._next_number)
        self._next_number += 1
        create_journal(self._disk, name).close()
        manifest = self._manifest.with_journal(name)
        self._publish_manifest(Manifest(manifest.base, manifest.journals, self._next_number))
        return name

    def _continue_journal(self, names: tuple[str, ...]) -> None:
        """Append to the last journal. What was read may have been in memory only: sync it first."""
        for name in names[:-1]:
            file = self._disk.append(name)
            file.sync()
            file.close()
        self._older_bytes = self._sizes_of(names[:-1])
        file = self._disk.append(names[-1])
        file.sync()
        self._journal = self._new_journal(file)
        self._attached = True

    def _sizes_of(self, names: tuple[str, ...]) -> int:
        total = 0
        for name in names:
            file = self._disk.read(name)
            total += file.size
            file.close()
        return total

    # ---------------------------------------------------------------------------------------- INFO

    def info(self) -> dict[str, object]:
        """INFO persistence, in Redis' names and order (less rdb_changes_since_last_save)."""
        job = self._job
        now_ms = self._clock()
        saving = job is not None and job.kind == "save"
        rewriting = job is not None and job.kind == "rewrite"
        running_s = (now_ms - job.started_ms) // 1000 if job is not None else -1
        fields: dict[str, object] = {
            "loading": int(self.loading),
            "async_loading": 0,
            "rdb_bgsave_in_progress": int(saving),
            "rdb_last_save_time": self.last_save_s,
            "rdb_last_bgsave_status": _status(self._save_ok),
            "rdb_last_bgsave_time_sec": self._save_s,
            "rdb_current_bgsave_time_sec": running_s if saving else -1,
            "rdb_saves": self._saves,
            "rdb_last_cow_size": 0,
            "rdb_last_load_keys_loaded": self._loaded_keys,
            "aof_enabled": int(self._appendonly),
            "aof_rewrite_in_progress": int(rewriting),
            "aof_rewrite_scheduled": int(self._scheduled == "rewrite"),
            "aof_last_rewrite_time_sec": self._rewrite_s,
            "aof_current_rewrite_time_sec": running_s if rewriting else -1,
            "aof_last_bgrewrite_status": _status(self._rewrite_ok),
            "aof_rewrites": self._rewrites,
            "aof_last_write_status": _status(
                not (self._journal_error or self._space_error or self._lost_error)
            ),
            "aof_last_cow_size": 0,
        }
        if self._appendonly:
            fields["aof_current_size"] = self._current_bytes()
            fields["aof_base_size"] = self._base_bytes
        if self.loading:
            fields.update(self._loading_info(now_ms))
        return fields

    def _loading_info(self, now_ms: int) -> dict[str, object]:
        done, total = self._loader.done_bytes, self._loader.total_bytes
        elapsed_s = (now_ms - self._load_start_ms) / 1000
        eta_s = int(elapsed_s * (total - done) / done) if done else 1
        return {
            "loading_start_time": self._load_start_ms // 1000,
            "loading_total_bytes": total,
            "loading_loaded_bytes": done,
            "loading_loaded_perc": f"{100 * done / total if total else 100:.2f}",
            "loading_eta_seconds": eta_s,
        }


@contextmanager
def _without_collections() -> Iterator[None]:
    """Nothing is garbage while data is loaded: a collector would walk the same new objects again
    and again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _unreadable(error: OSError) -> DataError:
    name = error.filename or "the data directory"
    return DataError(f"{name} cannot be read or written: {_words(error)}")


def _status(ok: bool) -> str:
    return "ok" if ok else "err"


def _words(error: BaseException) -> str:
    """What went wrong, as the operating system says it."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _gone() -> OSError:
    return OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _misconf(error: BaseException) -> bytes:
    return f"MISCONF Errors writing to the AOF file: {_words(error)}".encode()
