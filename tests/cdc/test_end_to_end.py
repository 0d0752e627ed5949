"""From PostgreSQL to PostgreSQL: `run` as a program, and `apply` in this process without Spark.

The tests are named after defects of another replicator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bench.postgres import Postgres
from tests.cdc.appliers import Applying
from tests.support.pipelines import Pipeline, url_of
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
ROWS = 2000

Connection = psycopg.Connection[Any]
Started = Callable[..., Applying]


@pytest.fixture
def applying(
    pipeline: Pipeline, destination_cluster: Postgres, tmp_path: Path
) -> Iterator[Started]:
    """Starts `run` and an applier for the pipeline's file; both end with the test."""
    made: list[Applying] = []
    pipeline.target = destination_cluster.create_database(tmp_path.name)

    def start(source: Connection, tables: str, ddl: str = "", **sections: str) -> Applying:
        pipeline.configure({"eu": url_of(source)}, tables, sections)
        applying = Applying(pipeline.file)
        made.append(applying)
        if ddl:
            applying.execute(ddl)
        pipeline.start()
        return applying

    yield start
    for one in made:
        one.close()


def contents(connection: Connection, table: str, columns: str) -> Any:
    """The number of rows, and a hash of all of them."""
    row = f"md5(({columns})::text)"
    query = f"SELECT count(*), md5(string_agg({row}, '' ORDER BY {row})) FROM {table}"
    return connection.execute(query.encode()).fetchone()


def wait_same(
    source: Connection, applying: Applying, table: str = "t", columns: str = "id, a"
) -> None:
    """Wait until the destination has exactly the source's rows."""
    wanted = contents(source, table, columns)
    wait_until(
        lambda: contents(applying.connection, table, columns),
        lambda found: found == wanted,
        f"the rows of the source, {wanted}; {applying.problem}",
        DEADLINE_S,
    )


KEYLESS = "CREATE TABLE t (sid text, id int, a text)"
KEYED = "CREATE TABLE t (sid text, id int, a text, PRIMARY KEY (sid, id))"


def full(source: Connection, rows: int = 0) -> None:
    """A table without a key at the source, with some rows."""
    source.execute("CREATE TABLE t (id int, a text)")
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    source.execute("INSERT INTO t SELECT n, md5(n::text) FROM generate_series(1, %s) n", [rows])


class Writers:
    """Threads that change a table of a source until the end of the block."""

    def __init__(self, url: str, statements: Sequence[str], count: int = 2) -> None:
        self._stop = threading.Event()
        self._url = url
        self._statements = statements
        self.done = 0
        self._threads = [threading.Thread(target=self._write) for _ in range(count)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.is_set():
                with connection.transaction():
                    for statement in self._statements:
                        connection.execute(statement.encode())
                self.done += 1
                self._stop.wait(0.002)


CHANGES = (
    "INSERT INTO t VALUES (-1, 'same'), (-1, 'same')",
    "UPDATE t SET a = a || 'x' WHERE ctid = (SELECT ctid FROM t ORDER BY random() LIMIT 1)",
    "DELETE FROM t WHERE ctid = (SELECT ctid FROM t WHERE id < 0 LIMIT 1 FOR UPDATE SKIP LOCKED)",
)


def test_a_copy_under_load_has_neither_gap_nor_overlap(
    source: Connection, applying: Started
) -> None:
    full(source, ROWS)
    with Writers(url_of(source), CHANGES) as writers:
        started = applying(source, "t = {}", KEYLESS)
        wait_until(lambda: writers.done > 20, what="changes before the copy")
        started.start()
        wait_until(
            lambda: started.position("t").copied_lsn is not None,
            what=f"the copy; {started.problem}",
            deadline_s=DEADLINE_S,
        )
        before = writers.done
        wait_until(lambda: writers.done > before + 20, what="changes after the copy")
    wait_same(source, started)


def test_a_killed_copy_is_repeated(
    source: Connection, applying: Started, pipeline: Pipeline
) -> None:
    full(source, ROWS * 10)
    started = applying(source, "t = {}", KEYLESS, read="copy_rate = 8000")
    started.start()
    wait_until(
        lambda: started.count("t") > 0,
        what=f"the first rows of the copy; {started.problem}",
        deadline_s=DEADLINE_S,
    )
    assert started.position("t").state == "copying"
    pipeline.stop()
    first = pipeline.state("public.t")["copy_lsn"]
    source.execute("DELETE FROM t WHERE id % 2 = 0")
    pipeline.configure({"eu": url_of(source)}, "t = {}")
    pipeline.start()
    pipeline.wait_copied("public.t", after=first)
    wait_same(source, started)


def test_a_refused_change_stops_its_table_and_the_confirmations(
    source: Connection, applying: Started, pipeline: Pipeline
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    started = applying(source, "t = {}", KEYED + "; ALTER TABLE t ADD CHECK (a <> 'bad')")
    started.start()
    pipeline.wait_copied("public.t")
    source.execute("INSERT INTO t VALUES (1, 'good')")
    source.execute("INSERT INTO t VALUES (2, 'bad')")
    source.execute("INSERT INTO t VALUES (3, 'later')")
    stopped = wait_until(
        lambda: started.position("t"),
        lambda position: position.state == "stopped",
        f"the stop; {started.problem}",
        DEADLINE_S,
    )
    assert stopped.error is not None
    assert "t_a_check" in stopped.error
    assert started.ids("t") == [1]
    # Changes that were not applied are still in millstream, and stay there.
    wait_until(
        lambda: [fields["id"] for fields in pipeline.changes("public.t")],
        lambda left: left == ["2", "3"],
        "the entries that were not applied",
    )
    started.execute("ALTER TABLE t DROP CONSTRAINT t_a_check")
    pipeline.call("resume", "shop:eu", "t")
    wait_same(source, started)
    assert started.position("t").error is None


def test_truncate_arrives(source: Connection, applying: Started) -> None:
    full(source, 10)
    started = applying(source, "t = {}", KEYLESS)
    started.execute("INSERT INTO t VALUES ('us', 1, 'of another source')")
    started.start()
    wait_until(lambda: started.count("t") == 11, what="the copy", deadline_s=DEADLINE_S)
    with source.transaction():
        source.execute("INSERT INTO t VALUES (11, 'gone')")
        source.execute("TRUNCATE t")
        source.execute("INSERT INTO t VALUES (12, 'after')")
    wait_until(lambda: started.ids("t") == [1, 12], what="the end", deadline_s=DEADLINE_S)


def test_a_transaction_above_logical_decoding_work_mem_arrives(
    source: Connection, applying: Started, pipeline: Pipeline
) -> None:
    full(source)
    started = applying(source, "t = {}", KEYLESS, apply="max_rows = 1000")
    started.start()
    pipeline.wait_copied("public.t")
    source.execute("SET logical_decoding_work_mem = '64kB'")
    with source.transaction():
        source.execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 30000) n")
        source.execute("INSERT INTO t VALUES (-1, 'the last one')")
    counts: set[int] = set()

    def look() -> int:
        counts.add(started.count("t"))
        return max(counts)

    wait_until(look, lambda found: found == 30001, "the rows", DEADLINE_S)
    assert counts <= {0, 30001}
    wait_same(source, started)


TYPES = (
    "i int, b bigint, n numeric(20,5), f float8, r real, t text, v varchar(20), c char(5),"
    " bo boolean, by bytea, d date, ts timestamp, tz timestamptz, iv interval, u uuid, j json,"
    " jb jsonb, p point, ai int[], at text[], ip inet, x xml, m money, bi bit(4), rg int4range"
)
VALUES = (
    "1, 2, 3.5, 0.1, 0.1, E'tab\\t nl\\n bs\\\\ quote'' \\\\N', 'größe', 'ab', true,"
    " '\\x00ff5c', '2026-02-28', 'infinity', '2026-11-22 15:04:05.25+03', '-1 day 02:03:04',"
    " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\":  1}', '{\"a\": [1, null]}', '(1,2)',"
    " '{1,NULL,3}', '{\"a,b\",\"c\\\"d\",NULL}', '10.0.0.1/24', '<a/>', '12.34', '1010', '[1,5)'"
)


@pytest.mark.parametrize("key", ["", "k"])
def test_every_type_arrives(source: Connection, applying: Started, key: str) -> None:
    source.execute(f"CREATE TABLE t (k int {'PRIMARY KEY' if key else ''}, {TYPES})".encode())
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    source.execute(f"INSERT INTO t VALUES (1, {VALUES})".encode())
    source.execute("INSERT INTO t (k) VALUES (2)")
    unique = ", PRIMARY KEY (sid, k)" if key else ""
    started = applying(source, "t = {}", f"CREATE TABLE t (sid text, k int, {TYPES}{unique})")
    started.start()
    columns = ", ".join(["k", *(part.split()[0] for part in TYPES.split(", "))])
    wait_same(source, started, columns=columns)
    source.execute(f"INSERT INTO t VALUES (3, {VALUES}), (4, {VALUES})".encode())
    source.execute("UPDATE t SET i = 7, t = repeat(md5(random()::text), 500) WHERE k IN (1, 3)")
    wait_same(source, started, columns=columns)
    source.execute("UPDATE t SET i = 8 WHERE k = 3")
    source.execute("DELETE FROM t WHERE k IN (2, 4)")
    wait_same(source, started, columns=columns)


def test_large_values_that_did_not_change_stay(source: Connection, applying: Started) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
    source.execute("ALTER TABLE t ALTER a SET STORAGE EXTERNAL")
    ddl = "CREATE TABLE t (sid text, id int, a text, b int, PRIMARY KEY (sid, id))"
    started = applying(source, "t = {}", ddl)
    started.start()
    source.execute("INSERT INTO t SELECT n, repeat(n::text, 9000), 0 FROM generate_series(1, 5) n")
    wait_same(source, started, columns="id, a, b")
    source.execute("UPDATE t SET b = 1")
    source.execute("UPDATE t SET id = id + 100 WHERE id < 3")
    source.execute("UPDATE t SET a = repeat('new', 9000) WHERE id = 4")
    source.execute("UPDATE t SET b = 2 WHERE id = 4")
    wait_same(source, started, columns="id, a, b")


def wait_stopped(applying: Applying, table: str, *texts: str) -> str:
    """Wait until a table is stopped for a reason with these texts; the SQL at its end."""
    error = wait_until(
        lambda: applying.position(table).error or "",
        lambda found: all(text in found for text in texts),
        f"a stop of {table} with {texts}",
        DEADLINE_S,
    )
    assert applying.position(table).state == "stopped"
    return error[error.index("ALTER TABLE") :]


def test_columns_are_added_and_removed(source: Connection, applying: Started) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text, old text)")
    source.execute("CREATE TABLE few (id int PRIMARY KEY, a text)")
    source.execute("INSERT INTO t VALUES (1, 'a', 'kept')")
    ddl = "CREATE TABLE t (sid text, id int, a text, old text, PRIMARY KEY (sid, id));"
    ddl += "CREATE TABLE few (id int PRIMARY KEY)"
    tables = "t = {}\nfew = { missing_columns = 'ignore' }"
    started = applying(source, tables, ddl)
    started.start()
    wait_same(source, started, columns="id, a, old")
    source.execute("ALTER TABLE t ADD COLUMN new numeric(6,2) DEFAULT 0.5, DROP COLUMN old")
    source.execute("INSERT INTO t VALUES (2, 'b', 1)")
    source.execute("INSERT INTO few VALUES (1, 'a')")
    cure = wait_stopped(started, "t", "lacks the column new,", "numeric(6,2) DEFAULT '0.50'")
    wait_until(lambda: started.count("few"), lambda count: count == 1)
    wait_until(
        lambda: started.warnings("few"),
        lambda found: found == ['"public"."few" lacks a: ignored'],
        "the warning",
    )
    started.execute(cure)
    wait_same(source, started, columns="id, a, new")
    assert started.values("SELECT id, old FROM t ORDER BY id") == [(1, "kept"), (2, None)]
    source.execute("ALTER TABLE t ADD COLUMN other int")
    started.execute("ALTER TABLE t DROP COLUMN a")
    source.execute("UPDATE t SET other = 1")
    cure = wait_stopped(started, "t", "lacks the columns a, other")
    started.execute(cure)
    wait_same(source, started, columns="id, a, new, other")


RENAMED = ("clone", "append", "history", "keyless", "key")


def test_renamed_columns_lose_nothing(
    source: Connection, applying: Started, pipeline: Pipeline
) -> None:
    ddl, tables = "", ""
    for name in RENAMED:
        key = "" if name == "keyless" else "PRIMARY KEY"
        source.execute(f"CREATE TABLE {name} (id int {key}, v int)".encode())
        source.execute(f"INSERT INTO {name} VALUES (1, 1)".encode())
        versions = ", kvsz_start timestamptz, kvsz_end timestamptz, kvsz_deleted boolean"
        unique = "id, kvsz_start" if name == "history" else "id"
        ddl += f"CREATE TABLE {name} (id int, v int{versions if name == 'history' else ''});"
        ddl += f"ALTER TABLE {name} ADD PRIMARY KEY ({unique});" if key else ""
        kind = name if name in ("append", "history") else "clone"
        tables += f"{name} = {{ type = '{kind}' }}\n"
    source.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    started = applying(source, tables, ddl)
    started.start()
    for name in RENAMED:
        wait_until(lambda name=name: started.count(name), lambda n: n == 1, name, DEADLINE_S)  # type: ignore[misc]
    for name in RENAMED:
        old, new = ("id", "k") if name == "key" else ("v", "w")
        source.execute(f"ALTER TABLE {name} RENAME {old} TO {new}".encode())
        key, value = ("k", "v") if name == "key" else ("id", "w")
        source.execute(f"UPDATE {name} SET {value} = 2 WHERE {key} = 1".encode())
        source.execute(f"INSERT INTO {name} VALUES (2, 22)".encode())
    for name in RENAMED:
        new, old = ("k", "id") if name == "key" else ("w", "v")
        sql = f'ALTER TABLE "public"."{name}" RENAME COLUMN "{old}" TO "{new}"'
        started.execute(wait_stopped(started, name, f"lacks the column {new},", sql))
    assert "stopped" in pipeline.call("status", code=1).stdout
    for name in RENAMED:
        source.execute(f"INSERT INTO {name} VALUES (3, 33)".encode())
    for name in RENAMED:
        order = "1, kvsz_start" if name == "history" else "1"
        columns = "k, v" if name == "key" else "id, w"
        wanted = [(1, 2), (2, 22), (3, 33)]
        wanted = [(1, 1), *wanted] if name == "history" else wanted
        wait_until(
            lambda query=f"SELECT {columns} FROM {name} ORDER BY {order}": started.values(query),  # type: ignore[misc]
            lambda found, wanted=wanted: found == wanted,  # type: ignore[misc]
            f"the rows of {name}: {started.position(name).error}",
            DEADLINE_S,
        )


def test_a_publication_altered_outside_stops_its_tables(
    source: Connection, applying: Started, pipeline: Pipeline
) -> None:
    slot, ddl = "millstream_shop_eu", "CREATE TABLE {} (id int PRIMARY KEY, v int);"
    for name in ("t", "u"):
        source.execute(ddl.format(name).encode())
        source.execute(f"INSERT INTO {name} VALUES (1, 1), (2, 1)".encode())
    started = applying(source, "t = {}\nu = {}", ddl.format("t") + ddl.format("u"))
    started.start()
    for name in ("t", "u"):
        wait_same(source, started, name, "id, v")
    source.execute(f"ALTER PUBLICATION {slot} DROP TABLE t")
    source.execute("UPDATE t SET v = 2 WHERE id = 1")
    source.execute(f"ALTER PUBLICATION {slot} ADD TABLE t")
    source.execute("UPDATE t SET v = 3 WHERE id = 2; UPDATE u SET v = 3 WHERE id = 2")
    advice = "millstream cdc resync shop:eu public.t"
    wait_until(
        lambda: started.position("t").error or "",
        lambda error: "was altered since the copy of public.t" in error and advice in error,
        "the stop",
        DEADLINE_S,
    )
    assert advice in pipeline.log
    assert advice in pipeline.call("status", code=1).stdout
    assert advice in pipeline.call("check", code=1).stdout
    wait_same(source, started, "u", "id, v")
    pipeline.call("resync", "shop:eu", "t")
    wait_same(source, started, "t", "id, v")
    # A change of the options concerns all tables, and a copy undoes it first.
    source.execute(f"ALTER PUBLICATION {slot} SET (publish = 'insert')")
    source.execute("UPDATE t SET v = 4; UPDATE u SET v = 4")
    for name in ("t", "u"):
        wait_until(
            lambda name=name: started.position(name).state,  # type: ignore[misc]
            lambda state: state == "stopped",
            f"the stop of {name}",
            DEADLINE_S,
        )
    for name in ("t", "u"):
        pipeline.call("resync", "shop:eu", name)
        wait_same(source, started, name, "id, v")
    source.execute("UPDATE t SET v = 5; UPDATE u SET v = 5")
    for name in ("t", "u"):
        wait_same(source, started, name, "id, v")
        assert started.position(name).state == "streaming"
