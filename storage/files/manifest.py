"""The manifest: the base and the journals that make up the data, in reading order.

The manifest is the only file that is replaced, and a snapshot or a new journal becomes part of the
data when it is replaced. All other steps only add files before that moment and remove files after
it, so a crash at any step leaves a directory that loads. The manifest is text, because an operator
reads it when something is wrong. docs/formats.md has the byte layout.
"""

import contextlib
import re
import zlib
from collections.abc import Collection, Container
from typing import NamedTuple

from millstream.errors import DamageError, ForeignError, FormatError
from millstream.storage.files.disk import Disk

NAME = "manifest"
TEMPORARY = "manifest.tmp"
# Files of a folder with the directories of several servers.
NODES_NAME = "cluster.json"
NODES_BACKUP_NAME = "cluster-backup.json"
_TITLE = "millstream-manifest 2"
_OLD_TITLE = "millstream-manifest 1"
_BASE = r"base-(\d+)\.msnap"
_JOURNAL = r"journal-(\d+)\.log"
_OURS = r"(base-\d+\.msnap|journal-\d+\.log)(\.tmp)?|manifest\.tmp"
_ID = r"[0-9a-f]{32}"
_NODE = r"[0-9a-f]{40}"
_RESTORE = "restore the data directory from a copy"


def nodes_hint(names: Container[str], directory: object) -> str:
    """For the error about a directory without a manifest that has files with these names: where the
    data is. "" if there is nothing to say."""
    if NODES_BACKUP_NAME in names:
        return (
            ": it is the backup of a cluster, which `millstream cluster restore` copies; each "
            "folder in it is the backup of one node"
        )
    if NODES_NAME in names:
        return f": it is a directory of nodes; name one of them, such as {directory}/0001"
    return ""


def base_name(number: int) -> str:
    return f"base-{number}.msnap"


def journal_name(number: int) -> str:
    return f"journal-{number}.log"


def is_base(name: str) -> bool:
    return re.fullmatch(_BASE, name) is not None


def is_journal(name: str) -> bool:
    return re.fullmatch(_JOURNAL, name) is not None


def is_ours(name: str) -> bool:
    """True if a file of this name is removed if the current manifest does not name it."""
    return re.fullmatch(_OURS, name) is not None


def number_of(name: str) -> int:
    """The number in the name of a base or journal."""
    return int(re.sub(r"\D", "", name))


def next_number(disk: Disk, manifest: "Manifest") -> int:
    """A number that no file is known to have had."""
    used = [number_of(name) for name in disk.names() if is_base(name) or is_journal(name)]
    return max([manifest.next_number, *(number + 1 for number in used)])


class Manifest(NamedTuple):
    """The current files: the base (or None), the journals in order, and the next unused number.

    `directory` is the ID in all files of the directory; b"" for a manifest of version 1, which had
    no ID. Files with numbers below `since` may have version 1. Files with numbers below `replaced`
    do not count, whatever they have: the data was replaced by that of another server. `primary` is
    the address of the server that has accepted this one as its replica, "" if there is none. `node`
    is the ID of the node of a cluster whose data this is, "" for any other server. `promised` is
    the greatest term that this member of a shard has promised.
    """

    base: str | None
    journals: tuple[str, ...]
    next_number: int
    directory: bytes
    since: int = 0
    replaced: int = 0
    primary: str = ""
    node: str = ""
    promised: int = 0

    @property
    def files(self) -> tuple[str, ...]:
        return (*([self.base] if self.base else []), *self.journals)

    def with_journal(self, name: str, next_number: int) -> "Manifest":
        return self._replace(journals=(*self.journals, name), next_number=next_number)

    def to_bytes(self) -> bytes:
        lines = [_TITLE, f"directory {self.directory.hex()}", f"since {self.since}"]
        if not self.since:
            del lines[2]
        if not self.directory:
            lines = [_OLD_TITLE]
        lines.append(f"next {self.next_number}")
        if self.replaced:
            lines.append(f"replaced {self.replaced}")
        if self.primary:
            lines.append(f"primary {self.primary}")
        if self.node:
            lines.append(f"node {self.node}")
        if self.promised:
            lines.append(f"promised {self.promised}")
        if self.base is not None:
            lines.append(f"base {self.base}")
        lines += [f"journal {name}" for name in self.journals]
        text = ("\n".join(lines) + "\n").encode("utf-8")
        return text + b"crc32 %08x\n" % zlib.crc32(text)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Parse the result of `to_bytes`; DamageError names the offset of the first fault."""
        end = data.rfind(b"crc32 ")
        if end < 0 or data[end:] != b"crc32 %08x\n" % zlib.crc32(data[:end]):
            raise _damaged(max(end, 0), "its checksum is wrong")
        lines = data[:end].decode("utf-8").splitlines()
        if not lines or lines[0] not in (_TITLE, _OLD_TITLE):
            raise FormatError(f"{NAME} has a format that this version does not know")
        return cls._from_lines(lines[1:], is_old=lines[0] == _OLD_TITLE)

    @classmethod
    def _from_lines(cls, lines: list[str], *, is_old: bool) -> "Manifest":
        base: str | None = None
        journals: list[str] = []
        next_number = since = replaced = promised = 0
        directory, primary, node = b"", "", ""
        offset = len(_TITLE) + 1
        for line in lines:
            word, _, value = line.partition(" ")
            if word == "next" and value.isdigit():
                next_number = int(value)
            elif word == "directory" and not is_old and re.fullmatch(_ID, value):
                directory = bytes.fromhex(value)
            elif word == "since" and not is_old and value.isdigit():
                since = int(value)
            elif word == "replaced" and not is_old and value.isdigit():
                replaced = int(value)
            elif word == "primary" and not is_old:
                primary = value
            elif word == "node" and not is_old and re.fullmatch(_NODE, value):
                node = value
            elif word == "promised" and not is_old and value.isdigit():
                promised = int(value)
            elif word == "base" and base is None and re.fullmatch(_BASE, value):
                base = value
            elif word == "journal" and re.fullmatch(_JOURNAL, value):
                journals.append(value)
            else:
                raise _damaged(offset, f"the line {line!r} is not understood")
            offset += len(line) + 1
        if not is_old and not directory:
            raise _damaged(len(_TITLE) + 1, "it has no directory ID")
        return cls(
            base, tuple(journals), next_number, directory, since, replaced, primary, node, promised
        )


def check_owner(manifest: Manifest, file: str, directory: bytes) -> None:
    """ForeignError when a file with this ID does not belong to the manifest's data directory."""
    if not is_owned(manifest, file, directory):
        whose = f"its ID is {directory.hex()}" if directory else "it has no ID"
        ours = f"that of {NAME} is {manifest.directory.hex()}"
        if not manifest.directory:
            ours = f"{NAME} has none"
        reason = f"belongs to another data directory: {whose}, {ours}"
        raise ForeignError(file, None, reason, "restore the file of this directory")


def is_owned(manifest: Manifest, file: str, directory: bytes) -> bool:
    """True if a file with this ID can be the file that the manifest names."""
    if directory == manifest.directory:
        return True
    return not directory and number_of(file) < manifest.since


def check_manifest_owner(manifest: Manifest, directories: dict[str, bytes]) -> None:
    """ForeignError when the manifest itself belongs to another directory: `directories` has the IDs
    of the files that it names."""
    found = [directory for directory in directories.values() if directory]
    others = set(found)
    if len(found) > 1 and len(others) == 1 and manifest.directory not in others:
        named = ", ".join(name for name, directory in directories.items() if directory)
        theirs = f"the ID of {named} is {others.pop().hex()}"
        ours = f"its own is {manifest.directory.hex()}" if manifest.directory else "it has none"
        reason = f"belongs to another data directory: {theirs}, {ours}"
        raise ForeignError(NAME, None, reason, "restore the manifest of this directory")


def read_manifest(disk: Disk) -> Manifest | None:
    """The directory's manifest; None when there is neither a manifest nor another file of ours.

    Raises DamageError when it is damaged or lost.
    """
    names = disk.names()
    if NAME not in names:
        lost = [name for name in names if is_ours(name) and name != TEMPORARY]
        if lost:
            raise DamageError(NAME, None, f"is missing although {lost[0]} is there", _RESTORE)
        return None
    file = disk.read(NAME)
    try:
        return Manifest.from_bytes(file.read_at(0, file.size))
    finally:
        file.close()


def load_manifest(disk: Disk) -> Manifest | None:
    """Like `read_manifest`, with a DamageError when the manifest names a missing file."""
    manifest = read_manifest(disk)
    names = disk.names()
    missing = [name for name in (manifest.files if manifest else ()) if name not in names]
    if missing:
        raise DamageError(missing[0], None, f"is missing although {NAME} names it", _RESTORE)
    return manifest


def store_manifest(disk: Disk, manifest: Manifest) -> None:
    """Replace the manifest; on return the new one is durable."""
    write_manifest(disk, manifest)
    replace_manifest(disk)


def write_manifest(disk: Disk, manifest: Manifest) -> None:
    """Write a manifest to manifest.tmp. After an OSError the old manifest is still current."""
    try:
        file = disk.create(TEMPORARY)
        try:
            file.write(manifest.to_bytes())
            file.sync()
        finally:
            file.close()
        disk.sync_directory()  # the names in the manifest must become durable before it does
    except OSError:
        discard_manifest(disk)
        raise


def discard_manifest(disk: Disk) -> None:
    """Try to remove the file that `write_manifest` wrote."""
    with contextlib.suppress(OSError):
        if TEMPORARY in disk.names():
            disk.remove(TEMPORARY)


def replace_manifest(disk: Disk) -> None:
    """Make the manifest that `write_manifest` wrote the current one.

    After an OSError either the old or the new manifest is current: remove no file that one of them
    names.
    """
    disk.rename(TEMPORARY, NAME)
    disk.sync_directory()


def sweep(disk: Disk, manifest: Manifest, unfinished: Collection[str] = ()) -> list[str]:
    """Remove the files with names of ours that a durable `manifest` does not name, except
    `unfinished` ones that are being written; return their names."""
    kept = {*manifest.files, *unfinished}
    leftovers = [name for name in disk.names() if is_ours(name) and name not in kept]
    for name in leftovers:
        disk.remove(name)
    return leftovers


def _damaged(offset: int, reason: str) -> DamageError:
    return DamageError(NAME, offset, reason, _RESTORE)
