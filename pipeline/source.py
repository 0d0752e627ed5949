"""The data source `millstream`: finds out what is asked for and hands it to the part that does it.

Spark makes a source on the driver and in each of its planning processes, from the options alone; so
this holds nothing but them, and imports each part when it is asked for.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from millstream.pipeline.options import SCAN, Options

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class MillstreamDataSource(DataSource):
    """`spark.read.format("millstream")`.

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
        from millstream.pipeline.scan import SnapshotScan

        return SnapshotScan(schema, Options(self.options, SCAN))
