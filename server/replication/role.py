"""The role of this server, primary or replica of another server, and how it changes.

As a primary it answers PSYNC and feeds replicas. As a replica it follows a primary, refuses writes
and fires no timers, and may feed replicas of its own. Both in one object, because a server changes
its role while it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream import __version__
from millstream.errors import CommandError, DataError
from millstream.server.config.kinds import UINT32_MAX
from millstream.server.config.replica_directives import parse_address
from millstream.server.execution.holding import HoldPoint
from millstream.server.replication import history
from millstream.server.replication.facts import NO_HISTORY, replication_facts, role_reply
from millstream.server.replication.failover import Failover
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.following import Following
from millstream.server.replication.link import CAPABILITY, encode_request
from millstream.server.replication.records import encode_message
from millstream.storage.files.snapshot_reader import SnapshotEnds

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed
    from millstream.server.replication.node import Node
    from millstream.server.replication.receiving import Replacement
    from millstream.server.replication.rewinding import Rewinding

log = logging.getLogger("millstream.replication")

READONLY = "READONLY You can't write against a read only replica."
MASTERDOWN = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
NOREPLICAS = "NOREPLICAS Not enough good replicas to write."
FORCE_UNBLOCKED = (
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
)
REWRITE_BYTES = 64 << 20  # a full sync first replaces journals that are larger, and than the base
_NICENESS = 5
# Sentinel makes the old primary a replica at most so long after it has promoted another server.
_PROMOTION_MS = 15_000


class Introduction:
    """What a replica has said about itself with REPLCONF."""

    def __init__(self) -> None:
        self.port = 0
        self.address = ""
        self.is_known = False  # it is a millstream server that takes effects
        self.version = ""
        self.databases = 0
        self.histories: tuple[tuple[str, int], ...] = ()

    def take(self, name: str, value: bytes) -> None:
        """One pair of words of REPLCONF; CommandError for what is not understood."""
        text = value.decode("utf-8", "replace")
        try:
            if name == "listening-port":
                self.port = _number(text, 65535)
            elif name == "ip-address":
                self.address = text[:255]
            elif name == "capa":
                self.is_known = self.is_known or value == CAPABILITY
            elif name == "version":
                self.version = text[:80]
            elif name == "databases":
                self.databases = _number(text, UINT32_MAX)
            elif name == "histories":
                self.histories = history.parse(value)
            else:
                raise CommandError(f"ERR Unrecognized REPLCONF option: {name[:80]}")
        except ValueError as error:
            raise CommandError(f"ERR REPLCONF {name}: {error}") from None


class Replication:
    """See the module's docstring. `following` is None on a primary."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.following: Following | None = None
        self.feeds = Feeds(node.config, node.persistence, node.loop, node.steady_ms)
        self.feeds.check_output = node.executor.outbox.check_output or self.feeds.check_output
        self.worker = self.feeds.worker = node.new_worker("millstream-replicas", _NICENESS)
        node.persistence.on_gap = self.forget_histories
        self.introductions: dict[int, Introduction] = {}
        self.history = NO_HISTORY
        self.full_syncs = self.partial_syncs = self.refused_partial_syncs = 0
        self.rewinds = 0
        self.change: Replacement | Rewinding | None = None  # of the data here; not ended yet
        self.received_bytes = 0
        self.link_errors = 0  # bytes of the primary that are not allowed
        self.refusals = 0  # errors of the primary
        self.failed_syncs = 0  # full syncs and rewinds that could not be completed
        self.kept_data = 0  # full syncs that would have replaced more data by less
        self.last_error = ""
        self.warned_of_clock = False
        self.bytes_before_history = -1
        self.hold_point = HoldPoint()
        self.failover = Failover(self)
        self._held_for = 0  # the number of replicas for which replies wait
        self._promoted_elsewhere_ms = -_PROMOTION_MS  # when a replica said so
        self._promotes_when_loaded = False

    # Life

    def start(self) -> None:
        """The data is loaded."""
        primary = parse_address(self.node.config.replicaof)
        if primary is None:
            self._begin_history()
        else:
            self._follow(*primary)
        self.look_at_state()

    def stop(self) -> None:
        if self.following is not None:
            self.following.stop()
        self.worker.stop()

    def tick_second(self) -> None:
        if self.following is not None:
            self.following.tick_second()
            self.node.keyspace.deferred.clear()  # a promotion notes all moments again
        for feed in self.feeds:
            if feed.state == "wait_bgsave":
                self._send_base(feed)
        self.feeds.tick_second(self.node.now_ms())
        self.failover.look_at_replicas()
        self.look_at_state()
        self.node.look_at_waits()

    def on_durable(self, seq: int) -> None:
        """The journal is durable up to this frame."""
        outbox, hold_point = self.node.executor.outbox, self.hold_point
        outbox.durable(seq if outbox.hold_point is None else min(seq, hold_point.seq))
        if self.feeds.by_client:
            self.feeds.pump_soon()

    def on_synced(self) -> None:
        if self.following is not None:
            self.following.acknowledge()
        self.node.look_at_waits()

    def look_at_journal(self) -> None:
        """appendonly was switched on or off."""
        frames, keyspace = self.node.persistence, self.node.keyspace
        enabled = self.node.executor.effects.enabled
        if frames.loading or self.following is not None:
            return
        if not enabled and (keyspace.histories or frames.first_effect is not None):
            self.forget_histories()
        elif enabled and self.history == NO_HISTORY:
            self._begin_history()

    def client_gone(self, client: Any) -> None:
        self.introductions.pop(client.id, None)  # of a client that is no replica there is none
        if client.feed is not None:
            self.feeds.remove(client)
            self._look_at_good_replicas()

    # Histories

    def _begin_history(self) -> None:
        """The next frame made here begins a line of history. Without a journal there is none: the
        data changes without frames."""
        frames = self.node.persistence
        if not self.node.executor.effects.enabled:
            self.node.keyspace.histories = ()
            self.history = NO_HISTORY
            frames.first_effect = None
            return
        self.history = self.node.new_history()
        frames.first_effect = self._first_effect

    def _first_effect(self, seq: int) -> bytes:
        self.node.keyspace.begin_history(self.history, seq)
        self.bytes_before_history = self.node.persistence.frame_bytes + 1
        return encode_request([b"HISTORY", self.history.encode(), b"%d" % seq])

    def forget_histories(self) -> None:
        """The data has changed without a frame: no number identifies it any more."""
        self.node.keyspace.histories = ()
        self.feeds.drop_all("the data here has changed in a way that no frame describes")
        if self.following is None:
            self._begin_history()
        else:
            self.following.wants_all = True

    # The state of a replica

    def look_at_state(self) -> None:
        """Refuse what has to be refused at present."""
        executor, config, following = self.node.executor, self.node.config, self.following
        executor.read_only = READONLY if self._refuses_writes() else None
        is_down = following is not None and not following.is_connected
        stale = is_down and not config.replica_serve_stale_data
        executor.stale = MASTERDOWN if stale or self._is_distrusted() else None
        self._look_at_good_replicas()

    def _refuses_writes(self) -> bool:
        """A replica does, a server that was promoted while its data is being replaced, and, with
        replicas-durable, a primary that knows of another one."""
        if self.following is not None or self._promotes_when_loaded:
            return True
        since_ms = self.node.steady_ms() - self._promoted_elsewhere_ms
        return self.node.config.replicas_durable > 0 and since_ms < _PROMOTION_MS

    def _look_at_good_replicas(self) -> None:
        config, outbox = self.node.config, self.node.executor.outbox
        durable = config.replicas_durable if self.following is None else 0
        if durable != self._held_for:
            self._held_for, self.hold_point.seq = durable, 0
            outbox.hold_point = self.hold_point if durable else None
        if self.following is None:
            self._show_more()
        wanted = 0 if self.following is not None else max(config.min_replicas_to_write, durable)
        lacks = wanted > 0 and self.feeds.good_count() < wanted
        self.node.executor.lacks_replicas = NOREPLICAS if lacks else None

    def _show_more(self) -> None:
        """Release the replies that waited for replicas' disks, as far as these are now."""
        wanted = self.node.config.replicas_durable
        if (wanted and self.hold_point.reach(self.feeds.nth_synced(wanted))) or not wanted:
            self.on_durable(self.node.persistence.durable_seq)

    @property
    def _is_changing(self) -> bool:
        """Whether the data on the disk is other data already than that in memory."""
        return self.change is not None and self.change.is_published

    def _is_distrusted(self) -> bool:
        return self.following is not None and self.following.is_distrusted

    def note_primary(self, address: str) -> None:
        """Remember the primary that has accepted this server, also after a restart; "": none."""
        frames = self.node.persistence
        if frames.files.primary != address:
            frames.files.primary = address
            frames.snapshots.submit(frames.files.publish_primary)

    def shown_priority(self) -> int:
        """The priority for Sentinel: 0 while the data here may belong to a dead line of history, or
        is not complete."""
        following, priority = self.following, self.node.config.replica_priority
        if following is None:
            return priority
        is_whole = not (self._is_changing or following.is_distrusted)
        return priority if following.accepted and is_whole else 0

    def facts(self) -> dict[str, object]:
        """INFO replication."""
        return replication_facts(self)

    def primary_clients(self) -> list[Any]:
        """The link to the primary, as CLIENT LIST shows it; at most one."""
        client = None if self.following is None else self.following.client
        return [] if client is None else [client]

    def role_reply(self) -> list[Any]:
        return role_reply(self)

    @property
    def safe_seq(self) -> int:
        """The last frame that replies may show."""
        durable_seq = self.node.persistence.durable_seq
        held = self.node.executor.outbox.hold_point is not None
        return min(durable_seq, self.hold_point.seq) if held else durable_seq

    @property
    def backlog_bytes(self) -> int:
        """Memory for frames that replicas may need."""
        return self.feeds.ring.size_bytes if self.feeds.ring is not None else 0

    @property
    def is_replica(self) -> bool:
        return self.following is not None

    def lagging(self) -> int:
        """The number of replicas that have not applied everything yet."""
        if self.following is not None:
            return 0
        last_seq = self.node.persistence.last_seq
        return sum(1 for feed in self.feeds if feed.is_online and feed.acked_seq < last_seq)

    def applied_on(self, seq: int) -> int:
        return self.feeds.applied_on(seq)

    def synced_on(self, seq: int) -> int:
        return self.feeds.synced_on(seq)

    # Changing the role

    def follow(self, host: str, port: int) -> str:
        """REPLICAOF host port; Redis' reply. In a transaction the role changes after it, but the
        directive at once, so that CONFIG REWRITE writes it."""
        self._refuse_during_failover()
        if not self.node.executor.context.may_block:
            self.node.config.replicaof = f"{host} {port}"
            self.node.loop.call_soon(self.follow, host, port)
            return "OK"
        now = self.following
        if now is not None and (now.host, now.port) == (host, port):
            now.may_replace_more = True
            now.retry_soon()
            return "OK Already connected to specified master"
        self._follow(host, port)
        return "OK"

    def _refuse_during_failover(self) -> None:
        if self.failover.is_under_way:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")

    def follow_for_failover(self, host: str, port: int) -> None:
        """Become a replica of a replica, which is to become the primary."""
        self._follow(host, port)
        assert self.following is not None
        self.following.is_failover = True

    def _follow(self, host: str, port: int) -> None:
        node = self.node
        node.persistence.flush_tick()
        was_primary = self.following is None
        if self.following is not None:
            self.following.stop()
        node.persistence.first_effect = None
        self._promotes_when_loaded = False
        self.following = Following(self, host, port)
        if not self.following.accepted:
            self.note_primary("")
        self.look_at_state()
        if was_primary:
            self._end_primary()
        self.feeds.drop_all("this server follows another primary now")
        self.feeds.keep_ring()
        node.executor.recheck_limits()
        node.config.replicaof = f"{host} {port}"
        log.warning("this server follows %s:%d", host, port)
        node.loop.call_soon(self._connect, self.following)

    def _connect(self, following: Following) -> None:
        if self.following is following and following.state == "connect":
            following.connect()

    def _end_primary(self) -> None:
        """End the waits for what happens here, and drop the replies that were not sent yet."""
        executor = self.node.executor
        executor.close_held()
        for client in list(self.node.clients.values()):
            executor.end_wait(client, FORCE_UNBLOCKED)

    def no_primary(self) -> None:
        """REPLICAOF NO ONE. CommandError during a failover."""
        self._refuse_during_failover()
        self.follow_nobody()

    def follow_nobody(self) -> None:
        """Become a primary, with everything that has arrived. In a transaction the role changes
        after it."""
        self.node.config.replicaof = ""
        if not self.node.executor.context.may_block:
            self.node.loop.call_soon(self.follow_nobody)
            return
        following = self.following
        if following is None:
            return
        following.apply_all()
        self.following = None
        following.say_promoted()
        following.stop()
        self._report_promotion(following)
        if self._is_changing:
            self._promotes_when_loaded = True
            return
        self._promote()

    def _report_promotion(self, following: Following) -> None:
        missing = following.last_beat_seq - self.node.persistence.last_seq
        log.warning("this server is the primary now")
        if missing > 0:
            log.warning(
                "%d frames of the old primary %s:%d had not arrived at its last beat",
                missing, following.host, following.port,
            )  # fmt: skip

    def data_replaced(self) -> None:
        """The frames here were replaced or cut back: the replicas of this server ask again."""
        self.feeds.drop_all("the data of this server was replaced")
        self.feeds.keep_ring()

    def replaced_without_primary(self) -> None:
        """A full sync or rewind has ended that was under way when this server was promoted."""
        if self._promotes_when_loaded:
            self._promotes_when_loaded = False
            self._promote()

    def _promote(self) -> None:
        node = self.node
        node.executor.primary_ahead_ms = 0
        self.note_primary("")
        self.hold_point.seq = 0
        self._begin_history()
        node.continue_clock()
        self.look_at_state()
        node.executor.look_for_due()

    # The side of a primary

    def publish(self, channel: bytes, message: bytes) -> None:
        """Pass a message to the replicas, after the data that the publisher may have seen."""
        if self.feeds.by_client and self.following is None:
            frames = self.node.persistence
            shown_seq = frames.last_seq + bool(len(self.node.executor.effects))
            self.feeds.publish(encode_message(channel, message), shown_seq)

    def received_message(self, channel: bytes, message: bytes) -> None:
        """The primary has sent a message: it goes to the subscribers here, and to the replicas of
        this server."""
        self.node.deliver(channel, message)
        if self.feeds.by_client:
            self.feeds.publish(encode_message(channel, message), self.node.persistence.last_seq)

    def introduce(self, client: Any, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        said = self.introductions.setdefault(client.id, Introduction())
        for name, value in pairs:
            if name.lower() == b"promoted":
                self._promoted_elsewhere()
                continue
            said.take(name.decode("ascii", "replace").lower(), value)

    def _promoted_elsewhere(self) -> None:
        """A replica of this server is a primary now. This one is about to become a replica, if that
        was a failover."""
        log.warning("a replica of this server was promoted")
        self._promoted_elsewhere_ms = self.node.steady_ms()
        self.look_at_state()
        self.node.executor.recheck_limits()

    def acknowledge(self, client: Any, applied: int, synced: int, frame_bytes: int) -> None:
        feed = client.feed
        if feed is not None:
            feed.acknowledge(applied, synced, frame_bytes, self.node.steady_ms())
            self.node.look_at_waits()
            if self.failover.is_under_way:
                self.node.loop.call_soon(self.failover.look)
            if self.node.config.replicas_durable and self.following is None:
                self._show_more()
            if self.node.executor.lacks_replicas is not None:
                self._look_at_good_replicas()

    def _take_over_from(self, said: Introduction, name: bytes, next_seq: int) -> None:
        """The primary of this server asks it to become the primary (FAILOVER). When its answer was
        lost, it asks again."""
        lines, last_seq = self.node.keyspace.histories, self.node.persistence.last_seq
        if self.following is None:
            common = history.last_common(lines, last_seq, said.histories, next_seq - 1)
            if common != next_seq - 1 or not lines or lines[-1][0].encode() == name:
                raise CommandError("ERR PSYNC FAILOVER can't be sent to a master.")
            return
        if not lines or lines[-1][0].encode() != name:
            raise CommandError("ERR PSYNC FAILOVER replid must match my replid.")
        log.warning("a failover was requested by the primary")
        self.follow_nobody()

    def psync(
        self, client: Any, next_seq: int, *, name: bytes = b"", is_failover: bool = False
    ) -> None:
        """Answer PSYNC, and send what the replica lacks. CommandError when that is impossible."""
        said = self.introductions.get(client.id)
        if client.feed is not None:
            raise CommandError("ERR this connection is the link of a replica already")
        if said is None or not said.is_known:
            raise CommandError(_unsuitable(said))
        if is_failover:
            self._take_over_from(said, name, next_seq)
        self._check_can_feed(said)
        node = self.node
        if self.following is None and node.persistence.first_effect is not None:
            # A position has to be in a line of history, also before the first change.
            node.persistence.flush_tick()
            if node.persistence.first_effect is not None:
                node.persistence.commit(b"")
        ours, our_last = node.keyspace.histories, node.persistence.last_seq
        their_last = next_seq - 1
        common = history.last_common(ours, our_last, said.histories, their_last)
        if common is not None and their_last > common and self._only_lags(said):
            raise CommandError("NOMASTERLINK this server has not received your last frames yet")
        feed = self.feeds.add(client, said.address or _host_of(client.address), said.port)
        node.loop.call_soon(self._answer, feed, common, their_last)

    def _check_can_feed(self, said: Introduction) -> None:
        node = self.node
        if self.following is not None and not self.following.is_connected:
            raise CommandError("NOMASTERLINK Can't SYNC while not connected with my master")
        if not node.config.appendonly:
            raise CommandError(
                "ERR this server has appendonly off: it needs a journal to feed replicas"
            )
        if not node.persistence.attached or node.persistence.writable_error() is not None:
            raise CommandError("NOMASTERLINK the journal of this server does not work at present")
        databases = len(node.keyspace.databases)
        if said.databases < databases:
            raise CommandError(
                f"ERR the replica has {said.databases} databases, this server has {databases}"
            )

    def _only_lags(self, said: Introduction) -> bool:
        """Whether this server is itself a replica and has not received yet what the other one
        has."""
        newest = self.node.keyspace.histories[-1]
        return self.following is not None and newest in said.histories

    def _answer(self, feed: Feed, common: int | None, their_last: int) -> None:
        if feed.client.closed or feed.client.feed is not feed:
            return
        feed.common_seq = -1 if common is None else common
        if common is not None and their_last > common and common >= self.oldest_needed():
            self.refused_partial_syncs += 1
            feed.send(b"-REWIND %s %d\r\n" % (self._name_at(common), common))
            feed.client.close(after_reply=True)
        elif common == their_last and self._has_frames_from(common + 1):
            self.partial_syncs += 1
            log.info("the replica %s continues after frame %d", feed.address, common)
            feed.begin(b"+CONTINUE %s\r\n" % self._newest(), common + 1)
        else:
            self.refused_partial_syncs += their_last > 0
            self._begin_full_sync(feed)

    def oldest_needed(self) -> int:
        """The lowest frame after which this server has all others."""
        ring = self.feeds.ring
        base_seq = self.node.persistence.base_seq
        return base_seq if ring is None else min(base_seq, ring.first_seq - 1)

    def _has_frames_from(self, seq: int) -> bool:
        return seq > self.oldest_needed() or seq > self.node.persistence.last_seq

    def _newest(self) -> bytes:
        histories = self.node.keyspace.histories
        return (histories[-1][0] if histories else NO_HISTORY).encode()

    def _name_at(self, seq: int) -> bytes:
        names = [name for name, first in self.node.keyspace.histories if first <= seq]
        return (names[-1] if names else NO_HISTORY).encode()

    def _begin_full_sync(self, feed: Feed) -> None:
        self.full_syncs += 1
        frames = self.node.persistence
        journals_bytes = frames.current_bytes() - frames.base_bytes
        if (
            journals_bytes > max(frames.base_bytes, REWRITE_BYTES)
            and not frames.snapshots.suspended
        ):
            feed.state = "wait_bgsave"
            if frames.snapshots.job is None:
                log.info("a new base is written for the replica %s", feed.address)
                frames.rewrite()
        else:
            self._send_base(feed)

    def _full_sync_answer(self, feed: Feed, seq: int, size_bytes: int) -> bytes:
        numbers = (seq, size_bytes, feed.common_seq, self.node.persistence.frame_bytes)
        return b"+FULLRESYNC %s %d %d %d %d\r\n" % (self._newest(), *numbers)

    def _send_base(self, feed: Feed) -> None:
        """Send the newest base, unless one is being written for this replica."""
        feed.state = "wait_bgsave"
        frames = self.node.persistence
        if frames.snapshots.job is not None or not frames.attached:
            return
        name = frames.files.manifest.base
        if name is None:
            feed.begin(self._full_sync_answer(feed, 0, 0), 1)
            return
        try:
            base = frames.files.disk.read(name)
            header = SnapshotEnds(base).read_header()
        except OSError:  # a rewrite has just replaced it
            return
        except DataError as error:
            feed.drop(str(error))
            return
        if not header.has_identity:
            base.close()
            frames.rewrite()
            return
        log.info("full sync: the replica %s gets %s, %d bytes", feed.address, name, base.size)
        answer = self._full_sync_answer(feed, header.seq, base.size)
        feed.begin(answer, header.seq + 1, base)


def _unsuitable(said: Introduction | None) -> str:
    """Why this client cannot be a replica."""
    if said is not None and said.version:
        return (
            f"ERR the replica has version {said.version} and does not know the effects of this"
            f" server, version {__version__}"
        )
    return (
        "ERR only a millstream server can be a replica of this server: effects are not commands of"
        " Redis"
    )


def _number(text: str, most: int) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= most:
        raise ValueError(f"it must be between 0 and {most}")
    return number


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
