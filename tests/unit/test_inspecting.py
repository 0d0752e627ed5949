"""A directory is listed from its index alone or with its journals, and both agree with the data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.fakedisk import FakeDisk, FakeFile
from tests.support.in_process import InProcessServer
from tests.support.journals import DIRECTORY
from tests.support.small_data import (
    BASE,
    CREATED_MS,
    FIRST,
    LAST,
    Written,
    load,
    play,
    write_base,
    write_journal,
    write_small_data,
)

from millstream.errors import DamageError, DataError
from millstream.server.repair import checking
from millstream.server.repair import cli as tools
from millstream.server.repair.inspecting import Contents, Row, inspect_directory
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import Manifest, load_manifest, store_manifest
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.streams.stream import Stream


@pytest.fixture(autouse=True)
def few_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "DATABASES", 16)


@pytest.fixture(scope="module")
def written() -> Written:
    return write_small_data()


def inspect(
    disk: FakeDisk,
    *,
    journals: bool | None = None,
    pattern: bytes | None = None,
    limit: int = 1000,
) -> Contents:
    return inspect_directory(
        disk, journals=journals, pattern=pattern, limit=limit, now_ms=CREATED_MS
    )


def by_key(contents: Contents) -> dict[bytes, Row]:
    return {row.key: row for row in contents.rows}


def assert_is_row_of(row: Row, stream: Stream) -> None:
    assert (row.entries, row.last_id) == (len(stream), stream.last_id)
    assert (row.groups, row.blocks) == (len(stream.groups), stream.block_count)
    assert row.policy == ("" if stream.policy is None else "MAXLEN 100 EXACT")
    assert row.pending == sum(group.pending.count for group in stream.groups.values())


def test_a_small_directory_is_listed_with_its_journals(written: Written) -> None:
    contents = inspect(written.disk)
    assert contents.with_journals
    database = load(written.disk)[0].databases[0]
    rows = by_key(contents)
    assert set(rows) == {b"a", b"b", b"c", b"d", b"name"}
    for key in (b"a", b"b", b"c", b"d"):
        stream = database.stream(key)
        assert stream is not None
        assert (rows[key].entries, rows[key].last_id) == (len(stream), stream.last_id)
        assert rows[key].first_id == stream.first_id
    assert (rows[b"d"].policy, rows[b"a"].policy) == ("MAXLEN 100 EXACT", "")
    assert rows[b"a"].pending == 7
    assert (rows[b"name"].kind, rows[b"name"].size_bytes) == ("string", len("millstream"))
    assert [name for name, _ in contents.files] == [BASE, FIRST, LAST]


def test_the_index_alone_describes_the_base_in_the_same_way(written: Written) -> None:
    disk = written.disk.copy()
    store_manifest(disk, Manifest(BASE, (), 5, DIRECTORY))
    database = load(disk)[0].databases[0]
    contents = inspect(written.disk, journals=False)
    assert not contents.with_journals
    assert contents.created_ms == CREATED_MS
    rows = by_key(contents)
    for key in (b"a", b"b", b"c", b"d"):
        stream = database.stream(key)
        assert stream is not None
        assert_is_row_of(rows[key], stream)
        first = rows[key].first_id
        assert first is not None
        assert stream.first_id is not None
        assert first <= stream.first_id
    assert contents.keys == 5


def test_the_index_alone_reads_only_chunks_with_long_metadata(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = SnapshotReader(written.disk.read(BASE)).summary
    read: list[int] = []
    read_at = FakeFile.read_at

    def watched(self: FakeFile, offset: int, length: int) -> bytes:
        read.append(offset)
        return read_at(self, offset, length)

    monkeypatch.setattr(FakeFile, "read_at", watched)
    inspect(written.disk, journals=False)
    assert len({chunk.offset for chunk in summary.chunks} & set(read)) == 1


def test_a_pattern_and_a_limit_select_the_listed_streams(written: Written) -> None:
    for journals in (True, False):
        some = inspect(written.disk, journals=journals, pattern=b"[ab]", limit=1)
        assert [row.key for row in some.rows] == [b"a"]
        assert (some.matching, some.keys) == (2, 5)


def test_a_damaged_directory_is_refused_with_the_file(written: Written) -> None:
    disk = written.disk.copy()
    disk.put(BASE, disk.content(BASE)[:-1])
    for journals in (True, False):
        with pytest.raises(DamageError, match=BASE):
            inspect(disk, journals=journals)
    with pytest.raises(DataError, match="holds no data"):
        inspect(FakeDisk())


def test_files_that_a_server_replaced_meanwhile_are_found(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base goes between reading the manifest and reading the base, as in a rewrite."""
    disk = written.disk.copy()
    read = FakeDisk.read
    manifest = load_manifest(disk)
    assert manifest is not None

    def replaced(self: FakeDisk, name: str) -> FakeFile:
        if name == BASE:
            monkeypatch.setattr(FakeDisk, "read", read)
            disk.put("base-7.msnap", disk.content(BASE))
            store_manifest(disk, Manifest("base-7.msnap", manifest.journals, 8, DIRECTORY))
            raise FileNotFoundError(name)
        return read(self, name)

    monkeypatch.setattr(FakeDisk, "read", replaced)
    contents = inspect(disk)
    assert contents.files[0][0] == "base-7.msnap"
    assert contents.keys == 5


def test_a_missing_directory_is_reported_as_by_check(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    errors = {CliRunner().invoke(tool, [missing]).stderr for tool in (tools.inspect, tools.check)}
    assert errors == {
        f"millstream: cannot use the data directory {missing}: No such file or directory\n"
    }


def test_a_file_that_is_missing_is_named_in_a_sentence(written: Written) -> None:
    disk = written.disk.copy()
    disk.remove(LAST)
    with pytest.raises(DamageError, match=f"{LAST} is missing although manifest names it"):
        inspect(disk)


BEFORE_BASE = [
    "XADD plain 1-1 f v",
    "TCREATE s FLOOR 99999999999999.0",
    "TAPPEND s f seen",
    "TRESERVE s ann COUNT 2",
    "TRESERVE s bob",
    "TAPPEND s f held",
    "TCREATE end PARENTS far",
    "TSEAL end CHILDREN left right",
    "TMREAD 1 CLOCK STREAMS left 0",
]
AFTER_BASE = [
    "TCOMPLETE s bob 99999999999999.4 f held",
    "TAPPEND s f more",
    "TCREATE new PARENTS s",
]


@pytest.fixture
def with_reservations() -> FakeDisk:
    """A base, and a journal after it, that have reservations, held entries and lineage."""
    disk, server = FakeDisk(), InProcessServer()
    player = server.player()
    seq = len(play(server, player, BEFORE_BASE))
    write_base(disk, BASE, server.keyspace, seq)
    write_journal(disk, LAST, seq + 1, play(server, player, AFTER_BASE))
    store_manifest(disk, Manifest(BASE, (LAST,), 5, DIRECTORY))
    return disk


def test_held_entries_are_shown_from_the_index_alone(
    with_reservations: FakeDisk,
) -> None:
    rows = by_key(inspect(with_reservations, journals=False))
    assert rows[b"plain"].ordering is None
    shown = rows[b"s"].ordering
    assert shown is not None
    high = 99999999999999
    assert (rows[b"s"].entries, rows[b"s"].last_id) == (1, (high, 1))
    assert (shown.reservations, shown.oldest_reservation) == (3, (high, 2))
    assert (shown.held, shown.handed_out_id, shown.writers) == (1, (high, 5), 2)
    assert shown.held_bytes > 0
    end, left = rows[b"end"].ordering, rows[b"left"].ordering
    assert end is not None
    assert (end.sealed, end.parents, end.children) == (True, [b"far"], [b"left", b"right"])
    assert left is not None
    assert (left.sealed, left.parents, left.followed) == (False, [b"end"], True)


def test_reservations_settled_in_a_journal_are_shown_as_settled(
    with_reservations: FakeDisk,
) -> None:
    rows = by_key(inspect(with_reservations))
    shown, new = rows[b"s"].ordering, rows[b"new"].ordering
    assert shown is not None
    assert (shown.reservations, shown.held, shown.handed_out_id[1]) == (2, 3, 6)
    assert new is not None
    assert new.parents == [b"s"]
    alone = by_key(inspect(with_reservations, journals=False))
    for key in (b"end", b"left", b"right"):
        assert rows[key] == alone[key]


def test_the_programs_accept_a_directory_with_reservations(
    with_reservations: FakeDisk, tmp_path: Path
) -> None:
    for name in with_reservations.names():
        (tmp_path / name).write_bytes(with_reservations.content(name))
    table = CliRunner().invoke(tools.inspect, [str(tmp_path)]).stdout
    assert "2 reserved from 99999999999999-2; 3 held (" in table
    assert "sealed; parents far; children left, right" in table
    rows = json.loads(CliRunner().invoke(tools.inspect, [str(tmp_path), "--json"]).stdout)["rows"]
    (shown,) = [row["ordering"] for row in rows if row["key"] == "s"]
    assert shown["handed_out_id"] == "99999999999999-6"
    assert shown["oldest_reservation"] == "99999999999999-2"
    checked = CliRunner().invoke(tools.check, [str(tmp_path)])
    assert checked.exit_code == 0, checked.stdout


@pytest.mark.parametrize("base", [BASE, None])
def test_a_list_without_the_journals_says_so_first(
    written: Written, tmp_path: Path, base: str | None
) -> None:
    for name in written.disk.names():
        (tmp_path / name).write_bytes(written.disk.content(name))
    if base is None:
        disk = SystemDisk(tmp_path)
        old = load_manifest(disk)
        store_manifest(disk, Manifest(None, old.journals, old.next_number, old.directory))
    lines = CliRunner().invoke(tools.inspect, [str(tmp_path), "--no-journal"]).stdout.splitlines()
    assert lines[0].startswith("incomplete: ")
    assert ("there is no snapshot" in lines[0]) == (base is None)
    assert "--journal" in lines[0]
    assert any(line.endswith(" in the last snapshot") for line in lines) == (base is not None)
