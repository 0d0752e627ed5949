"""`check`, `setup`, `status`, `resync` and `drop`, as an operator uses them."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from tests.support.pipelines import Pipeline, url_of
from tests.support.roles import PASSWORD, in_role, user_of
from tests.support.waiting import wait_until

from millstream.cdc.applier.apply_status import ApplyStatus
from millstream.cdc.applier.apply_worker import ApplyWorker
from millstream.cdc.applier.driver import Driver
from millstream.cdc.cdc_cli import cdc
from millstream.cdc.checks import destination_checks
from millstream.cdc.config_file import load
from millstream.cdc.operations.dropping import drop
from millstream.cdc.operations.resync_requests import RequestError
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.stream_appender import open_server

Source = psycopg.Connection[Any]
SLOT = "millstream_shop_eu"
TABLES = """\
orders = {}
log = { target = "logs", type = "append" }
[database.tables.items]
type = "history"
rename = { price = "amount" }
set = { year = "extract(year from placed)" }
"""


@pytest.fixture
def destination(new_database: Callable[[], str]) -> Iterator[Source]:
    with psycopg.connect(new_database(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def shop(pipeline: Pipeline, source: Source, destination: Source) -> Pipeline:
    """A configured pipeline with an empty destination, whose source has three tables."""
    pipeline.target = url_of(destination)
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, item varchar(20) NOT NULL)")
    source.execute("CREATE TABLE items (id int PRIMARY KEY, price numeric(8,2), placed date)")
    source.execute("CREATE TABLE log (at timestamptz, line text)")
    source.execute("ALTER TABLE log REPLICA IDENTITY FULL")
    source.execute("INSERT INTO orders VALUES (1, 'tea')")
    return pipeline.configure({"eu": url_of(source)}, TABLES)


def columns(connection: Source, table: str) -> list[str]:
    return [
        f"{name} {kind}"
        for name, kind in connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            [table],
        )
    ]


@pytest.mark.parametrize("library", ["psycopg", "redis", "prometheus_client"])
def test_run_names_the_package_to_install(
    library: str, shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of pytest stay
    monkeypatch.setitem(sys.modules, library, None)
    done = CliRunner().invoke(cdc, ["--config", str(shop.file), "run"])
    assert done.exit_code == 1
    assert done.stderr == (
        f'millstream: {library} is not installed: pip install "millstream[cdc]"\n'
    )


def test_check_names_missing_objects_and_setup_creates_them(
    shop: Pipeline, source: Source, destination: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = shop.call("check", code=1)
    assert "error shop:eu public.orders: the target public.orders does not exist" in done.stdout
    assert "warning shop:eu: the publication does not exist" in done.stdout
    assert "warning destination: the table public.millstream_position does not" in done.stdout
    shop.call("setup", code=1)
    made = shop.call("setup", "--create-targets").stdout
    assert "destination: the table public.logs was created" in made
    assert f"shop:eu: the slot {SLOT} was created" in made
    assert columns(destination, "orders") == ["id integer", "item character varying(20)"]
    assert columns(destination, "items") == [
        "id integer",
        "amount numeric(8,2)",
        "placed date",
        "year numeric",
        "kvsz_start timestamp with time zone",
        "kvsz_end timestamp with time zone",
        "kvsz_deleted boolean",
    ]
    assert shop.call("setup", "--create-targets").stdout == ""
    destination.execute("INSERT INTO orders VALUES (1, 'old'), (2, 'older')")
    done = shop.call("check")
    assert "the first copy deletes 2 rows of" in done.stdout
    monkeypatch.setattr(destination_checks, "ROWS_COUNTED", 1000)
    destination.execute("INSERT INTO orders SELECT -n FROM generate_series(1, 1000) n")
    done = shop.call("check", code=None)
    assert "the first copy deletes more than 1000 rows of" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("error")]


def test_created_targets_have_the_lengths_of_computed_columns(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    kinds = {
        "c": "character(3)",
        "b": "bit(4)",
        "v": "bit varying(5)",
        "n": "numeric(6,2)",
        "t": "time(0) without time zone",
        "i": "interval day to minute",
        "a": "character(3)[]",
        "s": '"char"',
    }
    source.execute(
        f"CREATE TABLE codes (id int PRIMARY KEY, {', '.join(map(' '.join, kinds.items()))},"
        " free bpchar)".encode()
    )
    made = {f"{name}2": name for name in kinds} | {
        "cut": "'abcdef'::char(2)",
        "up": "upper(c)",
        "free2": "free",
        "both": "b & b",
    }
    listed = ", ".join(f'{name} = "{expression}"' for name, expression in made.items())
    shop.configure({"eu": url_of(source)}, f"codes = {{ set = {{ {listed} }} }}")
    shop.call("setup", "--create-targets")
    found = columns(destination, "codes")[len(kinds) + 2 :]
    wanted = [f"{name}2 {kind}" for name, kind in kinds.items()]
    assert found == [*wanted, "cut character(2)", "up text", "free2 bpchar", 'both "bit"']


def test_the_sql_of_setup_grants_the_least_privileges(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    role = f"cdc_{source.info.dbname}"
    source.execute(f"CREATE ROLE {role} LOGIN")
    try:
        name = f"postgresql://{role}@127.0.0.1:{source.info.port}/"
        shop.target = name + destination.info.dbname
        shop.configure({"eu": name + source.info.dbname}, TABLES, {"destination": "schema = 'wh'"})
        done = shop.call("check", code=1).stdout
        assert f"{role} does not have the REPLICATION attribute: ALTER ROLE" in done
        assert f"{role} may not read the table: GRANT" in done
        assert "error destination: the schema wh does not exist; setup creates it: CREATE" in done
        # As the owner, on the first day: nothing exists, and the targets come later.
        _, first = printed(shop, "setup", "--print-sql")
        assert '-- the target "wh"."orders" does not exist' in first
        with destination.transaction(force_rollback=True):
            destination.execute(first.encode())
        # The schema is another role's.
        destination.execute("CREATE SCHEMA wh")
        assert "cannot be used" not in shop.call("check", code=1).stdout
        at_source, at_destination = printed(shop, "setup", "--create-targets", "--print-sql")
        head, _, statements = at_source.partition("\n")
        assert head == "-- at the source shop:eu"
        source.execute(statements.encode())
        destination.execute(at_destination.encode())
        done = shop.call("check").stdout
        assert "error" not in done
        assert "cannot be used" not in done
        shop.call("setup")
        shop.start().wait_copied("public.orders", "public.items", "public.log")
        source.execute("INSERT INTO orders VALUES (2, 'salt')")
        source.execute("INSERT INTO items VALUES (1, 1.5, '2026-11-22')")
        shop.wait_changes("public.orders", 1)
        shop.wait_changes("public.items", 1)
        shop.wait_cuts(2)
        assert shop.end() == 0
        assert apply_once(shop) == 0
        found = "SELECT o.id, i.year FROM wh.orders o LEFT JOIN wh.items i USING (id) ORDER BY 1"
        assert destination.execute(found).fetchall() == [(1, 2026), (2, None)]
        shop.call("setup")
    finally:
        shop.stop()
        destination.execute(f"DROP OWNED BY {role}")
        source.execute(f"DROP OWNED BY {role}")
        drop_role = f"DROP ROLE {role}"
        wait_until(lambda: _dropped(source, drop_role), what="the end of the role's connections")


def test_each_program_does_its_work_in_its_role(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    def log_in(role: str) -> None:
        login = f'username = "{in_role(role)}"\npassword = "{PASSWORD}"'
        shop.configure({"eu": url_of(source)}, TABLES, {"millstream": login})

    shop.call("setup", "--create-targets")
    with user_of(shop.server, "`millstream cdc run`", "cdc:"):
        log_in("`millstream cdc run`")
        shop.start().wait_copied("public.orders", "public.items", "public.log")
        source.execute("INSERT INTO orders VALUES (2, 'salt')")
        shop.wait_changes("public.orders", 1)
        shop.wait_cuts(1)
        shop.end()
    with user_of(shop.server, "`millstream cdc apply`", "cdc:"):
        log_in("`millstream cdc apply`")
        apply_once(shop)
        assert destination.execute("SELECT count(*) FROM orders").fetchone() == (2,)
    others, table = "other commands of `millstream cdc`", ("shop:eu", "public.orders")
    with user_of(shop.server, others, "cdc:"):
        log_in(others)
        found = shop.call("check", code=None).stdout
        assert "warning millstream: maxmemory-policy, appendonly and appendfsync are not" in found
        with shop.server.client() as admin:
            admin.call("ACL", "LOG", "RESET")  # CONFIG GET was refused
        shop.call("status", code=None)
        shop.call("resync", *table)
        shop.call("resume", *table, code=None)
        shop.call("drop", "shop:eu")
        shop.call("setup", code=None)


def printed(shop: Pipeline, *words: str) -> list[str]:
    """The SQL for the source, and that for the destination."""
    return shop.call(*words).stdout.split("-- at the destination\n")


def apply_once(shop: Pipeline) -> int:
    """`apply --once` without Spark."""
    config = load(shop.file)
    worker = ApplyWorker(config)
    driver = Driver(config, lambda parts: [worker.run(part) for part in parts], ApplyStatus())
    try:
        return driver.apply(threading.Event(), once=True)
    finally:
        driver.close()
        worker.close()


def _dropped(connection: Source, statement: str) -> bool:
    try:
        connection.execute(statement)
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_unsuitable_targets_are_named(shop: Pipeline, source: Source, destination: Source) -> None:
    for statement in (
        "CREATE TABLE orders (id int, item text)",
        "CREATE TABLE items (id int PRIMARY KEY, price numeric)",
        "CREATE TABLE logs (at timestamptz)",
        "INSERT INTO logs VALUES (now())",
    ):
        destination.execute(statement)
    lines = shop.call("check", code=1).stdout
    assert "error shop:eu public.orders: " in lines
    assert 'CREATE UNIQUE INDEX ON "public"."orders" ("id")' in lines
    assert "is a history without the column kvsz_start, kvsz_end, kvsz_deleted" in lines
    assert 'error shop:eu public.log: "public"."logs" lacks the column line, which' in lines
    assert 'ALTER TABLE "public"."logs" ADD COLUMN "line" text' in lines
    assert "has 1 row and no key" in lines
    assert shop.start().exit_code() == 1
    assert source.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)


def test_a_rename_to_the_name_of_another_column_is_an_error(shop: Pipeline, source: Source) -> None:
    shop.configure({"eu": url_of(source)}, 'items = { rename = { price = "placed" } }')
    lines = shop.call("check", code=1).stdout
    assert "rename gives a column the name of another one: placed" in lines
    assert shop.start().exit_code() == 1
    assert "shop:eu: public.items: rename gives" in shop.log


def test_a_missing_destination_does_not_stop_the_reader(shop: Pipeline, source: Source) -> None:
    shop.target = "postgresql://postgres@127.0.0.1:1/none"
    shop.configure({"eu": url_of(source)}, "orders = {}")
    assert "error destination: the destination cannot be used" in shop.call("check", code=1).stdout
    shop.start().wait_copied("public.orders")
    shop.wait_reader("reading")
    found = json.loads(shop.call("status", "--json", code=1).stdout)
    assert "the destination cannot be reached" in found["apply"]["problem"]
    assert found["sources"][0]["reader"] == "reading"


def test_status_shows_each_stage_of_a_table(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    shop.call("setup", "--create-targets")
    [seen] = json.loads(shop.call("status", "--json", code=1).stdout)["sources"]
    assert seen["reader"] == "not running"
    assert [table["state"] for table in seen["tables"]] == ["waiting"] * 3
    shop.start().wait_copied("public.orders", "public.items", "public.log")
    source.execute("INSERT INTO orders VALUES (2, 'salt')")
    shop.wait_changes("public.orders", 1)
    copy_lsn = shop.state("public.orders")["copy_lsn"]
    # What apply leaves: two tables are applied, one is stopped.
    destination.execute(
        "INSERT INTO millstream_position (database, sid, source_table, target, state, lsn, n,"
        " copied_lsn, error, error_id) VALUES"
        " ('shop', 'eu', 'public.orders', 'public.orders', 'streaming', %s, 1, %s, NULL, NULL),"
        " ('shop', 'eu', 'public.items', 'public.items', 'stopped', '0/1', 1, '0/1', 'no', '7.1')",
        [copy_lsn, copy_lsn],
    )

    def status() -> Any:
        return json.loads(shop.call("status", "--json", code=1).stdout)

    found = wait_until(
        status, lambda found: found["sources"][0]["reader"] == "reading", "the report", 30
    )
    assert set(found) == {"ok", "apply", "sources"}
    assert found["ok"] is False
    assert found["apply"] == {"running": False, "problem": None, "rows": None}
    [seen] = found["sources"]
    assert set(seen) == {
        *("source", "reader", "problem", "slot", "source_lsn", "durable_lsn", "applied_lsn"),
        *("lag_bytes", "lag_seconds", "repeated", "tables"),
    }
    assert set(seen["slot"]) == {"name", "active", "wal_status", "confirmed_lsn", "retained_bytes"}
    assert (seen["slot"]["name"], seen["slot"]["active"]) == (SLOT, True)
    assert seen["applied_lsn"] is None  # log is still to be copied
    orders, log, items = seen["tables"]
    assert set(orders) == {
        *("table", "target", "type", "state", "lsn", "pending", "rows", "problem", "error_id"),
        "warnings",
    }
    assert (orders["state"], orders["pending"], orders["rows"]) == ("streaming", 1, 1)
    assert (items["state"], items["problem"], items["error_id"]) == ("stopped", "no", "7.1")
    assert log["state"] == "waiting" or log["state"] == "copying"
    text = shop.call("status", code=1).stdout
    assert "public.orders" in text


def test_status_has_the_age_of_unapplied_changes(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    shop.configure({"eu": url_of(source)}, "orders = {}")
    shop.call("setup", "--create-targets")
    shop.start().wait_copied("public.orders")
    copy_lsn = shop.state("public.orders")["copy_lsn"]
    destination.execute(
        "INSERT INTO millstream_position (database, sid, source_table, target, state, lsn, n,"
        " copied_lsn) VALUES ('shop', 'eu', 'public.orders', 'public.orders', 'streaming', %s, 1,"
        " %s)",
        [copy_lsn, copy_lsn],
    )
    source.execute("INSERT INTO orders VALUES (2, 'salt')")
    shop.wait_changes("public.orders", 1)
    [seen] = json.loads(shop.call("status", "--json", code=1).stdout)["sources"]
    assert seen["tables"][0]["pending"] == 1
    assert 0 < seen["lag_seconds"] < 60
    assert seen["applied_lsn"] == copy_lsn


def test_the_exit_code_of_status_separates_failed_from_unknown(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    shop.configure({"eu": url_of(source)}, "orders = {}")
    shop.call("setup", "--create-targets")
    shop.start().wait_copied("public.orders")
    shop.wait_reader()
    copy_lsn = shop.state("public.orders")["copy_lsn"]
    destination.execute(
        "INSERT INTO millstream_position (database, sid, source_table, target, state, lsn, n,"
        " copied_lsn) VALUES ('shop', 'eu', 'public.orders', 'public.orders', 'streaming', %s, 1,"
        " %s)",
        [copy_lsn, copy_lsn],
    )

    def check(code: int, ok: bool | None) -> None:
        assert json.loads(shop.call("status", "--json", code=code).stdout)["ok"] is ok
        shop.call("status", code=code)

    check(1, False)  # apply does not run
    shop.client.set("cdc:apply:alive", '{"running": true, "problem": null, "rows": 0}')
    check(0, True)
    destination.execute("UPDATE millstream_position SET state = 'stopped', error = 'no'")
    check(1, False)
    destination.execute("UPDATE millstream_position SET state = 'streaming', error = NULL")
    assert shop.end() == 0
    report = {"reader": "reading", "at": time.time() + 600, "problem": None}
    shop.client.set("cdc:shop:eu:alive", json.dumps(report))
    check(0, True)
    tables = {"public.orders": {"problem": "permission denied"}}
    shop.client.set("cdc:shop:eu:alive", json.dumps(report | {"tables": tables}))
    check(1, False)
    shop.client.set("cdc:shop:eu:alive", json.dumps(report))
    shop.target = "postgresql://postgres@127.0.0.1:1/none"
    shop.configure({"eu": url_of(source)}, "orders = {}")
    check(3, None)
    shop.target = url_of(destination)
    shop.configure({"eu": "postgresql://postgres@127.0.0.1:1/none"}, "orders = {}")
    check(3, None)
    shop.configure({"eu": url_of(source)}, "orders = {}", port=1)
    check(3, None)
    shop.configure({"eu": url_of(source)}, "orders = 1")
    shop.call("status", code=2)


def test_status_reports_errors_that_would_stop_the_reader(shop: Pipeline, source: Source) -> None:
    shop.call("setup", "--create-targets")
    source.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
    found = json.loads(shop.call("status", "--json", code=1).stdout)
    assert "no longer exists" in found["sources"][0]["problem"]
    assert "resync shop:eu --all" in found["sources"][0]["problem"]


def test_names_with_invisible_characters_look_different(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    source.execute('CREATE TABLE "a\tb" ("k\nk" int PRIMARY KEY, "v\x1b" int, "v " int, "v\t" int)')
    source.execute('CREATE TABLE "a b" (id int PRIMARY KEY)')
    destination.execute('CREATE TABLE "a\tb" ("k\nk" int PRIMARY KEY, "v " int)')
    tables = '"a\\tb" = { set = { "x\\ty" = "1" } }\n"a b" = {}'
    shop.configure({"eu": url_of(source)}, tables)
    done = shop.call("check", code=1).stdout
    assert done.isascii()
    assert "\t" not in done
    assert "\x1b" not in done
    assert 'error shop:eu public.U&"a\\0009b": "public".U&"a\\0009b" lacks the columns' in done
    assert 'U&"v\\001B"' in done
    assert 'ALTER TABLE "public".U&"a\\0009b" ADD COLUMN U&"v\\0009" integer' in done
    assert 'set names U&"x\\0009y", which' in done
    assert "error shop:eu public.a b: the target public.a b does not exist" in done
    # The printed SQL can be executed, and tables can be named as printed.
    text = shop.call("setup", "--create-targets", "--print-sql").stdout
    assert "\t" not in text
    destination.execute(text.partition("-- at the destination")[2].encode())
    rows = [line for line in shop.call("status", code=1).stdout.splitlines() if "clone" in line]
    assert ["0009b" in row for row in rows] == [True, False]
    done = shop.call("resync", "shop:eu", 'public.U&"a\\0009b"')
    assert done.stdout.startswith('public.U&"a\\0009b" has not been copied yet')


def test_a_source_is_dropped_when_it_is_not_read(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    shop.call("setup", "--create-targets")
    shop.start().wait_copied("public.orders")
    destination.execute("INSERT INTO orders VALUES (1, 'tea')")
    destination.execute(
        "INSERT INTO millstream_position (database, sid, source_table, target, state, lsn, n)"
        " VALUES ('shop', 'eu', 'public.orders', '', 'waiting', '0/1', 1),"
        " ('shop', 'us', 'public.orders', '', 'waiting', '0/1', 1)"
    )
    done = shop.call("drop", "shop:eu", code=1)
    assert "is being read" in done.stderr
    shop.end()
    shop.call("drop", "shop:eu")
    own = " WHERE database = current_database()"
    made = "SELECT (SELECT count(*) FROM pg_publication), count(*) FROM pg_replication_slots"
    assert source.execute(made + own).fetchone() == (0, 0)
    assert shop.client.keys("cdc:*") == []
    assert destination.execute("SELECT sid FROM millstream_position").fetchall() == [("us",)]
    assert destination.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    shop.start().wait_copied("public.orders")


def test_a_drop_during_which_run_is_started_is_not_complete(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    shop.call("setup", "--create-targets")
    config = load(shop.file)
    record = SourceRecord(config, config.source("shop:eu"), open_server(config.millstream))

    def start_run(line: str) -> None:
        if "slot" in line:
            record.server.call("SET", record.keys.alive, "{}")

    with pytest.raises(RequestError, match="run was started during the drop"):
        drop(record, start_run)
    shop.client.delete(record.keys.alive)
    assert shop.start().exit_code() == 1  # it does not make the source again
    assert "the slot millstream_shop_eu no longer exists" in shop.log
    shop.call("drop", "shop:eu")
    assert shop.client.keys("cdc:*") == []


def test_a_source_dropped_under_its_reader_is_not_created_again(
    pipeline: Pipeline, source: Source, new_database: Callable[[], str]
) -> None:
    other = new_database()
    with psycopg.connect(other, autocommit=True) as one:
        for database in (one, source):
            database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.configure({"eu": url_of(source), "us": other}, "orders = {}").start()
    pipeline.wait_reader()
    pipeline.client.delete(*pipeline.client.keys("cdc:shop:eu*"))
    pipeline.wait_reader("refused", problem="millstream has no record of it")
    source.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
    source.execute(f"DROP PUBLICATION {SLOT}")
    pipeline.wait_reader("refused", problem="was dropped while it was read")
    # It has been checked several times.
    assert pipeline.log.count("WARNING shop:eu: max_slot_wal_keep_size is -1") == 1
    own = " WHERE database = current_database()"
    made = "SELECT (SELECT count(*) FROM pg_publication), count(*) FROM pg_replication_slots"
    assert source.execute(made + own).fetchone() == (0, 0)


def test_a_table_is_copied_again_while_run_is_running(
    shop: Pipeline, source: Source, destination: Source
) -> None:
    shop.call("setup", "--create-targets")
    shop.start().wait_copied("public.orders", "public.log")
    first, other = shop.state("public.orders")["copy_lsn"], shop.state("public.log")
    assert "is copied again" in shop.call("resync", "shop:eu", "public.orders").stdout
    shop.wait_copied("public.orders", after=first)
    assert shop.state("public.log") == other
    assert "no table 'none'" in shop.call("resync", "shop:eu", "none", code=1).stderr
    shop.call("resync", "shop:eu", code=2)
    assert "there is no source 'shop:xx'" in shop.call("resync", "shop:xx", "a", code=2).stderr


@pytest.mark.parametrize(
    ("url", "commands"),
    [
        ("postgresql://postgres:${SECRET}@127.0.0.1:1/x", ["check", "status --json"]),
        ("host=127.0.0.1 port=1 password=${SECRET} dbname=x", ["drop shop:eu"]),
        ("postgresql://postgres:${SECRET}@127.0.0.1:x/none", ["setup"]),
    ],
)
def test_passwords_are_never_shown(shop: Pipeline, url: str, commands: list[str]) -> None:
    secret = "Tr0ub4dor"
    shop.environment = {"SECRET": secret}
    shop.configure({"eu": url}, "orders = {}")
    for words in commands:
        done = shop.call_program(*words.split(), code=1)
        assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "record"),
    [
        (('name = "shop"', 'nome = "shop"'), "database[0].nome"),
        (("orders = {}", "orders = 1"), "database[0].tables.orders"),
        (("[read]", "[read]\ncopy_rate = 'x'"), "read.copy_rate"),
    ],
)
def test_a_wrong_file_is_reported_in_one_line(
    shop: Pipeline, change: tuple[str, str], record: str
) -> None:
    text = shop.file.read_text()
    shop.file.write_text(text.replace(*change))
    done = shop.call("check", code=2)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert record in line
