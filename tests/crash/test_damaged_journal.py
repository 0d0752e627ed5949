"""A torn last frame is cut and reported; damage anywhere else stops the start. Never silently.

The journal's bytes are not interpreted here. Where a frame begins is known from the file's size
before and after a single answered append (`appendfsync always`: one answer, one frame).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support import data_directory
from tests.support.server import Server

ENTRIES = 30


@dataclass
class Written:
    """A directory of a killed server, and the journal's size after each of its entries."""

    directory: Path
    journal_name: str
    sizes: list[int]

    @property
    def last_frame_bytes(self) -> int:
        return self.sizes[-1] - self.sizes[-2]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    directory = tmp_path_factory.mktemp("damaged") / "data"
    server = Server(directory).start()
    sizes = []
    with server.client() as client:
        for number in range(1, ENTRIES + 1):
            client.call("XADD", "s", f"{number}-1", "number", f"value {number}")
            sizes.append(data_directory.last_journal(directory).stat().st_size)
    server.kill()
    return Written(directory, data_directory.last_journal(directory).name, sizes)


@pytest.fixture
def damaged(
    written: Written, new_server: Callable[..., Server]
) -> Callable[[Callable[[Path], None]], Server]:
    """Makes a server, not started, on a copy of the directory whose journal was damaged."""

    def make(damage: Callable[[Path], None]) -> Server:
        server = new_server()
        shutil.copytree(written.directory, server.directory)
        damage(next(server.directory.rglob(written.journal_name)))
        return server

    return make


def length(server: Server) -> object:
    with server.client() as client:
        return client.call("XLEN", "s")


def offsets_told(server: Server, name: str, first: int, last: int) -> list[int]:
    """The numbers from `first` to `last` in those lines of the log that name the file."""
    lines = [line for line in server.log.splitlines() if name in line]
    numbers = [int(n) for line in lines for n in re.findall(r"\b\d+\b", line.replace(name, ""))]
    return [number for number in numbers if first <= number <= last]


@pytest.mark.parametrize("cut", [1, 2, 5, "half", "all but 5", "all but 1"])
def test_torn_last_frame_is_cut_and_reported(
    written: Written, damaged: Callable[..., Server], cut: int | str
) -> None:
    frame = written.last_frame_bytes
    sizes = {"half": frame // 2, "all but 5": frame - 5, "all but 1": frame - 1}
    size_bytes = cut if isinstance(cut, int) else sizes[cut]
    server = damaged(lambda path: data_directory.cut_end(path, size_bytes)).start()
    assert length(server) == ENTRIES - 1
    begin = written.sizes[-2]
    assert offsets_told(server, written.journal_name, begin, begin), server.log


def test_a_whole_frame_missing_at_the_end_is_no_damage(
    written: Written, damaged: Callable[..., Server]
) -> None:
    server = damaged(lambda path: data_directory.cut_end(path, written.last_frame_bytes)).start()
    assert length(server) == ENTRIES - 1


def test_an_undamaged_journal_is_read_whole(damaged: Callable[..., Server]) -> None:
    server = damaged(lambda path: None).start()
    assert length(server) == ENTRIES


def test_after_the_cut_the_server_writes_and_restarts(damaged: Callable[..., Server]) -> None:
    server = damaged(lambda path: data_directory.cut_end(path, 3)).start()
    with server.client() as client:
        assert client.call("XADD", "s", f"{ENTRIES}-7", "f", "v") == b"%d-7" % ENTRIES
    server.restart("SIGKILL")
    assert length(server) == ENTRIES
    with server.client() as client:
        assert client.call("TRANGE", "s", f"{ENTRIES}", "+") == [[b"%d.7" % ENTRIES, b"f", b"v"]]


@pytest.mark.parametrize("inside", [0, 1, 2, 3, 4, 7, 8, 11, 15, -1])
@pytest.mark.parametrize("frame_number", [0, ENTRIES // 2, ENTRIES - 2])
def test_flipped_byte_in_the_middle_stops_the_start(
    written: Written, damaged: Callable[..., Server], frame_number: int, inside: int
) -> None:
    """`inside` counts from the frame's first byte; -1 is its last."""
    end = written.sizes[frame_number]
    if frame_number:
        begin = lowest = written.sizes[frame_number - 1]
    else:  # the file may have a header before its first frame: count back from the frame's end
        begin, lowest = end - (written.sizes[2] - written.sizes[1]), 0
    position = end - 1 if inside < 0 else begin + inside
    server = damaged(lambda path: data_directory.flip(path, position))
    with pytest.raises(AssertionError, match="did not start"):
        server.start()
    assert server.exit_code == 1
    assert "Traceback" not in server.log
    assert offsets_told(server, written.journal_name, lowest, end), server.log


def test_a_refused_start_changes_no_file(written: Written, damaged: Callable[..., Server]) -> None:
    position = written.sizes[ENTRIES // 2] - 1
    server = damaged(lambda path: data_directory.flip(path, position))
    before = {p: p.read_bytes() for p in server.directory.rglob("*") if p.is_file()}
    for _ in range(2):
        with pytest.raises(AssertionError, match="did not start"):
            server.start()
    journals = {p: d for p, d in before.items() if "journal" in p.name or "base" in p.name}
    assert {p: p.read_bytes() for p in journals} == journals
