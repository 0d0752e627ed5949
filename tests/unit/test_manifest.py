"""The manifest names the files in use, and is never incomplete."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fakedisk import Crashed, FakeDisk
from tests.support.journals import DIRECTORY

from millstream.errors import DataError, ForeignError
from millstream.storage.files.manifest import (
    Manifest,
    base_name,
    check_manifest_owner,
    journal_name,
    load_manifest,
    store_manifest,
    sweep,
)

numbers = st.integers(1, 10**12)
manifests = st.builds(
    Manifest,
    st.none() | numbers.map(base_name),
    st.lists(numbers.map(journal_name), max_size=5).map(tuple),
    numbers,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 100),
    replaced=st.just(0),
    primary=st.just(""),
    node=st.just("") | st.binary(min_size=20, max_size=20).map(bytes.hex),
    promised=st.integers(0, 2**40),
)
SMALL = Manifest("base-3.msnap", ("journal-3.log", "journal-4.log"), 5, bytes(range(16)), 4)


@given(manifests)
def test_reading_returns_the_written_data(manifest: Manifest) -> None:
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


def test_the_text_is_the_documented_one() -> None:
    assert SMALL.to_bytes().startswith(
        b"millstream-manifest 2\ndirectory 000102030405060708090a0b0c0d0e0f\nsince 4\n"
        b"next 5\nbase base-3.msnap\n"
        b"journal journal-3.log\njournal journal-4.log\ncrc32 "
    )


def test_every_flipped_bit_is_refused() -> None:
    data = SMALL.to_bytes()
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(DataError, match="manifest"):
                Manifest.from_bytes(bytes(broken))


def test_every_cut_is_refused() -> None:
    data = SMALL.to_bytes()
    for size in range(len(data)):
        with pytest.raises(DataError, match="offset"):
            Manifest.from_bytes(data[:size])


def test_an_empty_directory_has_no_manifest() -> None:
    disk = FakeDisk()
    disk.put("notes.txt", b"a user's own file")
    assert load_manifest(disk) is None


@pytest.mark.parametrize("name", ["base-1.msnap", "journal-1.log", "base-2.msnap.tmp"])
def test_a_lost_manifest_is_noticed(name: str) -> None:
    disk = FakeDisk()
    disk.put(name, b"")
    with pytest.raises(DataError, match=rf"manifest is missing although {name}"):
        load_manifest(disk)
    assert disk.names() == [name]


def test_a_missing_file_is_noticed() -> None:
    disk = FakeDisk()
    store_manifest(disk, SMALL)
    disk.put("base-3.msnap", b"")
    disk.put("journal-3.log", b"")
    with pytest.raises(DataError, match=r"journal-4\.log is missing"):
        load_manifest(disk)


def test_sweep_removes_only_our_own_leftovers() -> None:
    disk = FakeDisk()
    for name in (*SMALL.files, "base-1.msnap", "base-9.msnap.tmp", "journal-1.log", "notes.txt"):
        disk.put(name, b"")
    store_manifest(disk, SMALL)
    for name in ("lock", "my-base-1.msnap", "journal-1.log.bak", "base-x.msnap"):
        disk.put(name, b"")
    removed = sweep(disk, SMALL)
    assert removed == ["base-1.msnap", "base-9.msnap.tmp", "journal-1.log"]
    assert {"notes.txt", "lock", "my-base-1.msnap", "journal-1.log.bak"} <= set(disk.names())


def test_a_crash_while_replacing_leaves_the_old_or_the_new_one() -> None:
    new = Manifest("base-4.msnap", ("journal-4.log",), 6, DIRECTORY)
    seen = set()
    for step in range(1, 10):
        for seed in range(20):
            disk = FakeDisk()
            for name in {*SMALL.files, *new.files}:
                disk.put(name, b"")
            store_manifest(disk, SMALL)
            disk.crash_at = disk.steps + step
            finished = True
            try:
                store_manifest(disk, new)
            except Crashed:
                finished = False
            found = load_manifest(disk.after_crash(seed))
            assert found == new if finished else found in (SMALL, new)
            seen.add((finished, found == new))
    assert seen == {(False, False), (False, True), (True, True)}


def test_a_foreign_manifest_is_recognized_by_files_with_an_id() -> None:
    other = bytes(range(1, 17))
    found = {"base-3.msnap": b"", "journal-3.log": other, "journal-4.log": other}
    with pytest.raises(ForeignError, match=r"the ID of journal-3\.log, journal-4\.log is 0102"):
        check_manifest_owner(SMALL, found)
