"""Snapshots and exports at a URI: an object store that speaks S3."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from pyarrow.fs import FileSelector, FileSystem
from pyspark.sql import SparkSession
from tests.support.data_directory import flip
from tests.support.snapshots import Stream, write_snapshot

from millstream.__main__ import main
from millstream.errors import DataError
from millstream.pipeline.files import file_system
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.snapshot_reader import SnapshotReader

T0 = 1_700_000_000_000
SECRET = "open-sesame"


class Store:
    """A bucket. `uri` names what is in it, with all that is needed to get there."""

    def __init__(self, host: str, port: int) -> None:
        self._address = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        self.system, _ = FileSystem.from_uri(self.uri("") + "&allow_bucket_creation=true")
        self.system.create_dir("bucket")

    def uri(self, path: str, scheme: str = "s3") -> str:
        return f"{scheme}://someone:{SECRET}@bucket/{path}?{self._address}"

    def upload(self, directory: Path, folder: str) -> None:
        for file in directory.iterdir():
            with self.system.open_output_stream(f"bucket/{folder}/{file.name}") as stream:
                stream.write(file.read_bytes())

    def objects(self, folder: str) -> dict[str, int]:
        """The contents of a folder, with the sizes."""
        found = self.system.get_file_info(FileSelector(f"bucket/{folder}", allow_not_found=True))
        return {info.base_name: info.size for info in found}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    # Imported here: it takes a tenth of what every worker of a run needs to collect its tests.
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield Store(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Path:
    """Three streams of 200 entries, four chunks each; also in the store, as `three`."""
    directory = tmp_path_factory.mktemp("three")
    entries = {(T0 + n, 0): [b"n", b"%d" % n] for n in range(200)}
    write_snapshot(
        directory, [Stream(b"s:%d" % n, entries, block_entries=10) for n in range(3)], 50
    )
    store.upload(directory, "three")
    return directory


def export(source: str, output: str, format_: str = "parquet") -> Result:
    words = ["export", source, "--format", format_, "--output", output, "--key", "s:[01]"]
    return CliRunner().invoke(main, words)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_spark_reads_a_snapshot_from_an_object_store(
    spark: SparkSession, store: Store, three: Path, scheme: str
) -> None:
    reader = spark.read.format("millstream").option("subscribe", "s:1,s:2")
    frame = reader.option("minPartitions", 2).load(store.uri("three", scheme))
    assert frame.count() == 400
    local = reader.load(str(three))
    assert sorted(frame.collect()) == sorted(local.collect())


def test_an_export_copies_from_store_to_store(store: Store, three: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second replaces the first
        done = export(store.uri("three/"), store.uri("out/s.parquet"))
        assert (done.exit_code, done.output) == (0, "s3://bucket/out/s.parquet: 400 rows\n")
    assert export(str(three), str(tmp_path / "s.parquet")).exit_code == 0
    there = parquet.read_table("bucket/out/s.parquet", filesystem=store.system)
    assert there.equals(parquet.read_table(tmp_path / "s.parquet"))
    assert list(store.objects("out")) == ["s.parquet"]


def test_a_failed_export_leaves_existing_files(store: Store, three: Path, tmp_path: Path) -> None:
    """The damage is in the last chunk, so that much has been written before it is met."""
    entries = {(T0 + n, 0): [b"n", b"%d" % n] for n in range(5000)}
    base = write_snapshot(tmp_path, [Stream(b"s:0", entries, block_entries=100)], 1000)
    file = SystemDisk(tmp_path).read(base.name)
    place = SnapshotReader(file).summary.chunks[-1]
    file.close()
    flip(base, place.offset + place.length // 2)
    store.upload(tmp_path, "damaged")
    assert export(str(three), store.uri("kept/s.jsonl"), "jsonl").exit_code == 0
    before = store.objects("kept")
    done = export(store.uri("damaged"), store.uri("kept/s.jsonl"), "jsonl")
    assert done.exit_code == 1
    assert f"s3://bucket/damaged/{base.name} is damaged at offset" in done.output
    assert store.objects("kept") == before


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("s3://someone:{secret}@bucket/none?{rest}", "s3://bucket/none is not a data directory"),
        ("s9://someone:{secret}@bucket/none?{rest}", "s9://bucket/none cannot be opened"),
        ("s3://someone:{secret}@bucket/a?regoin=x", "s3://bucket/a cannot be opened"),
    ],
)
def test_errors_name_the_place_and_keep_the_secret(store: Store, uri: str, words: str) -> None:
    address = store.uri("").partition("?")[2]
    done = export(uri.format(secret=SECRET, rest=address), "-")
    assert done.exit_code == 1
    assert words in done.output
    assert SECRET not in done.output


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s9://someone:secret@bucket/a/b?region=x#y", "s9://bucket/a/b"),
        ("s9://someone:sec/ret@bucket/a", "s9://bucket/a"),
        ("s9://someone:sec#ret@bucket/a", "s9://"),
        ("s9://bucket/a", "s9://bucket/a"),
        ("hdfz://host:8020/a", "hdfz://host:8020/a"),
    ],
)
def test_a_secret_is_not_shown_either_where_it_makes_a_wrong_uri(uri: str, shown: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"{shown} cannot be opened")) as failure:
        file_system(uri)
    assert "ret" not in str(failure.value)
