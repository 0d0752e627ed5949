"""The files that an export writes: Parquet, JSON lines, CSV. A file is written completely or not at
all.

Parquet keeps all types. JSON and CSV have texts: times in ISO 8601 (UTC if they have a zone),
binary values in base64, decimals as exact digits. A map is an object, and in CSV its JSON.
"""

from __future__ import annotations

import base64
import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol
from uuid import uuid4

import pyarrow as pa
from pyarrow import csv, parquet

from millstream.pipeline.casting import time_texts
from millstream.pipeline.files import file_system, is_uri

# Bounds of a row group, which is held in memory until it is written.
ROW_GROUP_ROWS_MAX = 1 << 20
ROW_GROUP_BYTES_MAX = 64 << 20


class OutputFormat(Protocol):
    """Takes record batches of one schema, in order."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


class Parquet:
    """Writes a Parquet file. A row group consists of several batches, because small row groups
    compress badly."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._schema = schema
        self._file = file
        self._writer = parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=_repeating(schema),
            write_page_index=True,  # readers can skip pages, and not only row groups
        )
        self._held: list[pa.RecordBatch] = []
        self._rows = self._size_bytes = 0
        self._flushed_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if self._rows + batch.num_rows > ROW_GROUP_ROWS_MAX:
            self._flush()
        self._held.append(batch)
        self._rows += batch.num_rows
        self._size_bytes += batch.nbytes
        if self._size_bytes >= ROW_GROUP_BYTES_MAX:
            self._flush()

    @property
    def size_bytes(self) -> int:
        """The size of the file so far. The rows of the next row group are estimated by the earlier
        ones, and counted as they are in memory if there is none."""
        written = self._file.tell()
        share = written / self._flushed_bytes if self._flushed_bytes else 1.0
        return written + int(self._size_bytes * share)

    def add_metadata(self, facts: dict[bytes, bytes]) -> None:
        """Add facts to the footer of the file."""
        self._writer.add_key_value_metadata(facts)

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """End without the rows that are not written yet; the file will be removed."""
        self._held = []
        self._writer.close()

    def _flush(self) -> None:
        self._flushed_bytes += self._size_bytes
        if self._held:
            table = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
        self._held, self._rows, self._size_bytes = [], 0, 0


def _repeating(schema: pa.Schema) -> list[str]:
    """The columns whose values may repeat, as paths in a Parquet file. A dictionary of IDs and
    times only makes the file larger."""
    paths = []
    for field in schema:
        if pa.types.is_map(field.type):
            paths += [f"{field.name}.key_value.{part}" for part in ("key", "value")]
        elif pa.types.is_list(field.type):
            paths += [f"{field.name}.list.element.{part}" for part in ("name", "value")]
        elif field.name not in ("id", "ts", "ms", "seq"):
            paths.append(field.name)
    return paths


class JsonLines:
    """Writes one object per line, in UTF-8."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._names = schema.names

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [json_values(column) for column in batch.columns]
        lines = [
            json.dumps(dict(zip(self._names, row, strict=True)), ensure_ascii=False)
            for row in zip(*columns, strict=True)
        ]
        self._file.write("".join(line + "\n" for line in lines).encode())

    def close(self) -> None:
        pass


class Csv:
    """Writes RFC 4180 with a line of names. Texts are quoted, so null and "" differ."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._schema = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
        self._writer = csv.CSVWriter(file, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_csv_column(column) for column in batch.columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


OUTPUTS: dict[str, Callable[[IO[bytes], pa.Schema], OutputFormat]] = {
    "parquet": Parquet,
    "jsonl": JsonLines,
    "csv": Csv,
}


def replacing(name: str) -> AbstractContextManager[IO[bytes]]:
    """A file that gets this path or URI when the block succeeds, and is removed otherwise."""
    return _replacing_behind_uri(name) if is_uri(name) else _replacing_here(Path(name))


@contextmanager
def _replacing_here(path: Path) -> Iterator[IO[bytes]]:
    """A replaced file keeps its permissions. Pipes and devices are written to, never replaced."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = path.resolve()
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:  # also around the opening: a signal may end the program right after it
        with _created(unfinished, path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def _created(unfinished: Path, path: Path) -> IO[bytes]:
    """The new file; an error names `path`, which the user knows."""
    try:
        return unfinished.open("xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _replacing_behind_uri(uri: str) -> Iterator[IO[bytes]]:
    """An output stream to an object store cannot be aborted: closing it creates an object from the
    bytes written so far. Therefore the object has a temporary name until it is complete."""
    system, path = file_system(uri)
    folder, _, name = path.rpartition("/")
    unfinished = f"{folder}/.{name}.{uuid4().hex}.tmp"
    try:
        with system.open_output_stream(unfinished) as file:
            yield file
        system.move(unfinished, path)
    except BaseException:
        with suppress(OSError):
            system.delete_file(unfinished)
        raise


# ------------------------------------------------------------------------------------------ texts


def json_values(column: pa.Array) -> list[Any]:
    """A column as values for `json.dumps`."""
    type_ = column.type
    if pa.types.is_temporal(type_):
        return list(time_texts(column).to_pylist())
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(type_):
        return [{name: _json_value(value) for name, value in pairs} for pairs in _named(values)]
    if pa.types.is_list(type_):
        return [
            [{name: _json_value(value) for name, value in pair.items()} for pair in pairs]
            for pairs in values
        ]
    if pa.types.is_decimal(type_):
        return [_digits(value, type_.scale) for value in values]
    return [_json_value(value) for value in values]


def _named(maps: list[Any]) -> Iterator[list[tuple[str, Any]]]:
    """Maps with the names of fields as texts; invalid UTF-8 in binary names becomes U+FFFD."""
    for pairs in maps:
        yield [
            (name.decode("utf-8", "replace") if isinstance(name, bytes) else name, value)
            for name, value in pairs
        ]


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _digits(value: Any, scale: int) -> int | str | None:
    return None if value is None else int(value) if scale == 0 else f"{value:f}"


def _is_number(type_: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(test(type_) for test in tests)


def _csv_type(type_: pa.DataType) -> pa.DataType:
    return type_ if _is_number(type_) else pa.string()


def _csv_column(column: pa.Array) -> pa.Array:
    type_ = column.type
    if _is_number(type_) or pa.types.is_string(type_):
        return column
    values = json_values(column)
    if pa.types.is_nested(type_):
        return pa.array([json.dumps(value, ensure_ascii=False) for value in values], pa.string())
    return pa.array([None if value is None else str(value) for value in values], pa.string())
