"""The programs in docs/examples work as described, on little data and as a user runs them."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from tests.pipeline.direct import url
from tests.support.client import RawClient, as_list
from tests.support.server import Server
from tests.support.snapshots import Stream, write_snapshot

pytestmark = pytest.mark.timeout(300)

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
PER_DAY = 24 * 30

Run = Callable[..., None]


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs an example with these arguments; the session it asks for is the tests'."""

    def play(name: str, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return play


def test_sensors_to_hours_to_a_picture_and_to_a_lake(
    run: Run, durable_server: Server, tmp_path: Path
) -> None:
    with durable_server.client() as client:
        for _ in range(2):  # the second time appends nothing
            run("sensors.py", url(durable_server), "--days", 2)
        assert client.call("XLEN", "sensor:hall") == 2 * PER_DAY
        client.call("SAVE")
        client.call("TAPPEND", "sensor:hall", "temperature", "99")  # after the snapshot
    _check_hours(run, durable_server.directory, tmp_path)
    _check_lake(run, durable_server.directory, tmp_path / "lake")


def _check_hours(run: Run, directory: Path, tmp_path: Path) -> None:
    for _ in range(2):
        run("hourly.py", directory, tmp_path / "hours", "--keys", "sensor:*")
    rows = parquet.read_table(tmp_path / "hours").to_pylist()
    assert len(rows) == 4 * 48
    assert {row["entries"] for row in rows} == {30}
    assert all(row["least"] <= row["mean"] <= row["greatest"] < 40 for row in rows)
    run("picture.py", tmp_path / "hours", tmp_path / "hours.png")
    assert (tmp_path / "hours.png").read_bytes().startswith(b"\x89PNG")


def _check_lake(run: Run, directory: Path, lake: Path) -> None:
    for _ in range(2):
        run("lake.py", directory, lake, "--keys", "sensor:[hr]*")
    parts = sorted(str(path.relative_to(lake)) for path in lake.glob("*/*"))
    days = ("2026-11-09", "2026-11-10")
    assert parts == [f"key=sensor%3A{name}/day={day}" for name in ("hall", "roof") for day in days]
    rows = parquet.read_table(lake / parts[0]).to_pylist()
    assert len(rows) == PER_DAY
    assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)
    assert [pair["name"] for pair in rows[0]["fields"]] == ["temperature"]


def test_a_lake_keeps_evicted_entries_and_the_order_of_ids(run: Run, tmp_path: Path) -> None:
    keys = (b"007", b"sensor:7")  # one that could be read as a number

    def lake_of(hours: range, number: int) -> dict[str, list[str]]:
        """The ids in each file of the lake, after a snapshot with a dozen entries at each hour."""
        entries = {(hour * 3_600_000, seq): [b"n", b"1"] for hour in hours for seq in range(12)}
        write_snapshot(tmp_path / "data", [Stream(key, entries) for key in keys], number=number)
        run("lake.py", tmp_path / "data", tmp_path / "lake")
        return {
            path.name: parquet.read_table(path)["id"].to_pylist()
            for path in (tmp_path / "lake" / "key=007").iterdir()
        }

    def ids(hours: range) -> list[str]:
        return [f"{hour * 3_600_000}-{seq}" for hour in hours for seq in range(12)]

    second, third = "day=1970-01-02", "day=1970-01-03"
    assert lake_of(range(24, 60), 1) == {second: ids(range(24, 48)), third: ids(range(48, 60))}
    for number in (2, 3):
        lake = lake_of(range(31, 70), number)
        assert lake == {second: ids(range(24, 48)), third: ids(range(48, 70))}
    assert lake_of(range(75, 80), 4)[second] == ids(range(24, 48))


def test_alerts_are_written_once(
    run: Run, server: Server, client: RawClient, tmp_path: Path
) -> None:
    def append(values: range) -> None:
        client.pipeline([("TAPPEND", "sensor:7", "temperature", str(n)) for n in values])

    def watch() -> None:
        limit = ("--above", 30, "--available-now")
        run("alerts.py", url(server), tmp_path / "checkpoint", *limit)

    append(range(40))
    watch()
    assert client.call("XLEN", "alerts") == 9
    append(range(29, 33))
    watch()
    watch()
    alerts = as_list(client.call("XRANGE", "alerts", "-", "+"))
    values = [as_list(as_list(alert)[1])[-1] for alert in alerts]
    assert values == [f"{n}".encode() for n in [*range(31, 40), 31, 32]]
