"""Exports into a folder. Each is killed one step later than the one before, until one is not
killed; entries are appended between them.

    python -m tests.pipeline.killed_exports PORT FOLDER [--by-key]

A step is an operation on a file that Python reports (opening, listing, renaming, removing), or a
batch of rows. After each export, the visible files must have the first rows of each stream, each
once. Prints the number of kills and the numbers of rows as JSON.

The exports are forked from this process, which has imported everything they need.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import count
from pathlib import Path

import pyarrow as pa
import redis
from pyarrow import parquet

from millstream.__main__ import main
from millstream.pipeline import export_cli, exported_folder, folder_export, range_reader

KEYS = ("a", "b")
SCHEMA = "key string, id string, ts timestamp, n bigint, t string"
STEPS = ("open", "os.listdir", "os.mkdir", "os.remove", "os.rename")
assert folder_export  # imported before the first fork


class Killed:
    """An audit hook that kills this process at its nth step in the folder."""

    def __init__(self, step: int, folder: Path) -> None:
        self._left = step
        self._folder = str(folder)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in STEPS and str(arguments[0]).startswith(self._folder):
            self.count()

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def export(port: int, folder: Path, step: int) -> None:
    """A process of its own that exports; it never returns."""
    range_reader.BYTES_PER_REQUEST = 64 << 10  # files end at the ends of pages
    killed = Killed(step, folder)
    write = exported_folder.PartFile.write

    def counted(part: exported_folder.PartFile, batch: pa.RecordBatch) -> None:
        write(part, batch)
        killed.count()

    exported_folder.PartFile.write = counted  # type: ignore[method-assign]
    sys.addaudithook(killed)
    words = ["export", f"redis://127.0.0.1:{port}", "--into", str(folder), "--file-size", "1"]
    main([*words, "--schema", SCHEMA, *sys.argv[3:]], standalone_mode=True)


def visible(folder: Path, key: str) -> list[int]:
    """The rows of the visible files of a stream."""
    rows: list[int] = []
    for path in sorted(folder.glob("*.parquet")):
        table = parquet.ParquetFile(path).read(["key", "n"], use_threads=False)
        rows += [row["n"] for row in table.to_pylist() if row["key"] == key]
    for path in sorted(folder.glob(f"key={key}/*.parquet")):
        rows += parquet.ParquetFile(path).read(["n"], use_threads=False)["n"].to_pylist()
    return rows


def run(port: int, folder: Path) -> None:
    client = redis.Redis(port=port)
    appended = 0
    for step in count(1):
        pipeline = client.pipeline(transaction=False)
        more = 4000 if step == 1 else 20
        for n in range(appended, appended + more):
            for key in KEYS:
                pipeline.xadd(key, {"n": str(n), "t": os.urandom(200).hex()})
        pipeline.execute()
        appended += more
        child = os.fork()
        if not child:
            export(port, folder, step)
        _, status = os.waitpid(child, 0)
        for key in KEYS:
            rows = visible(folder, key)
            assert rows == list(range(len(rows))), (step, key, rows[:5], len(rows))
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))]
            made = {"kills": step - 1, "appended": appended, "rows": len(rows), "files": files}
            print(json.dumps(made))
            return


if __name__ == "__main__":
    assert export_cli
    run(int(sys.argv[1]), Path(sys.argv[2]))
