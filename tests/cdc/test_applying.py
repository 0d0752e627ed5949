"""`apply` without Spark: a real millstream, a real destination, and streams made by hand."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.cdc.appliers import HISTORY, KEYED, KEYLESS, Applier
from tests.cdc.feeding import delete, insert, truncate, update
from tests.support.client import RawClient
from tests.support.pipelines import url_of
from tests.support.waiting import wait_until

from millstream.cdc.applier import driver as driver_module
from millstream.cdc.applier import failure_search, table_applier
from millstream.cdc.applier.apply_jobs import ApplyJob, JobOutcome, WorkerAnswer
from millstream.cdc.applier.apply_status import ApplyStatus
from millstream.cdc.applier.apply_worker import ApplyWorker
from millstream.cdc.applier.driver import ApplyError, Driver
from millstream.cdc.applier.source_views import read_sources
from millstream.cdc.operations.dropping import drop
from millstream.cdc.protocol.pgoutput import UNCHANGED
from millstream.cdc.streams.snapshot_entries import CopyRows
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import SourceColumn
from millstream.cdc.streams.stream_appender import open_server
from millstream.cdc.streams.translator import time_text

Made = Callable[..., Applier]


@pytest.fixture
def new_applier(client: RawClient, new_database: Callable[[], str]) -> Iterator[Made]:
    """Makes an applier with an empty destination; the arguments are those of Applier."""
    made: list[Applier] = []

    def make(ddl: str = KEYED, tables: str = "t = {}", **options: object) -> Applier:
        applier = Applier(client, new_database(), tables, **options)  # type: ignore[arg-type]
        made.append(applier)
        applier.execute(f"CREATE TABLE t ({ddl})")
        for feed in applier.feeds.values():
            for table in feed.source.tables:
                feed.open(table.name)
        return applier

    yield make
    for applier in made:
        applier.close()


def length(client: RawClient, key: str) -> object:
    return client.call("XLEN", key)


def test_a_copy_and_the_changes_after_it_arrive(new_applier: Made, client: RawClient) -> None:
    applier = new_applier()
    feed = applier.feed
    applier.execute("INSERT INTO t VALUES ('eu', 99, 'old', 0), ('us', 99, 'theirs', 0)")
    feed.transaction(insert(b"1", b"before the copy", None))
    feed.copy([b"1\tfirst\t1.5", b"2\t\\N\t\\N"])
    feed.transaction(update(b"1", UNCHANGED, b"2.5"), insert(b"3", b"new", None))
    feed.transaction(delete(b"2"))
    assert applier.apply() == 0
    theirs = ("us", "99", "theirs", "0.00")
    assert applier.rows() == [("eu", "1", "first", "2.50"), ("eu", "3", "new", None), theirs]
    position = applier.position()
    assert (position.state, position.id, position.error) == ("streaming", (feed.lsn, 1), None)
    assert position.copied_lsn == feed.state().copy_lsn
    # Everything that was applied is gone; the last cut stays.
    assert length(client, "cdc:shop:eu:public.t") == 0
    assert length(client, "cdc:shop:eu") == 1
    assert client.call("EXISTS", "cdc:shop:eu:public.t:copy") == 0


def test_entries_without_a_cut_wait(new_applier: Made) -> None:
    applier = new_applier()
    applier.feed.copy([])
    applier.feed.transaction(insert(b"1", b"a", None))
    applier.feed.transaction(insert(b"2", b"b", None), cut=False)
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t") == [("1",)]
    applier.feed.cut()
    applier.apply()
    assert applier.rows("SELECT id FROM t ORDER BY 1") == [("1",), ("2",)]


def test_a_batch_ends_at_a_cut_and_a_long_transaction_is_its_own(new_applier: Made) -> None:
    applier = new_applier(extra="max_rows = 10")
    applier.feed.copy([])
    applier.apply()
    applier.batches.clear()
    for number in range(9):
        applier.feed.transaction(*(insert(b"%d" % (number * 4 + n), None, None) for n in range(4)))
    applier.feed.transaction(*(insert(b"%d" % (100 + n), None, None) for n in range(25)))
    applier.feed.transaction(insert(b"200", None, None))
    applier.apply()
    sizes = [batch[0][0].entries for batch in applier.batches]
    assert sizes == [8, 8, 8, 8, 4, 25, 1]
    assert applier.rows("SELECT count(*) FROM t") == [("62",)]


def test_positions_alone_are_enough_to_continue(new_applier: Made) -> None:
    applier = new_applier(KEYLESS)
    feed = applier.feed
    feed.put_state("t", replace(feed.state(), identity="full", columns=feed.state().columns))
    feed.copy([b"1\tx\t1"])
    for number in range(5):
        feed.transaction(insert(b"%d" % number, b"y", None))
        applier.restart()
        assert applier.apply() == 0
    assert applier.rows("SELECT count(*) FROM t") == [("6",)]


def test_an_outcome_that_was_lost_is_not_applied_again(new_applier: Made) -> None:
    applier = new_applier(KEYLESS)
    feed = applier.feed
    feed.put_state("t", replace(feed.state(), identity="full"))
    feed.copy([])
    feed.transaction(insert(b"1", b"a", None))
    applier.apply()
    (part,) = applier.batches[-1]
    feed.transaction(insert(b"2", b"b", None))
    again = [replace(job, until=(feed.lsn, 5)) for job in part]
    applier.run([again])
    applier.run([again])
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t ORDER BY 1") == [("1",), ("2",)]


def test_the_outcomes_before_a_lost_connection_are_known(
    new_applier: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    applier = new_applier(tables="t = {}\nu = {}\nv = {}", extra="workers = 1")
    for name in "uv":
        applier.execute(f"CREATE TABLE {name} ({KEYED}, CHECK (b < 100))")
    for name in "tuv":
        applier.feed.copy([], name)
    assert applier.apply() == 0
    applier.feed.transaction(
        insert(b"1", b"a", b"1"),
        insert(b"1", b"a", b"100", table="u"),
        insert(b"1", b"a", b"1", table="v"),
    )
    alone = ApplyWorker._alone
    lost = ["public.v"]

    def apply_alone(worker: ApplyWorker, job: ApplyJob) -> JobOutcome:
        if job.key[2] in lost:
            lost.clear()
            raise psycopg.OperationalError("the connection is lost")
        return alone(worker, job)

    monkeypatch.setattr(ApplyWorker, "_alone", apply_alone)
    answers: list[WorkerAnswer] = []
    run = applier.run

    def noted(parts: Sequence[Sequence[ApplyJob]]) -> list[WorkerAnswer]:
        answers.extend(run([[replace(job, is_alone=True) for job in part] for part in parts]))
        return answers[-len(parts) :]

    driver = Driver(applier.config, noted, applier.status)
    applier.driver.close()
    assert driver.apply(threading.Event(), once=True) == 1
    driver.close()
    first = answers[0]
    assert first.problem == "the connection is lost"
    assert [(one.key[2], one.applied, one.error is None) for one in first.outcomes] == [
        ("public.t", 1, True),
        ("public.u", 0, False),
    ]
    assert applier.rows("SELECT id FROM v") == [("1",)]


# ---------------------------------------------------------------- stopped tables


def test_a_refused_change_stops_its_table_and_no_other(new_applier: Made) -> None:
    applier = new_applier(tables="t = {}\nu = {}")
    applier.execute(f"CREATE TABLE u ({KEYED}, CHECK (b < 100))")
    feed = applier.feed
    feed.copy([], "t")
    feed.copy([], "u")
    feed.transaction(insert(b"1", b"a", b"1"), insert(b"1", b"a", b"1", table="u"))
    bad = feed.transaction(
        insert(b"2", b"b", b"2", table="u"),
        insert(b"3", b"c", b"300", table="u"),
        insert(b"4", b"d", b"4", table="u"),
        insert(b"2", b"b", b"2"),
    )
    assert applier.apply() == 1
    assert applier.rows("SELECT id FROM t ORDER BY 1") == [("1",), ("2",)]
    assert applier.rows("SELECT id FROM u ORDER BY 1") == [("1",), ("2",)]
    position = applier.position("u")
    assert (position.state, position.id) == ("stopped", (bad, 1))
    assert position.error_id == f"{bad}.2"
    assert position.error is not None
    assert "u_b_check" in position.error
    # The other table continues; nothing of the stopped one is lost.
    feed.transaction(insert(b"5", None, b"1"), insert(b"5", None, b"1", table="u"))
    assert applier.apply() == 1
    assert applier.rows("SELECT count(*) FROM t") == [("3",)]
    applier.execute("ALTER TABLE u DROP CONSTRAINT u_b_check")
    feed.call("SET", feed.keys.resume(feed.table("u")), "1")
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM u ORDER BY 1") == [(str(n),) for n in range(1, 6)]
    position = applier.position("u")
    assert (position.state, position.error, position.error_id) == ("streaming", None, None)
    assert feed.call("EXISTS", feed.keys.resume(feed.table("u"))) == 0


def test_folded_changes_that_fail_together_are_applied_singly(new_applier: Made) -> None:
    applier = new_applier(KEYED.replace("a text", "a text UNIQUE"))
    feed = applier.feed
    feed.copy([b"1\tx\t1", b"2\ty\t2"])
    feed.transaction(update(b"1", b"z", b"1"), update(b"2", b"x", b"2"), update(b"1", b"y", b"1"))
    assert applier.apply() == 0
    assert applier.rows("SELECT id, a FROM t ORDER BY 1") == [("1", "y"), ("2", "x")]


def test_a_constraint_that_is_checked_at_commit_stops_the_table(new_applier: Made) -> None:
    applier = new_applier()
    applier.execute("CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1)")
    applier.execute(
        "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES parent DEFERRABLE INITIALLY DEFERRED"
    )
    feed = applier.feed
    feed.copy([])
    bad = feed.transaction(insert(b"1", None, None), insert(b"2", None, None))
    assert applier.apply() == 1
    assert applier.rows("SELECT id FROM t") == [("1",)]
    assert applier.position().error_id == f"{bad}.2"


@pytest.mark.parametrize("bad", [0, 7, 19])
def test_a_history_stops_before_a_transaction_that_is_refused(new_applier: Made, bad: int) -> None:
    applier = new_applier(HISTORY + ", CHECK (b < 100)", 't = { type = "history" }')
    feed = applier.feed
    feed.copy([])
    good = feed.transaction(insert(b"1", b"a", b"1"))
    rows = [insert(b"%d" % (10 + n), None, b"500" if n == bad else b"5") for n in range(20)]
    failing = feed.transaction(*rows)
    assert applier.apply() == 1
    assert applier.rows("SELECT id FROM t") == [("1",)]
    position = applier.position()
    assert (position.id, position.error_id) == ((good, 1), f"{failing}.{bad + 1}")


@pytest.mark.parametrize(("limit", "value"), [("PENDING_MAX", 15), ("PENDING_BYTES_MAX", 30)])
def test_a_history_stops_at_a_transaction_too_large_for_memory(
    new_applier: Made, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(table_applier.fetch, "__defaults__", (10,))
    monkeypatch.setattr(failure_search, limit, value)
    applier = new_applier(HISTORY + ", CHECK (b < 100)", 't = { type = "history" }')
    feed = applier.feed
    feed.copy([])
    feed.transaction(*(insert(b"%d" % n, None, b"1") for n in range(45)))
    long = feed.transaction(*(update(b"%d" % n, None, b"2") for n in range(45)))
    failing = [update(b"%d" % n, None, b"500" if n == 40 else b"3") for n in range(45)]
    bad = feed.transaction(*failing)
    feed.transaction(insert(b"99", None, b"1"))
    assert applier.apply() == 1
    assert applier.rows("SELECT count(*), max(b) FROM t") == [("90", "2.00")]
    assert applier.position().error_id == f"{bad}.1"
    assert applier.position().id in ((long, 45), (bad, 0))
    applier.execute("ALTER TABLE t DROP CONSTRAINT t_b_check")
    applier.restart()
    assert applier.apply() == 0
    assert applier.rows("SELECT count(*), max(b) FROM t") == [("136", "500.00")]


def test_an_entry_that_cannot_be_read_stops_the_table(new_applier: Made) -> None:
    applier = new_applier()
    feed = applier.feed
    feed.copy([])
    feed.transaction(insert(b"1", None, None))
    feed.lsn += 10
    key = feed.keys.changes(feed.table("t"))
    feed.call("TAPPENDONCE", key, "ID", f"{feed.lsn}.1", "id", "7")
    feed.cut()
    assert applier.apply() == 1
    assert applier.rows("SELECT id FROM t") == [("1",)]
    position = applier.position()
    assert position.error_id == f"{feed.lsn}.1"
    assert "does not begin with @op" in str(position.error)


def test_the_least_privileges_are_enough(new_applier: Made) -> None:
    applier = new_applier(tables="t = {}\nu = {}")
    applier.execute(f"CREATE TABLE u ({KEYLESS})")
    feed = applier.feed
    feed.put_state("u", replace(feed.state("u"), identity="full"))
    applier.execute("DROP ROLE IF EXISTS least; CREATE ROLE least LOGIN")
    tables = "t, u, millstream_position"
    applier.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO least")
    applier.as_user("least")
    feed.copy([b"1\ta\t1"], "t")
    feed.copy([b"1\ta\t1.00"], "u")
    feed.transaction(update(b"1", UNCHANGED, b"2"), update(b"5", UNCHANGED, b"2", old=(b"1",)))
    feed.transaction(delete(b"1", b"a", b"1.00", table="u"), truncate(), truncate("u"))
    feed.transaction(insert(b"2", None, None), insert(b"2", None, None, table="u"))
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t UNION ALL SELECT id FROM u") == [("2",), ("2",)]


def test_a_target_that_is_missing_stops_its_table(new_applier: Made) -> None:
    applier = new_applier()
    applier.feed.copy([b"1\ta\t1"])
    applier.execute("ALTER TABLE t RENAME TO gone")
    assert applier.apply() == 1
    error = applier.position().error
    assert error is not None
    assert "public.t does not exist" in error
    applier.execute("ALTER TABLE gone RENAME TO t")
    applier.restart()
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t") == [("1",)]


REFUSES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.id = 2 THEN RAISE 'no twos here'; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()
"""
TWICE = "(SELECT id FROM generate_series(1, id)) + 0"
DIGITS = random.Random(1).randbytes(10_000).hex().encode()  # no compression makes them short


@pytest.mark.parametrize(
    ("ddl", "statement", "options", "value", "reason"),
    [
        (KEYED, REFUSES, "", b"b", "no twos here"),
        (KEYED, "CREATE INDEX ON t (a)", "", DIGITS, "index row requires"),
        (KEYED, "SELECT", f"set = {{ b = '{TWICE}' }}", b"b", "more than one row"),
        (
            KEYED,
            "CREATE DOMAIN d AS text; ALTER TABLE t ALTER a TYPE d",
            "",
            b"\xff",
            "invalid byte",
        ),
    ],
    ids=["a trigger", "an index", "an expression", "an encoding"],
)
def test_a_repeated_error_stops_only_its_table(
    new_applier: Made, ddl: str, statement: str, options: str, value: bytes, reason: str
) -> None:
    applier = new_applier(ddl, f"t = {{ {options} }}\nu = {{}}", extra="workers = 1")
    applier.execute(statement)
    applier.execute(f"CREATE TABLE u ({KEYED})")
    feed = applier.feed
    for name in ("t", "u"):
        feed.copy([], name)
    good = feed.transaction(insert(b"1", b"a", None))
    bad = feed.transaction(insert(b"2", value, None), insert(b"2", None, None, table="u"))
    assert applier.apply() == 1
    position = applier.position()
    assert (position.id, position.error_id) == ((good, 1), f"{bad}.1")
    assert reason in str(position.error)
    assert applier.rows("SELECT t.id, u.id FROM t, u") == [("1", "2")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (update(b"1", b"\xff", None, old=(b"1", b"a", None)), "is not UTF-8"),
        (delete(b"1", b"\xff", None), "is not UTF-8"),
        (delete(b"1", b"a", None), "does not have a replica identity"),
    ],
)
def test_a_repeated_change_without_a_key_stops_its_table(
    new_applier: Made, change: dict[str, object], reason: str
) -> None:
    applier = new_applier(KEYLESS)
    feed = applier.feed
    feed.put_state("t", replace(feed.state(), identity="full"))
    feed.copy([b"1\ta\t\\N"])
    assert applier.apply() == 0
    applier.execute("CREATE PUBLICATION of_t FOR TABLE t")
    bad = feed.transaction(change)
    assert applier.apply() == 1
    assert applier.position().error_id == f"{bad}.1"
    assert reason in str(applier.position().error)


# ---------------------------------------------------------------- foreign keys

LINKED = (SourceColumn("id", "integer", True, True), SourceColumn("ref", "integer", False))
TO_P = "ALTER TABLE c ADD FOREIGN KEY (ref) REFERENCES p"
TO_C = "ALTER TABLE p ADD FOREIGN KEY (ref) REFERENCES c"
PAIR = (insert(b"1", None, table="p"), insert(b"1", b"1", table="c"))
UNPAIR = (delete(b"1", table="c"), delete(b"1", table="p"))
SEEN = """
CREATE TABLE seen (at xid8, name text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO seen VALUES (pg_current_xact_id(), TG_TABLE_NAME); RETURN NULL; END $$;
CREATE TABLE p (id int PRIMARY KEY, ref int);
CREATE TABLE c (id int PRIMARY KEY, ref int);
CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON p EXECUTE FUNCTION see();
CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON c EXECUTE FUNCTION see()
"""


@pytest.mark.parametrize("order", ["pc", "cp"])
@pytest.mark.parametrize(
    ("keys", "transactions"),
    [
        ([TO_P], [PAIR, UNPAIR]),
        ([TO_P], [PAIR, (*UNPAIR, *PAIR, insert(b"2", b"1", table="c"))]),
        ([TO_P], [PAIR, (truncate("c"), truncate("p"), insert(b"7", None, table="p"))]),
        (
            [TO_P, TO_C],
            [
                (*PAIR, update(b"1", b"1", table="p")),
                (update(b"1", None, table="p"), *UNPAIR, insert(b"2", None, table="c")),
            ],
        ),
        ([f"{TO_P} DEFERRABLE"], [PAIR[::-1]]),
        ([f"{TO_P} DEFERRABLE"], [PAIR, UNPAIR[::-1]]),
    ],
    ids=["delete", "both", "truncate", "cycle", "insert late", "delete late"],
)
def test_foreign_keys_split_no_transaction(
    new_applier: Made, order: str, keys: list[str], transactions: list[tuple[dict[str, object]]]
) -> None:
    applier = new_applier(tables="\n".join(f"{name} = {{}}" for name in order), extra="workers = 4")
    applier.execute(SEEN)
    for key in keys:
        applier.execute(key)
    feed = applier.feed
    for name in order:
        feed.put_state(name, replace(feed.state(name), columns=LINKED))
        feed.copy([], name)
    assert applier.apply() == 0
    expected = dict[str, set[bytes]](p=set(), c=set())
    for number, changes in enumerate(transactions):
        feed.transaction(*changes)
        for change in changes:
            rows = expected[str(change["table"])]
            if change["op"] == "truncate":
                rows.clear()
            elif change["op"] == "delete":
                rows.remove(change["old"][0])  # type: ignore[index]
            else:
                rows.add(change["new"][0])  # type: ignore[index]
        if number == 0 and len(transactions) > 1:
            assert applier.apply() == 0
        if number == 0:
            applier.execute("TRUNCATE seen")
    assert applier.apply() == 0
    assert [applier.position(name).error for name in "pc"] == [None, None]
    for name, rows in expected.items():
        found = applier.rows(f"SELECT id FROM {name} ORDER BY 1")
        assert found == [(one.decode(),) for one in sorted(rows)]
    assert applier.rows("SELECT count(DISTINCT at), count(DISTINCT name) FROM seen") == [("1", "2")]
    assert [len(batch) for batch in applier.batches if len(batch[0]) > 1 or batch[1:]] != [2]


def test_a_stopped_table_leaves_the_others_in_one_transaction(new_applier: Made) -> None:
    applier = new_applier(tables="p = {}\nc = {}\nt = {}", extra="workers = 1")
    applier.execute(SEEN)
    applier.execute(TO_P)
    applier.execute("ALTER TABLE t ADD CHECK (b < 100)")
    feed = applier.feed
    for name in "pc":
        feed.put_state(name, replace(feed.state(name), columns=LINKED))
        feed.copy([], name)
    feed.copy([])
    assert applier.apply() == 0
    applier.execute("TRUNCATE seen")
    feed.transaction(*PAIR, insert(b"1", b"a", b"1"))
    bad = feed.transaction(*UNPAIR, insert(b"2", b"a", b"100"), insert(b"3", b"a", b"1"))
    feed.transaction(*PAIR, insert(b"4", b"a", b"1"))
    assert applier.apply() == 1
    assert applier.position().error_id == f"{bad}.3"
    assert applier.rows("SELECT id FROM t") == [("1",)]
    assert applier.rows("SELECT count(DISTINCT at), count(DISTINCT name) FROM seen") == [("1", "2")]
    assert applier.rows("SELECT p.id, c.ref FROM p JOIN c ON c.ref = p.id") == [("1", "1")]
    applier.execute("ALTER TABLE t DROP CONSTRAINT t_b_check")
    feed.call("SET", feed.keys.resume(feed.table("t")), "1")
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t ORDER BY 1") == [("1",), ("2",), ("3",), ("4",)]


@pytest.mark.parametrize("keys", [[TO_P], [f"{TO_P} DEFERRABLE"]], ids=["at once", "deferrable"])
def test_a_table_that_fails_at_commit_leaves_the_others_together(
    new_applier: Made, keys: list[str]
) -> None:
    applier = new_applier(tables="c = {}\np = {}\nt = {}", extra="workers = 1")
    applier.execute(SEEN)
    for key in keys:
        applier.execute(key)
    applier.execute("CREATE TABLE q (id int PRIMARY KEY); INSERT INTO q VALUES (1), (3)")
    applier.execute("ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES q DEFERRABLE")
    feed = applier.feed
    for name in "cp":
        feed.put_state(name, replace(feed.state(name), columns=LINKED))
        feed.copy([], name)
    feed.copy([])
    assert applier.apply() == 0
    applier.execute("TRUNCATE seen")
    feed.transaction(*PAIR, insert(b"1", None, None))
    bad = feed.transaction(*UNPAIR, insert(b"2", None, None), insert(b"3", None, None))
    feed.transaction(*PAIR)
    assert applier.apply() == 1
    assert applier.position().error_id == f"{bad}.3"
    assert applier.rows("SELECT id FROM t") == [("1",)]
    assert [applier.position(name).error for name in "pc"] == [None, None]
    assert applier.rows("SELECT count(DISTINCT at), count(DISTINCT name) FROM seen") == [("1", "2")]


def test_a_self_referencing_table_is_applied_in_one_transaction(new_applier: Made) -> None:
    applier = new_applier(tables="c = {}")
    applier.execute(SEEN)
    applier.execute("ALTER TABLE c ADD FOREIGN KEY (ref) REFERENCES c")
    feed = applier.feed
    feed.put_state("c", replace(feed.state("c"), columns=LINKED))
    feed.copy([b"1\t\\N", b"2\t1"], "c")
    assert applier.apply() == 0
    applier.execute("TRUNCATE seen")
    feed.transaction(update(b"2", None, table="c"), delete(b"1", table="c"))
    feed.transaction(insert(b"3", b"2", table="c"), insert(b"4", b"3", table="c"))
    assert applier.apply() == 0
    assert applier.rows("SELECT id, ref FROM c ORDER BY 1") == [("2", None), ("3", "2"), ("4", "3")]
    assert applier.rows("SELECT count(DISTINCT at) FROM seen") == [("1",)]


# ---------------------------------------------------------------- lost streams


def lose_by_eviction(applier: Applier) -> None:
    feed = applier.feed
    feed.transaction(insert(b"2", None, None))
    feed.transaction(insert(b"3", None, None))
    feed.call("XTRIM", feed.keys.changes(feed.table("t")), "MAXLEN", 1)


def lose_the_stream(applier: Applier) -> None:
    feed = applier.feed
    feed.transaction(insert(b"2", None, None))
    feed.call("DEL", feed.keys.changes(feed.table("t")))


def make_the_stream_again(applier: Applier) -> None:
    lose_the_stream(applier)
    applier.feed.transaction(insert(b"3", None, None))


@pytest.mark.parametrize(
    ("lose", "reason"),
    [
        (lose_by_eviction, "were evicted"),
        (lose_the_stream, "is missing"),
        (make_the_stream_again, "created again"),
    ],
)
def test_lost_entries_stop_a_table_until_it_is_copied_again(
    new_applier: Made, lose: Callable[[Applier], None], reason: str
) -> None:
    applier = new_applier()
    feed = applier.feed
    feed.copy([b"1\ta\t1"])
    assert applier.apply() == 0
    lose(applier)
    assert applier.apply() == 1
    position = applier.position()
    assert position.state == "stopped"
    assert position.error is not None
    assert reason in position.error
    assert position.error.endswith("millstream cdc resync shop:eu public.t")
    assert applier.rows("SELECT id FROM t") == [("1",)]
    feed.call("DEL", feed.keys.changes(feed.table("t")))
    feed.open()
    feed.copy([b"7\tcopied\t1"])
    feed.transaction(insert(b"8", None, None))
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t ORDER BY 1") == [("7",), ("8",)]


def test_a_changed_configuration_stops_its_table(new_applier: Made) -> None:
    applier = new_applier()
    feed = applier.feed
    feed.copy([])
    config = feed.state().table_config
    assert config is not None
    feed.put_state("t", replace(feed.state(), table_config=replace(config, target="public.other")))
    feed.transaction(insert(b"1", None, None))
    assert applier.apply() == 1
    assert "configuration is not that of its copy" in str(applier.position().error)


# ---------------------------------------------------------------- copies


def test_a_killed_copy_is_repeated(new_applier: Made, client: RawClient) -> None:
    applier = new_applier()
    feed = applier.feed
    feed.begin_copy()
    feed.copy_entry("t", 2, CopyRows(b"1\thalf\t1\n"))
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t") == [("1",)]
    assert applier.position().state == "copying"
    assert length(client, "cdc:shop:eu:public.t:copy") == 0
    feed.copy([b"2\twhole\t1"])
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t") == [("2",)]


def test_tables_continue_while_another_one_is_copied(new_applier: Made) -> None:
    applier = new_applier(tables="t = {}\nu = {}")
    applier.execute(f"CREATE TABLE u ({KEYED})")
    feed = applier.feed
    feed.copy([], "t")
    feed.begin_copy("u")
    feed.transaction(insert(b"1", None, None), insert(b"1", None, None, table="u"))
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t") == [("1",)]
    feed.end_copy("u", 2, 0)
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM u") == [("1",)]


def test_an_append_without_a_key_is_refused_over_rows(new_applier: Made) -> None:
    applier = new_applier(KEYLESS, 't = { type = "append" }')
    feed = applier.feed
    feed.put_state("t", replace(feed.state(), identity="full"))
    applier.execute("INSERT INTO t VALUES ('eu', 1, 'there', 1)")
    feed.copy([b"1\ta\t1"])
    assert applier.apply() == 1
    assert "would be there twice" in str(applier.position().error)
    applier.execute("DELETE FROM t")
    applier.restart()
    assert applier.apply() == 0
    assert applier.rows() == [("eu", "1", "a", "1.00")]


def test_a_copy_of_an_append_is_upserted(new_applier: Made) -> None:
    applier = new_applier(tables='t = { type = "append" }')
    applier.execute("INSERT INTO t VALUES ('eu', 1, 'before', 1), ('eu', 2, 'kept', 2)")
    applier.feed.copy([b"1\tafter\t9", b"3\tnew\t3"])
    assert applier.apply() == 0
    assert applier.rows("SELECT id, a FROM t ORDER BY 1") == [
        ("1", "after"),
        ("2", "kept"),
        ("3", "new"),
    ]


def test_a_refused_block_of_a_copy_stops_the_table(new_applier: Made) -> None:
    applier = new_applier(KEYED + ", CHECK (b < 100)")
    feed = applier.feed
    lsn = feed.copy([b"1\ta\t1", b"2\tb\t200", b"3\tc\t3"])
    assert applier.apply() == 1
    position = applier.position()
    assert (position.state, position.error_id) == ("stopped", f"{lsn}.3")
    applier.execute("ALTER TABLE t DROP CONSTRAINT t_b_check")
    feed.call("SET", feed.keys.resume(feed.table("t")), "1")
    assert applier.apply() == 0
    assert applier.rows("SELECT id FROM t ORDER BY 1") == [("1",), ("2",), ("3",)]


def test_a_copy_with_missing_columns_uses_a_temporary_table(
    new_applier: Made,
) -> None:
    tables = 't = { rename = { b = "price" }, set = { double = "b * 2", word = "upper(a)" } }'
    ddl = "sid text, id int, price numeric, double numeric, word text, PRIMARY KEY (sid, id)"
    applier = new_applier(ddl, tables)
    feed = applier.feed
    feed.copy([b"1\tone\t1.50"])
    feed.transaction(insert(b"2", b"two", b"2.00"), update(b"1", b"uno", b"4.00"))
    assert applier.apply() == 0
    assert applier.rows("SELECT id, price, double, word FROM t ORDER BY 1") == [
        ("1", "4.00", "8.00", "UNO"),
        ("2", "2.00", "4.00", "TWO"),
    ]


WITHOUT_B = "sid text, id int, a text, PRIMARY KEY (sid, id)"
GENERATED = WITHOUT_B.replace("a text", "a text, b int GENERATED ALWAYS AS (id) STORED")
HISTORY_WITHOUT_B = HISTORY.replace(" b numeric(10,2),", "")


@pytest.mark.parametrize(
    ("ddl", "options", "reason"),
    [
        (WITHOUT_B, "", 'ALTER TABLE "public"."t" ADD COLUMN "b" numeric(10,2)'),
        (WITHOUT_B, 'type = "append"', "lacks the column b"),
        (WITHOUT_B, 'rename = { b = "price" }', "lacks the column price (b at the source)"),
        (WITHOUT_B, "set = { a = \"upper('b')\" }", "lacks the column b"),
        (HISTORY_WITHOUT_B, 'type = "history"', "lacks the column b"),
        (GENERATED, "", "the column b of"),
        (KEYED, 'rename = { b = "sid" }', "give the source's column b another name"),
        (KEYED, 'columns = ["id", "a", "c"]', "lack the column c, which `columns` lists"),
    ],
)
def test_a_column_that_the_target_does_not_take_stops_its_table(
    new_applier: Made, ddl: str, options: str, reason: str
) -> None:
    applier = new_applier(ddl, f"t = {{ {options} }}")
    feed, whole = applier.feed, applier.feed.state().columns
    feed.put_state("t", replace(feed.state(), columns=whole[:2]))
    feed.copy([b"1\ta"])
    assert applier.apply() == 0
    feed.put_state("t", replace(feed.state(), columns=whole))
    bad = feed.transaction(delete(b"1"), insert(b"2", b"a", b"7"))
    assert applier.apply() == 1
    position = applier.position()
    assert position.error_id == f"{bad}.2"
    assert reason in str(position.error)
    assert position.id[0] == bad or "kvsz" in ddl  # a transaction of a history is not cut
    feed.copy([b"1\ta\t1"])
    assert applier.apply() == ("columns" not in options)
    if "columns" not in options:
        assert reason in str(applier.position().error)
        assert applier.rows("SELECT id FROM t") in ([], [("1",)])


def test_a_history_is_compared_with_a_copy(new_applier: Made) -> None:
    applier = new_applier(HISTORY, 't = { type = "history" }')
    feed = applier.feed
    feed.copy([b"1\tsame\t1", b"2\tolder\t2", b"3\tgone\t3"])
    feed.transaction(insert(b"4", b"deleted", None))
    feed.transaction(delete(b"4"))
    assert applier.apply() == 0
    feed.copy([b"1\tsame\t1", b"2\tnewer\t2", b"4\tagain\t4", b"5\tnew\t5"])
    assert applier.apply() == 0
    found = applier.rows(
        "SELECT id, a, kvsz_start = '1900-01-01', kvsz_end = '9999-01-01', kvsz_deleted FROM t"
        " ORDER BY id, kvsz_start"
    )
    assert found == [
        ("1", "same", "True", "True", "False"),
        ("2", "older", "True", "False", "False"),
        ("2", "newer", "False", "True", "False"),
        ("3", "gone", "True", "False", "True"),
        ("4", "deleted", "False", "False", "True"),
        ("4", "again", "False", "True", "False"),
        ("5", "new", "False", "True", "False"),
    ]
    assert applier.rows("SELECT relname FROM pg_class WHERE relpersistence = 'u'") == []


def test_only_rows_of_the_first_copy_begin_in_1900(new_applier: Made) -> None:
    applier = new_applier(HISTORY, 't = { type = "history" }')
    feed = applier.feed
    feed.copy([b"4\tv4\t1", b"5\tv5\t1"])
    times = {}
    for name, changes in {
        "rekey": [update(b"40", b"v4", b"1", old=(b"4",))],
        "insert": [insert(b"60", b"ins", None)],
        "delete": [delete(b"60")],
        "again": [insert(b"60", b"again", None)],
        "truncate": [truncate(), insert(b"70", b"after", None)],
        "update": [update(b"70", b"later", None)],
        "empty": [truncate()],
    }.items():
        feed.transaction(*changes)
        times[name] = time_text(feed.time_us).replace("Z", "+00:00")
    assert applier.apply() == 0

    def versions() -> list[Any]:
        return applier.rows(
            "SELECT id, a, replace(to_char(kvsz_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"
            " HH24:MI:SS.US\"+00:00\"'), ' ', 'T') FROM t ORDER BY kvsz_start, id"
        )

    first = "1900-01-01T00:00:00.000000+00:00"
    found = versions()
    assert found == [
        ("4", "v4", first),
        ("5", "v5", first),
        ("40", "v4", times["rekey"]),
        ("60", "ins", times["insert"]),
        ("60", "again", times["again"]),
        ("70", "after", times["truncate"]),
        ("70", "later", times["update"]),
    ]
    # Rows that another copy finds begin when it was made, also if the first one was empty.
    feed.copy([b"4\tv4\t1", b"80\tfound\t1"])
    copied = time_text(feed.time_us).replace("Z", "+00:00")
    assert applier.apply() == 0
    assert versions()[len(found) :] == [("4", "v4", copied), ("80", "found", copied)]
    # The positions are lost, but not the versions.
    applier.execute("DELETE FROM millstream_position")
    feed.transaction()
    feed.copy([b"4\tv4\t1", b"80\tfound\t1", b"90\tnew\t1"])
    assert applier.apply() == 0
    assert versions()[-1][0] == "90"
    assert versions()[-1][2] > copied


@pytest.mark.parametrize("is_in_one_batch", [True, False])
@pytest.mark.parametrize("options", ['{ type = "append" }', "{}"])
def test_a_copy_applied_twice_has_each_row_once(
    new_applier: Made, options: str, is_in_one_batch: bool
) -> None:
    applier = new_applier(KEYLESS, f"t = {options}")

    def twice(parts: Sequence[Sequence[ApplyJob]]) -> list[WorkerAnswer]:
        """As if the first answers had been lost."""
        applier.run(parts)
        return applier.run(parts)

    applier.driver = Driver(applier.config, twice, applier.status)
    feed = applier.feed
    feed.put_state("t", replace(feed.state(), identity="full"))
    feed.begin_copy()
    feed.copy_entry("t", 2, CopyRows(b"1\ta\t1\n"))
    if not is_in_one_batch:
        assert applier.apply() == 0
    feed.end_copy("t", 3, 1)
    assert applier.apply() == 0
    assert applier.position().error is None
    assert applier.rows() == [("eu", "1", "a", "1.00")]


def test_a_copy_of_another_cluster_follows_an_interrupted_one(new_applier: Made) -> None:
    applier = new_applier()
    feed = applier.feed
    feed.begin_copy()
    feed.copy_entry("t", 2, CopyRows(b"1\thalf\t1\n"))
    assert applier.apply() == 0
    feed.lsn = 100  # the LSNs of the other cluster are lower
    feed.copy([b"2\twhole\t1"])
    thread = threading.Thread(target=applier.apply, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert applier.rows("SELECT id FROM t") == [("2",)]


def test_tables_of_another_cluster_are_applied_together(new_applier: Made) -> None:
    applier = new_applier(tables="t = {}\nu = {}", extra="workers = 1")
    applier.execute(f"CREATE TABLE u ({KEYED})")
    feed = applier.feed

    def copy_and_change() -> None:
        for name in ("t", "u"):
            feed.copy([], name)
        feed.transaction(insert(b"1", None, None), insert(b"1", None, None, table="u"))
        assert applier.apply() == 0

    copy_and_change()
    feed.call("DEL", feed.keys.cuts)
    for name in ("t", "u"):
        feed.call("DEL", feed.keys.changes(feed.table(name)))
        feed.open(name)
    feed.lsn = 100  # the LSNs of the other cluster are lower
    copy_and_change()
    (part,) = applier.batches[-1]
    assert [job.is_alone for job in part] == [False, False]


def test_a_position_that_a_worker_moves_is_not_moved_back(new_applier: Made) -> None:
    """A worker of a batch that the driver has given up commits while its table is stopped."""
    applier = new_applier()
    feed = applier.feed
    feed.copy([])
    assert applier.apply() == 0
    feed.transaction(insert(b"1", None, None))
    given_up: list[Sequence[ApplyJob]] = []

    def give_up(parts: Sequence[Sequence[ApplyJob]]) -> list[WorkerAnswer]:
        given_up.extend(parts)
        raise ApplyError

    applier.driver.close()
    applier.driver = Driver(applier.config, give_up, applier.status)
    with pytest.raises(ApplyError):
        applier.apply()
    config = feed.state().table_config
    assert config is not None
    feed.put_state("t", replace(feed.state(), table_config=replace(config, target="public.other")))
    with ThreadPoolExecutor(2) as pool, psycopg.connect(applier.url) as other:
        other.execute("LOCK TABLE t")
        worker = pool.submit(applier.worker.run, given_up[0])
        wait_until(lambda: waiting(applier, "millstream cdc apply"), what="the worker")
        driver = pool.submit(applier.apply)
        wait_until(lambda: waiting(applier, "millstream cdc apply (driver)"), what="the driver")
        other.rollback()
        assert worker.result().problem is None
        assert driver.result() == 1
    position = applier.position()
    assert (position.state, position.id) == ("stopped", (feed.lsn, 1))


def waiting(applier: Applier, application: str) -> bool:
    """True if a connection waits for a lock."""
    rows = applier.rows(
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        f" AND application_name = '{application}' AND datname = current_database()"
    )
    return bool(rows)


# ---------------------------------------------------------------- the rest


def test_sources_share_a_target_by_their_sids(new_applier: Made) -> None:
    applier = new_applier(sids=("eu", "us"))
    for sid, feed in applier.feeds.items():
        feed.copy([b"1\t%s\t1" % sid.encode()])
        feed.transaction(insert(b"2", b"x", None))
    applier.feeds["us"].transaction(truncate())
    assert applier.apply() == 0
    assert applier.rows("SELECT sid, id FROM t ORDER BY 1, 2") == [("eu", "1"), ("eu", "2")]


def test_a_drop_while_apply_runs_leaves_no_position(
    new_applier: Made, source: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    applier = new_applier(sids=("eu", "us"))
    for feed in applier.feeds.values():
        feed.copy([b"1\ta\t1"])
    assert applier.apply() == 0
    own = replace(applier.config.source("shop:eu"), url=url_of(source))
    server = open_server(applier.config.millstream)
    record = SourceRecord(applier.config, own, server)
    printed: list[str] = []

    def positions() -> list[Any]:
        return applier.rows("SELECT sid FROM millstream_position ORDER BY 1")

    drop(record, printed.append)
    assert printed[-2] == "destination: removed 1 position"
    applier.feeds["us"].transaction(insert(b"2", None, None))
    assert applier.apply() == 0
    assert positions() == [("us",)]
    assert applier.rows("SELECT id FROM t WHERE sid = 'us' ORDER BY 1") == [("1",), ("2",)]
    # The same while apply is between reading millstream and adding a position.
    feed = applier.feed
    feed.open()
    feed.copy([])

    def drop_meanwhile(*arguments: Any) -> Any:
        found = read_sources(*arguments)
        drop(record, printed.append)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(driver_module, "read_sources", drop_meanwhile)
        applier.apply()
    assert positions() == [("us",)]
    # A source that is read again has a position again.
    feed.open()
    feed.copy([b"7\ta\t1"])
    assert applier.apply() == 0
    assert positions() == [("eu",), ("us",)]
    assert applier.rows("SELECT id FROM t WHERE sid = 'eu'") == [("7",)]


def test_applied_entries_stay_for_other_readers(new_applier: Made, client: RawClient) -> None:
    applier = new_applier()
    applier.driver._config = replace(
        applier.config, millstream=replace(applier.config.millstream, keep_entries=3)
    )
    applier.feed.copy([])
    for number in range(10):
        applier.feed.transaction(insert(b"%d" % number, None, None))
    assert applier.apply() == 0
    assert length(client, "cdc:shop:eu:public.t") == 3


def test_a_second_apply_waits_for_the_first(
    new_applier: Made, caplog: pytest.LogCaptureFixture
) -> None:
    applier = new_applier()
    applier.feed.copy([b"1\ta\t1"])
    assert applier.apply() == 0  # it holds the lock as long as it lives
    begun: list[str] = []
    other = Driver(applier.config, applier.run, ApplyStatus(), lambda: begun.append("begun"))
    stop = threading.Event()
    thread = threading.Thread(target=other.apply, args=(stop, True))
    thread.start()
    wait_until(lambda: "another apply is running" in caplog.text, what="the report")
    assert begun == []
    applier.driver.close()
    thread.join(30)
    assert not thread.is_alive()
    assert begun == ["begun"]
    # The first one waits now, and does not write its report over that of the other one.
    assert applier.status.is_running
    thread = threading.Thread(target=applier.driver.apply, args=(stop, True))
    thread.start()
    wait_until(lambda: not applier.status.is_running, what="the end of the first one's reports")
    other.close()
    thread.join(30)
    assert not thread.is_alive()
    assert applier.status.is_running
    stop.set()
