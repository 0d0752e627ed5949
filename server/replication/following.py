"""A replica and its primary: connecting, what arrives, full syncs and rewinds, acknowledging.

Nothing is applied before the position is known, and a frame out of order ends the link.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.server.durability.data_files import in_words
from millstream.server.replication.acceptance import FOLLOWED
from millstream.server.replication.applying import FrameApplier
from millstream.server.replication.attempt import Attempt, opening_of
from millstream.server.replication.link import (
    Continued,
    Event,
    FullSync,
    Link,
    Refused,
    Rewind,
    Told,
)
from millstream.server.replication.pacing import Pace
from millstream.server.replication.primary_client import PrimaryClient
from millstream.server.replication.receiving import Replacement
from millstream.server.replication.records import (
    Kind,
    LinkError,
    Record,
    parse_beat,
    parse_last,
    parse_message,
    parse_piece,
    parse_upstream,
)
from millstream.server.replication.rewinding import Rewinding, why_impossible
from millstream.storage.files.journal_writer import PAYLOAD_MAX

if TYPE_CHECKING:
    from millstream.commands.runtime.effects import EffectError
    from millstream.server.replication.node import Node
    from millstream.server.replication.role import Replication

log = logging.getLogger("millstream.replication")

_RETRY_MAX_S = 60
_WARNED_OFFSET_MS = 1000


class Following:
    """`state` is what ROLE shows: connect, connecting, sync or connected. `accepted`: this primary
    has accepted this server once, with CONTINUE or a complete base."""

    def __init__(
        self, role: Replication, host: str, port: int, is_of_handover: bool = False
    ) -> None:
        self.host = host
        self.port = port
        self.state = "connect"
        self._line = ""  # the newest line of history in the stored acceptance
        self.may_replace_more = False  # a full sync may replace the data here with less data
        self.is_distrusted = False
        self.is_of_handover = is_of_handover  # this server was that one's primary
        self.may_resume = is_of_handover  # no order says that it has to follow that one
        self.line_before = role.newest_line if is_of_handover else ""  # when that one took over
        self.down_since_ms = role.node.steady_ms()
        self.heard_ms = 0
        self.last_beat_seq = 0
        self.clock_offset_ms = 0
        self.replacement: Replacement | Rewinding | None = None
        self.history = ""
        self.wants_all = False  # the next link asks for a full sync
        self.rewind_seq = -1  # the primary asked for a rewind to this frame; -1: never
        self.takeover: tuple[bytes, ...] = ()  # options of the next PSYNC (link.TAKEOVER)
        self._role = role
        self._node: Node = role.node
        # The data of a server that has handed over is the beginning of that of the promoted one.
        self.accepted = is_of_handover or role.acceptance.primary == self._acceptance()
        self._synced_seq = 0  # the last frame on the disk when the acceptance was stored
        self._attempt: Attempt | None = None
        self._logged_reason = ""  # the reason in the last log message
        self._is_stopped = False
        self.applier = FrameApplier(role.node, self)
        self._ack_pace = Pace(role.node.loop, role.node.steady_ms, self.acknowledge)
        self._retry_s = 0
        self._wait_s = 0

    def _acceptance(self) -> str:
        """The record of the acceptance in the data directory: the primary, and the newest line of
        history here. A promotion begins another line, so that a crash before the directory forgets
        the primary does not leave a server that claims to be accepted."""
        lines = self._node.keyspace.histories
        self._line = lines[-1][0] if lines else ""
        return f"{self.host} {self.port} {self._line}".rstrip()

    def mark(self, is_of_handover: bool) -> bool:
        """Store whether this server has handed over. Before its promotion it has to forget that: a
        crash would make it a replica again. Returns whether the record is on the disk."""
        self.is_of_handover = is_of_handover
        if self.accepted:
            self.note_accepted()
        return self._role.acceptance.is_stored

    def note_accepted(self) -> None:
        """Store the acceptance."""
        self._role.acceptance.note(self._acceptance(), FOLLOWED if self.is_of_handover else "")

    @property
    def is_connected(self) -> bool:
        return self.state == "connected"

    @property
    def uses_tls(self) -> bool:
        return self._node.config.tls_replication

    @property
    def client(self) -> PrimaryClient | None:
        """The link as CLIENT LIST shows it."""
        return None if self._attempt is None else self._attempt.client

    # Connecting

    def tick_second(self) -> None:
        now_ms = self._node.steady_ms()
        if self._is_full():
            self.heard_ms = now_ms  # this server does not read at present
        if self._attempt is None:
            self._wait_s -= 1
            if self._wait_s <= 0:
                self.connect()
        elif now_ms - self.heard_ms > self._node.config.repl_timeout * 1000:
            reason = f"no data was received for {self._node.config.repl_timeout} seconds"
            self._note_connection_error(reason)
            self._drop(reason)
        elif self.is_connected:
            self.acknowledge()
        elif self.state == "sync":
            self._attempt.say_alive()

    def connect(self) -> None:
        if self._role.change is not None:  # the data here is being replaced or cut back
            return
        node = self._node
        knows = not self.wants_all and bool(node.keyspace.histories)
        opening = opening_of(node, knows)._replace(takeover=self.takeover)
        self.state = "connecting"
        self.heard_ms = node.steady_ms()
        self._attempt = attempt = Attempt(self, Link(opening, PAYLOAD_MAX))
        address = f"{self.host}:{self.port}"
        attempt.client = PrimaryClient(node.next_client_id(), address, node.steady_ms(), attempt)
        node.connect_link(self.host, self.port, self._attempt)

    def retry_soon(self) -> None:
        """Connect in the next second, whatever the primary said before."""
        self._wait_s = self._retry_s = 0

    def connection_lost(self, attempt: Attempt, reason: str) -> None:
        """The connection could not be made, or the other side has ended it."""
        if attempt is self._attempt:
            self._note_connection_error(reason)
        self.lost(attempt, reason)

    def _note_connection_error(self, reason: str) -> None:
        self._role.connection_errors += 1
        self._role.last_error = f"no link to the primary {self.host}:{self.port}: {reason}"

    def lost(self, attempt: Attempt, reason: str) -> None:
        """The connection has ended, whatever the reason: `tick_second` connects again."""
        attempt.is_over = True
        if attempt is not self._attempt:
            return
        if self.is_connected or self.state == "sync":
            log.warning("the link to the primary %s:%d is lost: %s", self.host, self.port, reason)
            self._logged_reason = ""
        elif reason != self._logged_reason:  # attempts continue, once a second
            log.warning("no link to the primary %s:%d: %s", self.host, self.port, reason)
            self._logged_reason = reason
        if self.is_connected and not self.is_distrusted:
            self.applier.apply_all()
        self._attempt = None
        if self.state == "connected":
            self.down_since_ms = self._node.steady_ms()
        self.state = "connect"
        self.applier.clear()
        if self.replacement is not None:
            self.replacement.link_lost()
        self._role.promotion.link_lost()
        self._role.handover.relay.link_lost()
        self._role.restrictions.update()

    def _drop(self, reason: str) -> None:
        if self._attempt is not None:
            self._attempt.drop(reason)

    def say_promoting(self, is_over: bool = False) -> None:
        """Tell the primary that this server is about to become one; `is_over`: that it is not."""
        if self._attempt is not None and self.is_connected:
            self._attempt.link.say("promoting", b"0" if is_over else b"1")
            self._attempt.flush()

    def say_promoted(self) -> None:
        """Tell the primary that this server is one now."""
        if self._attempt is not None and self.is_connected:
            self.acknowledge()  # the primary follows this server if that has all frames
            self._attempt.link.say("promoted")
            self._attempt.finish()
            self._attempt = None

    def say_successor(self, host: str, port: int) -> None:
        """Tell the primary that a replica of this server is the primary now."""
        if self._attempt is not None and self.is_connected:
            self.acknowledge()
            self._attempt.link.say("promoted", f"{host} {port}".encode())
            self._attempt.flush()

    def stop(self) -> None:
        """This server follows that primary no longer."""
        self._is_stopped = True
        if self._attempt is not None:
            self._attempt.finish()  # it may have to say that a promotion is over
            self._attempt = None
        self.applier.clear()
        if self.replacement is not None:
            self.replacement.cancel()

    # Receiving

    def receive(self, attempt: Attempt, data: bytes) -> None:
        self._role.received_bytes += len(data)
        self.heard_ms = self._node.steady_ms()
        try:
            for event in attempt.link.feed(data):
                self._take(attempt, event)
                if attempt.is_over:
                    return
        except LinkError as error:
            self._role.link_errors += 1
            self._role.last_error = str(error)
            self._drop(str(error))
            return
        replacement = self._receiving()
        if replacement is not None:
            replacement.batch_arrived()
        self.applier.apply_arrived()
        attempt.flush()
        attempt.read_more(not self._is_full())

    def _is_full(self) -> bool:
        replacement = self.replacement
        if isinstance(replacement, Replacement) and (replacement.is_busy or replacement.has_ended):
            return True
        return self.applier.is_full

    def _take(self, attempt: Attempt, event: Event) -> None:
        if isinstance(event, Told):
            self._learn_upstream(event.ids)
            return
        if self.takeover and not isinstance(event, Record | Refused):
            self.takeover = ()
            self.is_of_handover = self.may_resume = True
            self.line_before = self._role.newest_line
            self._role.failover.accepted()
        if isinstance(event, Record):
            self._take_record(event)
        elif isinstance(event, Continued):
            self._connected(event.history)
        elif isinstance(event, FullSync):
            self._begin_full_sync(event)
        elif isinstance(event, Rewind):
            self._rewind(event)
        elif isinstance(event, Refused):
            self._refused(event)

    def _receiving(self) -> Replacement | None:
        """The full sync of which more is due."""
        replacement = self.replacement
        if isinstance(replacement, Replacement) and not replacement.has_ended:
            return replacement
        return None

    def _take_record(self, record: Record) -> None:
        if record.kind == Kind.FRAME:
            self.applier.check_number(record)
            (self._receiving() or self.applier).frame(record)
        elif record.kind == Kind.BEAT:
            self._take_beat(record.payload)
        elif record.kind in (Kind.MESSAGE, Kind.SHARD_MESSAGE):
            is_shard = record.kind == Kind.SHARD_MESSAGE
            self._role.received_message(*parse_message(record.payload), is_shard=is_shard)
        elif record.kind == Kind.LAST:
            is_of_primary = parse_last(record.payload)
            self._role.promotion.last_arrived(is_of_primary)
            self._role.handover.relay.last_arrived(is_of_primary)
        elif record.kind == Kind.UPSTREAM:
            self._learn_upstream(parse_upstream(record.payload))
        else:
            self._take_base(record)

    def _learn_upstream(self, ids: tuple[str, ...]) -> None:
        """During a FAILOVER, the other server follows this one until it accepts."""
        if not self.takeover:
            self._role.upstream.learn(ids, f"{self.host}:{self.port}")
            self._role.last_error = self._role.upstream.ring or self._role.last_error

    def _take_base(self, record: Record) -> None:
        replacement = self._receiving()
        if replacement is None:
            raise LinkError("a piece of a base that was not announced")
        if record.kind == Kind.PIECE:
            replacement.piece(*parse_piece(record.payload))
        else:
            replacement.end_base()

    def _take_beat(self, payload: bytes) -> None:
        beat = parse_beat(payload)
        self.last_beat_seq = beat.last_seq
        self.clock_offset_ms = beat.wall_ms - self._node.now_ms()
        self._node.executor.primary_ahead_ms = self.clock_offset_ms
        if abs(self.clock_offset_ms) > _WARNED_OFFSET_MS and not self._role.warned_of_clock:
            self._role.warned_of_clock = True
            log.warning(
                "the clock of the primary differs by %d ms from the one here: synchronize them",
                self.clock_offset_ms,
            )

    def _refused(self, event: Refused) -> None:
        self._role.refusals += 1
        self._role.last_error = self._role.upstream.ring or event.text
        if self._role.failover.refused(event.text):
            return
        if event.is_temporary:
            self._wait_s = 1
        else:
            self._wait_longer()
            log.warning(
                "the primary %s:%d refuses this replica: %s", self.host, self.port, event.text
            )
        self._drop(event.text)

    def _wait_longer(self) -> None:
        """Connect again after 1, 2, 4 ... seconds."""
        self._retry_s = min(max(1, self._retry_s * 2), _RETRY_MAX_S)
        self._wait_s = self._retry_s

    def _note_failed(self, error: Exception) -> None:
        self._role.failed_syncs += 1
        self._role.last_error = in_words(error)

    def _connected(self, history: str) -> None:
        """The frames after the last one here follow."""
        self.history = history
        self.state = "connected"
        self.accepted = True
        self.may_replace_more = False
        self.note_accepted()
        self.is_distrusted = self.wants_all = False
        self._retry_s = 0
        self.applier.expect_next()
        log.info("connected to the primary %s:%d", self.host, self.port)
        self._role.restrictions.update()
        self.acknowledge()
        self._role.promotion.linked()

    # Full sync

    def _begin_full_sync(self, full: FullSync) -> None:
        frames = self._node.persistence
        knows_it = self.accepted and not (self.may_replace_more or self.wants_all)
        if knows_it and full.common_seq < 0 and full.frame_bytes < frames.frame_bytes:
            self._wait_s = _RETRY_MAX_S
            log.error(
                "the primary %s:%d has different data than before, and less: %d bytes of frames,"
                " there are %d here. Nothing is replaced. To keep the data here, stop all"
                " Sentinels and send REPLICAOF NO ONE; to replace it, send REPLICAOF %s %d again",
                self.host, self.port, full.frame_bytes, frames.frame_bytes, self.host, self.port,
            )  # fmt: skip
            self._role.kept_data += 1
            self._role.last_error = "the primary has different data than before, and less"
            self._drop("it would replace the data here with less")
            return
        self.state = "sync"
        self.history = full.history
        self.applier.due_seq = full.seq + 1
        log.info(
            "full sync with the primary %s:%d: a base of %d bytes, up to frame %d, and the frames"
            " after it, up to %d bytes of frames", self.host, self.port, full.size_bytes, full.seq,
            full.frame_bytes,
        )  # fmt: skip
        # After a rewind that was impossible, the lines here are not sent: the primary knows none.
        known = full._replace(common_seq=max(full.common_seq, self.rewind_seq))
        replacement = Replacement(self._node, self._role.worker, known, self._replaced)
        replacement.on_written = self.read_if_below_limit
        replacement.on_published = self._role.data_replaced
        self.replacement = self._role.change = replacement

    def read_if_below_limit(self) -> None:
        """Read more from the primary unless the limit of waiting bytes is reached."""
        if self._attempt is not None:
            self._attempt.read_more(not self._is_full())

    def _replaced(self, error: Exception | None) -> None:
        """The full sync has ended."""
        is_whole = self._end_change(error)
        if self._is_stopped:
            self._role.replaced_late(is_whole)
            return
        if error is None:
            self.is_distrusted = self.wants_all = False
            if self._attempt is not None:
                self._connected(self.history)
                self.applier.schedule()
                self._attempt.flush()
                self._attempt.read_more(not self._is_full())
        else:
            log.warning("the full sync has failed: %s", in_words(error))
            self._note_failed(error)
            if not is_whole:
                self.distrust_all()
            self._wait_s = 1
            if self._attempt is not None:  # the link is not the cause
                self._wait_longer()
            self._drop("the full sync has failed")
        self._role.restrictions.update()

    def _end_change(self, error: Exception | None) -> bool:
        """A full sync or rewind has ended. Returns whether the data in memory is that on the disk:
        after an error it is not, if the data on the disk was replaced or cut already."""
        was_published = self.replacement is not None and self.replacement.is_published
        self._role.change = self.replacement = None
        return error is None or not was_published

    # Rewind

    def _rewind(self, event: Rewind) -> None:
        """Frames here belong to a line of history that has ended: give them up."""
        self._wait_s = 0
        self._drop(f"the frames after {event.seq} belong to a history that has ended")
        self.rewind_seq = event.seq
        reason = why_impossible(self._node, event.seq)
        if not reason:
            self.replacement = self._role.change = Rewinding(
                self._node, event.seq, self._rewound, self._role.data_replaced
            )
            return
        log.warning(
            "the frames after %d belong to a line of history that has ended, and cannot be cut"
            " off: %s. A full sync follows", event.seq, reason,
        )  # fmt: skip
        self.wants_all = True
        self.connect()

    def _rewound(self, error: Exception | None) -> None:
        """The rewind has ended."""
        is_whole = self._end_change(error)
        if self._is_stopped:
            self._role.replaced_late(is_whole)
            return
        if error is None:
            self._role.rewinds += 1
            log.warning("this server is back at frame %d", self._node.persistence.last_seq)
        else:
            log.warning("the rewind has failed: %s. A full sync follows", in_words(error))
            self._note_failed(error)
            self.wants_all = True
            self.is_distrusted = not is_whole
        self.connect()
        self._role.restrictions.update()

    # Applying

    def slice_applied(self) -> None:
        """Frames were applied: a line of history may have begun, which the primary has to learn."""
        keyspace = self._node.keyspace
        if keyspace.histories and keyspace.histories[-1][0] != self._line:
            self.note_accepted()
        self._node.executor.applied()
        self._ack_soon()

    def distrust(self, seq: int, error: EffectError) -> None:
        """A frame of the primary cannot be applied: ask for everything again."""
        log.critical(
            "frame %d of the primary %s:%d cannot be applied (%s): the data here may be wrong and"
            " is replaced by a full sync", seq, self.host, self.port, error,
        )  # fmt: skip
        self.distrust_all()
        self._drop("a frame cannot be applied")

    def distrust_all(self) -> None:
        """The data in memory may be wrong or incomplete: the next link asks for a full sync."""
        self.is_distrusted = self.wants_all = True

    # Acknowledging

    def _ack_soon(self) -> None:
        if self.is_connected:
            self._ack_pace.soon_in_turn()
            self._ack_pace.look()

    def acknowledge(self) -> None:
        """Tell the primary what is applied here, and what is on the disk and can be found after a
        restart (`Acceptance`)."""
        if self._attempt is None or not self.is_connected:
            return
        frames = self._node.persistence
        if self._role.acceptance.is_stored:
            self._synced_seq = frames.on_disk_seq
        synced_seq = min(self._synced_seq, frames.on_disk_seq)  # a rewind removes frames
        self._attempt.link.acknowledge(frames.last_seq, synced_seq, frames.frame_bytes)
        self._attempt.flush()
