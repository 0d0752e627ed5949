"""Following a Redis: how its stream of commands is stored, run and acknowledged.

The commands that arrive during a full sync go to a file, so the source has to buffer nothing. When
the new data is loaded, they run from there, and later ones as they arrive. A slice of them becomes
one frame, which ends with the position in the stream: each command is applied exactly once,
whatever ends this server or the link. A MULTI without EXEC was not applied, and is asked for again.

| part | what it has |
|---|---|
| `full_sync` | an RDB arrives, or is converted or loaded |
| `draining` | commands that were stored meanwhile |
| open | commands run as they arrive |
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Protocol

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.source_effects import SOURCE
from millstream.server.protocol.resp import Limits, RequestStream
from millstream.server.replication.receiver import Receiver
from millstream.server.replication.records import LinkError
from millstream.server.replication.redis_conversion import Converter
from millstream.server.replication.redis_obeyed import CannotFollow, Obeyed, Told
from millstream.server.replication.redis_opening import (
    BeginsAgain,
    Commands,
    Continues,
    RdbEnd,
    RdbPiece,
    RdbSize,
)
from millstream.server.replication.redis_replacement import RedisReplacement
from millstream.server.replication.redis_spool import SpoolFile
from millstream.storage.keyspace.keyspace import Source

log = logging.getLogger("millstream.replication")

_SLICE_BYTES = 16 << 10  # of commands in one turn: about a millisecond's work
_FRAME_BYTES = 4 << 20  # of effects, at which a frame ends
_WAITING_MAX = 1 << 20  # of complete commands that have arrived, before nothing more is read
_QUEUED_MAX = 2 << 20  # of a file that is not written yet
_LIMITS = Limits(1 << 30, 2 << 30)  # of one word and one command
_PACE_S = 0.001  # under load, commands are run together: a frame has a cost of its own
_AGAIN_S = 0.01  # until the journal's queue is checked again
_OBJECT_BYTES = 50  # of a word in memory, or of the list of a command's words, without the bytes
_TRANSACTION = (b"MULTI", b"EXEC", b"DISCARD")
_BRACKETS = frozenset((*_TRANSACTION, *(name.lower() for name in _TRANSACTION)))


class Owner(Protocol):
    """The link."""

    def read_if_below_limit(self) -> None: ...
    def send_ack(self) -> None:
        """Send an acknowledgement to the source."""

    def cannot_follow(self, problem: CannotFollow, offset: int) -> None:
        """The link has to end."""

    def wrong_bytes(self, error: LinkError) -> None:
        """The stream is no stream of commands."""

    def caught_up(self) -> None:
        """The commands that were stored during a full sync have run."""

    def deliver(self, channel: bytes, message: bytes, is_shard: bool) -> None: ...


class Following:
    """The data that arrives from a Redis. `offset` is the number of bytes of its stream that are
    applied; `heard_offset` that of those which have arrived."""

    def __init__(self, receiver: Receiver, converter: Converter, owner: Owner) -> None:
        self.replid = ""
        self.has_rdb = False  # of the last full sync, completely
        self.full_syncs = 0
        self._receiver = receiver
        self._owner = owner
        self._converter = converter
        self._keyspace = receiver.keyspace
        self._executor = receiver.executor
        self._commits = receiver.persistence.commits
        self._loop = receiver.machine.scheduler
        self.obeyed = Obeyed(
            self._executor.context, self._keyspace, Told(owner.deliver, self._acknowledge_soon)
        )
        self._convert_worker = receiver.machine.new_worker("millstream-source", 5)
        self._reader = RequestStream(_LIMITS)
        self._base_offset = 0  # of the first byte that the reader got
        self._applied_bytes = 0  # of the reader
        self._transaction: list[list[bytes]] | None = None
        self._transaction_words = 0
        self._spool: SpoolFile | None = None
        self._catches_up = False  # everything stored was read, and has not run yet
        self._is_open = False
        self._is_reading = False  # the spool
        self._is_scheduled = False
        self._is_stopped = False
        self._ran_s = 0.0
        self._is_ack_due = False
        self._owed_offset = -1  # the source waits until this is on the disk; -1: for nothing
        self._committed: deque[tuple[int, int]] = deque()  # frames and offsets, not on the disk yet
        self._stored_offset = -1

    # The position

    @property
    def offset(self) -> int:
        return self._base_offset + self._applied_bytes

    @property
    def stored_offset(self) -> int:
        """The bytes whose effects are on the disk; -1 without a journal."""
        on_disk_seq = self._commits.on_disk_seq
        if on_disk_seq < 0:
            return -1
        while self._committed and self._committed[0][0] <= on_disk_seq:
            self._stored_offset = self._committed.popleft()[1]
        return self._stored_offset if self._committed else self.offset

    @property
    def dropped_strings(self) -> int:
        """The number of strings of the source that are not known here."""
        return len(self._keyspace.dropped_strings)

    @property
    def spool_bytes(self) -> int:
        """Bytes of commands that arrived during a full sync, and have not run."""
        read = self._reader.waiting_bytes if self.is_draining else 0
        return read if self._spool is None else read + self._spool.left_bytes

    @property
    def is_open(self) -> bool:
        """True if commands run."""
        return self._is_open

    @property
    def is_draining(self) -> bool:
        """True if stored commands have to run before others may be asked for."""
        return self._spool is not None or self._catches_up

    @property
    def is_full(self) -> bool:
        """True if nothing more should be read for now."""
        if self._spool is not None:
            return self._spool.queued_bytes >= _QUEUED_MAX
        change = self._receiver.change
        if isinstance(change, RedisReplacement) and not change.has_ended:
            return change.is_busy
        return self._has_enough

    @property
    def _has_enough(self) -> bool:
        """True if the limit of commands that wait is reached. One that has not arrived completely
        needs more bytes, however many there are of it."""
        return self._reader.waiting_bytes > _WAITING_MAX and not self._reader.needs_more

    # Events of the link

    def continues(self, event: Continues) -> None:
        """The source sends the commands after the position here."""
        source = self._keyspace.source
        assert source is not None  # it was asked for
        self.replid = event.replid or source.replid
        self._begin_at(source.offset)
        try:
            self.obeyed.database = source.database
        except CannotFollow as problem:
            self._stop_at(problem)
            return
        self._is_open = True
        self._commit(is_forced=True)

    def begins_again(self, event: BeginsAgain, *, may_lose: bool) -> None:
        """A full sync."""
        self.full_syncs += 1
        self.has_rdb = False
        self.replid = event.replid
        self._begin_at(event.offset)
        receiver = self._receiver
        receiver.change = RedisReplacement(
            receiver.tools, self._keyspace, receiver.worker, self._convert_worker, self._converter,
            self._owner.read_if_below_limit, receiver.end_full_sync, may_lose=may_lose,
        )  # fmt: skip

    def _begin_at(self, offset: int) -> None:
        self._reader = RequestStream(_LIMITS)
        self._base_offset, self._applied_bytes = offset, 0
        self._transaction = None
        self._is_open = False
        self.obeyed.database = 0
        self._committed.clear()
        self._stored_offset = offset
        self._owed_offset = -1

    def take(self, event: RdbSize | RdbPiece | RdbEnd | Commands) -> None:
        change = self._receiver.change
        if isinstance(event, Commands):
            if self._is_open and self._spool is None:
                self._reader.feed(event.data)
            else:
                self._store(event.data)
        elif not isinstance(change, RedisReplacement):
            raise LinkError("an RDB after the full sync was given up")
        elif isinstance(event, RdbSize):
            change.announce(event.size_bytes)
        elif isinstance(event, RdbPiece):
            change.piece(event.data)
        else:
            change.end_rdb()
            self.has_rdb = True
            self._owner.send_ack()  # a source without a disk sends no command before

    def _store(self, data: bytes) -> None:
        """Keep commands until the new data is loaded."""
        if self._spool is None:
            machine = self._receiver.machine
            self._spool = SpoolFile(
                machine.disk.directory, self._receiver.worker, machine.scheduler,
                self._stored, self._spool_failed,
            )  # fmt: skip
        self._spool.append(data)

    def _stored(self) -> None:
        self._owner.read_if_below_limit()
        self._read_stored()

    def _spool_failed(self, error: Exception) -> None:
        self._drop_spool()
        self._is_open = False
        self._owner.wrong_bytes(LinkError(f"the commands of the source cannot be stored: {error}"))

    def _drop_spool(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        self._is_reading = self._catches_up = False

    def loaded(self) -> None:
        """The data of a full sync is loaded: the stored commands run now."""
        self._is_open = True
        self._commit(is_forced=True)
        self._read_stored()

    def full_sync_failed(self) -> None:
        """The old data stays, and so does its position."""
        self._drop_spool()
        source = self._keyspace.source
        self._begin_at(0 if source is None else source.offset)

    def link_lost(self) -> None:
        """Apply what has arrived. Stored commands run until there are no more."""
        if self._spool is None:
            self.apply_all()
            self._is_open = self._catches_up = False
            self._transaction = None

    def stop(self) -> None:
        """The source is followed no longer."""
        self._is_stopped = True
        self._is_open = False
        self._drop_spool()
        # Its thread closes the files of a conversion that was ended, which the other one asks for.
        self._receiver.worker.submit(self._convert_worker.stop)

    # Stored commands

    def _read_stored(self) -> None:
        spool = self._spool
        if not self._is_open or self._is_reading or spool is None or self._has_enough:
            return
        if spool.left_bytes == 0:
            self._drop_spool()
            self._catches_up = True
            self._run_soon()
        elif spool.queued_bytes < spool.left_bytes:
            self._is_reading = True
            spool.read(self._take_stored)

    def _take_stored(self, data: bytes) -> None:
        self._is_reading = False
        self._reader.feed(data)
        self._run_soon()
        self._read_stored()

    # Running commands

    def turn_ends(self) -> None:
        """Everything was taken that has arrived in this turn."""
        if self._is_scheduled:
            return
        now_s = time.monotonic()
        if now_s - self._ran_s < 2 * _PACE_S:
            self._run_later(_PACE_S)
        else:
            self._run()

    def _run_soon(self) -> None:
        if not self._is_scheduled and not self._is_stopped:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run_later(self, seconds: float) -> None:
        self._is_scheduled = True
        self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._ran_s = time.monotonic()
        if not self._is_open:
            return
        if self._commits.queued_bytes > self._receiver.config.journal_queue_limit:
            self._run_later(_AGAIN_S)
            return
        if self._run_slice():
            self._run_soon()
        elif self._catches_up:  # the position counts them all
            self._catches_up = False
            self._owner.caught_up()
        if self._spool is not None:
            self._read_stored()
        else:
            self._owner.read_if_below_limit()

    def apply_all(self) -> None:
        """Run all complete commands that have arrived."""
        while self._is_open and self._run_slice():
            pass

    def _run_slice(self) -> bool:
        """Run some commands; False if there are no more complete ones."""
        reader, effects = self._reader, self._executor.effects
        append, run = self.obeyed.append, self.obeyed.run
        end = reader.taken_bytes + _SLICE_BYTES
        has_more = True
        self._executor.recheck_limits()
        self._receiver.is_applying = True
        try:
            with self.obeyed.running():
                while reader.taken_bytes < end:
                    args = self._next()
                    if args is None:
                        has_more = False
                        break
                    if self._transaction is not None or not append(args):
                        words = args.all()
                        if self._transaction is not None or words[0] in _BRACKETS:
                            self._take_other(words)
                            continue
                        run(words)
                    self._applied_bytes = reader.taken_bytes
                    if len(effects) > _FRAME_BYTES:
                        break
        except CannotFollow as problem:
            self._stop_at(problem)
            return False
        except LinkError as error:
            self._is_open = False
            self._drop_spool()
            self._commit()
            self._owner.wrong_bytes(error)
            return False
        except Exception:  # a bug: the data is that of no position
            log.exception("a command of the source has failed")
            self._stop_at(CannotFollow("a command has failed; the log says why"))
            return False
        finally:
            self._receiver.is_applying = False
        self._commit()
        return has_more and self._is_open

    def _next(self) -> Args | None:
        """The next command, if it has arrived; it is valid until the next one is read. LinkError
        for other bytes."""
        try:
            return self._reader.next_args()
        except ValueError as error:
            raise LinkError(str(error)) from None

    def _take_other(self, words: list[bytes]) -> None:
        """A command of a transaction, or its beginning or end."""
        if words[0] in _BRACKETS:
            self._take_bracket(words[0].upper())
        else:
            self._queue(words)
        if self._transaction is None:
            self._applied_bytes = self._reader.taken_bytes

    def _queue(self, words: list[bytes]) -> None:
        """Keep a command of a transaction until EXEC. CannotFollow if they need too much memory."""
        assert self._transaction is not None
        self._transaction.append(words)
        self._transaction_words += len(words)
        objects = self._transaction_words + len(self._transaction)
        size_bytes = self._reader.taken_bytes - self._applied_bytes + objects * _OBJECT_BYTES
        most_bytes = self._receiver.config.client_query_buffer_limit
        if size_bytes > most_bytes:
            raise CannotFollow(
                f"a MULTI of the source has no EXEC after {len(self._transaction)} commands, which"
                f" need {size_bytes} bytes of memory: client-query-buffer-limit allows {most_bytes}"
            )

    def _take_bracket(self, name: bytes) -> None:
        """MULTI, EXEC or DISCARD. The commands between are one frame."""
        if (name == b"MULTI") != (self._transaction is None):
            raise CannotFollow(f"the source sent {name.decode()} in a wrong place")
        if name == b"MULTI":
            self._transaction, self._transaction_words = [], 0
            return
        commands, self._transaction = self._transaction or [], None
        if name == b"DISCARD":
            return
        for words in commands:
            self.obeyed.run(words)

    def _stop_at(self, problem: CannotFollow) -> None:
        """A command cannot run: the data here is that of no position any more."""
        offset = self.offset
        self._is_open = False
        self._transaction = None
        self._drop_spool()
        self._executor.effects.record(-1, SOURCE, b"", 0, 0)
        self._executor.flush_tick()
        self._keyspace.source = None
        self._executor.applied()
        self._owner.cannot_follow(problem, offset)

    def _commit(self, *, is_forced: bool = False) -> None:
        """End the frame with the position."""
        source = Source(self.replid, self.offset, self.obeyed.database)
        effects = self._executor.effects
        if len(effects) or is_forced:
            effects.record(-1, SOURCE, source.replid.encode(), source.offset, source.database)
            self._executor.flush_tick()
            self._committed.append((self._commits.last_seq, source.offset))
        self._keyspace.source = source  # a frame that begins a line of history forgets it
        self._executor.applied()

    # Acknowledging

    def _acknowledge_soon(self) -> None:
        """The source asks for an acknowledgement. It may wait until what it has sent is stored."""
        self._owed_offset = self.offset
        if not self._is_ack_due:
            self._is_ack_due = True
            self._loop.call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        self._is_ack_due = False
        self._owner.send_ack()

    def stored_more(self) -> bool:
        """The journal was synced. True if the source waits for that."""
        if self._owed_offset < 0 or self.stored_offset < self._owed_offset:
            return False
        self._owed_offset = -1
        return True
