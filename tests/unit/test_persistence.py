"""Persistence as a whole: acknowledged writes survive a crash at any step.

The workers and the event loop are run by hand, so a seed decides every interleaving; the disk is a
fake one that can be switched off before any of its operations. One test at the end uses real
threads, a real event loop and a real directory.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fakedisk import Contents, Crashed, FakeDisk
from tests.support.fakepersistence import (
    FakeBlock,
    FakeCapture,
    FakeConfig,
    FakeKeyspace,
    World,
    apply_effects,
)
from tests.support.journals import journal_bytes

from millstream.errors import CommandError, DataError
from millstream.server.durability.commits import Unheard
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.persistence_info import persistence_section
from millstream.server.durability.snapshots import Snapshots
from millstream.server.durability.workers import Machine
from millstream.server.monitor.info import fields_of
from millstream.storage.files import journal_writer as journal_module
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.frame_times import TIME_BYTES_MAX, encode_time
from millstream.storage.files.journal_file import create_journal
from millstream.storage.files.journal_format import read_head

MODES = ["always", "everysec", "no"]
TIME = encode_time(1_700_000_000)  # in the first frame of a second
FULL = b"MISCONF Errors writing to the AOF file: No space left on device"


def new_world(disk: FakeDisk | None = None, **config: object) -> World:
    world = World(disk or FakeDisk(), FakeConfig(**config))  # type: ignore[arg-type]
    world.load()
    world.settle()
    return world


def persistence_fields(persistence: Persistence) -> dict[str, int | str]:
    """INFO persistence."""
    now_ms = persistence._machine.steady_clock()
    return fields_of(persistence_section(persistence, 0, 0, last_backup_s=0, now_ms=now_ms))


def reload(disk: FakeDisk, **config: object) -> World:
    disk.locked = False
    return new_world(disk, **config)


def write_many(world: World, count: int, key: bytes = b"s") -> None:
    for _ in range(count):
        world.write_tick(key)


def assert_prefix(world: World, acked: list[int]) -> None:
    assert_first(world.keyspace.numbers(), acked)


def assert_first(numbers: list[int], acked: list[int]) -> None:
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= max(acked, default=0)


# ----------------------------------------------------------------------------- loading and commit


@pytest.mark.parametrize("mode", MODES)
def test_written_data_survives_a_restart(mode: str) -> None:
    world = new_world(appendfsync=mode)
    write_many(world, 10)
    world.persistence.close()
    again = new_world(world.disk, appendfsync=mode)
    assert again.keyspace.numbers() == list(range(1, 11))
    assert again.persistence.commits.last_seq == again.persistence.commits.durable_seq == 10


def test_always_acknowledges_after_the_sync_and_in_groups() -> None:
    world = new_world()
    write_many(world, 5)
    assert world.acked == []
    assert world.persistence.commits.durable_seq == 0
    syncs = world.disk.log.count("sync journal-1.log")
    world.settle()
    assert world.acked == [1, 2, 3, 4, 5]
    assert world.disk.log.count("sync journal-1.log") == syncs + 1


@pytest.mark.parametrize(("mode", "count"), [("always", 1), ("everysec", 0)])
def test_a_slow_sync_is_noted_if_replies_wait_for_it(mode: str, count: int) -> None:
    world = new_world(appendfsync=mode)
    world.settle()
    noted: list[int] = []
    world.persistence.commits.note_slow_sync = noted.append
    world.persistence.commits.slow_sync_ns = 0
    world.write_tick()
    world.settle()
    assert len(noted) == count


@pytest.mark.parametrize("mode", ["everysec", "no"])
def test_everysec_and_no_acknowledge_in_commit(mode: str) -> None:
    world = new_world(appendfsync=mode)
    world.write_tick()
    assert world.acked == [1]


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_process_loses_nothing_acknowledged(mode: str) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        world = new_world(appendfsync=mode)
        play(world, chance, 60)
        again = reload(world.disk.copy(), appendfsync=mode)
        assert_prefix(again, world.acked)


def test_loading_reports_its_findings() -> None:
    world = new_world()
    write_many(world, 20)
    world.settle()
    world.persistence.snapshots.save()
    write_many(world, 3)
    world.settle()
    seen: list[tuple[int, int]] = []
    world.disk.locked = False
    again = World(world.disk)
    report = again.persistence.load(lambda done, total: seen.append((done, total)))
    assert (report.keys, report.entries, report.frames, report.effects) == (1, 20, 3, 3)
    assert (report.base, report.journals) == ("base-2.msnap", ("journal-2.log",))
    assert report.torn_bytes == 0
    assert seen[-1][0] == seen[-1][1] > 0
    frame_bytes = 20 * 20 + sum(len(f"ADD s {number}\r\n") for number in range(1, 21))
    frame_bytes += len(TIME)
    assert again.keyspace.restored_global == {"databases": 16, "frame_bytes": frame_bytes}


def test_a_torn_end_is_cut_and_reported() -> None:
    world = new_world()
    write_many(world, 5)
    world.settle()
    disk = world.disk.copy()
    disk.put("journal-1.log", disk.content("journal-1.log")[:-3])
    strict = FakeConfig(aof_load_truncated=False)
    torn = disk.content("journal-1.log")
    refused = disk.copy()
    with pytest.raises(DataError, match=r"journal-1.log ends in an unfinished write .* frame 4 is"):
        World(refused, strict).load()
    assert refused.content("journal-1.log") == torn
    assert World(world.disk.copy(), strict).load().torn_bytes == 0
    again = World(disk)
    report = again.load()
    assert again.keyspace.numbers() == [1, 2, 3, 4]
    assert report.torn_bytes > 0
    assert any("journal-1.log ended in an unfinished write" in note for note in report.notes)
    write_many(again, 2)
    again.persistence.close()
    assert reload(disk).keyspace.numbers() == [1, 2, 3, 4, 5, 6]


def test_damage_refuses_the_start_and_changes_nothing() -> None:
    world = new_world()
    for _ in range(5):
        world.write_tick()
        world.settle()
    disk = world.disk.copy()
    data = bytearray(disk.content("journal-1.log"))
    data[70] ^= 1
    disk.put("journal-1.log", bytes(data))
    with pytest.raises(DataError, match=r"journal-1\.log is damaged at offset \d+.*nothing was"):
        new_world(disk)
    assert disk.content("journal-1.log") == bytes(data)


def test_an_effect_that_cannot_be_applied_names_its_frame() -> None:
    disk = new_world().disk.copy()
    directory = read_head(disk.read("journal-1.log")).format.directory
    disk.put("journal-1.log", journal_bytes([b"BAD x 1\r\n"], directory=directory))
    with pytest.raises(
        DataError, match=r"journal-1\.log has a frame at offset 128 .*unknown effect"
    ):
        new_world(disk)


def test_a_second_server_is_refused() -> None:
    world = new_world()
    with pytest.raises(DataError, match="used by another server"):
        World(world.disk).load()


def test_an_unreadable_disk_is_one_sentence() -> None:
    disk = new_world().disk.copy()
    disk.fail("read", errno.EIO)
    with pytest.raises(DataError, match="Input/output error"):
        new_world(disk)


# --------------------------------------------------------------------- snapshots and the manifest


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("act", ["save", "bgsave", "rewrite"])
def test_a_snapshot_replaces_earlier_files(mode: str, act: str) -> None:
    world = new_world(appendfsync=mode)
    write_many(world, 10)
    getattr(world.persistence.snapshots, act)()
    world.settle()
    assert world.disk.names() == ["base-2.msnap", "journal-2.log", "manifest"]
    write_many(world, 3)
    world.settle()
    assert world.acked == list(range(1, 14))
    again = reload(world.disk.copy(), appendfsync=mode)
    assert again.keyspace.numbers() == list(range(1, 14))


def test_writes_during_a_snapshot_are_only_in_the_journal() -> None:
    world = new_world()
    write_many(world, 300, b"before")
    world.settle()
    for key in range(300):
        world.write_tick(b"k%d" % key)
    world.persistence.snapshots.bgsave()
    while world.step_any(random.Random(1)):
        if len(world.keyspace.captures) and not world.keyspace.captures[0].closed:
            world.write_tick(b"during")
    assert world.acked == list(range(1, world.next_number))
    again = reload(world.disk.copy())
    assert again.keyspace.streams == world.keyspace.streams


def test_a_capture_starts_at_a_tick_even_in_the_middle_of_one() -> None:
    world = new_world()
    world.write()
    world.persistence.snapshots.save()  # a command of the same tick
    world.write()
    world.tick()
    world.settle()
    assert reload(world.disk.copy()).keyspace.numbers() == [1, 2]


def test_a_snapshot_releases_written_parts_step_by_step() -> None:
    world = new_world()
    write_many(world, 20_000, b"long")
    world.settle()
    world.persistence.snapshots.bgsave()
    world.settle()
    (capture,) = world.keyspace.captures
    assert [one.blocks for one in capture.given] == [[]]
    assert reload(world.disk.copy()).keyspace.numbers() == list(range(1, 20_001))


def test_a_slow_worker_bounds_the_queue() -> None:
    world = new_world()
    for key in range(10_000):
        world.keyspace.add(b"%d" % key, key + 1)
    world.persistence.snapshots.bgsave()
    while world.workers[1].run_one() or world.loop.run_one():
        if world.keyspace.captures:
            break
    while world.loop.run_one():  # the worker stands still from here
        pass
    assert len(world.workers[1].tasks) <= 40
    assert world.keyspace.captures[0].keys
    while persistence_fields(world.persistence)["rdb_bgsave_in_progress"]:
        world.loop.advance(2)
        world.settle()
    assert len(reload(world.disk.copy()).keyspace.numbers()) == 10_000


def test_only_one_snapshot_runs_and_another_waits() -> None:
    world = new_world()
    world.persistence.snapshots.bgsave()
    with pytest.raises(CommandError, match="ERR Background save already in progress"):
        world.persistence.snapshots.bgsave()
    with pytest.raises(CommandError, match="ERR Background save already in progress"):
        world.persistence.snapshots.save()
    scheduled = "Background append only file rewriting scheduled"
    assert world.persistence.snapshots.rewrite() == scheduled
    assert persistence_fields(world.persistence)["aof_rewrite_scheduled"] == 1
    world.settle()
    assert world.disk.names() == ["base-3.msnap", "journal-3.log", "manifest"]
    assert persistence_fields(world.persistence)["aof_rewrites"] == 1


def shown_jobs(world: World) -> list[object]:
    info = persistence_fields(world.persistence)
    names = ["rdb_saves", "aof_rewrites", "rdb_bgsave_in_progress", "aof_rewrite_in_progress"]
    return [info[name] for name in [*names, "aof_rewrite_scheduled"]]


@pytest.mark.parametrize("appendonly", [True, False])
def test_a_job_is_finished_at_any_of_its_steps(
    appendonly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save after a rewrite, and a rewrite scheduled after a snapshot, do not wait for the
    loop; what the loop still has of them does nothing."""
    failures: list[object] = []
    monkeypatch.setattr(Snapshots, "_note_failure", lambda self, job: failures.append(job.error))
    steps = 0
    while True:
        world = new_world(appendonly=appendonly)
        for key in range(200):
            world.write_tick(b"k%d" % key)
        world.persistence.snapshots.rewrite()
        chance = random.Random(steps)
        if not all(world.step_any(chance) for _ in range(steps)):
            break
        world.write()
        if shown_jobs(world)[0] or not shown_jobs(world)[3]:
            steps += 1
            continue
        world.persistence.snapshots.save()
        assert shown_jobs(world) == [1, 1, 0, 0, 0]
        world.persistence.snapshots.bgsave()
        world.persistence.snapshots.rewrite()
        for _ in range(chance.randrange(6)):
            world.step_any(chance)
        world.write()
        world.persistence.snapshots.finish()
        assert shown_jobs(world) == [2, 2, 0, 0, 0]
        world.write_tick()
        if not appendonly:
            world.persistence.snapshots.save()
        world.settle()
        assert shown_jobs(world) == [2 + (not appendonly), 2, 0, 0, 0]
        assert persistence_fields(world.persistence)["rdb_last_bgsave_status"] == "ok"
        assert failures == [], "what was published is published once"
        assert all(capture.closed for capture in world.keyspace.captures)
        again = reload(world.disk.copy(), appendonly=appendonly)
        assert again.keyspace.streams == world.keyspace.streams
        steps += 1
    assert steps > 10


def test_the_journal_is_read_again_as_soon_as_it_is_on() -> None:
    world = new_world(appendonly=False)
    write_many(world, 5)
    world.persistence.snapshots.rewrite()
    world.config.appendonly = True
    world.persistence.set_appendonly(True)  # after the rewrite that is given up
    write_many(world, 2)
    read_again(world)
    assert world.keyspace.numbers() == list(range(1, 8))
    assert reload(world.disk.copy()).keyspace.numbers() == list(range(1, 8))


@pytest.mark.parametrize("act", ["save", "bgsave", "rewrite"])
@pytest.mark.parametrize("step", ["step", "begin_capture"])
def test_a_capture_that_fails_is_over(act: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    world = new_world()
    write_many(world, 3)
    target = FakeCapture if step == "step" else FakeKeyspace
    with monkeypatch.context() as patch, suppress(CommandError):
        patch.setattr(target, step, fail)
        getattr(world.persistence.snapshots, act)()
        world.settle()
    assert all(capture.closed for capture in world.keyspace.captures)
    write_many(world, 2)
    world.settle()
    assert reload(world.disk.copy()).keyspace.numbers() == [1, 2, 3, 4, 5]
    getattr(world.persistence.snapshots, act)()
    world.settle()
    assert reload(world.disk.copy()).keyspace.numbers() == [1, 2, 3, 4, 5]
    assert [name for name in world.disk.files if name.startswith("base-")]


def test_a_failed_snapshot_changes_no_file() -> None:
    world = new_world()
    write_many(world, 5)
    world.settle()
    world.disk.fail("write", errno.ENOSPC, "base-")
    with pytest.raises(CommandError, match="No space left on device"):
        world.persistence.snapshots.save()
    world.persistence.snapshots.bgsave()
    world.settle()
    info = persistence_fields(world.persistence)
    assert (info["rdb_last_bgsave_status"], info["aof_last_write_status"]) == ("err", "ok")
    assert world.persistence.writable_error() is None
    write_many(world, 5)
    world.settle()
    assert world.acked == list(range(1, 11))
    assert not [name for name in world.disk.names() if name.startswith("base-")]
    assert reload(world.disk.copy()).keyspace.numbers() == list(range(1, 11))


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory"])
def test_one_failure_anywhere_in_a_rewrite_costs_nothing(operation: str) -> None:
    for times_before in range(12):
        world = new_world()
        write_many(world, 5)
        world.settle()
        fail_later(world.disk, operation, times_before)
        world.persistence.snapshots.rewrite()
        write_many(world, 5)
        world.settle()
        world.disk.failures_armed = False  # type: ignore[attr-defined]
        for _ in range(3):
            world.second()
        again = reload(world.disk.copy())
        assert_prefix(again, world.acked)
        world.write_tick()
        world.settle()
        assert world.next_number - 1 in world.acked
        assert reload(world.disk.copy()).keyspace.numbers()[-1] == world.next_number - 1


@pytest.mark.parametrize(
    ("operation", "name"),
    [(operation, name)
     for name in ("manifest", "base-", "journal-9")
     for operation in ("create", "write", "sync", "rename", "reserve")
     if operation in ("create", "write", "sync")
     or (operation == "rename") == (name != "journal-9")],
)  # fmt: skip
def test_failed_attempts_leave_no_files(operation: str, name: str) -> None:
    """On a full disk, each attempt would otherwise take more of the rest."""
    world = new_world()
    write_many(world, 5)
    world.settle()
    for _ in range(20):
        name_now = name.replace("9", str(world.persistence.files.next_number))
        world.disk.fail(operation, errno.ENOSPC, name_now, times=1)
        world.persistence.snapshots.rewrite()
        world.settle()
        assert persistence_fields(world.persistence)["aof_last_bgrewrite_status"] == "err"
        world.disk.mend()
        write_many(world, 1)
        world.settle()
    manifest = world.persistence.files.manifest
    left = [name for name in world.disk.names() if name not in ("manifest", *manifest.files)]
    if (operation, name) == ("rename", "manifest"):  # it may have been done: journals stay
        left = [name for name in left if world.disk.files[name].reserved or "base" in name]
    assert sum(world.disk.files[name].reserved > 0 for name in manifest.journals) <= 1
    assert left == []
    assert reload(world.disk.copy()).keyspace.numbers() == list(range(1, 26))


def fail_later(disk: FakeDisk, operation: str, times_before: int) -> None:
    """The operation works `times_before` times more, then fails once."""
    count = 0
    check = disk.check

    def counting(what: str, name: str) -> None:
        nonlocal count
        check(what, name)
        if what == operation and disk.failures_armed:  # type: ignore[attr-defined]
            count += 1
            if count == times_before + 1:
                raise OSError(errno.EIO, "Input/output error", name)

    disk.failures_armed = True  # type: ignore[attr-defined]
    disk.check = counting  # type: ignore[method-assign]


def test_a_start_removes_leftovers_of_an_unfinished_snapshot() -> None:
    world = new_world()
    write_many(world, 5)
    world.settle()
    disk = world.disk.copy()
    for name in ("base-9.msnap", "base-2.msnap.tmp", "journal-7.log", "journal-8.log.tmp", "notes"):
        disk.put(name, b"x")
    again = World(disk)
    report = again.load()
    assert report.removed == [
        "base-2.msnap.tmp", "base-9.msnap", "journal-7.log", "journal-8.log.tmp"
    ]  # fmt: skip
    assert again.keyspace.numbers() == [1, 2, 3, 4, 5]
    assert "notes" in disk.names()


@pytest.mark.parametrize("mode", MODES)
def test_an_emptied_journal_is_refused(mode: str) -> None:
    world = new_world(appendfsync=mode)
    write_many(world, 3)
    world.settle()
    world.disk.fail("write", errno.ENOSPC, "base-")  # both journals stay
    world.persistence.snapshots.rewrite()
    world.settle()
    write_many(world, 3)
    world.settle()
    for name in ("journal-1.log", "journal-2.log"):
        disk = world.disk.copy()
        disk.put(name, b"")
        with pytest.raises(DataError, match=rf"{name} is damaged at offset 0: .*nothing was"):
            new_world(disk, appendfsync=mode)
        assert disk.content(name) == b""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_journal_becomes_current_without_a_read(mode: str, fails: bool) -> None:
    """Its header may not be readable, and the event loop must not wait for the disk."""
    world = new_world(appendfsync=mode)
    write_many(world, 3)
    world.settle()
    world.disk.fail("read", name="journal-2")
    if fails:
        world.disk.fail("write", name="journal-1", times=1)
        world.write_tick()
        world.settle()
        world.loop.advance(1000)
    else:
        world.persistence.snapshots.rewrite()
    world.settle()
    write_many(world, 3)
    world.settle()
    assert world.persistence.files.manifest.journals == ("journal-2.log",)
    assert world.persistence.writable_error() is None
    assert world.acked[-1] == world.next_number - 1
    world.disk.mend()
    again = reload(world.disk.copy(), appendfsync=mode)
    assert_prefix(again, world.acked)


def test_files_of_another_server_count_without_a_read() -> None:
    world = new_world()
    opened = create_journal(world.disk, "journal-7.log", bytes(16))
    world.disk.fail("read", name="journal-7")
    world.persistence.take_over(opened, 100)
    world.write_tick()
    world.settle()
    assert world.persistence.commits.on_disk_seq == 101


# ------------------------------------------------------------------------------ appendonly on, off


def test_without_appendonly_only_the_snapshot_is_kept() -> None:
    world = new_world(appendonly=False)
    write_many(world, 5)
    assert world.acked == [1, 2, 3, 4, 5]
    assert world.disk.names() == ["manifest"]
    world.persistence.snapshots.save()
    write_many(world, 2)
    assert world.disk.names() == ["base-1.msnap", "manifest"]
    again = reload(world.disk.copy(), appendonly=False)
    assert again.keyspace.numbers() == [1, 2, 3, 4, 5]
    assert again.persistence.commits.last_seq == 5


def test_a_base_alone_gets_a_journal() -> None:
    world = new_world(appendonly=False)
    write_many(world, 5)
    world.persistence.snapshots.save()
    world.persistence.close()
    again = reload(world.disk)
    write_many(again, 2)
    again.settle()
    assert reload(again.disk.copy()).keyspace.numbers() == list(range(1, 8))


def test_the_journal_is_loaded_even_with_appendonly_off() -> None:
    world = new_world()
    write_many(world, 5)
    world.persistence.close()
    again = World(world.disk, FakeConfig(appendonly=False))
    report = again.load()
    assert again.keyspace.numbers() == [1, 2, 3, 4, 5]
    assert any("appendonly is off" in note for note in report.notes)
    write_many(again, 1)
    again.persistence.snapshots.save()
    assert reload(again.disk.copy(), appendonly=False).keyspace.numbers() == list(range(1, 7))


@pytest.mark.parametrize("mode", MODES)
def test_switching_appendonly_at_run_time(mode: str) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        world = new_world(appendfsync=mode, appendonly=False)
        for _ in range(8):
            wanted = chance.random() < 0.5
            world.config.appendonly = wanted
            world.persistence.set_appendonly(wanted)
            play(world, chance, 10)
        world.config.appendonly = True
        world.persistence.set_appendonly(True)
        for _ in range(3):
            world.settle()
            world.second()
        write_many(world, 3)
        world.settle()
        assert world.acked == list(range(1, world.next_number))
        again = reload(world.disk.copy(), appendfsync=mode)
        assert again.keyspace.numbers() == world.keyspace.numbers()


class Switching(World):
    """Knows the writes confirmed under `always`: no crash may lose them or earlier ones."""

    safe: Sequence[int] = ()

    def durable(self, seq: int) -> None:
        before = len(self.acked)
        super().durable(seq)
        if len(self.acked) > before and self.config.appendfsync == "always":
            self.safe = list(self.acked)

    def switch(self, mode: str) -> None:
        self.config.appendfsync = mode
        self.persistence.commits.set_fsync(mode)


def test_a_switch_of_appendfsync_keeps_confirmed_writes() -> None:
    for seed in range(150):
        chance = random.Random(seed)
        world = Switching(FakeDisk(seed), FakeConfig())
        world.load()
        for _ in range(8):
            world.switch(chance.choice(MODES))
            play(world, chance, chance.randint(0, 8))
            assert_prefix(reload(world.disk.after_crash(chance.getrandbits(32))), list(world.safe))
        world.settle()
        for _ in range(3):
            world.second()
        assert world.acked == list(range(1, world.next_number)), "a reply was not sent"


@pytest.mark.parametrize("way", ["appendonly no", "appendfsync everysec", "appendfsync no"])
def test_no_switch_waits_for_a_disk_that_stalls(way: str) -> None:
    world = new_world()
    write_many(world, 3)
    tasks = list(world.workers[0].tasks)
    if way == "appendonly no":
        world.config.appendonly = False
        world.persistence.set_appendonly(False)
    else:
        world.persistence.commits.set_fsync(way.split()[1])
    assert list(world.workers[0].tasks)[: len(tasks)] == tasks
    assert world.acked == []
    world.settle()
    assert world.acked == [1, 2, 3]
    assert reload(world.disk.copy()).keyspace.numbers() == [1, 2, 3]


def test_a_journal_that_fails_while_it_ends_closes_its_waiters() -> None:
    world = new_world()
    write_many(world, 3)
    world.disk.fail("sync", errno.EIO, "journal-")
    world.config.appendonly = False
    world.persistence.set_appendonly(False)
    world.settle()
    assert world.failed == [[1, 2, 3]]
    write_many(world, 1)
    assert world.acked == [4]
    assert world.persistence.commits.durable_seq == world.persistence.commits.last_seq
    assert world.persistence.commits.queued_bytes == 0


def test_replies_wait_for_an_ended_journal_that_is_not_synced() -> None:
    world = new_world()
    write_many(world, 3)
    for appendonly in (False, True):
        world.config.appendonly = appendonly
        world.persistence.set_appendonly(appendonly)
    write_many(world, 1)
    assert world.acked == []
    world.settle()
    assert world.acked == [1, 2, 3, 4]
    assert reload(world.disk.copy()).keyspace.numbers() == [1, 2, 3, 4]


def test_frames_under_always_are_on_disk_after_their_sync() -> None:
    """WAITAOF must not count on the hold of its reply: a change of the mode may end that."""
    world = new_world()
    write_many(world, 3)
    assert world.persistence.commits.on_disk_seq == 0
    world.persistence.commits.set_fsync("everysec")
    assert world.persistence.commits.on_disk_seq == 0
    world.settle()
    world.persistence.commits.sync_soon()
    world.settle()
    assert world.persistence.commits.on_disk_seq == 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_stop_replies_to_clients_of_an_ended_journal(fails: bool) -> None:
    world = new_world()
    write_many(world, 3)
    world.config.appendonly = False
    world.persistence.set_appendonly(False)
    if fails:
        world.disk.fail("sync", errno.EIO, "journal-")
    assert world.persistence.close() is not fails
    assert world.acked == ([] if fails else [1, 2, 3])
    assert world.failed == ([[1, 2, 3]] if fails else [])


@pytest.mark.parametrize("mode", MODES)
def test_changes_of_the_tick_are_in_the_journal_that_ends(mode: str) -> None:
    world = new_world(appendfsync=mode)
    world.write()
    world.config.appendonly = False
    world.persistence.set_appendonly(False)
    world.settle()
    assert world.acked == [1]
    assert reload(world.disk.copy(), appendfsync=mode).keyspace.numbers() == [1]


# -------------------------------------------------------------------------------- failing journals


@pytest.mark.parametrize("mode", MODES)
def test_effects_that_could_not_be_recorded_end_the_journal(mode: str) -> None:
    world = new_world(appendfsync=mode)
    write_many(world, 3)
    world.settle()
    assert world.acked == [1, 2, 3]
    world.write()
    seq = world.persistence.commits.commit(None)
    world.waiting.append((seq, 4))
    assert world.persistence.commits.durable_seq < seq
    world.settle()
    assert world.failed == [[4]]
    error = world.persistence.writable_error()
    assert error == b"MISCONF Errors writing to the AOF file: Cannot allocate memory"
    assert reload(world.disk.copy(), appendfsync=mode).keyspace.numbers() == [1, 2, 3]
    world.effects = b""
    world.second()
    assert world.persistence.writable_error() is None
    write_many(world, 1)
    world.settle()
    assert reload(world.disk.copy(), appendfsync=mode).keyspace.numbers() == [1, 2, 3, 4, 5]


def test_effects_that_could_not_be_recorded_need_no_journal() -> None:
    world = new_world(appendonly=False)
    seq = world.persistence.commits.commit(None)
    assert world.persistence.commits.durable_seq == seq
    assert world.persistence.writable_error() is None


@pytest.mark.parametrize(
    ("mode", "operation"),
    [(mode, "write") for mode in MODES] + [(mode, "sync") for mode in MODES if mode != "no"],
)
def test_a_failed_journal_acknowledges_nothing_and_recovers(mode: str, operation: str) -> None:
    world = new_world(appendfsync=mode)
    write_many(world, 3)
    world.second()
    world.disk.fail(operation, errno.ENOSPC, "journal-")
    world.write_tick()
    world.second()
    assert world.persistence.writable_error() == FULL
    assert world.failed == [[4] if 4 not in world.acked else []]
    assert operation == "sync" or 4 not in world.acked
    assert world.write() is None
    assert (
        world.persistence.commits.durable_seq == world.persistence.commits.last_seq
    )  # reads are answered
    assert persistence_fields(world.persistence)["aof_last_write_status"] == "err"
    world.persistence.commits.commit(world.keyspace.add(b"timer", 5))  # an effect of the clock
    world.next_number = 6
    assert world.persistence.commits.durable_seq == world.persistence.commits.last_seq
    world.disk.mend()
    for _ in range(200):
        if world.persistence.writable_error() is None:
            break
        world.second()
    assert world.persistence.writable_error() is None
    write_many(world, 3)
    world.settle()
    assert world.acked[-3:] == [6, 7, 8]
    assert reload(world.disk.copy(), appendfsync=mode).keyspace.numbers() == list(range(1, 9))


def test_a_disk_that_stays_full_is_retried_less_and_less_often() -> None:
    world = new_world()
    world.write_tick()
    world.settle()
    world.disk.fail("write", errno.ENOSPC, "")
    world.write_tick()
    world.settle()
    tried = []
    for _ in range(200):
        before = world.disk.log.count("reserve journal-%d.log")
        steps = world.disk.steps
        world.second()
        tried.append(world.disk.steps > steps)
        assert before == 0
    assert 5 <= sum(tried) <= 15
    assert world.persistence.writable_error() == FULL
    assert_prefix(reload(world.disk.copy()), world.acked)


def test_a_full_disk_refuses_writes_before_they_execute() -> None:
    world = new_world(FakeDisk(capacity=150_000))
    written = 0
    while world.write(b"k" * 100) is not None:
        world.tick()
        world.settle()
        written += 1
        assert written < 5000
    assert world.persistence.writable_error() == FULL
    assert persistence_fields(world.persistence)["aof_last_write_status"] == "err"
    assert world.failed == []
    assert len(world.acked) == written
    world.disk.mend()
    world.second()
    assert world.persistence.writable_error() is None
    world.write_tick()
    world.settle()
    assert len(world.acked) == written + 1
    assert persistence_fields(world.persistence)["aof_last_write_status"] == "ok"


def test_a_full_disk_is_reported_with_directive_and_size(caplog: pytest.LogCaptureFixture) -> None:
    world = new_world(FakeDisk(capacity=10_000), journal_reserve_size=16 << 20)
    assert world.persistence.writable_error() == FULL
    assert any(
        "journal-1.log" in line and "1048576 bytes" in line and "journal-reserve-size" in line
        for line in caplog.messages
    )


def test_a_rewrite_on_a_nearly_full_disk_uses_the_space_left() -> None:
    world = new_world(FakeDisk(capacity=8 << 20), journal_reserve_size=16 << 20)
    write_many(world, 5)
    world.persistence.snapshots.save()
    world.settle()
    assert world.disk.names() == ["base-2.msnap", "journal-2.log", "manifest"]
    assert reload(world.disk.copy()).keyspace.numbers() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("gone", ["all", "manifest", "journal-1.log"])
def test_a_removed_directory_refuses_writes_until_it_is_back(
    gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = new_world()
    write_many(world, 3)
    world.settle()
    files = dict(world.disk.files)
    for name in files:
        if gone in ("all", name):
            del world.disk.files[name]
    world.second()
    error = world.persistence.writable_error()
    assert error is not None
    assert error.startswith(b"MISCONF ")
    world.second()
    assert len([line for line in caplog.messages if "is gone" in line]) == 1
    assert persistence_fields(world.persistence)["aof_last_write_status"] == "err"
    world.disk.files.update(files)
    world.second()
    assert world.persistence.writable_error() is None
    assert persistence_fields(world.persistence)["aof_last_write_status"] == "ok"


def test_a_rewrite_that_lags_becomes_urgent() -> None:
    """The files have doubled since it began, at least from auto-aof-rewrite-min-size."""
    world = new_world(
        appendfsync="no", auto_aof_rewrite_min_size=1000, auto_aof_rewrite_percentage=0
    )
    (worker,) = [one for one in world.workers if one.name == "millstream-snapshot"]
    world.persistence.snapshots.start("rewrite")
    while world.persistence.current_bytes() <= 2000:
        assert not worker.is_urgent
        world.write_tick()
        world.persistence.tick_second(0)
    assert worker.is_urgent
    world.settle()
    assert not worker.is_urgent


def test_a_rewrite_restores_removed_files() -> None:
    world = new_world()
    write_many(world, 3)
    world.settle()
    world.disk.files.clear()
    world.second()
    assert world.persistence.writable_error() is not None
    world.persistence.snapshots.rewrite()
    world.settle()
    world.second()
    assert world.persistence.writable_error() is None
    world.write_tick()
    world.settle()
    assert reload(world.disk.copy()).keyspace.numbers() == [1, 2, 3, 4]


@pytest.mark.parametrize("act", ["save", "bgsave", "rewrite"])
def test_a_finished_snapshot_is_logged(act: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = new_world()
    write_many(world, 5)
    world.settle()
    getattr(world.persistence.snapshots, act)()
    world.settle()
    size_bytes = len(world.disk.content("base-2.msnap"))
    (line,) = [line for line in caplog.messages if "base-2.msnap" in line]
    assert f"{size_bytes} bytes in" in line
    assert "(keys: 1, entries: 5)" in line
    assert "seconds" in line


def test_switching_the_journal_off_reports_lost_frames(caplog: pytest.LogCaptureFixture) -> None:
    world = new_world()
    world.persistence.set_appendonly(False)
    assert any("appendonly is off" in line and "lost" in line for line in caplog.messages)


def test_a_journal_that_fails_during_a_rewrite_recovers() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        world = new_world(appendfsync=chance.choice(MODES))
        write_many(world, 5)
        world.settle()
        world.persistence.snapshots.rewrite()
        for _ in range(chance.randint(0, 12)):
            world.step_any(chance)
        world.disk.fail(chance.choice(["write", "sync"]), errno.EIO, "journal-", times=1)
        play(world, chance, 20)
        world.disk.mend()
        for _ in range(10):
            world.second()
        assert world.persistence.writable_error() is None
        world.write_tick()
        world.settle()
        again = reload(world.disk.copy(), appendfsync=world.config.appendfsync)
        assert again.keyspace.numbers() == world.keyspace.numbers()


def test_failing_snapshots_refuse_writes_only_with_save_points() -> None:
    world = new_world(appendonly=False, save="60 1")
    world.disk.fail("write", errno.ENOSPC, "base-")
    world.write_tick()
    for _ in range(61):
        world.second()
    error = world.persistence.writable_error()
    assert error is not None
    assert error.startswith(b"MISCONF Redis is configured to save RDB snapshots")
    world.config.stop_writes_on_bgsave_error = False
    world.second()
    assert world.persistence.writable_error() is None


@pytest.mark.parametrize("mode", MODES)
def test_failing_snapshots_leave_a_bounded_number_of_journals(mode: str) -> None:
    world = new_world(appendfsync=mode)
    write_many(world, 3)
    world.settle()
    world.disk.fail("write", errno.ENOSPC, "base-")
    for _ in range(10):
        world.persistence.snapshots.bgsave()
        world.settle()
        assert_prefix(reload(world.disk.after_crash(1)), synced(world))
    journals = [name for name in world.disk.names() if name.startswith("journal-")]
    assert len(journals) <= 3
    write_many(world, 2)
    world.settle()
    assert reload(world.disk.copy()).keyspace.numbers() == [1, 2, 3, 4, 5]


def test_a_journal_with_waiting_frames_is_not_empty() -> None:
    """Its disk stalls while one snapshot after the other fails."""
    world = new_world()
    snapshot_worker = world.workers[1]
    world.disk.fail("write", errno.ENOSPC, "base-")
    for _ in range(4):
        write_many(world, 1)
        world.persistence.snapshots.bgsave()
        while world.loop.run_one() or snapshot_worker.run_one():
            pass
    assert world.acked == []
    world.settle()
    assert world.acked == [1, 2, 3, 4]
    assert reload(world.disk.after_crash(1)).keyspace.numbers() == [1, 2, 3, 4]


# ------------------------------------------------------------------------------------ once a second


def test_the_journal_is_rewritten_when_it_has_grown() -> None:
    world = new_world(auto_aof_rewrite_min_size=2000)
    while world.disk.names() == ["journal-1.log", "manifest"]:
        assert world.next_number < 500
        world.write_tick()
        world.second()
    assert world.disk.names() == ["base-2.msnap", "journal-2.log", "manifest"]
    info = persistence_fields(world.persistence)
    assert info["aof_rewrites"] == 1
    assert info["aof_base_size"] == len(world.disk.content("base-2.msnap"))
    assert info["aof_current_size"] == sum(
        len(world.disk.content(name)) for name in ("base-2.msnap", "journal-2.log")
    )


def test_save_points() -> None:
    world = new_world(appendonly=False, save="3600 1 10 100")
    write_many(world, 50)
    for _ in range(20):
        world.second()
    assert persistence_fields(world.persistence)["rdb_saves"] == 0
    write_many(world, 60)
    world.second()
    assert persistence_fields(world.persistence)["rdb_saves"] == 1
    assert world.persistence.snapshots.last_save_s == world.loop.now_ms // 1000


def test_save_points_are_off_by_default_with_appendonly() -> None:
    world = new_world()
    write_many(world, 50)
    world.loop.advance(4_000_000)
    world.second()
    assert persistence_fields(world.persistence)["rdb_saves"] == 0


# ------------------------------------------------------------------------------------------ crashes


def read_again(world: World) -> None:
    """Loads the journal into the running keyspace, or is refused: nothing changes."""
    if world.config.appendonly:
        before = dict(world.keyspace.streams)
        world.persistence.read_again(world.keyspace.streams.clear)
        assert world.keyspace.streams == before


def play(world: World, chance: random.Random, steps: int) -> None:
    """Random commands, ticks, and steps of the loop and the workers."""
    acts: list[Callable[[], object]] = [
        world.persistence.snapshots.bgsave,
        world.persistence.snapshots.rewrite,
        world.persistence.snapshots.save,
        world.persistence.snapshots.finish,
        lambda: read_again(world),
        lambda: world.persistence.tick_second(world.next_number),
    ]
    for _ in range(steps):
        what = chance.random()
        if what < 0.35:
            world.write(b"k%d" % chance.randint(0, 3))
        elif what < 0.6:
            world.tick()
        elif what < 0.95:
            world.step_any(chance)
        else:
            with suppress(CommandError):
                chance.choice(acts)()
    world.tick()


def scenario(world: World, chance: random.Random) -> None:
    """Loads, writes, saves in every way, and closes: each kind of disk operation several times."""
    world.load()
    play(world, chance, 12)
    with suppress(CommandError):  # one may be running
        world.persistence.snapshots.bgsave()
    play(world, chance, 12)
    world.settle()
    world.persistence.snapshots.rewrite()
    play(world, chance, 30)
    world.settle()
    write_many(world, 2)
    world.persistence.snapshots.save()
    play(world, chance, 12)
    world.persistence.close()


def synced(world: World) -> list[int]:
    """Frames that must not be lost: with everysec and no, only those that a sync has covered."""
    return world.acked if world.config.appendfsync == "always" else []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", MODES)
def test_a_crash_at_every_disk_operation_loses_nothing_confirmed(mode: str, seed: int) -> None:
    """Half of the crashes leave the files as another one did, and these are read once."""
    loaded: dict[Contents, list[int]] = {}
    operations = 0
    while True:
        operations += 1
        world = World(FakeDisk(seed), FakeConfig(appendfsync=mode))
        world.disk.crash_at = operations
        try:
            scenario(world, random.Random(seed))
        except Crashed:
            pass
        else:
            break
        for tear in range(3):
            disk = world.disk.after_crash(operations * 10 + tear)
            contents = disk.contents()
            if contents not in loaded:
                again = new_world(disk, appendfsync=mode)
                loaded[contents] = again.keyspace.numbers()
                survives_another_restart(again, mode)
            assert_first(loaded[contents], synced(world))
    assert operations > 60


def survives_another_restart(world: World, mode: str) -> None:
    """A repair is final, and the directory is written to as before."""
    write_many(world, 2)
    world.persistence.snapshots.rewrite()
    write_many(world, 2)
    world.settle()
    again = reload(world.disk.copy(), appendfsync=mode)
    assert again.keyspace.numbers() == world.keyspace.numbers()
    assert again.keyspace.numbers() == list(range(1, world.next_number))


def test_a_chain_of_kills_and_power_losses_loses_nothing() -> None:
    """The next start finds the data of this one, whatever ended the server in between."""
    for seed in range(150):
        chance = random.Random(seed)
        disk = FakeDisk(seed)
        kept: list[int] = []
        for _ in range(5):
            mode = chance.choice(MODES)
            world = reload(disk, appendfsync=mode)
            assert_prefix(world, kept)
            shown = world.keyspace.numbers()
            play(world, chance, chance.randint(0, 40))
            if chance.random() < 0.5:  # killed: written bytes are still in the page cache
                disk, kept = world.disk, world.acked or shown
            else:
                disk = world.disk.after_crash(chance.getrandbits(32))
                kept = synced(world) or shown


def test_a_kill_at_any_moment_of_a_failing_rewrite_loses_nothing() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        world = new_world()
        write_many(world, 3)
        world.settle()
        world.persistence.snapshots.rewrite()
        if chance.random() < 0.7:
            write_many(world, 2)
        world.disk.fail(chance.choice(["write", "sync"]), errno.EIO, "journal-", times=1)
        for _ in range(60):
            if not world.step_any(chance):
                world.loop.advance(1000)
            if chance.random() < 0.3:
                world.write_tick()
            if chance.random() < 0.3:
                world.persistence.commits.commit(b"NOP\r\n")  # refused writes do not stop the clock
            assert_prefix(reload(world.disk.copy()), world.acked)
        assert world.persistence.writable_error() is None


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_while_loading_after_a_crash_loses_nothing(mode: str) -> None:
    for seed in range(25):
        chance = random.Random(seed)
        world = new_world(FakeDisk(seed), appendfsync=mode)
        play(world, chance, 60)
        broken = world.disk.after_crash(seed)
        for operation in range(1, 20):
            disk = broken.copy()
            disk.crash_at = operation
            try:
                new_world(disk, appendfsync=mode)
            except Crashed:
                disk = disk.after_crash(seed)
                assert_prefix(new_world(disk, appendfsync=mode), synced(world))
            else:
                break
        else:
            pytest.fail("loading never came to an end")


# -------------------------------------------------------------------------------------- real things


@pytest.mark.parametrize("mode", MODES)
def test_with_threads_an_event_loop_and_a_directory(mode: str, tmp_path: Path) -> None:
    async def run() -> int:
        loop = asyncio.get_running_loop()
        keyspace = FakeKeyspace()
        persistence = real_persistence(tmp_path, mode, loop, keyspace)
        persistence.load()
        durable = asyncio.Event()
        replies: Any = SimpleNamespace(durable=lambda seq: durable.set())
        persistence.commits.listen(replies, Unheard())
        persistence.snapshots.rewrite()
        for number in range(1, 301):
            seq = persistence.commits.commit(keyspace.add(b"k%d" % (number % 90), number))
            while persistence.commits.durable_seq < seq and number % 3 == 0:
                durable.clear()
                await durable.wait()
            if number % 100 == 0:
                await until_idle(persistence)
                persistence.snapshots.bgsave()
        await until_idle(persistence)
        saves = persistence_fields(persistence)["rdb_saves"]
        persistence.close()
        assert isinstance(saves, int)
        return saves

    assert asyncio.run(run()) == 3
    keyspace = FakeKeyspace()

    async def load() -> None:
        persistence = real_persistence(tmp_path, mode, asyncio.get_running_loop(), keyspace)
        persistence.load()
        other = real_persistence(tmp_path, mode, asyncio.get_running_loop(), FakeKeyspace())
        with pytest.raises(DataError, match="is used by another server"):
            other.load()
        persistence.close()

    asyncio.run(load())
    assert keyspace.numbers() == list(range(1, 301))


async def until_idle(persistence: Persistence) -> None:
    running = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress")
    while any(persistence_fields(persistence)[field] for field in running):
        await asyncio.sleep(0.001)  # the snapshot's thread needs the processor


def real_persistence(
    directory: Path, mode: str, loop: asyncio.AbstractEventLoop, keyspace: FakeKeyspace
) -> Persistence:
    def clock() -> int:
        return 1_700_000_000_000

    return Persistence(
        FakeConfig(appendfsync=mode),
        Machine(SystemDisk(directory), clock, clock, loop),
        keyspace,
        partial(apply_effects, keyspace),
        FakeBlock,
    )


# ------------------------------------------------------------------------------------- the queue


def queue_reports(world: World) -> list[int]:
    """The queued bytes at each time at which they may have become less."""
    reported: list[int] = []
    commits = world.persistence.commits
    world.on_queue = lambda: reported.append(commits.queued_bytes)  # type: ignore[method-assign]
    return reported


def test_a_shorter_queue_is_reported_once_it_is_written() -> None:
    world = new_world()
    reported = queue_reports(world)
    write_many(world, 3)
    assert world.persistence.commits.is_queue_full(0)
    assert not reported
    world.settle()
    assert set(reported) == {0}
    assert not world.persistence.commits.is_queue_full(0)


@pytest.mark.parametrize("way", ["write fails", "appendonly no", "appendfsync no"])
def test_any_end_of_the_queue_is_reported(way: str) -> None:
    world = new_world()
    reported = queue_reports(world)
    write_many(world, 3)
    assert world.persistence.commits.is_queue_full(0)
    if way == "write fails":
        world.disk.fail("write")
        world.settle()
    elif way == "appendonly no":
        world.persistence.set_appendonly(False)
    else:
        world.persistence.commits.set_fsync("no")
    world.settle()
    assert reported[-1] == 0


def test_a_queue_may_be_full_before_its_journal_counts() -> None:
    """Switched on at run time, it counts from its base on; replies for its frames wait, too."""
    world = new_world(appendonly=False)
    reported = queue_reports(world)
    world.persistence.set_appendonly(True)
    while not world.persistence.commits.queued_bytes:
        if not world.step_any():
            break
        write_many(world, 1)
    assert world.persistence.commits.is_queue_full(0)
    world.settle()
    assert reported[-1] == 0


def test_more_than_a_frame_can_hold_is_refused_before_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "PAYLOAD_MAX", 1000)
    world = new_world()
    most = 1000 - TIME_BYTES_MAX
    assert world.persistence.commits.make_room(most) <= most
    with pytest.raises(CommandError, match="more than 1000 bytes in the journal at once"):
        world.persistence.commits.make_room(most + 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_frame_that_cannot_be_made_loses_no_number(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(appendfsync=mode)
    write_many(world, 2)
    world.settle()
    monkeypatch.setattr(journal_module, "PAYLOAD_MAX", 1)
    world.write_tick()
    acked = list(world.acked)
    monkeypatch.undo()
    world.settle()
    assert world.acked == acked, "the outcome is unknown"
    assert world.failed
    world.loop.advance(1000)
    world.settle()
    write_many(world, 2)
    world.settle()
    again = reload(world.disk, appendfsync=mode)
    assert again.keyspace.numbers() == [1, 2, 3, 4, 5], "the new base has what was not answered"


# ------------------------------------------------------------------------------------- the end


def failed_world(operation: str = "sync", **config: object) -> World:
    """A world whose journal has failed with one frame, and whose disk fails on."""
    world = new_world(**config)
    write_many(world, 2)
    world.settle()
    world.disk.fail(operation)
    world.write_tick()
    world.settle()
    world.second()
    return world


@pytest.mark.parametrize("mode", ["always", "everysec"])
def test_a_stop_after_a_failed_journal_names_frames_not_on_disk(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = failed_world(appendfsync=mode)
    assert world.persistence.writable_error() is not None
    caplog.clear()
    assert not world.persistence.close()
    first = 3 if mode == "always" else 1
    assert f"not on the disk: journal frames {first} to 3" in caplog.text
    assert "the last attempt to save the data failed: the snapshot could not be" in caplog.text


NO_REPLIES = "under appendfsync always, no client has had a reply that shows them"
GROUP_REPLIES = (
    "under appendfsync always with appendfsync-groups everysec, clients may have had replies to"
    " deliveries and acknowledgements in them, but to nothing else"
)


@pytest.mark.parametrize(("groups", "text"), [("always", NO_REPLIES), ("everysec", GROUP_REPLIES)])
def test_a_stop_tells_which_replies_unsynced_frames_had(
    groups: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = failed_world()
    world.config.appendfsync_groups = groups
    assert not world.persistence.close()
    assert f"(1 in all); {text}" in caplog.text
    caplog.clear()
    world = new_world()
    world.config.appendfsync_groups = groups
    write_many(world, 1)
    world.persistence.unsynced.tell_given_up("a second signal")
    assert f"(1 in all); {text}" in caplog.text


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_stop_after_the_journal_failed_writes_a_new_base(
    operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = failed_world(operation)
    world.disk.mend()
    caplog.clear()
    assert world.persistence.close()
    assert "not on the disk" not in caplog.text
    assert reload(world.disk).keyspace.numbers() == [1, 2, 3]


def test_a_stop_may_leave_the_base_unwritten() -> None:
    world = failed_world()
    world.disk.mend()
    assert not world.persistence.close(tries_base=False)
    disk = world.disk.after_crash(1)
    assert reload(disk).keyspace.numbers()[:2] == [1, 2]


@pytest.mark.parametrize("times", [1, None])
def test_a_journal_that_fails_at_the_end_is_replaced_or_reported(
    times: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = new_world(appendfsync="everysec")
    write_many(world, 2)
    world.disk.fail("sync", times=times)
    assert world.persistence.close() == (times == 1)
    if times == 1:
        assert reload(world.disk.after_crash(1)).keyspace.numbers() == [1, 2]
    else:
        assert "journal frames 1 to 2" in caplog.text


def test_a_stop_while_a_new_base_is_written_waits_for_it() -> None:
    world = failed_world()
    world.disk.mend()
    world.persistence.snapshots.start("rewrite")
    for _ in range(3):
        world.step_any()
    assert world.persistence.close()
    assert reload(world.disk).keyspace.numbers() == [1, 2, 3]


def test_a_clean_stop_reports_that_everything_is_on_disk() -> None:
    world = new_world()
    write_many(world, 2)
    assert world.persistence.close()


def test_the_first_effect_precedes_those_of_the_next_frame() -> None:
    world = World(FakeDisk())
    world.load()
    world.persistence.commits.first_effect = lambda seq: b"NOP\r\n"
    reported: list[tuple[int, bytes | None]] = []
    world.persistence.commits.keep_frames(lambda seq, payload: reported.append((seq, payload)))
    world.write_tick()
    world.write_tick()
    assert reported == [(1, b"NOP\r\n" + TIME + b"ADD s 1\r\n"), (2, b"ADD s 2\r\n")]


def test_the_total_size_of_frames_is_the_same_after_a_restart() -> None:
    world = World(FakeDisk())
    world.load()
    for _ in range(3):
        world.write_tick()
    world.settle()
    counted = world.persistence.commits.frame_bytes
    assert counted == 3 * (20 + len(b"ADD s 1\r\n")) + len(TIME)
    again = World(world.disk.copy())
    again.load()
    assert again.persistence.commits.frame_bytes == counted
    again.persistence.snapshots.rewrite()
    again.settle()
    again.write_tick()
    again.settle()
    third = World(again.disk.copy())
    third.load()
    assert third.persistence.commits.frame_bytes == counted + 20 + len(TIME + b"ADD s 4\r\n")
