"""The Python client against plain redis-py, on our server.

The peer's lane is the loop that a program would write with redis-py alone: XREAD with the same
count and the last ID passed back; and `xadd`. The rates are records per second of the whole
program, so the cost is the time per record in nanoseconds. 16 shards are compared with one stream
with the same number of records, because redis-py cannot merge streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import redis

from bench.datasets import SENSOR_ENTRY
from bench.figures import OURS, REDIS, BenchError, Lanes, Reading
from bench.harness import Harness, Side
from millstream.client import connect

COUNT = 100
JOBS_COUNT = 10
"""The entries of a read of the loop that works on jobs; a worker has two such reads in flight."""
PIPELINE = 1000
SHARDS = 16
ONE = "one"
MANY = [f"shard:{number}" for number in range(SHARDS)]
FIELDS: Any = dict(zip(SENSOR_ENTRY[::2], SENSOR_ENTRY[1::2], strict=True))
FIRST, SECOND = FIELDS


Reads: TypeAlias = Literal["nothing", "fields", "fields and ID"]
"""The part of each record that a loop reads."""


def one_shard(harness: Harness, full: int, quick: int, reads: Reads = "nothing") -> Lanes:
    """A stream of one shard against a loop of XREAD."""
    records = harness.plan.size(full, quick)
    side = filled(harness, records)
    return harness.alternate(
        {
            REDIS: lambda: plain_loop(side, records, reads),
            OURS: lambda: followed(side, [ONE], records, reads),
        }
    )


def sixteen_shards(harness: Harness, full: int, quick: int, reads: Reads = "nothing") -> Lanes:
    """A stream of 16 shards in one order against a loop of XREAD over one stream."""
    records = harness.plan.size(full, quick)
    side = filled(harness, records)
    return harness.alternate(
        {
            REDIS: lambda: plain_loop(side, records, reads),
            OURS: lambda: followed(side, MANY, records, reads),
        }
    )


def appends(harness: Harness, full: int, quick: int) -> Lanes:
    """`Writer.append` against `xadd`."""
    count = harness.plan.size(full, quick)
    side = harness.pair("client-appends")[OURS]
    return harness.alternate(
        {REDIS: lambda: plain_appends(side, count), OURS: lambda: written(side, count)}
    )


def produced_entries(harness: Harness, full: int, quick: int) -> Lanes:
    """A producer against pipelines of `xadd`."""
    count = harness.plan.size(full, quick)
    side = harness.pair("client-producer")[OURS]
    return harness.alternate(
        {REDIS: lambda: plain_pipelines(side, count), OURS: lambda: produced(side, count)}
    )


def worker(harness: Harness, full: int, quick: int) -> Lanes:
    """A worker with an empty handler against a loop of XREADGROUP and XACK."""
    jobs = harness.plan.size(full, quick)
    side = filled(harness, jobs)
    return harness.alternate(
        {REDIS: lambda: plain_jobs(side, jobs), OURS: lambda: worked(side, jobs)}
    )


def filled(harness: Harness, records: int) -> Side:
    """Our server with the same records in one stream, and distributed round-robin over 16
    streams."""
    side = harness.pair("client")[OURS]
    if side.call("XLEN", ONE) == records:
        return side
    side.empty()
    with redis.Redis(port=side.server.port) as server:
        for first in range(0, records, 1000):
            pipe = server.pipeline(transaction=False)
            for number in range(first, min(first + 1000, records)):
                pipe.xadd(ONE, FIELDS)
                pipe.xadd(MANY[number % SHARDS], FIELDS)
            pipe.execute()
    return side


def timed(count: int, run: Callable[[], int]) -> Reading:
    started_s = time.perf_counter()
    done = run()
    seconds = time.perf_counter() - started_s
    if done != count:
        raise BenchError(f"{done} records instead of {count}")
    return Reading(seconds / count * 1e9, count / seconds)


def plain_loop(side: Side, records: int, reads: Reads = "nothing") -> Reading:
    with redis.Redis(port=side.server.port, decode_responses=True) as server:

        def run() -> int:
            last, seen = "0", 0
            while reply := server.xread({ONE: last}, count=COUNT):
                entries: Any = reply[ONE][0] if isinstance(reply, dict) else reply[0][1]
                if reads == "nothing":
                    for entry_id, _fields in entries:
                        last = entry_id
                        seen += 1
                else:  # the ID is read in any case
                    for entry_id, fields in entries:
                        last = entry_id
                        fields[FIRST], fields[SECOND]
                        seen += 1
            return seen

        return timed(records, run)


def followed(side: Side, shards: list[str], records: int, reads: Reads = "nothing") -> Reading:
    with connect(f"redis://localhost:{side.server.port}") as ms:
        stream = ms.stream(shards, "trim_horizon", batch=COUNT)

        def run() -> int:
            seen = 0
            if reads == "nothing":
                for _record in stream.follow():
                    seen += 1
                    if seen == records:
                        stream.stop()
            elif reads == "fields":
                for record in stream.follow():
                    record[FIRST], record[SECOND]
                    seen += 1
                    if seen == records:
                        stream.stop()
            else:
                for record in stream.follow():
                    record[FIRST], record[SECOND], record.id
                    seen += 1
                    if seen == records:
                        stream.stop()
            return seen

        with stream:
            return timed(records, run)


def plain_appends(side: Side, count: int) -> Reading:
    side.empty()
    with redis.Redis(port=side.server.port, decode_responses=True) as server:

        def run() -> int:
            for _ in range(count):
                server.xadd(ONE, FIELDS)
            return int(server.xlen(ONE))

        return timed(count, run)


def written(side: Side, count: int) -> Reading:
    side.empty()
    with connect(f"redis://localhost:{side.server.port}") as ms:

        def run() -> int:
            with ms.writer(ONE, "bench") as writer:
                for _ in range(count):
                    writer.append(FIELDS)
            return int(ms.xlen(ONE))

        return timed(count, run)


def plain_pipelines(side: Side, count: int) -> Reading:
    with redis.Redis(port=side.server.port, decode_responses=True) as server:

        def run() -> int:
            server.delete(ONE)
            for first in range(0, count, PIPELINE):
                pipe = server.pipeline(transaction=False)
                for n in range(first, min(first + PIPELINE, count)):
                    pipe.xadd(ONE, {"item": "tea", "count": n})
                pipe.execute()
            return int(server.xlen(ONE))

        return timed(count, run)


def produced(side: Side, count: int) -> Reading:
    with connect(f"redis://localhost:{side.server.port}") as ms:

        def run() -> int:
            ms.delete(ONE)
            with ms.producer(ONE, max_batch=PIPELINE) as producer:
                for n in range(count):
                    producer.append({"item": "tea", "count": n})
            return int(ms.xlen(ONE))

        return timed(count, run)


def plain_jobs(side: Side, jobs: int) -> Reading:
    with redis.Redis(port=side.server.port, decode_responses=True) as server:
        new_group(server, "plain")

        def run() -> int:
            seen = 0
            while reply := server.xreadgroup("plain", "c", {ONE: ">"}, count=JOBS_COUNT):
                entries: Any = reply[ONE][0] if isinstance(reply, dict) else reply[0][1]
                for _entry_id, _fields in entries:
                    seen += 1
                server.xack(ONE, "plain", *[entry_id for entry_id, _ in entries])
            return seen

        return timed(jobs, run)


def worked(side: Side, jobs: int) -> Reading:
    with connect(f"redis://localhost:{side.server.port}") as ms:
        new_group(ms, "worked")
        worker = ms.worker(ONE, "worked", concurrency=2 * JOBS_COUNT)
        seen = 0

        @worker.handler
        def handle(job: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == jobs:
                worker.stop()

        def run() -> int:
            worker.run()
            return int(worker.metrics()["done"])

        return timed(jobs, run)


def new_group(server: Any, group: str) -> None:
    server.xgroup_destroy(ONE, group)
    server.xgroup_create(ONE, group, "0")
