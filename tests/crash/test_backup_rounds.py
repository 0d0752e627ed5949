"""Backups while a program writes, some of which are cut off: each complete one has everything that
was acknowledged before it began, and is a state that existed."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.gate import Gate
from tests.support.resp import Error
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.wire.test_tools import run

from millstream.server.backup.backup_cli import Outcome
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.repair.checking import load_strictly
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import load_manifest
from millstream.storage.streams.stream import Stream

NewServer = Callable[..., Server]
KEYS = (b"a", b"b", b"c")
ROUNDS = 6


class Writer(threading.Thread):
    """Appends the numbers 1, 2, 3 ... to one stream after the other, the last two in one
    transaction. Some rewrites of the journal are requested in between."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.acked = 0
        self.failure = ""
        self._server = server
        self._is_over = threading.Event()

    def run(self) -> None:
        with self._server.client() as client:
            while not (self._is_over.is_set() or self.failure):
                number = str(self.acked + 1)
                first = client.call("XADD", "a", "*", "n", number, "text", "x" * 200)
                pair = [("XADD", key, "*", "n", number) for key in ("b", "c")]
                replies = client.pipeline([("MULTI",), *pair, ("EXEC",)])
                if isinstance(first, Error) or any(isinstance(one, Error) for one in replies):
                    self.failure = f"{first} {replies}"
                self.acked += 1
                if self.acked % 400 == 0:
                    client.call("BGREWRITEAOF")

    def end(self) -> None:
        self._is_over.set()
        self.join()
        assert not self.failure


def lengths_in(folder: Path) -> list[int]:
    """The number of entries of each stream in a copy; they are 1, 2, 3 ... in this order."""
    disk = SystemDisk(folder)
    manifest = load_manifest(disk)
    assert manifest is not None
    table = load_strictly(disk, manifest, LoadReport(), 0).databases[0].table
    lengths = []
    for key in KEYS:
        stream = table.get(key)
        assert stream is None or isinstance(stream, Stream)
        entries = [] if stream is None else stream.range()
        numbers = [int(words[1]) for _, _, words in entries]
        assert numbers == list(range(1, len(numbers) + 1))
        lengths.append(len(numbers))
    return lengths


def cut_when_held(gate: Gate) -> None:
    gate.replies.wait_held()
    gate.cut()
    gate.replies.release()


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_complete_backup_is_a_state_that_existed(
    new_server: NewServer, tmp_path: Path, fsync: str
) -> None:
    chance = random.Random(fsync)
    server = new_server("data", {"appendfsync": fsync}).start()
    writer, gate, dest = Writer(server), Gate(server.port), tmp_path / "copy"
    url = f"redis://127.0.0.1:{gate.port}"
    writer.start()
    try:
        for number in range(ROUNDS):
            wait_until(lambda so_far=writer.acked: writer.acked > so_far + 50)  # type: ignore[misc]
            is_cut = number % 3 == 2
            if is_cut:
                gate.replies.hold(after_bytes=chance.randrange(20_000))
                threading.Thread(target=cut_when_held, args=(gate,)).start()
            before = writer.acked
            done = run("backup", str(dest), "--check", "none", url=url)
            after = writer.acked + 1
            if is_cut:
                assert done.returncode == Outcome.BROKEN, done
                assert not dest.exists()
                continue
            assert done.returncode == 0, done
            first, *pair = lengths_in(dest)
            assert before <= pair[0] == pair[1] <= first <= pair[0] + 1 <= after + 1
            shutil.rmtree(dest)
    finally:
        writer.end()
        gate.close()
