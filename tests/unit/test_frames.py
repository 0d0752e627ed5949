"""Frames have times, are listed with what they change, and any of them can be the last one of a new
data directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from errno import EPIPE
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.data_directory import cut_end, flip
from tests.support.in_process import InProcessServer
from tests.support.journals import DIRECTORY, as_resp
from tests.support.small_data import (
    CREATED_MS,
    State,
    load,
    play,
    state_of,
    write_base,
    write_journal,
)
from tests.unit.test_persistence import new_world

from millstream.commands.runtime.effects import apply_effects, keys_of
from millstream.commands.table.loader import load_table
from millstream.server.repair.cli import check
from millstream.server.repair.frames import Frame
from millstream.server.repair.frames_cli import _keys, frames
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.frame_times import encode_line, encode_time, time_of
from millstream.storage.files.journal_reader import JournalReader
from millstream.storage.files.manifest import Manifest, store_manifest
from millstream.storage.keyspace.keyspace import Keyspace

BASE_S = CREATED_MS // 1000
BASE, FIRST, LAST = "base-3.msnap", "journal-3.log", "journal-4.log"
LINES = [
    "XADD orders 3-1 f v",
    "SET name millstream",
    "XTRIM orders MAXLEN 0",
    "XADD orders 4-1 f v",
    "DEL orders",
    "FLUSHALL",
    "XADD late 5-1 f v",
]
TIMES = [5, 5, 6, 8, 8, 9, 12]  # seconds after the base; only changes are in the journal


@dataclass
class Data:
    """A directory with a base up to frame `base_seq`, and the state after each later frame."""

    path: Path
    base_seq: int
    states: dict[int, State]

    def state(self, directory: Path) -> State:
        return state_of(load(SystemDisk(directory))[0])  # type: ignore[arg-type]


def write_data(path: Path, times: list[int] | None, gone_first: bool = False) -> Data:
    path.mkdir()
    disk, in_process = SystemDisk(path), InProcessServer()
    in_process.keyspace.node_entries = 2
    player = in_process.player()
    seq = base_seq = len(play(in_process, player, ["XADD orders 1-1 f v", "XADD orders 2-1 f v"]))
    write_base(disk, BASE, in_process.keyspace, seq)  # type: ignore[arg-type]
    states = {seq: state_of(in_process.keyspace)}
    payloads: list[bytes] = []
    before: int | None = None
    for number, line in enumerate(LINES):
        (payload,) = play(in_process, player, [line])
        if times is not None and times[number] != before:
            before = times[number]
            payload = encode_time(BASE_S + before) + payload
        payloads.append(payload)
        seq += 1
        states[seq] = state_of(in_process.keyspace)
    write_journal(disk, FIRST, base_seq + 1, payloads[:3])  # type: ignore[arg-type]
    write_journal(disk, LAST, base_seq + 4, payloads[3:])  # type: ignore[arg-type]
    store_manifest(disk, Manifest(BASE, (FIRST, LAST), 5, DIRECTORY))
    return Data(path, base_seq, states)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return write_data(tmp_path / "data", TIMES)


def run(command: object, *words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])  # type: ignore[arg-type]


def iso(second: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(BASE_S + second, UTC).isoformat()


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


# ---------------------------------------------------------------- times in the journal


def test_the_journal_has_a_time_once_in_a_second_with_frames() -> None:
    world = new_world()
    for pause_ms in (0, 300, 400, 400, 5000, 100):
        world.loop.advance(pause_ms)
        world.write_tick()
    world.settle()
    file = world.disk.read("journal-1.log")
    found = [time_of(payload) for *_, payload in JournalReader([file], 1).frames()]
    first = found[0]
    assert first is not None
    assert [None if one is None else one - first for one in found] == [0, None, None, 1, 6, None]
    size = file.size
    for _ in range(5):
        world.second()
    assert file.size == size, "a server without writes has written something"


def test_a_new_journal_begins_with_a_time() -> None:
    world = new_world()
    world.write_tick()
    world.persistence.snapshots.rewrite()
    world.settle()
    world.write_tick()
    world.settle()
    file = world.disk.read(world.persistence.files.manifest.journals[-1])
    assert [time_of(payload) is None for *_, payload in JournalReader([file], 2).frames()] == [
        False
    ]


def test_a_received_frame_is_recorded_as_it_is() -> None:
    world = new_world()
    payload = encode_time(1) + b"NOP\r\n"
    world.persistence.commits.commit_received(payload)
    world.persistence.commits.commit_received(b"NOP\r\n")
    world.settle()
    file = world.disk.read("journal-1.log")
    assert [found for *_, found in JournalReader([file], 1).frames()] == [payload, b"NOP\r\n"]


def test_a_time_changes_no_data() -> None:
    assert apply_effects(Keyspace(), encode_time(BASE_S)) == 0
    for form in (bytes, as_resp):
        time = form(encode_time(7))
        assert time_of(form(encode_line(b"0" * 40, 1)) + time) == 7
        assert time_of(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$31\r\n" + time + b"\r\n") is None
        assert time_of(b"\x24\x02\x03a" + bytes([2 + len(time)]) + time) is None


# ---------------------------------------------------------------- the list


def listed(*words: object) -> list[dict[str, object]]:
    result = run(frames, *words, "--json")
    assert result.exit_code in (0, 1), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_frames_are_listed_with_times_effects_and_keys(data: Data) -> None:
    rows = listed(data.path)
    assert [row["frame"] for row in rows] == list(range(3, 10))
    assert [row["unix_time"] for row in rows] == [BASE_S + second for second in TIMES]
    assert [row["effects"] for row in rows] == [
        {"APPEND": 1}, {"SET": 1}, {"EVICT": 1}, {"APPEND": 1}, {"DEL": 1}, {"FLUSHALL": 1},
        {"STREAM": 1, "APPEND": 1},
    ]  # fmt: skip
    assert [row["entries_added"] for row in rows] == [1, 0, 0, 1, 0, 0, 1]
    assert rows[0]["keys"] == [{"database": 0, "key": "orders"}]
    assert rows[5]["all_databases"] is True
    lines = run(frames, data.path).stdout.splitlines()
    assert len(lines) == 7
    assert "FLUSHALL" in lines[5]


def test_a_list_into_a_closed_pipe_ends_without_a_message(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[object] = []

    def close(text: object, err: bool = False) -> None:
        if not err:
            raise BrokenPipeError(EPIPE, "Broken pipe")
        complaints.append(text)

    monkeypatch.setattr("millstream.server.repair.frames_cli.click.echo", close)
    result = run(frames, data.path)
    assert (result.exit_code, complaints) == (1, [])


def test_the_empty_key_is_shown() -> None:
    assert _keys(Frame(1, None, FIRST, 1, keys={(0, b""): set(), (1, b""): set()})) == (
        '"", "" of database 1'
    )


def test_frames_are_selected_by_number_time_and_key(data: Data) -> None:
    def numbers(*words: object) -> list[object]:
        return [row["frame"] for row in listed(data.path, *words)]

    assert numbers("--from", 5, "--to", 7) == [5, 6, 7]
    assert numbers("--from", iso(6), "--to", iso(8)) == [5, 6, 7]
    assert numbers("--key", "na*") == [4, 8], "a flush changes every key"
    assert run(frames, data.path, "--from", "yesterday").exit_code == 2


def test_a_list_continues_after_damage_and_ends_at_a_torn_end(data: Data) -> None:
    whole = (data.path / FIRST).read_bytes()
    flip(data.path / FIRST, whole.index(b"millstream"))
    cut_end(data.path / LAST, 5)
    rows = listed(data.path)
    assert [row.get("frame", row.get("first")) for row in rows] == list(range(3, 10))
    assert [number for number, row in enumerate(rows) if "unreadable" in row] == [1, 6]
    assert run(frames, data.path).exit_code == 1


def test_a_frame_after_a_gap_has_no_time_of_a_frame_before_it(data: Data) -> None:
    flip(data.path / LAST, (data.path / LAST).read_bytes().index(encode_time(BASE_S + 8)))
    times = [row.get("unix_time", "gap") for row in listed(data.path)]
    assert times[3:6] == ["gap", None, BASE_S + 9]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ([b"TRESTORE", b"a", b"b", b"1", b"state"], [(3, b"a"), (3, b"b")]),
        ([b"RENAME", b"a", b"5", b"b"], [(3, b"a"), (5, b"b")]),
        ([b"COPY", b"a", b"5", b"b"], [(3, b"a"), (5, b"b")]),
        ([b"DEL", b"a", b"b"], [(3, b"a"), (3, b"b")]),
        ([b"SWAPDB", b"1", b"2"], []),
        ([b"CLOCK", b"1"], []),
        ([b"UNKNOWN", b"a"], [(3, b"a")]),
        ([b"FLUSHALL"], []),
    ],
)
def test_an_effect_states_its_keys(words: list[bytes], keys: list[tuple[int, bytes]]) -> None:
    load_table()
    assert keys_of(3, words) == keys


def test_the_directory_of_an_earlier_moment_is_private(data: Data, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert run(check, data.path, "--until", 5, "--to", new, "--no-load").exit_code == 0
    assert new.stat().st_mode & 0o777 == 0o700
    assert "lock" not in os.listdir(new)
    assert not (tmp_path / "new.partial").exists()


def test_a_list_is_made_while_files_are_replaced(data: Data) -> None:
    disk = SystemDisk(data.path)
    read, failed = disk.read, []

    def race(name: str) -> object:
        if name == FIRST and not failed:
            failed.append(name)
            (data.path / FIRST).rename(data.path / "journal-5.log")
            manifest = Manifest(BASE, ("journal-5.log", LAST), 6, DIRECTORY)
            store_manifest(disk, manifest)
        return read(name)

    from millstream.server.repair.frames import open_data, read_frames

    disk.read = race  # type: ignore[method-assign, assignment]
    with open_data(disk) as found:
        assert len(list(read_frames(found))) == len(LINES)
    assert failed


# ---------------------------------------------------------------- an earlier moment


def test_every_frame_can_be_the_last_one(data: Data, tmp_path: Path) -> None:
    before = files_of(data.path)
    for number, state in data.states.items():
        target = tmp_path / f"until-{number}"
        loads = [] if number == 5 else ["--no-load"]
        result = run(check, data.path, "--until", number, "--to", target, "--json", *loads)
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert report["verdict"] == "whole"
        assert report["restored"]["last"] == number
        assert report["restored"]["frames_left_out"] == 9 - number
        assert data.state(target) == state
    assert files_of(data.path) == before, "the old directory was changed"


@pytest.mark.parametrize(
    ("second", "number"), [(0, 2), (4, 2), (5, 4), (6, 5), (7, 5), (8, 7), (9, 8), (99, 9)]
)
def test_a_time_keeps_everything_up_to_its_end(
    data: Data, tmp_path: Path, second: int, number: int
) -> None:
    result = run(check, data.path, "--until", iso(second), "--to", tmp_path / "new", "--no-load")
    assert result.exit_code == 0, result.output
    assert data.state(tmp_path / "new") == data.states[number]


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["FLUSHALL"], 7),
        (["flushall", "--key", "orders"], 7),
        (["DEL"], 6),
        (["EVICT", "--key", "ord*"], 4),
        (["APPEND", "--key", "orders"], 5),
    ],
)
def test_an_effect_names_the_moment_before_it(
    data: Data, tmp_path: Path, words: list[str], number: int
) -> None:
    result = run(check, data.path, "--before", *words, "--to", tmp_path / "new", "--no-load")
    assert result.exit_code == 0, result.output
    assert data.state(tmp_path / "new") == data.states[number]
    assert f"kept: everything up to frame {number} " in result.stdout
    assert "left out: " in result.stdout


def write_lines(path: Path, lines: list[str | list[str]]) -> Path:
    """A directory without a base; each line, or list of lines, is a frame."""
    path.mkdir()
    disk, in_process = SystemDisk(path), InProcessServer()
    player = in_process.player()
    frames_of_lines = [[one] if isinstance(one, str) else one for one in lines]
    payloads = [b"".join(play(in_process, player, frame)) for frame in frames_of_lines]
    write_journal(disk, FIRST, 1, payloads)  # type: ignore[arg-type]
    store_manifest(disk, Manifest(None, (FIRST,), 4, DIRECTORY))
    return path


FOUR = [f"XADD a {number}-1 f v" for number in (1, 2, 3, 4)]
POLICY = "TPOLICY a MAXLEN 100 EXACT"


@pytest.mark.parametrize(
    ("lines", "words", "number"),
    [
        ([FOUR, ["TPOLICY a MAXLEN 3 EXACT"], "XADD b 1-1 f v", "XTRIM a MAXLEN 2",
          "XTRIM a MAXLEN 1"], ["EVICT", "--key", "a"], 1),
        ([FOUR, POLICY, "XTRIM a MAXLEN 2"], ["EVICT", "--key", "a"], 1),
        ([FOUR, POLICY, "XADD a 5-1 f v", "XTRIM a MAXLEN 2"], ["EVICT", "--key", "a"], 3),
        ([FOUR, "XTRIM a MAXLEN 3", POLICY, "XTRIM a MAXLEN 1"], ["POLICY", "--key", "a"], 2),
        ([FOUR, "TPOLICY a MAXLEN 3 EXACT", "XTRIM a MAXLEN 1", "TPOLICY a MAXLEN 9 EXACT"],
         ["POLICY", "--key", "a"], 1),
        ([FOUR, "XDEL a 1-1", "XADD b 1-1 f v", "XDEL a 2-1", "XDEL a 3-1"],
         ["XDEL", "--key", "a"], 1),
        ([["XADD a 1-1 f v", "XADD b 1-1 f v"], "XDEL a 1-1", ["XADD a 2-1 f v", "XDEL b 1-1"]],
         ["XDEL", "--key", "a"], 1),
    ],
    ids=["slices", "policy-before", "policy-earlier", "policy", "undone", "xdel", "another-key"],
)  # fmt: skip
def test_a_mistake_in_several_frames_is_left_out_as_a_whole(
    tmp_path: Path, lines: list[str | list[str]], words: list[str], number: int
) -> None:
    path = write_lines(tmp_path / "data", lines)
    result = run(check, path, "--before", *words, "--to", tmp_path / "new", "--no-load")
    assert result.exit_code == 0, result.output
    assert f"kept: everything up to frame {number} " in result.stdout


FLUSH = b"*1\r\n$8\r\nFLUSHALL\r\n"


def add_frames(path: Path, payloads: list[bytes]) -> None:
    disk = SystemDisk(path)
    old = [payload for *_, payload in JournalReader([disk.read(FIRST)], 1).frames()]
    (path / FIRST).unlink()
    write_journal(disk, FIRST, 1, [*old, *payloads])  # type: ignore[arg-type]


def test_a_flush_of_nothing_is_not_the_mistake(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data", ["SET a 1", "FLUSHALL"])
    add_frames(path, [FLUSH, FLUSH])
    result = run(check, path, "--before", "FLUSHALL", "--to", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert "kept: everything up to frame 1 " in result.stdout
    assert f"{tmp_path / 'new'} has 1 key with 0 entries" in result.stdout


def test_a_flush_without_keys_is_not_recorded() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    assert play(in_process, player, ["FLUSHALL", "FLUSHDB"]) == []
    lines = ["SET a 1", "FLUSHALL", "FLUSHALL", "SET a 1", "FLUSHDB", "FLUSHDB"]
    assert len(play(in_process, player, lines)) == 4


def test_an_earlier_effect_and_an_empty_result_are_warned_of(tmp_path: Path) -> None:
    lines: list[str | list[str]] = ["SET a 1", "FLUSHALL", "SET a 2", "DEL a", "SET b 3", "DEL b"]
    path = write_lines(tmp_path / "data", lines)
    result = run(check, path, "--before", "DEL", "--to", tmp_path / "new")
    assert "warning: frame 4 begins an earlier run with DEL" in result.stdout
    result = run(check, path, "--until", 4, "--to", tmp_path / "empty")
    assert f"warning: {tmp_path / 'empty'} is empty" in result.stdout
    result = run(check, path, "--before", "UNLINK", "--to", tmp_path / "none")
    assert result.exit_code == 2
    assert "DEL" in result.output


def test_a_flush_of_one_database_is_found_by_its_number(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data", ["SET a 1", "FLUSHDB", "SET a 2"])
    words = ["--before", "FLUSHDB", "--to", tmp_path / "new", "--no-load", "--db"]
    assert run(check, path, *words, 1).exit_code == 2
    result = run(check, path, *words, 0)
    assert "kept: everything up to frame 1 " in result.stdout, result.output


def test_a_clock_that_went_back_is_reported(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", [5, 6, 9, 3, 4, 5, 6])
    result = run(check, data.path, "--until", iso(6), "--to", tmp_path / "new", "--no-load")
    assert result.exit_code == 0, result.output
    assert data.state(tmp_path / "new") == data.states[4], "not up to the first later frame"
    assert "the clock went back: frame 6," in result.stdout


@pytest.mark.parametrize(
    ("words", "words_of_error"),
    [
        (["--until", "1"], "the earliest moment in these files is frame 2"),
        (["--until", iso(-1)], "look for a backup"),
        (["--until", "10"], "the last one is 9"),
        (["--before", "SWAPDB"], "no frame has the effect SWAPDB"),
        (["--before", "DEL", "--key", "other"], "on such a key"),
        (["--until", "3", "--before", "DEL"], "exclude each other"),
        (["--until", "3", "--repair"], "never do"),
        (["--key", "a"], "need --until or --before"),
    ],
)
def test_a_moment_that_is_not_there_writes_nothing(
    data: Data, tmp_path: Path, words: list[str], words_of_error: str
) -> None:
    result = run(check, data.path, *words, "--to", tmp_path / "new", "--no-load")
    assert result.exit_code == 2
    assert words_of_error in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "new").exists()


def test_frames_without_times_need_a_number(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", None)
    result = run(check, data.path, "--until", iso(5), "--to", tmp_path / "new", "--no-load")
    assert result.exit_code == 2
    assert "give the number of a frame" in result.output
    assert run(check, data.path, "--until", 5, "--to", tmp_path / "new", "--no-load").exit_code == 0


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch], ids=["directory", "file"])
def test_a_directory_that_is_not_empty_is_refused(
    data: Data, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    target = tmp_path / "new"
    make(target)
    if target.is_dir():
        (target / "file").touch()
    for where in (target, data.path / "new", data.path):
        result = run(check, data.path, "--until", 5, "--to", where)
        assert result.exit_code == 2
        assert str(where) in result.output
    assert sorted(data.path.iterdir()) == [
        data.path / name for name in (BASE, FIRST, LAST, "manifest")
    ]


def test_damage_before_the_moment_is_refused_and_after_it_not(data: Data, tmp_path: Path) -> None:
    flip(data.path / LAST, 200)
    result = run(check, data.path, "--until", 7, "--to", tmp_path / "new", "--no-load")
    assert result.exit_code == 2
    assert f"{LAST} is damaged at offset" in result.output
    assert not (tmp_path / "new").exists()
    assert run(check, data.path, "--until", 5, "--to", tmp_path / "new", "--no-load").exit_code == 0
    assert data.state(tmp_path / "new") == data.states[5]


def test_a_failed_copy_leaves_nothing(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "new")

    monkeypatch.setattr("millstream.server.repair.restoring.store_manifest", fail)
    result = run(check, data.path, "--until", 5, "--to", tmp_path / "new", "--no-load")
    assert result.exit_code == 2
    assert "No space left on device" in result.output
    assert not (tmp_path / "new").exists()
