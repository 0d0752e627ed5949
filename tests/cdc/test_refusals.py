"""Refusals: if the promise cannot be kept, the reader refuses in one line and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.pipelines import Pipeline, ended, url_of
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.cdc.config import Source as ConfiguredSource
from millstream.cdc.config import Table
from millstream.cdc.source import publications
from millstream.cdc.source.changed_tables import published_otherwise
from millstream.cdc.source.pg_catalog import read_tables
from millstream.cdc.streams.source_state import TableState

Source = psycopg.Connection[Any]
SLOT = "millstream_shop_eu"


@pytest.fixture
def read(pipeline: Pipeline, source: Source) -> Pipeline:
    """A pipeline that has copied a table, and was stopped."""
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)")
    source.execute("INSERT INTO orders VALUES (1, 'tea')")
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    pipeline.end()
    return pipeline


def refused(pipeline: Pipeline, text: str) -> str:
    """`run` ends with 1 and this text in its log."""
    assert pipeline.start().exit_code() == 1
    assert text in pipeline.log
    return pipeline.log


def change_state(pipeline: Pipeline, **values: object) -> None:
    state = {**pipeline.state(), **values}
    pipeline.client.set("cdc:shop:eu:state", json.dumps(state))


def test_a_missing_or_unknown_slot_requires_a_new_copy(read: Pipeline, source: Source) -> None:
    source.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
    log = refused(read, f"the slot {SLOT} no longer exists")
    assert "millstream cdc resync shop:eu --all" in log
    first = read.state("public.orders")["copy_lsn"]
    read.call("resync", "shop:eu", "--all")
    source.execute("INSERT INTO orders VALUES (2, 'salt')")
    read.start().wait_copied("public.orders", after=first)
    assert read.copied_rows("public.orders") == [["1", "tea"], ["2", "salt"]]
    read.end()
    read.client.delete("cdc:shop:eu:state")
    refused(read, "millstream has no record of it")
    assert "give this source another `name` or `sid`" in read.log
    first = read.state("public.orders")["copy_lsn"]
    read.call("resync", "shop:eu", "--all", code=1)
    read.call("resync", "shop:eu", "--all", "--take-over")
    read.start().wait_copied("public.orders", after=first)


def test_tables_that_differ_from_their_copy_are_refused(pipeline: Pipeline, source: Source) -> None:
    names = ["aimed", "typed", "narrowed", "renamed", "unpublished"]
    for name in names:
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, item text)")
    tables = "\n".join(f"{name} = {{}}" for name in names)
    pipeline.configure({"eu": url_of(source)}, tables).start()
    pipeline.wait_copied(*(f"public.{name}" for name in names))
    pipeline.end()
    source.execute("ALTER TABLE renamed RENAME TO others")
    source.execute("CREATE TABLE renamed (LIKE others INCLUDING ALL)")
    source.execute(f"ALTER PUBLICATION {SLOT} DROP TABLE unpublished")
    changed = {
        "aimed": "{ target = 'others' }",
        "typed": "{ type = 'append' }",
        "narrowed": "{ columns = ['id'] }",
    }
    tables = "\n".join(f"{name} = {changed.get(name, '{}')}" for name in names)
    pipeline.configure({"eu": url_of(source)}, tables)
    log = refused(pipeline, "target of public.aimed was changed since the copy")
    assert "type of public.typed was changed since the copy" in log
    assert "columns of public.narrowed was changed since the copy" in log
    assert "public.renamed is not the table that was copied" in log
    assert "public.unpublished is no longer in the publication" in log
    for name in names:
        assert f"millstream cdc resync shop:eu public.{name}" in log
    copies = {name: pipeline.state(f"public.{name}")["copy_lsn"] for name in names}
    for name in names:
        pipeline.call("resync", "shop:eu", name)
    pipeline.start()
    for name in names:
        pipeline.wait_copied(f"public.{name}", after=copies[name])
    source.execute("INSERT INTO unpublished VALUES (1, 'tea')")
    source.execute("INSERT INTO narrowed VALUES (1, 'tea')")
    assert pipeline.wait_changes("public.narrowed", 1) == [{"@op": "insert", "id": "1"}]
    pipeline.wait_changes("public.unpublished", 1)


def test_a_publication_altered_while_nothing_is_read_is_refused(
    read: Pipeline, source: Source
) -> None:
    source.execute(f"ALTER PUBLICATION {SLOT} DROP TABLE orders")
    source.execute("UPDATE orders SET item = 'salt'")
    source.execute(f"ALTER PUBLICATION {SLOT} ADD TABLE orders")
    line = "to copy the table again: millstream cdc resync shop:eu public.orders"
    refused(read, line)
    assert line in read.call("status", code=1).stdout
    checked = read.call("check", code=1).stdout
    assert line in checked
    source.execute(f"ALTER PUBLICATION {SLOT} SET (publish = 'insert')")
    checked = read.call("check", code=1).stdout
    assert line in checked
    assert "setup and run change it" not in checked
    first = read.state("public.orders")["copy_lsn"]
    read.call("resync", "shop:eu", "orders")
    read.start().wait_copied("public.orders", after=first)
    assert read.copied_rows("public.orders") == [["1", "salt"]]
    source.execute("UPDATE orders SET item = 'rice'")
    assert read.wait_changes("public.orders", 1)[-1]["item"] == "rice"
    first = read.state("public.orders")["copy_lsn"]
    source.execute(f"DROP PUBLICATION {SLOT}")
    source.execute("UPDATE orders SET item = 'oil'")
    assert read.exit_code() == 1
    assert f"the publication {SLOT} was dropped" in read.log
    source.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE orders")
    refused(read, "resync shop:eu public.orders")
    read.call("resync", "shop:eu", "--all")
    read.start().wait_copied("public.orders", after=first)
    assert read.copied_rows("public.orders") == [["1", "oil"]]


ALTERED = (
    ["ALTER PUBLICATION p DROP TABLE t"],
    ["ALTER PUBLICATION p DROP TABLE t", "ALTER PUBLICATION p ADD TABLE t WHERE (id > 1)"],
    ["ALTER PUBLICATION p SET TABLE t WHERE (id > 100)"],
    ["ALTER PUBLICATION p SET TABLE t (id) WHERE (id > 1)"],
    ["ALTER PUBLICATION p SET TABLE t"],
    ["ALTER PUBLICATION p SET (publish = 'insert')"],
    ["ALTER PUBLICATION p SET (publish = 'insert')", "ALTER PUBLICATION p SET (publish = '{all}')"],
    ["ALTER PUBLICATION p SET (publish_via_partition_root = false)"],
    ["ALTER PUBLICATION p ADD TABLES IN SCHEMA public"],
    ["DROP PUBLICATION p"],
    ["DROP PUBLICATION p", "{create}"],
    ["DROP TABLE t"],
)


def test_all_settings_of_a_publication_are_compared(source: Source) -> None:
    table = Table("public", "t", "t", where="id > 1")
    one = ConfiguredSource("shop", "eu", "", (table,))
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    catalog = read_tables(source, [table])
    version = source.info.server_version
    [create] = publications.statements(one, None, catalog, version)
    create = create.replace(SLOT, "p")
    source.execute(create.encode())

    def problem(state: TableState) -> str | None:
        publication = publications.read_publication(source, "p")
        found = catalog["public", "t"]
        return published_otherwise(one, table, state, found, publication, version)

    publication = publications.read_publication(source, "p")
    assert publication is not None
    oid = catalog["public", "t"].oid
    stamp = publication.stamp(oid)
    assert stamp is not None
    state = TableState("copied", 1, oid=oid, published=stamp)
    source.execute("VACUUM FREEZE pg_publication")
    source.execute("CREATE TABLE u (id int PRIMARY KEY)")
    source.execute("ALTER PUBLICATION p ADD TABLE u")
    source.execute("ALTER TABLE t RENAME TO renamed; ALTER TABLE renamed RENAME TO t")
    source.execute("ALTER TABLE t ADD w int; COMMENT ON PUBLICATION p IS 'ours'")
    assert problem(state) is None
    for commands in ALTERED:
        with source.transaction(force_rollback=True):
            for command in commands:
                filled = command.format(all="insert, update, delete, truncate", create=create)
                source.execute(filled.encode())
            assert problem(state) is not None, commands
    assert problem(state) is None


def test_a_pipeline_leaves_objects_of_its_namesake(
    read: Pipeline, source: Source, durable_server: Server, tmp_path: Path
) -> None:
    def published() -> Any:
        return source.execute(
            "SELECT (SELECT array_agg(tablename::text) FROM pg_publication_tables"
            " WHERE pubname = slot_name), restart_lsn IS NOT NULL, obj_description("
            "(SELECT oid FROM pg_publication WHERE pubname = slot_name), 'pg_publication')"
            " FROM pg_replication_slots WHERE slot_name = %s",
            [SLOT],
        ).fetchone()

    source.execute("CREATE TABLE stock (id int PRIMARY KEY)")
    (tmp_path / "other").mkdir()
    other = Pipeline(tmp_path / "other", durable_server, "postgresql://127.0.0.1:1/none")
    other.configure({"eu": url_of(source)}, "stock = {}", {"millstream": 'prefix = "other"'})
    mine = published()
    assert mine[:2] == (["orders"], True)
    read.start().wait_reader()
    with ended(other):
        for word in ("check", "setup"):
            done = other.call(word, code=1)
            assert "another millstream cdc may use it (active for PID" in done.output
            assert "DROP TABLE" not in done.output
        assert "active for PID" in other.call("resync", "shop:eu", "--all", code=1).stderr
        take = ("resync", "shop:eu", "--all", "--take-over")
        assert "stop the pipeline" in other.call(*take, code=1).stderr
        refused(other, "give this source another `name` or `sid`")
        assert published() == mine
        source.execute("INSERT INTO orders VALUES (2, 'salt')")
        read.wait_changes("public.orders", 1)
        assert read.end() == 0
        assert "may use it;" in other.call("resync", "shop:eu", "--all", code=1).stderr
        assert "DROP PUBLICATION IF EXISTS" in other.call("drop", "shop:eu", code=1).stderr
        assert published() == mine
        other.call(*take)
        other.start()
        wait_until(lambda: other.log, lambda log: "reading from" in log, "the take-over")
        assert other.end() == 0
        refused(read, "another millstream cdc may use it")
        assert "another millstream cdc may use it" in read.call("status", code=1).stdout
        assert published()[0] == ["stock"]


def test_a_state_of_an_earlier_version_is_read_on(read: Pipeline, source: Source) -> None:
    state = read.state("public.orders")
    for name in ("published", "lost"):
        del state[name]
    for column in state["columns"]:
        del column["number"]
    read.client.set("cdc:shop:eu:public.orders:state", json.dumps(state))
    own = read.state()
    for name in ("owner", "take_over"):
        del own[name]
    read.client.set("cdc:shop:eu:state", json.dumps(own))
    source.execute(f"COMMENT ON PUBLICATION {SLOT} IS NULL")
    read.start().wait_reader()
    assert read.state("public.orders")["published"]
    assert read.state()["owner"]
    assert read.end() == 0
    read.client.set("cdc:shop:eu:public.orders:state", json.dumps(state))
    source.execute(f"ALTER PUBLICATION {SLOT} SET (publish = 'insert')")
    refused(read, "was altered since the copy of public.orders")


UNSUITABLE = {
    "a": ("CREATE TABLE a (id int)", "{}", "has no key"),
    "b": ("CREATE VIEW b AS SELECT 1 AS id", "{}", "is not a table"),
    "c": ("CREATE UNLOGGED TABLE c (id int PRIMARY KEY)", "{}", "is unlogged"),
    "d": ("SELECT", "{}", "the table public.d does not exist"),
    "e": ("CREATE TABLE e (id int PRIMARY KEY, n int)", "{ columns = ['n'] }", "must include"),
    "f": ("CREATE TABLE f (id int PRIMARY KEY, n int)", "{ where = 'n > 1' }", "where may only"),
    "g": ("CREATE TABLE g (id int PRIMARY KEY, n int)", "{ where = 'id >' }", "where cannot be"),
    "h": ("CREATE TABLE h (id int PRIMARY KEY)", "{ columns = ['id', 'x'] }", "columns names x"),
    "i": ("CREATE TABLE i (id int PRIMARY KEY)", "{ set = { id = '1' } }", "set must not"),
    "k": (
        "CREATE TABLE k (id int) PARTITION BY RANGE (id);"
        "CREATE TABLE k1 PARTITION OF k FOR VALUES FROM (0) TO (9);"
        "ALTER TABLE k REPLICA IDENTITY FULL",
        "{}",
        'ALTER TABLE "public"."k1" REPLICA IDENTITY FULL',
    ),
    "j": ("CREATE TABLE j (n int UNIQUE)", "{ type = 'history' }", "has no key"),
}


def test_unsuitable_tables_are_refused_before_anything_exists(
    pipeline: Pipeline, source: Source
) -> None:
    for create, _, _ in UNSUITABLE.values():
        source.execute(create)
    tables = "\n".join(f"{name} = {options}" for name, (_, options, _) in UNSUITABLE.items())
    pipeline.configure({"eu": url_of(source)}, tables)
    lines = pipeline.call("check", code=1).stdout.splitlines()
    assert pipeline.start().exit_code() == 1
    for name, (_, _, text) in UNSUITABLE.items():
        where = f"shop:eu public.{name}: "
        [line] = [line for line in lines if where in line and text in line]
        assert line.startswith("error ")
        assert f" public.{name}: " in pipeline.log  # each line has the source already
        assert where not in pipeline.log
        assert text in pipeline.log
    made = "SELECT (SELECT count(*) FROM pg_publication), count(*) FROM pg_replication_slots"
    own = " WHERE database = current_database()"
    assert source.execute(made + own).fetchone() == (0, 0)


def test_a_source_without_logical_wal(pipeline: Pipeline, destination_cluster: Any) -> None:
    url = destination_cluster.create_database("plain")
    with psycopg.connect(url, autocommit=True) as one:
        one.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline.configure({"eu": url}, "t = {}")
    done = pipeline.call("check", code=1)
    assert "wal_level is replica" in done.stdout
    assert "ALTER SYSTEM SET wal_level = 'logical'" in done.stdout


def test_one_refused_source_does_not_stop_the_others(
    read: Pipeline, source: Source, new_database: Callable[[], str]
) -> None:
    other = new_database()
    with psycopg.connect(other, autocommit=True) as one:
        one.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    change_state(read, system="7000000000000000000")
    read.configure({"eu": url_of(source), "us": other}, "orders = {}").start()
    read.wait_reader("refused", "eu", "another cluster")
    read.wait_copied("public.orders", sid="us")
    first = read.state("public.orders")["copy_lsn"]
    read.call("resync", "shop:eu", "--all")
    read.wait_copied("public.orders", after=first)
    read.wait_reader("reading", "eu")
    assert read.end() == 0
