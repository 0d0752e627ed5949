"""The journal: synced frames come back, torn ends are cut, damage is refused."""

import errno
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.fakedisk import FakeDisk, FakeFile
from tests.support.fakepersistence import HandWorker
from tests.support.journals import header, journal_bytes, with_frames

from millstream.errors import DataError
from millstream.storage.files import journal_writer as journal_module
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.journal_file import RESERVE_LEAST, create_journal
from millstream.storage.files.journal_format import FRAME_SIZE, HEADER_SIZE, FrameFormat, read_head
from millstream.storage.files.journal_reader import (
    JournalReader,
    cut_torn_end,
    frame_numbers,
    frames_from,
)
from millstream.storage.files.journal_writer import Journal

Payloads = list[bytes]
ID = bytes(range(16))


class Owner:
    def __init__(self) -> None:
        self.synced: list[int] = []
        self.errors: list[OSError] = []
        self.space: list[OSError | None] = []
        self.written = 0
        self.released: list[int] = []

    def journal_synced(self, journal: Journal, seq: int) -> None:
        self.synced.append(seq)

    def journal_failed(self, journal: Journal, error: OSError) -> None:
        self.errors.append(error)

    def journal_written(self, journal: Journal, seq: int) -> None:
        self.written += 1

    def journal_released(self, journal: Journal, seq: int) -> None:
        self.released.append(seq)

    def journal_space(self, journal: Journal, error: OSError | None) -> None:
        self.space.append(error)


class Bench:
    """A journal on a fake disk with a worker that runs by hand."""

    def __init__(
        self, mode: str = "always", disk: FakeDisk | None = None, reserve_bytes: int = 4096
    ) -> None:
        self.disk = disk or FakeDisk()
        self.worker = HandWorker("journal")
        self.owner = Owner()
        self.names = ["journal-1.log"]
        self.journal = Journal(
            create_journal(self.disk, "journal-1.log", ID),
            1,
            mode,
            self.worker,
            self.owner,
            reserve_bytes,
        )
        self.disk.sync_directory()
        self.seq = 0

    def append(self, payload: bytes, must_sync: bool = True) -> bool:
        self.seq += 1
        return self.journal.append(self.seq, payload, must_sync)

    def rotate(self) -> None:
        self.names.append(f"journal-{len(self.names) + 1}.log")
        file = create_journal(self.disk, self.names[-1], ID)
        self.disk.sync_directory()
        self.journal.rotate(file)


def read(disk: FakeDisk, names: list[str], first: int = 1) -> tuple[Payloads, JournalReader]:
    reader = JournalReader([disk.read(name) for name in names], first)
    return [payload for _, _, payload in reader.frames()], reader


def journal_file(payloads: Payloads, synced_each: bool = True, first: int = 1) -> bytes:
    """A journal's bytes; every frame proves the one before it, or none proves any."""
    return journal_bytes(payloads, first, synced_each=synced_each)


def disk_with(*contents: bytes) -> tuple[FakeDisk, list[str]]:
    disk = FakeDisk()
    names = [f"journal-{number}.log" for number in range(1, len(contents) + 1)]
    for name, content in zip(names, contents, strict=True):
        disk.put(name, content)
    return disk, names


def effects(count: int, size: int = 30) -> Payloads:
    return [b"ADD key %d " % number + b"x" * size + b"\r\n" for number in range(1, count + 1)]


# ---------------------------------------------------------------------------------------- writing


def test_always_reports_a_frame_only_after_the_sync() -> None:
    bench = Bench()
    assert bench.append(b"one\n") is False
    assert bench.owner.synced == []
    bench.worker.drain()
    assert bench.owner.synced == [1]
    assert bench.disk.files["journal-1.log"].durable.endswith(b"one\n")


def test_a_frame_without_memory_to_write_it_ends_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.append(b"one\n")
    bench.worker.drain()
    write = bench.journal._file.write

    def refuse(data: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(bench.journal._file, "write", refuse)
    bench.append(b"two\n")
    bench.worker.drain()
    monkeypatch.setattr(bench.journal._file, "write", write)
    bench.append(b"three\n")
    bench.worker.drain()
    assert [type(error) for error in bench.owner.errors] == [OSError]
    assert bench.owner.synced == [1]
    payloads, reader = read(bench.disk, bench.names)
    assert (payloads, reader.torn) == ([b"one\n"], None)


@pytest.mark.parametrize("mode", ["always", "everysec", "no"])
@pytest.mark.parametrize("new_mode", ["always", "everysec", "no"])
def test_setting_a_mode_does_not_wait_for_the_worker(mode: str, new_mode: str) -> None:
    bench = Bench(mode)
    bench.append(b"one\n")
    queued = list(bench.worker.tasks)
    bench.journal.set_mode(new_mode)
    assert list(bench.worker.tasks)[: len(queued)] == queued
    bench.append(b"two\n")
    bench.worker.drain()
    assert read(bench.disk, bench.names)[0] == [b"one\n", b"two\n"]
    assert (bench.journal.synced_seq == 2) == (new_mode == "always")


def test_frames_follow_the_queue_after_a_change_of_the_mode() -> None:
    """Frames that wait come first; when they are written the loop writes again."""
    bench = Bench("always")
    bench.append(b"one\n")
    bench.journal.set_mode("everysec")
    assert bench.append(b"two\n") is False
    bench.worker.drain()
    assert bench.append(b"three\n") is True
    assert read(bench.disk, bench.names)[0] == [b"one\n", b"two\n", b"three\n"]
    assert bench.owner.written == 1


class BusyBench(Bench):
    """The loop does random things whenever the worker is inside a call of the disk."""

    def __init__(self, seed: int) -> None:
        super().__init__("always")
        self.chance = random.Random(seed)
        self.in_loop = False
        self.payloads: Payloads = []
        self.owner.journal_synced = self._check_synced  # type: ignore[method-assign]

    def _check_synced(self, journal: Journal, seq: int) -> None:
        left = self.disk.after_crash(self.chance.getrandbits(32), tear=False)
        found = read(left, [name for name in self.names if name in left.names()])[0]
        assert found[:seq] == self.payloads[:seq]

    def act(self) -> None:
        if self.in_loop:
            return
        self.in_loop = True
        for _ in range(self.chance.randint(0, 3)):
            what = self.chance.random()
            if what < 0.6:
                self.payloads.append(b"%d\n" % len(self.payloads))
                self.append(self.payloads[-1])
            elif what < 0.8:
                self.journal.set_mode(self.chance.choice(["always", "everysec", "no"]))
            elif what < 0.9:
                self.journal.tick_second()
            elif len(self.names) < 6:
                self.rotate()
        self.in_loop = False


def test_the_mode_may_change_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100):
        change_modes(BusyBench(seed), monkeypatch)


def change_modes(bench: BusyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop act also within the worker's operations, and read what was written."""

    def busy(operation: Callable[..., None]) -> Callable[..., None]:
        def run(file: FakeFile, *args: bytes) -> None:
            bench.act()
            operation(file, *args)
            bench.act()

        return run

    monkeypatch.setattr(FakeFile, "write", busy(FakeFile.write))
    monkeypatch.setattr(FakeFile, "sync", busy(FakeFile.sync))
    for _ in range(40):
        bench.act()
        bench.worker.run_one()
    monkeypatch.undo()
    bench.worker.drain()
    bench.journal.close()
    assert read(bench.disk, bench.names)[0] == bench.payloads


def test_always_syncs_once_for_simultaneous_requests() -> None:
    bench = Bench()
    for number in range(50):
        bench.append(b"%d\n" % number)
    before = list(bench.disk.log)
    bench.worker.drain()
    new = bench.disk.log[len(before) :]
    assert [line for line in new if "reserve" not in line] == [
        "write journal-1.log",
        "sync journal-1.log",
    ]
    assert bench.owner.synced == [50]


def test_everysec_writes_at_once_and_syncs_on_the_second() -> None:
    bench = Bench("everysec")
    assert bench.append(b"one\n") is True
    assert bench.disk.content("journal-1.log").endswith(b"one\n")
    bench.worker.drain()
    assert bench.journal.synced_seq == 0
    bench.journal.tick_second()
    bench.worker.drain()
    assert bench.journal.synced_seq == 1


@pytest.mark.parametrize("mode", ["always", "everysec", "no"])
def test_rotation_keeps_the_order_over_files(mode: str) -> None:
    bench = Bench(mode)
    payloads = effects(9)
    for at, payload in enumerate(payloads):
        bench.append(payload)
        if at in (2, 5):
            bench.rotate()
    bench.worker.drain()
    bench.journal.close()
    found, reader = read(bench.disk, bench.names)
    assert (found, reader.next_seq, reader.torn) == (payloads, 10, None)
    assert read_head(bench.disk.read("journal-2.log")).format.directory == ID


def test_a_sync_before_a_rotation_does_not_cover_later_frames() -> None:
    bench = Bench("everysec")
    bench.append(b"one\n")
    bench.journal.tick_second()
    bench.rotate()
    bench.append(b"two\n")
    bench.worker.run_one()  # space for the first file
    bench.worker.run_one()
    assert bench.journal.synced_seq == 1
    bench.worker.drain()
    assert bench.journal.synced_seq == 1
    bench.journal.tick_second()
    bench.worker.drain()
    assert bench.journal.synced_seq == 2


def test_simultaneous_requests_for_a_sync_share_one() -> None:
    bench = Bench("everysec")
    bench.append(b"one\n")
    for _ in range(3):
        bench.journal.sync_soon()
    bench.worker.drain()
    assert bench.disk.log.count("sync journal-1.log") == 2  # one made the file
    bench.append(b"two\n")
    bench.journal.sync_soon()
    bench.worker.drain()
    assert bench.journal.synced_seq == 2
    assert bench.owner.synced == [1, 2]


def test_changing_the_mode_loses_nothing() -> None:
    bench = Bench()
    payloads = effects(40)
    chance = random.Random(5)
    for payload in payloads:
        bench.append(payload)
        if chance.random() < 0.3:
            bench.journal.set_mode(chance.choice(["always", "everysec", "no"]))
        if chance.random() < 0.3:
            bench.worker.run_one()
    bench.journal.close()
    assert read(bench.disk, bench.names)[0] == payloads


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("mode", ["always", "everysec"])
def test_a_failure_is_reported_once_and_ends_acknowledgements(operation: str, mode: str) -> None:
    bench = Bench(mode)
    bench.append(b"one\n")
    bench.journal.tick_second()
    bench.worker.drain()
    bench.disk.fail(operation, errno.EIO)
    for _ in range(3):
        bench.append(b"more\n")
        bench.journal.tick_second()
        bench.worker.drain()
    bench.disk.mend()
    bench.append(b"later\n")
    bench.worker.drain()
    assert [error.errno for error in bench.owner.errors] == [errno.EIO]
    assert bench.owner.synced == [1]
    assert b"later" not in bench.disk.content("journal-1.log")


def test_missing_space_is_known_before_the_write_fails() -> None:
    disk = FakeDisk(capacity=6000)
    bench = Bench("always", disk)
    while not bench.owner.space:
        bench.append(b"x" * 100 + b"\n")
        bench.worker.drain()
    assert bench.owner.errors == []
    assert isinstance(bench.owner.space[0], OSError)
    assert bench.owner.synced[-1] == bench.seq
    disk.mend()
    bench.journal.tick_second()
    bench.worker.drain()
    assert bench.owner.space[-1] is None


def test_the_header_is_on_the_disk_when_a_journal_is_made() -> None:
    disk = FakeDisk()
    assert create_journal(disk, "journal-1.log", ID).file.size == HEADER_SIZE
    assert disk.files["journal-1.log"].durable == disk.content("journal-1.log")


@pytest.mark.parametrize("mode", ["always", "everysec", "no"])
def test_a_nearly_full_disk_is_used_up_in_smaller_steps(mode: str) -> None:
    capacity = 5 * RESERVE_LEAST
    disk = FakeDisk(capacity=capacity)
    worker, owner = HandWorker("journal"), Owner()
    opened = create_journal(disk, "journal-1.log", ID)
    journal = Journal(opened, 1, mode, worker, owner, 16 * RESERVE_LEAST)
    journal.request_space()
    worker.drain()
    assert owner.space == []
    seq = 0
    while not owner.space:
        seq += 1
        journal.append(seq, b"x" * 20_000)
        worker.drain()
    assert owner.errors == []
    assert capacity - 2 * RESERVE_LEAST < opened.file.size < capacity


@pytest.mark.parametrize("mode", ["always", "everysec", "no"])
def test_reserved_space_for_a_large_frame_is_available(mode: str) -> None:
    disk = FakeDisk(capacity=20 * RESERVE_LEAST)
    worker, owner = HandWorker("journal"), Owner()
    journal = Journal(
        create_journal(disk, "journal-1.log", ID), 1, mode, worker, owner, RESERVE_LEAST
    )
    journal.request_space()
    worker.drain()
    for seq in (1, 2):  # the second after a first that may not be written yet
        size_bytes = 8 * RESERVE_LEAST
        assert journal.make_room(size_bytes) >= size_bytes
        journal.append(seq, bytes(size_bytes))
    with pytest.raises(OSError, match="No space left"):
        journal.make_room(8 * RESERVE_LEAST)
    assert journal.make_room(100) >= 100, "a smaller one still has its place"
    worker.drain()
    assert owner.errors == []
    journal.rotate(create_journal(disk, "journal-2.log", ID))
    with pytest.raises(OSError, match="No space left"):
        journal.make_room(8 * RESERVE_LEAST)
    worker.drain()
    assert owner.errors == []


# ---------------------------------------------------------------------------------------- reading


@given(st.lists(st.binary(min_size=1, max_size=2000), max_size=30), st.integers(1, 2**63))
def test_reading_returns_the_written_data(payloads: Payloads, first: int) -> None:
    disk, names = disk_with(journal_file(payloads, first=first))
    found, reader = read(disk, names, first)
    assert (found, reader.next_seq, reader.torn) == (payloads, first + len(payloads), None)


def test_frames_longer_than_a_read_are_restored() -> None:
    payloads = [b"a" * 3_000_000, b"b\n", b"c" * 1_048_576, b"d\n"]
    disk, names = disk_with(journal_file(payloads))
    assert read(disk, names)[0] == payloads


def test_every_cut_of_the_last_journal_loads_a_prefix() -> None:
    payloads = effects(6)
    whole = journal_file(payloads)
    ends = [HEADER_SIZE]
    for payload in payloads:
        ends.append(ends[-1] + FRAME_SIZE + len(payload))
    for size in range(HEADER_SIZE, len(whole)):
        disk, names = disk_with(journal_file([]), whole[:size])
        found, reader = read(disk, names)
        complete = max((at for at, end in enumerate(ends) if end <= size), default=0)
        assert found == payloads[:complete]
        assert (reader.torn is None) == (size in ends)
        if reader.torn is not None:
            cut_torn_end(disk, names, reader.torn)
            again, reader = read(disk, names)
            assert (again, reader.torn) == (found, None)


def flips(data: bytes, start: int, end: int) -> list[bytes]:
    broken = []
    for at in range(start, end):
        for bit in (0, 3, 7):
            copy = bytearray(data)
            copy[at] ^= 1 << bit
            broken.append(bytes(copy))
    return broken


@pytest.mark.parametrize("synced_each", [True, False])
def test_every_flipped_byte_of_a_middle_frame_is_refused(synced_each: bool) -> None:
    payloads = effects(5)
    data = journal_file(payloads, synced_each)
    start = HEADER_SIZE + sum(FRAME_SIZE + len(payload) for payload in payloads[:2])
    for broken in flips(data, start, start + FRAME_SIZE + len(payloads[2])):
        disk, names = disk_with(broken)
        with pytest.raises(DataError, match=rf"journal-1\.log is damaged at offset {start}"):
            read(disk, names)
        assert disk.content("journal-1.log") == broken


def test_every_flipped_byte_of_the_last_frame_is_refused() -> None:
    """Also of its length: a torn write ends early or leaves zeros, it does not change bytes."""
    payloads = effects(3)
    data = journal_file(payloads)
    start = len(data) - FRAME_SIZE - len(payloads[2])
    # A frame with wrong length and wrong number looks torn; one with a wrong byte does not.
    for broken in flips(data, start, len(data)):
        disk, names = disk_with(broken)
        with pytest.raises(DataError, match=rf"damaged at offset {start}"):
            read(disk, names)


def test_every_flipped_byte_of_a_header_is_refused() -> None:
    data = journal_file(effects(3))
    for broken in flips(data, 0, HEADER_SIZE):
        disk, names = disk_with(broken)
        with pytest.raises(DataError, match=r"journal-1\.log"):
            read(disk, names)


def test_every_flipped_byte_of_an_earlier_journal_is_refused() -> None:
    first, second = effects(6)[:3], effects(6)[3:]
    data = journal_file(first)
    for broken in flips(data, HEADER_SIZE, len(data)):
        disk, names = disk_with(broken, journal_file(second, first=4))
        with pytest.raises(DataError, match=r"journal-1\.log is damaged at offset"):
            read(disk, names)


def test_a_cut_journal_before_one_that_proves_its_end_is_refused() -> None:
    first, second = effects(6)[:3], effects(6)[3:]
    data = journal_file(first)
    for size in range(len(data)):
        disk, names = disk_with(data[:size], journal_file(second, first=4))
        with pytest.raises(DataError, match="damaged"):
            read(disk, names)


def test_a_journal_with_an_unsynced_end_is_cut_with_later_ones() -> None:
    first = effects(6)[:3]
    data = journal_file(first, synced_each=False)
    later = with_frames(header(), [(4, 3, b"four\n"), (5, 4, b"five\n")])
    disk, names = disk_with(data[:-5], later)
    found, reader = read(disk, names)
    assert found == first[:2]
    assert reader.torn is not None
    cut_torn_end(disk, names, reader.torn)
    assert reader.torn.kept(names) == ("journal-1.log",)
    assert read(disk, ["journal-1.log"])[0] == first[:2]


def test_bytes_that_resemble_a_frame_are_not_reread(monkeypatch: pytest.MonkeyPatch) -> None:
    imitation = struct.pack("<IIQII", 8, 0, 100, 0, 0) + b"payload."
    data = bytearray(journal_file([b"first", imitation * 2000, b"last"]))
    data[HEADER_SIZE + FRAME_SIZE + len(b"first")] ^= 1  # the second one's length
    disk, names = disk_with(bytes(data))
    file = disk.read(names[0])
    reads: list[int] = []
    read_at = file.read_at

    def count_reads(offset: int, length: int) -> bytes:
        reads.append(offset)
        return read_at(offset, length)

    monkeypatch.setattr(file, "read_at", count_reads)
    with pytest.raises(DataError, match="checksum"):
        list(JournalReader([file], 1).frames())
    assert len(reads) < 50


def test_a_lost_sector_among_unsynced_frames_is_cut() -> None:
    payloads = effects(60)
    data = bytearray(journal_file(payloads, synced_each=False))
    data[1024:1536] = bytes(512)
    disk, names = disk_with(bytes(data))
    found, reader = read(disk, names)
    assert found == payloads[: len(found)]
    assert 0 < len(found) < 30
    assert reader.torn is not None
    cut_torn_end(disk, names, reader.torn)
    assert read(disk, names)[0] == found


def test_a_lost_sector_among_synced_frames_is_refused() -> None:
    data = bytearray(journal_file(effects(60)))
    data[1024:1536] = bytes(512)
    disk, names = disk_with(bytes(data))
    with pytest.raises(DataError, match="damaged"):
        read(disk, names)


@pytest.mark.parametrize("which", [0, 1])
def test_a_journal_shorter_than_its_header_is_refused(which: int) -> None:
    """The header was on the disk before the manifest named the file."""
    whole = [journal_file(effects(3)), journal_file(effects(3), first=4)]
    for size in range(HEADER_SIZE):
        contents = [*whole]
        contents[which] = contents[which][:size]
        disk, names = disk_with(*contents)
        refusal = rf"{names[which]} is damaged at offset 0: .*\b{size} of 128"
        with pytest.raises(DataError, match=refusal):
            read(disk, names)


@pytest.mark.parametrize("synced_each", [True, False])
def test_frames_missing_before_a_journal_made_ahead_of_them(synced_each: bool) -> None:
    """Its header does not have the number of its first frame: the frame itself does."""
    later = journal_file(effects(2), synced_each, first=4)
    if not synced_each:
        later = with_frames(header(), [(4, 3, b"four\n"), (5, 4, b"five\n")])
    disk, names = disk_with(journal_file(effects(2), synced_each), later)
    if synced_each:
        with pytest.raises(DataError, match="the frame 3 before it is missing"):
            read(disk, names)
        return
    found, reader = read(disk, names)
    assert found == effects(2)
    assert reader.torn is not None
    assert reader.torn.kept(names) == ("journal-1.log",)


def test_a_missing_journal_in_the_middle_is_refused() -> None:
    payloads = effects(9)
    disk, names = disk_with(
        journal_file(payloads[:3]),
        journal_file(payloads[3:6], first=4),
        journal_file(payloads[6:], first=7),
    )
    with pytest.raises(DataError, match="the frames 4 to 6 before it are missing"):
        read(disk, [names[0], names[2]])
    with pytest.raises(DataError, match="found frame 4, expected 1"):
        read(disk, names[1:])


def run_randomly(bench: Bench, chance: random.Random, steps: int) -> Payloads:
    payloads: Payloads = []
    act: list[Callable[[], object]] = [
        bench.worker.run_one,
        bench.journal.tick_second,
        lambda: bench.rotate() if chance.random() < 0.3 else None,
    ]
    for _ in range(steps):
        if chance.random() < 0.6:
            payloads.append(b"%d " % (bench.seq + 1) + b"y" * chance.randint(0, 400) + b"\n")
            bench.append(payloads[-1])
        else:
            chance.choice(act)()
    return payloads


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["always", "everysec", "no"]))
def test_a_crash_leaves_a_prefix_with_all_that_was_synced(seed: int, mode: str) -> None:
    chance = random.Random(seed)
    bench = Bench(mode)
    payloads = run_randomly(bench, chance, chance.randint(1, 60))
    disk = bench.disk.after_crash(seed)
    found, reader = read(disk, bench.names)
    assert found == payloads[: len(found)]
    assert len(found) >= bench.journal.synced_seq
    if reader.torn is not None:
        cut_torn_end(disk, bench.names, reader.torn)
        again, reader = read(disk, list(reader.torn.kept(bench.names)))
        assert (again, reader.torn) == (found, None)


# ------------------------------------------------------------------------------------ the queue


def test_queued_frames_are_counted_until_they_are_written() -> None:
    bench = Bench("always", reserve_bytes=0)
    assert bench.journal.queued_bytes == 0
    bench.append(b"x" * 1000)
    bench.append(b"y" * 500)
    assert 1500 < bench.journal.queued_bytes < 2000
    assert bench.journal.is_full(1000)
    assert not bench.journal.is_full(2000)
    bench.worker.drain()
    assert bench.journal.queued_bytes == 0
    assert not bench.journal.is_full(0)


@pytest.mark.parametrize("mode", ["everysec", "no"])
def test_frames_written_by_the_loop_are_never_queued(mode: str) -> None:
    bench = Bench(mode)
    bench.append(b"x" * 1000)
    assert bench.journal.queued_bytes == 0


def test_a_queue_that_has_used_the_reserved_space_is_full() -> None:
    bench = Bench("always")
    bench.journal.request_space()
    bench.worker.drain()
    while not bench.journal.is_full(1 << 40):
        bench.append(b"x" * 1000)
    assert bench.journal.make_room(0) > 0  # the loop has not had to reserve more
    bench.worker.drain()
    bench.append(b"x")
    assert not bench.journal.is_full(1 << 40)


def test_a_queue_with_less_reserved_space_is_not_full() -> None:
    disk = FakeDisk(capacity=2 * RESERVE_LEAST)
    bench = Bench("always", disk, reserve_bytes=16 * RESERVE_LEAST)
    bench.journal.request_space()
    bench.worker.drain()
    assert bench.owner.space == []
    bench.append(b"x" * 1000)
    assert not bench.journal.is_full(1 << 40)
    while not bench.journal.is_full(1 << 40):
        bench.append(b"x" * 10_000)
    assert bench.journal.make_room(0) > 0
    assert bench.owner.errors == []


def test_written_frames_are_reported_before_the_sync_on_request() -> None:
    bench = Bench("always")
    bench.append(b"x")
    bench.worker.drain()
    assert bench.owner.written == 0
    bench.append(b"x")
    bench.journal.tell_written = True
    bench.disk.fail("sync")
    bench.worker.drain()
    assert bench.owner.written == 1
    assert bench.owner.errors


def test_a_batch_is_written_in_pieces_and_synced_once() -> None:
    bench = Bench("always")
    bench.worker.drain()
    before = len(bench.disk.log)
    payloads = [bytes([number]) * 30_000 for number in range(10)]
    for payload in payloads:
        bench.append(payload)
    bench.worker.drain()
    done = [line.split()[0] for line in bench.disk.log[before:]]
    assert done.count("sync") == 1
    assert 1 < done.count("write") < 10
    bench.journal.close()
    assert read(bench.disk, bench.names)[0] == payloads


@pytest.mark.parametrize("mode", ["always", "everysec", "no"])
def test_a_payload_too_large_for_a_frame_fails_the_journal(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "PAYLOAD_MAX", 1000)
    bench = Bench(mode)
    bench.append(b"x" * 1000)
    bench.worker.drain()
    assert not bench.append(b"x" * 1001)
    assert not bench.append(b"y")
    bench.worker.drain()
    assert [error.errno for error in bench.owner.errors] == [errno.EFBIG]
    assert len(read(bench.disk, bench.names)[0]) == 1


@pytest.mark.parametrize("mode", ["always", "everysec", "no"])
def test_any_exception_while_a_frame_is_added_fails_the_journal(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(mode)
    bench.append(b"x")
    bench.worker.drain()

    def fail(*_: object) -> bytes:
        raise struct.error("argument out of range")

    with monkeypatch.context() as patch:
        patch.setattr(FrameFormat, "encode", fail)
        assert not bench.append(b"y")
    assert not bench.append(b"z")
    bench.worker.drain()
    assert len(bench.owner.errors) == 1
    assert read(bench.disk, bench.names)[0] == [b"x"]


@pytest.mark.parametrize("refused", ["append", "commit"])
@pytest.mark.parametrize("queued", [0, 1])
def test_no_frame_follows_one_that_failed_while_the_worker_syncs(
    refused: str, queued: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "PAYLOAD_MAX", 1000)
    bench = Bench("always")
    file = bench.journal._file
    sync = file.sync

    def sync_slowly() -> None:
        monkeypatch.setattr(file, "sync", sync)
        for _ in range(queued):
            bench.append(b"queued")
        if refused == "append":
            assert not bench.append(b"x" * 1001)
        else:
            bench.seq += 1
            bench.journal.fail(OSError(errno.EFBIG, "the tick's frame"))
        assert not bench.append(b"later")
        sync()

    monkeypatch.setattr(file, "sync", sync_slowly)
    bench.append(b"first")
    bench.worker.drain()
    assert read(bench.disk, bench.names)[0] in ([b"first"], [b"first", b"queued"])
    assert bench.owner.synced == [1]
    assert len(bench.owner.errors) == 1
    assert bench.journal.queued_bytes == 0


def test_no_space_is_promised_above_the_size_of_a_frame() -> None:
    for reserve_bytes in (0, 1 << 16):
        bench = Bench("always", reserve_bytes=reserve_bytes)
        assert bench.journal.make_room(10) <= journal_module.PAYLOAD_MAX
        with pytest.raises(OSError, match="File too large"):
            bench.journal.make_room(journal_module.PAYLOAD_MAX + 1)


@pytest.mark.parametrize("size_bytes", [0, 1, HEADER_SIZE - 1, HEADER_SIZE])
def test_a_journal_shorter_than_its_header_has_no_frames(tmp_path: Path, size_bytes: int) -> None:
    """A crash right after its creation leaves this. A real file refuses a negative length."""
    (tmp_path / "journal-1.log").write_bytes(bytes(size_bytes))
    assert frame_numbers(SystemDisk(tmp_path).read("journal-1.log")) == (None, 0)


def test_reading_old_frames_yields_to_the_loop_from_the_start() -> None:
    disk, names = disk_with(journal_file(effects(300)))
    read_at_pauses: list[int] = []
    wanted: list[int] = []
    frames = frames_from(
        [disk.read(names[0])], 201, 300, lambda: read_at_pauses.append(len(wanted))
    )
    for seq, _ in frames:
        wanted.append(seq)
    assert wanted == list(range(201, 301))
    assert read_at_pauses.count(0) >= 6
    assert max(read_at_pauses) > 64


@pytest.mark.parametrize("mode", ["always", "no"])
def test_a_long_payload_is_written_from_its_own_memory(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    write = FakeFile.write

    def note(file: FakeFile, data: bytes) -> None:
        written.append(data)
        write(file, data)

    monkeypatch.setattr(FakeFile, "write", note)
    bench = Bench(mode, reserve_bytes=0)
    payloads = [b"a" * 30, b"b" * 200_000, b"c" * 30, b"d" * 30, b"e" * 70_000]
    for payload in payloads:
        bench.append(payload)
    bench.worker.drain()
    assert any(part is payloads[1] for part in written)
    assert any(part is payloads[4] for part in written)
    assert bench.journal.queued_bytes == 0
    assert read(bench.disk, bench.names)[0] == payloads


def test_a_frame_that_need_not_be_synced_is_written_at_once() -> None:
    bench = Bench("always")
    bench.worker.drain()
    assert not bench.append(b"append")
    assert not bench.append(b"deliver", must_sync=False)  # the worker has not written the first one
    bench.worker.drain()
    assert bench.journal.synced_seq == 2
    before = len(bench.disk.log)
    assert bench.append(b"deliver", must_sync=False)
    assert bench.append(b"d" * 70_000, must_sync=False)
    bench.worker.drain()
    assert {line.split()[0] for line in bench.disk.log[before:]} <= {"write", "reserve"}
    assert (bench.journal.written_seq, bench.journal.synced_seq) == (4, 2)
    bench.journal.tick_second()
    bench.worker.drain()
    assert bench.journal.synced_seq == 4
    assert read(bench.disk, bench.names)[0] == [b"append", b"deliver", b"deliver", b"d" * 70_000]


def test_queued_frames_are_released_up_to_one_that_must_sync() -> None:
    bench = Bench("always", reserve_bytes=0)
    bench.append(b"append")
    bench.worker.drain()
    bench.journal.set_mode("no")
    bench.append(b"append")
    bench.journal.set_mode("always")  # its sync is queued
    bench.append(b"deliver", must_sync=False)
    bench.append(b"deliver", must_sync=False)
    bench.append(b"append")
    bench.append(b"deliver", must_sync=False)
    bench.worker.drain()
    assert bench.owner.released == [4]
    assert bench.journal.synced_seq == 6


def test_a_sync_that_is_asked_for_covers_frames_that_need_none() -> None:
    bench = Bench("always")
    bench.append(b"append")
    bench.worker.drain()
    assert bench.append(b"deliver", must_sync=False)
    bench.journal.sync_soon()
    bench.worker.drain()
    assert bench.journal.synced_seq == 2
