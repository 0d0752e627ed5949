"""Checks a data directory: reads every file to its end, and loads all data once.

Nothing is changed. First each file is checked separately, in pieces, so that memory is bounded for
any size and all damage is found, not only the first. If all files are valid, the data is then
loaded as at the start of a server, with a server's memory: only this shows whether the effects can
be applied. The reader is the one that a start uses, so it makes the same distinction between torn
and damaged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack, suppress
from functools import partial

from millstream.commands.runtime.effects import apply_effects
from millstream.commands.table.loader import load_table
from millstream.errors import DamageError, DataError, ForeignError, FormatError, counted
from millstream.server.durability.directory_loader import Loader, LoadReport
from millstream.server.repair.backup_description import (
    DESCRIPTION,
    fault_of_contents,
    fault_of_files,
    read_description,
    unreadable,
)
from millstream.server.repair.check_report import (
    FileReport,
    Place,
    Report,
    Verdict,
    words_for_gap,
    words_for_lost,
)
from millstream.server.repair.destination import without_data
from millstream.storage.blocks.block import Block
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files.damaged_base import Opened, open_base
from millstream.storage.files.disk import Disk, File, size_of
from millstream.storage.files.journal_reader import Gap, JournalReader, TornEnd, surviving_frames
from millstream.storage.files.leftovers import Leftover, find_leftovers
from millstream.storage.files.lost_manifest import directory_of, guess_manifest, misplaced
from millstream.storage.files.manifest import (
    NAME,
    Manifest,
    check_manifest_owner,
    check_owner,
    is_base,
    is_ours,
    read_manifest,
)
from millstream.storage.files.recovery import RecoveryReader
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

DATABASES = 10_000  # the maximum of `databases`: no file contains the actual setting
KEPT = re.compile(r"(damaged|discarded)-\d{8}-\d{6}(-\d+)?(\.tmp)?")
_LOSSES_SHOWN = 1000


class Checker:
    """One check. `tell(done, total)` is called with the bytes that were checked."""

    def __init__(self, disk: Disk, now_ms: int, tell: Callable[[int, int], None]) -> None:
        self._disk = disk
        self._now_ms = now_ms
        self._tell = tell
        self._done_bytes = self._total_bytes = 0
        self.report = Report(str(disk.directory))

    def run(self, *, load: bool) -> Report:
        """Check all files; `load`: also load all data, if the files are valid."""
        report = self.report
        self._check_manifest()
        self._check_unnamed()
        manifest = report.manifest
        if manifest is not None:
            self._check_named(manifest, load)
        self._check_others(manifest)
        if manifest is not None and report.verdict is Verdict.WHOLE and load:
            self._load(manifest)
        self._check_description()
        return report

    def _check_description(self) -> None:
        """Compare the description of a backup with the folder."""
        report = self.report
        fault: str | None
        try:
            facts = read_description(self._disk)
            if facts is None:
                return
            fault = fault_of_files(self._disk, facts)
            if fault is None and report.verdict is Verdict.WHOLE:
                found = {
                    "last_frame": report.last_frame,
                    "keys": report.total_keys,
                    "entries": report.total_entries,
                }
                fault = fault_of_contents(self._disk, facts, found)
        except ValueError as problem:
            fault = unreadable(problem)
        if fault is None:
            return
        file = next(file for file in report.files if file.name == DESCRIPTION)
        file.state = "differs"
        file.places.append(Place(None, fault))
        if report.verdict is Verdict.WHOLE:  # otherwise, what can be repaired is
            report.hopeless = f"the files do not fit {DESCRIPTION}"
        report.worsen(Verdict.DAMAGED)

    def _check_manifest(self) -> None:
        report = self.report
        file = FileReport(NAME)
        report.files.append(file)
        try:
            report.manifest = read_manifest(self._disk)
            self._check_manifest_owner(report.manifest)
        except FormatError as problem:
            self._unknown(file, problem)
            return
        except DamageError as damage:
            file.wrong(damage)
            report.worsen(Verdict.DAMAGED)
            self._guess()
        if report.manifest is None and report.hopeless is None:
            raise without_data(self._disk)
        if NAME in self._disk.names():
            file.size_bytes = self._size(NAME)
        if report.manifest is not None and file.state == "ok":
            file.holds = f"names {counted(len(report.manifest.files), 'file')}"

    def _check_manifest_owner(self, manifest: Manifest | None) -> None:
        """ForeignError when the manifest itself belongs to another directory."""
        if manifest is None:
            return
        there = set(self._disk.names())
        found = {name: directory_of(self._disk, name) for name in manifest.files if name in there}
        check_manifest_owner(manifest, {name: one for name, one in found.items() if one})

    def _guess(self) -> None:
        report = self.report
        try:
            report.manifest = guess_manifest(self._disk)
        except DataError as problem:
            report.hopeless = str(problem)
            return
        if not report.manifest.files:  # perhaps another program's file; there is no data to save
            report.manifest = None
            report.hopeless = f"the directory has a {NAME} but no file of a server"
            return
        named = ", ".join(report.manifest.files)
        report.notes.append(f"the files themselves show that {named} are in use")

    def _check_unnamed(self) -> None:
        """Check files that a start would not remove, because the manifest is older than they are. A
        repair includes those that continue after the end of the current data."""
        manifest = self.report.manifest
        if manifest is None or self.report.files[0].state != "ok":
            return
        try:
            found = [one for one in find_leftovers(self._disk, manifest) if one.holds]
        except DataError:
            return  # the base's report has the reason
        if not found:
            return
        self.report.worsen(Verdict.DAMAGED)
        foreign = [one for one in found if one.is_foreign]
        own = [one for one in found if not one.is_foreign]
        wider = self._wider_manifest(manifest, {one.name for one in foreign})
        if own and wider is not None and {one.name for one in own} <= set(wider.files):
            self._take_in(own, wider)
            own = []
        for one in own:
            self._unnamed(one, f"this file: it {one.holds}, which do not continue after the rest")
        for one in foreign:
            self._unnamed(one, "no data of this directory")

    def _take_in(self, found: Sequence[Leftover], wider: Manifest) -> None:
        self.report.manifest = wider
        self.report.files[0].state = "damaged"
        for one in found:
            reason = f"does not name {one.name}, which {one.holds} and continues after the rest"
            self.report.files[0].places.append(Place(None, reason))

    def _unnamed(self, one: Leftover, loses: str) -> None:
        file = FileReport(one.name, self._size(one.name), "unnamed")
        file.places.append(Place(None, one.reason))
        file.loses.append(loses)
        self.report.files.append(file)

    def _wider_manifest(self, manifest: Manifest, without: Set[str]) -> Manifest | None:
        """The manifest that follows from the files, if it is unambiguous."""
        try:
            wider = guess_manifest(self._disk, without)
        except DataError:
            return None
        if wider.directory != manifest.directory:
            return None
        return wider._replace(
            next_number=max(wider.next_number, manifest.next_number),
            since=max(wider.since, manifest.since),
        )

    def _check_named(self, manifest: Manifest, load: bool) -> None:
        names = self._disk.names()
        there = [name for name in manifest.files if name in names]
        self._total_bytes = sum(map(self._size, there)) * (2 if load else 1)
        missing = [name for name in manifest.files if name not in names]
        foreign = misplaced(self._disk, manifest)
        first_seq: int | None = 1
        for name in foreign:
            self._misplaced(manifest, name)
        if manifest.base in missing:
            self._miss(manifest.base, "it is unknown what it held")
            first_seq = None
        elif manifest.base in foreign:
            first_seq = None
        elif manifest.base is not None:
            first_seq = self._check_base(manifest.base)
        for name in manifest.journals:
            if name in missing:
                self._miss(name, None)
        journals = [name for name in manifest.journals if name in there and name not in foreign]
        if first_seq is not None:
            self._check_journals(journals, first_seq)
        else:
            self.report.files += [FileReport(n, self._size(n), "unread") for n in journals]

    def _misplaced(self, manifest: Manifest, name: str) -> None:
        file = FileReport(name, self._size(name))
        try:
            check_owner(manifest, name, directory_of(self._disk, name) or b"")
        except ForeignError as problem:
            file.wrong(problem)
        file.loses.append("everything in the lost file; this file has no data of this directory")
        self.report.files.append(file)
        self.report.worsen(Verdict.DAMAGED)
        if is_base(name):
            self.report.hopeless = f"{name} belongs to another data directory"

    def _miss(self, name: str, hopeless: str | None) -> None:
        damage = DamageError(name, None, f"is missing although {NAME} names it")
        file = FileReport(name)
        file.wrong(damage)
        file.loses.append("all of its contents, which are unknown")
        self.report.files.append(file)
        self.report.worsen(Verdict.DAMAGED)
        if hopeless is not None:
            self.report.hopeless = f"{name} is missing and {hopeless}"

    def _unknown(self, file: FileReport, problem: FormatError) -> None:
        file.state = "unknown"
        file.places.append(Place(None, str(problem)))
        self.report.worsen(Verdict.UNCHECKED)

    # The base

    def _check_base(self, name: str) -> int | None:
        """The number of the frame that must follow the base; None when it cannot be determined."""
        file = FileReport(name, self._size(name))
        self.report.files.append(file)
        with ExitStack() as stack:
            opened_file = self._disk.read(name)
            stack.callback(opened_file.close)
            try:
                opened = open_base(opened_file)
            except FormatError as problem:
                self._unknown(file, problem)
                return None
            except DamageError as damage:
                file.wrong(damage)
                self.report.worsen(Verdict.DAMAGED)
                self.report.hopeless = f"nothing in {name} shows any longer where its contents are"
                return None
            self._check_keys(file, opened)
        self._advance(file.size_bytes)
        self.report.last_frame = opened.reader.summary.seq
        return opened.reader.summary.seq + 1

    def _check_keys(self, file: FileReport, opened: Opened) -> None:
        recovery = RecoveryReader(opened, Block, keeping=False)
        before = self._done_bytes
        for recovered in recovery.read():
            if recovered.lost and len(file.loses) < _LOSSES_SHOWN:
                file.loses.append(words_for_lost(recovered))
            if recovered.record.pieces:
                chunk = recovered.record.pieces[-1].chunk
                if chunk < len(opened.reader.summary.chunks):
                    self._tell(
                        before + opened.reader.summary.chunks[chunk].offset, self._total_bytes
                    )
        if recovery.lost_keys:
            file.loses.append(f"{counted(recovery.lost_keys, 'key')}; it is unknown which")
        file.loses += recovery.lost
        for damage in recovery.damage:
            file.wrong(damage)
            self.report.worsen(Verdict.DAMAGED)
        summary = opened.reader.summary
        file.holds = (
            f"{counted(recovery.keys, 'key')}, {counted(recovery.entries, 'entry')},"
            f" {counted(len(summary.chunks), 'chunk')}, up to frame {summary.seq}"
        )

    # The journals

    def _check_journals(self, names: Sequence[str], first_seq: int) -> None:
        with ExitStack() as stack:
            files = []
            for name in names:
                files.append(self._disk.read(name))
                stack.callback(files[-1].close)
            reports = {name: FileReport(name, self._size(name)) for name in names}
            self.report.files += reports.values()
            reader = JournalReader(files, first_seq)
            try:
                self._count_frames(reader, reports)
            except FormatError as problem:
                wrong = next(name for name in names if str(problem).startswith(name))
                self._unknown(reports[wrong], problem)
            except DamageError as damage:
                reports[damage.file].wrong(damage)
                self.report.worsen(Verdict.DAMAGED)
                self._count_lost(files, first_seq, reports, reports[damage.file])
            if self.report.verdict is Verdict.DAMAGED and names:
                self._count_missing(files, first_seq, reports)
            if self.report.verdict is Verdict.WHOLE:
                self.report.last_frame = reader.next_seq - 1
            if reader.torn is not None:
                self._torn(reports[names[reader.torn.number]], reader.torn)
        self._advance(sum(file.size_bytes for file in reports.values()))

    def _count_frames(self, reader: JournalReader, reports: dict[str, FileReport]) -> None:
        counts: Counter[str] = Counter()
        before = self._done_bytes
        try:
            for file, offset, _ in reader.frames():
                counts[file.name] += 1
                if counts[file.name] % 1024 == 0:
                    self._tell(before + offset, self._total_bytes)
        finally:
            for name, file_report in reports.items():
                file_report.holds = counted(counts[name], "frame")

    def _count_missing(
        self, files: Sequence[File], first_seq: int, reports: dict[str, FileReport]
    ) -> None:
        """Report what a repair loses if a whole journal is missing before these."""
        if not any(report.loses for report in reports.values()):
            for one in surviving_frames(files, first_seq):
                if isinstance(one, Gap) and one.last is not None:
                    reports[one.file].loses.append(words_for_gap(one))

    def _count_lost(
        self,
        files: Sequence[File],
        first_seq: int,
        reports: dict[str, FileReport],
        damaged: FileReport,
    ) -> None:
        """Count the frames of each file that a repair keeps, and those that it cannot keep."""
        counts: Counter[str] = Counter()
        for one in surviving_frames(files, first_seq):
            if isinstance(one, Gap):
                damaged.loses.append(words_for_gap(one))
            else:
                counts[one[0].name] += 1
        for name, report in reports.items():
            report.holds = f"{counted(counts[name], 'frame')} that can be read"

    def _torn(self, report: FileReport, torn: TornEnd) -> None:
        report.state = "torn"
        report.places.append(
            Place(
                torn.offset,
                f"an unfinished write of {torn.torn_bytes} bytes, left by a crash: the next start"
                " cuts it off",
            )
        )

    # The rest

    def _check_others(self, manifest: Manifest | None) -> None:
        """Check files that the manifest does not name: a start removes those with names of ours and
        leaves the others. Without a manifest the current files are unknown, and a server does not
        start."""
        known = {NAME, "lock", *(manifest.files if manifest is not None else ())}
        known |= {file.name for file in self.report.files}
        for name in self._disk.names():
            if name in known:
                continue
            file = FileReport(name, state=_state_of_other(name))
            if manifest is None and is_ours(name):
                file.state = "unjudged"
            with suppress(OSError):  # it may be any kind of file
                file.size_bytes = self._size(name)
            self.report.files.append(file)

    def _load(self, manifest: Manifest) -> None:
        """Load all data, as a server would."""
        before = self._done_bytes
        result = LoadReport()

        def tell(done: int, total: int) -> None:
            self._tell(before + done, self._total_bytes)

        try:
            keyspace = load_strictly(
                self._disk, manifest, result, self._now_ms, tell, clustered=True
            )
            self.report.total_keys = sum(map(len, keyspace.databases))
            self.report.total_entries = _entries_in(keyspace)
        except DamageError as damage:  # the disk returned other bytes than before
            self.report.notes.append(str(damage))
            self.report.worsen(Verdict.DAMAGED)
        except DataError as problem:
            self.report.notes.append(str(problem))
            self.report.worsen(Verdict.UNCHECKED)
        self.report.keys, self.report.entries = result.keys, result.entries
        self.report.frames, self.report.effects = result.frames, result.effects

    def _size(self, name: str) -> int:
        return size_of(self._disk, name)

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._tell(self._done_bytes, self._total_bytes)


def _state_of_other(name: str) -> str:
    if is_ours(name):
        return "unfinished" if name.endswith(".tmp") else "unnamed"
    if name == DESCRIPTION:
        return "description"
    return "kept" if KEPT.fullmatch(name) else "foreign"


def load_strictly(
    disk: Disk,
    manifest: Manifest,
    report: LoadReport,
    now_ms: int,
    tell: Callable[[int, int], None] | None = None,
    *,
    clustered: bool = False,
) -> Keyspace:
    """Load the files that a manifest names into a new keyspace. DataError as at a start. If it is
    `clustered`, the keys are in another order, and those of a slot, which a node may have removed
    before it copied them, are found at once."""
    keyspace = new_keyspace(now_ms, clustered=clustered)
    for _ in loader_of(disk, keyspace).read(manifest, report, tell):
        pass
    return keyspace


def _entries_in(keyspace: Keyspace) -> int:
    return sum(
        value.length
        for database in keyspace.databases
        for value in database.table.values()
        if isinstance(value, Stream)
    )


def loader_of(disk: Disk, keyspace: Keyspace) -> Loader:
    """A loader that fills a keyspace as a start does."""
    return Loader(disk, StoredKeyspace(keyspace), partial(apply_effects, keyspace), Block)


def new_keyspace(
    now_ms: int, databases_count: int | None = None, *, clustered: bool = False
) -> Keyspace:
    """An empty keyspace that accepts all data that a server may have written."""
    load_table()
    count = DATABASES if databases_count is None else databases_count
    keyspace = Keyspace(count, clustered=clustered)
    keyspace.set_time(now_ms)
    return keyspace
