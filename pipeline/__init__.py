"""The Spark source and sink: snapshots and live servers as DataFrames. Needs the extra `spark`."""
