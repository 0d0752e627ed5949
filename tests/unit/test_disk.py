"""The real disk: locks, removed directories, and errors that name the file."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from millstream.errors import DataError, StartError
from millstream.server.durability.data_files import prepare_directory
from millstream.storage.files import lock_guard
from millstream.storage.files.disk import SystemDisk, make_directory

from ..support.waiting import wait_until


def test_the_directory_is_locked_and_not_only_a_file_in_it(tmp_path: Path) -> None:
    first, second = SystemDisk(tmp_path / "data"), SystemDisk(tmp_path / "data")
    first.lock()
    (tmp_path / "data" / "lock").unlink()
    with pytest.raises(DataError, match=r"data is used by another server \(process unknown\)"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_directory_that_was_replaced_is_another_one(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    disk = SystemDisk(directory)
    disk.lock()
    assert not disk.holds("manifest")
    (directory / "manifest").touch()
    assert disk.holds("manifest")
    shutil.copytree(directory, tmp_path / "copy")
    directory.rename(tmp_path / "old")
    assert not disk.holds("manifest")
    (tmp_path / "copy").rename(directory)
    assert not disk.holds("manifest")
    shutil.rmtree(directory)
    (tmp_path / "old").rename(directory)
    assert disk.holds("manifest")
    disk.unlock()


def test_an_error_names_the_file_and_the_directory(tmp_path: Path) -> None:
    (tmp_path / "journal-1.log").mkdir()
    disk = SystemDisk(tmp_path)
    file = disk.read("journal-1.log")
    with pytest.raises(OSError, match="Is a directory") as refused:
        file.read_at(0, 32)
    assert refused.value.filename == str(tmp_path / "journal-1.log")
    with pytest.raises(OSError, match="Bad file descriptor") as refused:
        file.write(b"x")
    assert (refused.value.errno, refused.value.filename) == (
        errno.EBADF,
        str(tmp_path / "journal-1.log"),
    )
    file.close()


MUCH = bytes(range(256)) * 20_000  # some steps that are freed at once


def test_a_reader_of_a_removed_file_reads_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(MUCH)
    with (tmp_path / "base").open("rb") as reader:
        assert reader.read(10) == MUCH[:10]
        SystemDisk(tmp_path).remove("base")
        assert reader.read() == MUCH[10:]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_has_another_name_stays_whole_under_it(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(MUCH)
    (tmp_path / "kept").hardlink_to(tmp_path / "base")
    SystemDisk(tmp_path).remove("base")
    assert (tmp_path / "kept").read_bytes() == MUCH
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_link_is_removed_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(MUCH)
    (tmp_path / "base").symlink_to(tmp_path / "other")
    SystemDisk(tmp_path).remove("base")
    assert (tmp_path / "other").read_bytes() == MUCH
    assert not (tmp_path / "base").is_symlink()


def test_opening_a_file_during_its_removal_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    opened: list[int] = []

    def open_meanwhile(descriptor: int, size: int) -> None:
        opened.append(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK))

    monkeypatch.setattr(os, "ftruncate", open_meanwhile)
    before = signal.signal(signal.SIGIO, lambda number, _: signals.append(number))
    try:
        (tmp_path / "base").write_bytes(MUCH)
        SystemDisk(tmp_path).remove("base")
        assert len(opened) == 19
        assert not signals
    finally:
        signal.signal(signal.SIGIO, before)
        for descriptor in opened:
            os.close(descriptor)


def test_a_large_file_that_is_not_open_is_freed_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base").write_bytes(MUCH)
    sizes: list[int] = []
    monkeypatch.setattr(os, "ftruncate", lambda _, size: sizes.append(size))
    SystemDisk(tmp_path).remove("base")
    assert sizes == [len(MUCH) - 2**18 * step for step in range(1, 20)]
    with pytest.raises(FileNotFoundError):
        SystemDisk(tmp_path).remove("base")


def test_files_that_cannot_all_be_kept_leave_no_folder(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    disk = SystemDisk(tmp_path)
    with pytest.raises(FileNotFoundError):
        disk.keep(["one", "missing"], "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    disk.keep(["one"], "kept")
    assert (tmp_path / "kept" / "one").read_bytes() == b"1"


# ---------------------------------------------------------------- the directory itself


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Directories made and synced, in order, by their last names."""
    found: list[str] = []
    mkdir, fsync = os.mkdir, os.fsync

    def noted_mkdir(path: str | os.PathLike[str], mode: int = 0o777) -> None:
        mkdir(path, mode)
        found.append(f"mkdir {Path(path).name}")

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        found.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")

    monkeypatch.setattr(os, "mkdir", noted_mkdir)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    return found


def test_every_directory_that_is_made_is_synced_in_the_one_above(
    tmp_path: Path, calls: list[str]
) -> None:
    disk = SystemDisk(tmp_path / "a" / "b" / "data")
    disk.lock()
    disk.unlock()
    top = tmp_path.name
    wanted = ["mkdir a", f"sync {top}", "mkdir b", "sync a", "mkdir data", "sync b"]
    assert calls[:6] == wanted


def test_an_existing_directory_is_synced_in_its_parent(tmp_path: Path, calls: list[str]) -> None:
    """The process that made it may have been killed before it did so."""
    (tmp_path / "data").mkdir()
    calls.clear()
    disk = SystemDisk(tmp_path / "data")
    disk.lock()
    disk.unlock()
    assert calls == [f"sync {tmp_path.name}"]


def test_a_directory_whose_name_cannot_be_synced_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DataError, match="cannot use the data directory"):
        SystemDisk(tmp_path / "data").lock()


def test_damaged_files_are_kept_in_a_folder_that_is_synced(
    tmp_path: Path, calls: list[str]
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    SystemDisk(tmp_path).keep(["file"], "damaged")
    assert calls == ["mkdir damaged.tmp", "sync damaged.tmp", f"sync {tmp_path.name}"]
    assert (tmp_path / "damaged" / "file").samefile(tmp_path / "file")


def test_a_kept_file_that_is_written_later_is_copied(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"base")
    (tmp_path / "journal").write_bytes(b"journal")
    disk = SystemDisk(tmp_path)
    disk.keep(["base", "journal"], "kept-1", ["journal"])
    disk.keep(["base"], "kept-2")
    (tmp_path / "journal").write_bytes(b"")
    assert (tmp_path / "kept-1" / "journal").read_bytes() == b"journal"
    assert (tmp_path / "kept-1" / "base").samefile(tmp_path / "base")
    disk.remove_kept("kept-1")
    assert disk.names() == ["base", "journal", "kept-2"]


def test_a_folder_of_kept_files_is_complete_or_absent(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"base")
    with pytest.raises(FileNotFoundError):
        SystemDisk(tmp_path).keep(["base", "none"], "kept")
    assert SystemDisk(tmp_path).names() == ["base"]


def test_a_directory_is_created_where_its_parent_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open

    def refuse(path: Path, flags: int) -> int:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_file(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    make_directory(tmp_path / "data")
    assert (tmp_path / "data").is_dir()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [(os.ST_RDONLY, "its file system is read-only"), (0, "Permission denied")],
)
def test_a_directory_without_access_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, reason: str
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    with pytest.raises(StartError) as caught:
        prepare_directory(tmp_path)
    assert str(caught.value) == f"cannot use the data directory {tmp_path}: {reason}"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_the_lock_file_keeps_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(lock_guard, "SETTLE_S", 0)
    disk = SystemDisk(tmp_path)
    disk.lock()
    assert disk.lock_doubt == os.strerror(code)
    owner = lock_guard.read_owner((tmp_path / "lock").read_bytes())
    assert owner == lock_guard.this_process()
    with monkeypatch.context() as other:
        started = owner._replace(process=os.getppid())
        other.setattr(lock_guard, "this_process", lambda: started)
        for use in (SystemDisk(tmp_path).lock, partial(lock_for, tmp_path, alone=False)):
            with pytest.raises(DataError, match=rf"another server \(process {os.getpid()}"):
                use()
    disk.unlock()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("first_locks", [False, True])
def test_a_lock_that_fails_for_one_server_keeps_both_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_locks: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock_guard, "SETTLE_S", 0)
    first, second = SystemDisk(tmp_path), SystemDisk(tmp_path)
    with monkeypatch.context() as change:
        if not first_locks:
            change.setattr("fcntl.flock", refuse)
        first.lock()
    other = lock_guard.this_process()._replace(process=os.getppid(), started="other")
    monkeypatch.setattr(lock_guard, "this_process", lambda: other)
    monkeypatch.setattr("millstream.storage.files.disk.this_process", lambda: other)
    if first_locks:
        monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(DataError, match=rf"another server \(process {os.getpid()}\)"):
        second.lock()
    first.unlock()


def test_an_owner_whose_parent_does_not_wait_for_its_end_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        words = stat.read_text().rpartition(")")[2].split()
        owner = lock_guard.this_process()._replace(process=child.pid, started=words[19])
        disk = SystemDisk(tmp_path)
        (tmp_path / "lock").write_bytes(owner.encode(0, lock_guard.LOCKED))
        with pytest.raises(DataError, match=rf"another server \(process {child.pid}\)"):
            disk.lock()
        child.kill()
        wait_until(lambda: ") Z " in stat.read_text(), what="the end of the process")
        disk.lock()
        disk.unlock()


def lock_for(directory: Path, *, alone: bool) -> None:
    SystemDisk(directory).lock_for("or copy it", alone=alone)


def test_a_lock_that_works_is_not_doubted(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path)
    disk.lock()
    assert disk.lock_doubt == ""
    assert lock_guard.read_owner((tmp_path / "lock").read_bytes()) is None
    disk.unlock()


def test_a_repair_locks_with_a_descriptor_that_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems refuse an exclusive lock otherwise, and lock no directories."""
    flock = fcntl.flock

    def network(descriptor: int, operation: int) -> None:
        writes = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        if operation & fcntl.LOCK_EX and not writes:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", network)
    disk = SystemDisk(tmp_path)
    disk.lock()
    assert disk.lock_doubt == ""
    with pytest.raises(DataError, match="is used by a server"):
        lock_for(tmp_path, alone=True)
    disk.unlock()
