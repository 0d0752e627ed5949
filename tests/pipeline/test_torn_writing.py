"""Writing under fire: tasks die in the middle, run twice at the same time, and the server is killed
again and again. Each row is in its stream once, in the order of its partition."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.server import Server

from millstream.pipeline.row_writer import Numbering, RowWriter
from millstream.pipeline.source_options import WRITE, SourceOptions

ROWS = 30_000
KEYS = 7
SCHEMA = StructType([StructField("key", StringType()), StructField("n", LongType())])

pytestmark = pytest.mark.timeout(300)


class TaskDied(Exception):
    """An exception in place of the end of a task's process."""


def batches(chance: random.Random, dies_at: int | None) -> Iterator[pa.RecordBatch]:
    """The partition's rows, each time cut into other batches."""
    start = 0
    while start < ROWS:
        end = min(ROWS, start + chance.choice([1, 700, 5000, 10_000]))
        if dies_at is not None and end > dies_at:
            raise TaskDied
        yield pa.RecordBatch.from_pydict(
            {"key": [f"out:{n % KEYS}" for n in range(start, end)], "n": list(range(start, end))}
        )
        start = end


def values(client: RawClient, key: str) -> list[int]:
    entries = as_list(client.call("TRANGE", key, "-", "+"))
    return [int(as_bytes(as_list(entry)[2])) for entry in entries]


@pytest.mark.parametrize("number", [None, 3], ids=["batch", "streaming"])
def test_each_row_exists_once_after_any_kill(
    durable_server: Server, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    monkeypatch.setattr("millstream.pipeline.row_writer._partition", lambda: 0)
    chance = random.Random()
    options = SourceOptions({"server": f"redis://127.0.0.1:{durable_server.port}"}, WRITE)
    writer = RowWriter(SCHEMA, options, False)
    finished: list[object] = []

    def run(seed: int, dies_at: int | None) -> None:
        try:
            writer.write(batches(random.Random(seed), dies_at), Numbering("job:0", number))
            finished.append(None)
        except TaskDied:
            pass
        except Exception as error:
            finished.append(error)

    for attempt in range(6):
        last = attempt == 5
        tasks = [
            threading.Thread(
                target=run,
                args=(chance.randrange(1 << 30), None if last else chance.randrange(ROWS)),
            )
            for _ in range(2)  # speculative execution
        ]
        for task in tasks:
            task.start()
        durable_server.restart("SIGKILL")
        for task in tasks:
            task.join()
    assert finished == [None, None]
    with durable_server.client() as client:
        found = {key: values(client, f"out:{key}") for key in range(KEYS)}
    assert found == {key: list(range(key, ROWS, KEYS)) for key in range(KEYS)}
