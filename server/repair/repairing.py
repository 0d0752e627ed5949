"""Repairs a damaged data directory: a server can start with it, without the unreadable parts.

All faults are repaired by the same procedure as a snapshot: load all data that can be trusted,
write it as a new base, make this base and an empty journal current, remove the files that they
replace. The old files are not changed before the manifest is replaced, so a crash leaves the old or
the new directory. Every removed file is first copied to a separate folder.

A repair keeps only data that was written and never guesses: all blocks of the base with valid
checksums, and all frames of the journals. The lost parts of a stream in the base count as evicted,
so readers are notified of the gap. Frames after a lost one may depend on it: their effects are kept
if they can be applied, and the others are counted.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, suppress
from typing import Any

from millstream.commands.runtime.effects import EffectError, apply_effects, split_effects
from millstream.errors import DataError, counted
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.repair.check_report import APPENDING, Report, Verdict, named, words_for_gap
from millstream.server.repair.checking import load_strictly, new_keyspace
from millstream.storage.blocks.block import Block
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files.damaged_base import open_base
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.journal_file import create_journal
from millstream.storage.files.journal_format import ID_SIZE
from millstream.storage.files.journal_reader import Gap, surviving_frames
from millstream.storage.files.lost_manifest import misplaced
from millstream.storage.files.manifest import (
    NAME,
    TEMPORARY,
    Manifest,
    base_name,
    discard_manifest,
    is_ours,
    journal_name,
    next_number,
    replace_manifest,
    sweep,
    write_manifest,
)
from millstream.storage.files.recovery import Recovered, RecoveryReader
from millstream.storage.files.snapshot_format import BASE_SALT_SIZE, KeyRecord
from millstream.storage.files.snapshot_writer import Identity, SnapshotWriter
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

_CAPTURE_KEYS = 64
_SKIPPED_SHOWN = 1000


def repair(disk: Disk, report: Report, now_ms: int, folder: str) -> list[str]:
    """Repair the faults that a check found; return sentences on what was done. The directory is
    locked.

    `folder` is the name of the new folder for replaced files. DataError, without any change, when
    the directory cannot be repaired or the repaired data would not load.
    """
    if report.verdict is Verdict.UNCHECKED or report.manifest is None or report.hopeless:
        reason = report.hopeless or "a file is of another version"
        raise DataError(f"this cannot be repaired: {reason}; restore the directory from a copy")
    bad = ("damaged", "missing", "misplaced")
    if all(file.state not in bad for file in report.files if file.name != NAME):
        return _Repair(disk, now_ms, folder).publish_old(report.manifest)
    return _Repair(disk, now_ms, folder).publish_new(report.manifest)


class _Repair:
    def __init__(self, disk: Disk, now_ms: int, folder: str) -> None:
        self._disk = disk
        self._now_ms = now_ms
        self._folder = folder
        self._done: list[str] = []

    def publish_old(self, manifest: Manifest) -> list[str]:
        """Publish a manifest for the old files: all of them are valid except the manifest."""
        self._try_out(manifest)
        self._lay_down(manifest)
        self._publish(manifest)
        self._done.append(f"{NAME} is rewritten: {', '.join(manifest.files) or 'no file'}")
        return self._done

    def publish_new(self, manifest: Manifest) -> list[str]:
        """Publish the readable data as a new base."""
        salvage = Salvage(self._disk, manifest, self._now_ms)
        number = next_number(self._disk, manifest)
        directory = manifest.directory or self._disk.random(ID_SIZE)
        since = 0 if manifest.directory else manifest.next_number
        files = base_name(number), (journal_name(number),)
        made = Manifest(*files, number + 1, directory, since, node=manifest.node)
        try:
            self._write(made, salvage)
            write_manifest(self._disk, made)
            self._name(made)
            loaded = self._try_out(made)
            self._keep_what_goes(made)
        except BaseException:
            self._discard(made)
            raise
        self._publish(made)
        self._done.append(
            f"{made.base} is written: {counted(loaded.keys, 'key')} with"
            f" {counted(loaded.entries, 'entry')}, all that can be read up to frame {salvage.seq}"
        )
        return self._done + salvage.gap_words() + salvage.skipped_words()

    def _write(self, made: Manifest, salvage: Salvage) -> None:
        """Write the base under a temporary name. It is never compressed, regardless of
        `rdbcompression`: it may be damaged again, and without compression a bad byte loses one
        block instead of a chunk."""
        assert made.base is not None
        file = self._disk.create(made.base + ".tmp")
        try:
            writer = SnapshotWriter(
                file,
                Identity(
                    uuid=self._disk.random(16),
                    created_ms=self._now_ms,
                    seq=salvage.seq,
                    directory=made.directory,
                    salt=self._disk.random(BASE_SALT_SIZE),
                ),
                compressed=False,
                small_compressed=False,
                with_rules=salvage.keyspace.has_rules,
                with_slots=bool(salvage.keyspace.slot_states),
            )
            # Frames may be lost: this data is not that of any line of history.
            salvage.keyspace.histories = ()
            salvage.keyspace.line_terms = {}
            salvage.stored.write_to(writer, _CAPTURE_KEYS)
            file.sync()
        finally:
            file.close()

    def _name(self, made: Manifest) -> None:
        """Give the files their final names after manifest.tmp is written, which identifies files
        that were never current (storage/files/leftovers)."""
        assert made.base is not None
        self._disk.rename(made.base + ".tmp", made.base)
        create_journal(self._disk, made.journals[0], made.directory).file.close()
        self._disk.sync_directory()

    def _try_out(self, manifest: Manifest) -> LoadReport:
        """Load the new files before they become current."""
        result = LoadReport()
        load_strictly(self._disk, manifest, result, self._now_ms, clustered=True)
        return result

    def _lay_down(self, manifest: Manifest) -> None:
        """Write the new manifest next to the current one, and copy the files that it replaces."""
        write_manifest(self._disk, manifest)
        try:
            self._keep_what_goes(manifest)
        except OSError:
            discard_manifest(self._disk)
            raise

    def _keep_what_goes(self, manifest: Manifest) -> None:
        ours = [name for name in self._disk.names() if is_ours(name) or name == NAME]
        going = [name for name in ours if name not in (TEMPORARY, *manifest.files)]
        if going:
            self._disk.keep(going, self._folder)
            self._done.append(f"{', '.join(going)}: kept in {self._folder} as it was")

    def _publish(self, manifest: Manifest) -> None:
        replace_manifest(self._disk)
        try:
            sweep(self._disk, manifest)
            self._disk.sync_directory()
        except OSError as problem:
            reason = problem.strerror or problem
            self._done.append(
                f"replaced files could not be removed ({reason}); a start removes them"
            )

    def _discard(self, made: Manifest) -> None:
        names = self._disk.names()
        for name in (*made.files, f"{made.base}.tmp"):
            with suppress(OSError):
                if name in names:
                    self._disk.remove(name)
        discard_manifest(self._disk)  # last, because it identifies the other files


class Salvage:
    """The readable data of the files that a manifest names, in a keyspace; `seq` is the last
    frame's number.

    Effects on keys with losses may no longer be applicable; these are left out. An append to a lost
    stream creates the stream again, because the entry was acknowledged and can be read.
    """

    def __init__(self, disk: Disk, manifest: Manifest, now_ms: int) -> None:
        self.keyspace = new_keyspace(now_ms)
        self.stored = StoredKeyspace(self.keyspace)
        self.seq = 0
        self._now_ms = now_ms
        self._whole = True
        self._skipped: Counter[tuple[int, bytes]] = Counter()
        self._gaps: list[Gap] = []
        with ExitStack() as stack:
            names = set(disk.names()) - set(misplaced(disk, manifest))
            if manifest.base is not None:
                file = disk.read(manifest.base)
                stack.callback(file.close)
                self._read_base(RecoveryReader(open_base(file), Block, keeping=True))
            journals = []
            for name in manifest.journals:
                if name in names:
                    journals.append(disk.read(name))
                    stack.callback(journals[-1].close)
            self._read_journals(journals)

    def _read_journals(self, journals: list[File]) -> None:
        """Apply every readable frame. After a gap, effects may depend on lost ones, so each effect
        is applied if possible."""
        for one in surviving_frames(journals, self.seq + 1):
            if isinstance(one, Gap):
                self._whole = False
                self._gaps.append(one)
            else:
                _, self.seq, payload = one
                self._apply(payload)

    def gap_words(self) -> list[str]:
        """Names the missing frames."""
        return [f"without {words_for_gap(gap)}" for gap in self._gaps]

    def skipped_words(self) -> list[str]:
        """Describes the effects that were left out because they change lost data."""
        return [
            f"{counted(count, 'effect')} on {named(db, key)} skipped: the data it changes is lost"
            for (db, key), count in self._skipped.most_common(_SKIPPED_SHOWN)
        ]

    def _read_base(self, recovery: RecoveryReader[Block]) -> None:
        keyspace = self.keyspace
        self.seq = recovery.summary.seq
        if recovery.summary.global_meta:
            self.stored.restore_global(recovery.summary.global_meta)
        for recovered in recovery.read():
            record = recovered.record
            if recovered.lost:
                self._whole = False
            if recovered.meta is not None:
                incarnation = recovered.meta.get("incarnation", 0)
                keyspace.incarnation = max(keyspace.incarnation, incarnation)
            kept = self._what_is_left(recovered)
            if kept is not None:
                self._restore(record, *kept)
        if recovery.lost_keys or recovery.lost:
            self._whole = False

    def _restore(self, record: KeyRecord, meta: dict[str, Any], blocks: list[Block]) -> None:
        try:
            self.stored.restore(record.db, record.key, record.kind, meta, blocks)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"this cannot be repaired: the key {record.key!r} cannot be restored ({error})"
                " although its checksums are correct; restore the directory from a copy"
            ) from error

    def _what_is_left(
        self, recovered: Recovered[Block]
    ) -> tuple[dict[str, Any], list[Block]] | None:
        if recovered.meta is not None and not recovered.lost:
            return recovered.meta, recovered.blocks
        if recovered.record.kind != "stream":
            return None
        if recovered.meta is not None:
            return without_lost_pieces(recovered)
        return without_meta(recovered, self.keyspace.next_incarnation(self._now_ms))

    def _apply(self, payload: bytes) -> None:
        if self._whole:
            try:
                apply_effects(self.keyspace, payload)
            except EffectError as error:
                raise DataError(
                    f"this cannot be repaired: frame {self.seq} cannot be applied ({error}) though"
                    " its checksum fits; restore the directory from a copy"
                ) from error
            return
        for db, words, single in split_effects(payload):
            try:
                apply_effects(self.keyspace, single)
            except EffectError:
                self._apply_to_lost(db, words, single)

    def _apply_to_lost(self, db: int, words: list[bytes], single: bytes) -> None:
        """Apply an effect to a value that was lost or changed by a loss."""
        databases = self.keyspace.databases
        name, key = words[0], words[1] if len(words) > 1 else b""
        if name in (*APPENDING, b"SCHEDULE") and databases[db].get(key) is None:
            incarnation = self.keyspace.next_incarnation(self._now_ms)
            databases[db].set(key, Stream(incarnation))
            with suppress(EffectError):
                apply_effects(self.keyspace, single)
                return
        if name == b"STREAM":  # a lost effect deleted the earlier stream
            databases[db].delete(key)
            with suppress(EffectError):
                apply_effects(self.keyspace, single)
                return
        if name in (b"RENAME", b"COPY"):  # the new value is lost, and the old value was replaced
            databases[int(words[2])].delete(words[3])
        self._skipped[db, key] += 1


def without_lost_pieces(recovered: Recovered[Block]) -> tuple[dict[str, Any], list[Block]]:
    """A stream's metadata and blocks as if its lost pieces had been evicted."""
    meta, blocks = dict(recovered.meta or {}), recovered.blocks
    first_kept = tuple(meta["first_kept"])
    hidden = 0
    if blocks and blocks[0].first_id < first_kept:
        hidden = sum((ms, seq) < first_kept for ms, seq, _ in blocks[0].entries())
        if hidden == blocks[0].live:
            blocks, hidden = blocks[1:], 0
    length = sum(block.live for block in blocks) - hidden
    lost = recovered.lost.pieces[-1]
    end = recovered.record.pieces[-1]
    if not blocks or blocks[-1].last_id < (end.max_ms, end.max_seq):
        meta["open"] = False
    meta["entries_evicted"] += meta["length"] - length
    meta["length"] = length
    meta["max_evicted"] = max(tuple(meta["max_evicted"]), (lost.max_ms, lost.max_seq))
    return meta, blocks


def without_meta(
    recovered: Recovered[Block], incarnation: int
) -> tuple[dict[str, Any], list[Block]]:
    """A stream with only blocks left: no groups, and counters computed from the blocks."""
    meta, blocks, lost = dump_stream(Stream(incarnation))[0], recovered.blocks, recovered.lost
    pieces = recovered.record.pieces
    if not pieces:
        return meta, blocks
    ends = [(piece.max_ms, piece.max_seq) for piece in lost.pieces]
    if lost.first_block is not None:
        ends.append(lost.first_block[2])
    meta["length"] = sum(block.live for block in blocks)
    meta["last_id"] = (pieces[-1].max_ms, pieces[-1].max_seq)
    meta["entries_added"] = sum(piece.entries for piece in pieces)
    meta["entries_evicted"] = meta["entries_added"] - meta["length"]
    meta["max_evicted"] = max(ends)
    return meta, blocks
