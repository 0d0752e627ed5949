"""All replicas of this server: the frames in memory for them, and their acknowledgements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from millstream.server.config.directives import Config
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine, TaskWorker
from millstream.server.execution.executor import Executor
from millstream.server.replication.backlog import Backlog, FrameSource
from millstream.server.replication.pacing import Pace
from millstream.server.replication.records import Beat, encode_beat, encode_message

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed


def check_output(executor: Executor, client: Any) -> None:
    """Close the connection if its unsent output exceeds its limit (client-output-buffer-limit)."""
    check: Callable[[Any], object] | None = executor.outbox.check_output
    if check is not None:
        check(client)


class Feeds:
    """The backlog is kept from the first replica until repl-backlog-ttl after the last one has
    disconnected. A replica keeps it: it may be promoted, as in Redis. `worker` reads old frames.

    `members` are the IDs of the replicas that count for replies that wait for `durable` of them, in
    a shard; None: all replicas count, for replicas-durable.
    """

    def __init__(
        self,
        config: Config,
        machine: Machine,
        persistence: Persistence,
        executor: Executor,
        worker: TaskWorker,
    ) -> None:
        self.config = config
        self.machine = machine
        self.persistence = persistence
        self.executor = executor
        self.worker = worker
        self.by_client: dict[int, Feed] = {}
        self.source = FrameSource(self.persistence, self.worker)
        self.members: frozenset[str] | None = None
        self.durable = 0
        self._alone_since_ms = 0
        self._pace = Pace(self.machine, self.pump)
        self._confirmed_pace = Pace(self.machine, self.pump)

    def __iter__(self) -> Iterator[Feed]:
        """A copy: sending to a replica may end its link."""
        return iter(list(self.by_client.values()))

    def __len__(self) -> int:
        return len(self.by_client)

    @property
    def backlog(self) -> Backlog | None:
        return self.source.backlog

    @property
    def backlog_bytes(self) -> int:
        """Memory for frames that replicas may need."""
        return 0 if self.backlog is None else self.backlog.size_bytes

    def at(self, host: str, port: int) -> Feed | None:
        """The replica with this address."""
        return next((feed for feed in self if (feed.host, feed.port) == (host, port)), None)

    # Replicas come and go

    def add(self, client: Any, host: str, port: int, node: str = "") -> Feed:
        """A replica has connected. An earlier connection of the same one is over, although nothing
        says so yet: the replica would count as two."""
        from millstream.server.replication.feed import Feed

        if node:
            earlier = next((feed for feed in self if feed.node == node), None)
        else:
            earlier = self.at(host, port) if port else None
        if earlier is not None:
            earlier.drop(
                "the replica has connected again. If two servers have this address, set "
                "replica-announce-ip and replica-announce-port"
            )
        feed = Feed(self.source, self.machine, client, host, port, self.remove, node)
        client.feed = feed
        self.by_client[client.id] = feed
        self.keep_backlog()
        return feed

    def keep_backlog(self) -> None:
        if self.source.backlog is None:
            next_seq = self.persistence.commits.last_seq + 1
            self.source.backlog = Backlog(self.config.repl_backlog_size, next_seq)
            self._alone_since_ms = self.machine.steady_clock()
            self.persistence.commits.keep_frames(self._keep)
            self.executor.after_tick = self._pace.look

    def remove(self, client: Any) -> None:
        """A connection was closed. Connections of other clients are ignored."""
        feed = self.by_client.pop(client.id, None)
        if feed is not None:
            client.feed = None
            feed.close()

    def drop_all(self, reason: str) -> None:
        """End all links: the frames of this server have changed."""
        for feed in self:
            feed.drop(reason)
        self.drop_backlog()

    def drop_backlog(self) -> None:
        self.source.backlog = self.executor.after_tick = None
        self.persistence.commits.keep_frames(None)

    # Frames

    def _keep(self, seq: int, payload: bytes) -> None:
        """A frame was recorded here: keep it for replicas."""
        assert self.backlog is not None
        self.backlog.limit_bytes = self.config.repl_backlog_size
        self.backlog.append(payload)
        if self.persistence.commits.durable_seq >= seq and self.by_client:
            # appendfsync is everysec or no: no callback reports that the frame is durable. The tick
            # ends with the send, after the replies: another turn would delay the replicas.
            self._pace.soon_in_turn(without_rest=self._is_waited_for)

    def pump_if_any(self) -> None:
        """`pump_soon` if there are replicas."""
        if self.by_client:
            self.pump_soon()

    def pump_soon(self) -> None:
        """More frames are durable. Where replies wait for replicas, each frame is sent at once."""
        self._pace.soon(without_rest=self._is_waited_for)

    @property
    def _is_waited_for(self) -> bool:
        """True if replies wait for replicas."""
        return self.durable > 0 or self.config.replicas_durable > 0

    def tell_confirmed(self) -> None:
        """More frames are confirmed. Only reads on replicas wait for that, so while others wait for
        their confirmation, the number is sent with the next frame, or a millisecond later."""
        if not self.by_client:
            return
        if self.source.confirmed_seq < self.persistence.commits.last_seq:
            self._confirmed_pace.later()
        else:
            self._confirmed_pace.soon()

    def pump(self) -> None:
        """Send the durable frames."""
        for feed in self:
            if feed.is_online:
                feed.pump()

    def tick_second(self, wall_ms: int, is_replica: bool, upstream: bytes) -> None:
        """Send beats and the IDs of the servers above the replicas, and end the links to silent
        replicas."""
        beat = self._beat_record(wall_ms)
        now_ms = self.machine.steady_clock()
        for feed in self:
            if feed.is_online and now_ms - feed.acked_ms > self.config.repl_timeout * 1000:
                feed.drop(f"no data was received from it for {self.config.repl_timeout} seconds")
            elif feed.state == "wait_bgsave":
                feed.send(b"\r\n")
            elif feed.client.paused:
                check_output(self.executor, feed.client)
            elif feed.state != "handshake":
                feed.send(beat)
                feed.tell_upstream(upstream)
        ttl_ms = self.config.repl_backlog_ttl * 1000
        if self.by_client or is_replica:
            self._alone_since_ms = now_ms
        elif ttl_ms and now_ms - self._alone_since_ms > ttl_ms:
            self.drop_backlog()

    def beat(self, wall_ms: int) -> None:
        """Send beats between two seconds: members of a shard may be silent for a shorter time."""
        beat = self._beat_record(wall_ms)
        for feed in self:
            if feed.is_online and not feed.client.paused:
                feed.send(beat)

    def _beat_record(self, wall_ms: int) -> bytes:
        commits = self.persistence.commits
        return encode_beat(Beat(wall_ms, commits.last_seq, commits.frame_bytes), self.source.term)

    def publish(
        self, channel: bytes, message: bytes, shown_seq: int, *, is_shard: bool = False
    ) -> None:
        """Send a message to all replicas that are online, to each after this frame."""
        if not self.by_client:
            return
        record = encode_message(channel, message, is_shard=is_shard, term=self.source.term)
        for feed in self if record else ():
            if feed.is_online and (feed.takes_shard_messages or not is_shard):
                feed.add_message(record, shown_seq)

    # The frames on replicas

    def applied_on(self, seq: int) -> int:
        """The number of replicas that have applied this frame."""
        return sum(1 for feed in self.by_client.values() if feed.acked_seq >= seq)

    def synced_on(self, seq: int) -> int:
        """The number of replicas that have this frame on their disks."""
        return sum(1 for feed in self.by_client.values() if feed.synced_seq >= seq)

    def lagging(self) -> int:
        """The number of replicas that have not applied the last frame yet."""
        return sum(
            feed.is_online and feed.acked_seq < self.persistence.commits.last_seq for feed in self
        )

    def _counted(self) -> Iterable[Feed]:
        """The replicas that count."""
        feeds, members = self.by_client.values(), self.members
        return feeds if members is None else [feed for feed in feeds if feed.node in members]

    def nth_synced(self, count: int) -> int:
        """The last frame that `count` replicas have on their disks; 0 if there are fewer."""
        synced = sorted((feed.synced_seq for feed in self._counted()), reverse=True)
        return max(synced[count - 1], 0) if len(synced) >= count else 0

    def synced_by(self, node: str) -> int:
        """The last frame that a node has on its disk; 0 if it is no replica."""
        return max([0, *(feed.synced_seq for feed in self if feed.node == node)])

    def good_count(self, least_synced_seq: int = -1, max_lag_ms: int | None = None) -> int:
        """The number of replicas with a recent acknowledgement (min-replicas-max-lag), and with at
        least this frame on their disks; a replica without a journal has -1."""
        if max_lag_ms is None:
            max_lag_ms = self.config.min_replicas_max_lag * 1000
        oldest_ms = self.machine.steady_clock() - max_lag_ms
        return sum(
            1
            for feed in self._counted()
            if feed.is_online and feed.acked_ms >= oldest_ms and feed.synced_seq >= least_synced_seq
        )
