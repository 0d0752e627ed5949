"""Producers that are killed and started again: `python -m tests.client.killed_producers URL`.

A child process appends numbered rows, and continues where the stream says that the child before it
was. It is killed with SIGKILL after a random time, again and again. At the end every row is there
once, in order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from typing import Any

from millstream.client import aio, connect

NAME = "import:1"
BATCH = 50


def rows(first: int, last: int) -> Any:
    return ({"n": n} for n in range(first, last + 1))


def produce(url: str, key: str, total: int) -> None:
    with connect(url) as ms, ms.producer(key, NAME, max_batch=BATCH) as producer:
        for row in rows((producer.last_seq or 0) + 1, total):
            producer.append(row)


async def produce_in_tasks(url: str, key: str, total: int) -> None:
    async with aio.connect(url) as ms, ms.producer(key, NAME, max_batch=BATCH) as producer:
        for row in rows((producer.last_seq or 0) + 1, total):
            await producer.append(row)


def append_many(url: str, key: str, total: int) -> None:
    with connect(url) as ms, ms.writer(key, NAME) as writer:
        first = (writer.last_seq() or 0) + 1
        writer.append_many(rows(first, total), seq=first, batch=BATCH)


def run(kind: str, url: str, key: str, total: int) -> None:
    if kind == "tasks":
        asyncio.run(produce_in_tasks(url, key, total))
    elif kind == "rows":
        append_many(url, key, total)
    else:
        produce(url, key, total)


def child(kind: str, url: str, key: str, total: int) -> int:
    number = os.fork()
    if number:
        return number
    try:
        run(kind, url, key, total)
    except BaseException as error:
        print(f"{kind}: {error!r}", flush=True)
        os._exit(1)
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    for kind in ("threads", "tasks", "rows"):
        key = f"{kind}:{os.getpid()}"
        total, kills, before = 0, 0, 0
        with connect(options.url) as ms:
            while kills < options.kills:
                total += 5 * BATCH  # there is always something left to append
                number = child(kind, options.url, key, total)
                time.sleep(chance.random() * 0.05)
                os.kill(number, signal.SIGKILL)
                _, status = os.waitpid(number, 0)
                length = ms.xlen(key)
                # One that was killed before its first append or after its last does not count.
                kills += os.WIFSIGNALED(status) and before < length < total
                before = length
            _, status = os.waitpid(child(kind, options.url, key, total), 0)
            found = [int(record["n"]) for record in ms.trange(key)]
        if status or found != list(range(1, total + 1)):
            print(f"{kind}: {len(found)} of {total}, {len(set(found))} different, status {status}")
            return 1
        print(f"{kind}: {kills} kills, {total} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
