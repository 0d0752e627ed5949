"""The base that Spark wants for what it hands to its tasks.

`millstream export` plans and reads as Spark's tasks do, but where Spark need not be installed. So
the planners take the base from here, and only what Spark itself calls imports Spark.
"""

try:
    from pyspark.sql.datasource import InputPartition
except ImportError:

    class InputPartition:  # type: ignore[no-redef]
        """Stands in for Spark's where Spark is not installed; nothing is called on it."""


__all__ = ["InputPartition"]
