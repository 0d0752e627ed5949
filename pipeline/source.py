"""The data source `millstream`: finds out what is asked for and hands it to the part that does it.

With the option `server` it is a live server that is read or written, otherwise a snapshot that is
scanned. Spark makes a source on the driver and in each of its planning processes, from the options
alone; so this holds nothing but them, and imports each part when it is asked for.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from millstream.pipeline.options import (
    LIVE,
    SCAN,
    STREAM,
    STREAM_WRITE,
    WRITE,
    OptionError,
    Options,
)

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class MillstreamDataSource(DataSource):
    """`spark.read.format("millstream")`, `.readStream`, `.write` and `.writeStream`.

    A module `pyspark_millstream` makes it known to Spark by itself; where that is not found,
    `spark.dataSource.register(MillstreamDataSource)` does.
    """

    options: "MutableMapping[str, str]"

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> str:
        """The schema when the user gives none: that of the option `columns`, or the default."""
        from millstream.pipeline.schema import default_schema

        return default_schema(self.options.get("columns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_columns(schema)
        if "server" in self.options:
            from millstream.pipeline.live import LiveReader

            return LiveReader(schema, Options(self.options, LIVE))
        from millstream.pipeline.scan import SnapshotScan

        return SnapshotScan(schema, Options(self.options, SCAN))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._need_server("a snapshot does not grow, so a stream is read from a server")
        self._check_columns(schema)
        from millstream.pipeline.streaming import StreamReader

        return StreamReader(schema, Options(self.options, STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        self._need_server("entries are written to a server")
        from millstream.pipeline.writer import BatchWriter

        return BatchWriter(schema, Options(self.options, WRITE), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        self._need_server("entries are written to a server")
        from millstream.pipeline.writer import StreamWriter

        return StreamWriter(schema, Options(self.options, STREAM_WRITE), overwrite)

    def _check_columns(self, schema: StructType) -> None:
        from millstream.pipeline.schema import check_columns

        check_columns(self.options.get("columns"), schema)

    def _need_server(self, why: str) -> None:
        if "server" not in self.options:
            raise OptionError(f"{why}: give its address as option 'server'")
