"""Where Spark looks for data sources by itself: modules `pyspark_*` with a `DefaultSource`."""

from millstream.pipeline.source import MillstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
