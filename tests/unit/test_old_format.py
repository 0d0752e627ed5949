"""Directories of format 1 load for ever, and become ones of the present format by their next write.

The files in `tests/recorded` were written by the last version that knew no other format. Format 1:
without a directory ID, without salts, with one checksum a frame. Formats 2 and 3: bases without
sections of small streams, 3 with a reservation and a sealed stream. Format 4: a base whose total
leaves out the evicted entries that the block of a small stream still has.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest
from tests.support.fakedisk import FakeDisk
from tests.support.small_data import (
    BASE,
    CREATED_MS,
    FIRST,
    LAST,
    contents_of,
    load,
    state_of,
    write_small_data,
)

from millstream.errors import DamageError
from millstream.server.durability.data_files import DataFiles
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.repair.check_report import Verdict
from millstream.server.repair.checking import Checker
from millstream.server.repair.inspecting import inspect_directory
from millstream.server.repair.repairing import repair
from millstream.storage.files.journal_file import create_journal
from millstream.storage.files.journal_format import Head, read_head
from millstream.storage.files.manifest import NAME, load_manifest

RECORDED = Path(__file__).parent.parent / "recorded"
FOLDER = "damaged-20261120-120000"


def recorded(name: str) -> FakeDisk:
    disk = FakeDisk()
    for path in (RECORDED / name).iterdir():
        disk.put(path.name, path.read_bytes())
    return disk


def test_a_directory_of_format_1_loads_as_it_was_written() -> None:
    keyspace, loader = load(recorded("format-1"))
    assert loader.torn is None
    assert contents_of(state_of(keyspace)) == contents_of(write_small_data().states[0])


def test_an_old_total_without_evicted_small_entries_is_no_damage() -> None:
    disk = recorded("format-4-trimmed")
    report = Checker(disk, CREATED_MS, lambda done, total: None).run(load=True)
    assert report.verdict is Verdict.WHOLE
    database = load(disk)[0].databases[0]
    assert [len(database.stream(key) or ()) for key in (b"small", b"large")] == [2, 550]


def test_a_packed_base_of_a_server_of_format_1_loads() -> None:
    keyspace, _ = load(recorded("format-1-packed"))
    stream = keyspace.databases[0].stream(b"s")
    assert stream is not None
    assert [ms for ms, _, _ in stream.range()] == list(range(1, 121))
    assert keyspace.databases[0].get(b"name") == b"v" * 900
    assert stream.groups[b"g"].pending.count == 4


def test_a_directory_of_format_2_loads_as_it_was_written() -> None:
    keyspace, loader = load(recorded("format-2"))
    assert loader.torn is None
    assert contents_of(state_of(keyspace)) == contents_of(write_small_data().states[0])


def test_a_base_of_format_3_loads_with_its_own_features() -> None:
    keyspace, _ = load(recorded("format-3"))
    database = keyspace.databases[0]
    reserving, plain, sealed = (database.stream(key) for key in (b"s", b"plain", b"gone"))
    assert reserving is not None
    assert reserving.is_reserving
    assert plain is not None
    assert plain.groups[b"g"].pending.count == 1
    assert sealed is not None
    assert sealed.is_sealed


@pytest.mark.parametrize("name", ["format-1", "format-1-packed", "format-2", "format-3"])
def test_check_and_inspect_read_format_1(name: str) -> None:
    disk = recorded(name)
    assert Checker(disk, CREATED_MS, lambda done, total: None).run(load=True).verdict is (
        Verdict.WHOLE
    )
    for journals in (True, False):
        contents = inspect_directory(
            disk, journals=journals, pattern=None, limit=10, now_ms=CREATED_MS
        )
        assert contents.keys >= 2


@pytest.mark.parametrize("name", [NAME, BASE, FIRST, LAST])
def test_a_changed_byte_of_format_1_stops_the_start(name: str) -> None:
    disk = recorded("format-1")
    data = disk.content(name)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0xFF
        disk.put(name, bytes(broken))
        with pytest.raises(DamageError) as caught:
            load(disk)
        assert caught.value.file == name


def test_a_repair_of_format_1_makes_the_present_format() -> None:
    disk = recorded("format-1")
    data = bytearray(disk.content(FIRST))
    data[-3] ^= 1
    disk.put(FIRST, bytes(data))
    report = Checker(disk, CREATED_MS, lambda done, total: None).run(load=False)
    repair(disk, report, CREATED_MS, FOLDER)
    manifest = load_manifest(disk)
    assert manifest is not None
    assert manifest.directory
    load(disk)


def upgraded(disk: FakeDisk) -> DataFiles:
    """Old files to which a rewrite has added a journal of the present format."""
    files = DataFiles(disk)
    files.open(LoadReport())
    name = f"journal-{files.new_number()}.log"

    create_journal(disk, name, files.directory).file.close()
    files.publish_journal(name, files.next_number)
    return files


def test_the_next_journal_adds_an_id_to_an_old_directory() -> None:
    disk = recorded("format-1")
    before = disk.content(NAME)
    DataFiles(disk).open(LoadReport())
    assert disk.content(NAME) == before, "a start alone changes nothing"
    files = upgraded(disk)
    manifest = load_manifest(disk)
    assert manifest is not None
    assert manifest.directory == files.directory != b""
    assert manifest.since == 5
    assert head_of(disk, "journal-5.log").format.directory == files.directory
    keyspace, _ = load(disk)
    assert contents_of(state_of(keyspace)) == contents_of(write_small_data().states[0])


def head_of(disk: FakeDisk, name: str) -> Head:
    return read_head(disk.read(name))


def test_an_older_version_refuses_every_new_file_by_its_version() -> None:
    """Each file has version and checksum where format 1 had them: it names a later version."""
    disk = write_small_data().disk
    assert disk.content(NAME).startswith(b"millstream-manifest 2\n")
    for name in (FIRST, LAST):
        head = disk.content(name)[:32]
        assert int.from_bytes(head[8:12], "little") == 3
        assert int.from_bytes(head[28:32], "little") == crc32(head[:28])
    head = disk.content(BASE)[:64]
    assert int.from_bytes(head[8:12], "little") == 4
    assert int.from_bytes(head[60:64], "little") == crc32(head[:60])
