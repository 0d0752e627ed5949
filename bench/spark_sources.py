"""The Spark sources that the benchmark in `bench.spark` compares with.

Two are what a user would write without millstream's data source: row by row, as tuples.
`TuplesSource` reads the same snapshot with the same storage code and passes Spark a tuple for every
entry. `XrangeSource` pages through a live server with redis-py, which works with any Redis. Both
have a partition for every stream.

`BatchesSource` has the Arrow batches of millstream's data source ready in files. Its rate is the
maximum for a source in Python: it only includes passing the batches to the JVM.

All have the default schema of the data source `millstream`.

They are in a separate module because Spark's workers import it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from millstream.pipeline.schema import default_schema
from millstream.pipeline.source import MillstreamDataSource
from millstream.storage.blocks.block import Block
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import NAME, Manifest
from millstream.storage.files.snapshot_reader import SnapshotReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PAGE_ENTRIES = 1_000

Row = tuple[str, str, datetime, dict[str, str]]


class StreamPartition(InputPartition):
    """The stream that a task reads."""

    def __init__(self, key: str) -> None:
        self.key = key


class RowsReader(DataSourceReader):
    """Reads the streams that the option `subscribe` names."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        return [StreamPartition(key) for key in self.options["subscribe"].split(",")]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        assert isinstance(partition, StreamPartition)
        return self.rows(partition.key)

    @abstractmethod
    def rows(self, key: str) -> Iterator[Row]:
        """All entries of a stream."""


class DefaultSource(DataSource):
    """A data source with millstream's default schema."""

    def schema(self) -> str:
        return default_schema(None)


class TuplesSource(DefaultSource):
    """The snapshot in the option `path`, without Arrow."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TuplesReader(dict(self.options))


class TuplesReader(RowsReader):
    def rows(self, key: str) -> Iterator[Row]:
        disk = SystemDisk(Path(self.options["path"]))
        with closing(disk.read(NAME)) as manifest:
            base = Manifest.from_bytes(manifest.read_at(0, manifest.size)).base
        assert base is not None
        with closing(disk.read(base)) as file:
            reader = SnapshotReader(file)
            for section in range(len(reader.summary.sections)):
                for record in reader.records(section):
                    if record.key == key.encode():
                        for block in reader.blocks(record, Block):
                            yield from _rows_of(key, block)


def _rows_of(key: str, block: Block) -> Iterator[Row]:
    for ms, seq, words in block.entries():
        texts = [word.decode() for word in words]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        yield key, f"{ms}-{seq}", datetime.fromtimestamp(ms / 1000, UTC), fields


class FilePartition(InputPartition):
    """The file that a task reads."""

    def __init__(self, path: str) -> None:
        self.path = path


class BatchesSource(DefaultSource):
    """The Arrow files in the folder of the option `path`, one for each partition."""

    @classmethod
    def name(cls) -> str:
        return "batches"

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchesReader(self.options["path"])


class BatchesReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        return [FilePartition(str(path)) for path in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilePartition)
        with pa.memory_map(partition.path) as file, pa.ipc.open_file(file) as batches:
            for number in range(batches.num_record_batches):
                yield batches.get_batch(number)


def write_batches(snapshot: Path, schema: StructType, folder: Path) -> None:
    """The batches that millstream's data source makes of a snapshot, as files for
    `BatchesSource`."""
    reader = MillstreamDataSource({"path": str(snapshot)}).reader(schema)
    folder.mkdir()
    for number, partition in enumerate(reader.partitions()):
        found = list(reader.read(partition))
        with pa.ipc.new_file(str(folder / f"{number:05}.arrow"), found[0].schema) as file:
            for batch in found:
                file.write_batch(batch)


class XrangeSource(DefaultSource):
    """The local server at the option `port`, read page by page."""

    @classmethod
    def name(cls) -> str:
        return "xrange"

    def reader(self, schema: StructType) -> DataSourceReader:
        return XrangeReader(dict(self.options))


class XrangeReader(RowsReader):
    def rows(self, key: str) -> Iterator[Row]:
        import redis

        start = "-"
        with redis.Redis(port=int(self.options["port"]), decode_responses=True) as client:
            while page := self._page(client, key, start):
                for id_, fields in page:
                    time = datetime.fromtimestamp(int(id_.partition("-")[0]) / 1000, UTC)
                    yield key, id_, time, fields
                start = f"({page[-1][0]}"

    def _page(self, client: Any, key: str, start: str) -> list[tuple[str, dict[str, str]]]:
        page: list[tuple[str, dict[str, str]]] = client.xrange(key, start, count=PAGE_ENTRIES)
        return page
