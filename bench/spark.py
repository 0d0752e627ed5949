"""The Spark rows: `python -m bench.spark [--quick]`.

The figures are entries that Spark reads or writes per second of CPU time of all its processes: the
JVM, the Python workers and the driver. CPU time is used because it is the cost of a cluster. The
data source `millstream` is compared with native Parquet with the same rows, with a source that has
its Arrow batches ready, one that passes tuples, and XRANGE paging with redis-py. All lanes of a row
that read the same streams must have the same result. Slow lanes read only some of the streams,
which the rates take into account.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import report
from bench.__main__ import RESULTS, TOP, command, leave
from bench.figures import BenchError, Spread
from bench.harness import JOURNAL_OFF
from bench.server import Server, cpu_s_between, family_cpu_ticks, pick_cores
from bench.spark_data import Shape, fill
from bench.spark_sinks import IOT, MANY_STREAMS, NARROW, WIDE, DiscardSource
from bench.spark_sources import BatchesSource, TuplesSource, XrangeSource, write_batches
from bench.wire import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

OURS, PARQUET, TUPLES, XRANGE = "millstream", "parquet", "tuples", "xrange"
BATCHES = "batches"
FOLDER = "export"
DISCARD, SINK = "discard", "sink"
SMALL_STREAMS, LARGE_STREAMS = "small streams", "large streams"

FULL = (Shape(64, 100_000), Shape(20_000, 20), Shape(400, 1_000))
WRITTEN_ROWS = 4_000_000
QUICK = (Shape(64, 10_000), Shape(2_000, 20), Shape(40, 1_000))
SAMPLE_STREAMS = 4
ROUNDS = 5
WARM_UP_ROUNDS = 2

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


Answer = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Lane:
    """One way to process `entries` entries: the measured query, and a query whose result must be
    the same in every lane. `clear` undoes the query and is not measured."""

    entries: int
    frame: Callable[[], DataFrame]
    query: Callable[[DataFrame], object]
    check: Callable[[DataFrame], Answer]
    clear: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Row:
    """A row of the table. Its goals apply to its first lane: `rate` is the minimum in million
    entries per CPU second, `ratio` the minimum ratio to the rate of the lane `compared`, by default
    the last one."""

    name: str
    title: str
    lanes: Callable[[Scene], dict[str, Lane]]
    rate: float | None = None
    ratio: float | None = None
    same_streams: bool = True
    compared: str = ""


@dataclass(frozen=True)
class Outcome:
    """The rates of each lane, in entries per CPU second, one per round."""

    row: Row
    rates: Mapping[str, Sequence[float]]

    def rate(self, lane: str) -> Spread:
        return Spread.of(self.rates[lane])

    def ratio(self, lane: str) -> Spread:
        """The first lane's rate divided by another's, paired by round."""
        pairs = zip(next(iter(self.rates.values())), self.rates[lane], strict=True)
        return Spread.of([first / other for first, other in pairs])

    def meets_goal(self) -> bool | None:
        """True if the medians reach the goals; None if there is no goal."""
        first = next(iter(self.rates))
        compared = self.row.compared or list(self.rates)[-1]
        checks = []
        if self.row.rate is not None:
            checks.append(self.rate(first).median >= self.row.rate * 1e6)
        if self.row.ratio is not None:
            checks.append(self.ratio(compared).median >= self.row.ratio)
        return all(checks) if checks else None


class Scene:
    """The setup of the rows: Spark, the filled servers, and the same data as Parquet."""

    def __init__(
        self, spark: SparkSession, servers: dict[str, Server], shapes: Sequence[Shape], lake: Path
    ) -> None:
        self.spark = spark
        self.servers = servers
        self.shapes = dict(zip((OURS, SMALL_STREAMS, LARGE_STREAMS), shapes, strict=True))
        self.written_rows = WRITTEN_ROWS * shapes[0].entries_each // FULL[0].entries_each
        self._lake = lake
        self._jvm_pid: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    @property
    def entries(self) -> int:
        return self.shapes[OURS].entries

    @property
    def sample(self) -> Shape:
        """The streams that the slow lanes read."""
        return Shape(SAMPLE_STREAMS, self.shapes[OURS].entries_each)

    def snapshot(self, schema: str | None = None, which: str = OURS) -> DataFrame:
        return self._source("millstream", schema).load(str(self.servers[which].data_directory))

    def live(self) -> DataFrame:
        address = f"redis://127.0.0.1:{self.servers[OURS].port}"
        return self._source("millstream").options(server=address, subscribePattern="*").load()

    def rows(self, source: str) -> DataFrame:
        """The sample, through one of the sources that pass tuples."""
        server = self.servers[OURS]
        reader = self._source(source).options(
            subscribe=",".join(self.sample.keys), port=str(server.port)
        )
        return reader.load(str(server.data_directory))

    def parquet(self, schema: str | None = None) -> DataFrame:
        """The same rows as Parquet, written at the first call."""
        path = self._made_of(schema, "parquet")
        if not path.exists():
            self.snapshot(schema).write.parquet(str(path))
        return self.spark.read.parquet(str(path))

    def folder(self, schema: str) -> DataFrame:
        """The folder that `millstream export` makes, exported at the first call. Spark reads it."""
        path = self._made_of(schema, FOLDER)
        if not path.exists():
            address = f"redis://127.0.0.1:{self.servers[OURS].port}"
            words = ["export", address, "--into", str(path), "--schema", schema]
            subprocess.run([sys.executable, "-m", "millstream", *words], check=True, cwd=TOP,
                           stdout=subprocess.DEVNULL)  # fmt: skip
        return self.spark.read.parquet(str(path))

    def batches(self, schema: str | None = None) -> DataFrame:
        """The Arrow batches of the snapshot, made at the first call."""
        folder = self._made_of(schema, BATCHES)
        if not folder.exists():
            write_batches(self.servers[OURS].data_directory, self.snapshot(schema).schema, folder)
        return self._source(BATCHES, schema).load(str(folder))

    def made(self, columns: Sequence[str], rows: int) -> DataFrame:
        """Rows to write, in two partitions."""
        return self.spark.range(0, rows, 1, 2).selectExpr(*columns)

    def streamed(self, columns: Sequence[str], rows: int) -> DataFrame:
        """The same rows as a stream of two files."""
        path = self._made_of((*columns, rows), "streamed.parquet")
        if not path.exists():
            self.made(columns, rows).write.parquet(str(path))
        schema = self.spark.read.parquet(str(path)).schema
        return self.spark.readStream.schema(schema).parquet(str(path))

    def write(self, sink: str, frame: DataFrame) -> None:
        """Write all of a frame to a sink, and empty the server after it."""
        options = {"server": f"redis://127.0.0.1:{self.servers[SINK].port}"}
        if "key" not in frame.columns:
            options["key"] = "written"
        if frame.isStreaming:
            with tempfile.TemporaryDirectory(dir=self._lake) as checkpoint:
                writer = frame.writeStream.format(sink).options(**options)
                query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
                query.start().awaitTermination()
        else:
            frame.write.format(sink).mode("append").options(**options).save()

    def empty(self) -> int:
        """Empty the server that is written to; return its number of entries."""
        with Client(self.servers[SINK].port) as client:
            keys = client.call("KEYS", "*")
            entries: int = sum(client.call("XLEN", key) for key in keys)
            client.call("FLUSHALL")
        return entries

    def _made_of(self, what: Hashable, kind: str) -> Path:
        """The folder to which data that several rounds read is written at first."""
        return self._lake / f"{abs(hash(what))}.{kind}"

    def _source(self, name: str, schema: str | None = None) -> DataFrameReader:
        reader = self.spark.read.format(name)
        return reader if schema is None else reader.schema(schema)

    def cpu_s(self, work: Callable[[], object]) -> float:
        """CPU time of some work in the JVM, its Python workers, and this process."""
        before, before_s = family_cpu_ticks(self._jvm_pid), time.process_time()
        work()
        own_s = time.process_time() - before_s
        return cpu_s_between(before, family_cpu_ticks(self._jvm_pid)) + own_s


# ------------------------------------------------------------------------------------- the rows


def touch_all(frame: DataFrame) -> None:
    """Make Spark create rows of all columns and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def digest(frame: DataFrame) -> Answer:
    """A digest of all columns of all rows, to compare frames."""
    return answer(
        frame.selectExpr(
            "count(*)",
            "bit_xor(xxhash64(key, id, ts, to_json(fields)))",
        )
    )


def group(frame: DataFrame) -> Answer:
    return answer(
        frame.groupBy("sensor")
        .agg({"temperature": "sum"})
        .selectExpr("sensor", "round(`sum(temperature)`, 1)")
        .orderBy("sensor")
    )


def count(frame: DataFrame) -> Answer:
    return [(frame.count(),)]


def answer(frame: DataFrame) -> Answer:
    return [tuple(row) for row in frame.collect()]


TWO_COLUMNS = "sensor string, temperature double"
DEFAULT_COLUMNS = "key string, id string, ts timestamp, fields map<string,string>"
ALL_COLUMNS = f"key string, id string, ts timestamp, {TWO_COLUMNS}, humidity int, status string"


def touch_all_lanes(scene: Scene) -> dict[str, Lane]:
    return {
        OURS: whole(scene.entries, scene.snapshot),
        BATCHES: whole(scene.entries, scene.batches),
        PARQUET: whole(scene.entries, scene.parquet),
        TUPLES: whole(scene.sample.entries, lambda: scene.rows(TUPLES)),
        XRANGE: whole(scene.sample.entries, lambda: scene.rows(XRANGE)),
    }


def group_lanes(scene: Scene) -> dict[str, Lane]:
    return {
        OURS: Lane(scene.entries, lambda: scene.snapshot(TWO_COLUMNS), group, group),
        PARQUET: Lane(scene.entries, lambda: scene.parquet(TWO_COLUMNS), group, group),
    }


def two_columns_lanes(scene: Scene) -> dict[str, Lane]:
    """The same schema, into the sink `noop`."""
    return {
        OURS: Lane(scene.entries, lambda: scene.snapshot(TWO_COLUMNS), touch_all, group),
        BATCHES: Lane(scene.entries, lambda: scene.batches(TWO_COLUMNS), touch_all, group),
        PARQUET: Lane(scene.entries, lambda: scene.parquet(TWO_COLUMNS), touch_all, group),
    }


def export_lanes(scene: Scene) -> dict[str, Lane]:
    """Spark without millstream: on the exported folder, and on Parquet that Spark wrote."""
    return {
        FOLDER: whole(scene.entries, lambda: scene.folder(DEFAULT_COLUMNS)),
        PARQUET: whole(scene.entries, scene.parquet),
    }


def export_columns_lanes(scene: Scene) -> dict[str, Lane]:
    """The exported folder has more columns, which Spark does not read."""
    return {
        FOLDER: Lane(
            scene.entries,
            lambda: scene.folder(ALL_COLUMNS).select("sensor", "temperature"),
            touch_all,
            group,
        ),
        PARQUET: Lane(scene.entries, lambda: scene.parquet(TWO_COLUMNS), touch_all, group),
    }


def count_lanes(scene: Scene) -> dict[str, Lane]:
    return {OURS: Lane(scene.entries, lambda: scene.snapshot("key string"), count, count)}


def small_streams_lanes(scene: Scene) -> dict[str, Lane]:
    return {
        which: whole(scene.shapes[which].entries, partial(scene.snapshot, which=which))
        for which in (SMALL_STREAMS, LARGE_STREAMS)
    }


def small_group_lanes(scene: Scene) -> dict[str, Lane]:
    return {
        which: Lane(
            scene.shapes[which].entries, partial(scene.snapshot, TWO_COLUMNS, which), group, group
        )
        for which in (SMALL_STREAMS, LARGE_STREAMS)
    }


def live_lanes(scene: Scene) -> dict[str, Lane]:
    return {
        OURS: whole(scene.entries, scene.live),
        XRANGE: whole(scene.sample.entries, lambda: scene.rows(XRANGE)),
    }


def sink_lanes(columns: Sequence[str], scene: Scene, streams: bool = False) -> dict[str, Lane]:
    """Writing to a server, and to a sink that discards the rows."""
    rows = scene.written_rows // (4 if columns is WIDE else 1)
    frame = partial(scene.streamed if streams else scene.made, columns, rows)

    def check(frame: DataFrame) -> Answer:
        scene.empty()
        scene.write(OURS, frame)
        return [(scene.empty(),)]

    return {
        OURS: Lane(rows, frame, partial(scene.write, OURS), check, scene.empty),
        DISCARD: Lane(rows, frame, partial(scene.write, DISCARD), lambda _: [(rows,)]),
    }


def whole(entries: int, frame: Callable[[], DataFrame]) -> Lane:
    return Lane(entries, frame, touch_all, digest)


ROWS = (
    Row("touch-all", "all of every entry, fields as a map", touch_all_lanes, rate=1.5, ratio=0.75,
        compared=PARQUET),
    Row("two-columns", "2 columns of every entry", two_columns_lanes, ratio=0.5),
    Row("export", "all of every entry, from a folder", export_lanes, ratio=0.8),
    Row("export-columns", "2 columns, from a folder", export_columns_lanes, ratio=0.6),
    Row("group", "groupBy, schema of 2 columns", group_lanes, rate=3.5),
    Row("count", 'count() with .schema("key string")', count_lanes, rate=5.0),
    Row("small", "small streams against large ones", small_streams_lanes, None, 1 / 2, False),
    Row("small-group", "the same, schema of 2 columns", small_group_lanes, None, 1 / 2, False),
    Row("live", "all of every entry, from the server", live_lanes, ratio=10.0),
    Row("sink", "written to one stream, 2 columns", partial(sink_lanes, NARROW), rate=0.5),
    Row("sink-iot", "the same, 5 columns", partial(sink_lanes, IOT), rate=0.5),
    Row("sink-wide", "the same, 20 columns", partial(sink_lanes, WIDE), ratio=0.5),
    Row("sink-keys", "to 400 streams, 5 columns", partial(sink_lanes, MANY_STREAMS), rate=0.5),
    Row("sink-stream", "by a streaming query, 5 columns", partial(sink_lanes, IOT, streams=True),
        rate=0.5),
)  # fmt: skip


# ------------------------------------------------------------------------------------- measuring


def measured(scene: Scene, row: Row, rounds: int) -> Outcome:
    """Measure a row: the lanes alternate; the first rounds warm up the JVM and do not count."""
    lanes = row.lanes(scene)
    check_same(row, lanes)
    rates: dict[str, list[float]] = {name: [] for name in lanes}
    for number in range(WARM_UP_ROUNDS + rounds):
        for name, lane in lanes.items():
            spent_s = scene.cpu_s(partial(ask, lane))
            lane.clear()
            if number >= WARM_UP_ROUNDS:
                rates[name].append(lane.entries / spent_s)
    return Outcome(row, rates)


def ask(lane: Lane) -> None:
    lane.query(lane.frame())


def check_same(row: Row, lanes: Mapping[str, Lane]) -> None:
    """BenchError unless the lanes that read the same streams have the same result."""
    answers: dict[int, Answer] = {}
    for name, lane in lanes.items():
        found = lane.check(lane.frame())
        if row.same_streams and found != answers.setdefault(lane.entries, found):
            raise BenchError(f"{row.name}: {name} found {found[:3]}, which others did not")
        if len(found) == 1 and found[0][0] != lane.entries:
            raise BenchError(f"{row.name}: {name} read {found[0][0]} of {lane.entries} entries")


@contextmanager
def staged(
    server_command: list[str], shapes: Sequence[Shape], names: Collection[str]
) -> Iterator[Scene]:
    """Servers, filled and saved if one of the rows reads them, and Spark. All are removed
    afterwards."""
    reads = any(not name.startswith(SINK) for name in names)
    core, _ = pick_cores()
    with ExitStack() as stack:
        lake = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        servers = {}
        for name, shape in zip((OURS, SMALL_STREAMS, LARGE_STREAMS), shapes, strict=True):
            servers[name] = Server(server_command, JOURNAL_OFF, core)
            stack.callback(servers[name].stop)
            if reads:
                fill(servers[name], shape)
        servers[SINK] = Server(server_command, JOURNAL_OFF, core)
        stack.callback(servers[SINK].stop)
        spark = start_spark()
        stack.callback(spark.stop)
        yield Scene(spark, servers, shapes, lake)


def start_spark() -> SparkSession:
    """Spark on two cores, with the sources to compare."""
    need = subprocess.run([TOP / "scripts" / "need.sh", "java"], capture_output=True, text=True)
    if need.returncode:
        raise BenchError(need.stderr.strip())
    os.environ["JAVA_HOME"] = need.stdout.strip()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The workers import bench.spark_sources.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for source in (BatchesSource, TuplesSource, XrangeSource, DiscardSource):
        spark.dataSource.register(source)
    return spark


# ------------------------------------------------------------------------------------- reporting

LAYOUT = "{:<36}{:<16}{:>16}{:>16}   {:<22}{}"


def table(outcome: Outcome) -> str:
    """A row's lanes, one line each: million entries per CPU second, and the first lane's ratio to
    it."""
    lines = []
    for number, lane in enumerate(outcome.rates):
        rate = outcome.rate(lane)
        ratio = outcome.ratio(lane)
        text = LAYOUT.format(
            outcome.row.title if number == 0 else "",
            lane,
            f"{rate.median / 1e6:.3f} M",
            f"({rate.low / 1e6:.2f}-{rate.high / 1e6:.2f})",
            f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" if number else "",
            goal_text(outcome) if number == 0 else "",
        )
        lines.append("  " + text.rstrip())
    return "\n".join(lines)


def goal_text(outcome: Outcome) -> str:
    row = outcome.row
    goals = []
    if row.rate is not None:
        goals.append(f">= {row.rate:g} M")
    if row.ratio is not None:
        goals.append(f"ratio >= {row.ratio:.2f}")
    return f"{', '.join(goals)}: {'yes' if outcome.meets_goal() else 'no'}"


def as_json(outcomes: Sequence[Outcome], options: argparse.Namespace) -> dict[str, Any]:
    """The whole run as JSON."""
    machine = report.machine_facts({})
    del machine["redis"]
    for name in ("pyspark", "pyarrow", "redis"):
        machine["redis-py" if name == "redis" else name] = importlib.metadata.version(name)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "method": {"quick": options.quick, "rounds": options.rounds, "unit": "entries/CPU second"},
        "rows": [row_json(outcome) for outcome in outcomes],
    }


def row_json(outcome: Outcome) -> dict[str, Any]:
    row = outcome.row
    return {
        "name": row.name,
        "title": row.title,
        "goal": {"rate": row.rate and row.rate * 1e6, "ratio": row.ratio},
        "meets_goal": outcome.meets_goal(),
        "lanes": {
            lane: {
                "rate": asdict(outcome.rate(lane)),
                "ratio": asdict(outcome.ratio(lane)),
                "rounds": list(rates),
            }
            for lane, rates in outcome.rates.items()
        },
    }


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of the entries")
    add("--rounds", type=int, default=ROUNDS, help=f"rounds that count ({ROUNDS})")
    add("--only", metavar="NAME,...", help=f"some of {', '.join(row.name for row in ROWS)}")
    add("--server", default=".venv/bin/millstream-server", metavar="CMD")
    add("--json", type=Path, default=RESULTS / "spark.json", metavar="PATH")
    options = parser.parse_args(words)
    names = {row.name for row in ROWS}
    options.only = options.only.split(",") if options.only else sorted(names)
    if options.rounds < 1 or not names.issuperset(options.only):
        parser.error("--rounds must be at least 1, and --only names rows")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Measure the rows, print the table and write the figures."""
    options = parse(words)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        shapes = QUICK if options.quick else FULL
        with staged(command(options.server), shapes, options.only) as scene:
            print("Million entries per second of CPU time, and the first line's rate against it")
            outcomes = []
            for row in ROWS:
                if row.name in options.only:
                    outcomes.append(measured(scene, row, options.rounds))
                    print(table(outcomes[-1]), flush=True)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    report.write_json(as_json(outcomes, options), options.json)
    print(f"written: {os.path.relpath(options.json)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
