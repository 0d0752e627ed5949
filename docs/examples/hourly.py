"""Hourly means, least and greatest of a field of streams, from a snapshot to Parquet.

    python docs/examples/hourly.py data hourly.parquet --keys 'sensor:*' --field temperature

Only the columns that the schema names are decoded, and only the chunks that hold wanted keys read.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, count, window
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least


def hourly(spark: SparkSession, directory: str, keys: str, field: str) -> DataFrame:
    entries = (
        spark.read.format("millstream")
        .schema(f"key string, ts timestamp, `{field}` double")
        .option("subscribePattern", keys)
        .load(directory)
    )
    hours = entries.groupBy("key", window("ts", "1 hour").alias("hour")).agg(
        avg(field).alias("mean"),
        least(field).alias("least"),
        greatest(field).alias("greatest"),
        count(field).alias("entries"),
    )
    return hours.withColumn("hour", col("hour.start")).orderBy("key", "hour")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("output")
    parser.add_argument("--keys", default="*")
    parser.add_argument("--field", default="temperature")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("hourly").getOrCreate()
    frame = hourly(spark, arguments.directory, arguments.keys, arguments.field)
    frame.coalesce(1).write.mode("overwrite").parquet(arguments.output)


if __name__ == "__main__":
    main()
