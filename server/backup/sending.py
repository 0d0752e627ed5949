"""The backups that this server sends: the answer to BACKUP, and the data after it.

With a journal, a backup is what is on the disk: the current base and all durable frames after it.
They are opened together and stay readable until they are sent, although a rewrite may replace them,
so a backup needs no pause, no setting and no file. Without a journal, a snapshot is written to a
file without a name first.

A worker reads the files in pieces, and the event loop sends no more than the connection takes: a
slow client costs no memory, and a backup ends with its connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from millstream import __version__
from millstream.commands.admin.client_line import user_name
from millstream.errors import CommandError, DataError, printable, readable
from millstream.server.backup.rests import Rests
from millstream.server.config.directives import Config
from millstream.server.durability.data_files import in_words
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine, post
from millstream.server.replication.history import NO_HISTORY
from millstream.storage.files.disk import File
from millstream.storage.files.manifest import Manifest
from millstream.storage.keyspace.keyspace import Keyspace

# Loaded with the first backup.
if TYPE_CHECKING:
    from millstream.server.backup.answer import BackupAnswer
    from millstream.server.backup.backup_feed import BackupFeed
    from millstream.server.backup.stream_copy import StreamCopy
    from millstream.server.replication.backlog import OldData
    from millstream.storage.files.snapshot_format import Header

log = logging.getLogger("millstream.backup")

BACKUPS_MAX = 8  # at once: each keeps files open that a rewrite may replace
_OPEN_TRIES = 5
_AGAIN_S = 0.1
_DURABLE_S = 0.005
_NICENESS = 5
_JOURNAL_FAILED = (
    "ERR the journal of this server does not work, so its files do not have all data: see its log"
)
_REPLACED = "TRYAGAIN the data of this server is being replaced by that of its primary"
_FORMAT_1 = "the base has format 1, which cannot be sent: write a new one with BGREWRITEAOF"


class Backups:
    """All backups that this server sends. `is_replica()` tells the role, `note_readers(clients,
    now_ms)` notes which of them have read something, and `commands()` counts all commands."""

    def __init__(
        self,
        config: Config,
        machine: Machine,
        keyspace: Keyspace,
        persistence: Persistence,
        is_replica: Callable[[], bool],
        note_readers: Callable[[list[Any], int], None],
        commands: Callable[[], int],
    ) -> None:
        self.config = config
        self.machine = machine
        self.keyspace = keyspace
        self.persistence = persistence
        self.is_replica = is_replica
        self.note_readers = note_readers
        self.commands = commands
        self.by_client: dict[int, BackupFeed] = {}
        self.last_s = 0  # the time of the data in the last complete backup of this process
        self._worker = self.machine.new_worker("millstream-backups", _NICENESS)
        machine = self.machine
        self._rests = Rests(self.commands, machine.steady_clock, machine.thread_s)

    def __iter__(self) -> Iterator[BackupFeed]:
        """A copy: sending may end a backup."""
        return iter(list(self.by_client.values()))

    def begin(self, client: Any, stream: tuple[int, bytes] | None = None) -> None:
        """BACKUP: the client gets all data, or that of one stream, given by its database and key.
        CommandError when that is impossible."""
        from millstream.server.backup.backup_feed import BackupFeed

        if client.feed is not None:
            raise CommandError("ERR this connection has a backup or is the link of a replica")
        if len(self.by_client) >= BACKUPS_MAX:
            raise CommandError(f"ERR {BACKUPS_MAX} backups are being sent already: try again later")
        persistence = self.persistence
        if persistence.appendonly and not persistence.commits.works:
            raise CommandError(_JOURNAL_FAILED)
        if persistence.snapshots.suspended:
            raise CommandError(_REPLACED)
        persistence.commits.flush_tick()
        copy = None if stream is None else self._copy_of(*stream)
        self._rests.begin_backup()
        feed = BackupFeed(
            client,
            self.machine,
            self._worker,
            self._rests,
            on_sent=self._note_sent if copy is None else lambda data_ms: None,
            on_end=self.remove,
            count=self.by_client.__len__,
        )
        client.feed = feed
        self.by_client[client.id] = feed
        log.info(
            "a backup begins for %s, user %s", feed.address, printable(readable(user_name(client)))
        )
        if copy is None:
            self.machine.scheduler.call_soon(self._prepare, feed)
        else:
            self.machine.scheduler.call_soon(self._prepare_stream, feed, copy)

    def _note_sent(self, data_ms: int) -> None:
        self.last_s = max(self.last_s, data_ms // 1000)

    def remove(self, client: Any) -> None:
        """A backup has ended, or a connection was closed. Connections without a backup are
        ignored."""
        feed = self.by_client.pop(client.id, None)
        if feed is None:
            return
        client.feed = None
        if feed.job is not None:
            feed.job.cancelled = True
        feed.close()

    def tick_second(self) -> None:
        if not self.by_client:
            return
        clients = [feed.client for feed in self]
        self.note_readers(clients, self.machine.steady_clock())
        for feed in self:
            feed.tick_second(self.config.repl_timeout * 1000)

    def stop(self) -> None:
        for feed in self:
            feed.drop("the server stops")
        self._worker.stop()

    # One stream

    def _copy_of(self, db: int, key: bytes) -> StreamCopy:
        """A stream at this moment. CommandError if there is none."""
        from millstream.server.backup.stream_copy import capture_stream

        if not 0 <= db < len(self.keyspace.databases):
            raise CommandError("ERR DB index is out of range")
        files, commits = self.persistence.files, self.persistence.commits
        copy = capture_stream(self.keyspace, db, key, commits, self.machine.clock())
        if copy is None:
            raise CommandError(f"ERR no such stream in database {db}")
        copy.number, copy.directory = files.new_number(), files.directory
        copy.suspensions = self.persistence.snapshots.suspensions
        return copy

    def _prepare_stream(self, feed: BackupFeed, copy: StreamCopy) -> None:
        """Write the stream to a file without a name, when everything in it is durable."""
        if self._is_over(feed) or self._is_impossible(feed, copy):
            return
        if feed.client.held_bytes or self.persistence.commits.durable_seq < copy.seq:
            self.machine.scheduler.call_later(_DURABLE_S, self._prepare_stream, feed, copy)
            return
        snapshots, files = self.persistence.snapshots, self.persistence.files
        files.unfinished.add(copy.name)

        def write() -> None:
            file, error = copy.write(files.disk, snapshots.worker.pause)
            post(self.machine.scheduler, self._stream_written, feed, copy, file, error)

        snapshots.worker.submit(write)

    def _is_impossible(self, feed: BackupFeed, copy: StreamCopy | None = None) -> bool:
        """Refuse a backup that waits, if its data was replaced or is being replaced."""
        snapshots = self.persistence.snapshots
        if snapshots.suspended or (copy and copy.suspensions != snapshots.suspensions):
            feed.refuse(_REPLACED)
            return True
        return False

    def _stream_written(
        self, feed: BackupFeed, copy: StreamCopy, file: File | None, error: Exception | None
    ) -> None:
        self.persistence.files.unfinished.discard(copy.name)
        if not self._is_over(feed) and self._is_impossible(feed, copy):
            if file is not None:
                self._worker.submit(file.close)
            return
        self._copied(feed, file, copy.seq, error)

    # Choosing the data

    def _is_over(self, feed: BackupFeed) -> bool:
        return self.by_client.get(feed.client.id) is not feed or feed.client.closed

    def _prepare(self, feed: BackupFeed, tries: int = 0) -> None:
        """Open the files, or have a snapshot written. Both may have to wait for another step of the
        server: the client gets a line each second."""
        if self._is_over(feed) or self._is_impossible(feed):
            return
        if feed.client.held_bytes:  # replies to earlier requests of this connection
            self._prepare_later(feed, tries)
            return
        if not self.persistence.appendonly:
            feed.job = self.persistence.snapshots.copy(self._done_for(feed.client.id))
            if feed.job is None:
                self._prepare_later(feed, 0)
            return
        try:
            opened = self._open()
        except FileNotFoundError as error:  # a rewrite has just replaced it
            if tries >= _OPEN_TRIES:
                feed.refuse(f"ERR a file cannot be opened: {in_words(error)}")
            else:
                self._prepare_later(feed, tries + 1)
        except (OSError, DataError) as error:
            feed.refuse(f"ERR a file cannot be read: {in_words(error)}")
        else:
            feed.begin(*opened)

    def _done_for(self, number: int) -> Callable[..., None]:
        """The job that calls this may outlive the client with this number, and must not keep it in
        memory."""
        return lambda *done: self._copied(self.by_client.get(number), *done)

    def _prepare_later(self, feed: BackupFeed, tries: int) -> None:
        self.machine.scheduler.call_later(_AGAIN_S, self._prepare, feed, tries)

    def _open(self) -> tuple[BackupAnswer, OldData]:
        """The current base, and all frames after it that are durable."""
        files, last_seq = self.persistence.files, self.persistence.commits.durable_seq
        manifest = files.manifest
        base = None if manifest.base is None else files.disk.read(manifest.base)
        try:
            base_seq = 0 if base is None else _header_of(base).seq
        except BaseException:
            assert base is not None
            base.close()
            raise
        return self._opened(manifest, base, base_seq, max(last_seq, base_seq))

    def _opened(
        self, manifest: Manifest, base: File | None, base_seq: int, last_seq: int
    ) -> tuple[BackupAnswer, OldData]:
        from millstream.server.backup.answer import BackupAnswer
        from millstream.server.replication.backlog import OldData

        data = OldData(
            self.persistence.files.disk,
            manifest,
            base_seq + 1,
            last_seq,
            base=base,
            pause=self._worker.pause,
        )
        lines = self.keyspace.histories
        answer = BackupAnswer(
            version=__version__,
            role="slave" if self.is_replica() else "master",
            history=lines[-1][0] if lines else NO_HISTORY,
            base_seq=base_seq,
            base_bytes=0 if base is None else base.size,
            last_seq=last_seq,
            wall_ms=self.machine.clock(),
        )
        return answer, data

    def _copied(
        self, feed: BackupFeed | None, copy: File | None, seq: int, error: BaseException | None
    ) -> None:
        """A snapshot is written to a file without a name, or has failed."""
        if feed is None or self._is_over(feed):
            if copy is not None:
                self._worker.submit(copy.close)
        elif copy is None:
            reason = "it was cancelled" if error is None else in_words(error)
            feed.refuse(f"ERR the snapshot for the backup could not be written: {reason}")
        else:
            manifest = self.persistence.files.manifest._replace(journals=())
            feed.begin(*self._opened(manifest, copy, seq, seq))


def _header_of(base: File) -> Header:
    """DataError when the base is damaged, or has format 1."""
    from millstream.storage.files.snapshot_reader import SnapshotEnds

    header = SnapshotEnds(base).read_header()
    if not header.has_identity:
        raise DataError(_FORMAT_1)
    return header
