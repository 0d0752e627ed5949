"""The conversion of files of Redis into the base of a data directory, in a process of its own.

A file may come from anywhere. The process has a memory limit, a low priority and descriptors for
the files, the base and its messages: a file can end it, and nothing else. Messages are lines of
JSON: `progress`, `stream`, and at the end `done` or `failed`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from millstream.server.moving import child_messages
from millstream.server.moving.child_messages import limit_memory, send
from millstream.storage.dump.aof_file import begins_aof
from millstream.storage.dump.base_making import DATABASES_MAX, BaseMaker, ImportFailure, Wanted
from millstream.storage.dump.rdb_file import WITH_CHECKSUM, RdbFile
from millstream.storage.dump.reader import Reader
from millstream.storage.files.disk import write_all
from millstream.storage.files.snapshot_format import BASE_SALT_SIZE, zstd
from millstream.storage.files.snapshot_writer import Identity, Output, SnapshotWriter

BASE_SEQ = 1  # the number of the last frame in the base; 0 would mean that there is no base
PROGRESS_BYTES = 4 << 20
NICENESS = 10
CANNOT_WRITE = "the base cannot be written"

Send = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Source:
    """A file to convert: its name in texts, its descriptor, and its size, -1 if unknown. An AOF of
    several files has these in `files`, and no descriptor."""

    name: str
    descriptor: int
    size_bytes: int
    files: Sequence[Source] = ()

    @property
    def all_files(self) -> Sequence[Source]:
        return self.files or (self,)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Source:
        files = [cls.from_fields(file) for file in fields.pop("files", ())]
        return cls(**fields, files=files)


@dataclass(frozen=True)
class Task:
    """The work of the process. `directory` is the ID of the new data directory, as hexadecimal
    digits; `seq` the number of the last frame in the base; `databases_count` the number of
    databases of the server that will load it."""

    sources: Sequence[Source]
    base: int  # the descriptor
    directory: str
    memory_bytes: int
    patterns: tuple[str, ...] = ()
    databases: dict[int, int] | None = None
    strings: bool = True
    may_leave_out: bool = True
    salvage: bool = False
    with_digests: bool = False
    seq: int = BASE_SEQ
    databases_count: int = DATABASES_MAX

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Task:
        fields = json.loads(text)
        fields["sources"] = [Source.from_fields(source) for source in fields["sources"]]
        if fields["databases"] is not None:
            fields["databases"] = {int(old): new for old, new in fields["databases"].items()}
        return cls(**fields)

    @property
    def wanted(self) -> Wanted:
        return Wanted(
            patterns=tuple(os.fsencode(pattern) for pattern in self.patterns),
            databases=self.databases,
            strings=self.strings,
            may_leave_out=self.may_leave_out,
            salvage=self.salvage,
            databases_count=self.databases_count,
        )


def begin(task: Task, output: int) -> int:
    """Start the process of a task, which writes messages to a descriptor; the number of the
    process."""
    files = [file.descriptor for source in task.sources for file in source.all_files]
    descriptors = (task.base, *(file for file in files if file > 0))
    return child_messages.begin("converting", task.to_text(), descriptors, output)


class DescriptorOutput:
    """An open descriptor as the destination of a snapshot."""

    def __init__(self, descriptor: int) -> None:
        self.name = "the base"
        self.size = 0
        self._descriptor = descriptor

    def write(self, data: bytes | bytearray | memoryview) -> None:
        write_all(self._descriptor, data)
        self.size += len(data)

    def begin_sync(self) -> None:
        """Nothing: the caller syncs the file."""


class _Progress:
    """Reads the sources, and sends how far they are read, with the number of entries or requests
    until then."""

    def __init__(self, total_bytes: int, count: Callable[[], int], send: Send) -> None:
        self.count = count
        self._total_bytes = total_bytes
        self._send = send
        self._done_bytes = 0
        self._told_bytes = 0

    def reader(self, source: Source) -> Reader:
        def read(size: int) -> bytes:
            data = os.read(source.descriptor, size)
            self._done_bytes += len(data)
            if self._done_bytes - self._told_bytes >= PROGRESS_BYTES:
                self._told_bytes = self._done_bytes
                self._send({"progress": [self._done_bytes, self._total_bytes, self.count()]})
            return data

        return Reader(b"", 0, 0, read, source.size_bytes)


def convert(
    task: Task, output: Output, now_ms: int, random: Callable[[int], bytes], send: Send
) -> None:
    """Convert the sources of a task; the last message says how it ended."""
    started_s = time.monotonic()
    identity = Identity(
        uuid=random(16),
        created_ms=now_ms,
        seq=task.seq,
        directory=bytes.fromhex(task.directory),
        salt=random(BASE_SALT_SIZE),
    )
    maker = BaseMaker(
        SnapshotWriter(output, identity, compressed=False),
        task.wanted,
        now_ms,
        int.from_bytes(random(8), "little"),
        lambda facts: send({"stream": facts}),
        with_digests=task.with_digests,
    )
    sizes = [source.size_bytes for source in task.sources]
    totals = maker.findings.totals
    progress = _Progress(-1 if -1 in sizes else sum(sizes), lambda: totals.entries, send)
    described = []
    try:
        for source in task.sources:
            readers = [progress.reader(file) for file in source.all_files]
            if source.files or begins_aof(readers[0]):
                described.append(_replay(source, readers, maker, progress, task, now_ms))
                continue
            file = RdbFile(readers[0])
            maker.add_file(file, source.name)
            described.append(_describe(source, file))
        maker.finish()
    except ImportFailure as failure:
        send({"failed": str(failure)})
        return
    seconds = round(time.monotonic() - started_s, 3)
    send({"done": {"source": described, **maker.findings.as_dict(), "seconds": seconds}})


def _describe(source: Source, file: RdbFile) -> dict[str, Any]:
    """The description of a source that was read."""
    return {
        "name": source.name,
        "version": file.version,
        "program": file.writer,
        "size": file.reader.offset,
        "checksum": _checksum(file),
    }


def _checksum(file: RdbFile) -> str:
    if file.stored_checksum is None and file.version >= WITH_CHECKSUM:
        return "not read, because the file ends or cannot be read before it"
    if file.stored_checksum is None:
        return f"version {file.version} has no checksum"
    if file.stored_checksum == 0:
        return "saved without a checksum"
    return "right" if file.is_checksum_right else "wrong"


def _replay(
    source: Source,
    readers: Sequence[Reader],
    maker: BaseMaker,
    progress: _Progress,
    task: Task,
    now_ms: int,
) -> dict[str, Any]:
    """Replay an AOF and add its keys; the description of the source."""
    # Only an AOF needs commands.
    from millstream.server.moving.aof_replay import Replay, ReplayFailure

    databases_count = DATABASES_MAX if task.databases is None else None
    replay = Replay(now_ms, task.salvage, databases_count)
    replay.keyspace.incarnation = maker.incarnation
    progress.count = lambda: replay.requests
    try:
        for file, reader in zip(source.all_files, readers, strict=True):
            replay.add(reader, file.name, is_last=reader is readers[-1])
    except ReplayFailure as failure:
        raise ImportFailure(f"{failure}; nothing was written") from None
    maker.add_replayed(replay, source.name)
    rdb = replay.files[0].rdb
    return {
        "name": source.name,
        "version": None if rdb is None else rdb.version,
        "program": "AOF" if rdb is None else rdb.writer,
        "size": sum(file.size_bytes for file in replay.files),
        "checksum": "an AOF has no checksum" if rdb is None else _checksum(rdb),
        "files": [
            {"name": file.name, "size": file.size_bytes, "requests": file.requests}
            for file in replay.files
        ],
    }


# ---------------------------------------------------------------- the process


def main() -> None:
    """The process: a task as its argument, messages to standard error."""
    task = Task.from_text(sys.argv[1])
    gc.disable()  # it makes many objects and no cycles
    with contextlib.suppress(OSError):  # a service may not lower its priority
        os.nice(NICENESS)
    zstd()  # libraries are loaded before the limit counts
    limit_memory(task.memory_bytes)
    try:
        convert(task, DescriptorOutput(task.base), time.time_ns() // 1_000_000, os.urandom, send)
    except MemoryError:
        send({"failed": "memory"})
    except OSError as error:
        send({"failed": f"{CANNOT_WRITE}: {error.strerror}"})


if __name__ == "__main__":
    main()
