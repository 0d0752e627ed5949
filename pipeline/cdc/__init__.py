"""Change data capture: from PostgreSQL's replication stream to entries.

`config`, `names`, `pgoutput` and `changes` do no I/O; `replication` is the connection.
"""
