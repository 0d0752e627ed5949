"""The data of a replica: frames are applied, a base replaces the data, a rewind cuts it back.

Whole frames are applied, the first slice in the turn in which they arrive and one in each later
turn, and committed under their own numbers.

The trust in the data here (`Receiver.trust`):

| trust | meaning | what ends it |
|---|---|---|
| KNOWN | the last frame's number identifies the data: the next link continues after it | |
| UNKNOWN | no number identifies it: the next link asks for a full sync | that, another primary |
| WRONG | the same, and it may be wrong: reads and a promotion are refused | a full sync |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto
from functools import partial
from typing import Protocol

from millstream.commands.runtime.effects import EffectError, apply_effects
from millstream.server.config.directives import Config
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine, TaskWorker
from millstream.server.execution.executor import Executor
from millstream.server.replication.link_protocol import FullSync
from millstream.server.replication.records import LinkError, Record, RecordKind, parse_piece
from millstream.server.replication.reload import ChangeTools, Reload
from millstream.server.replication.replacement import DataReplacement, Replacement
from millstream.server.replication.rewinding import Rewinding, why_impossible
from millstream.storage.files.frame_times import begins_line
from millstream.storage.keyspace.keyspace import Keyspace

_SLICE_BYTES = 64 << 10  # applied in one turn: less than a millisecond's work
_PENDING_MAX = 1 << 20  # received and not applied, before nothing more is read
_AGAIN_S = 0.01  # until the journal's queue is checked again


class Trust(Enum):
    KNOWN = auto()
    UNKNOWN = auto()
    WRONG = auto()


class Source(Protocol):
    """The link on which the data arrives."""

    def read_if_below_limit(self) -> None:
        """There may be room for more."""

    def frames_applied(self) -> None: ...
    def frame_failed(self, seq: int, error: EffectError) -> None:
        """The data is WRONG."""

    def full_sync_ended(self, error: Exception | None) -> None: ...
    def rewind_ended(self, error: Exception | None) -> None: ...


@dataclass(eq=False, repr=False)
class Receiver:
    """`change` is a full sync or a rewind that has not ended; there is no connection to a primary
    while it is one of an earlier link. `rewind_seq`: the primary asked for a rewind to this frame;
    -1: never. `is_applying`: a slice is half applied, so the data here is that of no frame.

    `on_published` is called when other frames count on the disk, `on_changed(is_whole)` when a
    change has ended; false: the data in memory is not that on the disk.
    """

    config: Config
    machine: Machine
    keyspace: Keyspace
    persistence: Persistence
    executor: Executor
    worker: TaskWorker
    _: KW_ONLY
    on_published: Callable[[], None]
    on_changed: Callable[[bool], None]

    def __post_init__(self) -> None:
        self.trust = Trust.KNOWN
        self.change: DataReplacement | Rewinding | None = None
        self.rewind_seq = -1
        self.is_applying = False
        self._loop = self.machine.scheduler
        load = partial(Reload, self.machine, self.keyspace, self.persistence, self.executor)
        self.tools = ChangeTools(
            self.machine, self.persistence, self.executor, load, self.on_published
        )
        self._source: Source | None = None
        self._is_open = False  # frames may be applied; those that arrive before wait
        self._due_seq = 0  # the number that the next frame from the primary must have
        self._pending: deque[Record] = deque()
        self._pending_bytes = 0
        self._is_scheduled = False

    # The link

    def attach(self, source: Source) -> None:
        """This server follows another primary from now on."""
        self._source = source
        self.rewind_seq = -1
        if self.trust is Trust.UNKNOWN:
            self.trust = Trust.KNOWN

    def detach(self) -> None:
        """The primary is followed no longer. New data that counts on the disk already is loaded."""
        self._source = None
        self._close()
        if self.change is not None:
            self.change.cancel()

    def continue_frames(self) -> None:
        """The frames after the last one here follow. Some may have arrived after a base that was
        loaded meanwhile."""
        self.trust = Trust.KNOWN
        self._is_open = True
        self._due_seq = self.persistence.commits.last_seq + 1 + len(self._pending)

    def link_lost(self) -> None:
        self._close()
        if self.change is not None:
            self.change.link_lost()

    def _close(self) -> None:
        """Drop the frames that are not applied yet."""
        self._is_open = False
        self._pending.clear()
        self._pending_bytes = 0

    # The data here

    @property
    def is_wrong(self) -> bool:
        return self.trust is Trust.WRONG

    @property
    def is_changing(self) -> bool:
        """True if the data on the disk is other data already than that in memory."""
        return self.change is not None and self.change.is_published

    def doubt(self) -> None:
        """No frame's number identifies the data here any more."""
        if self.trust is Trust.KNOWN:
            self.trust = Trust.UNKNOWN

    # Arriving records

    @property
    def is_full(self) -> bool:
        """True if the limit of waiting bytes is reached, so that no more should be read."""
        change = self.change
        if isinstance(change, Replacement) and (change.is_busy or change.has_ended):
            return True
        return self._pending_bytes > _PENDING_MAX

    def _receiving(self) -> Replacement | None:
        """The full sync of which more is due."""
        change = self.change
        return change if isinstance(change, Replacement) and not change.has_ended else None

    def take(self, record: Record) -> None:
        """A frame, or a part of a base. LinkError if it is not the one that is due."""
        receiving = self._receiving()
        if record.kind == RecordKind.FRAME:
            if record.number != self._due_seq:
                raise LinkError(f"received frame {record.number}, expected {self._due_seq}")
            self._due_seq += 1
            if receiving is not None:
                receiving.frame(record)
            else:
                self._pending.append(record)
                self._pending_bytes += record.size
        elif receiving is None:
            raise LinkError("a piece of a base that was not announced")
        elif record.kind == RecordKind.PIECE:
            receiving.piece(*parse_piece(record.payload))
        else:
            receiving.end_base()

    def turn_ends(self) -> None:
        """Everything was taken that has arrived in this turn."""
        receiving = self._receiving()
        if receiving is not None:
            receiving.batch_arrived()
        if not self._is_scheduled:
            self._apply()

    def _read_more(self) -> None:
        if self._source is not None:
            self._source.read_if_below_limit()

    # Frames

    def apply_all(self) -> None:
        """Apply all complete frames that have arrived: the link is lost, or before a promotion."""
        while self._is_open and self._pending:
            self._apply_slice()

    def apply_soon(self) -> None:
        """Apply the arrived frames in the next turns of the loop, while the link is up."""
        if not self._is_scheduled and self._is_open:
            self._is_scheduled = True
            self._loop.call_soon(self._apply)

    def _apply(self) -> None:
        self._is_scheduled = False
        if not self._is_open or not self._pending:
            return
        if self.persistence.commits.queued_bytes > self.config.journal_queue_limit:
            self._is_scheduled = True
            self._loop.call_later(_AGAIN_S, self._apply)
            return
        self._apply_slice()
        if self._pending:
            self.apply_soon()
        self._read_more()

    def _apply_slice(self) -> None:
        """Apply as many of the arrived frames as one turn may take."""
        keyspace, commits = self.keyspace, self.persistence.commits
        left_bytes = _SLICE_BYTES
        self.executor.recheck_limits()  # the time at which frames are applied
        keyspace.expiring = False  # the frames say which keys were deleted
        self.is_applying = True
        try:
            while self._pending and left_bytes > 0:
                record = self._pending.popleft()
                self._pending_bytes -= record.size
                left_bytes -= record.size
                keyspace.dirty += apply_effects(keyspace, record.payload)
                if begins_line(record.payload):
                    commits.line_begins()
                commits.commit_received(record.payload)
        except EffectError as error:
            self._close()  # the frames after it have nothing to follow
            self.trust = Trust.WRONG
            if self._source is not None:
                self._source.frame_failed(record.number, error)
        finally:
            self.is_applying = False
            keyspace.expiring = True
        if self._source is not None:
            self._source.frames_applied()

    def serve_readers(self) -> None:
        """Wake the reads that wait for the applied entries."""
        self.executor.applied()

    def follow_clock(self, ahead_ms: int) -> None:
        """The primary's wall clock is ahead of the one here."""
        self.executor.clocks.follow(ahead_ms)

    # Full sync and rewind

    def begin_full_sync(self, full: FullSync) -> None:
        """A base and the frames after it follow."""
        self._due_seq = full.seq + 1
        # After a rewind that was impossible, the lines here are not sent: the primary knows none.
        known = full._replace(common_seq=max(full.common_seq, self.rewind_seq))
        self.change = Replacement(
            self.tools, known, self.worker, self._read_more, self.end_full_sync
        )

    def end_full_sync(self, error: Exception | None) -> None:
        """A full sync has ended, with an error or completely."""
        is_whole = self._end_change(error)
        if self._source is not None:
            self._source.full_sync_ended(error)
        self.on_changed(is_whole)

    def begin_rewind(self, seq: int) -> str:
        """The frames here after this one belong to a line of history that has ended: cut them off.
        Returns why that is impossible, or ""."""
        self.rewind_seq = seq
        reason = why_impossible(self.persistence, seq)
        if reason:
            self.doubt()
        else:
            self.change = Rewinding(self.tools, seq, self._rewind_ended)
        return reason

    def _rewind_ended(self, error: Exception | None) -> None:
        is_whole = self._end_change(error)
        if error is not None:
            self.doubt()
        if self._source is not None:
            self._source.rewind_ended(error)
        self.on_changed(is_whole)

    def _end_change(self, error: Exception | None) -> bool:
        """Returns whether the data in memory is that on the disk: after an error it is not, if the
        data on the disk was replaced or cut already."""
        is_whole = error is None or not self.is_changing
        self.change = None
        if not is_whole:
            self.trust = Trust.WRONG
        elif error is None:
            self.trust = Trust.KNOWN
        return is_whole
