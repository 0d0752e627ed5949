"""The data source `millstream`: chooses the reader or writer for the options.

With the option `server` the source reads or writes a live server, otherwise it scans a snapshot.
Spark creates a source from the options on the driver and in each of its planning processes. The
source therefore holds only the options, and imports readers and writers when they are needed.
"""

from collections.abc import Mapping, MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from millstream.pipeline.source_options import (
    LIVE,
    SCAN,
    STREAM,
    STREAM_WRITE,
    WRITE,
    OptionError,
    SourceOptions,
)


class MillstreamDataSource(DataSource):
    """`spark.read.format("millstream")`, `.readStream`, `.write` and `.writeStream`.

    Spark discovers the class through the module `pyspark_millstream`. Where that fails, call
    `spark.dataSource.register(MillstreamDataSource)`.
    """

    options: "MutableMapping[str, str]"

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType | str:
        """The schema when the user gives none: the columns of the option `columns`, or the default.
        The schema of a table that is being created contains the table's options."""
        from millstream.pipeline.schema import default_schema
        from millstream.pipeline.table import is_table, table_schema

        if is_table(self.options):
            return table_schema(self.options)
        return default_schema(self.options.get("columns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        from millstream.pipeline.table import is_of_server

        self._check_columns(schema)
        if is_of_server(self.options, schema):
            from millstream.pipeline.batch_reader import LiveReader

            return LiveReader(schema, self._reading(schema, LIVE))
        from millstream.pipeline.scan import SnapshotScan

        return SnapshotScan(schema, self._reading(schema, SCAN))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._reading(schema, STREAM)
        self._check_columns(schema)
        from millstream.pipeline.stream_reader import StreamReader

        return StreamReader(schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millstream.pipeline.row_writer import BatchWriter

        return BatchWriter(schema, self._writing(WRITE), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from millstream.pipeline.row_writer import StreamWriter

        return StreamWriter(schema, self._writing(STREAM_WRITE), overwrite)

    def _reading(self, schema: StructType, purpose: str) -> SourceOptions:
        from millstream.pipeline.table import reading_options

        given = reading_options(self.options, schema, purpose)
        if purpose == STREAM:
            _need_server(given, "a snapshot does not grow, so a stream is read from a server")
        return SourceOptions(given, purpose)

    def _writing(self, purpose: str) -> SourceOptions:
        from millstream.pipeline.table import writing_options

        given = writing_options(self.options)
        _need_server(given, "entries are written to a server")
        return SourceOptions(given, purpose)

    def _check_columns(self, schema: StructType) -> None:
        from millstream.pipeline.schema import check_columns

        check_columns(self.options.get("columns"), schema)


def _need_server(given: "Mapping[str, str]", why: str) -> None:
    if "server" not in given:
        raise OptionError(f"{why}: give its address as option 'server'")
