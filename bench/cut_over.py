"""Cut-overs from a real Redis under load: what is lost, and how long writers wait.

    nice python -m bench.cut_over
    python -m bench.cut_over --rounds 3 --rate 5000

In each round, a server follows a redis-server to which writers append at a fixed rate, and
`millstream import --promote` makes it the primary. A writer that is refused goes to the new
primary. Each ID that either server has confirmed has to be on the new primary. The pause of a
writer is the time between the last reply of the old primary and the first one of the new. The table
has a line for each round. The exit code is 1 if an entry was lost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import redis

from bench.datasets import SENSOR_ENTRY, encode
from bench.figures import BenchError
from bench.server import ALL_CORES, Server

BATCH = 16  # appends in one pipeline
RETRY_S = 0.001
TIMEOUT_S = 60.0
BEFORE_S, AFTER_S = 2.0, 0.5  # the time for which writers append before and after a cut-over


@dataclass
class Written:
    """The work of one writer: confirmed IDs, and the times of the last reply of the old primary and
    the first one of the new."""

    ids: list[bytes] = field(default_factory=list)
    left_s: float = 0.0
    arrived_s: float = 0.0
    rate: float = 0.0  # of confirmed entries at the old primary


class Writer:
    """Appends to a stream at a rate, first at one server, then at the other."""

    def __init__(self, key: str, ports: Sequence[int], rate: float) -> None:
        self.written = Written()
        self._ports = ports
        self._every_s = BATCH / rate
        self._requests = encode("XADD", key, "*", *SENSOR_ENTRY) * BATCH

    def run(self, is_over: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        self._write(self._ports[0], is_over)
        self.written.rate = len(self.written.ids) / (self.written.left_s - began_s)
        while not is_over() and not self._write(self._ports[1], is_over):
            time.sleep(RETRY_S)

    def _write(self, port: int, is_over: Callable[[], bool]) -> bool:
        """Append until the server refuses; whether it has confirmed anything."""
        written, has_confirmed = self.written, False
        is_new = port == self._ports[1]
        next_s = time.monotonic()
        with (
            socket.create_connection(("127.0.0.1", port)) as client,
            client.makefile("rb") as lines,
        ):
            while not is_over():
                client.sendall(self._requests)
                ids = list(confirmed(lines))
                now_s = time.monotonic()
                written.ids += ids
                if ids and is_new and not has_confirmed:
                    written.arrived_s = now_s
                elif ids and not is_new:
                    written.left_s = now_s
                has_confirmed = has_confirmed or bool(ids)
                if len(ids) < BATCH:
                    return has_confirmed
                next_s += self._every_s
                time.sleep(max(0.0, next_s - now_s))
        return has_confirmed


def confirmed(lines: IO[bytes]) -> Iterator[bytes]:
    """The IDs in the replies to a batch. Other replies are errors; a closed connection has none."""
    for _ in range(BATCH):
        line = lines.readline()
        if line.startswith(b"$"):
            yield lines.readline().rstrip()


def write(keys: list[str], ports: Sequence[int], rate: float, end: Any, results: Any) -> None:
    """The process of the writers, a thread for each."""
    writers = [Writer(key, ports, rate / len(keys)) for key in keys]
    threads = [threading.Thread(target=one.run, args=(end.is_set,)) for one in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put([one.written for one in writers])


@contextmanager
def running(*command: str) -> Iterator[redis.Redis]:
    """A server, and a client of it."""
    try:
        server = Server(command[:1], command[1:], ALL_CORES)
    except BenchError as error:
        raise SystemExit(str(error)) from None
    try:
        with redis.Redis(port=server.port) as client:
            yield client
    finally:
        server.stop()


def wait_for(is_over: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not is_over():
        if time.monotonic() > end_s:
            raise SystemExit(f"nothing happened for {TIMEOUT_S:.0f} seconds")
        time.sleep(0.02)


class Bench:
    """A Redis and the server that follows it, used for all rounds."""

    def __init__(self, old: redis.Redis, new: redis.Redis, rate: float, writers: int) -> None:
        self._clients = old, new
        self._ports = [client.connection_pool.connection_kwargs["port"] for client in (old, new)]
        self._rate = rate
        self._writers = writers
        self._spawn = multiprocessing.get_context("spawn")
        self.pauses_ms: list[float] = []
        self.lost = 0

    def round(self, number: int) -> str:
        """One cut-over; a line of the table."""
        self._begin()
        keys = [f"s{number}-{i}" for i in range(self._writers)]
        end, results = self._spawn.Event(), self._spawn.Queue()
        work = self._spawn.Process(target=write, args=(keys, self._ports, self._rate, end, results))
        work.start()
        try:
            wait_for(lambda: all(self._clients[0].exists(key) for key in keys))
            time.sleep(BEFORE_S)
            waited = self._promote()
            time.sleep(AFTER_S)
        finally:
            end.set()
        written: list[Written] = results.get(timeout=TIMEOUT_S)
        work.join()
        lost = sum(self._missing(key, one) for key, one in zip(keys, written, strict=True))
        pauses = [(one.arrived_s - one.left_s) * 1000 for one in written]
        if min(one.arrived_s for one in written) == 0:
            raise SystemExit("a writer was never served by the new primary")
        self.lost += lost
        self.pauses_ms += pauses
        before = sum(one.rate for one in written)
        return (
            f"{number:5}  {sum(len(one.ids) for one in written):9}  {before:8.0f}  {lost:4}"
            f"  {statistics.median(pauses):9.0f}  {max(pauses):7.0f}  {waited}"
        )

    def _begin(self) -> None:
        """The new server follows the old one, which is empty."""
        old, new = self._clients
        old.config_set("min-replicas-to-write", 0)
        old.flushall()
        new.execute_command("REPLICAOF", "127.0.0.1", self._ports[0])
        wait_for(lambda: self._follows(new.info("replication")))

    @staticmethod
    def _follows(facts: dict[str, Any]) -> bool:
        return bool(facts["master_link_status"] == "up" and facts["source_spool_bytes"] == 0)

    def _promote(self) -> str:
        old, new = (f"redis://127.0.0.1:{port}" for port in self._ports)
        words = [sys.executable, "-m", "millstream", "import", old, "--to", new, "--promote"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the cut-over has failed: {done.stderr}")
        lines = [line for line in done.stdout.splitlines() if line.startswith("writers waited")]
        return lines[0].removeprefix("writers waited ")

    def _missing(self, key: str, written: Written) -> int:
        """The number of confirmed entries that the new primary does not have."""
        here = {entry[0] for entry in self._clients[1].xrange(key)}
        return sum(one not in here for one in written.ids)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cut_over")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=20_000, help="entries a second")
    parser.add_argument("--writers", type=int, default=4)
    given = parser.parse_args()
    theirs = "redis-server", "--save", "", "--repl-diskless-sync-delay", "0"
    ours = str(Path(sys.executable).parent / "millstream-server"), "--loglevel", "warning"
    with running(*theirs) as old, running(*ours) as new:
        bench = Bench(old, new, given.rate, given.writers)
        print("round  confirmed  per s     lost  pause p50  max ms   of the pause")
        for number in range(1, given.rounds + 1):
            print(bench.round(number), flush=True)
    pauses = sorted(bench.pauses_ms)
    p99 = pauses[min(len(pauses) - 1, int(0.99 * len(pauses)))]
    print(
        f"{given.rounds} rounds: {bench.lost} lost, pauses of {len(pauses)} writers:"
        f" {statistics.median(pauses):.0f} ms at p50, {p99:.0f} at p99, {pauses[-1]:.0f} at most"
    )
    return int(bench.lost > 0)


if __name__ == "__main__":
    sys.exit(main())
