"""The current files of the data directory: the manifest, and the corrections at start.

Files become current, or stop being current, only when the manifest is replaced. This module also
has the next number of a file, so that no name is used twice.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream.errors import DataError, StartError
from millstream.server.durability.directory_loader import LoadReport
from millstream.storage.files.disk import Disk, make_directory, size_of
from millstream.storage.files.journal_file import JournalFile, continue_journal, create_journal
from millstream.storage.files.journal_format import ID_SIZE, read_head
from millstream.storage.files.journal_reader import TornEnd, cut_torn_end, empty_later_journals
from millstream.storage.files.leftovers import remove_leftovers
from millstream.storage.files.manifest import (
    NAME,
    Manifest,
    base_name,
    discard_manifest,
    journal_name,
    load_manifest,
    read_manifest,
    replace_manifest,
    store_manifest,
    sweep,
    write_manifest,
)

log = logging.getLogger("millstream.persistence")


class DataFiles:
    """The directory's manifest and the files that it names. `manifest` is the durable one."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.manifest = Manifest(None, (), 1, b"")
        self.next_number = 1
        self.directory = b""  # the ID for every new file
        self.unfinished: set[str] = set()  # written besides a snapshot: a base that is received
        self.node = ""  # the ID of this server as a node of a cluster
        self._is_adopted = True  # False while it is unknown if the data is that of this node
        self.primary = ""  # the server that has accepted this one as its replica
        self.promised = 0  # the greatest term that was promised in the shard
        self._primary_failed = False
        self._perhaps_named: set[str] = set()  # by a manifest whose replacement failed

    # At start

    def open(self, report: LoadReport) -> None:
        """Read the manifest, or write the first one."""
        manifest = load_manifest(self.disk)
        if manifest is None:
            manifest = Manifest(None, (), 1, self.disk.random(ID_SIZE), node=self.node)
            store_manifest(self.disk, manifest)
        self._check_node(manifest)
        self.manifest = manifest
        self.primary, self.promised = manifest.primary, manifest.promised
        self.next_number = manifest.next_number
        self.directory = manifest.directory or self.disk.random(ID_SIZE)
        report.base, report.journals = manifest.base, manifest.journals

    def _check_node(self, manifest: Manifest) -> None:
        """DataError if this is the data of another node. A backup or a repaired manifest may have
        no ID: `adopt` follows, after a check of the keys."""
        self._is_adopted = manifest.node == self.node
        if self._is_adopted or not manifest.node:
            return
        if not self.node:
            raise DataError(
                f"this is the data of a node of a cluster ({manifest.node}): start all nodes of one"
                " machine with `millstream serve --shards`, and --dir with the directory above, and"
                " a node of a cluster in etcd with cluster-name and cluster-etcd"
            )
        raise DataError(
            f"{NAME} is that of the node {manifest.node}, but cluster.json expects {self.node}: put"
            " the directories back as they were, or copy them with `millstream cluster split`"
        )

    def adopt(self) -> None:
        """Write the ID of the node into the manifest, if it has none: the data is that of this
        node. DataError if it cannot be written."""
        if self._is_adopted:
            return
        self._is_adopted = True
        try:
            self.publish(self.manifest._replace(next_number=self.next_number))
        except OSError as error:
            raise unreadable(error) from error
        log.info("the data of this directory is now that of the node %s", self.node)

    def remove_leftovers(self, report: LoadReport) -> Iterator[None]:
        """Remove unfinished files, in slices: large files may have to be read."""
        yield from remove_leftovers(self.disk, self.manifest, report.removed)
        if report.removed:
            report.notes.append(
                "removed files that are not in use, unfinished or replaced:"
                f" {', '.join(report.removed)}"
            )

    def refusal_of(self, torn: TornEnd, last_seq: int) -> DataError:
        """aof-load-truncated no: the reason why a journal with a torn end is not loaded."""
        return DataError(
            f"{self.manifest.journals[torn.number]} ends in an unfinished write at offset"
            f" {torn.offset}, and aof-load-truncated is no. Start with"
            f" --aof-load-truncated yes to cut {torn.torn_bytes} bytes off; frame {last_seq} is the"
            " last one then"
        )

    def cut(self, torn: TornEnd, report: LoadReport, last_seq: int) -> None:
        """Cut the journals at their torn end; `last_seq` is the last valid frame."""
        names = self.manifest.journals
        kept = torn.kept(names)
        empty_later_journals(self.disk, names, torn)
        if kept != names:
            self.publish(self.manifest._replace(journals=kept, next_number=self.next_number))
        cut_torn_end(self.disk, names, torn)
        sweep(self.disk, self.manifest)
        report.torn_bytes = torn.torn_bytes
        report.notes.append(
            f"{names[torn.number]} ended in an unfinished write at offset {torn.offset}:"
            f" {torn.torn_bytes} bytes were cut off, frame {last_seq} is the last one"
        )

    def continued_journal(self) -> JournalFile:
        """The journal to continue in, after a sync of all files: the data that was read may not be
        on the disk yet. A journal of an earlier version gets no more frames: a new one follows."""
        names = self.manifest.journals
        for name in names[:-1]:
            self._sync(name)
        if names and self._is_current(names[-1]):
            return continue_journal(self.disk, names[-1])
        for name in names[-1:]:
            self._sync(name)
        name = journal_name(self.new_number())
        create_journal(self.disk, name, self.directory).file.close()
        self.publish_journal(name, self.next_number, names)
        return continue_journal(self.disk, name)

    def _sync(self, name: str) -> None:
        file = self.disk.append(name)
        file.sync()
        file.close()

    def _is_current(self, journal: str) -> bool:
        file = self.disk.read(journal)
        try:
            return read_head(file).is_current
        finally:
            file.close()

    # While the server runs

    def new_number(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def publish_journal(self, name: str, next_number: int, finished: Sequence[str] = ()) -> None:
        """Add a journal to the manifest. Remove those of the `finished` journals that have no
        frames and will get none: failed snapshots leave such files."""
        empty = set(filter(self._is_empty, finished))
        journals = tuple(one for one in self.manifest.journals if one not in empty)
        self.publish(self.manifest._replace(journals=journals).with_journal(name, next_number))
        if empty:
            self.remove_replaced()

    def _is_empty(self, journal: str) -> bool:
        try:
            file = self.disk.read(journal)
        except FileNotFoundError:  # all files were removed
            return False
        try:
            return file.size <= read_head(file).format.header_size
        finally:
            file.close()

    def publish_base(
        self,
        base: str,
        journals: tuple[str, ...],
        next_number: int,
        renames: Sequence[tuple[str, str]],
    ) -> None:
        """Replace all current files by a base and the journals after it; `renames` as in
        `publish`."""
        self.publish(Manifest(base, journals, next_number, self.directory), renames)

    def publish_replacement(
        self,
        base: str | None,
        journals: tuple[str, ...],
        number: int,
        renames: Sequence[tuple[str, str]],
    ) -> None:
        """Replace all current files, which have lower numbers than `number`, by the data of another
        server: they do not count any more, whatever frames they have."""
        next_number = max(self.next_number, number + 1)
        manifest = Manifest(base, journals, next_number, self.directory, replaced=number)
        self.publish(manifest, renames)

    def note_primary(self, primary: str) -> None:
        """The next manifest contains this record of the primary."""
        self.primary = primary

    def note_promise(self, term: int) -> None:
        """The next manifest contains this promise."""
        self.promised = term

    @property
    def is_primary_published(self) -> bool:
        """True if `primary` and `promised` are on the disk."""
        manifest = self.manifest
        return manifest.primary == self.primary and manifest.promised == self.promised

    def publish_primary(self) -> None:
        """Write `primary` and `promised` to the disk. A failure is logged once."""
        if self.is_primary_published:
            return
        try:
            self.publish(self.manifest._replace(next_number=self.next_number))
        except OSError as error:
            if not self._primary_failed:
                log.warning("the address of the primary could not be stored: %s", in_words(error))
            self._primary_failed = True
        else:
            self._primary_failed = False

    def publish(self, manifest: Manifest, renames: Sequence[tuple[str, str]] = ()) -> None:
        """Make a manifest the current one. After an OSError either the old or this manifest is
        current.

        `renames` give files their final names after manifest.tmp, which names them, is on the disk,
        and before it becomes the manifest. A start can therefore recognize files that were never
        current (storage/files/leftovers). A directory of version 1 gets its ID here, and later
        files must have it.
        """
        self._settle()
        before = self.manifest
        since = before.since if before.directory else before.next_number
        node = self.node if self._is_adopted else ""
        manifest = manifest._replace(
            directory=self.directory,
            since=since,
            primary=self.primary,
            promised=self.promised,
            node=node,
        )
        write_manifest(self.disk, manifest)
        if renames:
            for old, new in renames:
                self.disk.rename(old, new)
            self.disk.sync_directory()
        self._perhaps_named.update(manifest.files)
        replace_manifest(self.disk)
        self._perhaps_named.clear()
        self.manifest = manifest

    def _settle(self) -> None:
        """After a failed replacement: determine which manifest is current, and remove files that
        only the other one names."""
        if not self._perhaps_named:
            return
        self.disk.sync_directory()
        self.manifest = read_manifest(self.disk) or self.manifest
        for name in self._perhaps_named.difference(self.manifest.files):
            if name in self.disk.names():
                self.disk.remove(name)
        self.disk.sync_directory()
        self._perhaps_named.clear()

    def remove_replaced(self) -> None:
        """Remove files that the manifest no longer names; after a failure the next start tries
        again."""
        try:
            sweep(self.disk, self.manifest, self.unfinished)
        except OSError as error:
            log.warning("old files could not be removed: %s", in_words(error))

    def remove_unfinished(self, number: int) -> None:
        """Remove the files of a cancelled snapshot: otherwise each attempt would use more of a full
        disk. Files that the manifest may name after a failed replacement are kept."""
        finals = {base_name(number), journal_name(number)}
        names = {*finals, *map(temporary, finals)} - {*self.manifest.files, *self._perhaps_named}
        try:
            there = names.intersection(self.disk.names())
            for name in sorted(there):
                self.disk.remove(name)
            if there and not self._perhaps_named:
                self.disk.sync_directory()
                discard_manifest(self.disk)
        except OSError as error:
            log.warning("unfinished files could not be removed: %s", in_words(error))

    def sizes_of(self, names: tuple[str, ...]) -> int:
        """The total size of these files."""
        return sum(size_of(self.disk, name) for name in names)

    def first_lost(self, manifest_only: bool) -> str | None:
        """A file that should exist and was removed, if any."""
        names = [NAME] if manifest_only else [NAME, *self.manifest.files]
        return next((name for name in names if not self.disk.holds(name)), None)

    def lock_again(self) -> None:
        """Lock the directory again, which may be a new one, after the files were removed and before
        all data is written again."""
        self.disk.unlock()
        try:
            self.disk.lock()
        except DataError as error:
            log.error("%s", error)


def temporary(name: str) -> str:
    """The name of a base or journal that is not current yet."""
    return name + ".tmp"


def in_words(error: BaseException) -> str:
    """The operating system's text for an error. Errors of TLS and of look-ups of names have numbers
    of their own."""
    if isinstance(error, socket.gaierror) and error.strerror:
        return error.strerror
    if (
        isinstance(error, OSError)
        and error.errno is not None
        and not isinstance(error, ssl.SSLError)
    ):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def unreadable(error: OSError) -> DataError:
    name = error.filename or "the data directory"
    return DataError(f"{name} cannot be read or written: {in_words(error)}")


def misconf(error: BaseException) -> bytes:
    """The error for refused writes, in Redis' words."""
    return f"MISCONF Errors writing to the AOF file: {in_words(error)}".encode()


def gone() -> OSError:
    return OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def prepare_directory(path: Path) -> None:
    """Create the data directory if it does not exist; StartError when it cannot be used."""
    try:
        if not path.is_dir():
            make_directory(path)
    except FileExistsError:
        raise StartError(f"cannot use the data directory {path}: it is not a folder") from None
    except OSError as problem:
        raise StartError(f"cannot use the data directory {path}: {problem.strerror}") from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        reason = "its file system is read-only" if read_only else os.strerror(errno.EACCES)
        raise StartError(f"cannot use the data directory {path}: {reason}")
