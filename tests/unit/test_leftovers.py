"""A start removes what is empty, unfinished or replaced, and never a file that holds more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.fakedisk import Crashed, FakeDisk
from tests.support.fakepersistence import FakeConfig, World
from tests.support.journals import header, journal_bytes, with_frames
from tests.support.small_data import (
    BASE,
    CREATED_MS,
    FIRST,
    LAST,
    contents_of,
    load,
    state_of,
    write_journal,
    write_small_data,
)

from millstream.errors import DamageError
from millstream.server import checking
from millstream.server.checking import Checker, Report, Verdict
from millstream.server.data_files import DataFiles
from millstream.server.loading import LoadReport
from millstream.server.repairing import repair
from millstream.storage.manifest import NAME, Manifest, load_manifest, store_manifest

FOLDER = "damaged-20261120-120000"
MODES = ["always", "everysec", "no"]


@pytest.fixture(autouse=True)
def few_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "DATABASES", 16)


def check(disk: FakeDisk) -> Report:
    return Checker(disk, CREATED_MS, lambda done, total: None).run(load=True)


def start(disk: FakeDisk) -> LoadReport:
    report = LoadReport()
    DataFiles(disk).open(report)
    return report


def with_older_manifest() -> FakeDisk:
    """As after the manifest was restored that the server had before it began the last journal."""
    disk = write_small_data().disk
    store_manifest(disk, Manifest(BASE, (FIRST,), 4))
    return disk


def test_a_journal_that_an_older_manifest_does_not_name_stops_the_start() -> None:
    disk = with_older_manifest()
    before = disk.copy().files.keys(), disk.content(LAST)
    with pytest.raises(
        DamageError, match=rf"^{LAST} holds the frames \d+ to \d+ and {NAME} "
    ) as one:
        start(disk)
    assert "put back the manifest that names it" in str(one.value)
    assert (disk.files.keys(), disk.content(LAST)) == before


def test_check_tells_of_it_and_a_repair_takes_the_frames_in() -> None:
    disk = with_older_manifest()
    report = check(disk)
    assert report.verdict is Verdict.DAMAGED
    assert any(LAST in place.reason for place in report.files[0].places)
    assert not any(file.loses for file in report.files)
    repair(disk, report, CREATED_MS, FOLDER)
    assert check(disk).verdict is Verdict.WHOLE
    keyspace, _ = load(disk)
    assert contents_of(state_of(keyspace)) == contents_of(write_small_data().states[0])


def test_frames_that_do_not_go_on_are_kept_beside_the_data() -> None:
    disk = write_small_data().disk
    write_journal(disk, "journal-9.log", 500, [b"x", b"y"])
    with pytest.raises(DamageError, match=r"journal-9\.log holds the frames 500 to 501"):
        start(disk)
    report = check(disk)
    assert [file.state for file in report.files if file.name == "journal-9.log"] == ["unnamed"]
    left = disk.content("journal-9.log")
    repair(disk, report, CREATED_MS, FOLDER)
    assert disk.content(f"{FOLDER}/journal-9.log") == left
    assert start(disk).removed == []
    assert contents_of(state_of(load(disk)[0])) == contents_of(write_small_data().states[0])


@pytest.mark.parametrize("cut", [0, 1, 127, 128])
def test_a_journal_without_frames_is_removed(cut: int) -> None:
    disk = write_small_data().disk
    disk.put("journal-9.log", disk.content(LAST)[:cut])
    assert start(disk).removed == ["journal-9.log"]


def test_a_journal_whose_frames_cannot_be_read_stays() -> None:
    disk = write_small_data().disk
    disk.put("journal-9.log", disk.content(LAST)[:140])
    with pytest.raises(DamageError, match=r"journal-9\.log holds 12 bytes of frames"):
        start(disk)


def test_what_the_base_replaced_is_removed() -> None:
    disk = write_small_data().disk
    write_journal(disk, "journal-1.log", 1, [b"x"])
    torn = disk.content("journal-1.log")
    disk.put("journal-2.log", torn[:-3])
    assert start(disk).removed == ["journal-1.log", "journal-2.log"]


def test_a_base_that_an_older_manifest_does_not_name_stops_the_start() -> None:
    world = World(FakeDisk(), FakeConfig(appendonly=False))
    world.load()
    for number in range(3):
        world.write_tick()
        world.persistence.save()
        if number == 0:
            older = dict(world.disk.files)
    disk = world.disk.copy()
    for name in (NAME, "base-1.msnap"):
        disk.put(name, bytes(older[name].data))
    with pytest.raises(DamageError, match=r"base-3\.msnap holds a snapshot up to frame 3"):
        World(disk, FakeConfig(appendonly=False)).load()


def all_acts() -> list[Callable[[World], object]]:
    return [
        lambda world: world.persistence.save(),
        lambda world: world.persistence.rewrite(),
        lambda world: (world.persistence.set_appendonly(False), world.settle(),
                       world.persistence.set_appendonly(True)),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("act", range(3))
def test_a_power_cut_at_any_step_of_a_snapshot_is_followed_by_a_start(mode: str, act: int) -> None:
    """Also where the journal that was begun counts only with its base."""
    crash_at = 0
    while True:
        crash_at += 1
        world = World(FakeDisk(crash_at), FakeConfig(appendfsync=mode))
        world.load()
        for _ in range(3):
            world.write_tick()
            world.settle()
        world.second()
        world.disk.crash_at = world.disk.steps + crash_at
        try:
            all_acts()[act](world)
            for _ in range(3):
                world.write_tick()
                world.step_any()
            world.settle()
        except Crashed:
            pass
        else:
            break
        for seed in range(12):
            again = World(world.disk.after_crash(seed), FakeConfig(appendfsync=mode))
            again.load()
            found = again.keyspace.numbers()
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= (3 if mode != "no" else 0), (crash_at, seed)
    assert crash_at > 15


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_while_a_torn_end_is_cut_is_followed_by_a_start(seed: int) -> None:
    """Later journals hold frames that were never acknowledged: they go before their names do."""

    crash_at = 0
    while True:
        crash_at += 1
        disk = FakeDisk()
        disk.put(
            "journal-1.log", journal_bytes([b"ADD s 1\r\n", b"ADD s 2\r\n"], synced_each=False)[:-4]
        )
        disk.put("journal-2.log", with_frames(header(), [(3, 2, b"ADD s 3\r\n")]))
        store_manifest(disk, Manifest(None, ("journal-1.log", "journal-2.log"), 3))
        disk.crash_at = disk.steps + crash_at
        world = World(disk, FakeConfig())
        try:
            world.load()
        except Crashed:
            again = World(disk.after_crash(seed), FakeConfig())
            again.load()
            assert again.keyspace.numbers() == [1], crash_at
            continue
        break
    assert load_manifest(disk) is not None
    assert crash_at > 5
