"""One stream at one moment, as a snapshot with a single key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millstream.server.durability.commits import Commits
from millstream.server.durability.data_files import temporary
from millstream.storage.capture.captured_keys import Captured, captured_stream
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.manifest import base_name
from millstream.storage.files.snapshot_format import BASE_SALT_SIZE
from millstream.storage.files.snapshot_writer import Identity, SnapshotWriter
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import stream_has_rules

_FREED_BLOCKS = 512
# One stream does not have the history of the server: a replica that started with it would continue
# after its last frame, without the other keys.
_OF_ALL_DATA = ("histories", "terms", "clock", "rules", "slots")


@dataclass(eq=False, repr=False)
class StreamCopy:
    """The stream, and the last frame that it may have. `number` and `directory` are those of the
    file; `suspensions` is the count of Snapshots at that moment."""

    captured: Captured
    seq: int
    created_ms: int
    global_meta: dict[str, Any]
    number: int = field(default=0, init=False)
    directory: bytes = field(default=b"", init=False)
    suspensions: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        return temporary(base_name(self.number))

    def write(self, disk: Disk, pause: Callable[[], None]) -> tuple[File | None, Exception | None]:
        """Write it to a file without a name, which is open for reading; or the error. On a
        worker."""
        try:
            file = disk.create(self.name)
            try:
                self._write_to(file, disk, pause)
                return disk.read(self.name), None
            finally:
                file.close()
                with suppress(OSError):
                    disk.remove(self.name)
        except Exception as error:
            return None, error

    def _write_to(self, file: File, disk: Disk, pause: Callable[[], None]) -> None:
        identity = Identity(
            uuid=disk.random(16),
            created_ms=self.created_ms,
            seq=self.seq,
            directory=self.directory,
            salt=disk.random(BASE_SALT_SIZE),
        )
        with_rules = "rules" in self.global_meta
        writer = SnapshotWriter(file, identity, with_rules=with_rules, pause=pause)
        writer.add(self.captured)
        writer.finish(self.global_meta)
        while self.captured.free_step(_FREED_BLOCKS):
            pause()


def capture_stream(
    keyspace: Keyspace, db: int, key: bytes, commits: Commits, now_ms: int
) -> StreamCopy | None:
    """The stream at this key now; None if there is none. Its blocks are shared, not copied."""
    database = keyspace.databases[db]
    value = database.table.get(key)
    expiry_ms = database.expiry_ms(key)
    if not isinstance(value, Stream) or (expiry_ms and expiry_ms <= now_ms):
        return None
    if keyspace.hidden_slots and keyspace.slot_states.hides(key):
        return None
    global_meta = StoredKeyspace(keyspace).global_meta()
    for name in _OF_ALL_DATA:
        global_meta.pop(name, None)
    if stream_has_rules(value):
        global_meta["rules"] = True
    captured = captured_stream(db, key, value, expiry_ms or None)
    return StreamCopy(captured, commits.last_seq, now_ms, global_meta)
