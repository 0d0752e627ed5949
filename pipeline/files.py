"""The location of snapshots: a local directory, or any URI that pyarrow.fs opens.

Reading needs only the manifest of a data directory and the base that the manifest names. A copy of
these two files on an object store is enough, and a server may keep using the directory meanwhile.
"""

import re
from contextlib import closing
from pathlib import Path
from typing import Protocol

from pyarrow.fs import FileSystem

from millstream.errors import DataError
from millstream.server_url import has_at_after_host
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import (
    NAME,
    NODES_BACKUP_NAME,
    NODES_NAME,
    Manifest,
    nodes_hint,
)


def is_uri(name: str) -> bool:
    return "://" in name


def shown_uri(uri: str) -> str:
    """The URI without secrets: user, password and parameters can contain keys. A key with a slash
    makes the URI invalid but is still secret, so everything before the last @ is left out."""
    scheme, _, rest = uri.partition("://")
    place, _, parameters = rest.partition("?")
    if "@" in parameters + place.partition("#")[2]:
        return f"{scheme}://"
    return f"{scheme}://{place.rpartition('@')[2].partition('#')[0]}"


def file_system(uri: str) -> tuple[FileSystem, str]:
    """The file system of a URI, and the path in it. DataError when the URI cannot be opened."""
    try:
        # Spark writes s3a or s3n where pyarrow writes s3.
        system, path = FileSystem.from_uri(re.sub("^s3[an]://", "s3://", uri))
    except (ValueError, OSError) as error:
        # No part of the URI is in the reason if the end of a key can be in any part of the URI.
        is_readable = shown_uri(uri).partition("://")[2] and not has_at_after_host(uri)
        reason = str(error) if is_readable else "in a key, / is written %2F, ? %3F, # %23 and @ %40"
        for written in (uri, re.sub("^s3[an]://", "s3://", uri)):
            reason = reason.replace(written, shown_uri(uri))
        raise DataError(f"{shown_uri(uri)} cannot be opened: {reason}") from None
    return system, path


class SourceFile(Protocol):
    """An open file; offsets and lengths count bytes."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes: ...
    def close(self) -> None: ...


class RemoteFile:
    """A file opened through pyarrow.fs."""

    def __init__(self, system: FileSystem, path: str) -> None:
        self.name = path
        self._file = system.open_input_file(path)
        self.size = self._file.size()

    def read_at(self, offset: int, length: int) -> bytes:
        data: bytes = self._file.read_at(length, offset)
        return data

    def close(self) -> None:
        self._file.close()


class Folder:
    """A data directory, named by a local path or by a URI. It is pickled as its name; `str` gives
    the name for errors."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return shown_uri(self.name) if is_uri(self.name) else self.name

    @classmethod
    def of(cls, path: str) -> "Folder":
        """The folder for a user's path or URI; a relative path is resolved immediately."""
        if path.startswith("file:"):
            path = "/" + path.removeprefix("file:").lstrip("/")
        return cls(path.rstrip("/") if is_uri(path) else str(Path(path).absolute()))

    def open(self, file: str) -> SourceFile:
        """Open an existing file; FileNotFoundError when it does not exist."""
        opened: SourceFile
        if is_uri(self.name):
            system, path = file_system(self.name)
            opened = RemoteFile(system, f"{path.rstrip('/')}/{file}")
        else:
            opened = SystemDisk(Path(self.name)).read(file)
        opened.name = f"{self}/{file}"  # for errors
        return opened

    def _has(self, name: str) -> bool:
        try:
            self.open(name).close()
        except OSError:
            return False
        return True

    def manifest(self) -> Manifest:
        """The manifest; DataError says what is wrong with the folder."""
        try:
            file = self.open(NAME)
        except (FileNotFoundError, NotADirectoryError):
            found = [name for name in (NODES_BACKUP_NAME, NODES_NAME) if self._has(name)]
            hint = nodes_hint(found, self) or f": it has no file {NAME!r}"
            raise DataError(f"{self} is not a data directory of millstream{hint}") from None
        except OSError as error:
            raise DataError(f"{self} cannot be read: {error}") from None
        with closing(file):
            data = file.read_at(0, file.size)
        try:
            return Manifest.from_bytes(data)
        except DataError as error:
            raise DataError(f"{self}/{error}") from None
