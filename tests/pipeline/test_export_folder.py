"""`millstream export --into`: a folder of Parquet files has each entry once, and readers see only
complete files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from pyspark.sql import SparkSession
from tests.pipeline.direct import url
from tests.support.client import RawClient
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.__main__ import main
from millstream.pipeline import folder_export, range_reader, stream_counters
from millstream.pipeline.exported_folder import ExportedFolder, FolderError, folder_name, is_group
from millstream.pipeline.exporting import ExportRequest
from millstream.pipeline.folder_export import FolderExport, Round, follow
from millstream.pipeline.range_plan import DataLossError, Losses
from millstream.pipeline.server_connection import Unreachable

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMA = "key string, id string, ts timestamp, n bigint"
T0 = 1_700_000_000_000


def append(client: RawClient, key: str, first: int, end: int) -> None:
    client.pipeline([("XADD", key, f"{T0 + n}-0", "n", str(n)) for n in range(first, end)])


def export(server: Server, folder: Path, *arguments: str) -> Result:
    words = ["export", "--url", url(server), "--into", str(folder), "--schema", SCHEMA]
    return CliRunner().invoke(main, [*words, *arguments])


def done(server: Server, folder: Path, *arguments: str) -> dict[str, Any]:
    """The report of an export that succeeds."""
    result = export(server, folder, "--json", *arguments)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def refusal(result: Result) -> str:
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("millstream: ")
    return line


def parts(folder: Path, key: str) -> list[list[int]]:
    """The rows of a stream in each file that has some."""
    found = [
        [row["n"] for row in parquet.ParquetFile(path).read().to_pylist() if row["key"] == key]
        for path in sorted(folder.glob("*.parquet"))
    ]
    return [rows for rows in found if rows]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


# ------------------------------------------------------------------------------------ exactly once


def test_each_run_adds_the_new_entries(server: Server, client: RawClient, lake: Path) -> None:
    append(client, "a", 0, 3)
    append(client, "b", 0, 2)
    first = done(server, lake)
    assert first["files"] == ["part-00000001.parquet"]
    assert (first["streams"], first["rows"]) == (2, 5)
    assert first["bytes"] == (lake / "part-00000001.parquet").stat().st_size
    append(client, "a", 3, 7)
    append(client, "c", 0, 1)
    second = done(server, lake)
    assert second["files"] == ["part-00000002.parquet"]
    assert done(server, lake)["files"] == []
    assert parts(lake, "a") == [[0, 1, 2], [3, 4, 5, 6]]
    assert (parts(lake, "b"), parts(lake, "c")) == ([[0, 1]], [[0]])


def test_each_stream_can_have_its_folder(server: Server, client: RawClient, lake: Path) -> None:
    append(client, "a", 0, 3)
    append(client, "b", 0, 2)
    done(server, lake, "--by-key")
    append(client, "a", 3, 7)
    append(client, "c", 0, 1)
    second = done(server, lake)  # the folder has its layout
    assert second["files"] == ["key=a/part-00000002.parquet", "key=c/part-00000001.parquet"]
    (first,) = (lake / "key=b").iterdir()
    assert parquet.ParquetFile(first).read().column_names == ["id", "ts", "n"]
    rows = [row for row in parquet.read_table(lake).to_pylist() if row["key"] == "a"]
    assert sorted(row["n"] for row in rows) == [*range(7)]


@pytest.mark.parametrize("layout", [[], ["--by-key"]])
def test_a_kill_at_any_step_leaves_no_gap_and_no_duplicate(
    server: Server, lake: Path, layout: list[str]
) -> None:
    words = [sys.executable, "-m", "tests.pipeline.killed_exports", str(server.port), str(lake)]
    ended = subprocess.run([*words, *layout], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    made = json.loads(ended.stdout.splitlines()[-1])
    assert made["rows"] == made["appended"]
    assert made["kills"] > 6
    hidden = [name for name in made["files"] if "part-" in name and not name.endswith(".parquet")]
    assert hidden == []


def test_files_end_at_the_size(
    server: Server, client: RawClient, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of a stream; the next run continues after the last of them."""
    monkeypatch.setattr(range_reader, "BYTES_PER_REQUEST", 64 << 10)
    texts = [os.urandom(300).hex() for _ in range(3000)]
    client.pipeline([("XADD", "a", f"{T0 + n}-0", "n", n, "t", t) for n, t in enumerate(texts)])
    words = ("--file-size", "1", "--schema", f"{SCHEMA}, t string")
    report = done(server, lake, *words)
    found = parts(lake, "a")
    assert len(found) == len(report["files"]) > 1
    assert [n for part in found for n in part] == list(range(3000))
    sizes = [(lake / name).stat().st_size for name in report["files"]]
    assert max(sizes) < (1 << 20) + 4 * (64 << 10)


def test_a_stop_finishes_the_file(server: Server, lake: Path, client: RawClient) -> None:
    append(client, "a", 0, 5)
    words = ["export", url(server), "--into", str(lake), "--schema", SCHEMA]
    process = subprocess.Popen(
        [sys.executable, "-m", "millstream", *words, "--follow", "--file-age", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: parts(lake, "a"), what="the first file", deadline_s=60)
        append(client, "a", 5, 8)
        wait_until(lambda: parts(lake, "a")[-1][-1] == 7, what="the next file", deadline_s=60)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert output.splitlines()[0] == f"{lake}: 1 file, 5 rows"
    assert [n for part in parts(lake, "a") for n in part] == list(range(8))


# ------------------------------------------------------------------------------------- lost entries


def test_evicted_entries_are_an_error_or_a_warning(
    server: Server, client: RawClient, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(client, "a", 0, 3)
    done(server, lake)
    append(client, "a", 3, 10)
    client.call("XTRIM", "a", "MAXLEN", "5")
    lost = f"2 entries of 'a' after {T0 + 2}-0 were evicted before they were read"
    for _ in range(2):
        line = refusal(export(server, lake))
        assert f"{lost}. To continue with the remaining entries, use --skip-lost" in line
    assert parts(lake, "a") == [[0, 1, 2]]
    done(server, lake, "--skip-lost")
    assert lost in caplog.text
    assert parts(lake, "a") == [[0, 1, 2], [5, 6, 7, 8, 9]]
    assert done(server, lake)["rows"] == 0


def test_entries_evicted_before_the_first_run_are_no_loss(
    server: Server, client: RawClient, lake: Path
) -> None:
    """But those of a stream that is created later are."""
    append(client, "a", 0, 5)
    client.call("XTRIM", "a", "MAXLEN", "2")
    done(server, lake, "--key", "[ab]")
    assert parts(lake, "a") == [[3, 4]]
    append(client, "b", 0, 5)
    client.call("XTRIM", "b", "MAXLEN", "2")
    assert "3 entries of 'b' after 0-0" in refusal(export(server, lake, "--key", "[ab]"))
    assert done(server, lake, "--key", "?")["rows"] == 2  # other patterns are a first run


def test_a_stream_that_was_replaced_is_reported(
    server: Server, client: RawClient, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(client, "a", 0, 3)
    append(client, "b", 0, 3)
    done(server, lake)
    client.call("DEL", "a", "b")
    append(client, "a", 0, 2)
    assert "the stream 'a' was deleted and created again" in refusal(export(server, lake))
    assert done(server, lake, "--skip-lost")["rows"] == 2
    assert "the stream 'b' was deleted" in caplog.text
    assert parts(lake, "a") == [[0, 1, 2], [0, 1]]
    append(client, "a", 2, 4)
    assert done(server, lake, "--key", "a")["rows"] == 2


@pytest.mark.parametrize("layout", [[], ["--by-key"]])
def test_a_stream_that_was_empty_in_the_first_run_is_no_loss(
    server: Server, client: RawClient, lake: Path, layout: list[str]
) -> None:
    """A round that writes no file moves positions, too."""
    append(client, "a", 0, 5)
    client.call("XTRIM", "a", "MAXLEN", "0")
    assert done(server, lake, *layout)["files"] == []
    append(client, "a", 5, 7)
    assert done(server, lake)["rows"] == 2
    assert done(server, lake)["files"] == []


def test_a_deleted_stream_is_reported_once_when_it_is_skipped(
    server: Server, client: RawClient, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(client, "a", 0, 3)
    append(client, "b", 0, 3)
    done(server, lake, "--by-key")
    client.call("DEL", "b")
    refusal(export(server, lake))
    done(server, lake, "--skip-lost")
    assert "the stream 'b' was deleted" in caplog.text
    done(server, lake)
    append(client, "b", 3, 5)
    assert done(server, lake)["files"] == ["key=b/part-00000002.parquet"]


def test_a_removed_folder_of_a_stream_is_exported_again(
    server: Server, client: RawClient, lake: Path
) -> None:
    append(client, "a", 0, 3)
    append(client, "b", 0, 3)
    done(server, lake, "--by-key")
    shutil.rmtree(lake / "key=a")
    assert done(server, lake)["files"] == ["key=a/part-00000001.parquet"]


@pytest.mark.parametrize("is_fatal", [True, False])
def test_entries_evicted_while_a_file_is_written_are_reported(
    server: Server,
    client: RawClient,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_fatal: bool,
) -> None:
    """The file ends after its first page, and what follows is evicted meanwhile."""
    monkeypatch.setattr(range_reader, "BYTES_PER_REQUEST", 1)

    def late(*arguments: Any) -> Any:
        client.call("XTRIM", "a", "MAXLEN", "100")
        return stream_counters.seek(*arguments)

    monkeypatch.setattr(folder_export, "seek", late)
    append(client, "a", 0, 2000)
    with closing(ExportedFolder(lake, SCHEMA)) as folder:
        work = FolderExport(ExportRequest(url(server), "parquet"), folder, Losses(is_fatal), 1)
        with work.address.open() as connection:
            if is_fatal:
                with pytest.raises(DataLossError, match="of 'a' after"):
                    work.round(connection)
                assert parts(lake, "a") == []
                return
            work.round(connection)
            assert work.round(connection).files == []
    rows = [n for part in parts(lake, "a") for n in part]
    assert rows == sorted(set(rows))
    assert rows[0] == 0
    assert rows[-100:] == list(range(1900, 2000))
    assert len(rows) < 2000
    assert "were evicted before they were read" in caplog.text
    assert done(server, lake)["rows"] == 0


# ------------------------------------------------------------------------------------- the folder


def test_bad_values_are_as_in_the_source(server: Server, client: RawClient, lake: Path) -> None:
    append(client, "a", 0, 1)
    client.call("XADD", "a", f"{T0 + 1}-0", "n", "many")
    client.call("XADD", "a", f"{T0 + 2}-0", "m", "1")
    line = refusal(export(server, lake, "--mode", "FAILFAST"))
    assert f"stream 'a', entry {T0 + 1}-0, column 'n': 'many' cannot be cast to bigint" in line
    assert parts(lake, "a") == []
    assert done(server, lake, "--mode", "DROPMALFORMED")["rows"] == 2
    client.call("XADD", "a", f"{T0 + 3}-0", "n", "many")
    assert done(server, lake, "--mode", "DROPMALFORMED")["rows"] == 0
    client.call("XADD", "a", f"{T0 + 4}-0", "n", "many")
    assert done(server, lake)["rows"] == 1
    assert parts(lake, "a") == [[0, None], [None]]
    assert parquet.read_metadata(lake / "part-00000002.parquet").num_rows == 0


def test_a_time_is_the_beginning_of_streams_without_files(
    server: Server, client: RawClient, lake: Path
) -> None:
    append(client, "a", 0, 10)
    done(server, lake, "--from", f"{T0 + 6}")
    done(server, lake, "--from", f"{T0 + 2}")
    assert parts(lake, "a") == [[6, 7, 8, 9]]


def test_another_folder_is_refused(server: Server, client: RawClient, lake: Path) -> None:
    append(client, "a", 0, 2)
    lake.mkdir()
    (lake / "letter.txt").write_text("")
    assert "has files, and no _millstream.json of an export" in refusal(export(server, lake))
    assert os.listdir(lake) == ["letter.txt"]
    (lake / "letter.txt").unlink()
    done(server, lake)
    other = refusal(export(server, lake, "--schema", "id string, n double"))
    assert f"has files with the schema {SCHEMA!r}" in other
    assert "has no folders of streams" in refusal(export(server, lake, "--by-key"))
    with closing(ExportedFolder(lake, None)) as folder:
        assert folder.schema.names == ["key", "id", "ts", "n"]
        assert "another export is writing into" in refusal(export(server, lake))
    part = lake / "part-00000001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    assert "has no positions of an export: it is damaged" in refusal(export(server, lake))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--follow"], "--follow needs --into"),
        (["--into", "x", "--to", "5"], "--to and --into exclude each other"),
        (["--into", "x", "--format", "csv"], "--format csv and --into exclude each other"),
        (["--into", "x", "--file-age", "5"], "--file-age needs --follow"),
        (["redis://x", "--url", "redis://y", "--format", "csv"], "exclude each other"),
        ([], "Missing option '--format'"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(words: list[str], error: str) -> None:
    result = CliRunner().invoke(main, ["export", *words])
    assert result.exit_code == 2
    assert error in result.stderr


WILD = ["a/b=1", "ä %C3", "7", "01", "", ".x", "{'*'}[\\]^\x1f\x7f?"]


def test_keys_become_names_of_folders() -> None:
    names = [folder_name(key.encode()) for key in WILD]
    assert names[:5] == ["key=a%2Fb%3D1", "key=ä %25C3", "key=7", "key=01",
                         "key=__HIVE_DEFAULT_PARTITION__"]  # fmt: skip
    assert len(set(names)) == len(WILD)
    assert not any("/" in name for name in names)
    assert not is_group("_millstream.json")
    with pytest.raises(FolderError, match="not UTF-8"):
        folder_name(b"\xff")
    with pytest.raises(FolderError, match="stands for null"):
        folder_name(b"__HIVE_DEFAULT_PARTITION__")
    with pytest.raises(FolderError, match="too long"):
        folder_name(b"x" * 252)


def test_a_server_that_is_away_is_asked_again() -> None:
    """With a fake clock: the rounds are counted by the waits."""
    ways: Iterator[Callable[[], Round]] = iter([lambda: away(), lambda: away(), lambda: Round(3)])

    def away() -> Round:
        raise Unreachable("the server did not answer")

    class Export:
        def round(self, _: object) -> Round:
            return next(ways)()

    waits: list[float] = []
    reports: list[Round] = []
    warnings: list[str] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    stand_in: Any = Export()
    nothing: Any = None
    follow(stand_in, nothing, 60, wait, reports.append, warnings.append)
    assert reports == [Round(3)]
    assert warnings == ["the server did not answer; trying again"]
    assert all(0 <= wait_s <= 60 for wait_s in waits)


# ------------------------------------------------------------------------------------------- Spark


COLUMNS = f"{SCHEMA}, d decimal(10,2), t date, seq decimal(20,0), fields map<string,string>"


@pytest.fixture
def wild(server: Server, client: RawClient) -> None:
    """Streams with keys that names of folders cannot have, and values of all kinds."""
    for number, key in enumerate(WILD):
        append(client, key, 100 * number, 100 * number + 50)
    client.call("XADD", "7", f"{T0 + 10_000}-0", "n", "many", "t", "+12345-06-07")
    client.call("XADD", "7", f"{2**63}-0", "d", "2.5")


def texts(frame: Any) -> list[str]:
    return sorted(frame.selectExpr("to_json(struct(*))").toPandas().iloc[:, 0])


def of_source(spark: SparkSession, server: Server) -> Any:
    reader = spark.read.format("millstream").schema(COLUMNS).option("server", url(server))
    return reader.option("subscribePattern", "*").load()


@pytest.mark.usefixtures("wild")
def test_spark_reads_the_folder_and_prunes(server: Server, lake: Path, spark: SparkSession) -> None:
    """The rows and the types are those of the data source. Filters become filters of row groups."""
    done(server, lake, "--schema", COLUMNS)
    frame = spark.read.parquet(str(lake))
    wanted = of_source(spark, server)
    assert frame.schema == wanted.schema
    assert texts(frame) == texts(wanted)
    late = frame.where(f"key = 'a/b=1' and ts >= timestamp_millis({T0 + 40})")
    assert late.count() == 10
    plan = late._jdf.queryExecution().toString()
    assert "PushedFilters: [IsNotNull(key), IsNotNull(ts), EqualTo(key,a/b=1), Greater" in plan
    group = parquet.read_metadata(lake / "part-00000001.parquet").row_group(0)
    for number, name in enumerate(("key", "id", "ts")):
        column = group.column(number)
        assert column.path_in_schema == name
        assert column.statistics.has_min_max
        assert column.has_column_index
        assert column.has_offset_index


@pytest.mark.usefixtures("wild")
def test_spark_reads_folders_of_streams(server: Server, lake: Path, spark: SparkSession) -> None:
    done(server, lake, "--schema", COLUMNS, "--by-key")
    frame = spark.read.schema(COLUMNS).parquet(str(lake))
    wanted = of_source(spark, server)
    # Spark reads the folder of the key "" as null, as it does with its own.
    assert texts(frame.fillna("", ["key"]).select(wanted.columns)) == texts(wanted)
    late = frame.where(f"key = 'a/b=1' and ts >= timestamp_millis({T0 + 40})")
    assert late.count() == 10
    plan = late._jdf.queryExecution().toString()
    assert "PartitionFilters: [isnotnull(key" in plan
    assert "PushedFilters: [IsNotNull(ts), GreaterThanOrEqual(ts" in plan
