"""Watches streams and writes what is above a limit to another stream, each alert exactly once.

    python docs/examples/alerts.py redis://localhost:6455 checkpoint \
        --keys 'sensor:*' --field temperature --above 30 --into alerts

Runs until it is stopped, and continues where it was when it is started again with the same
checkpoint, killed or not. With --available-now it handles what is there and ends.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming import StreamingQuery


def alerts(spark: SparkSession, server: str, keys: str, field: str, above: float) -> DataFrame:
    """A row an alert: which stream, which entry, and its value. No shuffle, so that a batch that is
    repeated has its rows in the same order."""
    entries = (
        spark.readStream.format("millstream")
        .schema(f"key string, id string, `{field}` double")
        .option("server", server)
        .option("subscribePattern", keys)
        .option("startingOffsets", "earliest")
        .load()
    )
    hot = entries.where(col(field) > above)
    return hot.select(col("key").alias("stream"), col("id").alias("entry"), col(field))


def start(frame: DataFrame, arguments: argparse.Namespace) -> StreamingQuery:
    writer = (
        frame.writeStream.format("millstream")
        .option("server", arguments.server)
        .option("key", arguments.into)
        .option("checkpointLocation", arguments.checkpoint)
    )
    return (writer.trigger(availableNow=True) if arguments.available_now else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("checkpoint")
    parser.add_argument("--keys", default="sensor:*")
    parser.add_argument("--field", default="temperature")
    parser.add_argument("--above", type=float, default=30)
    parser.add_argument("--into", default="alerts")
    parser.add_argument("--available-now", action="store_true")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("alerts").getOrCreate()
    frame = alerts(spark, arguments.server, arguments.keys, arguments.field, arguments.above)
    start(frame, arguments).awaitTermination()


if __name__ == "__main__":
    main()
