"""The folder of Parquet files that `millstream export --into` keeps up to date.

`DIR/part-00000012.parquet` has the rows of several streams. In the other layout, each stream has a
group of files, `DIR/key=sensor%3A7/part-00000012.parquet`; Spark, DuckDB and pyarrow read the name
of the folder as the value of a column `key`. The files of a group are numbered in the order in
which they were written.

A file has a hidden name until it is complete and on the disk. Its footer has the positions of the
streams after their last entries, so one rename makes the rows visible and the positions valid.
Whenever the program is killed, the next one begins after the last visible file: no row is missing,
and none appears twice.

A round can move positions without a file: of streams without entries, and of deleted ones. It ends
with positions in `_millstream.json`, which count until the group of files gets another file.

Readers ignore names that begin with `.` or `_`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from millstream.pipeline.ddl import arrow_from_ddl
from millstream.pipeline.outputs import Parquet, replacing
from millstream.pipeline.positions import Offset, PositionError, Positions
from millstream.pipeline.schema import plan_columns
from millstream.pipeline.source_options import OptionError
from millstream.storage.files.disk import SystemDisk, make_directory

SETTINGS = "_millstream.json"
LOCK = ".lock"
FORMAT = 1
POSITIONS = b"millstream.positions"  # in the footer of a file

_PREFIX = "key="
# The name of the folder of the key "", which Spark and DuckDB read as null.
_EMPTY_KEY = "__HIVE_DEFAULT_PARTITION__"
_NO_GROUP = "\0"
_NAME_BYTES_MAX = 255
# The characters that Spark escapes, too; it decodes only one-byte characters.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_PART = re.compile(r"part-(\d{8,18})\.parquet")


class FolderError(ValueError):
    """A folder that cannot be used. The text names it and says what to do."""


def folder_name(key: bytes) -> str:
    """The name of a stream's folder. FolderError if no folder can have the name."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        raise FolderError(
            f"the key {key!r} is not UTF-8, and cannot be the name of a folder; leave it out with"
            " --key"
        ) from None
    if text == _EMPTY_KEY:  # pyarrow compares the unescaped name
        raise FolderError(
            f"the key {text!r} stands for null in the name of a folder; leave it out with --key"
        )
    name = _PREFIX + (_ESCAPED.sub(_escape, text) or _EMPTY_KEY)
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise FolderError(
            f"the key {text[:60]!r}... is too long for the name of a folder, which has at most"
            f" {_NAME_BYTES_MAX} bytes; leave it out with --key"
        )
    return name


def _escape(letter: re.Match[str]) -> str:
    return f"%{ord(letter[0]):02X}"


def is_group(name: str) -> bool:
    """True for the name of a stream's folder."""
    return name.startswith(_PREFIX)


class ExportedFolder:
    """The folder on a local disk. It is locked until it is closed.

    `schema`: the columns of the files; `keys`: the patterns of the last complete round, None before
    the first one.
    """

    def __init__(self, path: Path, ddl: str | None, by_key: bool = False) -> None:
        """Open or create a folder. FolderError if it cannot be used, or has another schema or
        layout. What is not given is as in the folder."""
        self.path = path
        self.keys: list[str] | None = None
        self._noted: dict[str, Any] | None = None  # the settings in the file
        self._numbers: dict[str, int] = {}  # of the last file of each group
        if self._settings() is None:  # refuses a folder that is not an export's
            _columns(ddl, by_key)
            make_directory(path)
        self._lock = self._locked()
        try:
            self._open(self._settings(), ddl, by_key)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._lock)

    def _open(self, settings: dict[str, Any] | None, ddl: str | None, by_key: bool) -> None:
        self._noted = settings
        self._remove_unfinished_settings()
        self._by_key = by_key if settings is None else settings["by_key"]
        self._ddl = ddl if settings is None else settings["schema"]
        self.schema = _columns(self._ddl, self._by_key)
        if settings is None:
            self.finish_round(None, {})
            return
        self.keys = settings["keys"]
        if ddl is not None and not _columns(ddl, self._by_key).equals(self.schema):
            has = f"the schema {self._ddl!r}" if self._ddl else "the default schema"
            raise FolderError(
                f"{self.path} has files with {has}; export with this schema, or into another folder"
            )
        if by_key and not self._by_key:
            raise FolderError(
                f"{self.path} has no folders of streams; export without --by-key, or into another"
                " folder"
            )

    def finish_round(self, keys: list[str] | None, positions: Positions) -> None:
        """Note that all streams with these patterns were exported up to these positions."""
        settings = {
            "format": FORMAT,
            "schema": self._ddl,
            "by_key": self._by_key,
            "keys": keys,
            "files": self._numbers,
            "positions": Offset(positions).to_json(),
        }
        if settings == self._noted:
            return
        with replacing(str(self.path / SETTINGS)) as file:
            file.write(json.dumps(settings, indent=1).encode() + b"\n")
        self.keys, self._noted = keys, settings | {"files": dict(self._numbers)}

    def _remove_unfinished_settings(self) -> None:
        """Remove what a killed export has left."""
        disk = SystemDisk(self.path)
        for name in disk.names():
            if name.startswith(f".{SETTINGS}."):
                disk.remove(name)

    def group(self, key: bytes) -> str:
        """The name of the group of files to which a stream belongs, and of its folder. FolderError
        if it cannot have one."""
        return folder_name(key) if self._by_key else ""

    def positions(self) -> Positions:
        """The positions after the last files, or after the last round. Removes the unfinished files
        of a killed export."""
        noted_positions, noted_numbers = self._noted_round()
        found: Positions = {}
        for group in self._groups():
            last = self._last_part(SystemDisk(self.path / group))
            if last:
                self._numbers[group] = last
                after = _positions_in(self.path / group / _part_name(last))
                if last != noted_numbers.get(group):
                    found |= after
        for key, at in noted_positions.items():
            group = self._group_or_none(key)
            if self._numbers.get(group) == noted_numbers.get(group):
                found[key] = at
        return found

    def _noted_round(self) -> tuple[Positions, dict[str, int]]:
        """The positions at the end of the last complete round, and the numbers of the last files
        then. An earlier version noted neither."""
        assert self._noted is not None
        if "positions" not in self._noted:
            return {}, {}
        try:
            offset = Offset.from_json(self._noted["positions"])
        except (ValueError, KeyError, PositionError):
            raise self._unknown_settings() from None
        return offset.streams, self._noted["files"]

    def _group_or_none(self, key: bytes) -> str:
        """Like `group`; a key that cannot have one has no files."""
        try:
            return self.group(key)
        except FolderError:
            return _NO_GROUP

    def _groups(self) -> list[str]:
        if not self._by_key:
            return [""]
        names = SystemDisk(self.path).names()
        return [name for name in names if is_group(name) and (self.path / name).is_dir()]

    @contextmanager
    def new_part(self, group: str) -> Iterator[PartFile]:
        """The next file of a group. It is removed unless it is committed."""
        folder = self.path / group
        make_directory(folder)
        number = self._numbers.get(group, 0) + 1
        part = PartFile(SystemDisk(folder), _part_name(number), self.schema)
        try:
            yield part
            if part.is_committed:
                self._numbers[group] = number
        finally:
            part.close()

    def _settings(self) -> dict[str, Any] | None:
        """The settings of a folder that an export made; None for a new or an empty folder."""
        try:
            settings = json.loads((self.path / SETTINGS).read_bytes())
        except FileNotFoundError:
            if any(not name.startswith(".") for name in _names(self.path)):
                raise FolderError(
                    f"{self.path} has files, and no {SETTINGS} of an export; name a new folder"
                ) from None
            return None
        except NotADirectoryError:
            raise FolderError(f"{self.path} is not a folder") from None
        except ValueError:
            settings = None
        if not isinstance(settings, dict) or settings.get("format") != FORMAT:
            raise self._unknown_settings()
        return settings

    def _unknown_settings(self) -> FolderError:
        return FolderError(f"{self.path / SETTINGS} was not written by this version of millstream")

    def _locked(self) -> int:
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            raise FolderError(f"another export is writing into {self.path}") from None
        return descriptor

    def _last_part(self, disk: SystemDisk) -> int:
        """The number of the last complete file; 0 if there is none."""
        last = 0
        for name in disk.names():
            part = _PART.fullmatch(name)
            if part is not None:
                last = max(last, int(part[1]))
            elif name.startswith(".part-"):
                disk.remove(name)
        return last


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


def _columns(ddl: str | None, by_key: bool) -> pa.Schema:
    """The columns of the files. With a folder for each stream, `key` is in the folder's name."""
    schema = arrow_from_ddl(ddl)
    plan_columns(schema)  # refuses columns that cannot be read
    at = schema.get_field_index("key")
    if not by_key or at < 0:
        return schema
    if schema.field(at).type != pa.string():
        raise OptionError("column 'key' must be a string: it is the name of a folder")
    if len(schema) == 1:
        raise OptionError("the schema needs a column other than 'key'")
    return schema.remove(at)


def _part_name(number: int) -> str:
    return f"part-{number:08}.parquet"


def _positions_in(path: Path) -> Positions:
    """The positions in the footer of a file."""
    try:
        metadata = parquet.read_metadata(path).metadata or {}
        return Offset.from_json(json.loads(metadata[POSITIONS])).streams
    except (OSError, ValueError, KeyError, PositionError):
        raise FolderError(
            f"{path} has no positions of an export: it is damaged, or another program wrote it."
            " Remove all files of this folder to export their entries again"
        ) from None


class PartFile:
    """A file that is being written. `commit` makes it visible."""

    def __init__(self, disk: SystemDisk, name: str, schema: pa.Schema) -> None:
        self.path = disk.directory / name
        self.rows = 0
        self.is_committed = False
        self._disk = disk
        self._unfinished = f".{name}.tmp"
        self._file = (disk.directory / self._unfinished).open("wb")
        self._output = Parquet(self._file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._output.write(batch)
        self.rows += batch.num_rows

    @property
    def size_bytes(self) -> int:
        """The size so far, with an estimate for rows that are not written yet."""
        return self._output.size_bytes

    def commit(self, positions: Positions) -> None:
        """Complete the file, with the positions of the group's streams after its last entries."""
        offset = json.dumps(Offset(positions).to_json()).encode()
        self._output.add_metadata({POSITIONS: offset})
        self._output.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._disk.rename(self._unfinished, self.path.name)
        self._disk.sync_directory()
        self.is_committed = True

    def close(self) -> None:
        """Remove the file if it is not committed."""
        if self.is_committed:
            return
        with suppress(OSError):
            self._output.abandon()
            self._file.close()
        with suppress(OSError):
            self._disk.remove(self._unfinished)
