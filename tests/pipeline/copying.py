"""A driver for tests that kill it: copies streams within a server by a streaming query.

    python -m tests.pipeline.copying URL CHECKPOINT MARKER [available-now]

Every entry of `in:*` becomes one of `out:*` with the field `of`, the id of the original, and its
field `n`. Runs until it is killed; with `available-now` until everything is copied. One task dies
with its worker in the middle of its rows and is retried: the file MARKER shows that it has died.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat, lit, substring
from tests.pipeline.essentials import SETTINGS


def die_once(batches: Iterator[pa.RecordBatch], marker: str) -> Iterator[pa.RecordBatch]:
    """Half of the rows, then the end of the process; the second time all of them."""
    for batch in batches:
        yield batch.slice(0, len(batch) // 2)
        if len(batch) > 100 and not os.path.exists(marker):
            os.close(os.open(marker, os.O_CREAT))
            os._exit(9)
        yield batch.slice(len(batch) // 2)


def copy(url: str, checkpoint: str, marker: str, until_done: bool) -> None:
    builder = SparkSession.builder.master("local[2,4]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    entries = (
        spark.readStream.format("millstream")
        .schema("key string, id string, n string")
        .option("server", url)
        .option("subscribePattern", "in:*")
        .option("maxEntriesPerTrigger", "1200")
        .option("maxEntriesPerPartition", "320")
        .load()
    )
    copied = entries.select(
        concat(lit("out:"), substring(col("key"), 4, 100)).alias("key"), col("id").alias("of"), "n"
    )
    dying = copied.mapInArrow(lambda batches: die_once(batches, marker), copied.schema)
    writer = (
        dying.writeStream.format("millstream")
        .option("server", url)
        .option("checkpointLocation", checkpoint)
    )
    writer = writer.trigger(availableNow=True) if until_done else writer
    writer.start().awaitTermination()


if __name__ == "__main__":
    copy(sys.argv[1], sys.argv[2], sys.argv[3], "available-now" in sys.argv[4:])
