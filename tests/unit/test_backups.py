"""The backups that a server sends, and the copies that are made of them, step by step on disks that
fail. The keyspace has the numbers 1, 2, 3 ..., so that a prefix is easy to recognize."""

from __future__ import annotations

import errno
import gc
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.fakedisk import Crashed, FakeDisk
from tests.support.fakepersistence import FakeConfig, World

from millstream.errors import CommandError
from millstream.server.backup.answer import BackupAnswer
from millstream.server.backup.copying import CopyWriter
from millstream.server.backup.rests import Rests
from millstream.server.backup.sending import BACKUPS_MAX, Backups
from millstream.server.backup.sources import Broken, Refused, copy_from_directory, copy_from_server
from millstream.server.backup.stream_copy import capture_stream
from millstream.server.durability.workers import Machine
from millstream.server.replication.records import RecordKind, encode
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream


class SlowClient:
    """A client that reads when the test lets it."""

    address = "client:1"
    held_bytes = 0
    user = None

    def __init__(self, number: int, now_ms: int) -> None:
        self.id = number
        self.feed: Any = None
        self.closed = self.paused = self.ended = False
        self.sent = b""
        self.last_active_ms = now_ms
        self.output_bytes = 0

    def transmit(self, data: bytes) -> int:
        # The answer may follow an empty line that was not read.
        assert not self.paused or len(self.sent) <= 2, "more than the connection takes"
        self.sent += data
        self.paused = True
        self.output_bytes = len(data)
        return 0

    def read(self) -> None:
        if self.paused:
            self.paused = False
            self.output_bytes = 0
            if self.feed is not None and not self.closed:
                self.feed.pump()

    def close(self, after_reply: bool) -> None:
        self.ended = True
        self.closed = not after_reply


class Sender:
    """A server that sends backups."""

    def __init__(self, disk: FakeDisk, **settings: Any) -> None:
        self.commands = 0
        self.world = World(disk, FakeConfig(**settings))
        self.world.load()
        world, loop = self.world, self.world.loop
        self.config: Any = world.config
        self.config.repl_timeout = 60
        machine = Machine(disk, loop.clock, loop.clock, loop, world._new_worker, lambda: 0.0)
        self.backups = Backups(
            self.config, machine, Keyspace(), world.persistence,
            is_replica=lambda: False, note_readers=lambda clients, now_ms: None,
            commands=lambda: self.commands,
        )  # fmt: skip
        self.made = 0

    def begin(self) -> SlowClient:
        self.made += 1
        client = SlowClient(self.made, self.world.loop.now_ms)
        self.backups.begin(client)
        return client

    def finish(self, client: SlowClient) -> bytes:
        """Everything that the client gets."""
        while not client.ended:
            self.world.settle()
            client.read()
            if not (self.world.step_any() or client.paused or client.ended):
                self.world.second()
                self.backups.tick_second()
        return client.sent


def numbers_in(disk: FakeDisk) -> list[int]:
    """The numbers that a server finds on a copy."""
    world = World(disk)
    world.load()
    return sorted(world.keyspace.numbers())


def copied(sent: bytes, seed: int = 0) -> FakeDisk:
    disk = FakeDisk(seed)
    copy_from_server(iter([sent]), disk, lambda done, total: None)
    return disk


def is_copy(disk: FakeDisk) -> bool:
    return "manifest" in disk.names()


@pytest.mark.parametrize("appendonly", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_a_backup_is_a_state_after_its_beginning(seed: int, appendonly: bool) -> None:
    chance = random.Random(seed)
    sender = Sender(FakeDisk(seed), appendonly=appendonly)
    world = sender.world
    for _ in range(chance.randrange(40)):
        world.write_tick()
        if chance.random() < 0.1:
            world.settle()
            world.persistence.snapshots.start("rewrite" if appendonly else "save")
        world.step_any(chance)
    acked = list(world.acked)
    client = sender.begin()
    for _ in range(2000):
        if client.ended:
            break
        if chance.random() < 0.2:
            world.write_tick()
        if chance.random() < 0.02 and world.persistence.snapshots.job is None:
            world.persistence.snapshots.start("rewrite" if appendonly else "save")
        if chance.random() < 0.5:
            client.read()
        if not world.step_any(chance):
            world.loop.advance(100)
            sender.backups.tick_second()
    numbers = numbers_in(copied(sender.finish(client), seed))
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= max(acked, default=0)
    assert len(numbers) < world.next_number
    world.settle()
    assert [name for name in world.disk.names() if name.endswith(".tmp")] == []


@pytest.fixture(scope="module")
def sent() -> bytes:
    """A small backup with a base and frames."""
    sender = Sender(FakeDisk(1))
    for number in range(12):
        sender.world.write_tick()
        sender.world.settle()
        if number == 5:
            sender.world.persistence.snapshots.rewrite()
    return sender.finish(sender.begin())


def test_a_backup_that_ends_at_any_byte_is_no_copy(sent: bytes) -> None:
    for end in range(0, len(sent), 3):
        disk = FakeDisk()
        with pytest.raises(Broken):
            copy_from_server(iter([sent[: end // 2], sent[end // 2 : end]]), disk, no_progress)
        assert not is_copy(disk)
    assert numbers_in(copied(sent)) == list(range(1, 13))


def no_progress(done: int, total: int) -> None:
    pass


def test_a_flipped_bit_anywhere_is_found(sent: bytes) -> None:
    for place in range(0, len(sent), 5):
        damaged = bytearray(sent)
        damaged[place] ^= 1 << place % 8
        disk = FakeDisk()
        with pytest.raises((Broken, Refused)):
            copy_from_server(iter([bytes(damaged)]), disk, no_progress)
        assert not is_copy(disk)


def test_a_crash_at_any_step_leaves_no_half_copy(sent: bytes) -> None:
    steps = 0
    while True:
        steps += 1
        disk = FakeDisk(steps)
        disk.crash_at = steps
        try:
            copy_from_server(iter([sent]), disk, no_progress)
        except Crashed:
            pass
        else:
            break
        for seed in range(3):
            after = disk.after_crash(seed)
            if is_copy(after):
                assert numbers_in(after) == list(range(1, 13))
    assert steps > 10


def test_an_error_of_the_disk_is_reported(sent: bytes) -> None:
    for operation in ("create", "write", "sync", "rename"):
        disk = FakeDisk()
        disk.fail(operation, errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            copy_from_server(iter([sent]), disk, no_progress)
        assert not is_copy(disk)


def test_a_directory_is_copied_up_to_its_torn_end(sent: bytes) -> None:
    source = copied(sent)
    journal = next(name for name in source.names() if name.startswith("journal"))
    source.put(journal, source.content(journal)[:-1])
    disk = FakeDisk(5)
    copy_from_directory(source, disk, no_progress)
    assert numbers_in(disk) == list(range(1, 12))


ANSWER = BackupAnswer("0.1.0", "master", "a" * 40, 0, 0, 2, 1)


@pytest.mark.parametrize(
    ("received", "words"),
    [
        (b"-LOADING Redis is loading\r\n", "LOADING"),
        (b"\r\n\r\n-NOPERM no\x1b\r\n", r"NOPERM no\\x1b"),
    ],
)
def test_an_error_of_the_server_is_passed_on(received: bytes, words: str) -> None:
    with pytest.raises(Refused, match=words):
        copy_from_server(iter([received]), FakeDisk(), no_progress)


@pytest.mark.parametrize(
    "received",
    [
        b"",
        b"\r\n\r\n",
        b"$5\r\nhello\r\n",
        b"x" * 10_000,
        b"+BACKUP\r\n",
        b"+BACKUP 2 \xff\r\n",
        ANSWER._replace(last_seq=-1).encode(),
        ANSWER.encode().replace(b"+BACKUP 2 ", b"+BACKUP 3 "),
        ANSWER.encode() + encode(2, RecordKind.FRAME, b""),
        ANSWER.encode() + encode(0, RecordKind.BEAT, b"x" * 24),
        ANSWER.encode() + encode(0, RecordKind.END, b""),
        ANSWER.encode() + encode(0, RecordKind.PIECE, b"x" * 9),
    ],
)
def test_anything_else_is_no_backup(received: bytes) -> None:
    disk = FakeDisk()
    with pytest.raises(Broken):
        copy_from_server(iter([received]), disk, no_progress)
    assert not is_copy(disk)


def test_a_copy_without_data_is_a_directory() -> None:
    disk = FakeDisk()
    CopyWriter(disk, 0, 0).finish(0)
    assert numbers_in(disk) == []


# The server


def refusal(sender: Sender) -> str:
    with pytest.raises(CommandError) as caught:
        sender.begin()
    return caught.value.message


def test_a_server_whose_journal_has_failed_refuses() -> None:
    sender = Sender(FakeDisk())
    sender.world.disk.fail("write", name="journal")
    sender.world.write_tick()
    sender.world.settle()
    assert "the journal of this server does not work" in refusal(sender)


def test_a_server_whose_data_is_replaced_refuses() -> None:
    sender = Sender(FakeDisk())
    assert sender.world.persistence.snapshots.suspend()
    assert refusal(sender).startswith("TRYAGAIN")


def test_the_number_of_backups_at_a_time_is_limited() -> None:
    sender = Sender(FakeDisk())
    clients = [sender.begin() for _ in range(BACKUPS_MAX)]
    assert "try again later" in refusal(sender)
    clients[0].closed = True
    sender.backups.remove(clients[0])
    sender.begin()


def test_a_client_that_reads_nothing_is_disconnected() -> None:
    sender = Sender(FakeDisk())
    sender.world.write_tick()
    client = sender.begin()
    sender.world.settle()
    assert client.paused
    sender.world.loop.advance(60_000)
    sender.backups.tick_second()
    assert not client.closed
    sender.world.loop.advance(1)
    sender.backups.tick_second()
    assert client.closed
    assert client.feed is None
    assert not sender.backups.by_client


@pytest.fixture
def no_gc() -> Iterator[None]:
    """No garbage collection, which a server has seldom."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("appendonly", [True, False])
def test_a_client_that_leaves_at_any_step_leaves_nothing(appendonly: bool, busy: bool) -> None:
    for steps in range(40):
        sender = Sender(FakeDisk(), appendonly=appendonly)
        for _ in range(8):
            sender.world.write_tick()
        sender.world.settle()
        files = sender.world.disk.names()
        client = sender.begin()
        for _ in range(steps):
            sender.commands += 1_000_000 * busy
            client.read()
            sender.world.step_any()
        kept = [weakref.ref(client.feed)] if client.feed else []
        if client.feed and client.feed._data:
            kept.append(weakref.ref(client.feed._data))
        client.closed = True
        sender.backups.remove(client)
        sender.world.settle()
        sender.world.loop.advance(1000)
        sender.world.settle()
        assert [found for ref in kept if (found := ref())] == [], steps
        assert sender.world.disk.names() == files
        assert sender.world.persistence.snapshots.job is None
        numbers = numbers_in(copied(sender.finish(sender.begin())))
        assert numbers == list(range(1, 9))


class Host:
    """The clocks of a host, and the commands of its server."""

    def __init__(self) -> None:
        self.now_ms = self.commands = 0
        self.loop_s = 0.0
        self.rests = Rests(lambda: self.commands, lambda: self.now_ms, lambda: self.loop_s)

    def rest_s(self, ms: int, commands: int, loop_s: float = 0.0, backups: int = 1) -> float:
        """The rest after a piece that took 1 ms, in a window with these commands."""
        self.now_ms += ms
        self.commands += commands
        self.loop_s += loop_s
        return self.rests.next_s(0.0006, 0.0002, 200_000, backups)


def test_a_busy_server_rests_between_pieces() -> None:
    host = Host()
    assert host.rest_s(100, 900) == 0
    assert host.rest_s(100, 1100) == pytest.approx(0.064)
    assert host.rest_s(100, 900) == 0


def test_few_slow_commands_make_a_server_busy() -> None:
    host = Host()
    assert host.rest_s(100, 10, loop_s=0.04) == 0
    assert host.rest_s(100, 10, loop_s=0.06) > 0


def test_all_backups_of_a_busy_server_share_one_rate() -> None:
    host = Host()
    alone_s = host.rest_s(100, 1100)
    assert host.rest_s(100, 1100, backups=4) == pytest.approx(4 * alone_s)


def test_a_backup_rests_until_the_load_is_known() -> None:
    host = Host()
    host.rest_s(100, 0)
    host.rests.begin_backup()
    assert host.rest_s(1, 0) > 0


def test_a_rest_of_a_busy_server_has_an_upper_bound() -> None:
    host = Host()
    host.rest_s(100, 1100)
    assert host.rests.next_s(10.0, 0.0, 1, 1) == 0.25


def test_a_client_that_leaves_during_a_rest_leaves_nothing() -> None:
    sender = Sender(FakeDisk())
    sender.world.write_tick()
    sender.world.settle()
    sender.world.persistence.snapshots.start("rewrite")
    sender.world.settle()
    client = sender.begin()
    for _ in range(4):
        sender.commands += 1_000_000
        client.read()
        sender.world.settle()
    assert sender.world.loop.timers
    assert not client.ended
    client.closed = True
    feed = client.feed
    sender.backups.remove(client)
    sender.world.loop.advance(1000)
    sender.world.settle()
    assert feed._data is None


def test_a_snapshot_that_cannot_be_written_is_reported() -> None:
    sender = Sender(FakeDisk(), appendonly=False)
    sender.world.write_tick()
    sender.world.settle()
    sender.world.disk.fail("write", errno.ENOSPC, times=1)
    client = sender.begin()
    sent = sender.finish(client)
    assert b"-ERR the snapshot for the backup could not be written: No space left" in sent
    assert numbers_in(copied(sender.finish(sender.begin()))) == [1]


def test_a_save_first_finishes_the_snapshot_of_a_backup() -> None:
    sender = Sender(FakeDisk(), appendonly=False)
    sender.world.write_tick()
    client = sender.begin()
    while sender.world.persistence.snapshots.job is None:
        assert sender.world.step_any()
    sender.world.write_tick()
    sender.world.persistence.snapshots.save()
    assert numbers_in(copied(sender.finish(client))) in ([1], [1, 2])
    assert sender.world.persistence.snapshots.tallies["save"].ok


def test_a_base_that_is_missing_or_damaged_is_reported() -> None:
    sender = Sender(FakeDisk())
    sender.world.write_tick()
    sender.world.persistence.snapshots.save()
    sender.world.disk.fail("open", errno.ENOENT, name="base")
    sent = sender.finish(sender.begin())
    assert b"-ERR a file cannot be opened: No such file or directory\r\n" in sent
    sender.world.disk.mend()
    name = next(name for name in sender.world.disk.names() if name.startswith("base"))
    sender.world.disk.put(name, b"x" * 500)
    assert b"-ERR a file cannot be read" in sender.finish(sender.begin())


def test_a_stream_copy_has_no_history() -> None:
    keyspace = Keyspace()
    keyspace.histories = (("line", 1),)
    keyspace.databases[0].set(b"s", Stream())
    copy = capture_stream(keyspace, 0, b"s", Sender(FakeDisk()).world.persistence.commits, 1)
    assert copy is not None
    assert "histories" not in copy.global_meta
    assert "frame_bytes" not in copy.global_meta


def test_only_a_whole_backup_that_is_sent_is_the_last_one() -> None:
    sender = Sender(FakeDisk())
    sender.world.loop.advance(60_000)
    sender.world.write_tick()
    sender.backups.keyspace.databases[0].set(b"s", Stream())
    ended = sender.begin()
    sender.world.settle()
    ended.closed = True
    sender.backups.remove(ended)
    one = SlowClient(10, 0)
    sender.backups.begin(one, (0, b"s"))
    assert is_copy(copied(sender.finish(one)))
    assert sender.backups.last_s == 0
    began_s = sender.world.loop.now_ms // 1000
    whole = sender.begin()
    sender.world.settle()
    sender.world.loop.advance(30_000)
    sender.finish(whole)
    assert 0 < sender.backups.last_s == began_s


@pytest.mark.parametrize("is_rewritten", [True, False])
@pytest.mark.parametrize("frames", [0, 1, 20])
def test_a_client_that_has_all_may_close_at_once(frames: int, is_rewritten: bool) -> None:
    sender = Sender(FakeDisk())
    sender.world.loop.advance(60_000)
    for _ in range(frames):
        sender.world.write_tick()
    sender.world.settle()
    if is_rewritten:
        sender.world.persistence.snapshots.start("rewrite")
        sender.world.settle()
    whole = len(sender.finish(sender.begin()))
    sender.backups.last_s = 0
    client = sender.begin()
    while len(client.sent) < whole:
        assert sender.backups.last_s == 0
        client.read()
        if not sender.world.step_any():
            sender.world.loop.advance(100)
    client.read()
    client.closed = True
    sender.backups.remove(client)
    assert sender.backups.last_s > 0


def test_a_stop_ends_backups_that_read_or_rest() -> None:
    for steps in range(20):
        sender = Sender(FakeDisk())
        sender.world.write_tick()
        sender.world.settle()
        client = sender.begin()
        for _ in range(steps):
            sender.commands += 1_000_000
            client.read()
            sender.world.step_any()
        worker: Any = sender.backups._worker
        sender.backups.stop()
        worker.submit = pytest.fail
        sender.world.settle()
        sender.world.loop.advance(1000)
        sender.world.settle()


def test_a_stream_backup_that_waits_ends_when_data_is_replaced() -> None:
    sender = Sender(FakeDisk())
    snapshots = sender.world.persistence.snapshots
    for resumes in (False, True):
        sender.backups.keyspace.databases[0].set(b"s", Stream())
        client = SlowClient(10 + resumes, 0)
        sender.backups.begin(client, (0, b"s"))
        snapshots.suspend()
        if resumes:
            snapshots.resume()
        assert b"-TRYAGAIN" in sender.finish(client)
        snapshots.resume()


def test_a_backup_without_a_client_cancels_its_snapshot() -> None:
    sender = Sender(FakeDisk(), appendonly=False)
    client = sender.begin()
    snapshots = sender.world.persistence.snapshots
    while snapshots.job is None:
        assert sender.world.step_any()
    job = snapshots.job
    with pytest.raises(CommandError, match="a snapshot for a backup is being written"):
        snapshots.bgsave()
    assert snapshots.bgsave(schedule=True) == "Background saving scheduled"
    client.closed = True
    sender.backups.remove(client)
    assert job.cancelled
    sender.world.settle()
    assert snapshots.tallies["save"].count == 1


def test_a_due_save_comes_before_the_next_backup() -> None:
    sender = Sender(FakeDisk(), appendonly=False, save="1 1")
    snapshots = sender.world.persistence.snapshots
    sender.world.write_tick()
    sender.world.settle()
    sender.world.loop.advance(2000)
    clients = [sender.begin(), sender.begin()]
    while snapshots.job is None:
        assert sender.world.step_any()
    assert snapshots.job.kind == "copy"
    snapshots.start_if_due(1_000_000, 0, 0)
    assert snapshots.scheduled == "save"
    sender.finish(clients[0])
    assert snapshots.tallies["save"].count  # the second backup is still waiting or just begins
    sender.finish(clients[1])
