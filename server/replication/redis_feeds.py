"""The programs and Redis servers that ask for data with SYNC or PSYNC, as Redis' replicas do.

1. capture (loop and workers): a snapshot of this moment, in a file without a name
   (`Snapshots.copy`), one after the other.
2. dump (another process, and a thread that waits for it): the snapshot becomes an RDB, in another
   file without a name.
3. send (loop, and a worker that reads): the RDB, as fast as the connection takes it.
4. commands, for those that stay: one stream for all (`redis_stream`), made of the frames that are
   recorded from before the capture on (`redis_commands`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from millstream.errors import CommandError, DataError, counted
from millstream.server.config.directives import Config
from millstream.server.durability.data_files import in_words
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine, TaskWorker, post
from millstream.server.execution.executor import Executor
from millstream.server.replication.feeds import check_output
from millstream.server.replication.history import NO_HISTORY
from millstream.server.replication.link_words import encode_request
from millstream.server.replication.standing import Late, Standing
from millstream.storage.files.disk import File, SystemFile

# These are loaded with the first program that asks for data: few servers have one.
if TYPE_CHECKING:
    from millstream.server.replication.redis_commands import Translation
    from millstream.server.replication.redis_dump import Dumped
    from millstream.server.replication.redis_feed import RedisFeed, Wanted
    from millstream.server.replication.redis_spool import SpoolFile
    from millstream.server.replication.redis_stream import CommandStream, Mark

log = logging.getLogger("millstream.replication")

FEEDS_MAX = 8  # full syncs at once: each needs space on the disk
_AGAIN_S = 0.1
_DURABLE_S = 0.005
_NICENESS = 5
_REPLACED = "the data of this server is being replaced by that of its primary: try again later"
_PING_S = 1  # of silence, after which the stream gets a PING: no repl-timeout is shorter
_GETACK = encode_request((b"REPLCONF", b"GETACK", b"*"))
_PING = encode_request((b"PING",))


class RedisFeeds:
    """All of them. `new_id` makes 40 random hexadecimal digits. There is a `stream` from the first
    Redis that follows this server until repl-backlog-ttl after the last one has gone."""

    def __init__(
        self,
        config: Config,
        machine: Machine,
        persistence: Persistence,
        executor: Executor,
        standing: Standing,
        late: Late,
        new_id: Callable[[], str],
    ) -> None:
        self.config = config
        self.machine = machine
        self.persistence = persistence
        self.executor = executor
        self.standing = standing
        self._late = late
        self.new_id = new_id
        self.by_client: dict[int, RedisFeed] = {}
        self.stream: CommandStream | None = None
        self.full_syncs = self.partial_syncs = self.refused_partial_syncs = 0
        self._ends: deque[Mark] = deque()  # since the oldest capture that is not complete
        self._asked_seq = -1  # the frame up to which an acknowledgement is asked for
        self._is_release_due = False
        self._used_ms = self._sent_ms = 0
        self._workers: tuple[TaskWorker, TaskWorker] | None = None

    def __iter__(self) -> Iterator[RedisFeed]:
        """A copy: sending may end a link."""
        return iter(list(self.by_client.values()))

    def __len__(self) -> int:
        return len(self.by_client)

    @property
    def staying(self) -> list[RedisFeed]:
        """The Redis servers that follow this one."""
        return [feed for feed in self if feed.wanted.stays]

    def begin(
        self, client: Any, host: str, port: int, wanted: Wanted, position: tuple[bytes, int] | None
    ) -> None:
        """The client gets all data, or the commands after a position: the ID of a stream, and the
        offset of the next byte. CommandError when that is impossible."""
        from millstream.server.replication.redis_feed import RedisFeed

        self._check(client, wanted)
        if self._workers is None:
            self._dumper = self._late.dumper  # for another thread
            new_worker = self.machine.new_worker
            self._workers = (
                new_worker("millstream-rdb", _NICENESS), new_worker("millstream-dump", _NICENESS)
            )  # fmt: skip
        feed = RedisFeed(self.machine, client, host, port, wanted, self.remove)
        if wanted.stays:
            self._begin_stream()
        client.feed = feed
        self.by_client[client.id] = feed
        self.machine.scheduler.call_soon(self._answer, feed, position)

    def _check(self, client: Any, wanted: Wanted) -> None:
        if client.feed is not None:
            raise CommandError("ERR this connection has a backup or is the link of a replica")
        reason = self._why_impossible(wanted)
        if reason:
            raise CommandError(f"{wanted.error_code} {reason}")

    def _why_impossible(self, wanted: Wanted) -> str:
        """The reason why nothing can be sent now; "" if there is none."""
        if sum(not feed.is_online for feed in self) >= FEEDS_MAX:
            return f"{FEEDS_MAX} full syncs are under way already: try again later"
        if self.persistence.snapshots.suspended:
            return _REPLACED
        if not wanted.stays:
            return ""
        if self.standing.is_replica:
            return (
                "this server is a replica, and only a primary sends commands to a Redis: follow"
                " its primary. A program that wants an RDB sends REPLCONF rdb-only 1 before"
            )
        if not self.persistence.appendonly:
            return (
                "this server has appendonly off: it needs a journal to feed replicas. A program"
                " that wants an RDB sends REPLCONF rdb-only 1 before"
            )
        if not self.persistence.commits.works:
            return "the journal of this server is not working"
        return ""

    def _answer(self, feed: RedisFeed, position: tuple[bytes, int] | None) -> None:
        if feed.is_over:
            return
        stream = self.stream
        if position is not None and stream is not None and feed.wanted.stays:
            replid, offset = position[0], position[1] - 1
            if replid == stream.replid.encode() and stream.has(offset):
                self.partial_syncs += 1
                log.info("%s continues after the offset %d", feed.address, offset)
                feed.continue_at(stream, offset, b"+CONTINUE %s\r\n" % replid)
                return
        self.full_syncs += 1
        self.refused_partial_syncs += position is not None and position[1] > 0
        log.info("%s asks for all data, as an RDB of Redis %s", feed.address, feed.wanted.redis)
        if stream is not None and feed.wanted.stays:
            self._release()
            feed.keep_commands(self._file_for(feed, "commands cannot be stored"), stream.end)
            self._ends.append(stream.made)
        self._capture(feed)

    def _file_for(
        self, feed: RedisFeed, problem: str, file: IO[bytes] | None = None, size_bytes: int = 0
    ) -> SpoolFile:
        """A file of a feed, which ends with this problem if it cannot be used."""
        from millstream.server.replication.redis_spool import SpoolFile

        assert self._workers is not None
        return SpoolFile(
            self.persistence.files.disk.directory, self._workers[0], self.machine.scheduler,
            on_written=lambda: None,
            on_error=lambda error: feed.drop(f"{problem}: {in_words(error)}"),
            file=file, size_bytes=size_bytes,
        )  # fmt: skip

    def remove(self, client: Any) -> None:
        """A link has ended, or a connection was closed. Other connections are ignored."""
        feed = self.by_client.pop(client.id, None)
        if feed is not None:
            client.feed = None
            feed.close()
            self._forget_ends()

    def _forget_ends(self) -> None:
        """Forget where frames end in the stream, unless a capture has begun or waits."""
        if not any(feed.state == "handshake" for feed in self.staying):
            self._ends.clear()

    def tick_second(self) -> None:
        for feed in self:
            feed.tick_second(self.config.repl_timeout * 1000)
        if self.stream is None:
            return
        now_ms, ttl_ms = self.machine.steady_clock(), self.config.repl_backlog_ttl * 1000
        self.stream.limit_bytes = self.config.repl_backlog_size
        if self.staying:
            self._used_ms = now_ms
            if now_ms - self._sent_ms >= _PING_S * 1000:
                self.stream.add_unframed(_PING)
                self._release()
            for feed in self.staying:
                if feed.client.paused:
                    check_output(self.executor, feed.client)
        elif ttl_ms and now_ms - self._used_ms > ttl_ms:
            self.end_stream("")

    def stop(self) -> None:
        for feed in self:
            feed.drop("the server stops")
        self.end_stream("")
        if self._workers is not None:
            self._dumper.stop()
            for worker in self._workers:
                worker.stop()

    # The stream

    @cached_property
    def _translation(self) -> Translation:
        from millstream.server.replication.redis_commands import Translation

        clocks = self.executor.clocks
        return Translation(self.executor.keyspace, lambda: clocks.ahead_ms)

    def _begin_stream(self) -> None:
        if self.stream is None:
            from millstream.server.replication.redis_stream import CommandStream

            commits = self.persistence.commits
            commits.flush_tick()
            self.stream = CommandStream(
                self.new_id(), self.config.repl_backlog_size, commits.last_seq, commits.frame_bytes
            )
            self._translation.database = -1
            self._used_ms = self._sent_ms = self.machine.steady_clock()
            commits.keep_frames(self._keep, "redis")
            self.executor.keyspace.names_deleted = True

    def end_stream(self, reason: str) -> None:
        """End the stream and the links that need it: the frames of this server have changed."""
        if self.stream is None:
            return
        self.stream = None
        self._ends.clear()
        self.persistence.commits.keep_frames(None, "redis")
        self.executor.keyspace.names_deleted = False
        for feed in self.staying:
            feed.drop(reason)

    def _keep(self, seq: int, payload: bytes) -> None:
        """A frame was recorded here: add its commands to the stream."""
        stream = self.stream
        assert stream is not None
        commits = self.persistence.commits
        if self._ends:  # the RDB of a feed may end before this frame: it knows no database
            self._translation.database = -1
        try:
            data = self._translation.commands(payload)
        except Exception:
            log.exception("frame %d cannot be translated into commands of Redis", seq)
            self.machine.scheduler.call_soon(self.end_stream, "a frame cannot be translated")
            data = b""
        stream.add(data, seq, commits.frame_bytes)
        if self._ends:
            self._ends.append(stream.made)
        if commits.durable_seq >= seq:
            self._release_soon()

    def durable(self) -> None:
        """More frames are durable."""
        if self.stream is not None:
            self._release_soon()

    def _release_soon(self) -> None:
        if not self._is_release_due:
            self._is_release_due = True
            self.machine.scheduler.call_soon(self._release)

    def _release(self) -> None:
        """Send the commands of durable frames."""
        self._is_release_due = False
        stream = self.stream
        if stream is None:
            return
        if 0 <= self._asked_seq <= stream.made.seq:
            self._asked_seq = -1
            stream.add_unframed(_GETACK)
        before = stream.end
        data = stream.take_durable(self.persistence.commits.durable_seq)
        if stream.end is not before:
            self._sent_ms = self.machine.steady_clock()
            for feed in self.staying:
                feed.take(data, stream.end, self.config.replica_redis_spool_limit)

    # Acknowledgements

    def acknowledge(self, client: Any, offset: int) -> None:
        feed = self.by_client.get(client.id)
        if feed is not None:
            feed.acknowledge(offset)

    def ask(self) -> None:
        """Ask for an acknowledgement of the changes so far: a client waits for it."""
        if self.stream is not None and self.staying:
            pending = bool(len(self.executor.effects))
            self._asked_seq = self.persistence.commits.last_seq + pending
            self._release_soon()

    def applied_on(self, seq: int) -> int:
        """The number of Redis servers that have applied this frame."""
        return sum(
            1 for feed in self.by_client.values() if feed.is_online and feed.acked.seq >= seq
        )

    # The data of this moment

    def _capture(self, feed: RedisFeed) -> None:
        if feed.is_over:
            return
        snapshots = self.persistence.snapshots
        if snapshots.suspended:
            feed.refuse(_REPLACED)
            return
        if not feed.client.held_bytes:  # replies to earlier requests of this connection
            feed.job = snapshots.copy(self._captured_for(feed.client.id))
        if feed.job is None:
            self.machine.scheduler.call_later(_AGAIN_S, self._capture, feed)

    def _captured_for(self, number: int) -> Callable[..., None]:
        """The job that calls this may outlive the client with this number, and must not keep it in
        memory."""
        return lambda *done: self._captured(self.by_client.get(number), *done)

    def _captured(
        self, feed: RedisFeed | None, base: File | None, seq: int, error: BaseException | None
    ) -> None:
        assert self._workers is not None
        if base is not None and (feed is None or feed.is_over):
            self._workers[0].submit(base.close)
        elif feed is None or feed.is_over:
            pass
        elif base is None:
            reason = "it was cancelled" if error is None else in_words(error)
            feed.refuse(f"the snapshot could not be written: {reason}")
        else:
            if feed.wanted.stays:
                feed.begin_at(self._end_of(seq))
            feed.job, feed.state = None, "wait_bgsave"
            self._workers[1].submit(lambda: self._dump(feed, base, seq))
        self._forget_ends()

    def _end_of(self, seq: int) -> int:
        """The offset after the commands of a frame, or of the last one before it. The commands
        after it select a database."""
        self._translation.database = -1
        return max(mark.offset for mark in self._ends if mark.seq <= seq)

    # The RDB

    def _dump(self, feed: RedisFeed, base: File, seq: int) -> None:
        """On the thread of dumps."""
        result: tuple[Dumped, IO[bytes], int] | Exception
        try:
            result = DataError("the link is over") if feed.is_over else self._rdb_of(feed, base)
        except (OSError, DataError) as error:
            result = error
        base.close()
        post(self.machine.scheduler, self._dumped, feed, seq, result)

    def _rdb_of(self, feed: RedisFeed, base: File) -> tuple[Dumped, IO[bytes], int]:
        if not isinstance(base, SystemFile):
            raise DataError("the data directory is not on a file system")
        import tempfile

        from millstream.server.replication.redis_dump import DumpOrder

        rdb = tempfile.TemporaryFile(dir=self.persistence.files.disk.directory, buffering=0)  # noqa: SIM115
        try:
            wanted, wall_ahead_ms = feed.wanted, self.executor.clocks.ahead_ms
            dumped = self._dumper.dump(
                DumpOrder(
                    base.descriptor, rdb.fileno(), wanted.redis, wall_ahead_ms, wanted.with_keys,
                    self.config.import_memory_limit,
                )
            )  # fmt: skip
            return dumped, rdb, rdb.seek(0, 2)
        except BaseException:
            rdb.close()
            raise

    def _dumped(
        self, feed: RedisFeed, seq: int, result: tuple[Dumped, IO[bytes], int] | Exception
    ) -> None:
        if isinstance(result, Exception):
            if not feed.is_over:
                feed.refuse(in_words(result))
            return
        dumped, rdb, size_bytes = result
        if feed.is_over:
            rdb.close()
        elif self.persistence.commits.durable_seq < seq:
            self.machine.scheduler.call_later(_DURABLE_S, self._dumped, feed, seq, result)
        else:
            self._report(feed, dumped)
            file = self._file_for(feed, "the RDB cannot be read", rdb, size_bytes)
            feed.begin_rdb(self._full_sync_answer(feed), file)

    def _full_sync_answer(self, feed: RedisFeed) -> bytes:
        if not feed.wanted.uses_psync:
            return b""
        replid = NO_HISTORY if self.stream is None else self.stream.replid
        return b"+FULLRESYNC %s %d\r\n" % (replid.encode(), feed.begin_offset)

    @staticmethod
    def _report(feed: RedisFeed, dumped: Dumped) -> None:
        log.info(
            "%s gets %s with %s, and %s", feed.address, counted(dumped.streams, "stream"),
            counted(dumped.entries, "entry"), counted(dumped.strings, "string"),
        )  # fmt: skip
        if dumped.lost:
            log.warning(
                "the RDB for %s leaves out parts of %s: %s%s", feed.address,
                counted(dumped.lost, "stream"), "; ".join(dumped.examples),
                "; ..." if dumped.lost > len(dumped.examples) else "",
            )  # fmt: skip
