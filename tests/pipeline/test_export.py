"""`millstream export`: what is in the file is what is in the streams, and nothing but whole files
are left."""

from __future__ import annotations

import base64
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from pyspark.sql.types import StructType
from tests.pipeline.direct import url
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.data_directory import flip
from tests.support.server import Server
from tests.support.snapshots import Stream, write_snapshot
from tests.support.waiting import wait_until

from millstream.__main__ import main
from millstream.pipeline import outputs
from millstream.pipeline.ddl import arrow_from_ddl
from millstream.pipeline.schema import PARTS, arrow_schema
from millstream.pipeline.source_options import OptionError

T0 = 1_700_000_000_000


def entries(count: int) -> dict[tuple[int, int], list[bytes]]:
    return {(T0 + n, 0): [b"n", b"%d" % n] for n in range(count)}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three streams of 500 entries, in chunks of some fifty; and one in database 2."""
    directory = tmp_path_factory.mktemp("three")
    streams = [Stream(b"s:%d" % n, entries(500), block_entries=10) for n in range(3)]
    write_snapshot(directory, [*streams, Stream(b"s:0", entries(7), db=2)], 50)
    return directory


def export(source: object, output: Path, *arguments: str, format_: str = "parquet") -> Result:
    words = ["export", str(source), "--format", format_, "--output", str(output), *arguments]
    return CliRunner().invoke(main, words)


def rows(source: object, output: Path, *arguments: str) -> list[dict[str, Any]]:
    done = export(source, output, *arguments)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = parquet.read_table(output).to_pylist()
    assert f"{len(found):,} rows" in done.output
    return found


def refusal(source: object, output: Path, *arguments: str, format_: str = "parquet") -> str:
    """The error when nothing can be exported; one line, and no file is left."""
    there = sorted(output.parent.iterdir())
    done = export(source, output, *arguments, format_=format_)
    assert done.exit_code == 1
    assert sorted(output.parent.iterdir()) == there
    (line,) = done.output.splitlines()
    return line


# ---------------------------------------------------------------- round trips


def xrange(client: RawClient, key: str) -> list[tuple[str, list[bytes]]]:
    return [
        (as_bytes(id_).decode(), [as_bytes(word) for word in as_list(words)])
        for id_, words in map(as_list, as_list(client.call("XRANGE", key, "-", "+")))
    ]


@pytest.mark.parametrize("source", ["directory", "server"])
def test_a_parquet_file_has_the_entries_that_xrange_answers(
    durable_server: Server, tmp_path: Path, source: str
) -> None:
    """Includes repeated names, and bytes that are not text."""
    with durable_server.client() as client:
        client.pipeline([("XADD", "a", "*", "n", str(n), "n", "x" * 900) for n in range(5000)])
        client.call("XADD", "b:\xff", "5-18446744073709551615", b"\xff\x00", b"\xfe", "", "")
        client.call("XTRIM", "a", "MAXLEN", "4321")
        client.call("XDEL", "a", xrange(client, "a")[7][0])
        client.call("SAVE")
        client.call("SET", "word", "x")
        schema = "key binary, id string, fields array<struct<name: binary, value: binary>>"
        where = url(durable_server) if source == "server" else durable_server.directory
        found = rows(where, tmp_path / "out.parquet", "--schema", schema)
        for key in ("a", "b:\xff"):
            pairs = [
                (row["id"], [word for pair in row["fields"] for word in pair.values()])
                for row in found
                if row["key"] == key.encode()
            ]
            assert pairs == xrange(client, key)
        assert len(found) == 4320 + 1


def test_several_streams_are_in_one_file_in_bounded_row_groups(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "ROW_GROUP_ROWS_MAX", 400)
    found = rows(three, tmp_path / "out.parquet", "--schema", "key string, ms bigint, n int")
    for key in range(3):
        mine = [(row["ms"], row["n"]) for row in found if row["key"] == f"s:{key}"]
        assert mine == [(T0 + n, n) for n in range(500)]
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    columns = [file.metadata.row_group(0).column(n) for n in range(3)]
    assert [column.has_dictionary_page for column in columns] == [True, False, True]
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert max(sizes) <= 400
    assert sum(sizes) == 1500


@pytest.mark.parametrize(
    "fields", ["map<string,string>", "array<struct<name: string, value: string>>"]
)
def test_values_that_may_repeat_have_a_dictionary(three: Path, tmp_path: Path, fields: str) -> None:
    rows(three, tmp_path / "out.parquet", "--schema", f"id string, fields {fields}")
    group = parquet.read_metadata(tmp_path / "out.parquet").row_group(0)
    found = [group.column(n).has_dictionary_page for n in range(group.num_columns)]
    assert found == [False, True, True]


# ---------------------------------------------------------------- selection

BOUNDS = [
    (("--from", f"{T0 + 10}-0", "--to", f"{T0 + 12}"), [10, 11, 12]),
    (("--from", f"({T0 + 10}-0", "--to", f"({T0 + 12}-0"), [11]),
    (("--from", "2023-11-14T22:13:20.498Z"), [498, 499]),
    (("--to", "2023-11-14T22:13:20.001500"), [0, 1]),
    (("--from", f"{T0 + 500}"), []),
    (("--from", "9-0", "--to", "8-0"), []),
]


@pytest.mark.parametrize(("bounds", "wanted"), BOUNDS)
def test_key_and_bounds_choose_the_same_as_everywhere(
    three: Path, tmp_path: Path, bounds: Sequence[str], wanted: list[int]
) -> None:
    arguments = ("--key", "s:[12]", "--schema", "key, n int", *bounds)
    found = rows(three, tmp_path / "out.parquet", *arguments)
    assert found == [{"key": f"s:{key}", "n": n} for key in (1, 2) for n in wanted]


def test_a_server_gets_the_same_requests(server: Server, client: RawClient, tmp_path: Path) -> None:
    for key in range(3):
        client.pipeline([("XADD", f"s:{key}", f"{T0 + n}-0", "n", str(n)) for n in range(500)])
    for bounds, wanted in BOUNDS:
        arguments = ("--key", "s:[12]", "--schema", "key, n int", *bounds)
        found = rows(url(server), tmp_path / "out.parquet", *arguments)
        assert found == [{"key": f"s:{key}", "n": n} for key in (1, 2) for n in wanted]
    assert rows(url(server), tmp_path / "out.parquet", "--db", "3") == []


def test_another_database_is_chosen_by_its_number(three: Path, tmp_path: Path) -> None:
    assert len(rows(three, tmp_path / "out.parquet", "--db", "2")) == 7


# ---------------------------------------------------------------- texts

SCHEMA = (
    "key string, ts timestamp, seq decimal(20,0), fields map<string,string>, raw binary, "
    "x double, ok boolean, price decimal(10,2), day date"
)
WORDS = [b"raw", b"\xff\x00", b"x", b"nan", b"ok", b"yes", b"price", b"2.5", b"day", b"2026-11-20"]


@pytest.fixture
def motley(tmp_path: Path) -> Path:
    directory = tmp_path / "motley"
    texts = {(T0 + 1, 2**64 - 1): WORDS, (T0 + 2, 0): [b"q", b'a "b",\nc', b"", b""]}
    write_snapshot(directory, [Stream(b"\xc3\xa4", texts)])
    return directory


def test_json_lines_have_one_object_an_entry(motley: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert export(motley, output, "--schema", SCHEMA, format_="jsonl").exit_code == 0
    first, second = map(json.loads, output.read_text().splitlines())
    assert first.pop("fields") == {
        "raw": "\ufffd\0", "x": "nan", "ok": "yes", "price": "2.5", "day": "2026-11-20"
    }  # fmt: skip
    assert first == {
        "key": "ä",
        "ts": "2023-11-14T22:13:20.001000Z",
        "seq": 2**64 - 1,
        "raw": base64.b64encode(b"\xff\x00").decode(),
        "x": "NaN",
        "ok": True,
        "price": "2.50",
        "day": "2026-11-20",
    }
    assert second["fields"] == {"q": 'a "b",\nc', "": ""}
    assert second["x"] is None


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
def test_small_decimals_are_written_as_their_digits(tmp_path: Path, format_: str) -> None:
    write_snapshot(tmp_path, [Stream(b"s", {(1, 0): [b"a", b"1e-8"], (2, 0): [b"a", b"-20"]})])
    output = tmp_path / "out"
    schema = "a decimal(20,8)"
    assert export(tmp_path, output, "--schema", schema, format_=format_).exit_code == 0
    text = output.read_text()
    assert '"0.00000001"' in text
    assert '"-20.00000000"' in text


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
def test_times_of_all_years_are_exported(tmp_path: Path, format_: str) -> None:
    written = ["+12345-06-07T01:02:03.000000Z", "-0044-03-15T12:00:00.000000", "+12345-06-07"]
    words = [word for pair in zip("tnd", written, strict=True) for word in pair]
    write_snapshot(tmp_path, [Stream(b"s", {(1, 0): [word.encode() for word in words]})])
    output = tmp_path / "out"
    schema = ("--schema", "t timestamp, n timestamp_ntz, d date", "--mode", "FAILFAST")
    assert export(tmp_path, output, *schema, format_=format_).exit_code == 0
    assert all(f'"{text}"' in output.read_text() for text in written)


def test_csv_keeps_quotes_newlines_and_nulls_apart(motley: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    schema = SCHEMA + ", q string"
    assert export(motley, output, "--schema", schema, format_="csv").exit_code == 0
    with output.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert json.loads(second["fields"]) == {"q": 'a "b",\nc', "": ""}
    assert second["q"] == 'a "b",\nc'
    assert [first[name] for name in ("key", "seq", "price", "raw", "q")] == [
        "ä", str(2**64 - 1), "2.50", base64.b64encode(b"\xff\x00").decode(), ""
    ]  # fmt: skip
    assert datetime.fromisoformat(second["ts"]).astimezone(UTC).microsecond == 2000


def test_standard_output_accepts_a_file_too(three: Path) -> None:
    words = ["export", str(three), "--format", "jsonl", "--key", "s:1", "--output", "-"]
    done = CliRunner().invoke(main, words)
    assert [json.loads(line)["fields"]["n"] for line in done.output.splitlines()] == [
        str(n) for n in range(500)
    ]


# ---------------------------------------------------------------- schemas

COLUMNS = [
    ", ".join(f"{name} {type_}" for name, type_ in PARTS.items()),
    "a tinyint, b smallint, c INT, d long, e float, f double, g boolean, h date, i timestamp_ntz",
    "`odd name` string, `tick``ed` binary, a decimal( 10 , 2 ), b decimal, c dec(5)",
    "fields array< struct<name: string, value: binary> >, ms decimal(20,0)",
    "fields map<string, binary>, key binary",
]


@pytest.mark.parametrize("ddl", COLUMNS)
def test_a_schema_is_understood_as_by_spark(ddl: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("spark")  # its parser is in the JVM
    assert arrow_from_ddl(ddl).equals(arrow_schema(StructType.fromDDL(ddl)))


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("a text", "column 'a': 'text' is not a valid column type"),
        ("a decimal(50,2)", "column 'a'"),
        ("a map<string,int>", "column 'a'"),
        ("a int, a string", "'a' appears twice"),
        ("a int,, b int", "a name is missing"),
    ],
)
def test_a_schema_that_is_none_is_refused(ddl: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        arrow_from_ddl(ddl)


# ---------------------------------------------------------------- what cannot be done


def test_an_impossible_export_is_one_sentence_and_leaves_no_file(
    three: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.parquet"
    assert "is not a data directory" in refusal(tmp_path, output)
    assert "--from is 'monday'" in refusal(three, output, "--from", "monday")
    assert "column 'ts' cannot be" in refusal(three, output, "--schema", "ts string")
    failfast = ("--schema", "key, n boolean", "--mode", "failfast")
    bad = refusal(three, output, *failfast)
    assert bad.startswith("millstream: stream 's:0', entry 1700000000002-0, column 'n'")
    advice = "start the server (millstream serve), or check the"
    assert refusal("redis://127.0.0.1:1", output) == (
        "millstream: the server at redis://127.0.0.1:1 cannot be reached: Connection refused;"
        f" {advice} host and the port"
    )
    no_socket = refusal(f"unix://{tmp_path}/none.sock", output)
    assert no_socket.endswith(f"No such file or directory; {advice} path of its socket")
    unknown = refusal("redis://127.0.0.1:1?colour=red", output)
    assert unknown.endswith("127.0.0.1:1 is invalid: unknown option colour")
    missing = tmp_path / "missing" / "out.parquet"
    done = export(three, missing)
    assert (done.exit_code, done.output) == (
        1,
        f"millstream: {missing}: No such file or directory\n",
    )


@pytest.mark.parametrize("output", ["out.jsonl", "-"])
def test_an_export_without_entries_is_reported(
    three: Path, server: Server, tmp_path: Path, output: str
) -> None:
    """It succeeds: the file is complete, and has no rows."""
    name = output if output == "-" else str(tmp_path / output)

    def errors_of(source: object, *arguments: str) -> str:
        words = ["export", str(source), "--format", "jsonl", "--output", name, *arguments]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0
        assert done.stdout == ("" if output == "-" else f"{name}: 0 rows\n")
        return done.stderr

    none = "millstream: no entries were exported:"
    assert errors_of(three, "--key", "x*", "--to", "5-0") == (
        f"{none} the database has none in the newest snapshot that match --key 'x*' --to '5-0'\n"
    )
    assert errors_of(three, "--db", "9") == f"{none} database 9 has none in the newest snapshot\n"
    assert errors_of(url(server)) == f"{none} the database has none\n"
    dropped = errors_of(three, "--schema", "key, n boolean", "--from", f"{T0 + 2}", "--mode",
                   "dropmalformed")  # fmt: skip
    assert dropped.endswith(f"match --from '{T0 + 2}', or --mode DROPMALFORMED dropped all rows\n")


def test_a_directory_is_no_output(three: Path, tmp_path: Path) -> None:
    for output in (str(tmp_path), "", "."):
        done = CliRunner().invoke(
            main, ["export", str(three), "--format", "csv", "--output", output]
        )
        assert (done.exit_code, "Is a directory" in done.output) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_refusals_write_nothing_to_standard_output(three: Path) -> None:
    words = ["export", str(three), "--format", "csv", "--from", "monday", "--output", "-"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (1, "")


def test_a_reader_that_has_enough_ends_the_export_without_a_word(three: Path) -> None:
    words = [sys.executable, "-m", "millstream", "export", three, "--format", "jsonl"]
    process = subprocess.Popen(
        [*words, "--output", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, b"")


def test_a_pipe_is_written_and_stays_a_pipe(three: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    assert export(three, pipe, format_="jsonl").exit_code == 0
    lines, _ = reader.communicate(timeout=60)
    assert len(lines.splitlines()) == 1500
    assert pipe.is_fifo()


def test_an_existing_file_keeps_its_permissions_and_links(three: Path, tmp_path: Path) -> None:
    output, link = tmp_path / "out.csv", tmp_path / "latest.csv"
    output.write_text("before")
    output.chmod(0o600)
    link.symlink_to(output)
    assert export(three, link, format_="csv").exit_code == 0
    assert len(output.read_text().splitlines()) == 1501
    assert output.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink()


def test_damage_is_named_and_the_file_that_was_there_stays(tmp_path: Path) -> None:
    base = write_snapshot(tmp_path / "data", [Stream(b"s", entries(500), block_entries=10)], 50)
    flip(base, 400)
    output = tmp_path / "out.jsonl"
    output.write_text("before\n")
    line = refusal(tmp_path / "data", output, format_="jsonl")
    assert f"{base.name} is damaged at offset" in line
    assert "holds entries of stream 's'" in line
    assert output.read_text() == "before\n"


def without(*modules: str) -> str:
    """A program that runs `millstream` where these modules are not installed."""
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in modules)
    return f"import sys; {hidden}from millstream.__main__ import main; main()"


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_spark_need_not_be_installed(three: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    program = without("pyspark", "pandas")
    done = run(program, "export", three, "--format", "parquet", "--output", output)
    assert (done.returncode, done.stderr) == (0, "")
    assert parquet.read_metadata(output).num_rows == 1500


def test_without_pyarrow_the_error_names_the_package_to_install(three: Path) -> None:
    done = run(without("pyarrow"), "export", three, "--format", "parquet")
    assert done.returncode == 1
    assert "pip install millstream[spark]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("ended", [signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_export_leaves_no_file(tmp_path: Path, ended: signal.Signals) -> None:
    """The server runs and does not answer; the unfinished file exists until the end."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        words = ["export", address, "--format", "csv", "--output", str(tmp_path / "out.csv")]
        process = subprocess.Popen([sys.executable, "-m", "millstream", *words])
        try:
            wait_until(lambda: os.listdir(tmp_path), what="the unfinished file", deadline_s=60)
            process.send_signal(ended)
            assert process.wait(60) == 128 + ended
        finally:
            process.kill()
    assert os.listdir(tmp_path) == []


def test_a_file_without_a_name_is_named_after_the_directory(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["export", f"{three}/", "--format", "parquet"])
    assert done.exit_code == 0, done.output
    assert pa.OSFile(f"{three.name}.parquet").size() > 0
