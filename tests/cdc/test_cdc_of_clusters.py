"""`millstream cdc` with a cluster on one machine, through the gateway and at a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bench.postgres import Postgres
from tests.cdc.appliers import Applying
from tests.support.pipelines import Pipeline, ended, url_of
from tests.support.shards import Shards
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
ADVICE = "give the prefix a {tag}"


@pytest.mark.parametrize("at", [0, 1], ids=["gateway", "node"])
def test_a_cluster_takes_the_changes_of_a_prefix_with_a_tag_only(
    shards: Shards,
    source: psycopg.Connection[Any],
    destination_cluster: Postgres,
    tmp_path: Path,
    at: int,
) -> None:
    target = destination_cluster.create_database(tmp_path.name)
    urls, tables, port = {"eu": url_of(source)}, "t = {}\nu = {}", shards.port + at
    with ended(Pipeline(tmp_path, shards, target)) as pipeline:
        tag = {"millstream": f'prefix = "{{cdc{at}}}"'}
        applying = Applying(pipeline.configure(urls, tables, tag, port=port).file)
        try:
            for table in ("t", "u"):
                source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)".encode())
                source.execute(f"INSERT INTO {table} VALUES (1)".encode())
                applying.execute(f"CREATE TABLE {table} (sid text, id int, PRIMARY KEY (sid, id))")
            plain = {"millstream": f'prefix = "plain{at}"'}
            pipeline.configure({"us": url_of(source)}, tables, plain, port=port)
            assert ADVICE in pipeline.call("check", code=1).output
            pipeline.start()  # does not check the server first
            wait_until(
                lambda: json.loads(pipeline.call("status", "--json", code=None).stdout),
                lambda found: ADVICE in json.dumps(found),
                f"the advice ({pipeline.log_path})",
                DEADLINE_S,
            )
            assert "cannot be reached: " not in pipeline.log
            assert pipeline.end() == 0

            pipeline.configure(urls, tables, tag, port=port)
            pipeline.call("check", code=0)
            pipeline.start()
            applying.start()
            for table in ("t", "u"):
                wait_until(
                    lambda table=table: applying.ids(table),  # type: ignore[misc]
                    lambda found: found == [1],
                    f"the copy of {table}; {applying.problem} ({pipeline.log_path})",
                    DEADLINE_S,
                )
            with source.transaction():
                source.execute("INSERT INTO t VALUES (2)")
                source.execute("UPDATE u SET id = 3")
            wait_until(
                lambda: (applying.ids("t"), applying.ids("u")),
                lambda found: found == ([1, 2], [3]),
                f"the changes; {applying.problem} ({pipeline.log_path})",
                DEADLINE_S,
            )
        finally:
            applying.close()
