"""The files of a source: one file, or those that the manifest of an AOF names."""

from __future__ import annotations

import os
from pathlib import Path

from millstream.errors import DataError, PayloadError, printable
from millstream.storage.dump.aof_file import (
    MANIFEST_MAX_BYTES,
    MANIFEST_SUFFIX,
    parse_manifest,
)


class NoSource(DataError):
    """A source cannot be read. The text is a sentence."""


def source_name(path: Path) -> str:
    """The name of a source in texts."""
    return printable(path.name or str(path))


def is_aof_directory(folder: Path) -> bool:
    """True if a folder has the manifest of an AOF."""
    return any(name.endswith(MANIFEST_SUFFIX) for name in os.listdir(folder))


def aof_files(folder: Path) -> list[Path]:
    """The files of an AOF in the order in which they are loaded. NoSource without a manifest that
    names them."""
    shown = printable(str(folder))
    names = sorted(name for name in os.listdir(folder) if name.endswith(MANIFEST_SUFFIX))
    if not names:
        raise NoSource(
            f"{shown} is a directory without the manifest of an AOF: name dump.rdb or"
            " appendonlydir in it"
        )
    if len(names) > 1:
        raise NoSource(f"{shown} has several manifests of an AOF: {', '.join(names)}")
    manifest = folder / names[0]
    with open(manifest, "rb") as file:
        text = file.read(MANIFEST_MAX_BYTES + 1)
    try:
        if len(text) > MANIFEST_MAX_BYTES:
            raise PayloadError("it is too long for a manifest")
        files = parse_manifest(text)
    except PayloadError as error:
        raise NoSource(f"{printable(str(manifest))} is damaged: {error}") from None
    for one in files:
        if not (folder / one.name).is_file():
            missing = printable(one.name)
            raise NoSource(f"{printable(str(manifest))} names {missing}, which is not there")
    return [folder / one.name for one in files]
