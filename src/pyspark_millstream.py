"""Spark discovers data sources by searching modules `pyspark_*` for `DefaultSource`."""

from millstream.pipeline.source import MillstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
