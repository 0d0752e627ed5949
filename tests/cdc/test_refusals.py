"""When the promise cannot be kept, the reader refuses in one line, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.support.pipelines import Pipeline, url_of

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


def test_a_slot_that_is_gone_or_unknown_is_refused_until_everything_is_copied_again(
    read: Pipeline, source: Source
) -> None:
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
    first = read.state("public.orders")["copy_lsn"]
    read.call("resync", "shop:eu", "--all")
    read.start().wait_copied("public.orders", after=first)


def test_tables_that_are_not_what_was_copied(pipeline: Pipeline, source: Source) -> None:
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


def test_unsuitable_tables_are_refused_before_anything_is_created(
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
