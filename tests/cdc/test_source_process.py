"""`millstream cdc run` with a real source: its changes are in millstream, once and in order."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from tests.support.pipelines import Pipeline, url_of
from tests.support.server import free_port
from tests.support.waiting import wait_until

from millstream.cdc.config_file import load
from millstream.cdc.protocol.replication_stream import ReplicationStream
from millstream.cdc.reader.outgoing import Outgoing
from millstream.cdc.reader.report import SourceReport
from millstream.cdc.reader.streaming import Streaming
from millstream.cdc.sql import read_lsn
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import SourceState
from millstream.cdc.streams.stream_appender import StreamAppender, open_server
from millstream.cdc.streams.translator import Translator

Source = psycopg.Connection[Any]
SLOT = "millstream_shop_eu"


def confirmed(source: Source) -> Any:
    row = source.execute(
        "SELECT confirmed_flush_lsn, pg_current_wal_lsn() <= confirmed_flush_lsn"
        " FROM pg_replication_slots WHERE slot_name = %s",
        [SLOT],
    ).fetchone()
    assert row is not None
    return row


def test_a_copy_and_the_changes_after_it_arrive(pipeline: Pipeline, source: Source) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)")
    source.execute("INSERT INTO orders VALUES (1, 'tea'), (2, NULL)")
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    assert pipeline.copied_rows("public.orders") == [["1", "tea"], ["2", "\\N"]]
    source.execute("INSERT INTO orders VALUES (3, 'salt')")
    source.execute("DELETE FROM orders WHERE id = 1")
    assert pipeline.wait_changes("public.orders", 2) == [
        {"@op": "insert", "id": "3", "item": "salt"},
        {"@op": "delete", "@old:id": "1"},
    ]
    assert pipeline.wait_cuts(2) == 2
    state = pipeline.state("public.orders")
    assert [column["name"] for column in state["columns"]] == ["id", "item"]
    assert [column["key"] for column in state["columns"]] == [True, False]
    assert pipeline.end() == 0
    assert pipeline.alive() == {}


def test_odd_names_and_every_kind_of_table(pipeline: Pipeline, source: Source) -> None:
    for statement in (
        'CREATE SCHEMA "o:d%d"',
        'CREATE TABLE "o:d%d"."a ""b""" (id int PRIMARY KEY, "@x" text, "C:%" int)',
        'INSERT INTO "o:d%d"."a ""b""" VALUES (1, \'x\', 7)',
        'CREATE SCHEMA "my.schema"',
        'CREATE TABLE "my.schema"."my.table" (id int PRIMARY KEY)',
        'INSERT INTO "my.schema"."my.table" VALUES (1)',
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "INSERT INTO parts VALUES (1)",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (parent)",
        "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2)",
        "CREATE TABLE few (id int, region text, secret text, PRIMARY KEY (id, region))",
        "INSERT INTO few VALUES (1, 'EU', 'a'), (2, 'US', 'b')",
        "CREATE TABLE full_ (a int, b text)",
        "ALTER TABLE full_ REPLICA IDENTITY FULL",
        "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO made VALUES (4)",
    ):
        source.execute(statement)
    tables = """\
"o:d%d.a \\"b\\"" = {}
'"my.schema"."my.table"' = {}
parts = {}
parent = {}
few = { columns = ["id", "region"], where = "region = 'EU'" }
full_ = {}
made = {}
"""
    pipeline.configure({"eu": url_of(source)}, tables).start()
    odd = 'o%3Ad%25d.a "b"'
    dotted = '"my.schema"."my.table"'
    names = [dotted, "public.parts", "public.parent", "public.few", "public.full_", "public.made"]
    pipeline.wait_copied(odd, *names)
    copied = {name: pipeline.copied_rows(name) for name in (odd, *names)}
    assert copied == {
        odd: [["1", "x", "7"]],
        dotted: [["1"]],
        "public.parts": [["1"]],
        "public.parent": [["1"]],
        "public.few": [["1", "EU"]],
        "public.full_": [],
        "public.made": [["4"]],
    }
    for statement in (
        'UPDATE "o:d%d"."a ""b""" SET "@x" = NULL, id = 2',
        'INSERT INTO "my.schema"."my.table" VALUES (2)',
        "INSERT INTO parts VALUES (2)",
        "INSERT INTO parent VALUES (3); INSERT INTO child VALUES (4)",
        "INSERT INTO few VALUES (3, 'EU', 'c'), (4, 'US', 'd')",
        "UPDATE few SET region = 'US' WHERE id = 1",
        "INSERT INTO full_ VALUES (1, NULL); UPDATE full_ SET a = 2; DELETE FROM full_",
        "INSERT INTO made VALUES (5)",
        "TRUNCATE parts_1",  # not sent by PostgreSQL, of which check warns
        "TRUNCATE parts",
    ):
        source.execute(statement)
    warned = pipeline.call("check", code=None).stdout
    assert "warning shop:eu public.parts: PostgreSQL does not send a TRUNCATE" in warned
    assert pipeline.wait_changes("public.parts", 2) == [
        {"@op": "insert", "id": "2"},
        {"@op": "truncate"},
    ]
    assert pipeline.changes(odd) == [
        {"@op": "update", "id": "2", "C:%": "7", "@null": '["@x"]', "@old:id": "1"}
    ]
    assert pipeline.changes("public.parent") == [{"@op": "insert", "id": "3"}]
    assert pipeline.changes("public.few") == [
        {"@op": "insert", "id": "3", "region": "EU"},
        {"@op": "delete", "@old:id": "1", "@old:region": "EU"},
    ]
    assert pipeline.changes("public.full_") == [
        {"@op": "insert", "a": "1", "@null": '["b"]'},
        {"@op": "update", "a": "2", "@null": '["b"]', "@old:a": "1", "@old-null": '["b"]'},
        {"@op": "delete", "@old:a": "2", "@old-null": '["b"]'},
    ]
    assert pipeline.changes("public.made") == [{"@op": "insert", "id": "5"}]
    assert pipeline.changes(dotted) == [{"@op": "insert", "id": "2"}]
    copied_lsn = pipeline.state(dotted)["copy_lsn"]
    assert dotted in pipeline.call("resync", "shop:eu", "my.schema.my.table").stdout
    pipeline.wait_copied(dotted, after=copied_lsn)


def test_a_copy_under_load_has_neither_gap_nor_overlap(pipeline: Pipeline, source: Source) -> None:
    source.execute("CREATE TABLE orders (id int, item text)")
    source.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    source.execute("INSERT INTO orders SELECT n, 'old' FROM generate_series(1, 20000) n")
    pipeline.configure({"eu": url_of(source)}, "orders = {}", {"read": "copy_rate = 20000"})
    done, last = threading.Event(), 20_000

    def write(first: int) -> int:
        """Transactions of two rows each; some are open for a while."""
        count = 0
        with psycopg.connect(url_of(source)) as writer:
            while not done.is_set():
                for _ in range(2):
                    writer.execute("INSERT INTO orders VALUES (%s, 'new')", [first + count])
                    count += 1
                    done.wait(0.02 if count % 7 == 0 else 0)
                writer.commit()
        return count

    with ThreadPoolExecutor(3) as pool:
        written = [pool.submit(write, first * 1_000_000) for first in (1, 2, 3)]
        pipeline.start().wait_copied("public.orders")
        done.set()
        counts = [one.result() for one in written]
    lsn = read_lsn(pipeline.state("public.orders")["copy_lsn"])
    copied = [int(row[0]) for row in pipeline.copied_rows("public.orders")]
    everything = {*range(1, last + 1)}
    for first, count in zip((1, 2, 3), counts, strict=True):
        everything |= {first * 1_000_000 + n for n in range(count)}

    def later() -> list[int]:
        entries = pipeline.entries("public.orders")
        return [int(row["id"]) for name, row in entries if int(name.split("-")[0]) >= lsn]

    followed = wait_until(later, lambda ids: len(ids) >= len(everything) - len(copied))
    assert sorted(copied + followed) == sorted(everything)
    assert any(row > last for row in copied)


def test_all_tables_are_copied_again_while_changes_are_read(
    pipeline: Pipeline, source: Source
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    source.execute("INSERT INTO orders VALUES (1)")
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    source.execute("INSERT INTO orders VALUES (2)")
    pipeline.wait_changes("public.orders", 1)
    first = pipeline.state("public.orders")
    pipeline.call("resync", "shop:eu", "--all")
    pipeline.wait_copied("public.orders", after=first["copy_lsn"])
    assert pipeline.copied_rows("public.orders") == [["1"], ["2"]]
    assert pipeline.changes("public.orders") == []
    assert pipeline.state("public.orders")["incarnation"] != first["incarnation"]
    source.execute("INSERT INTO orders VALUES (3)")
    assert pipeline.wait_changes("public.orders", 1) == [{"@op": "insert", "id": "3"}]


class SilentReplication:
    """A connection without messages, which calls `flushing` when it is flushed."""

    def __init__(self, flushing: Callable[[], object]) -> None:
        self.flushing = flushing

    def receive_now(self) -> None:
        return None

    async def readable(self) -> None:
        await asyncio.Event().wait()

    async def flushed(self) -> None:
        self.flushing()

    def confirm(self, durable_lsn: int, wants_reply: bool = False) -> None:
        pass


async def cancelled_while_it_flushes(pipeline: Pipeline) -> bool:
    """True if reading ends if it is cancelled at the moment at which its connection is flushed."""
    config = load(pipeline.file)
    record = SourceRecord(config, config.sources[0], open_server(config.millstream))
    report = SourceReport.of(record.source, lambda reader, problem: None)
    state = SourceState(SLOT, "", 0, 0)
    outgoing = Outgoing(
        StreamAppender(record.server, record.keys.cuts, record.keys.state),
        record.keys,
        state,
        report,
        lambda lsn: None,
        lambda size_bytes: None,
    )
    connection: Any = SilentReplication(lambda: task.cancel())
    translator = Translator(record.source.tables)
    reading = Streaming(
        connection, translator, outgoing, lambda: None, report, lambda described: None
    )
    task = asyncio.ensure_future(reading.run())
    done, _ = await asyncio.wait([task], timeout=10)
    return bool(done)


def test_reading_ends_when_it_is_cancelled_while_it_flushes(pipeline: Pipeline) -> None:
    pipeline.configure({"eu": "postgresql://127.0.0.1:1/none"}, "orders = {}")
    assert asyncio.run(cancelled_while_it_flushes(pipeline))


def test_the_slot_advances_with_a_quiet_table(pipeline: Pipeline, source: Source) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    source.execute("CREATE TABLE others (id int)")
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    source.execute("INSERT INTO others SELECT generate_series(1, 10000)")
    wait_until(lambda: confirmed(source), lambda row: row[1], "a confirmation", 30)
    assert pipeline.entries("") == []


def test_a_table_is_added_and_another_removed(pipeline: Pipeline, source: Source) -> None:
    for name in ("a", "b"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        source.execute(f"INSERT INTO {name} VALUES (1)")
    pipeline.configure({"eu": url_of(source)}, "a = {}").start()
    pipeline.wait_copied("public.a")
    pipeline.end()
    pipeline.configure({"eu": url_of(source)}, "b = {}").start()
    pipeline.wait_copied("public.b")
    source.execute("INSERT INTO a VALUES (2); INSERT INTO b VALUES (2)")
    assert pipeline.wait_changes("public.b", 1) == [{"@op": "insert", "id": "2"}]
    assert pipeline.changes("public.a") == []
    assert pipeline.state("public.a") == {}
    pipeline.end()
    pipeline.configure({"eu": url_of(source)}, "a = {}\nb = {}").start()
    pipeline.wait_copied("public.a")
    assert pipeline.copied_rows("public.a") == [["1"], ["2"]]


def fill(pipeline: Pipeline, source: Source) -> None:
    """30 changes, of which `backlog_mb` holds a part."""
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)")
    pipeline.configure({"eu": url_of(source)}, "orders = {}", {"millstream": "backlog_mb = 1"})
    pipeline.start().wait_copied("public.orders")
    for n in range(30):
        source.execute("INSERT INTO orders VALUES (%s, repeat(md5(%s::text), 5000))", [n, n])


def take_all(pipeline: Pipeline) -> None:
    """Take the entries and trim them, like `apply`, until all are taken."""
    seen: list[str] = []

    def trimmed() -> list[str]:
        for name, fields in pipeline.entries("public.orders"):
            seen.extend([fields["id"]] if fields["@op"] == "insert" else [])
            pipeline.client.xtrim("cdc:shop:eu:public.orders", minid=after(name), approximate=False)
        return seen

    wait_until(trimmed, lambda ids: len(ids) >= 30, "all changes", 30)
    assert seen == [str(n) for n in range(30)]


def test_a_paused_reader_leaves_the_source_alone(pipeline: Pipeline, source: Source) -> None:
    fill(pipeline, source)
    pipeline.wait_reader("paused")
    is_read = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(
        lambda: source.execute(is_read, [SLOT]).fetchone(),
        lambda row: row == (False,),
        "the end of the connection",
        30,
    )
    reports, found = set(), set()

    def look() -> int:
        found.add(source.execute(is_read, [SLOT]).fetchone())
        reports.add(pipeline.alive()["at"])
        return len(reports)

    wait_until(look, lambda count: count > 5, "more reports", 30)
    assert found == {(False,)}  # each connection would decode the WAL again
    pipeline.wait_reader("paused", problem="backlog_mb = 1")
    take_all(pipeline)


def test_reading_pauses_while_the_streams_hold_too_much(pipeline: Pipeline, source: Source) -> None:
    fill(pipeline, source)
    report = pipeline.wait_reader("paused", problem="backlog_mb = 1")
    assert "MB" in report["problem"]
    assert 5 < len(pipeline.changes("public.orders")) < 30
    take_all(pipeline)
    pipeline.wait_reader("reading")


def after(name: str) -> str:
    lsn, place = name.split("-")
    return f"{lsn}-{int(place) + 1}"


def test_a_server_without_memory_is_waited_for(pipeline: Pipeline, source: Source) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    pipeline.client.config_set("maxmemory", "1")
    try:
        source.execute("INSERT INTO orders VALUES (1)")
        wait_until(lambda: "WARNING shop:eu: millstream answered: OOM" in pipeline.log)
        assert confirmed(source)[1] is False
    finally:
        pipeline.client.config_set("maxmemory", "0")
    pipeline.wait_changes("public.orders", 1)
    pipeline.wait_reader("reading")


def test_a_slot_in_use_and_an_open_transaction_are_waited_for(
    pipeline: Pipeline, source: Source
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.configure({"eu": url_of(source)}, "orders = {}")
    with psycopg.connect(url_of(source)) as other:
        other.execute("INSERT INTO orders VALUES (1)")
        pid = other.info.backend_pid
        pipeline.start().wait_reader(
            "waiting", problem=f"waiting for transaction of pid {pid} (idle in transaction)"
        )
    pipeline.wait_copied("public.orders")
    assert pipeline.copied_rows("public.orders") == [["1"]]
    pipeline.end()
    with ReplicationStream(url_of(source), "another") as other:
        other.start(SLOT, SLOT, 0)
        pipeline.start().wait_reader(
            "waiting", problem=f"slot {SLOT} is active for PID {other.pid}"
        )
    pipeline.wait_reader("reading")


def test_the_metrics_count_the_records_read(
    pipeline: Pipeline, source: Source, new_database: Callable[[], str]
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    source.execute("INSERT INTO orders VALUES (1)")
    port = free_port()
    pipeline.configure(
        {"eu": url_of(source)}, "orders = {}", {"read": f'metrics = "127.0.0.1:{port}"'}
    ).start()
    pipeline.wait_copied("public.orders")
    source.execute("INSERT INTO orders VALUES (2), (3)")

    def metrics() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            return str(reply.read().decode())

    table = 'source="shop:eu",table="public.orders"'
    wanted = [
        f'millstream_cdc_changes_total{{op="insert",{table}}} 2.0',
        f"millstream_cdc_copied_rows_total{{{table}}} 1.0",
        'millstream_cdc_repeated_total{source="shop:eu"} 0.0',
        'millstream_cdc_lag_bytes{source="shop:eu",stage="slot"}',
        'millstream_cdc_lag_bytes{source="shop:eu",stage="millstream"}',
        'millstream_cdc_heartbeat_seconds{source="shop:eu"}',
        'millstream_cdc_retained_bytes{source="shop:eu"}',
    ]
    wait_until(metrics, lambda text: all(one in text for one in wanted), "the metrics", 30)


def test_changed_columns_are_warnings(pipeline: Pipeline, source: Source) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, a int, b text)")
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    source.execute("ALTER TABLE orders ADD c int, DROP a, ALTER b TYPE varchar(9)")

    def warnings() -> str:
        tables = pipeline.alive().get("tables", {})
        return json.dumps(tables.get("public.orders", {}).get("warnings"))

    found = wait_until(warnings, lambda text: "c is new" in text, "warnings", 30)
    assert "a was dropped" in found
    assert "the type of the column b was changed from text to character varying(9)" in found


def test_a_value_that_millstream_does_not_accept_is_named(
    pipeline: Pipeline, source: Source
) -> None:
    source.execute("CREATE TABLE big (id int PRIMARY KEY, item text)")
    source.execute("INSERT INTO big VALUES (1, repeat('x', 3000000))")
    pipeline.client.config_set("proto-max-bulk-len", "1mb")
    pipeline.configure({"eu": url_of(source)}, "big = {}").start()
    wait_until(
        lambda: str(pipeline.alive().get("tables")),
        lambda found: "more than proto-max-bulk-len, 1 MB" in found,
        "the problem of the copy",
    )
    pipeline.client.config_set("proto-max-bulk-len", "512mb")
    pipeline.wait_copied("public.big")
    pipeline.client.config_set("proto-max-bulk-len", "1mb")
    source.execute("INSERT INTO big VALUES (2, repeat('y', 3000000))")
    pipeline.wait_reader("waiting", problem="more than proto-max-bulk-len, 1 MB")
    pipeline.client.config_set("proto-max-bulk-len", "512mb")
    [change] = pipeline.wait_changes("public.big", 1)
    assert len(change["item"]) == 3_000_000
