"""Where snapshots lie: a directory of this machine, or any URI that pyarrow.fs opens.

Reading needs no more of a data directory than its manifest and the base that the manifest names, so
a copy of these two files on an object store is enough, and a server may go on using the directory.
"""

from contextlib import closing
from pathlib import Path
from typing import Protocol

from pyarrow.fs import FileSystem

from millstream.errors import DataError
from millstream.storage.disk import SystemDisk
from millstream.storage.manifest import NAME, Manifest


class SourceFile(Protocol):
    """An open file; offsets and lengths count bytes."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes: ...
    def close(self) -> None: ...


class RemoteFile:
    """A file behind pyarrow.fs."""

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
    """A data directory, named by a path of this machine or by a URI. Pickles as its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def of(cls, path: str) -> "Folder":
        """The folder a user means; a path is taken from the current directory now, not later."""
        if path.startswith("file:"):
            path = "/" + path.removeprefix("file:").lstrip("/")
        return cls(path.rstrip("/") if "://" in path else str(Path(path).absolute()))

    def open(self, file: str) -> SourceFile:
        """An existing file; FileNotFoundError when it is not there."""
        opened: SourceFile
        if "://" in self.name:
            system, path = FileSystem.from_uri(self.name)
            opened = RemoteFile(system, f"{path.rstrip('/')}/{file}")
        else:
            opened = SystemDisk(Path(self.name)).read(file)
        opened.name = f"{self.name}/{file}"  # for errors
        return opened

    def manifest(self) -> Manifest:
        """What counts in it; DataError says what the folder is instead."""
        try:
            file = self.open(NAME)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(
                f"{self.name} is not a data directory of millstream: it has no file {NAME!r}"
            ) from None
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {error}") from None
        with closing(file):
            data = file.read_at(0, file.size)
        try:
            return Manifest.from_bytes(data)
        except DataError as error:
            raise DataError(f"{self.name}/{error}") from None
