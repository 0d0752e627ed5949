"""Spark's side: snapshots and live servers as DataFrames. Needs the extra `spark`."""
