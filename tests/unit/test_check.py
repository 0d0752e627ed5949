"""A check finds all that a start would refuse, and a repair loses exactly the reported data.

Every byte of a small directory is changed in turn. What a repair leaves starts, holds no entry that
was never written, and is the old directory or the new one wherever it is interrupted.
"""

from __future__ import annotations

import errno
import re
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from tests.support.effort import TIMES
from tests.support.fakedisk import Crashed, FakeDisk
from tests.support.in_process import InProcessServer
from tests.support.journals import DIRECTORY, journal_bytes
from tests.support.small_data import (
    BASE,
    CREATED_MS,
    FIRST,
    IN_THE_FIRST,
    IN_THE_LAST,
    LAST,
    Written,
    contents_of,
    load,
    play,
    small_parts,
    state_of,
    write_base,
    write_journal,
    write_small_data,
)
from tests.support.storage_access import BlockWriter, check_stream

from millstream.errors import DamageError, DataError, counted
from millstream.server.repair import checking
from millstream.server.repair.check_report import FileReport, Report, Verdict
from millstream.server.repair.checking import Checker
from millstream.server.repair.repairing import repair
from millstream.storage.blocks.block import Block
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files import recovery as salvage
from millstream.storage.files.journal_format import FRAME_SIZE, HEADER_SIZE
from millstream.storage.files.lost_manifest import guess_manifest
from millstream.storage.files.manifest import NAME, Manifest, load_manifest, store_manifest
from millstream.storage.files.snapshot_format import CHUNK_HEADER_SIZE
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.groups.group_snapshot import dump_group
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

FOLDER = "damaged-20261120-120000"
NAMES = [NAME, BASE, FIRST, LAST]
Entry = tuple[bytes, int, int, tuple[bytes, ...]]


@pytest.fixture(scope="module")
def written() -> Written:
    return write_small_data()


def check(disk: FakeDisk, *, load: bool = True) -> Report:
    return Checker(disk, CREATED_MS, lambda done, total: None).run(load=load)


def mend(disk: FakeDisk) -> list[str]:
    with small_parts():
        return repair(disk, check(disk), CREATED_MS, FOLDER)


def file_of(report: Report, name: str) -> FileReport:
    return next(file for file in report.files if file.name == name)


def with_file(written: Written, name: str, content: bytes) -> FakeDisk:
    disk = written.disk.copy()
    disk.put(name, content)
    return disk


def flipped(written: Written, name: str, at: int, mask: int = 0xFF) -> FakeDisk:
    data = bytearray(written.disk.content(name))
    data[at] ^= mask
    return with_file(written, name, bytes(data))


def loads(disk: FakeDisk) -> Keyspace:
    return load(disk)[0]


def entries_of(keyspace: Keyspace) -> set[Entry]:
    """Every entry a reader would see."""
    return {
        (key, ms, seq, tuple(words))
        for database in keyspace.databases
        for key in list(database.keys())
        if (stream := database.get(key)) is not None and not isinstance(stream, bytes)
        for ms, seq, words in stream.range()
    }


def holds_all_but(disk: FakeDisk, written: Written, frames: int) -> bool:
    """True if it loads as the directory did, without the last frames."""
    return contents_of(state_of(loads(disk))) == contents_of(written.states[frames])


@pytest.fixture(autouse=True)
def few_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand take longer to make than all the rest."""
    monkeypatch.setattr(checking, "DATABASES", 16)


# ---------------------------------------------------------------------------------------- checking


def test_a_whole_directory_is_whole_and_nothing_in_it_changes(written: Written) -> None:
    before, steps = written.files(), written.disk.steps
    report = check(written.disk)
    assert report.verdict is Verdict.WHOLE
    assert {file.state for file in report.files} == {"ok"}
    assert (report.keys, report.entries, report.frames) == (5, 36, 8)
    assert (written.files(), written.disk.steps) == (before, steps)


@pytest.mark.parametrize("name", NAMES)
def test_a_check_names_the_file_and_the_place_that_a_start_names(
    written: Written, name: str
) -> None:
    for at in range(len(written.disk.content(name))):
        disk = flipped(written, name, at)
        with pytest.raises(DamageError) as refused:
            load(disk)
        report = check(disk, load=False)
        assert report.verdict is Verdict.DAMAGED
        wrong = [file for file in report.files if file.places]
        assert [file.name for file in wrong] == [name]
        assert refused.value.offset in [place.offset for place in wrong[0].places], at


def test_the_end_that_a_crash_tore_is_no_damage(written: Written) -> None:
    report = check(with_file(written, LAST, written.disk.content(LAST)[:-5]))
    assert report.verdict is Verdict.WHOLE
    assert file_of(report, LAST).state == "torn"
    assert report.frames == 7


def test_every_damage_is_found_and_not_only_the_first(written: Written) -> None:
    data = bytearray(written.disk.content(BASE))
    chunks = SnapshotReader(written.disk.read(BASE)).summary.chunks
    for chunk in chunks[:2]:
        data[chunk.offset + 20] ^= 1
    disk = with_file(written, BASE, bytes(data))
    journal = bytearray(written.disk.content(FIRST))
    journal[HEADER_SIZE + 28] ^= 1
    disk.put(FIRST, bytes(journal))
    report = check(disk)
    offsets = [place.offset for place in file_of(report, BASE).places]
    assert offsets == [chunk.offset for chunk in chunks[:2]]
    assert [place.offset for place in file_of(report, FIRST).places] == [HEADER_SIZE]


def test_unused_files_are_listed_apart_from_others(written: Written) -> None:
    disk = written.disk.copy()
    for name in ("base-9.msnap.tmp", "journal-1.log", "notes.txt", FOLDER):
        disk.put(name, b"x")
    report = check(disk)
    assert report.verdict is Verdict.WHOLE
    assert [file_of(report, name).state for name in (
        "base-9.msnap.tmp", "journal-1.log", "notes.txt", FOLDER
    )] == ["unfinished", "unnamed", "foreign", "kept"]  # fmt: skip


def test_an_empty_directory_is_not_reported_whole() -> None:
    disk = FakeDisk()
    disk.put("notes.txt", b"x")
    with pytest.raises(DataError, match="holds no data"):
        check(disk)


def test_inapplicable_effects_are_found_only_by_loading(written: Written) -> None:
    disk = written.disk.copy()
    seq = SnapshotReader(disk.read(BASE)).summary.seq + 4
    write_journal(disk, LAST, seq, [b"*2\r\n$6\r\nFUTURE\r\n$1\r\na\r\n"])
    assert check(disk, load=False).verdict is Verdict.WHOLE
    report = check(disk)
    assert report.verdict is Verdict.UNCHECKED
    assert "is not known to this version" in report.notes[-1]
    with pytest.raises(DataError, match="cannot be repaired"):
        repair(disk, report, CREATED_MS, FOLDER)


# ---------------------------------------------------------------------------------------- repairing


@pytest.mark.parametrize("name", NAMES)
def test_a_repair_after_any_changed_byte_invents_no_data(written: Written, name: str) -> None:
    known = entries_of(loads(written.disk))
    for at in range(0, len(written.disk.content(name)), 11 if TIMES == 1 else 1):
        disk = flipped(written, name, at)
        damaged = disk.content(name)
        report = check(disk)
        mend(disk)
        again = loads(disk)
        assert entries_of(again) <= known, at
        if not any(file.loses for file in report.files):
            assert contents_of(state_of(again)) == contents_of(written.states[0]), at
        assert check(disk).verdict is Verdict.WHOLE
        assert disk.content(f"{FOLDER}/{name}") == damaged
        assert set(disk.names()) >= {NAME, *disk_files(disk)}


def disk_files(disk: FakeDisk) -> tuple[str, ...]:
    manifest = load_manifest(disk)
    assert manifest is not None
    return manifest.files


FRAMES = {FIRST: IN_THE_FIRST, LAST: IN_THE_LAST}


def entries_in(lines: list[str]) -> set[tuple[bytes, int]]:
    """(key, milliseconds) of what these lines append."""
    words = [line.split() for line in lines if line.startswith("XADD")]
    return {(word[1].encode(), int(word[2].split("-")[0])) for word in words}


@pytest.mark.parametrize("name", [FIRST, LAST])
def test_a_damaged_frame_loses_only_itself(written: Written, name: str) -> None:
    """Also the last one of a journal that others follow. The report names file, offset and keys."""
    known = entries_of(loads(written.disk))
    for number, start in enumerate(frame_starts(written.disk.content(name))):
        line = FRAMES[name][number]
        data = written.disk.content(name)
        end = [*frame_starts(data), len(data)][number + 1]
        for at in (start + 9, start + FRAME_SIZE - 2, end - 1):
            disk = flipped(written, name, at, 1 if at == end - 1 else 0xFF)
            (loss,) = file_of(check(disk), name).loses
            assert f"at offset {start} of {name}" in loss
            if at == end - 1:
                key = "a" if line.startswith("XREADGROUP") else line.split()[1]
                assert f"on '{key}'" in loss
            done = mend(disk)
            kept = entries_of(loads(disk))
            lost = {(key, ms) for key, ms, _, _ in known - kept}
            assert kept <= known
            assert lost == entries_in([line]), (line, at)
            assert any("without frame" in sentence for sentence in done)


def frame_starts(data: bytes) -> list[int]:
    at, starts = HEADER_SIZE, []
    while at < len(data):
        starts.append(at)
        at += FRAME_SIZE + int.from_bytes(data[at : at + 4], "little")
    return starts


@pytest.mark.parametrize("part", ["header", "trailer", "summary", "chunk header", "journal header"])
def test_damage_of_redundant_data_loses_nothing(written: Written, part: str) -> None:
    size = len(written.disk.content(BASE))
    chunk = SnapshotReader(written.disk.read(BASE)).summary.chunks[1]
    name = FIRST if part == "journal header" else BASE
    at = {
        "header": 20,
        "trailer": size - 30,
        "summary": size - 60,
        "chunk header": chunk.offset + 5,
        "journal header": 3,
    }[part]
    disk = flipped(written, name, at)
    assert not any(file.loses for file in check(disk).files)
    mend(disk)
    assert holds_all_but(disk, written, 0)


def reported_ranges(loss: str) -> list[tuple[bytes, tuple[int, int], tuple[int, int]]]:
    """(key, first ID, last ID) of each range that a sentence reports as lost."""
    (key,) = re.findall(r"'(\w+)'", loss)
    ranges = re.findall(r"from (\d+)-(\d+) to (\d+)-(\d+)", loss)
    return [
        (key.encode(), (int(ms), int(seq)), (int(last_ms), int(last_seq)))
        for ms, seq, last_ms, last_seq in ranges
    ]


def test_a_bad_chunk_costs_exactly_the_reported_losses(written: Written) -> None:
    before = entries_of(loads(written.disk))
    for place in SnapshotReader(written.disk.read(BASE)).summary.chunks:
        disk = flipped(written, BASE, place.offset + 20)
        loses = file_of(check(disk), BASE).loses
        assert loses
        mend(disk)
        gone = {(key, ms, seq) for key, ms, seq, _ in before - entries_of(loads(disk))}
        reported = [one for loss in loses for one in reported_ranges(loss)]
        assert gone == {
            (key, ms, seq)
            for key, ms, seq, _ in before
            for reported_key, first, last in reported
            if key == reported_key and first <= (ms, seq) <= last
        }


def test_readers_get_a_nil_for_the_gap_of_a_lost_chunk(written: Written) -> None:
    chunks = SnapshotReader(written.disk.read(BASE)).summary.chunks
    disk = flipped(written, BASE, chunks[1].offset + 20)
    before = loads(written.disk).databases[0].stream(b"a")
    mend(disk)
    after = loads(disk).databases[0].stream(b"a")
    assert before is not None
    assert after is not None
    lost = before.length - after.length
    assert lost > 0
    assert after.entries_evicted == before.entries_evicted + lost
    assert after.max_evicted_id > before.max_evicted_id
    assert after.max_evicted_id in {(ms, seq) for ms, seq, _ in before.range()}
    assert after.entries_added == before.entries_added
    groups = after.groups[b"workers"], before.groups[b"workers"]
    assert dump_group(groups[0]) == dump_group(groups[1])
    check_stream(after)


def without_section(disk: FakeDisk, section: int) -> FakeDisk:
    """A section of the index and its copy are damaged."""
    summary = SnapshotReader(disk.read(BASE)).summary
    content = bytearray(disk.content(BASE))
    for offset in (summary.sections[section].offset, summary.copies[section] + CHUNK_HEADER_SIZE):
        content[offset + 9] ^= 0xFF
    changed = disk.copy()
    changed.put(BASE, bytes(content))
    return changed


def test_appends_after_a_lost_stream_are_kept(written: Written) -> None:
    """A section of the index is gone, with it the stream's name: the journals name it again."""
    for section in range(len(SnapshotReader(written.disk.read(BASE)).summary.sections)):
        disk = without_section(written.disk, section)
        report = check(disk)
        assert any("it is unknown which" in loss for loss in file_of(report, BASE).loses)
        mend(disk)
        again = entries_of(loads(disk))
        for key, ms in ((b"a", 31), (b"a", 32), (b"a", 33), (b"b", 6), (b"b", 7), (b"d", 6)):
            assert [one for one in again if one[:2] == (key, ms)], (key, ms)


def numbered_data() -> FakeDisk:
    """A stream in the base, and after it what a producer numbers."""
    disk, in_process = FakeDisk(), InProcessServer()
    player = in_process.player()
    seq = len(play(in_process, player, ["XADD a 1-1 f v"]))
    write_base(disk, BASE, in_process.keyspace, seq)
    lines = [f"TAPPENDONCE a PRODUCER p {number} f v{number}" for number in (1, 2, 3)]
    frames = [frame for line in lines for frame in play(in_process, player, [line])]
    write_journal(disk, FIRST, seq + 1, frames)
    store_manifest(disk, Manifest(BASE, (FIRST,), 5, DIRECTORY))
    return disk


def test_a_producer_keeps_its_numbers_after_a_lost_stream() -> None:
    disk = without_section(numbered_data(), 0)
    mend(disk)
    stream = loads(disk).databases[0].stream(b"a")
    assert stream is not None
    assert [words for _, _, words in stream.range()] == [[b"f", b"v%d" % n] for n in (1, 2, 3)]
    assert stream.producers is not None
    assert stream.producers.dump() == {b"p": 3}


def test_a_lost_frame_of_a_producer_is_reported() -> None:
    disk = numbered_data()
    content = bytearray(disk.content(FIRST))
    content[frame_starts(bytes(content))[0] + 30] ^= 0xFF
    disk.put(FIRST, bytes(content))
    (loss,) = file_of(check(disk), FIRST).loses
    assert loss.startswith("frame 2, at offset 128")


def test_a_repair_interrupted_anywhere_leaves_the_old_or_the_new(written: Written) -> None:
    chunks = SnapshotReader(written.disk.read(BASE)).summary.chunks
    damaged = {
        "base": (BASE, chunks[1].offset + 20),
        "journal": (FIRST, HEADER_SIZE + 28),
        "manifest": (NAME, 30),
    }
    for name, at in damaged.values():
        disk = flipped(written, name, at)
        mend(disk)
        repaired = state_of(loads(disk))
        for crash_at in step_numbers(written, name, at):
            broken = flipped(written, name, at)
            broken.crash_at = broken.steps + crash_at
            with pytest.raises(Crashed):
                mend(broken)
            for seed in range(4):
                left = broken.after_crash(seed)
                if check(left).verdict is Verdict.DAMAGED:
                    repair(left, check(left), CREATED_MS, FOLDER + "0")
                assert state_of(loads(left)) == repaired, (name, crash_at, seed)


def step_numbers(written: Written, name: str, at: int) -> Iterator[int]:
    """Every step that a repair takes."""
    disk = flipped(written, name, at)
    before = disk.steps
    mend(disk)
    yield from range(1, disk.steps - before + 1)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "keep"])
def test_a_repair_that_the_disk_refuses_changes_no_file(written: Written, operation: str) -> None:
    disk = flipped(written, FIRST, HEADER_SIZE + 28)
    before = {name: disk.content(name) for name in disk.names()}
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        mend(disk)
    disk.mend()
    after = {name: disk.content(name) for name in disk.names()}
    assert {name: after[name] for name in before} == before
    assert check(disk).verdict is Verdict.DAMAGED


def test_a_repair_counts_even_if_old_files_cannot_be_removed(written: Written) -> None:
    disk = flipped(written, FIRST, HEADER_SIZE + 28)
    disk.fail("remove", errno.EIO)
    done = mend(disk)
    assert any("could not be removed" in sentence for sentence in done)
    assert check(disk).verdict is Verdict.WHOLE


def test_a_missing_journal_loses_its_own_frames(written: Written) -> None:
    known = entries_of(loads(written.disk))
    for name, lines in FRAMES.items():
        disk = written.disk.copy()
        disk.remove(name)
        report = check(disk)
        assert report.verdict is Verdict.DAMAGED
        assert file_of(report, name).state == "missing"
        mend(disk)
        kept = entries_of(loads(disk))
        assert {(key, ms) for key, ms, _, _ in known - kept} == entries_in(lines)
        assert kept <= known


def test_a_stream_recreated_after_a_lost_frame_is_the_new_one(written: Written) -> None:
    in_process = InProcessServer()
    player = in_process.player()
    frames = [
        play(in_process, player, [line])
        for line in ("XADD s 1-1 f old", "DEL s", "XADD s 0-1 f new", "XADD t 1-1 f v")
    ]
    disk = FakeDisk()
    write_journal(disk, "journal-1.log", 1, [one for frame in frames for one in frame])
    store_manifest(disk, Manifest(None, ("journal-1.log",), 2, DIRECTORY))
    data = bytearray(disk.content("journal-1.log"))
    data[frame_starts(bytes(data))[1] + FRAME_SIZE + 1] ^= 1
    disk.put("journal-1.log", bytes(data))
    mend(disk)
    assert entries_of(loads(disk)) == {
        (b"s", 0, 1, (b"f", b"new")), (b"t", 1, 1, (b"f", b"v"))
    }  # fmt: skip


def test_all_frames_that_a_repair_keeps_are_counted(written: Written) -> None:
    """Those after the damage, too, and those of the later journals."""
    sound = [file_of(check(written.disk), name).holds for name in (FIRST, LAST)]
    disk = written.disk.copy()
    data = bytearray(disk.content(FIRST))
    frames = frame_starts(bytes(data))
    data[frames[1] + FRAME_SIZE + 5] ^= 1
    disk.put(FIRST, bytes(data))
    found = [file_of(check(disk), name).holds for name in (FIRST, LAST)]
    assert found == [
        f"{counted(len(frames) - 1, 'frame')} that can be read",
        f"{sound[1]} that can be read",
    ]


@pytest.mark.parametrize("count", [3, 600])
@pytest.mark.parametrize("trim", ["XTRIM s MAXLEN {}", "XTRIM s MINID {}-1", "TAPPEV s COUNT {}"])
def test_a_base_of_a_trimmed_stream_is_whole(count: int, trim: str) -> None:
    """The first block of the stream still has entries that were evicted."""
    in_process = InProcessServer()
    player = in_process.player()
    for number in range(1, count + 1):
        player.call(f"XADD s {number}-1 f v")
    player.call(trim.format(2))
    player.call("XADD deleted 1-1 f v")
    player.call("XADD deleted 2-1 f v")
    player.call("XDEL deleted 1-1")
    disk = FakeDisk()
    write_base(disk, BASE, in_process.keyspace, 1, compressed=False)
    store_manifest(disk, Manifest(BASE, (), 5, DIRECTORY))
    assert check(disk).verdict is Verdict.WHOLE


@pytest.mark.parametrize("meta", [{}, {"length": b"3"}, [3]])
def test_a_base_with_malformed_metadata_is_checked_to_its_end(
    written: Written, monkeypatch: pytest.MonkeyPatch, meta: Any
) -> None:
    monkeypatch.setattr(SnapshotReader, "meta", lambda reader, record: meta)
    assert file_of(check(written.disk, load=False), BASE).state == "ok"


# ---------------------------------------------------------------------------------------- blocks

BLOCK_ENTRIES = 8


def one_chunk_data(value: bytes = b"v") -> tuple[FakeDisk, set[Entry]]:
    """A base whose only chunk has 50 blocks of two streams, and a group with long metadata."""
    disk, in_process = FakeDisk(), InProcessServer()
    in_process.keyspace.node_entries = 2
    player = in_process.player()
    for number in range(1, 201):
        player.call(f"XADD a {number}-1 f {value.decode('latin-1')}{number}")
        player.call(f"XADD b {number}-0 f v{number}")
    for number in range(9):
        player.call(f"XGROUP CREATE a {'g' * 60}{number} 0")
    write_base(disk, BASE, in_process.keyspace, 1, compressed=False)
    store_manifest(disk, Manifest(BASE, (), 5, DIRECTORY))
    return disk, entries_of(loads(disk))


def repaired(disk: FakeDisk) -> Keyspace:
    repair(disk, check(disk), CREATED_MS, FOLDER)
    return loads(disk)


def test_a_changed_byte_of_a_chunk_costs_one_block_at_most() -> None:
    whole, known = one_chunk_data()
    reader = SnapshotReader(whole.read(BASE))
    (chunk,) = reader.summary.chunks
    (place,) = [one.meta_place for one in reader.records(0) if one.meta_place]
    _, offset, length, _ = place
    data = whole.content(BASE)
    for at in range(chunk.offset, chunk.offset + 16 + chunk.length, 61):
        disk = whole.copy()
        disk.put(BASE, data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        reported = [
            one for loss in file_of(check(disk), BASE).loses for one in reported_ranges(loss)
        ]
        keyspace = repaired(disk)
        lost = known - entries_of(keyspace)
        assert len(lost) <= BLOCK_ENTRIES, at
        assert entries_of(keyspace) <= known
        if lost:
            ((key, first, last),) = reported
            assert all(key == one[0] and first <= one[1:3] <= last for one in lost)
        stream = keyspace.databases[0].stream(b"a")
        assert stream is not None
        in_meta = offset <= at - chunk.offset - 16 < offset + length
        assert len(stream.groups) == (0 if in_meta else 9), at
        check_stream(stream)


@pytest.mark.parametrize("size", [1, 40, 512, 4096])
@pytest.mark.parametrize("how", ["zero", "missing"])
def test_the_last_4_kib_of_a_base_may_be_lost(size: int, how: str) -> None:
    disk, known = one_chunk_data()
    data = disk.content(BASE)[:-size] + (bytes(size) if how == "zero" else b"")
    disk.put(BASE, data)
    with pytest.raises(DamageError):
        loads(disk)
    report = check(disk)
    assert report.hopeless is None
    keyspace = repaired(disk)
    assert entries_of(keyspace) == known
    stream = keyspace.databases[0].stream(b"a")
    assert stream is not None
    assert len(stream.groups) == 9


def test_a_base_cut_within_its_last_chunk_keeps_earlier_chunks() -> None:
    disk, known = one_chunk_data()
    (chunk,) = SnapshotReader(disk.read(BASE)).summary.chunks
    disk.put(BASE, disk.content(BASE)[: chunk.offset + chunk.length // 2])
    kept = entries_of(repaired(disk))
    assert kept <= known
    assert len(known) * 0.25 < len(kept) < len(known) * 0.6


def test_a_block_in_a_value_is_not_read_as_a_block() -> None:
    """The block around it is damaged, so the rest is searched for blocks."""
    made = BlockWriter()
    assert made.append_entry(9, 9, [b"f", b"planted"], 2, 0)
    planted = made.freeze().to_bytes()
    keyspace = Keyspace()
    keyspace.node_entries = 2
    blocks = []
    for first in range(0, 80, 8):
        made = BlockWriter()
        for number in range(first, first + 8):
            assert made.append_entry(number + 1, 0, [b"f", b"v" + planted], 2, 0)
        blocks.append(made.freeze())
    meta = dump_stream(Stream(1))[0]
    meta.update(length=80, last_id=(80, 0), entries_added=80)
    StoredKeyspace(keyspace).restore(0, b"a", "stream", meta, blocks)
    disk = FakeDisk()
    write_base(disk, BASE, keyspace, 1, compressed=False)
    store_manifest(disk, Manifest(BASE, (), 5, DIRECTORY))
    known = entries_of(loads(disk))
    (chunk,) = SnapshotReader(disk.read(BASE)).summary.chunks
    data = bytearray(disk.content(BASE))
    data[chunk.offset + 16 + 9] ^= 1  # the first block's count
    disk.put(BASE, bytes(data))
    kept = entries_of(repaired(disk))
    assert kept <= known
    assert len(kept) == 72


def test_a_directory_without_its_base_is_not_repaired(written: Written) -> None:
    disk = written.disk.copy()
    disk.remove(BASE)
    before = {name: disk.content(name) for name in disk.names()}
    report = check(disk)
    assert report.hopeless is not None
    with pytest.raises(DataError, match=f"cannot be repaired: {BASE} is missing"):
        mend(disk)
    assert {name: disk.content(name) for name in disk.names()} == before


# ---------------------------------------------------------------------------------------- manifest


@pytest.mark.parametrize("gone", [True, False])
def test_journals_that_were_not_read_are_not_called_sound(written: Written, gone: bool) -> None:
    disk = written.disk.copy()
    if gone:
        disk.remove(BASE)
    else:
        disk.put(BASE, b"not a snapshot, and nothing of one is left " * 9)
    report = check(disk)
    assert report.hopeless
    assert {file_of(report, name).state for name in (FIRST, LAST)} == {"unread"}


def test_an_unreadable_manifest_is_not_repaired_to_an_empty_one() -> None:
    """Other programs call files so too, and a start with no data would look like a success."""
    disk = FakeDisk()
    disk.put(NAME, b"{}")
    disk.put("notes.txt", b"of another program")
    report = check(disk)
    assert report.verdict is Verdict.DAMAGED
    assert report.hopeless == "the directory has a manifest but no file of a server"
    with pytest.raises(
        DataError, match="cannot be repaired: the directory has a manifest but no file"
    ):
        mend(disk)
    assert disk.content(NAME) == b"{}"


def test_a_manifest_of_another_version_makes_no_file_unused(
    written: Written,
) -> None:
    disk = written.disk.copy()
    text = b"another title\nnext 9\n"
    disk.put(NAME, text + b"crc32 %08x\n" % zlib.crc32(text))
    disk.put("notes.txt", b"of another program")
    report = check(disk)
    assert report.verdict is Verdict.UNCHECKED
    assert {file.name: file.state for file in report.files} == {
        NAME: "unknown", BASE: "unjudged", FIRST: "unjudged", LAST: "unjudged",
        "notes.txt": "foreign",
    }  # fmt: skip


def test_a_lost_manifest_is_reconstructed_from_the_files(written: Written) -> None:
    before = load_manifest(written.disk)
    disk = written.disk.copy()
    disk.remove(NAME)
    assert guess_manifest(disk) == before
    disk.put(
        "journal-1.log", written.disk.content(FIRST)[:HEADER_SIZE]
    )  # older than the base, empty
    disk.put("base-7.msnap.tmp", b"unfinished")
    assert guess_manifest(disk) == before
    mend(disk)
    assert holds_all_but(disk, written, 0)


def test_journals_that_a_newer_base_replaced_do_not_count(written: Written) -> None:
    disk = written.disk.copy()
    flipped_base = SnapshotReader(disk.read(BASE)).summary.seq
    write_base(disk, "base-6.msnap", loads(written.disk), flipped_base + 8)
    disk.put("journal-6.log", disk.content(FIRST)[:HEADER_SIZE])
    disk.remove(NAME)
    assert guess_manifest(disk) == Manifest("base-6.msnap", ("journal-6.log",), 7, DIRECTORY)


def test_a_gap_between_the_files_leaves_a_lost_manifest_lost(written: Written) -> None:
    disk = written.disk.copy()
    disk.remove(NAME)
    disk.remove(FIRST)
    with pytest.raises(DataError, match=f"{LAST} begins with frame"):
        guess_manifest(disk)
    report = check(disk)
    assert report.verdict is Verdict.DAMAGED
    assert report.hopeless is not None
    with pytest.raises(DataError, match="cannot be repaired"):
        repair(disk, report, CREATED_MS, FOLDER)


def test_a_directory_with_only_journals_is_reported_too() -> None:
    written = write_small_data()
    disk = FakeDisk()
    for number, name in ((1, FIRST), (2, LAST)):
        disk.put(
            f"journal-{number}.log", renumbered(written.disk.content(name), 1 + (number - 1) * 3)
        )
    store_manifest(disk, Manifest(None, ("journal-1.log", "journal-2.log"), 3, DIRECTORY))
    before = load_manifest(disk)
    disk.remove(NAME)
    assert guess_manifest(disk) == before


def renumbered(data: bytes, seq: int) -> bytes:
    starts = [*frame_starts(data), len(data)]
    payloads = [data[start + FRAME_SIZE : end] for start, end in pairwise(starts)]
    return journal_bytes(payloads, seq)


@pytest.mark.parametrize("size", [96, 97, 150])
def test_a_base_without_any_index_is_not_loaded_as_empty(size: int) -> None:
    disk, _ = one_chunk_data()
    disk.put(BASE, disk.content(BASE)[:size])
    report = check(disk)
    assert report.hopeless is not None
    with pytest.raises(DataError, match="cannot be repaired"):
        repair(disk, report, CREATED_MS, FOLDER)


def many_sections() -> FakeDisk:
    """A base of many chunks and sections, and a journal that adds to each of its keys."""
    disk, in_process = FakeDisk(), InProcessServer()
    in_process.keyspace.node_entries = 2
    player = in_process.player()
    for key in range(40):
        for number in range(1, 6):
            player.call(f"XADD key{key:02} {number}-1 f v{number}")
    with small_parts():
        write_base(disk, BASE, in_process.keyspace, 1, compressed=False)
    payloads = play(in_process, player, [f"XADD key{key:02} 9-9 f v" for key in range(40)])
    write_journal(disk, LAST, 2, payloads)
    store_manifest(disk, Manifest(BASE, (LAST,), 5, DIRECTORY))
    assert len(SnapshotReader(disk.read(BASE)).summary.copies) > 10
    return disk


def test_the_losses_of_a_truncated_base_are_reported() -> None:
    whole = many_sections()
    known = entries_of(loads(whole))
    for place in SnapshotReader(whole.read(BASE)).summary.copies[1:]:
        disk = whole.copy()
        disk.put(BASE, whole.content(BASE)[:place])
        report = check(disk)
        loss = f"keys after offset {place}, if there were any: their number is unknown"
        assert loss in file_of(report, BASE).loses
        repair(disk, report, CREATED_MS, FOLDER)
        kept = entries_of(loads(disk))
        assert kept < known
        assert {one for one in known if one[1] == 9} <= kept  # what the journal holds


@pytest.mark.parametrize("at", [0, 5, 9, 13, 20])
def test_one_bad_part_of_an_endless_base_costs_no_later_part(at: int) -> None:
    whole = many_sections()
    known = entries_of(loads(whole))
    reader = SnapshotReader(whole.read(BASE))
    parts = [*reader.summary.copies, *(place.offset for place in reader.summary.chunks)]
    most = max(len(reader.records(n)) for n in range(len(reader.summary.sections))) * 5
    data = whole.content(BASE)
    for offset in parts:
        changed = bytearray(data[:-300] + bytes(300))
        changed[offset + at] ^= 0x40
        disk = whole.copy()
        disk.put(BASE, bytes(changed))
        report = check(disk)
        repair(disk, report, CREATED_MS, FOLDER)
        kept = entries_of(loads(disk))
        assert kept <= known
        assert len(known - kept) <= most, offset
        if kept != known:
            assert len(file_of(report, BASE).loses) > 1


def test_a_search_for_blocks_reads_each_piece_of_a_chunk_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    class Counting(salvage._BlockFinder[Block]):
        def __init__(
            self, block_type: type[Block], data: memoryview, high: tuple[int, int]
        ) -> None:
            searched.append(len(data))
            super().__init__(block_type, data, high)

    monkeypatch.setattr(salvage, "_BlockFinder", Counting)
    disk, _ = one_chunk_data()
    (chunk,) = SnapshotReader(disk.read(BASE)).summary.chunks
    data = bytearray(disk.content(BASE))
    data[chunk.offset + 16 + 9] ^= 1
    disk.put(BASE, bytes(data))
    check(disk)
    assert len(searched) == 2
    assert sum(searched) <= chunk.raw_length


def test_a_repaired_base_is_named_after_the_manifest_names_it(
    written: Written,
) -> None:
    seen = 0
    for crash_at in step_numbers(written, FIRST, 200):
        disk = flipped(written, FIRST, 200)
        disk.crash_at = disk.steps + crash_at
        with pytest.raises(Crashed):
            mend(disk)
        for seed in range(4):
            left = disk.after_crash(seed)
            if "base-5.msnap" in left.names():
                name = "manifest.tmp" if "manifest.tmp" in left.names() else NAME
                assert b"base base-5.msnap\n" in left.content(name), (crash_at, seed)
                seen += 1
    assert seen
