"""The reader, millstream and the source die in named windows; every change is applied once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from bench.postgres import Postgres
from tests.support.gate import Gate
from tests.support.pipelines import Pipeline, url_of
from tests.support.server import Server
from tests.support.waiting import wait_until

Source = psycopg.Connection[Any]
STATUS = b"d\x00\x00\x00\x26r"
"""The beginning of a status message of a reader."""


@pytest.fixture
def gate() -> Iterator[Callable[[int], Gate]]:
    made: list[Gate] = []

    def make(port: int) -> Gate:
        made.append(Gate(port))
        return made[-1]

    yield make
    for one in made:
        one.close()


def table(source: Source) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)")
    source.execute("INSERT INTO orders VALUES (1, 'tea')")


def insert(source: Source, first: int, last: int) -> None:
    source.execute(
        "INSERT INTO orders SELECT n, 'tea' FROM generate_series(%s::int, %s) n", [first, last]
    )


def ids(pipeline: Pipeline) -> list[int]:
    return [int(change["id"]) for change in pipeline.changes("public.orders")]


def test_a_reader_killed_before_an_append_rereads_the_changes(
    pipeline: Pipeline, source: Source, gate: Callable[[int], Gate]
) -> None:
    table(source)
    way = gate(pipeline.server.port)
    pipeline.configure({"eu": url_of(source)}, "orders = {}", port=way.port).start()
    pipeline.wait_copied("public.orders")
    way.requests.hold(b"TAPPENDMANY")
    insert(source, 2, 4)
    way.requests.wait_held()
    assert ids(pipeline) == []
    os.kill(pipeline.alive()["pid"], signal.SIGKILL)
    way.requests.release()  # the request of the dead reader arrives, late
    insert(source, 5, 5)
    pipeline.wait_changes("public.orders", 4)
    assert ids(pipeline) == [2, 3, 4, 5]


def test_a_reader_killed_before_the_cut_sends_its_entries_again(
    pipeline: Pipeline, source: Source, gate: Callable[[int], Gate]
) -> None:
    table(source)
    way = gate(pipeline.server.port)
    pipeline.configure({"eu": url_of(source)}, "orders = {}", port=way.port).start()
    pipeline.wait_copied("public.orders")
    before = len(pipeline.entries(""))
    way.requests.hold(b"IFEQ")
    insert(source, 2, 4)
    pipeline.wait_changes("public.orders", 3)
    way.requests.wait_held()
    assert len(pipeline.entries("")) == before
    os.kill(pipeline.alive()["pid"], signal.SIGKILL)
    way.cut()
    way.requests.release()
    report = wait_until(
        pipeline.alive, lambda report: report.get("repeated", 0) >= 3, "repeated entries", 30
    )
    assert report["repeated"] == 3
    assert ids(pipeline) == [2, 3, 4]
    cuts = wait_until(lambda: pipeline.entries(""), lambda found: len(found) > before)
    assert sum(int(cut["rows"]) for _, cut in cuts) == 3


def test_a_confirmation_that_never_arrives_costs_nothing(
    pipeline: Pipeline, source: Source, gate: Callable[[int], Gate]
) -> None:
    table(source)
    way = gate(source.info.port)
    url = url_of(source).replace(f":{source.info.port}/", f":{way.port}/")
    pipeline.configure({"eu": url}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    way.requests.hold(STATUS)
    way.requests.wait_held()
    query = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    confirmed = source.execute(query, ["millstream_shop_eu"]).fetchone()
    insert(source, 2, 4)
    pipeline.wait_changes("public.orders", 3)
    wait_until(lambda: pipeline.entries(""))
    assert source.execute(query, ["millstream_shop_eu"]).fetchone() == confirmed
    os.kill(pipeline.alive()["pid"], signal.SIGKILL)
    way.cut()
    way.requests.release()
    insert(source, 5, 5)
    pipeline.wait_changes("public.orders", 4)
    assert ids(pipeline) == [2, 3, 4, 5]
    wait_until(
        lambda: source.execute(query, ["millstream_shop_eu"]).fetchone(),
        lambda found: found != confirmed,
        "a confirmation",
        30,
    )


def test_a_reader_killed_within_a_transaction_sends_it_whole(
    pipeline: Pipeline, source: Source, gate: Callable[[int], Gate]
) -> None:
    table(source)
    way = gate(source.info.port)
    url = url_of(source).replace(f":{source.info.port}/", f":{way.port}/")
    pipeline.configure({"eu": url}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    way.replies.hold(after_bytes=250_000)
    insert(source, 2, 9_001)
    way.replies.wait_held()
    wait_until(lambda: pipeline.client.xlen("cdc:shop:eu:public.orders"), lambda n: n > 2_000)
    assert pipeline.entries("") == []
    os.kill(pipeline.alive()["pid"], signal.SIGKILL)
    way.cut()
    way.replies.release()
    [(_, cut)] = wait_until(lambda: pipeline.entries(""), deadline_s=30)
    assert int(cut["rows"]) == 9_000
    assert ids(pipeline) == list(range(2, 9_002))


def test_a_killed_copy_is_repeated(pipeline: Pipeline, source: Source) -> None:
    table(source)
    insert(source, 2, 60_000)
    pipeline.configure({"eu": url_of(source)}, "orders = {}", {"read": "copy_rate = 30000"})
    pipeline.start()
    copy = "cdc:shop:eu:public.orders:copy"
    wait_until(lambda: pipeline.client.xlen(copy), lambda count: count > 3, "a copy", 30)
    first = pipeline.state("public.orders")
    assert first["phase"] == "copying"
    os.kill(pipeline.alive()["pid"], signal.SIGKILL)
    source.execute("DELETE FROM orders WHERE id = 2")
    insert(source, 60_001, 60_001)
    pipeline.wait_copied("public.orders")
    rows = [int(row[0]) for row in pipeline.copied_rows("public.orders")]
    assert sorted(rows) == [1, *range(3, 60_002)]
    lsns = [int(name.split("-")[0]) for name, _ in pipeline.entries("public.orders:copy")]
    assert len(set(lsns)) == 1
    assert pipeline.state("public.orders")["copy_lsn"] != first["copy_lsn"]


def test_changes_survive_kills_of_millstream_and_of_the_source(
    pipeline: Pipeline, source: Source, source_cluster: Postgres, durable_server: Server
) -> None:
    table(source)
    name = source.info.dbname
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    last = 1
    for _ in range(2):
        insert(source, last + 1, last + 1_000)
        durable_server.kill()
        insert(source, last + 1_001, last + 2_000)
        durable_server.start()
        last += 2_000
    pipeline.wait_changes("public.orders", last - 1)
    insert(source, last + 1, last + 500)
    source_cluster.kill()
    source_cluster.start()
    with source_cluster.connect(name) as again:
        insert(again, last + 501, last + 1_000)
        last += 1_000
        pipeline.wait_changes("public.orders", last - 1)
    assert ids(pipeline) == list(range(2, last + 1))
    assert pipeline.wait_cuts(last - 1) == last - 1


def test_a_reader_that_cannot_continue_leaves_the_source(
    pipeline: Pipeline, source: Source, durable_server: Server
) -> None:
    table(source)
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    pipeline.wait_reader()
    durable_server.signal(signal.SIGSTOP)
    query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'millstream_shop_eu'"
    try:
        insert(source, 2, 2)
        wait_until(lambda: "WARNING shop:eu: millstream does not answer" in pipeline.log)
        wait_until(
            lambda: source.execute(query).fetchone(),
            lambda row: row == (None,),
            "the end of the connection",
            30,
        )
    finally:
        durable_server.signal(signal.SIGCONT)
    pipeline.wait_changes("public.orders", 1)
    assert ids(pipeline) == [2]


def test_a_killed_run_leaves_no_reader(pipeline: Pipeline, source: Source) -> None:
    table(source)
    pipeline.runs_program = True
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pid = pipeline.wait_reader()["pid"]
    pipeline.end(signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="the end of the reader")
    pipeline.start()
    wait_until(pipeline.alive, lambda report: report.get("pid") != pid, "another reader", 30)
    pipeline.wait_reader()
    assert pipeline.end(signal.SIGINT) == 0


def test_a_reader_killed_while_its_slot_is_made_makes_it_again(
    pipeline: Pipeline, source: Source
) -> None:
    table(source)
    pipeline.configure({"eu": url_of(source)}, "orders = {}")
    with psycopg.connect(url_of(source)) as other:
        other.execute("INSERT INTO orders VALUES (2, 'salt')")
        pipeline.start().wait_reader("waiting", problem="waiting for transaction")
        assert pipeline.state()["phase"] == "making"
        pid = pipeline.alive()["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(pipeline.alive, lambda report: report.get("pid") != pid, "another reader", 30)
        other.commit()
        pipeline.wait_copied("public.orders")
    insert(source, 3, 3)
    pipeline.wait_changes("public.orders", 1)
    assert pipeline.state()["phase"] == "made"
    assert [row[0] for row in pipeline.copied_rows("public.orders")] == ["1", "2"]
