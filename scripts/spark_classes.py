"""Writes an archive of the Java classes that Spark loads, for the many short JVMs of the tests.

    JAVA_HOME=$(scripts/need.sh java) .venv/bin/python scripts/spark_classes.py FILE

A JVM parses and verifies ten thousand classes before Spark's first result, which takes half of its
time in a test. With the archive (class data sharing) it maps them instead. This script runs a
little of everything that the tests do with Spark; the JVM archives at its end what it has loaded.
A JVM or a Spark of another version ignores the archive, and everything works without one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.functions import udf

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


class Numbers(DataSource, DataSourceReader, DataSourceStreamReader):
    """A few numbers, in a batch and as a stream; written numbers are dropped."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "key string, fields map<string, string>, n int"

    def reader(self, schema: object) -> DataSourceReader:
        return self

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return self

    def writer(self, schema: object, overwrite: bool) -> DataSourceWriter:
        return Nowhere()

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
        return NowhereAsStream()

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, *given: object) -> dict[str, int]:
        return {"at": 3}

    def partitions(self, *offsets: object) -> Any:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield from (("key", {"n": str(n)}, n) for n in range(3))


class Nowhere(DataSourceWriter):
    def write(self, iterator: Iterator[object]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NowhereAsStream(DataSourceStreamWriter):
    def write(self, iterator: Iterator[object]) -> WriterCommitMessage:
        return Nowhere().write(iterator)


def text(number: int) -> str:
    return str(number)


def use(spark: SparkSession, scratch: str) -> None:
    """Read, count, sort, write and stream."""
    spark.dataSource.register(Numbers)
    spark.range(9).select(udf(text, "string")("id")).collect()
    numbers = spark.read.format("numbers").load()
    numbers.where("n > 0 and fields['n'] = '1'").collect()
    numbers.groupBy("key").count().orderBy("key").collect()
    named = spark.range(0, 9).selectExpr("concat('in:', id % 3) as key", "id as n")
    named.write.format("numbers").mode("append").save()
    stream = spark.readStream.format("numbers").load().selectExpr("key", "n")
    writer = stream.writeStream.format("numbers").option("checkpointLocation", scratch)
    writer.trigger(availableNow=True).start().awaitTermination()


def archive(file: Path) -> None:
    """Run Spark in a JVM that writes this file at its end, and wait for the end."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # -Xlog:disable: a warning for each of the hundreds of classes that cannot be archived.
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={file}"
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config(
        "spark.driver.extraJavaOptions", f"{options} -Xlog:disable"
    ).getOrCreate()
    jvm = spark.sparkContext._gateway.proc
    with TemporaryDirectory() as scratch:
        use(spark, scratch)
    spark.stop()
    jvm.stdin.close()
    jvm.wait()


def main() -> None:
    file = Path(sys.argv[1])
    file.unlink(missing_ok=True)
    unfinished = file.with_suffix(".tmp")
    archive(unfinished)
    if unfinished.exists():  # not every Java can archive
        unfinished.rename(file)


if __name__ == "__main__":
    main()
