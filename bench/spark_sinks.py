"""The rows that Spark writes in the benchmark in `bench.spark`, and a sink that discards them.

`DiscardSource` accepts Arrow batches and does nothing with them. Its rate is the maximum for a sink
in Python: it only includes making the rows in the JVM and passing them to Python.

They are in a separate module because Spark's workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NARROW = ("concat('s', id % 100) as sensor", "id % 900 / 10d as temperature")
IOT = (
    *NARROW,
    "timestamp_millis(1700000000000 + id) as at",
    "cast(id % 100 as int) as humidity",
    "if(id % 7 = 0, 'low battery', 'ok') as status",
)
WIDE = (
    *(f"id * {number + 1} as counter{number}" for number in range(8)),
    *(f"(id + {number}) * 0.5d as level{number}" for number in range(6)),
    *(f"concat('value {number}-', id % 1000) as text{number}" for number in range(6)),
)
MANY_STREAMS = ("concat('site:', id % 400) as key", *IOT)


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return discarded(iterator)


class DiscardStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return discarded(iterator)


def discarded(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in batches:
        pass
    return WriterCommitMessage()


class DiscardSource(DataSource):
    """The data source `discard`, which can only be written to."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DiscardWriter:
        return DiscardWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DiscardStreamWriter:
        return DiscardStreamWriter()
