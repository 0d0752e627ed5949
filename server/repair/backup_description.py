"""The description of a backup, `backup.json`, and the comparison of a folder with it."""

from __future__ import annotations

import json
from typing import Any

from millstream.storage.files.disk import Disk, size_of
from millstream.storage.files.manifest import is_ours

DESCRIPTION = "backup.json"  # a server ignores it
_SIZE_MAX = 1 << 24


def read_description(disk: Disk) -> dict[str, Any] | None:
    """The facts about a backup; None if there are none. ValueError when they cannot be read."""
    if DESCRIPTION not in disk.names():
        return None
    file = disk.read(DESCRIPTION)
    try:
        if file.size > _SIZE_MAX:
            raise ValueError("it is too large")
        facts = json.loads(file.read_at(0, file.size))
    finally:
        file.close()
    if not isinstance(facts, dict) or not isinstance(facts.get("files"), dict):
        raise ValueError("it does not name the files of a backup")
    return facts


def fault_of_files(disk: Disk, facts: dict[str, Any]) -> str | None:
    """A sentence if a file of the backup is missing or shorter; None also if a server has used the
    folder, which a new or longer file shows: the description says nothing then."""
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


def was_used(disk: Disk, facts: dict[str, Any]) -> bool:
    """True if a server has used the folder since the backup."""
    stated = facts["files"]
    return any(name not in stated or size > stated[name] for name, size in _sizes(disk).items())


def _sizes(disk: Disk) -> dict[str, int]:
    return {name: size_of(disk, name) for name in disk.names() if is_ours(name)}
