"""The description of a backup, `backup.json`, and the comparison of a folder with it."""

from __future__ import annotations

import json
from typing import Any

from millstream.errors import DataError
from millstream.storage.files.disk import Disk, size_of
from millstream.storage.files.manifest import NAME, is_ours, read_manifest

DESCRIPTION = "backup.json"  # a server ignores it
_SIZE_MAX = 1 << 24
_NUMBERS = ("last_frame", "keys", "entries", "time_ms")
_TEXTS = ("time", "directory_id")


def read_description(disk: Disk) -> dict[str, Any] | None:
    """The facts about a backup; None if there are none. ValueError when they cannot be read."""
    if DESCRIPTION not in disk.names():
        return None
    try:
        facts: Any = json.loads(_contents(disk))
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    except OSError as error:
        raise ValueError(error.strerror) from None
    files = facts.get("files") if isinstance(facts, dict) else None
    if not isinstance(facts, dict) or not isinstance(files, dict) or NAME not in files:
        raise ValueError("it does not name the files of a backup")
    for name, size in files.items():
        if not _is_number(size):
            raise ValueError(f"the size of {name} is not a number of bytes")
    for name in _NUMBERS:
        if facts.get(name) is not None and not _is_number(facts[name]):
            raise ValueError(f"{name} is not a number")
    for name in _TEXTS:
        if not isinstance(facts.get(name, ""), str | None):
            raise ValueError(f"{name} is not a text")
    return facts


def _contents(disk: Disk) -> bytes:
    file = disk.read(DESCRIPTION)
    try:
        if file.size > _SIZE_MAX:
            raise ValueError("it is too large")
        return bytes(file.read_at(0, file.size))
    finally:
        file.close()


def _is_number(value: object) -> bool:
    return type(value) is int and value >= 0


def unreadable(problem: ValueError) -> str:
    """A sentence about a description that cannot be read."""
    return f"{DESCRIPTION} cannot be read: {problem}"


def fault_of_files(disk: Disk, facts: dict[str, Any]) -> str | None:
    """A sentence if the files are those of another backup, or a file is missing or shorter. A
    server that has used the folder has made new or longer files, and kept the ID of the directory:
    the description says no more about those."""
    if facts.get("directory_id") not in (None, directory_id(disk)):
        return (
            f"{disk.directory} is not the backup that {DESCRIPTION} describes: its files are those"
            " of another backup; copy the backup again"
        )
    if was_used(disk, facts):
        return None
    found = _sizes(disk)
    for name, size in facts["files"].items():
        if is_ours(name) and found.get(name) != size:
            has = "is missing" if name not in found else f"has {found[name]} bytes"
            return (
                f"{disk.directory} is not the whole backup: {name} {has}, and {DESCRIPTION} states"
                f" {size} bytes; copy the backup again"
            )
    return None


def fault_of_contents(
    disk: Disk, facts: dict[str, Any], found: dict[str, int | None]
) -> str | None:
    """A sentence if the files have the stated sizes, but not the stated contents: `last_frame`,
    `keys` and `entries`, as far as both are known."""
    if was_used(disk, facts):
        return None
    for name, number in found.items():
        stated = facts.get(name)
        if number is not None and stated is not None and stated != number:
            words = name.replace("_", " ")
            return (
                f"{disk.directory} is not the backup that {DESCRIPTION} describes: {words}"
                f" {number}, and {DESCRIPTION} states {stated}; copy the backup again"
            )
    return None


def directory_id(disk: Disk) -> str | None:
    """The ID of a data directory, which a server keeps and each backup from a server has alone;
    None if it has none, or cannot be read."""
    try:
        manifest = read_manifest(disk)
    except DataError:
        return None
    return manifest.directory.hex() if manifest and manifest.directory else None


def was_used(disk: Disk, facts: dict[str, Any]) -> bool:
    """True if a server has used the folder since the backup."""
    stated = facts["files"]
    return any(name not in stated or size > stated[name] for name, size in _sizes(disk).items())


def _sizes(disk: Disk) -> dict[str, int]:
    return {name: size_of(disk, name) for name in disk.names() if is_ours(name)}
