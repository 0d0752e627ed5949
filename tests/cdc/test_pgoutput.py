"""The decoder of replication messages, on what a real PostgreSQL sends, and on damaged bytes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cdc.config import Table
from millstream.cdc.protocol.pgoutput import DecodeError, decode
from millstream.cdc.protocol.replication_stream import Data, ReplicationStream
from millstream.cdc.sql import lsn_text, read_lsn
from millstream.cdc.streams.translator import (
    ChangeEntry,
    Described,
    Output,
    TransactionCut,
    Translator,
)

Source = psycopg.Connection[Any]


def url_of(source: Source) -> str:
    info = source.info
    return f"postgresql://{info.user}@{info.host}:{info.port}/{info.dbname}"


class Reader:
    """Reads a slot of `source` from now on."""

    def __init__(self, source: Source, *tables: str, options: str = "") -> None:
        source.execute(f"CREATE PUBLICATION pub FOR TABLE {', '.join(tables)} {options}")
        self.tables = [Table("public", name) for name in tables]
        self.replication = ReplicationStream(url_of(source), "test")
        name = f"slot_{source.info.dbname}"
        lsn = self.replication.create_slot(name)
        self.replication.start(name, "pub", lsn)
        self.translator = Translator(self.tables)
        self.payloads: list[bytes] = []

    def read(self, cuts: int = 1) -> list[Output]:
        """The messages of the source, up to and with this number of cuts."""
        return asyncio.run(asyncio.wait_for(self._read(cuts), 30))

    async def _read(self, cuts: int) -> list[Output]:
        outputs: list[Output] = []
        while sum(isinstance(output, TransactionCut) for output in outputs) < cuts:
            while (received := self.replication.receive_now()) is None:
                await self.replication.readable()
            if isinstance(received, Data):
                self.payloads.append(received.payload)
                outputs += self.translator.feed(decode(received.payload))
        return outputs

    def entries(self, cuts: int = 1) -> list[ChangeEntry]:
        return [output for output in self.read(cuts) if isinstance(output, ChangeEntry)]


def shown(entry: ChangeEntry) -> dict[str, str]:
    words = [word.decode() for word in entry.words]
    return {
        name: value for name, value in zip(words[::2], words[1::2], strict=True) if name != "@at"
    }


def test_rows_arrive_with_their_values_nulls_and_old_keys(source: Source) -> None:
    source.execute('CREATE TABLE t (id int PRIMARY KEY, name text, "@x" int)')
    reader = Reader(source, "t")
    with source.transaction():
        source.execute("INSERT INTO t VALUES (1, 'tea', 7), (2, NULL, NULL)")
        source.execute("UPDATE t SET name = 'salt' WHERE id = 2")
        source.execute("UPDATE t SET id = 3 WHERE id = 1")
        source.execute("DELETE FROM t WHERE id = 3")
        source.execute("TRUNCATE t")
    outputs = reader.read()
    entries = [output for output in outputs if isinstance(output, ChangeEntry)]
    assert [shown(entry) for entry in entries] == [
        {"@op": "insert", "id": "1", "name": "tea", "@@x": "7"},
        {"@op": "insert", "id": "2", "@null": '["name", "@x"]'},
        {"@op": "update", "id": "2", "name": "salt", "@null": '["@x"]'},
        {"@op": "update", "id": "3", "name": "tea", "@@x": "7", "@old:id": "1"},
        {"@op": "delete", "@old:id": "3"},
        {"@op": "truncate"},
    ]
    [cut] = [output for output in outputs if isinstance(output, TransactionCut)]
    assert [entry.place for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert {entry.lsn for entry in entries} == {cut.lsn}
    assert cut.rows == 6
    assert cut.end_lsn > cut.lsn


def test_an_unchanged_large_value_is_named_or_from_the_old_row(
    source: Source,
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY, big text, n int)")
    source.execute("ALTER TABLE a ALTER big SET STORAGE EXTERNAL")
    source.execute("CREATE TABLE b (LIKE a INCLUDING ALL)")
    source.execute("ALTER TABLE b REPLICA IDENTITY FULL")
    reader = Reader(source, "a", "b")
    for table in ("a", "b"):
        source.execute(f"INSERT INTO {table} VALUES (1, repeat('x', 10000), 1)")
        source.execute(f"UPDATE {table} SET n = 2")
    _, update, _, full = map(shown, reader.entries(cuts=4))
    assert update == {"@op": "update", "id": "1", "n": "2", "@unchanged": '["big"]'}
    assert full["big"] == "x" * 10000
    assert "@unchanged" not in full
    assert full["@old:n"] == "1"


def test_only_the_listed_columns_are_kept(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, name text, secret text)")
    reader = Reader(source, "t")
    reader.translator = Translator([Table("public", "t", columns=("id", "name"))])
    source.execute("INSERT INTO t VALUES (1, 'tea', 'x')")
    [entry] = reader.entries()
    assert shown(entry) == {"@op": "insert", "id": "1", "name": "tea"}


def test_ids_do_not_depend_on_which_tables_are_configured(source: Source) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source.execute("CREATE TABLE b (id int PRIMARY KEY)")
    reader = Reader(source, "a", "b")
    reader.translator = Translator([Table("public", "b")])
    with source.transaction():
        source.execute("INSERT INTO a VALUES (1)")
        source.execute("INSERT INTO b VALUES (1)")
    [entry] = reader.entries()
    assert entry.place == 2


def test_a_changed_table_is_described_again(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    reader = Reader(source, "t")
    source.execute("INSERT INTO t VALUES (1)")
    source.execute("ALTER TABLE t ADD n int DEFAULT 7")
    source.execute("INSERT INTO t VALUES (2)")
    outputs = reader.read(cuts=2)
    described = [output for output in outputs if isinstance(output, Described)]
    assert [[column.name for column in one.relation.columns] for one in described] == [
        ["id"],
        ["id", "n"],
    ]
    assert described[0].relation.columns[0].is_key


TYPES = {
    "boolean": ["true", "false"],
    "smallint": ["'-32768'"],
    "bigint": ["'9223372036854775807'"],
    "numeric": ["'NaN'", "'-Infinity'", "123456789012345678901234567890.123456789"],
    "real": ["'3.4028235e38'", "'1e-45'", "'-Infinity'"],
    "double precision": ["'2.2250738585072014e-308'", "0.1", "'NaN'"],
    "money": ["'-12.34'"],
    "text": ["''", "E'tab\\t line\\n back\\\\ ü € 🦆'"],
    "varchar(3)": ["'abc'"],
    "char(3)": ["'a'"],
    "bytea": ["'\\x00ff'", "''"],
    "date": ["'infinity'", "'4713-01-01 BC'", "'2026-11-22'"],
    "timestamp": ["'-infinity'", "'2026-11-22 15:04:05.25'"],
    "timestamptz": ["'2026-11-22 15:04:05.25+05:30'"],
    "time": ["'24:00:00'"],
    "timetz": ["'12:00:00+03'"],
    "interval": ["'1 year -2 months 3 days -04:05:06.7'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "json": ["'{\"a\": [1, null]}'"],
    "jsonb": ['\'{"b": 1, "a": 2}\''],
    "inet": ["'192.168.0.1/24'", "'::1'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "bit varying": ["B'101'", "B''"],
    "point": ["'(1.5,-2)'"],
    "int[]": ["'{{1,NULL},{3,4}}'"],
    "text[]": ["ARRAY['a,b', 'NULL', NULL, '\"']"],
    "int4range": ["'[1,5)'", "'empty'"],
    "tsvector": ["to_tsvector('simple', 'a b a')"],
    "xml": ["'<a>&lt;</a>'"],
    "mood": ["'happy'"],
    "pair": ["ROW(1, 'a,b')"],
}


def test_values_of_every_type_arrive_as_text_that_casts_back(source: Source) -> None:
    source.execute("CREATE TYPE mood AS ENUM ('happy', 'sad')")
    source.execute("CREATE TYPE pair AS (a int, b text)")
    rows = [(kind, value) for kind, values in TYPES.items() for value in values]
    names = {kind: f"t{number}" for number, kind in enumerate(TYPES)}
    for kind, name in names.items():
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})")
    reader = Reader(source, *names.values())
    with source.transaction():
        # The source's own settings must not change what arrives.
        source.execute("SET datestyle = 'German'; SET intervalstyle = 'iso_8601'")
        source.execute("SET bytea_output = 'escape'; SET timezone = 'Asia/Tokyo'")
        for number, (kind, value) in enumerate(rows):
            source.execute(f"INSERT INTO {names[kind]} VALUES ({number}, {value}::{kind})")
    entries = reader.entries()
    assert len(entries) == len(rows)
    source.execute("RESET ALL")
    for number, ((kind, _), entry) in enumerate(zip(rows, entries, strict=True)):
        text = shown(entry)["v"]
        same = source.execute(
            f"SELECT v::text IS NOT DISTINCT FROM (%s::{kind})::text FROM {names[kind]}"
            " WHERE id = %s",
            [text, number],
        ).fetchone()
        assert same == (True,), (kind, text)


def test_a_truncated_or_changed_message_is_refused_or_decoded(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    reader = Reader(source, "t")
    with source.transaction():
        source.execute("INSERT INTO t VALUES (1, 'tea')")
        source.execute("UPDATE t SET id = 2")
        source.execute("DELETE FROM t")
        source.execute("TRUNCATE t")
    reader.read()
    for payload in reader.payloads:
        for size in range(len(payload)):
            with pytest.raises(DecodeError):
                decode(payload[:size])
        with pytest.raises(DecodeError):
            decode(payload + b"x")


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decode(data)


@given(st.integers(0, 2**64 - 1))
def test_lsns_are_written_and_read(lsn: int) -> None:
    assert read_lsn(lsn_text(lsn)) == lsn


def test_columns_are_described_again_only_after_a_change(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    reader = Reader(source, "t")
    source.execute("INSERT INTO t VALUES (1)")
    source.execute("TRUNCATE t")
    source.execute("INSERT INTO t VALUES (2)")
    source.execute("ALTER TABLE t ADD b text")
    source.execute("INSERT INTO t VALUES (3)")
    described = [output for output in reader.read(4) if isinstance(output, Described)]
    assert [len(one.relation.columns) for one in described] == [1, 2]


def test_a_renamed_table_is_still_the_same(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    reader = Reader(source, "t")
    [(oid,)] = source.execute("SELECT 't'::regclass::oid::int8").fetchall()
    source.execute("ALTER TABLE t RENAME TO away")
    source.execute("INSERT INTO away VALUES (1)")
    source.execute("ALTER TABLE away RENAME TO t")
    source.execute("INSERT INTO t VALUES (2)")
    source.execute("ALTER TABLE t RENAME TO away")
    source.execute("INSERT INTO away VALUES (3)")
    reader.translator = Translator(reader.tables, {oid: reader.tables[0]})
    found = reader.entries(3)
    assert [shown(entry)["id"] for entry in found] == ["1", "2", "3"]
    assert {entry.table.full_name for entry in found} == {"public.t"}
