"""One Spark session for all tests of a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millstream.pipeline.source import MillstreamDataSource


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.dataSource.register(MillstreamDataSource)
    yield session
    session.stop()
