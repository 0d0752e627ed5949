"""Changes applied to real targets, compared with what the source would have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cdc.conftest import NUMBERS
from tests.support.effort import examples

from millstream.cdc.config import Table
from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.history_writer import HistoryWriter
from millstream.cdc.destination.keyed_writer import KeyedWriter
from millstream.cdc.destination.keyless_writer import KeylessWriter
from millstream.cdc.destination.route import Route, route
from millstream.cdc.destination.table_kinds import kind_of
from millstream.cdc.destination.target import TargetError, read_targets
from millstream.cdc.destination.versions import time_us
from millstream.cdc.protocol.pgoutput import UNCHANGED
from millstream.cdc.protocol.session import SESSION
from millstream.cdc.streams.changes import DELETE, INSERT, TRUNCATE, UPDATE, Change, Row
from millstream.cdc.streams.source_state import SourceColumn

AT = b"2026-11-22T15:04:05.250000Z"
COLUMNS = (
    SourceColumn("id", "integer", True, True),
    SourceColumn("a", "text", False),
    SourceColumn("b", "numeric(10,2)", False),
)
NAMES = tuple(column.name for column in COLUMNS)

Connection = psycopg.Connection[Any]
Writer = KeyedWriter | KeylessWriter | HistoryWriter


@pytest.fixture(scope="module")
def destination(source_cluster: Any) -> Iterator[Connection]:
    # A module's tests may be run in parts, each with its own fixture.
    url = source_cluster.create_database(f"writers{next(NUMBERS)}")
    with psycopg.connect(url, options=SESSION) as connection:
        connection.execute("SET client_min_messages = warning")
        yield connection


@pytest.fixture
def connection(destination: Connection) -> Iterator[Connection]:
    """A connection in a transaction that is rolled back after the test."""
    yield destination
    destination.rollback()


def target_route(
    connection: Connection,
    ddl: str,
    table: Table,
    identity: Any = "default",
    columns: Sequence[SourceColumn] = COLUMNS,
) -> Route:
    """The route to a new target `t`."""
    connection.execute("DROP TABLE IF EXISTS t")
    connection.execute(f"CREATE TABLE t ({ddl})")
    found = read_targets(connection, [("public", "t")])
    return route(kind_of(table), found["public", "t"], "eu", "sid", columns, identity)


def insert(*row: bytes | None, lsn: int = 1, at: bytes = AT) -> Change:
    return Change((lsn, 1), INSERT, at, NAMES, row, (), ())


def update(*row: Any, old: Row = (), lsn: int = 1, at: bytes = AT) -> Change:
    names = NAMES[: len(old)]
    return Change((lsn, 1), UPDATE, at, NAMES, row, names, old)


def delete(*old: bytes | None, lsn: int = 1, at: bytes = AT) -> Change:
    return Change((lsn, 1), DELETE, at, (), (), NAMES[: len(old)], old)


def truncate(lsn: int = 1, at: bytes = AT) -> Change:
    return Change((lsn, 1), TRUNCATE, at, (), (), (), ())


def rows(connection: Connection, columns: str = "sid, id, a, b") -> list[tuple[Any, ...]]:
    found = connection.execute(f"SELECT {columns} FROM t".encode()).fetchall()
    return sorted(
        (tuple(None if value is None else str(value) for value in row) for row in found), key=repr
    )


# ---------------------------------------------------------------- clones with a key


KEYED = "sid text, id int, a text, b numeric(10,2), extra text DEFAULT 'x', PRIMARY KEY (sid, id)"
CLONE = Table("public", "t", "t")


def test_statements_of_a_fold_have_the_effects_of_its_changes(connection: Connection) -> None:
    to = target_route(connection, KEYED, CLONE)
    connection.execute("INSERT INTO t VALUES ('us', 1, 'other', 1, 'x'), ('eu', 9, 'old', 9, 'e')")
    KeyedWriter(TargetSession(connection), to).apply(
        [
            insert(b"1", b"tab\there", b"1.5"),
            insert(b"2", None, None),
            update(b"9", UNCHANGED, b"10"),
            update(b"2", b"back\\slash\nline\r", b"2"),
            insert(b"3", b"three", b"3"),
            delete(b"3"),
        ]
    )
    assert rows(connection, "sid, id, a, b, extra") == [
        ("eu", "1", "tab\there", "1.50", "x"),
        ("eu", "2", "back\\slash\nline\r", "2.00", "x"),
        ("eu", "9", "old", "10.00", "e"),
        ("us", "1", "other", "1.00", "x"),
    ]


def test_a_changed_key_is_an_update_in_place(connection: Connection) -> None:
    to = target_route(connection, KEYED, CLONE)
    connection.execute("INSERT INTO t VALUES ('eu', 1, 'large', 1, 'kept'), ('eu', 2, 'b', 2, 'k')")
    KeyedWriter(TargetSession(connection), to).apply(
        [update(b"3", UNCHANGED, b"3", old=(b"1",)), update(b"1", b"new", b"1", old=(b"2",))]
    )
    assert rows(connection, "id, a, b, extra") == [
        ("1", "new", "1.00", "k"),
        ("3", "large", "3.00", "kept"),
    ]


def test_truncate_clears_the_rows_of_the_sid(connection: Connection) -> None:
    to = target_route(connection, KEYED, CLONE)
    connection.execute("INSERT INTO t VALUES ('us', 1, 'a', 1, 'x'), ('eu', 2, 'b', 2, 'x')")
    KeyedWriter(TargetSession(connection), to).apply([truncate(), insert(b"5", b"after", None)])
    assert rows(connection) == [("eu", "5", "after", None), ("us", "1", "a", "1.00")]


def test_an_append_table_keeps_rows_that_the_source_deletes(connection: Connection) -> None:
    to = target_route(connection, KEYED, Table("public", "t", "t", "append"))
    writer = KeyedWriter(TargetSession(connection), to)
    writer.apply([insert(b"1", b"a", b"1"), insert(b"2", b"b", b"2"), delete(b"1"), truncate()])
    writer.apply([update(b"1", b"moved", b"2", old=(b"2",))])
    assert rows(connection) == [("eu", "1", "moved", "2.00")]
    writer.apply([insert(b"2", b"again", None), delete(b"2"), insert(b"2", b"once more", None)])
    assert rows(connection)[1] == ("eu", "2", "once more", None)


def test_columns_are_renamed_and_computed(connection: Connection) -> None:
    table = Table("public", "t", "t", rename={"b": "price"}, set={"length": "length(a) + 1"})
    ddl = "sid text, id int PRIMARY KEY, price numeric, length int, UNIQUE (sid, id)"
    to = target_route(connection, ddl, table)
    writer = KeyedWriter(TargetSession(connection), to)
    writer.apply([insert(b"1", b"four", b"1"), insert(b"2", b"100%", None)])
    writer.apply([update(b"3", b"sixsix", b"3", old=(b"1",))])
    found = rows(connection, "id, price, length")
    assert found == [("2", None, "5"), ("3", "3", "7")]


def test_a_target_without_a_unique_index_is_refused(connection: Connection) -> None:
    with pytest.raises(TargetError, match="CREATE UNIQUE INDEX"):
        target_route(connection, "sid text, id int, a text, b numeric", CLONE)
    connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
    target = read_targets(connection, [("public", "u")])["public", "u"]
    with pytest.raises(TargetError, match="no column 'sid'"):
        route(kind_of(CLONE), target, "eu", "sid", COLUMNS, "default", is_shared=True)


def test_a_new_column_at_the_source_ends_a_fold(connection: Connection) -> None:
    to = target_route(connection, KEYED, CLONE)
    narrow = Change((1, 1), INSERT, AT, ("id",), (b"1",), (), ())
    wide = Change((1, 2), UPDATE, AT, ("id", "new"), (b"1", b"?"), (), ())
    KeyedWriter(TargetSession(connection), to).apply([narrow, wide, insert(b"2", b"two", None)])
    assert rows(connection) == [("eu", "1", None, None), ("eu", "2", "two", None)]


# ---------------------------------------------------------------- without a key


KEYLESS = "sid text, id int, a text, b numeric(10,2)"


def test_a_delete_of_one_of_two_equal_rows_leaves_one(connection: Connection) -> None:
    to = target_route(connection, KEYLESS, CLONE, "full")
    writer = KeylessWriter(TargetSession(connection), to)
    equal = (b"1", None, b"1.00")
    writer.apply([insert(*equal), insert(*equal), delete(*equal)])
    assert rows(connection) == [("eu", "1", None, "1.00")]
    writer.apply([update(b"2", b"per%cent", b"2", old=equal)])
    assert rows(connection) == [("eu", "2", "per%cent", "2.00")]


def test_a_change_of_a_missing_row_is_refused(connection: Connection) -> None:
    to = target_route(connection, KEYLESS, CLONE, "full")
    connection.execute("INSERT INTO t VALUES ('us', 1, 'a', 1)")
    with pytest.raises(TargetError, match=r"no row .* delete 1\.1"):
        KeylessWriter(TargetSession(connection), to).apply([delete(b"1", b"a", b"1.00")])


def test_values_without_an_operator_are_compared_as_texts(connection: Connection) -> None:
    columns = [
        SourceColumn(name, type_, False)
        for name, type_ in [("j", "json"), ("p", "point"), ("x", "xml"), ("c", "character(5)")]
    ]
    names = tuple(column.name for column in columns)
    ddl = "sid text, j json, p point, x xml, c character(5)"
    to = target_route(connection, ddl, CLONE, "full", columns)
    row = (b'{"a":  1}', b"(1,2)", b"<a/>", b"ab   ")
    other = (b'{"a": 1}', b"(1,2)", b"<a/>", b"ab   ")
    writer = KeylessWriter(TargetSession(connection), to)
    writer.apply(
        [Change((1, n), INSERT, AT, names, one, (), ()) for n, one in enumerate([row, other])]
    )
    writer.apply([Change((1, 3), DELETE, AT, (), (), names, row)])
    assert rows(connection, "j::text") == [('{"a": 1}',)]


TOO_LONG = [
    ("varchar(3)", "abc", "wxyzzz"),
    ("char(3)", "abc", "wxyzzz"),
    ("bit(3)", "101", "11100"),
    ("bit varying(3)", "101", "11100"),
    ("varchar(3)[]", "{abc}", "{wxyzzz}"),
    ("char(3)[]", "{abc}", "{wxyzzz}"),
    ("bit(3)[]", "{101}", "{11100}"),
    ("word", "abc", "wxyzzz"),
    ("numeric(3,1)", "1.0", "100.0"),
    ("smallint", "1", "100000"),
]


@pytest.mark.parametrize(("type_", "good", "bad"), TOO_LONG)
def test_an_update_cuts_no_value(connection: Connection, type_: str, good: str, bad: str) -> None:
    """With and without a key, it is refused as an INSERT of the value is."""
    connection.execute("CREATE DOMAIN word AS varchar(3)")
    columns = [SourceColumn("id", "integer", True, True), SourceColumn("v", "text", False)]
    names = ("id", "v")
    old, new = (b"1", good.encode()), (b"1", bad.encode())
    put = Change((1, 1), INSERT, AT, names, old, (), ())
    changes = [
        Change((1, 2), INSERT, AT, names, (b"2", new[1]), (), ()),
        Change((1, 2), UPDATE, AT, names, new, names, old),
        Change((1, 2), DELETE, AT, (), (), names, new),
    ]
    states = set()
    for key, count in (("PRIMARY KEY (id)", 2), ("CHECK (true)", 3)):
        to = target_route(connection, f"id int, v {type_}, {key}", CLONE, "full", columns)
        writer = (KeyedWriter if to.key else KeylessWriter)(TargetSession(connection), to)
        writer.apply([put])
        for change in changes[:count]:
            with pytest.raises(psycopg.DataError) as caught, connection.transaction():
                writer.apply([change])
            states.add(caught.value.sqlstate)
        assert len(rows(connection, "id, v")) == 1
    assert states <= {"22001", "22026", "22003"}


def test_a_row_is_found_by_its_values_as_they_were_stored(connection: Connection) -> None:
    kinds = ["numeric(4,1)", "varchar(3)", "char(5)", "time(0)", "interval day to minute", "text[]"]
    columns = [SourceColumn(f"v{n}", "text", False) for n, _ in enumerate(kinds)]
    names = tuple(column.name for column in columns)
    ddl = ", ".join(f"v{n} {kind}" for n, kind in enumerate(kinds))
    to = target_route(connection, ddl, CLONE, "full", columns)
    row = (b"1.26", b"abc   ", b"ab", b"10:00:00.7", b"1 day 02:03:04", b'{"a,\\"\\\\b",NULL}')
    writer = KeylessWriter(TargetSession(connection), to)
    writer.apply([Change((1, 1), INSERT, AT, names, row, (), ())])
    other = (b"9.99", *row[1:])
    writer.apply([Change((1, 2), UPDATE, AT, names, other, names, row)])
    assert rows(connection, "v0, v1, v2, v3, v4") == [
        ("10.0", "abc", "ab   ", "10:00:01", "1 day, 2:03:00")
    ]
    writer.apply([Change((1, 3), DELETE, AT, (), (), names, other)])
    assert rows(connection, "v0") == []


@pytest.mark.parametrize("key", ["PRIMARY KEY (id)", "CHECK (true)"])
def test_set_sees_whole_values(connection: Connection, key: str) -> None:
    """The source's column may have become longer since the copy."""
    made = {"upper": "upper(a)", "long": "b || 'x'", "sum": "n * 2"}
    table = Table("public", "t", "t", set=made, rename={"b": "upper"})
    types = {"id": "integer", "a": "varchar(3)", "b": "character(2)", "n": "numeric(4,1)"}
    columns = [SourceColumn(name, type_, name == "id") for name, type_ in types.items()]
    names = tuple(types)
    ddl = f"id int, a text, upper text, long text, sum numeric, {key}"
    to = target_route(connection, ddl, table, "full", columns)
    writer = (KeyedWriter if to.key else KeylessWriter)(TargetSession(connection), to)
    first, second = (b"1", b"long a", b"long b", b"1.2345"), (b"1", b"longer", b"bb", b"2.0625")
    writer.apply([Change((1, 1), INSERT, AT, names, first, (), ())])
    assert rows(connection, "upper, long, sum") == [("LONG A", "long bx", "2.4690")]
    writer.apply([Change((1, 2), UPDATE, AT, names, second, names, first)])
    assert rows(connection, "a, upper, long, sum") == [("longer", "LONGER", "bbx", "4.1250")]


# ---------------------------------------------------------------- identity columns


ITEMS = (
    SourceColumn("code", "text", True, True),
    SourceColumn("seq", "bigint", False, True),
    SourceColumn("name", "text", False),
)


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("PRIMARY KEY (code)", "clone"),
        ("PRIMARY KEY (code), UNIQUE (seq)", "append"),
        ("CHECK (true)", "clone"),
    ],
)
def test_a_target_may_have_an_identity_column(connection: Connection, ddl: str, kind: Any) -> None:
    columns = f"code text, seq bigint GENERATED ALWAYS AS IDENTITY, name text, {ddl}"
    extra = "extra text DEFAULT 'x', size int GENERATED ALWAYS AS (length(name)) STORED"
    table = Table("public", "t", "t", kind)
    to = target_route(connection, f"{columns}, {extra}", table, "full", ITEMS)
    writer = (KeyedWriter if to.key else KeylessWriter)(TargetSession(connection), to)
    names = tuple(column.name for column in ITEMS)

    def put(*row: Any, old: Row = ()) -> None:
        op = UPDATE if old else INSERT
        writer.apply([Change((1, 1), op, AT, names, row, names[: len(old)], old)])

    put(b"a", b"7", b"tea")
    put(b"b", b"8", b"salt")
    connection.execute("UPDATE t SET extra = 'kept'")
    put(b"a", b"7", b"rice", old=(b"a", b"7", b"tea"))
    put(b"a", b"7", b"rice", old=(b"a", b"7", b"rice"))
    assert rows(connection, "code, seq, name, extra") == [
        ("a", "7", "rice", "kept"),
        ("b", "8", "salt", "kept"),
    ]
    put(b"b", b"9", b"salt", old=(b"b", b"8", b"salt"))
    put(b"a", b"8", UNCHANGED if to.key else b"rice", old=(b"a", b"7", b"rice"))
    put(b"c", b"10", b"oil", old=(b"b", b"9", b"salt"))
    assert rows(connection, "code, seq, name, extra, size") == [
        ("a", "8", "rice", "kept", "4"),
        ("c", "10", "oil", "kept", "3"),
    ]


def test_an_identity_column_may_be_the_key(connection: Connection) -> None:
    ddl = "id int GENERATED ALWAYS AS IDENTITY, a text, b numeric(10,2), x text DEFAULT 'd'"
    to = target_route(connection, f"{ddl}, PRIMARY KEY (id)", CLONE)
    writer = KeyedWriter(TargetSession(connection), to)
    writer.apply([insert(b"1", b"large", b"1"), insert(b"2", b"b", b"2")])
    connection.execute("UPDATE t SET x = 'kept'")
    writer.apply([update(b"1", UNCHANGED, b"5")])
    changes = [update(b"3", UNCHANGED, b"6", old=(b"1",)), update(b"4", b"c", b"7", old=(b"2",))]
    writer.apply(changes)
    assert rows(connection, "id, a, b, x") == [
        ("3", "large", "6.00", "kept"),
        ("4", "c", "7.00", "kept"),
    ]


# ---------------------------------------------------------------- histories


HISTORY = (
    "sid text, id int, a text, b numeric(10,2), kvsz_start timestamptz, kvsz_end timestamptz,"
    " kvsz_deleted boolean, PRIMARY KEY (sid, id, kvsz_start)"
)
HISTORY_TABLE = Table("public", "t", "t", "history")
VERSION = (
    "id, a, b, to_char(kvsz_start AT TIME ZONE 'UTC', 'YYYY HH24:MI:SS.US'),"
    " to_char(kvsz_end AT TIME ZONE 'UTC', 'YYYY HH24:MI:SS.US'), kvsz_deleted"
)
LAST = "9999 00:00:00.000000"


def at(second: int) -> bytes:
    return b"2026-11-22T15:00:%02d.000000Z" % second


def shown(second: int, us: int = 0) -> str:
    return f"2026 15:00:{second:02}.{us:06}"


def test_an_update_in_a_history_closes_one_row(connection: Connection) -> None:
    to = target_route(connection, HISTORY, HISTORY_TABLE)
    writer = HistoryWriter(TargetSession(connection), to)
    writer.apply([insert(b"1", b"large", b"1", at=at(0)), insert(b"2", b"other", b"2", at=at(0))])
    writer.flush()
    writer.apply([update(b"1", UNCHANGED, b"5", lsn=2, at=at(10))])
    writer.flush()
    assert rows(connection, VERSION) == [
        ("1", "large", "1.00", shown(0), shown(10), "False"),
        ("1", "large", "5.00", shown(10), LAST, "False"),
        ("2", "other", "2.00", shown(0), LAST, "False"),
    ]


def test_a_history_has_the_sources_commit_times(connection: Connection) -> None:
    to = target_route(connection, HISTORY, HISTORY_TABLE)
    writer = HistoryWriter(TargetSession(connection), to)
    writer.apply([insert(b"1", b"a", b"1", at=at(0)), update(b"1", b"b", b"1", lsn=2, at=at(1))])
    writer.apply([update(b"1", b"c", b"1", lsn=3, at=at(1)), delete(b"1", lsn=4, at=at(3))])
    writer.apply([insert(b"1", b"d", None, lsn=5, at=at(2))])
    writer.flush()
    assert rows(connection, VERSION) == [
        ("1", "a", "1.00", shown(0), shown(1), "False"),
        ("1", "b", "1.00", shown(1), shown(1, 1), "False"),
        ("1", "c", "1.00", shown(1, 1), shown(3), "True"),
        ("1", "d", None, shown(3), LAST, "False"),
    ]


def test_a_changed_key_ends_the_history_of_the_old_one(connection: Connection) -> None:
    to = target_route(connection, HISTORY, HISTORY_TABLE)
    writer = HistoryWriter(TargetSession(connection), to)
    writer.apply([insert(b"1", b"large", b"1", at=at(0))])
    writer.flush()
    writer.apply([update(b"2", UNCHANGED, b"2", old=(b"1",), lsn=2, at=at(1))])
    writer.apply([update(b"3", UNCHANGED, b"3", old=(b"2",), lsn=2, at=at(1))])
    writer.flush()
    assert rows(connection, VERSION) == [
        ("1", "large", "1.00", shown(0), shown(1), "True"),
        ("3", "large", "3.00", shown(1), LAST, "False"),
    ]


@dataclass
class HistoryModel:
    """The versions in a history by key, as [values, start, end, deleted]."""

    versions: dict[bytes, list[list[Any]]] = field(default_factory=dict)

    def transaction(self, changes: Sequence[Change]) -> None:
        before = {key: own[-1][0] for key, own in self.versions.items() if own[-1][2] is None}
        now = dict(before)
        touched: list[bytes] = []
        for change in changes:
            if change.op == TRUNCATE:
                touched += list(now)
                now = {}
            elif change.op == DELETE:
                touched.append(change.old[0])  # type: ignore[arg-type]
                now.pop(change.old[0], None)  # type: ignore[arg-type]
            else:
                key: Any = change.row[0]
                old: Any = change.old[0] if change.old else key
                was = now.pop(old, (None, None))
                now[key] = tuple(
                    b if n is UNCHANGED else n for n, b in zip(change.row[1:], was, strict=True)
                )
                touched += [old, key]
        time = time_us(changes[0].at.decode())
        for key in dict.fromkeys(touched):
            self._step(key, now.get(key), time)

    def _step(self, key: bytes, values: Any, time: int) -> None:
        own = self.versions.setdefault(key, [])
        start = time
        if own and own[-1][2] is None:
            start = own[-1][2] = max(time, own[-1][1] + 1)
            own[-1][3] = values is None
        elif own:
            start = max(time, own[-1][2])
        if values is not None:
            own.append([values, start, None, False])
        if not own:
            del self.versions[key]

    def rows(self) -> set[tuple[Any, ...]]:
        return {
            (int(key), *values, start, end, deleted)
            for key, own in self.versions.items()
            for values, start, end, deleted in own
        }


IDS = [b"%d" % n for n in range(4)]


@st.composite
def sources(draw: st.DrawFn, unchanged: bool = True) -> list[list[Change]]:
    """Transactions of a source with a key, as they can happen."""
    present: set[bytes] = set()
    transactions: list[list[Change]] = []
    for lsn in range(1, draw(st.integers(1, 6)) + 1):
        done: list[Change] = []
        time = at(draw(st.integers(0, 9)))
        for _ in range(draw(st.integers(1, 6))):
            done.append(draw(changes_of(present, lsn, time, unchanged)))
        transactions.append(done)
    return transactions


@st.composite
def changes_of(
    draw: st.DrawFn, present: set[bytes], lsn: int, time: bytes, unchanged: bool
) -> Change:
    values = st.sampled_from([None, b"v", b"w"])
    kept = st.one_of(values, st.just(UNCHANGED)) if unchanged else values
    free = [key for key in IDS if key not in present]
    ops = ["insert"] * bool(free) + ["update", "update", "delete"] * bool(present)
    ops += ["rekey"] * bool(free and present) + ["truncate"] * (draw(st.integers(0, 9)) == 0)
    op = draw(st.sampled_from(ops or ["truncate"]))
    if op == "insert":
        key = draw(st.sampled_from(free))
        present.add(key)
        return insert(key, draw(values), b"1.00", lsn=lsn, at=time)
    if op == "truncate":
        present.clear()
        return truncate(lsn, time)
    old = draw(st.sampled_from(sorted(present)))
    if op == "delete":
        present.remove(old)
        return delete(old, lsn=lsn, at=time)
    if op == "update":
        return update(old, draw(kept), b"2.00", lsn=lsn, at=time)
    key = draw(st.sampled_from(free))
    present.remove(old)
    present.add(key)
    return update(key, draw(kept), b"3.00", old=(old,), lsn=lsn, at=time)


SLOW = settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SLOW
@given(
    sources(),
    st.integers(1, 12),
    st.sampled_from([(2, 100), (3, 100), (5, 100), (100, 8), (100, 20), (100, 1000)]),
)
def test_a_history_has_every_version(
    connection: Connection,
    transactions: list[list[Change]],
    chunk: int,
    limits: tuple[int, int],
) -> None:
    to = target_route(connection, HISTORY, HISTORY_TABLE)
    model = HistoryModel()
    for one in transactions:
        model.transaction(one)
    writer = HistoryWriter(TargetSession(connection), to, *limits)
    flat = [change for one in transactions for change in one]
    for start in range(0, len(flat), chunk):
        writer.apply(flat[start : start + chunk])
    writer.flush()
    found = connection.execute(
        "SELECT id, a, b::text, (extract(epoch FROM kvsz_start) * 1000000)::bigint,"
        " nullif(extract(epoch FROM kvsz_end) * 1000000, 253370764800000000)::bigint,"
        " kvsz_deleted FROM t"
    ).fetchall()
    wanted = {
        tuple(one.decode() if isinstance(one, bytes) else one for one in row)
        for row in model.rows()
    }
    assert set(found) == wanted
    assert len(found) == len(wanted)


def test_a_history_does_not_collect_large_rows(connection: Connection) -> None:
    to = target_route(connection, HISTORY, HISTORY_TABLE)
    writer = HistoryWriter(TargetSession(connection), to, bytes_max=4000)
    for number in range(40):
        # Two transactions, each with more bytes than the limit, then one for each row.
        lsn, key = max(number // 10, number - 20), b"%d" % number
        writer.apply([insert(key, b"v" * 1000, None, lsn=lsn + 1, at=at(lsn))])
        assert writer.size_bytes < 4000
    writer.flush()
    assert connection.execute("SELECT count(*), sum(length(a)) FROM t").fetchone() == (40, 40000)


@SLOW
@given(sources(), st.integers(1, 12))
def test_a_clone_has_the_sources_rows(
    connection: Connection, transactions: list[list[Change]], chunk: int
) -> None:
    to = target_route(connection, KEYED, CLONE)
    model = HistoryModel()
    for one in transactions:
        model.transaction(one)
    writer = KeyedWriter(TargetSession(connection), to)
    flat = [change for one in transactions for change in one]
    for start in range(0, len(flat), chunk):
        writer.apply(flat[start : start + chunk])
    wanted = [
        ("eu", key.decode(), *(None if v is None else v.decode() for v in own[-1][0]))
        for key, own in model.versions.items()
        if own[-1][2] is None
    ]
    assert rows(connection) == sorted(wanted, key=repr)


@SLOW
@given(
    st.lists(
        st.tuples(st.sampled_from(["insert", "update", "delete"]), st.integers(0, 9)), max_size=30
    ),
    st.integers(1, 12),
)
def test_a_keyless_target_has_each_row_as_often_as_its_source(
    connection: Connection, steps: list[tuple[str, int]], chunk: int
) -> None:
    to = target_route(connection, KEYLESS, CLONE, "full")
    present: list[Row] = []
    done: list[Change] = []
    for op, number in steps:
        new = (b"%d" % (number % 2), [None, b"v"][number % 2], b"1.00")
        if op == "insert" or not present:
            present.append(new)
            done.append(insert(*new))
            continue
        old: Any = present.pop(number % len(present))
        if op == "delete":
            done.append(delete(*old))
        else:
            present.append(new)
            done.append(update(*new, old=old))
    writer = KeylessWriter(TargetSession(connection), to)
    for start in range(0, len(done), chunk):
        writer.apply(done[start : start + chunk])
    texts = [
        ("eu", *(None if v is None else v.decode() for v in row))  # type: ignore[union-attr]
        for row in present
    ]
    assert rows(connection) == sorted(texts, key=repr)
