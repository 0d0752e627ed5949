"""Reads a data directory into a keyspace: the base first, then the journals' frames.

Both the start and DEBUG RELOAD use this module, so a running server loads data exactly as after a
restart. Nothing is written; the start corrects unfinished files and a torn end based on the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millstream.errors import BlockError, DataError
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.frame_times import begins_line
from millstream.storage.files.journal_format import read_head
from millstream.storage.files.journal_reader import JournalReader, TornEnd
from millstream.storage.files.manifest import Manifest, check_manifest_owner, check_owner, is_base

# Loaded with the first base that is read.
if TYPE_CHECKING:
    from millstream.storage.capture.small_loader import SmallLoader
    from millstream.storage.files.snapshot_format import BlockType, KeyRecord
    from millstream.storage.files.snapshot_reader import SnapshotReader

Progress = Callable[[int, int], None]
_PROGRESS_BYTES = 1 << 20
# Bytes read between two yields: less than a millisecond's work, unless a single frame is larger.
_BYTES_PER_SLICE = 64 * 1024
_KEYS_PER_SLICE = 64
_SMALL_PER_SLICE = 256  # small streams: less than a millisecond's work
# What a frame counts in addition to its payload: its header on the way to a replica.
FRAME_BYTES = 20


def check_owners(manifest: Manifest, files: Sequence[File]) -> None:
    """ForeignError when the manifest and the files that it names have different directory IDs."""
    directories = {file.name: read_directory_id(file) for file in files}
    check_manifest_owner(manifest, directories)
    for name, directory in directories.items():
        check_owner(manifest, name, directory)


def read_directory_id(file: File) -> bytes:
    """The ID of the directory that a base or journal belongs to; b"" in version 1."""
    if is_base(file.name):
        from millstream.storage.files.snapshot_reader import SnapshotEnds

        return SnapshotEnds(file).read_header().directory
    return read_head(file).format.directory


class Restorable(Protocol):
    """The part of a keyspace that loading fills."""

    def restore(
        self, db: int, key: bytes, kind: str, meta: dict[str, Any], blocks: list[Any], /
    ) -> None: ...
    def restore_small(self, small: SmallLoader, most: int, /) -> int: ...
    def restore_global(self, meta: dict[str, Any], /) -> None: ...


class LoadReport:
    """The result of `load`. `notes` are sentences for the log and the terminal."""

    def __init__(self) -> None:
        self.keys = 0
        self.entries = 0
        self.frames = 0
        self.effects = 0
        self.bytes = 0
        self.torn_bytes = 0
        self.seconds = 0.0
        self.base: str | None = None
        self.journals: tuple[str, ...] = ()
        self.removed: list[str] = []
        self.notes: list[str] = []


class Loader:
    """Reads a directory once. Afterwards `next_seq` is the number after the last frame, `torn` says
    where the journals must be cut, and `created_ms`, `base_bytes` and `base_seq` describe the base
    (0: there is none). `frame_bytes` and `bytes_before_line` are what Persistence counts."""

    def __init__(
        self,
        disk: Disk,
        keyspace: Restorable,
        apply_effects: Callable[[bytes], int],
        block_type: BlockType[Any],
    ) -> None:
        self._disk = disk
        self._keyspace = keyspace
        self._apply = apply_effects
        self._block_type = block_type
        self._progress: Progress | None = None
        self._told_bytes = 0
        self.total_bytes = 0
        self.done_bytes = 0
        self.next_seq = 1
        self.torn: TornEnd | None = None
        self.created_ms = 0
        self.base_bytes = 0
        self.base_seq = 0
        self.frame_bytes = 0
        self.bytes_before_line = -1

    def read(
        self, manifest: Manifest, report: LoadReport, progress: Progress | None = None
    ) -> Iterator[None]:
        """Load the files that the manifest names, in slices. DataError when they cannot be
        trusted."""
        self._progress = progress
        files = [self._disk.read(name) for name in manifest.files]
        self.total_bytes = sum(file.size for file in files)
        try:
            yield from self._read_files(files, manifest, report)
        finally:
            for file in files:
                file.close()
        self.done_bytes = self.total_bytes
        self._tell()

    def _read_files(
        self, files: Sequence[File], manifest: Manifest, report: LoadReport
    ) -> Iterator[None]:
        check_owners(manifest, files)
        if manifest.base is not None:
            from millstream.storage.files.snapshot_reader import SnapshotReader

            base, files = files[0], files[1:]
            reader = SnapshotReader(base)
            yield from reader.check_copies_in_slices()
            self.base_seq = reader.summary.seq
            self.next_seq = self.base_seq + 1
            self.created_ms = reader.summary.created_ms
            for _ in self._read_base(reader, report):
                self._tell_now_and_then()
                yield
            self.base_bytes = self.done_bytes = base.size
        frames = JournalReader(files, self.next_seq)
        for _ in self._read_journals(frames, report):
            self._tell_now_and_then()
            yield
        self.next_seq, self.torn = frames.next_seq, frames.torn

    def _tell_now_and_then(self) -> None:
        if self.done_bytes - self._told_bytes >= _PROGRESS_BYTES:
            self._tell()

    def _tell(self) -> None:
        self._told_bytes = self.done_bytes
        if self._progress is not None:
            self._progress(self.done_bytes, self.total_bytes)

    def _read_base(self, reader: SnapshotReader, report: LoadReport) -> Iterator[None]:
        summary = reader.summary
        self._keyspace.restore_global(summary.global_meta)
        self.frame_bytes = summary.global_meta.get("frame_bytes", 0)
        self.bytes_before_line = summary.global_meta.get("bytes_before_line", -1)
        report.entries = summary.entries
        for section in range(len(summary.sections)):
            small = reader.small_streams(section)
            if small is not None:
                yield from self._read_small(reader, small, report)
                continue
            for record in reader.records(section):
                yield from self._read_key(reader, record)
                report.keys += 1
                if report.keys % _KEYS_PER_SLICE == 0:
                    yield

    def _read_small(
        self, reader: SnapshotReader, small: SmallLoader, report: LoadReport
    ) -> Iterator[None]:
        """Read a section of small streams in slices."""
        if small.chunk_number is not None:
            self.done_bytes = reader.summary.chunks[small.chunk_number].offset
        try:
            while loaded := self._keyspace.restore_small(small, _SMALL_PER_SLICE):
                report.keys += loaded
                yield
        except BlockError as error:
            raise reader.bad_small_block(small, error) from None
        except (ValueError, OverflowError) as error:
            raise _not_restored(reader, small.key, error) from error

    def _read_key(self, reader: SnapshotReader, record: KeyRecord) -> Iterator[None]:
        """Read one key in slices, because it may be larger than all others together."""
        chunks = reader.summary.chunks
        blocks: list[Any] = []
        for piece in record.pieces:
            self.done_bytes = chunks[piece.chunk].offset
            for run in reader.piece_runs(piece, self._block_type):
                blocks.extend(run)
                yield
        try:
            self._keyspace.restore(record.db, record.key, record.kind, reader.meta(record), blocks)
        except (ValueError, KeyError, TypeError) as error:
            raise _not_restored(reader, record.key, error) from error

    def _read_journals(self, frames: JournalReader, report: LoadReport) -> Iterator[None]:
        apply = self._apply
        before = self.done_bytes
        next_stop = before + _BYTES_PER_SLICE
        current: File | None = None
        for file, offset, payload in frames.frames():
            if file is not current:
                before += current.size if current is not None else 0
                current = file
            try:
                report.effects += apply(payload)
            except Exception as error:
                raise DataError(
                    f"{file.name} has a frame at offset {offset} that cannot be applied ({error});"
                    " nothing was changed; restore this file from a copy"
                ) from error
            report.frames += 1
            if begins_line(payload):
                self.bytes_before_line = self.frame_bytes
            self.frame_bytes += FRAME_BYTES + len(payload)
            if before + offset >= next_stop:
                self.done_bytes = before + offset
                next_stop = self.done_bytes + _BYTES_PER_SLICE
                yield


def _not_restored(reader: SnapshotReader, key: bytes | None, error: Exception) -> DataError:
    return DataError(
        f"{reader.name}: the key {key!r} cannot be restored ({error}) although its"
        " checksum is correct: another version may have written it; nothing was changed"
    )
