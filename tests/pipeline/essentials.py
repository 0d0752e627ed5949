"""One pass through Spark's use of millstream, in a separate process, because a Python
process has one PySpark and one kind of session.

    python essentials.py URL DIRECTORY SCRATCH [--remote MASTER] [--brief]

With --brief, each kind of Spark's Python processes does its work once. The program needs nothing
but PySpark and millstream, wherever it finds them, and `before:*` with 600 entries in the server at
URL and in the snapshot in DIRECTORY. It appends to streams of the server, and prints its findings
as JSON; the tests that start it compare them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def session(remote: str | None) -> SparkSession:
    builder = SparkSession.builder
    builder = builder.remote(remote) if remote else builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


class Essentials:
    """Each method does one thing and returns what came of it."""

    def __init__(
        self, spark: SparkSession, url: str, directory: str, scratch: str, is_brief: bool
    ) -> None:
        self.spark = spark
        self.is_brief = is_brief
        self.url = url
        self.directory = directory
        self.scratch = scratch

    def parts(self) -> dict[str, Any]:
        """The versions of PySpark and millstream, in this process and in a worker."""
        worker = self.spark.range(1).select(udf(parts, "array<string>")()).first()
        return {"driver": parts(), "worker": worker[0], "session": type(self.spark).__module__}

    def scan(self) -> list[Any]:
        """A snapshot with the default schema, and with fields as columns under both settings of
        the switch for filters; a brief pass has only the one that needs another process."""
        reader = self.spark.read.format("millstream")
        seen: list[Any] = []
        if not self.is_brief:
            frame = reader.load(self.directory)
            (row,) = frame.where("fields['n'] = '7'").collect()
            seen = [frame.schema.simpleString(), row.key, row.id, dict(row.fields)]
        columns = reader.schema("key string, ms bigint, n int").load(self.directory)
        for switch in ("true",) if self.is_brief else ("false", "true"):
            self.spark.conf.set(PUSHDOWN, switch)
            found = columns.where("key in ('before:0', 'before:1') and ms < 1030").collect()
            seen.append(sorted(one.n for one in found))
        self.spark.conf.unset(PUSHDOWN)
        return seen

    def write(self) -> dict[str, int]:
        """The same job twice under one name."""
        for _ in range(1 if self.is_brief else 2):
            self._append(0, 500)
        return self._counts(self._read("in:*"))

    def stream(self) -> int:
        """Copies `in:*` to `out` by a streaming query, appends, continues from its checkpoint; the
        number of batches."""
        batches = self._copy()
        if not self.is_brief:
            self._append(500, 700)
            batches += self._copy()
        return batches

    def refusal(self) -> str:
        """The error about an option that does not exist."""
        try:
            self._read("in:*", startingOfsets="latest").collect()
        except Exception as error:
            return str(error).partition("JVM stacktrace")[0]
        return "nothing"

    def register(self) -> dict[str, int]:
        """The advice if Spark does not discover the source."""
        from millstream.pipeline.source import MillstreamDataSource

        self.spark.dataSource.register(MillstreamDataSource)
        return self._counts(self._read("before:*"))

    def _read(self, pattern: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("millstream").options(server=self.url, **options)
        schema = "key string, id string, n int"
        return reader.option("subscribePattern", pattern).schema(schema).load()

    def _append(self, first: int, end: int) -> None:
        rows = self.spark.range(first, end).selectExpr("concat('in:', id % 3) as key", "id as n")
        writer = rows.write.format("millstream").mode("append").option("server", self.url)
        writer.option("dedupeToken", f"from {first}").save()

    def _copy(self) -> int:
        """The number of batches."""
        reader = self.spark.readStream.format("millstream").option("server", self.url)
        reader = reader.option("subscribePattern", "in:*").option("startingOffsets", "earliest")
        reader = reader.option("maxEntriesPerTrigger", "400")
        copied = reader.schema("key string, id string, n int").load().selectExpr("id as of", "n")
        writer = copied.writeStream.format("millstream").option("server", self.url)
        writer = writer.option("key", "out").option("checkpointLocation", self.scratch)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = (source for progress in query.recentProgress for source in progress.sources)
        return sum(source.numInputRows > 0 for source in read)

    def _counts(self, frame: DataFrame) -> dict[str, int]:
        return {row.key: row["count"] for row in frame.groupBy("key").count().collect()}


def parts() -> list[str]:
    """PySpark's version, and where millstream lies."""
    import millstream

    return [pyspark.__version__, str(millstream.__file__)]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "directory", "scratch"):
        parser.add_argument(name)
    parser.add_argument("--remote")
    parser.add_argument("--brief", action="store_true")
    given = parser.parse_args()
    spark = session(given.remote)
    do = Essentials(spark, given.url, given.directory, given.scratch, given.brief)
    steps: list[Callable[[], object]] = [do.parts, do.scan, do.write, do.stream]
    if not given.brief:
        steps += [do.refusal, do.register]
    seen = {step.__name__: step() for step in steps}
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
