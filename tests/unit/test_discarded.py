"""Copies of data that a full sync or a rewind removes."""

from __future__ import annotations

from tests.support.small_data import write_small_data

from millstream.server.durability.data_files import DataFiles
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.replication.discarded import PREFIX, keep_copy, remove_copy, remove_older

NOW_MS = 1_764_000_000_000


def folders(files: DataFiles) -> set[str]:
    return {name.partition("/")[0] for name in files.disk.names() if name.startswith(PREFIX)}


def open_files() -> DataFiles:
    files = DataFiles(write_small_data().disk)
    files.open(LoadReport())
    return files


def test_a_copy_is_removed_without_another_of_the_same_second() -> None:
    files = open_files()
    first, second = keep_copy(files, NOW_MS, []), keep_copy(files, NOW_MS, [])
    assert folders(files) == {first, second}
    remove_copy(files, first)
    assert folders(files) == {second}
    remove_copy(files, "")
    assert folders(files) == {second}


def test_only_the_newest_copy_remains() -> None:
    files = open_files()
    names = [keep_copy(files, NOW_MS + offset_ms, []) for offset_ms in (0, 0, 5000)]
    before = len(files.disk.names())
    remove_older(files, names[2])
    assert folders(files) == {names[2]}
    assert len(files.disk.names()) < before
