"""All replicas of a server, with connections and journals made for the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.fakedisk import FakeDisk
from tests.support.fakepersistence import HandLoop, HandWorker

from millstream.server.durability.workers import Machine
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.records import encode_frame, encode_message
from millstream.storage.files.disk import File
from millstream.storage.files.manifest import Manifest


class LostJournals(FakeDisk):
    """A disk on which no file can be opened."""

    def read(self, name: str) -> File:
        raise FileNotFoundError(name)


@dataclass
class StubConfig:
    repl_backlog_size: int = 1 << 20
    repl_backlog_ttl: int = 3600
    repl_timeout: int = 60
    min_replicas_max_lag: int = 10
    replicas_durable: int = 0


@dataclass
class StubFiles:
    disk: FakeDisk
    manifest: Manifest = field(default_factory=lambda: Manifest(None, ("journal-1.log",), 2, b""))


class StubFrames:
    def __init__(self, disk: FakeDisk) -> None:
        self.last_seq = self.durable_seq = 9
        self.frame_bytes = 0
        self.keep: Any = None
        self.files = StubFiles(disk)
        self.commits = self

    def keep_frames(self, keep: Any) -> None:
        self.keep = keep


class StubTicks:
    """An executor, as far as feeds know it."""

    def __init__(self) -> None:
        self.after_tick: Callable[[], None] | None = None


class StubClient:
    def __init__(self, number: int) -> None:
        self.id = number
        self.feed: Any = None
        self.closed = self.paused = False
        self.sent = b""

    def transmit(self, data: bytes) -> int:
        self.sent += data
        return 0

    def close(self, after_reply: bool) -> None:
        self.closed = True


class OnlineFeeds:
    """Replicas that have a link already; the next frame that they need is number 1."""

    def __init__(self, disk: FakeDisk, count: int) -> None:
        self.frames = StubFrames(disk)
        self.loop = HandLoop()
        self.ticks = StubTicks()
        machine = Machine(disk, self.loop.clock, self.loop.clock, self.loop)
        self.feeds = Feeds(StubConfig(), machine, self.frames, self.ticks, HandWorker("test"))  # type: ignore[arg-type]
        self.clients = [StubClient(number) for number in range(count)]
        for client in self.clients:
            feed = self.feeds.add(client, "host", 7000 + client.id)
            feed.state = "online"
            feed.next_seq = 1


def test_links_that_end_while_frames_are_sent_disturb_no_other() -> None:
    made = OnlineFeeds(LostJournals(1), 2)
    for feed in made.feeds:
        feed._open_tries = 4  # the next failure ends the link
    made.feeds.pump()
    assert [client.closed for client in made.clients] == [True, True]
    assert len(made.feeds) == 0


def test_a_full_sync_whose_journals_cannot_be_opened_ends() -> None:
    """Otherwise the replica would get the frames after the base, and not the base."""
    made = OnlineFeeds(LostJournals(1), 1)
    (client,) = made.clients
    base = FakeDisk(2).create("base")
    client.feed.begin_full_sync(b"+FULLRESYNC", 9, base)
    assert client.closed
    assert client.sent == b"+FULLRESYNC"
    assert len(made.feeds) == 0


def test_a_link_that_ends_during_a_message_disturbs_no_other() -> None:
    made = OnlineFeeds(FakeDisk(1), 3)
    for client in made.clients:
        client.feed.next_seq = 10
        client.transmit = lambda data, client=client: made.feeds.remove(client) or 0  # type: ignore
    made.feeds.publish(b"news", b"record", 9)
    assert len(made.feeds) == 0


def test_an_older_replica_gets_no_messages_of_shard_channels() -> None:
    made = OnlineFeeds(FakeDisk(1), 2)
    for client in made.clients:
        client.feed.next_seq = 10
    made.clients[1].feed.takes_shard_messages = True
    made.feeds.publish(b"s", b"shard", 9, is_shard=True)
    made.feeds.publish(b"c", b"channel", 9)
    of_shard, of_all = (
        encode_message(b"s", b"shard", is_shard=True),
        encode_message(b"c", b"channel"),
    )
    assert [client.sent for client in made.clients] == [of_all, of_shard + of_all]


def test_a_frame_is_sent_at_the_end_of_its_tick_without_a_turn() -> None:
    made = OnlineFeeds(FakeDisk(1), 2)
    for client in made.clients:
        client.feed.next_seq = 10
    made.frames.last_seq = made.frames.durable_seq = 10
    made.frames.keep(10, b"payload")
    assert [client.sent for client in made.clients] == [b"", b""]  # the replies are sent first
    assert made.ticks.after_tick is not None
    made.ticks.after_tick()
    assert [client.sent for client in made.clients] == [encode_frame(10, b"payload")] * 2


def test_a_message_follows_the_frames_that_its_publisher_saw() -> None:
    made = OnlineFeeds(FakeDisk(1), 2)
    early, late = made.clients
    early.feed.next_seq, late.feed.next_seq = 11, 10
    made.frames.last_seq = made.frames.durable_seq = 10
    made.feeds.backlog.append(b"payload")
    late.feed._is_reading = True  # it reads older frames from the disk at present
    made.feeds.publish(b"news", b"message", 10)
    message = encode_message(b"news", b"message")
    assert [early.sent, late.sent] == [message, b""]
    late.feed._is_reading = False
    made.feeds.pump()
    assert [early.sent, late.sent] == [message, encode_frame(10, b"payload") + message]


def test_a_replica_that_has_connected_again_counts_once() -> None:
    """Its first connection is dead, but this is not known yet."""
    made = OnlineFeeds(FakeDisk(1), 1)
    (dead,) = made.clients
    dead.feed.acknowledge(9, 9, 0, 0)
    again = StubClient(1)
    feed = made.feeds.add(again, "host", 7000)
    feed.begin(b"+CONTINUE", 10)
    feed.acknowledge(9, 9, 0, made.loop.now_ms)
    assert dead.closed
    assert not again.closed
    assert made.feeds.nth_synced(1) == 9
    assert made.feeds.nth_synced(2) == 0
    assert made.feeds.synced_on(9) == made.feeds.applied_on(9) == made.feeds.good_count() == 1


def test_replicas_without_a_port_are_all_kept() -> None:
    made = OnlineFeeds(FakeDisk(1), 0)
    for number in range(2):
        made.feeds.add(StubClient(number), "host", 0)
    assert len(made.feeds) == 2


def test_a_replica_gets_time_to_reply_after_a_long_full_sync() -> None:
    made = OnlineFeeds(FakeDisk(1), 1)
    (client,) = made.clients
    client.feed.state = "handshake"
    made.loop.advance(3_600_000)
    client.feed.begin(b"+CONTINUE", 10)
    made.feeds.tick_second(0, is_replica=False, upstream=b"")
    assert not client.closed
    made.loop.advance(61_000)
    made.feeds.tick_second(0, is_replica=False, upstream=b"")
    assert client.closed


def test_the_backlog_is_kept_for_its_time_or_while_a_replica() -> None:
    made = OnlineFeeds(FakeDisk(1), 0)
    made.loop.advance(10_000_000)
    made.feeds.keep_backlog()
    made.feeds.tick_second(0, is_replica=True, upstream=b"")
    made.loop.advance(10_000_000)
    made.feeds.tick_second(0, is_replica=True, upstream=b"")
    made.loop.advance(3_600_000)
    made.feeds.tick_second(0, is_replica=False, upstream=b"")
    assert made.feeds.backlog is not None
    made.loop.advance(1)
    made.feeds.tick_second(0, is_replica=False, upstream=b"")
    assert made.feeds.backlog is None


def test_ticks_have_no_call_without_replicas() -> None:
    made = OnlineFeeds(FakeDisk(1), 1)
    made.feeds.drop_all("the test ends")
    assert made.ticks.after_tick is None
