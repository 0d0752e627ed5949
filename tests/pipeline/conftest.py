"""One Spark session for all tests of a worker, set up as a user's machine is."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.essentials import PUSHDOWN, SETTINGS

# A query takes seconds, but a minute and more while other tests use the processors.
SPARK_TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses_spark = "_spark" in getattr(item, "fixturenames", ())
        if uses_spark and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))


@pytest.fixture(scope="session")
def _spark(
    spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    os.environ.update(spark_environment)
    builder = SparkSession.builder.master("local[2]")
    warehouse = tmp_path_factory.mktemp("warehouse")  # Spark makes a folder there for every table
    builder = builder.config("spark.sql.warehouse.dir", str(warehouse))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def spark(_spark: SparkSession) -> SparkSession:
    """The session, with Spark's settings as they are without a user's doing."""
    _spark.conf.unset(PUSHDOWN)
    return _spark


@pytest.fixture(params=["pushdown off", "pushdown on"])
def either_spark(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    """The session under both settings of Spark's switch for pushing filters down."""
    spark.conf.set(PUSHDOWN, str(request.param == "pushdown on").lower())
    return spark
