"""Copies a snapshot into a lake of Parquet files, partitioned by stream and day (of UTC).

    python docs/examples/lake.py data lake --keys 'sensor:*'

Each entry keeps its id and all its fields, in their order and with duplicates. Running it again for
a newer snapshot replaces the days that the snapshot has entries of, and leaves the others, which
may have been evicted from the server long ago. Of a stream's first day in the snapshot a part may
be evicted already: that part is taken over from the lake.
"""

import argparse

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, struct, to_date
from pyspark.sql.functions import min as least

ID = "key string, ts timestamp, seq decimal(20,0)"
REST = "id string, fields array<struct<name: string, value: binary>>"


def entries(spark: SparkSession, directory: str, keys: str, schema: str) -> DataFrame:
    return (
        spark.read.format("millstream")
        .schema(schema)
        .option("subscribePattern", keys)
        .load(directory)
        .withColumn("day", to_date("ts"))
    )


def evicted(lake: DataFrame, ids: DataFrame) -> DataFrame:
    """The lake's entries of each stream's first day from before the snapshot's first entry. (When
    the snapshot is replaced between this look at it and the other, the query fails.)"""
    begins = ids.groupBy("key").agg(least(struct("ts", "seq")).alias("begin"))
    begins = begins.withColumn("day", to_date("begin.ts"))
    return lake.join(begins, ["key", "day"]).where(struct("ts", "seq") < col("begin")).drop("begin")


def save(frame: DataFrame, lake: str) -> None:
    """One file a stream and day: its rows come together first, in the order of their ids."""
    ordered = frame.repartition("key", "day").sortWithinPartitions("key", "day", "ts", "seq")
    writer = ordered.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy("key", "day").parquet(lake)


def copy(spark: SparkSession, directory: str, keys: str, lake: str) -> None:
    frame = entries(spark, directory, keys, f"{ID}, {REST}")
    try:
        kept = spark.read.schema(frame.schema).parquet(lake)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
    else:
        frame = frame.unionByName(evicted(kept, entries(spark, directory, keys, ID)))
    save(frame, lake)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("lake")
    parser.add_argument("--keys", default="*")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("lake").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # a day is the same wherever this runs
    copy(spark, arguments.directory, arguments.keys, arguments.lake)


if __name__ == "__main__":
    main()
