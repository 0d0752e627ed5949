"""Reads a snapshot as a DataFrame: `spark.read.format("millstream").load("data/")`.

The planning process makes the plan (`plan`), each task decodes its chunks (`schema.BatchMaker`). A
task sees by the file's uuid that it is still the snapshot that was planned: one that was replaced
meanwhile is an error, never a mixture of two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import msgpack  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from millstream.errors import DataError
from millstream.pipeline.files import Folder
from millstream.pipeline.options import Options
from millstream.pipeline.plan import Chunk, ScanPartition, Wanted, plan
from millstream.pipeline.schema import MODES, PERMISSIVE, BatchMaker, plan_columns, shown
from millstream.pipeline.selection import EntryId, Selection
from millstream.storage.snapshot import ChunkReader, ReplacedError

SPLIT_BYTES = 16 << 20
PARTITIONS_MAX = 100_000
DATABASES_MAX = 16_384
_NAMED_MAX = 3


class SnapshotScan(DataSourceReader):
    """Spark's reader of the newest snapshot in a data directory."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        plan_columns(to_arrow_schema(schema, timezone="UTC"))  # refuses what cannot be had
        self._folder = Folder.of(options.required("path"))
        self._mode = options.choice("mode", MODES, PERMISSIVE)
        self._db = options.integer("db", 0, 0, DATABASES_MAX)
        self._split_bytes = options.integer("splitBytes", SPLIT_BYTES, 1, 1 << 40)
        self._partitions_min = options.integer("minPartitions", 1, 1, PARTITIONS_MAX)
        self._metrics_path = options.text("metricsPath")
        binary = any(one.name == "key" and one.dataType == BinaryType() for one in schema)
        self._selection = Selection.of(options, binary)

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:
        return PushFilters(self._selection)

    def partitions(self) -> list[InputPartition]:
        return plan(
            self._folder, self._db, self._selection, self._split_bytes, self._partitions_min
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ScanPartition):
            return  # Spark makes one of its own where nothing was planned
        maker = BatchMaker(self._schema, self._mode)
        snapshot = partition.snapshot
        try:
            file = snapshot.folder.open(snapshot.file)
            with closing(file):
                task = _Task(partition, ChunkReader(file, snapshot.uuid))
                for chunk in partition.chunks:
                    yield from task.batches(chunk, maker)
                yield from maker.finish()
        except (FileNotFoundError, ReplacedError):
            raise DataError(
                f"{snapshot.folder.name}: the snapshot {snapshot.file} was replaced by another"
                " after this query was planned; run the query again"
            ) from None
        if self._metrics_path is not None:
            _append(self._metrics_path, task.metrics(maker.rows))


class PushFilters:
    """What Spark finds as the reader's `pushFilters`.

    While Spark's switch `spark.sql.python.filterPushdown.enabled` is off it fails every query of a
    reader that overrides this method, also one without filters; it recognises that by the method's
    `__func__`. Here that is Spark's own, which is true as long as nobody calls: a reader that is
    not asked pushes nothing.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Takes the filters into account; returns those that Spark must look at itself."""
        return [one for one in filters if not self._selection.push(one)]


class _Task:
    """One partition being read."""

    def __init__(self, partition: ScanPartition, reader: ChunkReader) -> None:
        self._partition = partition
        self._reader = reader
        self._opened: list[int] = []
        self._packed_bytes = 0
        self._metas: dict[int, memoryview] = {}

    def batches(self, chunk: Chunk, maker: BatchMaker) -> Iterator[pa.RecordBatch]:
        data = self._chunk(chunk)
        for piece in chunk.pieces:
            first = piece.first
            if piece.meta is not None:
                first = max(first, self._first_kept(piece, chunk.number, data))
            blocks = data[piece.offset : piece.offset + piece.length]
            try:
                yield from maker.add(blocks, piece.key, first, piece.last)
            except ValueError as error:
                raise self._refused(chunk, piece, error) from None

    def metrics(self, rows: int) -> dict[str, object]:
        """What was read: the chunks' numbers in the file, their bytes in the file, rows made."""
        snapshot = self._partition.snapshot
        return {
            "partition": self._partition.number,
            "file": f"{snapshot.folder.name}/{snapshot.file}",
            "chunks": self._opened,
            "bytes": self._packed_bytes,
            "rows": rows,
        }

    def _chunk(self, chunk: Chunk) -> memoryview:
        self._opened.append(chunk.number)
        self._packed_bytes += chunk.place.length
        try:
            return self._reader.chunk(chunk.number, chunk.place)
        except DataError as error:
            keys = list(dict.fromkeys(piece.key for piece in chunk.pieces))
            names = ", ".join(map(shown, keys[:_NAMED_MAX]))
            more = f" and {len(keys) - _NAMED_MAX} more" if len(keys) > _NAMED_MAX else ""
            raise DataError(f"{error} (it holds entries of stream {names}{more})") from None

    def _first_kept(self, piece: Wanted, number: int, data: memoryview) -> EntryId:
        """A stream's first kept id, from metadata that was too long for the index."""
        assert piece.meta is not None
        chunk, offset, length = piece.meta
        if chunk != number:
            if chunk not in self._metas:
                place = self._partition.meta_places[chunk]
                self._metas = {chunk: self._chunk(Chunk(chunk, place, [piece]))}
            data = self._metas[chunk]
        ms, seq = msgpack.unpackb(data[offset : offset + length])["first_kept"]
        return ms, seq

    def _refused(self, chunk: Chunk, piece: Wanted, error: ValueError) -> DataError:
        file = f"{self._partition.snapshot.folder.name}/{self._partition.snapshot.file}"
        return DataError(
            f"{file}: chunk {chunk.number} at offset {chunk.place.offset}, stream"
            f" {shown(piece.key)} at unpacked byte {piece.offset}: {error}"
        )


def _append(path: str, line: dict[str, object]) -> None:
    """Tasks of several processes write to one file, a line at a time."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)
