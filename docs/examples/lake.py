"""Copies a snapshot into a lake of Parquet files, partitioned by stream and day.

    python docs/examples/lake.py data lake --keys 'sensor:*'

Each entry keeps its id and all its fields, in their order and with duplicates. Running it again for
a newer snapshot replaces the days that the snapshot has entries of, and leaves the others, which
may have been evicted from the server long ago.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import to_date

SCHEMA = "key string, id string, ts timestamp, fields array<struct<name: string, value: binary>>"


def entries(spark: SparkSession, directory: str, keys: str) -> DataFrame:
    return (
        spark.read.format("millstream")
        .schema(SCHEMA)
        .option("subscribePattern", keys)
        .load(directory)
        .withColumn("day", to_date("ts"))
    )


def save(frame: DataFrame, lake: str) -> None:
    """One file a stream and day: its rows come together first, in the order of time."""
    ordered = frame.repartition("key", "day").sortWithinPartitions("key", "ts", "id")
    writer = ordered.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy("key", "day").parquet(lake)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("lake")
    parser.add_argument("--keys", default="*")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("lake").getOrCreate()
    save(entries(spark, arguments.directory, arguments.keys), arguments.lake)


if __name__ == "__main__":
    main()
