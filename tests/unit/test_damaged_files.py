"""No changed byte of a data directory leads to a wrong entry.

A changed file stops the start with its name and an offset. The one exception is the end of the
newest journal, where some changes look like what a crash leaves: then frames at the end are lost,
and nothing else. Exhaustive, byte by byte, on a small directory that holds everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar
from zlib import crc32

import pytest
from tests.support.effort import ways
from tests.support.fakedisk import FakeDisk
from tests.support.journals import header
from tests.support.small_data import (
    BASE,
    FIRST,
    LAST,
    Written,
    load,
    state_of,
    write_base,
    write_journal,
    write_small_data,
)

from millstream.errors import DamageError, FormatError
from millstream.storage.files.journal_format import FRAME_SIZE, HEADER_SIZE
from millstream.storage.files.journal_reader import JournalReader
from millstream.storage.files.manifest import NAME
from millstream.storage.files.snapshot_format import HEADER_SIZE as HEADER_OF_BASE
from millstream.storage.files.snapshot_format import KNOWN_VERSIONS
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.keyspace.keyspace import Keyspace

SECTOR = 512
Result = TypeVar("Result")


@pytest.fixture(scope="module")
def written() -> Written:
    return write_small_data()


def with_file(written: Written, name: str, content: bytes) -> FakeDisk:
    disk = written.disk.copy()
    disk.put(name, content)
    return disk


def changes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each byte changed to zero, and in one bit or all bits."""
    for at, byte in enumerate(data):
        for other in ways(at, byte, 0x01, 0x80, 0xFF):
            yield at, data[:at] + bytes([other]) + data[at + 1 :]


def last_frames(data: bytes) -> list[int]:
    """The offsets at which the frames of a sound journal begin, and the end of the last one."""
    starts = [HEADER_SIZE]
    while starts[-1] < len(data):
        length = int.from_bytes(data[starts[-1] : starts[-1] + 4], "little")
        starts.append(starts[-1] + FRAME_SIZE + length)
    return starts


def outcome(read: Callable[[], Result]) -> Result | DamageError:
    """The frames that were read, or the damage that was found."""
    try:
        return read()
    except DamageError as damage:
        return damage


def has_zero_sector(data: bytes, start: int) -> bool:
    """True if some sector's part of the bytes after `start` is zero."""
    edges = [start, *range(start - start % SECTOR + SECTOR, len(data), SECTOR), len(data)]
    return any(not any(data[begin:end]) for begin, end in pairwise(edges))


def test_the_small_directory_has_every_kind_of_data(written: Written) -> None:
    keyspace, loader = load(written.disk)
    assert state_of(keyspace) == written.states[0]
    assert loader.torn is None
    data = written.disk.content(BASE)
    assert data.count(b"CHNK") >= 4
    assert len(written.disk.content(LAST)) > 1.5 * SECTOR


@pytest.mark.parametrize("name", [NAME, BASE, FIRST])
def test_a_changed_byte_stops_the_start(written: Written, name: str) -> None:
    """FIRST too, although its last frame is only followed by those of another file."""
    for at, data in changes(written.disk.content(name)):
        with pytest.raises(DamageError) as caught:
            load(with_file(written, name, data))
        assert caught.value.file == name, at
        assert isinstance(caught.value.offset, int)
        assert f"{name} is damaged at offset {caught.value.offset}: " in str(caught.value)
        assert 0 <= caught.value.offset <= len(data), at


def test_a_changed_byte_of_a_journal_is_found_in_its_frame(written: Written) -> None:
    data = written.disk.content(FIRST)
    starts = last_frames(data)
    for at, changed in changes(data):
        with pytest.raises(DamageError) as caught:
            load(with_file(written, FIRST, changed))
        begins = max([start for start in starts if start <= at], default=0)
        assert caught.value.offset in (begins, 0, 16)


def test_a_changed_byte_in_the_newest_journal_is_damage_or_torn(
    written: Written,
) -> None:
    """Torn only where the part of a sector became zero, as a crash leaves it, and nothing proves
    that it had been written: in the last frame."""
    data = written.disk.content(LAST)
    last = last_frames(data)[-2]
    torn = []
    for at, changed in changes(data):
        disk = with_file(written, LAST, changed)
        found = outcome(lambda disk=disk: load(disk))
        if isinstance(found, DamageError):
            assert found.file == LAST
            continue
        keyspace, loader = found
        assert loader.torn is not None
        assert loader.torn.offset == last
        assert state_of(keyspace) == written.states[1]
        assert has_zero_sector(changed, last)
        torn.append(at)
    assert len(torn) <= 4


@pytest.mark.parametrize("start", [*range(SECTOR - 21, SECTOR + 2)])
def test_a_changed_byte_in_the_last_frame_is_damage_or_torn(start: int) -> None:
    """The last frame begins at `start` and reaches some bytes into the sector after it. The bytes
    before it are changed once, with the smallest last frame."""
    for size in (1, SECTOR - start % SECTOR, SECTOR - start % SECTOR + 3, SECTOR):
        disk = FakeDisk()
        first = b"x" * (start - HEADER_SIZE - FRAME_SIZE)
        write_journal(disk, "j", 1, [first, b"y" * size])
        for at, changed in changes(disk.content("j")):
            if at < start and size > 1:
                continue
            disk.put("j", changed)
            reader = JournalReader([disk.read("j")], 1)
            found = outcome(lambda reader=reader: [payload for _, _, payload in reader.frames()])
            if isinstance(found, DamageError):
                assert found.offset in (0, HEADER_SIZE, start)
                continue
            assert found == [first]
            assert reader.torn is not None
            assert reader.torn.offset == start
            assert has_zero_sector(changed, start)


def test_a_newest_journal_cut_anywhere_loses_only_last_frames(
    written: Written,
) -> None:
    data = written.disk.content(LAST)
    starts = last_frames(data)
    for cut in range(1, len(data) - HEADER_SIZE + 1):
        left = data[:-cut]
        keyspace, loader = load(with_file(written, LAST, left))
        lost = len([start for start in starts if start > len(left)])
        assert state_of(keyspace) == written.states[lost], cut
        assert (loader.torn is None) == (len(left) in starts)


@pytest.mark.parametrize("name", [NAME, BASE, FIRST])
def test_any_other_file_cut_anywhere_stops_the_start(written: Written, name: str) -> None:
    data = written.disk.content(name)
    for size in range(len(data)):
        with pytest.raises(DamageError) as caught:
            load(with_file(written, name, data[:size]))
        assert caught.value.file in (name, LAST)
        assert caught.value.offset is not None


@pytest.mark.parametrize("name", [NAME, BASE, FIRST, LAST])
def test_a_missing_file_stops_the_start_and_is_named(written: Written, name: str) -> None:
    disk = written.disk.copy()
    disk.remove(name)
    with pytest.raises(DamageError, match=f"^{name} is missing although ") as caught:
        load(disk)
    assert caught.value.file == name


@pytest.mark.parametrize("name", [NAME, BASE, FIRST, LAST])
def test_an_empty_file_stops_the_start_and_is_named(written: Written, name: str) -> None:
    with pytest.raises(DamageError) as caught:
        load(with_file(written, name, b""))
    assert caught.value.file == name


FOREIGN = {
    "a Redis snapshot": b"REDIS0012\xfa\tredis-ver\x058.6.0" + bytes(100),
    "a Redis journal": b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n" * 4,
    "zeros": bytes(5000),
    "a text": b"This is no file of ours, but long enough to be one. " * 3,
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("name", [NAME, BASE, FIRST, LAST])
def test_a_foreign_file_stops_the_start_and_is_named(
    written: Written, name: str, what: str
) -> None:
    with pytest.raises(DamageError) as caught:
        load(with_file(written, name, FOREIGN[what]))
    assert caught.value.file == name


def test_one_file_in_place_of_another_stops_the_start(written: Written) -> None:
    files = written.files()
    names = [NAME, BASE, FIRST, LAST]
    for name in names:
        for other in names:
            if name == other:
                continue
            disk = with_file(written, name, files[other])
            with pytest.raises(DamageError):
                load(disk)
            disk.put(other, files[name])  # the two exchanged
            with pytest.raises(DamageError):
                load(disk)


def test_a_base_of_another_state_stops_the_start(written: Written) -> None:
    """One of the same frame is not: the number is all that ties a base to its journals."""
    due = SnapshotReader(written.disk.read(BASE)).summary.seq
    for seq in {*range(due + 20)} - {due}:
        disk = FakeDisk()
        write_base(disk, BASE, Keyspace(), seq)
        with pytest.raises(DamageError) as caught:
            load(with_file(written, BASE, disk.content(BASE)))
        assert caught.value.file == FIRST


def newer_journal() -> bytes:
    head = bytearray(header())
    head[8] = 4
    return bytes(head[:28]) + crc32(bytes(head[:28])).to_bytes(4, "little") + bytes(head[32:])


def newer_base(data: bytes) -> bytes:
    head = bytearray(data[:HEADER_OF_BASE])
    head[8] = max(KNOWN_VERSIONS) + 1
    return bytes(head[:60]) + crc32(bytes(head[:60])).to_bytes(4, "little") + data[HEADER_OF_BASE:]


def newer_manifest(data: bytes) -> bytes:
    text = data[: data.rfind(b"crc32 ")].replace(b"millstream-manifest 2", b"millstream-manifest 3")
    return text + b"crc32 %08x\n" % crc32(text)


def test_files_of_a_newer_version_are_refused(written: Written) -> None:
    files = written.files()
    newer = {
        NAME: newer_manifest(files[NAME]),
        BASE: newer_base(files[BASE]),
        FIRST: newer_journal() + files[FIRST][HEADER_SIZE:],
        LAST: newer_journal() + files[LAST][HEADER_SIZE:],
    }
    for name, content in newer.items():
        words = f"{name} has .*format.* this version does not know: it was written by a newer mill"
        with pytest.raises(FormatError, match=words):
            load(with_file(written, name, content))
