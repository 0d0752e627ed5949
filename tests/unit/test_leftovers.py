"""A start removes empty, unfinished and replaced files, and never one with more data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.fakedisk import Crashed, FakeDisk, FakeFile
from tests.support.fakepersistence import FakeConfig, World
from tests.support.journals import DIRECTORY, header, journal_bytes, with_frames
from tests.support.small_data import (
    BASE,
    CREATED_MS,
    FIRST,
    LAST,
    contents_of,
    load,
    state_of,
    write_base,
    write_journal,
    write_small_data,
)

from millstream.errors import DamageError, ForeignError
from millstream.server.durability.data_files import DataFiles
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.repair import checking
from millstream.server.repair.check_report import Report, Verdict
from millstream.server.repair.checking import Checker
from millstream.server.repair.repairing import repair
from millstream.storage.files.manifest import (
    NAME,
    TEMPORARY,
    Manifest,
    load_manifest,
    store_manifest,
)
from millstream.storage.keyspace.keyspace import Keyspace

FOLDER = "damaged-20261120-120000"
MODES = ["always", "everysec", "no"]
OTHER = bytes(range(1, 17))


@pytest.fixture(autouse=True)
def few_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "DATABASES", 16)


def check(disk: FakeDisk) -> Report:
    return Checker(disk, CREATED_MS, lambda done, total: None).run(load=True)


def start(disk: FakeDisk) -> LoadReport:
    report = LoadReport()
    files = DataFiles(disk)
    files.open(report)
    for _ in files.remove_leftovers(report):
        pass
    return report


def with_older_manifest() -> FakeDisk:
    """As after the manifest was restored that the server had before it began the last journal."""
    disk = write_small_data().disk
    store_manifest(disk, Manifest(BASE, (FIRST,), 4, DIRECTORY))
    return disk


def test_a_journal_unnamed_by_an_older_manifest_stops_the_start() -> None:
    disk = with_older_manifest()
    before = disk.copy().files.keys(), disk.content(LAST)
    with pytest.raises(
        DamageError, match=rf"^{LAST} holds the frames \d+ to \d+ and {NAME} "
    ) as one:
        start(disk)
    assert "restore the manifest that names it" in str(one.value)
    assert (disk.files.keys(), disk.content(LAST)) == before


def test_check_reports_the_file_and_a_repair_includes_its_frames() -> None:
    disk = with_older_manifest()
    report = check(disk)
    assert report.verdict is Verdict.DAMAGED
    assert any(LAST in place.reason for place in report.files[0].places)
    assert not any(file.loses for file in report.files)
    repair(disk, report, CREATED_MS, FOLDER)
    assert check(disk).verdict is Verdict.WHOLE
    keyspace, _ = load(disk)
    assert contents_of(state_of(keyspace)) == contents_of(write_small_data().states[0])


def test_frames_that_do_not_continue_are_kept_next_to_the_data() -> None:
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


def test_files_that_the_base_replaced_are_removed() -> None:
    disk = write_small_data().disk
    write_journal(disk, "journal-1.log", 1, [b"x"])
    torn = disk.content("journal-1.log")
    disk.put("journal-2.log", torn[:-3])
    assert start(disk).removed == ["journal-1.log", "journal-2.log"]


def test_clients_are_answered_while_a_long_leftover_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = write_small_data().disk
    write_journal(disk, "journal-1.log", 1, [b"x" * 1_000_000] * 8)
    opened: list[str] = []
    read = disk.read

    def note_name(name: str) -> FakeFile:
        opened.append(name)
        return read(name)

    monkeypatch.setattr(disk, "read", note_name)
    slices = World(disk).persistence.load_slices(LoadReport())
    next(slices)
    assert "journal-1.log" not in opened, "the server listens from here on"
    steps = 0
    while "journal-1.log" in disk.names():
        next(slices)
        steps += 1
    assert steps >= 7
    slices.close()


def test_a_base_unnamed_by_an_older_manifest_stops_the_start() -> None:
    world = World(FakeDisk(), FakeConfig(appendonly=False))
    world.load()
    for number in range(3):
        world.write_tick()
        world.persistence.snapshots.save()
        if number == 0:
            older = dict(world.disk.files)
    disk = world.disk.copy()
    for name in (NAME, "base-1.msnap"):
        disk.put(name, bytes(older[name].data))
    with pytest.raises(DamageError, match=r"base-3\.msnap holds a snapshot up to frame 3"):
        World(disk, FakeConfig(appendonly=False)).load()


def all_acts() -> list[Callable[[World], object]]:
    return [
        lambda world: world.persistence.snapshots.save(),
        lambda world: world.persistence.snapshots.rewrite(),
        lambda world: (world.persistence.set_appendonly(False), world.settle(),
                       world.persistence.set_appendonly(True)),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("act", range(3))
def test_a_start_succeeds_after_power_cuts_in_any_snapshot_step(mode: str, act: int) -> None:
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
def test_a_start_succeeds_after_a_power_cut_while_cutting_an_end(seed: int) -> None:
    """Later journals hold frames that were never acknowledged: they go before their names do."""

    crash_at = 0
    while True:
        crash_at += 1
        disk = FakeDisk()
        disk.put(
            "journal-1.log", journal_bytes([b"ADD s 1\r\n", b"ADD s 2\r\n"], synced_each=False)[:-4]
        )
        disk.put("journal-2.log", with_frames(header(), [(3, 2, b"ADD s 3\r\n")]))
        store_manifest(disk, Manifest(None, ("journal-1.log", "journal-2.log"), 3, DIRECTORY))
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


def foreign_base(finished: bool = True) -> bytes:
    disk = FakeDisk()
    write_base(disk, "base-1.msnap", Keyspace(), 9, OTHER)
    return disk.content("base-1.msnap")[: None if finished else -50]


def foreign_journal() -> bytes:
    disk = FakeDisk()
    write_journal(disk, "journal-1.log", 1, [b"x", b"y"], OTHER)
    return disk.content("journal-1.log")


def foreign_manifest() -> bytes:
    return Manifest("base-1.msnap", ("journal-1.log",), 9, OTHER).to_bytes()


FOREIGN = {
    "base-1.msnap": foreign_base(),
    "base-9.msnap": foreign_base(),
    "base-2.msnap": foreign_base(finished=False),
    "base-1.msnap.tmp": foreign_base(),
    "base-9.msnap.tmp": foreign_base(),
    "journal-1.log": foreign_journal(),
    "journal-9.log": foreign_journal(),
    "journal-2.log": foreign_journal()[:-1],
    "journal-1.log.tmp": foreign_journal(),
    "journal-9.log.tmp": foreign_journal(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_directory_stops_the_start(name: str) -> None:
    disk = write_small_data().disk
    disk.put(name, FOREIGN[name])
    disk.put("journal-8.log.tmp", b"")
    before = {each: disk.content(each) for each in disk.names()}
    with pytest.raises(ForeignError, match=rf"^{name} belongs to another data directory") as one:
        start(disk)
    assert OTHER.hex() in str(one.value)
    assert "move this file out of the directory" in str(one.value)
    assert {each: disk.content(each) for each in disk.names()} == before


def test_a_foreign_directory_named_by_its_manifest_is_kept() -> None:
    disk = write_small_data().disk
    names = ["base-1.msnap", "journal-1.log"]
    for name in names:
        disk.put(name, FOREIGN[name])
    disk.put(TEMPORARY, foreign_manifest())
    with pytest.raises(ForeignError):
        start(disk)
    assert {*names, TEMPORARY} <= set(disk.names())
    for name in names:
        disk.remove(name)
    assert start(disk).removed == [TEMPORARY]


def test_a_foreign_temporary_manifest_names_no_unused_files() -> None:
    disk = write_small_data().disk
    write_journal(disk, "journal-9.log", 500, [b"x", b"y"])
    disk.put(TEMPORARY, Manifest(None, ("journal-9.log",), 10, OTHER).to_bytes())
    with pytest.raises(DamageError, match=r"journal-9\.log holds the frames 500 to 501"):
        start(disk)


@pytest.mark.parametrize("name", FOREIGN)
def test_check_names_a_foreign_file_and_a_repair_keeps_it(name: str) -> None:
    disk = write_small_data().disk
    disk.put(name, FOREIGN[name])
    report = check(disk)
    assert report.verdict is Verdict.DAMAGED
    assert [file.name for file in report.files if file.state == "unnamed"] == [name]
    repair(disk, report, CREATED_MS, FOLDER)
    assert disk.content(f"{FOLDER}/{name}") == FOREIGN[name]
    assert start(disk).removed == []
    assert contents_of(state_of(load(disk)[0])) == contents_of(write_small_data().states[0])


def test_a_repair_includes_unnamed_frames_next_to_a_foreign_file() -> None:
    disk = with_older_manifest()
    disk.put("base-9.msnap", FOREIGN["base-9.msnap"])
    repair(disk, check(disk), CREATED_MS, FOLDER)
    assert disk.content(f"{FOLDER}/base-9.msnap") == FOREIGN["base-9.msnap"]
    assert contents_of(state_of(load(disk)[0])) == contents_of(write_small_data().states[0])


@pytest.mark.parametrize("name", ["base-1.msnap", "journal-1.log"])
def test_an_unreadable_file_is_kept_and_stops_the_start(name: str) -> None:
    disk = write_small_data().disk
    disk.put(name, bytes(200) + FOREIGN[name][200:-20])
    with pytest.raises(DamageError, match=f"^{name} holds .* that cannot be read"):
        start(disk)


def test_an_empty_directorys_manifest_removes_no_foreign_file() -> None:
    disk = write_small_data().disk
    write_base(disk, "base-1.msnap", Keyspace(), 0)
    before = set(disk.names())
    store_manifest(disk, Manifest(None, (), 1, OTHER))
    with pytest.raises(ForeignError):
        start(disk)
    assert set(disk.names()) == before


@pytest.mark.parametrize("name", ["base-9.msnap", "journal-9.log", "base-2.msnap.tmp"])
def test_a_file_with_an_id_stays_where_the_directory_has_none(name: str) -> None:
    disk = write_small_data().disk
    for each in (BASE, FIRST, LAST):
        disk.remove(each)
    store_manifest(disk, Manifest(None, (), 5, b""))
    disk.put(name, foreign_base() if name.startswith("base") else foreign_journal())
    disk.put(TEMPORARY, Manifest("base-9.msnap", ("journal-9.log",), 10, OTHER).to_bytes())
    with pytest.raises(ForeignError, match=f"^{name} belongs"):
        start(disk)


def test_leftovers_of_creating_a_directorys_id_are_removed() -> None:
    disk = write_small_data().disk
    for each in (BASE, FIRST, LAST):
        disk.remove(each)
    store_manifest(disk, Manifest(None, (), 5, b""))
    left = {
        "base-5.msnap": foreign_base(),
        "base-6.msnap.tmp": foreign_base(),
        "journal-5.log": foreign_journal(),
        TEMPORARY: Manifest("base-5.msnap", ("journal-5.log",), 6, OTHER, 5).to_bytes(),
    }
    for name, content in left.items():
        disk.put(name, content)
    assert start(disk).removed == sorted(left)
