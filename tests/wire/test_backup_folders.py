"""Backups of a data directory, dated backups, and restoring: `millstream backup` and `restore`
without a server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.server import Server
from tests.wire.test_backup import digest, failed, write_everything
from tests.wire.test_tools import run, url_of

from millstream.server.backup.backup_cli import Outcome
from millstream.server.backup.kept_backups import cut_off, new_destination, remove_old
from millstream.server.repair.checking import Checker
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.journal_format import ID_SIZE
from millstream.storage.files.manifest import Manifest, store_manifest

NewServer = Callable[..., Server]


@pytest.fixture
def stopped(new_server: NewServer) -> tuple[Path, object]:
    """A data directory without a server, with a torn end, and the digest of its data."""
    server = new_server("data").start()
    with server.client() as client:
        write_everything(client)
        server.rewrite_journal()
        client.call("XADD", "s", "*", "n", "last")
    before = digest(server)
    server.kill()
    with (server.directory / "journal-2.log").open("ab") as journal:
        journal.write(b"\x05")
    return server.directory, before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_directory_is_copied_and_restored(
    new_server: NewServer, stopped: tuple[Path, object], tmp_path: Path
) -> None:
    source, before = stopped
    files = contents(source)
    done = run("backup", str(source), str(tmp_path / "backup"))
    assert done.returncode == 0, done.stderr
    assert contents(source) == files
    assert "describes the backup" in run("check", str(tmp_path / "backup")).stdout
    backed_up = contents(tmp_path / "backup")
    (tmp_path / "new").mkdir(mode=0o750)
    done = run("restore", str(tmp_path / "backup"), str(tmp_path / "new"), "--json")
    assert json.loads(done.stdout)["keys"] == 3
    assert contents(tmp_path / "backup") == backed_up
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o750
    assert digest(new_server("new").start()) == before


def on_a_terminal(*words: str | Path) -> bytes:
    """The output of a command on a terminal, with its errors and progress."""
    shown, terminal = os.openpty()
    try:
        command = [sys.executable, "-m", "millstream", *map(str, words)]
        with subprocess.Popen(command, stdout=terminal, stderr=terminal) as program:
            os.close(terminal)
            found = b""
            with suppress(OSError):  # all of it was read, and the program has ended
                while data := os.read(shown, 65536):
                    found += data
        assert program.returncode == 0, found
        return found
    finally:
        os.close(shown)


def test_a_terminal_shows_the_progress(stopped: tuple[Path, object], tmp_path: Path) -> None:
    source, _ = stopped
    shown = on_a_terminal("backup", source, tmp_path / "backup")
    assert shown.index(b"copying backup") < shown.index(b"checking backup")
    shown = on_a_terminal("restore", tmp_path / "backup", tmp_path / "new")
    assert shown.index(b"checking backup") < shown.index(b"copying new")


def test_a_restore_replaces_nothing(stopped: tuple[Path, object], tmp_path: Path) -> None:
    source, _ = stopped
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    done = run("restore", str(source), str(tmp_path / "full"))
    assert "is not empty" in failed(done, Outcome.DESTINATION)
    assert os.listdir(tmp_path / "full") == ["mine"]


def test_a_damaged_backup_is_not_restored(stopped: tuple[Path, object], tmp_path: Path) -> None:
    source, _ = stopped
    base = source / "base-2.msnap"
    data = bytearray(base.read_bytes())
    data[len(data) // 2] ^= 1
    base.write_bytes(data)
    done = run("restore", str(source), str(tmp_path / "new"))
    assert "is damaged" in failed(done, Outcome.DAMAGED)
    done = run("backup", str(source), str(tmp_path / "new"))
    assert "is damaged" in failed(done, Outcome.DAMAGED)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.partial").exists()


def test_a_backup_that_is_cut_off_is_not_restored(
    stopped: tuple[Path, object], tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    done = run("backup", str(stopped[0]), str(backup))
    assert "1 bytes after the last whole frame" in done.stderr
    assert "time unknown; without a torn end of 1 bytes" in done.stdout
    done = run("restore", str(backup), str(backup / "inside"))
    assert "choose a folder outside it" in failed(done, Outcome.DESTINATION)
    done = run("restore", str(backup), "--stream", "s", "--url", "redis://127.0.0.1:1")
    assert "restored nothing" in failed(done, Outcome.REFUSED)
    journal = next(backup.glob("journal-*.log"))
    os.truncate(journal, journal.stat().st_size - 1)
    for arguments in (["restore"], ["backup"], ["restore", "--stream", "s"]):
        place = [] if "--stream" in arguments else [str(tmp_path / "new")]
        done = run(arguments[0], str(backup), *place, *arguments[1:])
        assert "is not the whole backup" in failed(done, Outcome.DAMAGED)


def test_a_directory_in_use_is_refused(server: Server, tmp_path: Path) -> None:
    server_directory = str(server.directory)
    for program in ("backup", "restore"):
        done = run(program, server_directory, str(tmp_path / "copy"))
        assert "is used by a server" in failed(done, Outcome.REFUSED)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run("backup", str(empty), str(tmp_path / "copy"))
    assert "holds no data of a server" in failed(done, Outcome.REFUSED)
    done = run("restore", str(tmp_path / "none"), str(tmp_path / "copy"))
    assert "No such file or directory" in failed(done, Outcome.REFUSED)
    assert os.listdir(tmp_path) == ["empty"]


def test_only_the_newest_backups_are_kept(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "backups"

    def again(keep: int) -> list[str]:
        options = ["--keep", str(keep), "--check", "none", "--json"]
        done = run("backup", str(folder), *options, url=url_of(server))
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert Path(facts["path"]).is_dir()
        return list(facts["removed"])

    assert (again(2), again(2)) == ([], [])
    first, second = sorted(os.listdir(folder), key=lambda name: name.split("-")[1:])
    # Nothing else is touched: other files, a folder that is no backup, a copy of a backup.
    (folder / "notes").write_text("mine")
    (folder / "millstream-20200101T000000Z").mkdir()
    (folder / "millstream-20200101T000000Z/mine").touch()
    shutil.copytree(folder / first, folder / "my-copy")
    (folder / f"{second}.partial").mkdir()
    assert again(2) == [first]
    left = set(os.listdir(folder))
    assert {"notes", "millstream-20200101T000000Z", "my-copy", second} < left
    assert len(left) == 5
    with (folder / second / "manifest").open("ab") as manifest:
        manifest.write(b" ")
    done = run("backup", str(folder), "--keep", "1", url=url_of(server))
    assert f"{second} is kept: its files have changed since it was made" in done.stderr
    assert done.returncode == 0
    assert (folder / second).is_dir()


def test_a_failed_backup_removes_no_older_one(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    assert run("backup", str(folder), "--keep", "1", url=url_of(server)).returncode == 0
    before = os.listdir(folder)
    with server.client() as client:
        client.call("ACL", "SETUSER", "u", "on", ">p")
    url = f"redis://u:p@127.0.0.1:{server.port}"
    assert run("backup", str(folder), "--keep", "1", url=url).returncode == Outcome.REFUSED
    assert os.listdir(folder) == before


def test_a_backup_that_differs_from_its_description_is_refused(
    server: Server, tmp_path: Path
) -> None:
    with server.client() as client:
        client.call("XADD", "s", "*", "n", "1")
    backup, new = tmp_path / "backup", tmp_path / "new"
    assert run("backup", str(backup), url=url_of(server)).returncode == 0
    description = backup / "backup.json"
    facts = json.loads(description.read_text())
    assert run("check", str(backup)).returncode == 0
    for name in ("last_frame", "keys", "entries"):
        description.write_text(json.dumps({**facts, name: facts[name] + 1}))
        done = run("check", str(backup))
        assert done.returncode == 1
        assert f"{name.replace('_', ' ')} {facts[name]}, and backup.json states" in done.stdout
        words = failed(run("restore", str(backup), str(new)), Outcome.DAMAGED)
        assert "is not the backup that backup.json describes" in words
    description.write_text(json.dumps({**facts, "files": {**facts["files"], "journal-9.log": 1}}))
    assert "journal-9.log is missing" in run("check", str(backup)).stdout
    assert run("check", "--repair", str(backup)).returncode == 1
    assert not new.exists()


_FACTS = '{"files": {"manifest": 1}, '


@pytest.mark.parametrize(
    "contents",
    [
        "{",
        "[" * 200_000,
        '{"files": {}}',
        '{"files": {"manifest": "1"}}',
        '{"files": {"manifest": -1}}',
        '{"files": {"manifest": true}}',
        _FACTS + '"time": 5}',
        _FACTS + '"entries": "200"}',
    ],
)
def test_a_damaged_description_is_reported(tmp_path: Path, contents: str) -> None:
    (tmp_path / "backup.json").write_text(contents)
    _require_unreadable(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_description_that_is_no_file_is_reported(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "backup.json")
    _require_unreadable(tmp_path)


def _require_unreadable(folder: Path) -> None:
    store_manifest(SystemDisk(folder), Manifest(None, (), 1, b"i" * ID_SIZE))
    report = Checker(SystemDisk(folder), 0, lambda done, total: None).run(load=False)
    (file,) = (file for file in report.files if file.name == "backup.json")
    assert file.places[0].reason.startswith("backup.json cannot be read: ")
    assert "backup.json cannot be read" in str(cut_off(folder))


def test_a_backup_with_a_damaged_description_is_kept(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        folder = tmp_path / f"millstream-2026010{day}T000000Z"
        folder.mkdir()
        (folder / "manifest").write_text("x")
        (folder / "backup.json").write_text('{"files": {"manifest": 1}}' if day > 1 else "[")
    removed, (note,) = remove_old(tmp_path, 1)
    assert removed == ["millstream-20260102T000000Z"]
    assert "millstream-20260101T000000Z is kept: backup.json cannot be read" in note


def test_files_of_another_backup_are_refused(server: Server, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for backup in (old, new):
        with server.client() as client:
            client.call("XADD", "s", "*", "n", "1")
        assert run("backup", str(backup), url=url_of(server)).returncode == 0
    shutil.copy(old / "backup.json", new / "backup.json")
    words = failed(run("restore", str(new), str(tmp_path / "data")), Outcome.DAMAGED)
    assert "its files are those of another backup" in words


def test_backups_that_begin_together_have_two_names(tmp_path: Path) -> None:
    first, second = (new_destination(tmp_path, 1_000) for _ in range(2))
    assert first.final != second.final
    second.disk.unlock()
    first.discard()
    third = new_destination(tmp_path, 1_000)
    assert third.final == first.final
    third.discard()


def test_a_failed_first_backup_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    done = run("backup", str(folder), "--keep", "1", url="redis://127.0.0.1:1")
    failed(done, Outcome.REFUSED)
    assert not folder.exists()
    folder.mkdir()
    run("backup", str(folder), "--keep", "1", url="redis://127.0.0.1:1")
    assert os.listdir(folder) == []


def test_a_link_to_an_empty_folder_can_be_the_destination(
    stopped: tuple[Path, object], tmp_path: Path
) -> None:
    source, _ = stopped
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk/folder")
    done = run("backup", str(source), str(link), "--check", "files")
    assert done.returncode == 0, done.stderr
    assert link.is_symlink()
    assert (link / "manifest").exists()
    assert os.listdir(tmp_path / "disk") == ["folder"]


def test_wrong_usage_is_refused(tmp_path: Path) -> None:
    for words in (
        ["backup"],
        ["backup", "a", "b", "c"],
        ["backup", "--url", "redis://h", "a", "b"],
        ["restore", "--replace", "a", "b"],
        ["restore", "--without-policy", "a", "b"],
        ["restore", "--db", "0", "a", "b"],
        ["restore", "--url", "redis://h", "a", "b"],
    ):
        assert run(*words).returncode == Outcome.USAGE
