"""Files of another data directory are refused by name, and a repair ignores them."""

from __future__ import annotations

import pytest
from tests.support.fakedisk import FakeDisk
from tests.support.fakepersistence import FakeConfig, World
from tests.support.small_data import (
    BASE,
    CREATED_MS,
    FIRST,
    LAST,
    contents_of,
    load,
    state_of,
    write_base,
    write_small_data,
)

from millstream.errors import ForeignError
from millstream.server.repair import checking
from millstream.server.repair.check_report import Report, Verdict
from millstream.server.repair.checking import Checker
from millstream.server.repair.repairing import repair
from millstream.storage.files.manifest import NAME, load_manifest, store_manifest
from millstream.storage.keyspace.keyspace import Keyspace

FOLDER = "damaged-20261120-120000"
OTHER = bytes(range(1, 17))


def foreign_twin() -> FakeDisk:
    """Another directory whose files have the same names and numbers."""
    return write_small_data(OTHER).disk


def check(disk: FakeDisk) -> Report:
    return Checker(disk, CREATED_MS, lambda done, total: None).run(load=True)


@pytest.fixture(autouse=True)
def few_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "DATABASES", 16)


def with_foreign(name: str) -> FakeDisk:
    disk = write_small_data().disk.copy()
    disk.put(name, foreign_twin().content(name))
    return disk


@pytest.mark.parametrize("name", [NAME, BASE, FIRST, LAST])
def test_a_file_of_another_directory_is_refused_by_name(name: str) -> None:
    disk = with_foreign(name)
    with pytest.raises(ForeignError, match=f"^{name} belongs to another data directory") as caught:
        load(disk)
    assert OTHER.hex() in str(caught.value)
    assert "nothing was changed" in str(caught.value)
    report = check(disk)
    assert report.verdict is Verdict.DAMAGED
    assert [file.name for file in report.files if file.state == "misplaced"] == [name]


@pytest.mark.parametrize("name", [FIRST, LAST])
def test_a_repair_keeps_no_entry_of_a_foreign_journal(name: str) -> None:
    other = foreign_twin()
    known = state_of(load(write_small_data().disk)[0])
    disk = with_foreign(name)
    repair(disk, check(disk), CREATED_MS, FOLDER)
    assert disk.content(f"{FOLDER}/{name}") == other.content(name)
    kept = state_of(load(disk)[0])
    assert kept != known
    assert check(disk).verdict is Verdict.WHOLE


def test_a_repair_replaces_a_foreign_manifest() -> None:
    disk = with_foreign(NAME)
    repair(disk, check(disk), CREATED_MS, FOLDER)
    found, _ = load(disk)
    assert contents_of(state_of(found)) == contents_of(write_small_data().states[0])


def test_a_foreign_base_is_not_repaired_with() -> None:
    disk = with_foreign(BASE)
    report = check(disk)
    assert report.hopeless == f"{BASE} belongs to another data directory"


def test_a_file_without_an_id_is_foreign_where_files_have_one() -> None:
    disk = write_small_data().disk
    manifest = load_manifest(disk)
    assert manifest is not None
    write_base(disk, BASE, Keyspace(), 9, OTHER)
    with pytest.raises(ForeignError, match=BASE):
        load(disk)
    store_manifest(disk, manifest)


def test_a_whole_directory_copied_or_moved_is_the_same_directory() -> None:
    disk = write_small_data().disk
    assert check(disk.copy()).verdict is Verdict.WHOLE


def test_every_new_directory_has_an_id_of_its_own() -> None:
    ids = set()
    for seed in range(5):
        world = World(FakeDisk(seed), FakeConfig())
        world.load()
        manifest = load_manifest(world.disk)
        assert manifest is not None
        ids.add(manifest.directory)
    assert len(ids) == 5
