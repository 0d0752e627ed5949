"""The link of a replica to its primary, from the order to follow it to the next order.

A link makes one connection after the other. Nothing is applied before the position is known, and a
frame out of order ends the connection. `receiver` has the data that arrives.

The states of a link, as ROLE shows them:

| state | meaning | what ends it |
|---|---|---|
| connect | there is no connection; the data may be in change | the next attempt: connecting |
| connecting | PSYNC has no answer yet | the answer: sync, connected or connect |
| sync | a full sync arrives, or is loaded | it is loaded: connected; an error: connect |
| connected | frames arrive and are applied | the connection is lost: connect |
| stopped | this server follows this primary no longer | nothing |

Which data here a full sync of this primary may replace (`consent`):

| consent | meaning | what ends it |
|---|---|---|
| NEW | all: this primary was chosen, and has not accepted this server | connected: ACCEPTED |
| ACCEPTED | not more data with less | the same order again: RENEWED |
| RENEWED | all: the order was repeated | connected: ACCEPTED |
"""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING

from millstream.commands.runtime.effects import EffectError
from millstream.server.durability.data_files import in_words
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.replication.accepting_primary import FOLLOWED, Acceptance
from millstream.server.replication.history import Histories
from millstream.server.replication.link_connection import (
    Connector,
    LinkConnection,
    PrimaryClient,
)
from millstream.server.replication.link_hooks import LinkHooks
from millstream.server.replication.link_protocol import (
    Continued,
    Event,
    FullSync,
    IsRedis,
    Refused,
    Rewind,
    Told,
)
from millstream.server.replication.link_totals import LinkTotals
from millstream.server.replication.link_words import LACKS_FRAMES, TAKEOVER, TAKEOVER_FORCED
from millstream.server.replication.pacing import Pace
from millstream.server.replication.receiver import Receiver, Trust
from millstream.server.replication.records import (
    LinkError,
    Record,
    RecordKind,
    parse_beat,
    parse_confirmed,
    parse_last,
    parse_message,
    parse_upstream,
)
from millstream.server.replication.redis_opening import SourceEvent
from millstream.server.replication.upstream import Upstream

if TYPE_CHECKING:
    from millstream.server.replication.redis_conversion import Converter
    from millstream.server.replication.redis_link import RedisLink

log = logging.getLogger("millstream.replication")

_RETRY_MAX_S = 60
_WARNED_OFFSET_MS = 1000


class State(StrEnum):
    CONNECT = auto()
    CONNECTING = auto()
    SYNC = auto()
    CONNECTED = auto()
    STOPPED = auto()


class Consent(Enum):
    NEW = auto()
    ACCEPTED = auto()
    RENEWED = auto()


@dataclass(eq=False, repr=False)
class Link:
    """`is_of_handover`: this server was that one's primary, and remembers it after a restart.
    `line_before` is the newest line here when that one took over; None: this server is to follow
    it in any case. `heard_ms`: when something was received last. `redis`: the primary is a Redis or
    Valkey."""

    host: str
    port: int
    connector: Connector
    machine: Machine
    receiver: Receiver
    persistence: Persistence
    histories: Histories
    _: KW_ONLY
    hooks: LinkHooks
    acceptance: Acceptance
    upstream: Upstream
    totals: LinkTotals
    converter: Converter
    is_of_handover: bool = False

    def __post_init__(self) -> None:
        self.state = State.CONNECT
        self.line_before = self.histories.newest if self.is_of_handover else None
        self.down_since_ms = self.machine.steady_clock()
        self.heard_ms = 0
        self.last_beat_seq = 0
        self.clock_offset_ms = 0
        self._now_ms = self.machine.clock
        self._steady_ms = self.machine.steady_clock
        self._takeover: tuple[bytes, ...] = ()  # options of the next PSYNC
        self._line = ""  # the newest line of history in the stored acceptance
        # The data of a server that has handed over is the beginning of that of the promoted one.
        is_accepted = self.is_of_handover or self.acceptance.primary == self._record()
        self.consent = Consent.ACCEPTED if is_accepted else Consent.NEW
        self._synced_seq = 0  # the last frame on the disk when the acceptance was stored
        self.redis: RedisLink | None = None
        self._connection: LinkConnection | None = None
        self._logged_reason = ""  # the reason in the last log message
        self._ack_pace = Pace(self.machine, self.acknowledge)
        self._retry_s = 0
        self._wait_s = 0
        self.receiver.attach(self)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_connected(self) -> bool:
        return self.state is State.CONNECTED

    @property
    def has_primary_of_ours(self) -> bool:
        """True if the link to another millstream server is up. A Redis knows no handover."""
        return self.is_connected and self.redis is None

    @property
    def is_accepted(self) -> bool:
        """True if this primary has accepted this server once, with CONTINUE or a complete base."""
        return self.consent is not Consent.NEW

    @property
    def client(self) -> PrimaryClient | None:
        """The link as CLIENT LIST shows it."""
        return None if self._connection is None else self._connection.client

    # Orders

    def order_again(self) -> None:
        """REPLICAOF with the address of this primary: connect in the next second, whatever it said
        before. It may replace more data with less, and this server does not take its role back."""
        if self.consent is Consent.ACCEPTED:
            self.consent = Consent.RENEWED
        self.line_before = None
        if self.redis is not None:
            self.redis.is_halted = False
        self._wait_s = self._retry_s = 0

    def log_missing(self) -> None:
        """This server is promoted: say how much the primary had at its last beat."""
        missing = self.last_beat_seq - self.persistence.commits.last_seq
        if missing > 0:
            log.warning(
                "%d frames of the old primary %s had not arrived at its last beat",
                missing,
                self.address,
            )

    def was_restarted(self) -> None:
        """This server has handed over and was restarted: no request of the promoted server is
        older than its promotion."""
        self.line_before = ""

    def ask_to_take_over(self, forced: bool) -> None:
        """FAILOVER: the other server becomes the primary, with `forced` even if it lacks frames."""
        self._takeover = TAKEOVER_FORCED if forced else TAKEOVER

    def stop(self) -> None:
        """This server follows that primary no longer."""
        self.state = State.STOPPED
        if self._connection is not None:
            self._connection.finish()  # it may have to say that a promotion is over
            self._connection = None
        self.receiver.detach()
        if self.redis is not None:
            self.redis.following.stop()

    # The acceptance

    def _record(self) -> str:
        """The record of the acceptance in the data directory: the primary, and the newest line of
        history here. A promotion begins another line, so that a crash before the directory forgets
        the primary does not leave a server that claims to be accepted."""
        self._line = self.histories.newest
        return f"{self.host} {self.port} {self._line}".rstrip()

    def mark(self, is_of_handover: bool) -> bool:
        """Store whether this server has handed over. Before its promotion it has to forget that: a
        crash would make it a replica again. Returns whether the record is on the disk."""
        self.is_of_handover = is_of_handover
        if self.is_accepted:
            self.note_accepted()
        return self.acceptance.is_stored

    def note_accepted(self) -> None:
        """Store the acceptance."""
        self.acceptance.note(self._record(), FOLLOWED if self.is_of_handover else "")

    # Connecting

    def tick_second(self) -> None:
        now_ms = self._steady_ms()
        if self.is_full:
            self.heard_ms = now_ms  # this server does not read at present
        if self._connection is None:
            self._wait_s -= 1
            if self._wait_s <= 0:
                self.connect()
        elif now_ms - self.heard_ms > self.connector.timeout_s * 1000:
            reason = f"no data was received for {self.connector.timeout_s} seconds"
            self._note_connection_error(reason)
            self.drop(reason)
        elif self.redis is not None and (self.is_connected or self.redis.following.has_rdb):
            self.redis.send_ack()
        elif self.is_connected:
            self.acknowledge()
        elif self.state is State.SYNC:
            self._connection.say_alive()

    def connect(self) -> None:
        """Connect to the primary now, if this server still follows it and there is no connection.
        While the data here is replaced or cut back, there is none."""
        if self.state is not State.CONNECT or self.receiver.change is not None:
            return
        if self.redis is not None and not self.redis.may_ask:
            return
        is_known = self.receiver.trust is Trust.KNOWN
        self.heard_ms = self._steady_ms()
        opening = self.connector.opening(is_known)._replace(takeover=self._takeover)
        self._connection = self.connector.new(self, opening)
        self.connector.show(self._connection, self.address, self.heard_ms)
        self.state = State.CONNECTING
        self.connector.dial(self.host, self.port, self._connection)

    def connection_lost(self, connection: LinkConnection, reason: str) -> None:
        """The connection could not be made, or the other side has ended it."""
        if connection is self._connection:
            self._note_connection_error(reason)
        self.lost(connection, reason)

    def _note_connection_error(self, reason: str) -> None:
        self.totals.connection_errors += 1
        self.totals.last_error = f"no link to the primary {self.address}: {reason}"

    def lost(self, connection: LinkConnection, reason: str) -> None:
        """The connection has ended, whatever the reason: `tick_second` connects again."""
        if connection is not self._connection:
            return
        if self.state in (State.CONNECTED, State.SYNC):
            log.warning("the link to the primary %s is lost: %s", self.address, reason)
            self._logged_reason = ""
        elif reason != self._logged_reason:  # attempts continue, once a second
            log.warning("no link to the primary %s: %s", self.address, reason)
            self._logged_reason = reason
        if self.is_connected:
            self.down_since_ms = self._steady_ms()
            if not self.receiver.is_wrong:
                self.receiver.apply_all()
        self._connection = None
        self.state = State.CONNECT
        self.receiver.link_lost()
        if self.redis is not None:
            self.redis.following.link_lost()
        self.hooks.on_lost()

    def drop(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.drop(reason)

    def _wait_longer(self) -> None:
        """Connect again after 1, 2, 4 ... seconds."""
        self._retry_s = min(max(1, self._retry_s * 2), _RETRY_MAX_S)
        self._wait_s = self._retry_s

    # Receiving

    def receive(self, connection: LinkConnection, data: bytes) -> None:
        self.totals.received_bytes += len(data)
        self.heard_ms = self._steady_ms()
        try:
            for event in connection.protocol.feed(data):
                self._take(event)
                if connection.is_over:
                    return
        except LinkError as error:
            self.totals.link_errors += 1
            self.totals.last_error = str(error)
            self.drop(str(error))
            return
        if self.redis is not None:
            self.redis.following.turn_ends()
        else:
            self.receiver.turn_ends()
        connection.flush()
        connection.read_more(not self.is_full)

    @property
    def is_full(self) -> bool:
        """True if the limit of waiting bytes is reached."""
        return (self.receiver if self.redis is None else self.redis.following).is_full

    def _take(self, event: Event) -> None:
        if isinstance(event, Told):
            self._learn_upstream(event.ids)
            return
        if isinstance(event, IsRedis):
            self._meet(event)
        elif self.redis is not None and isinstance(event, SourceEvent):
            self.redis.take(event)
        else:
            self._take_of_ours(event)

    # A Redis

    @property
    def has_connection(self) -> bool:
        return self._connection is not None

    @property
    def may_lose(self) -> bool:
        """True if a full sync may replace more data with less."""
        return self.consent is not Consent.ACCEPTED

    def begin_sync(self) -> None:
        """A full sync begins."""
        self.state = State.SYNC

    def deliver(self, channel: bytes, message: bytes, is_shard: bool) -> None:
        """Pass a message on."""
        self.hooks.on_message(channel, message, is_shard)

    def _meet(self, event: IsRedis) -> None:
        """The primary is a Redis."""
        if self.redis is None:
            # Servers that follow no Redis do not load this.
            from millstream.server.replication.redis_link import RedisLink

            self.redis = RedisLink(
                self, self.receiver, self.histories, self.totals, self.converter, self._steady_ms
            )
        self.redis.meet(event)

    def _take_of_ours(self, event: Event) -> None:
        """An answer of a millstream server, or an error."""
        if self.redis is not None and not isinstance(event, Refused):
            self.redis.following.stop()
            self.redis = None
        if self._takeover and not isinstance(event, Record | Refused):
            self._takeover = ()
            self.is_of_handover = True
            self.line_before = self.histories.newest
            self.hooks.on_taken_over()
        if isinstance(event, Record):
            self._take_record(event)
        elif isinstance(event, Continued):
            self.connected()
        elif isinstance(event, FullSync):
            self._begin_full_sync(event)
        elif isinstance(event, Rewind):
            self._rewind(event.seq)
        elif isinstance(event, Refused):
            self._refused(event)

    def _take_record(self, record: Record) -> None:
        if record.kind in (RecordKind.FRAME, RecordKind.PIECE, RecordKind.END):
            self.receiver.take(record)
        elif record.kind == RecordKind.BEAT:
            self._take_beat(record.payload)
        elif record.kind in (RecordKind.MESSAGE, RecordKind.SHARD_MESSAGE):
            is_shard = record.kind == RecordKind.SHARD_MESSAGE
            self.hooks.on_message(*parse_message(record.payload), is_shard)
        elif record.kind == RecordKind.LAST:
            self.hooks.on_last(parse_last(record.payload))
        elif record.kind == RecordKind.CONFIRMED:
            self.hooks.on_confirmed(parse_confirmed(record.payload))
        else:
            self._learn_upstream(parse_upstream(record.payload))

    def _learn_upstream(self, ids: tuple[str, ...]) -> None:
        """During a FAILOVER, the other server follows this one until it accepts."""
        if not self._takeover:
            self.upstream.learn(ids, self.address)
            self.totals.last_error = self.upstream.ring or self.totals.last_error

    def _take_beat(self, payload: bytes) -> None:
        beat = parse_beat(payload)
        self.last_beat_seq = beat.last_seq
        self.clock_offset_ms = beat.wall_ms - self._now_ms()
        self.receiver.follow_clock(self.clock_offset_ms)
        if self.connector.node:
            self.acknowledge()  # the primary may wait for members less than a second
        if abs(self.clock_offset_ms) > _WARNED_OFFSET_MS and not self.totals.warned_of_clock:
            self.totals.warned_of_clock = True
            log.warning(
                "the clock of the primary differs by %d ms from the one here: synchronize them",
                self.clock_offset_ms,
            )

    def _refused(self, event: Refused) -> None:
        self.totals.refusals += 1
        self.totals.last_error = self.upstream.ring or event.text
        if self.hooks.on_refused(event.text):
            return
        if event.is_temporary:
            self._wait_s = 1
        else:
            self._wait_longer()
            if event.text != self._logged_reason:
                log.warning("the primary %s refuses this replica: %s", self.address, event.text)
                self._logged_reason = event.text
        self.drop(event.text)

    def connected(self) -> None:
        """The frames after the last one here follow."""
        self.state = State.CONNECTED
        self.consent = Consent.ACCEPTED
        self.note_accepted()
        self._retry_s = 0
        self.receiver.continue_frames()
        log.info("connected to the primary %s", self.address)
        self.hooks.on_change()
        self.acknowledge()
        self.hooks.on_linked()

    # Full sync and rewind

    def _begin_full_sync(self, full: FullSync) -> None:
        here_bytes = self.persistence.commits.frame_bytes
        if (
            self.consent is Consent.ACCEPTED
            and self.receiver.trust is Trust.KNOWN
            and full.common_seq < 0
            and full.frame_bytes < here_bytes
        ):
            self._wait_s = _RETRY_MAX_S
            log.error(
                "the primary %s has different data than before, and less: %d bytes of frames,"
                " there are %d here. Nothing is replaced. To keep the data here, stop all"
                " Sentinels and send REPLICAOF NO ONE; to replace it, send REPLICAOF %s %d again",
                self.address, full.frame_bytes, here_bytes, self.host, self.port,
            )  # fmt: skip
            self.totals.kept_data += 1
            self.totals.last_error = "the primary has different data than before, and less"
            self.drop("it would replace the data here with less")
            return
        self.state = State.SYNC
        log.info(
            "full sync with the primary %s: a base of %d bytes, up to frame %d, and the frames"
            " after it, up to %d bytes of frames",
            self.address, full.size_bytes, full.seq, full.frame_bytes,
        )  # fmt: skip
        self.receiver.begin_full_sync(full)

    def full_sync_ended(self, error: Exception | None) -> None:
        connection = self._connection
        if self.redis is not None:
            self.redis.full_sync_ended(error)
        elif error is not None:
            self.sync_failed(error)
        elif connection is not None:
            self.connected()
            self.receiver.apply_soon()
            connection.flush()
            connection.read_more(not self.receiver.is_full)

    def sync_failed(self, error: Exception) -> None:
        """The data here stays; another attempt follows."""
        self._note_failed(f"the full sync has failed: {in_words(error)}")
        self._wait_s = 1
        if self._connection is not None:  # the link is not the cause
            self._wait_longer()
        self.drop("the full sync has failed")

    def _note_failed(self, sentence: str) -> None:
        log.warning("%s", sentence)
        self.totals.failed_syncs += 1
        self.totals.last_error = sentence

    def _rewind(self, seq: int) -> None:
        """Frames here belong to a line of history that has ended: give them up."""
        self._wait_s = 0
        self.drop(f"the frames after {seq} belong to a history that has ended")
        reason = self.receiver.begin_rewind(seq)
        if reason:
            log.warning(
                "the frames after %d belong to a line of history that has ended, and cannot be cut"
                " off: %s. A full sync follows", seq, reason,
            )  # fmt: skip
            self.connect()

    def rewind_ended(self, error: Exception | None) -> None:
        if error is None:
            self.totals.rewinds += 1
            log.warning("this server is back at frame %d", self.persistence.commits.last_seq)
        else:
            self._note_failed(f"the rewind has failed: {in_words(error)}. A full sync follows")
        self.connect()

    # Frames

    def read_if_below_limit(self) -> None:
        """Read more from the primary unless the limit of waiting bytes is reached."""
        if self._connection is not None:
            self._connection.read_more(not self.is_full)

    def frames_applied(self) -> None:
        """A line of history may have begun, which the primary has to learn."""
        line = self.histories.newest
        if line and line != self._line:
            self.note_accepted()
        self.receiver.serve_readers()
        commits = self.persistence.commits
        is_synced_soon = 0 <= commits.on_disk_seq < commits.last_seq  # and acknowledged then
        if self.is_connected and not (self.connector.term and is_synced_soon):
            self._ack_pace.soon_in_turn()
            self._ack_pace.look()

    def frame_failed(self, seq: int, error: EffectError) -> None:
        """A frame of the primary cannot be applied: ask for everything again."""
        log.critical(
            "frame %d of the primary %s cannot be applied (%s): the data here may be wrong and is"
            " replaced by a full sync", seq, self.address, error,
        )  # fmt: skip
        self.drop("a frame cannot be applied")

    # Reports to the primary

    def acknowledge(self) -> None:
        """Tell the primary the last frame that is applied here, and the last one that is on the
        disk and can be found after a restart (`Acceptance`)."""
        if self._connection is None or not self.is_connected:
            return
        if self.redis is not None:
            self.redis.stored_more()
            return
        commits = self.persistence.commits
        if self.acceptance.is_stored:
            self._synced_seq = commits.on_disk_seq
        synced_seq = min(self._synced_seq, commits.on_disk_seq)  # a rewind removes frames
        self._connection.protocol.acknowledge(commits.last_seq, synced_seq, commits.frame_bytes)
        self._connection.flush()

    def acknowledge_bytes(self, applied: int, stored: int) -> None:
        """Tell a Redis how much of its stream is applied, and how much is on the disk."""
        if self._connection is not None and self._connection.protocol.is_streaming:
            self._connection.protocol.acknowledge_bytes(applied, stored)
            self._connection.flush()

    def say_promoting(self, is_over: bool = False) -> None:
        """This server is about to become a primary; `is_over`: it is not."""
        if self._connection is not None and self.has_primary_of_ours:
            self._connection.protocol.say("promoting", b"0" if is_over else b"1")
            self._connection.flush()

    def say_promoted(self) -> None:
        """This server is a primary now."""
        if self._connection is not None and self.has_primary_of_ours:
            self.acknowledge()  # the primary follows this server if that has all frames
            self._connection.protocol.say("promoted")
            self._connection.finish()
            self._connection = None

    def say_successor(self, host: str, port: int, has_all: bool) -> None:
        """A replica of this server is the primary now; `has_all`: with all frames from here."""
        if self._connection is not None and self.has_primary_of_ours:
            self.acknowledge()
            lacks = "" if has_all else f" {LACKS_FRAMES}"
            self._connection.protocol.say("promoted", f"{host} {port}{lacks}".encode())
            self._connection.flush()
