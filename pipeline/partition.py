"""The base class that Spark requires for partitions.

`millstream export` uses the same planners as the Spark source, but must run without Spark. The
planners import the base class from this module; only modules that Spark itself calls import Spark.
"""

try:
    from pyspark.sql.datasource import InputPartition
except ImportError:

    class InputPartition:  # type: ignore[no-redef]
        """Replaces Spark's class where Spark is not installed; it needs no methods."""


__all__ = ["InputPartition"]
