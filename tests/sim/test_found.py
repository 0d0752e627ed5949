"""Faults that the simulation has found, each as a minimal sequence of steps."""

from __future__ import annotations

import errno
import random

import pytest
from tests.sim.data import Data
from tests.sim.players import Player, Profile
from tests.sim.world import SimClient, World
from tests.support.captures import each
from tests.support.fakedisk import SECTOR, FakeDisk
from tests.support.journals import journal_bytes, with_frames
from tests.support.resp import Null, Reply, Simple, encode_command, read_reply

from millstream.storage.capture.capture import Capture
from millstream.storage.files.journal_format import FRAME_SIZE, HEADER_SIZE
from millstream.storage.files.journal_reader import JournalReader, TornEnd
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

START_MS = 1_700_000_000_000


class Bench:
    """A simulated server that the test runs step by step."""

    def __init__(self, disk: FakeDisk | None = None, now_ms: int = START_MS) -> None:
        self.disk = disk or FakeDisk()
        self.disk.locked = False
        self.world = World(self.disk, Profile(), random.Random(0), now_ms, Data())
        self.world.start()
        self.settle()

    def client(self) -> SimClient:
        world = self.world
        player = Player(random.Random(0), world.profile, world.now_ms)
        client = SimClient(world, player, len(world.clients) + 1, 2)
        world.executor.attach(client)
        world.clients[client.id] = client
        return client

    def say(self, client: SimClient, text: str) -> None:
        """Send a request (`""` is the empty word) and run everything that can run."""
        words = [b"" if word == '""' else word.encode() for word in text.split()]
        self.world.executor.feed(client, encode_command(words))
        self.settle()

    def settle(self) -> None:
        while True:
            self.world.loop.run_ready()
            if not any(worker.run_one() for worker in self.world.workers):
                return

    def wait(self, ms: int) -> None:
        for _ in range(ms):
            self.world.loop.time_ms += 1
            self.settle()

    def heard(self, client: SimClient) -> list[Reply]:
        """The replies since the last call."""
        data = b"".join(chunk for chunk, *_ in client.received)
        client.received = []
        replies, at = [], 0
        while at < len(data):
            reply, at = read_reply(data, at)
            replies.append(reply)
        return replies

    def groups(self, key: bytes) -> list[bytes]:
        stream = self.world.keyspace.databases[0].stream(key)
        return [] if stream is None else list(stream.groups)


def test_a_request_may_arrive_in_three_pieces_cut_anywhere() -> None:
    bench = Bench()
    data = encode_command([b"ECHO", b"hello"])
    for first in range(1, len(data) - 1):
        for second in range(first + 1, len(data)):
            client = bench.client()
            for piece in (data[:first], data[first:second], data[second:]):
                bench.world.executor.feed(client, piece)
            bench.settle()
            assert bench.heard(client) == [b"hello"], (first, second)


def test_a_retry_wakes_a_blocked_reader_of_an_idle_server() -> None:
    bench = Bench()
    reader = bench.client()
    bench.say(reader, "TREAD s 0 1 GROUP g 0 RETRY 50 0")
    bench.say(reader, "TAPPEND s a 1")
    bench.say(reader, "TREAD s 0 1 GROUP g 0 RETRY 50 0")
    bench.heard(reader)
    bench.say(reader, "TREAD s 0 1 BLOCK 0 GROUP g 0 RETRY 50 0")
    bench.wait(49)
    assert bench.heard(reader) == []
    bench.wait(2)
    [[entry]] = bench.heard(reader)  # type: ignore[misc]
    assert entry[1:] == [b"a", b"1"]  # type: ignore[index]


def test_a_long_reply_starts_when_a_client_has_room_for_a_slice() -> None:
    bench = Bench()
    client, other = bench.client(), bench.client()
    for number in range(8):
        bench.say(client, f"TAPPEND s v {number}{'x' * 100_000}")
    bench.heard(client)
    feed = bench.world.executor.feed
    feed(other, encode_command(["SET", "k", "v"]))  # later reads wait for this to be durable
    feed(client, encode_command(["PING"]))
    bench.world.loop.run_ready()
    feed(other, encode_command(["SET", "k", "w"]))
    feed(client, encode_command(["TRANGE", "s", "-", "+"]))
    bench.world.executor.outbox.on_writable(client)
    bench.settle()
    _, entries = bench.heard(client)
    assert [entry[2][:1] for entry in entries] == [b"%d" % number for number in range(8)]  # type: ignore


def test_changes_of_a_blocking_group_read_are_recorded_at_once() -> None:
    bench = Bench()
    bench.say(bench.client(), "TREAD s 0 1 BLOCK 0 GROUP g 0")
    again = Bench(bench.disk.copy())
    assert again.groups(b"s") == [b"g"]


def test_a_loaded_group_ends_by_its_ttl_without_any_client() -> None:
    bench = Bench()
    bench.say(bench.client(), "TREAD s 0 1 GROUP g 30")
    again = Bench(bench.disk.copy())
    assert again.groups(b"s") == [b"g"]
    again.wait(31)
    assert again.groups(b"s") == []


def test_a_recreated_group_exists_while_a_reader_waits() -> None:
    bench, _, readers = _three_readers_of_a_group_made_anew("0", "30")
    bench.world.executor.detach(readers[1])
    bench.wait(60)
    assert bench.groups(b"s") == [b"g"]
    assert bench.heard(readers[2]) == []
    bench.wait(41)
    assert len(bench.heard(readers[2])) == 1, "the retry wakes it, though it was passed over"


def test_a_skipped_reader_continues_when_its_group_is_destroyed() -> None:
    bench, writer, readers = _three_readers_of_a_group_made_anew('""', "0")
    bench.world.executor.detach(readers[1])
    stream = bench.world.keyspace.databases[0].stream(b"s")
    assert stream is not None
    stream.drop_group(b"g")
    bench.world.keyspace.mark_ready(0, b"s")
    bench.say(writer, "PING")
    assert bench.heard(readers[2]) == [], "it does not begin at 0 again"


def _three_readers_of_a_group_made_anew(
    last_id: str, ttl_ms: str
) -> tuple[Bench, SimClient, list[SimClient]]:
    """The first was served, the second was tried without success, so the third was not tried."""
    bench = Bench()
    writer, readers = bench.client(), [bench.client() for _ in range(3)]
    for reader in readers:
        bench.say(reader, f"TREAD s {last_id} 1 BLOCK 0 GROUP g {ttl_ms} RETRY 100 0")
    bench.say(writer, "DEL s")
    bench.say(writer, "TAPPEND s a 1")
    assert len(bench.heard(readers[0])) == 1
    return bench, writer, readers


def test_the_group_is_created_again_with_its_key() -> None:
    bench = Bench()
    reader, other = bench.client(), bench.client()
    bench.say(reader, "TREAD s 0 1 BLOCK 0 GROUP g 0")
    bench.say(other, "DEL s")
    bench.say(other, "TREAD s 0 1 GROUP h 0")
    assert sorted(bench.groups(b"s")) == [b"g", b"h"]


def test_a_retry_that_falls_due_while_writes_are_refused_waits() -> None:
    bench = Bench()
    reader, writer = bench.client(), bench.client()
    bench.say(writer, "TREAD s 0 1 GROUP g 0")
    bench.say(writer, "TAPPEND s a 1")
    bench.say(writer, "TREAD s 0 1 GROUP g 0 RETRY 50 0")
    bench.say(reader, "TREAD s 0 1 BLOCK 0 GROUP g 0")
    bench.disk.fail("write", errno.EIO)
    bench.say(writer, "SET k v")
    bench.wait(100)
    assert bench.heard(reader) == []
    bench.disk.mend()
    bench.wait(4000)
    assert len(bench.heard(reader)) == 1


def test_a_timer_sees_that_writes_are_refused() -> None:
    bench = Bench()
    reader, writer = bench.client(), bench.client()
    bench.say(writer, "TREAD s 0 1 GROUP g 0")
    bench.say(writer, "TAPPEND s a 1")
    bench.say(writer, "TREAD s 0 1 GROUP g 0 RETRY 50 0")
    bench.say(reader, "TREAD s 0 1 BLOCK 0 GROUP g 0")
    bench.disk.fail("write", errno.EIO)
    bench.say(writer, "SET k v")  # no client sends anything after it failed
    assert bench.world.refuses_writes()
    bench.wait(60)
    assert bench.heard(reader) == []


def test_a_point_in_time_has_no_later_entry() -> None:
    keyspace = Keyspace()
    database = keyspace.databases[0]
    database.set(b"was a stream", Stream(1))
    capture = Capture(keyspace)
    for key in (b"was a stream", b"is new"):
        database.delete(key)
        database.set(key, b"later")
        database.delete(key)
        database.set(key, b"later still")
    captured = list(each(capture.step(100)))
    assert [(one.key, one.kind) for one in captured] == [(b"was a stream", "stream")]
    assert capture.step(100) is None


@pytest.mark.parametrize("in_sector", [1, 2, 3, 4])
def test_a_lost_sector_with_only_a_frame_length_is_a_torn_end(in_sector: int) -> None:
    size = SECTOR - in_sector - HEADER_SIZE - FRAME_SIZE
    start = journal_bytes([b"x" * size])
    assert len(start) == SECTOR - in_sector
    last = with_frames(start, [(2, 0, b"y" * 50)])[len(start) :]
    disk = FakeDisk()
    disk.put("journal-1.log", start + bytes(in_sector) + last[in_sector:])
    reader = JournalReader([disk.read("journal-1.log")], 1)
    assert len(list(reader.frames())) == 1
    assert reader.torn == TornEnd(0, len(start), len(last))


def test_a_key_whose_kind_changes_during_a_rewrite_loads() -> None:
    bench = Bench()
    client = bench.client()
    for number in range(100):
        bench.say(client, f"SET k{number} v")
    bench.say(client, "TAPPEND s a 1")
    bench.world.persistence.snapshots.rewrite()
    prepare = bench.world.workers[1].tasks.popleft()
    prepare()
    timer = bench.world.loop.take()
    assert timer is not None
    timer.callback(*timer.args)  # the capture begins; the first slice does not reach the stream
    for request in ("TAPPEND s b 2", "DEL s", "SET s x", "DEL s", "TAPPEND s c 3"):
        bench.world.executor.feed(client, encode_command(request.split()))
    bench.settle()
    assert "base-2.msnap" in bench.disk.names()
    again = Bench(bench.disk.copy())
    stream = again.world.keyspace.databases[0].stream(b"s")
    assert stream is not None
    assert [words for _, _, words in stream.range()] == [[b"c", b"3"]]


@pytest.mark.parametrize("move", ["RENAME s t", "SWAPDB 0 1", "MOVE s 1"])
def test_a_group_moved_away_from_its_waiting_reader_expires(move: str) -> None:
    bench = Bench()
    reader, other = bench.client(), bench.client()
    bench.say(reader, "TREAD s 0 1 BLOCK 0 GROUP g 50")
    bench.wait(60)
    bench.say(other, move)
    places = [(db.index, key) for db in bench.world.keyspace.databases for key in db.keys()]  # noqa: SIM118
    [(number, key)] = places
    stream = bench.world.keyspace.databases[number].stream(key)
    assert stream is not None
    bench.wait(49)
    assert list(stream.groups) == [b"g"], "its time begins when the reader leaves it"
    bench.wait(2)
    assert list(stream.groups) == []


def test_an_expiry_in_the_past_does_not_disturb_the_replay() -> None:
    bench = Bench()
    client = bench.client()
    for request in ("SET k v PX 100", "APPEND k w", "PEXPIRE k 60000", "APPEND k x"):
        bench.say(client, request)
    again = Bench(bench.disk.copy(), START_MS + 1000)
    again.say(reader := again.client(), "GET k")
    assert again.heard(reader) == [b"vwx"]


def test_a_watched_key_that_expires_without_writes_aborts_exec() -> None:
    bench = Bench()
    client = bench.client()
    bench.say(client, "SET k v PX 20")
    bench.say(client, "WATCH k")
    bench.disk.fail("write", errno.EIO)
    bench.say(bench.client(), "SET other v")
    bench.heard(client)
    bench.wait(30)
    for request in ("MULTI", "GET k", "EXEC"):
        bench.say(client, request)
    assert bench.heard(client)[-1] is Null.ARRAY


def test_a_deleted_entry_claimed_twice_is_dropped_once() -> None:
    bench = Bench()
    client = bench.client()
    for request in ("XADD s 1-1 a 1", "XGROUP CREATE s g 0", "XREADGROUP GROUP g a STREAMS s >",
                    "XDEL s 1-1", "XCLAIM s g b 0 1-1 1-1"):  # fmt: skip
        bench.say(client, request)
    assert bench.world.broken == []
    assert bench.heard(client)[-1] == []


def test_replies_keep_their_order_when_appendfsync_changes() -> None:
    bench = Bench()
    client, other = bench.client(), bench.client()
    bench.say(client, "CONFIG SET appendfsync always")
    bench.heard(client)
    for sender, request in (
        (client, ["XADD", "s", "1-1", "n", "1"]),
        (client, ["PING"]),
        (other, ["CONFIG", "SET", "appendfsync", "everysec"]),
    ):
        bench.world.executor.feed(sender, encode_command([word.encode() for word in request]))
        bench.world.loop.run_ready()
    assert bench.heard(client) == []
    bench.world.executor.feed(client, encode_command([b"SET", b"k", b"v"]))
    while any(worker.run_one() for worker in bench.world.workers):
        pass  # the tick of SET comes before the news that the worker has written
    bench.settle()
    assert bench.heard(client) == [b"1-1", Simple("PONG"), Simple("OK")]
