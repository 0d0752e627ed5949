"""The live readers driven as Spark drives them, without a JVM: offsets go through JSON, and readers
and partitions are pickled on their way to where they read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType
from tests.support.server import Server

from millstream.pipeline.batch_reader import LiveReader
from millstream.pipeline.source_options import LIVE, STREAM, SourceOptions
from millstream.pipeline.stream_reader import StreamReader

SCHEMA = StructType([StructField(name, StringType()) for name in ("key", "id", "n")])

Rows = list[str]
Sent = TypeVar("Sent")


def url(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


def sent(thing: Sent) -> Sent:
    """As it arrives in a worker."""
    arrived: Sent = pickle.loads(pickle.dumps(thing))
    return arrived


def rows_in(
    reader: DataSourceReader | DataSourceStreamReader, partitions: Sequence[InputPartition]
) -> list[Rows]:
    """For each partition its rows as `key n`."""
    return [
        [
            f"{row['key']} {row['n']}"
            for batch in sent(reader).read(sent(partition))
            for row in batch.to_pylist()
        ]
        for partition in partitions
    ]


def batch_read(server: Server, /, **options: Any) -> list[Rows]:
    """A batch read, for each partition its rows."""
    texts = {name: str(value) for name, value in options.items()}
    reader = LiveReader(SCHEMA, SourceOptions({"server": url(server)} | texts, LIVE))
    return rows_in(reader, reader.partitions())


class DirectQuery:
    """A streaming query with the trigger AvailableNow: what it has planned and what it has finished
    is its checkpoint."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.options = {"server": url(server), "subscribePattern": "s:*"} | options
        self.planned: str | None = None
        self.finished: str | None = None

    def start(self, **options: Any) -> StreamReader:
        """The reader as after a start of the driver."""
        texts = {name: str(value) for name, value in (self.options | options).items()}
        return StreamReader(SCHEMA, SourceOptions(texts, STREAM))

    def run(self, **options: Any) -> list[Rows]:
        """All entries at present; for each batch its rows."""
        reader = self.start(**options)
        reader.prepareForTriggerAvailableNow()
        batches = []
        while self.plan(reader):
            batches.append(self.finish(reader))
        return batches

    def plan(self, reader: StreamReader) -> bool:
        """Fix the next batch, as the offset log does; False when there is none."""
        begin = self.finished or json.dumps(reader.initialOffset())
        self.planned = json.dumps(
            reader.latestOffset(json.loads(begin), reader.getDefaultReadLimit())
        )
        return self.planned != begin

    def finish(self, reader: StreamReader) -> Rows:
        """Read the planned batch, be it that the driver was started again since."""
        assert self.planned is not None
        begin = json.loads(self.finished) if self.finished else reader.initialOffset()
        partitions = reader.partitions(begin, json.loads(self.planned))
        rows = [row for part in rows_in(reader, partitions) for row in part]
        self.finished = self.planned
        return rows
