"""A live server as a DataFrame: `spark.read.format("millstream").option("server", ...)`.

The plan fixes each range by IDs. Entries appended after planning are not read, and a task that is
retried reads the same entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from millstream.pipeline.range_plan import Losses, Planner
from millstream.pipeline.range_reader import RangeReader
from millstream.pipeline.schema import arrow_schema
from millstream.pipeline.server_connection import Address
from millstream.pipeline.source_options import SourceOptions
from millstream.pipeline.start_offsets import EARLIEST, LATEST, Bound
from millstream.pipeline.stream_counters import StreamChoice, survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class LiveReader(DataSourceReader):
    """`spark.read.format("millstream").option("server", ...)`."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.address = Address.from_options(options)
        self.choice = StreamChoice(options)
        self.starting = Bound(options, "starting", EARLIEST)
        self.ending = Bound(options, "ending", LATEST)
        self.starting.check_named(self.choice)
        self.ending.check_named(self.choice)
        self.losses = Losses(options.flag("failOnDataLoss", True))
        self.planner = Planner(options, self.losses)
        self.reader = RangeReader(arrow_schema(schema), options, self.address, self.losses)

    def partitions(self) -> list[InputPartition]:
        with self.address.open() as server:
            infos = survey(server, self.choice.find(server))
            self.reader.address = server.known_address
            start = self.starting.find(server, infos, self.losses)
            end = self.ending.find(server, infos, self.losses)
            return list(self.planner.plan(server, start, end, infos=infos))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.reader.read(partition)
