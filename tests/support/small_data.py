"""A small data directory with all kinds of contents, written without a server.

It has a base of several chunks and index sections, two journals, and the state after each frame,
for tests that damage a directory at every byte and check what remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped]
from tests.support.captures import whole
from tests.support.fakedisk import FakeDisk
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.journals import DIRECTORY, journal_bytes

from millstream.server.durability.directory_loader import Loader, LoadReport
from millstream.server.repair.checking import loader_of
from millstream.storage.blocks.block import Block
from millstream.storage.capture import capture
from millstream.storage.capture.capture import Capture
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files import snapshot_writer
from millstream.storage.files.manifest import Manifest, load_manifest, store_manifest
from millstream.storage.files.snapshot_writer import Identity, SnapshotWriter
from millstream.storage.groups.shared_groups import SharedGroups
from millstream.storage.keyspace.keyspace import Keyspace

State = list[tuple[int, bytes, str, bytes, list[bytes]]]
ID = DIRECTORY
BASE, FIRST, LAST = "base-3.msnap", "journal-3.log", "journal-4.log"
CREATED_MS = 1_700_000_000_000

BEFORE_THE_BASE = [
    *(f"XADD a {number}-1 temp {number} unit celsius" for number in range(1, 31)),
    "XGROUP CREATE a workers 0",
    "XREADGROUP GROUP workers ann COUNT 6 STREAMS a >",
    *(f"XADD b {number}-0 level {number * 7}" for number in range(1, 6)),
    "XDEL a 3-1",
    "XTRIM a MINID 2",
    "SET name millstream",
    # Its metadata is too long for the index.
    "XADD c 1-1 f v",
    *(f"XGROUP CREATE c {'g' * 60}{number} 0" for number in range(6)),
    "XADD d 5-5 f v",
    "TPOLICY d MAXLEN 100 EXACT",
]
IN_THE_FIRST = ["XADD a 31-1 temp 31 unit celsius", "XACK a workers 1-1", "XADD b 6-0 level 42"]
IN_THE_LAST = [
    "XADD a 32-1 temp 32 unit celsius",
    f"XADD b 7-0 level {'7' * 300}",
    "XREADGROUP GROUP workers bob COUNT 2 STREAMS a >",
    f"XADD d 6-6 f {'x' * 200}",
    "XADD a 33-1 temp 33 unit celsius",
]


@dataclass
class Written:
    """A directory; `states[n]` is the remaining state when the last `n` frames are lost."""

    disk: FakeDisk
    states: list[State] = field(default_factory=list)

    def files(self) -> dict[str, bytes]:
        return {name: self.disk.content(name) for name in self.disk.names()}


def state_of(keyspace: Keyspace) -> State:
    """All data that a snapshot would contain."""
    found: State = []
    for one in whole(Capture(keyspace)):
        meta = {name: _plain(value) for name, value in one.meta.items() if name != "idempotence"}
        blocks = [block.to_bytes() for block in one.blocks]
        found.append((one.db, one.key, one.kind, msgpack.packb(meta, default=bytes), blocks))
    return sorted(found)


def _plain(value: Any) -> Any:
    """A captured value in msgpack's types: the groups of a stream are packed in parts."""
    if isinstance(value, SharedGroups):
        return msgpack.unpackb(b"".join(value.packed()), strict_map_key=False)
    return value


def _without_packing(meta: dict[str, Any]) -> dict[str, Any]:
    """The meta map without what depends on packing, or what earlier formats did not count."""
    groups = [
        {name: value for name, value in group.items() if name != "lost"}
        for group in meta.get("groups", ())
    ]
    return {**meta, "open": None, "groups": groups}


def contents_of(state: State) -> list[tuple[object, ...]]:
    """The state independent of its packing: entries instead of blocks."""
    return [
        (db, key, kind, _without_packing(msgpack.unpackb(meta)), [
            entry for block in blocks for entry in Block.from_bytes(block).entries()
        ])
        for db, key, kind, meta, blocks in state
    ]  # fmt: skip


@contextmanager
def small_parts(chunk_entries: int = 8, section_bytes: int = 200) -> Iterator[None]:
    """Snapshots written meanwhile have many chunks and sections."""
    sizes = (
        (snapshot_writer, "CHUNK_ENTRIES_MAX", chunk_entries),
        (snapshot_writer, "_SECTION_BYTES", section_bytes),
        (snapshot_writer, "TAIL_SIZE", 400),
        (capture, "BATCH_BYTES", section_bytes),
    )
    before = [getattr(module, name) for module, name, _ in sizes]
    for module, name, value in sizes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(sizes, before, strict=True):
            setattr(module, name, value)


def write_base(
    disk: FakeDisk,
    name: str,
    keyspace: Keyspace,
    seq: int,
    directory: bytes = ID,
    *,
    compressed: bool = True,
) -> None:
    file = disk.create(name)
    writer = SnapshotWriter(
        file,
        Identity(
            uuid=bytes(range(16)),
            created_ms=CREATED_MS,
            seq=seq,
            directory=directory,
            salt=b"salt",
        ),
        compressed=compressed,
        with_rules=keyspace.has_rules,
    )
    taking = Capture(keyspace)
    while (captured := taking.step(100)) is not None:
        for one in captured:
            writer.add(one)
    taking.close()
    writer.finish(StoredKeyspace(keyspace).global_meta())
    file.sync()


def write_journal(
    disk: FakeDisk, name: str, first_seq: int, payloads: list[bytes], directory: bytes = ID
) -> None:
    file = disk.create(name)
    file.write(
        journal_bytes(payloads, first_seq, directory=directory, salt=f"{name:>8}".encode()[-8:])
    )
    file.sync()


def play(in_process: InProcessServer, player: InProcessClient, lines: list[str]) -> list[bytes]:
    """The payloads of the frames that these lines make."""
    before = len(in_process.persistence.payloads)
    for line in lines:
        player.call(line)
    return in_process.persistence.payloads[before:]


def write_small_data(directory: bytes = ID) -> Written:
    """The directory of a server that was killed after IN_THE_LAST."""
    written = Written(FakeDisk())
    disk, in_process = written.disk, InProcessServer()
    in_process.keyspace.node_entries = 2
    player = in_process.player()
    seq = len(play(in_process, player, BEFORE_THE_BASE))
    with small_parts():
        write_base(disk, BASE, in_process.keyspace, seq, directory)
    written.states.append(state_of(in_process.keyspace))
    for name, lines in ((FIRST, IN_THE_FIRST), (LAST, IN_THE_LAST)):
        payloads: list[bytes] = []
        for line in lines:
            payloads += play(in_process, player, [line])
            written.states.append(state_of(in_process.keyspace))
        write_journal(disk, name, seq + 1, payloads, directory)
        assert len(payloads) == len(lines)
        seq += len(payloads)
    store_manifest(disk, Manifest(BASE, (FIRST, LAST), 5, directory))
    written.states.reverse()
    return written


def load(disk: FakeDisk) -> tuple[Keyspace, Loader]:
    """Load the data as a server would, with the same DataError."""
    keyspace = Keyspace()
    keyspace.node_entries = 2
    keyspace.set_time(CREATED_MS)
    loader = loader_of(disk, keyspace)
    manifest = load_manifest(disk)
    assert manifest is not None
    for _ in loader.read(manifest, LoadReport()):
        pass
    return keyspace, loader
