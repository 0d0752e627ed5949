"""Reads a snapshot as a DataFrame: `spark.read.format("millstream").load("data/")`.

The planning process makes the plan (`snapshot_plan`). Each task decodes its chunks (`chunk_reader`,
`batch_maker.BatchMaker`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import BinaryType, StructType

from millstream.pipeline.batch_maker import MODES, PERMISSIVE, BatchMaker
from millstream.pipeline.chunk_reader import PartitionReader
from millstream.pipeline.files import Folder
from millstream.pipeline.pushdown import push
from millstream.pipeline.schema import arrow_schema, plan_columns
from millstream.pipeline.selection import Selection
from millstream.pipeline.snapshot_plan import ScanPartition, plan
from millstream.pipeline.source_options import SourceOptions

SPLIT_BYTES = 16 << 20
PARTITIONS_MAX = 100_000
DATABASES_MAX = 16_384


class SnapshotScan(DataSourceReader):
    """Spark's reader of the newest snapshot in a data directory."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        plan_columns(arrow_schema(schema))  # refuses columns that cannot be read
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
            return  # Spark passes a partition of its own when nothing was planned
        maker = BatchMaker(arrow_schema(self._schema), self._mode)
        reader = PartitionReader(partition)
        yield from reader.batches(maker)
        yield from maker.finish()
        if self._metrics_path is not None:
            _append(self._metrics_path, reader.metrics(maker.rows))


class PushFilters:
    """The reader's `pushFilters`, as an object that Spark does not recognise as an override.

    While `spark.sql.python.filterPushdown.enabled` is off, Spark fails every query of a reader that
    overrides `pushFilters`, even without filters. Spark detects the override by the `__func__` of
    the method. This object has the `__func__` of Spark's own method. That is correct: without a
    call no filter is pushed.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Apply the filters; return those that Spark must evaluate."""
        return [one for one in filters if not push(self._selection, one)]


def _append(path: str, line: dict[str, object]) -> None:
    """Append a line. Tasks in several processes write to the same file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)
