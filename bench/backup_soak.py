"""Backups under full load: a backup every minute, one in ten killed.

    nice python -m bench.backup_soak --minutes 60
    python -m bench.backup_soak --minutes 2 --every 10 --connections 4

A server is started, and connections append to it as fast as it replies, each to its own stream, in
order. Each complete backup is restored, a server is started on it, and every entry is read: it must
be the one that was written, each stream must have everything that was acknowledged before the
backup began and nothing that was never sent, and the streams of a transaction must agree. The last
lines are the rates of appends while a backup ran and while none did, their ratio, and the number of
backups of each kind. The exit code is 1 if anything was wrong.

Everything but the server and the load has the lowest priority, as in the unit of a backup.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

PROGRAMS = Path(sys.executable).parent
BATCH = 50  # appends in one pipeline
TEXT_BYTES = 64
KEPT = 50_000  # entries of each stream: the memory of an hour would be too much
SAMPLE_S = 0.1
PAIR = ("pair:a", "pair:b")  # each transaction appends the same number to both


def text_of(number: int) -> bytes:
    """The text of an entry, which follows from its number."""
    return (b"%d." % number * TEXT_BYTES)[:TEXT_BYTES]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server(directory: Path, port: int, fsync: str) -> subprocess.Popen[bytes]:
    """A server that replies to PING."""
    words = [PROGRAMS / "millstream-server", "--port", str(port), "--dir", directory]
    words += ["--appendfsync", fsync, "--loglevel", "warning"]
    process = subprocess.Popen(words)
    with redis.Redis(port=port) as client:
        while True:
            with suppress(redis.ConnectionError, redis.exceptions.BusyLoadingError):
                client.ping()
                return process
            if process.poll() is not None:
                raise SystemExit(f"the server on {directory} has ended")
            time.sleep(0.05)


# The load, in a process of its own


class Sender:
    """One connection, which appends to one stream and counts what was sent and acknowledged."""

    def __init__(self, number: int, port: int, sent: Any, acked: Any) -> None:
        self.number = number
        self._key = b"load:%d" % number
        self._sent, self._acked = sent, acked
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = 0

    def send(self) -> None:
        first = self._sent[self.number]
        self._sent[self.number] = first + BATCH
        head = b"*7\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\nn\r\n" % (
            len(self._key), self._key,
        )  # fmt: skip
        requests = [
            b"%s$%d\r\n%d\r\n$4\r\ntext\r\n$%d\r\n%s\r\n"
            % (head, len(str(number)), number, TEXT_BYTES, text_of(number))
            for number in range(first, first + BATCH)
        ]
        self.socket.sendall(b"".join(requests))

    def receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data or data[:1] == b"-":
            raise SystemExit(f"the load got {data[:200]!r}")
        self._lines += data.count(b"\r\n")
        if self._lines == 2 * BATCH:  # the length and the ID of each
            self._lines = 0
            self._acked[self.number] += BATCH
            self.send()


def load(port: int, connections: int, sent: Any, acked: Any) -> None:
    """Append until the process is killed."""
    waiting = selectors.DefaultSelector()
    for number in range(connections):
        sender = Sender(number, port, sent, acked)
        waiting.register(sender.socket, selectors.EVENT_READ, sender)
        sender.send()
    pair = redis.Redis(port=port)
    while True:
        for key, _ in waiting.select():
            key.data.receive()
        pipe = pair.pipeline(transaction=True)
        for name in PAIR:
            pipe.xadd(name, {"n": str(acked[connections])})
        pipe.execute()
        acked[connections] += 1


# The check of a backup


def entries_of(client: redis.Redis, key: str) -> Iterator[dict[bytes, bytes]]:
    start = "-"
    while found := client.xrange(key, start, "+", count=1000):
        for _, fields in found:
            yield fields
        start = "(" + found[-1][0].decode()


def faults_of(
    folder: Path, before: Sequence[int], after: Sequence[int], connections: int
) -> list[str]:
    """Restore a backup, and read everything. `before`: acknowledged before it began, `after`: sent
    by its end."""
    faults = []
    restored = folder.with_name("restored")
    words = [PROGRAMS / "millstream", "restore", folder, restored]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return [f"restore ended with {done.returncode}: {done.stderr}"]
    port = free_port()
    process = server(restored, port, "no")
    try:
        with redis.Redis(port=port) as client:
            for number in range(connections):
                faults += _faults_of_stream(client, number, before[number], after[number])
            lasts = [list(client.xrevrange(name, count=1)) for name in PAIR]
            numbers = [int(last[0][1][b"n"]) if last else -1 for last in lasts]
            if len(set(numbers)) != 1 or numbers[0] < before[connections] - 1:
                faults.append(f"half a transaction, or a lost one: {numbers}, {before[-1]}")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(restored, ignore_errors=True)
    return faults


def _faults_of_stream(client: redis.Redis, number: int, before: int, after: int) -> Iterator[str]:
    due = -1
    for fields in entries_of(client, f"load:{number}"):
        found = int(fields[b"n"])
        if due not in (-1, found):
            yield f"load:{number}: entry {found} follows {due - 1}"
        if fields[b"text"] != text_of(found):
            yield f"load:{number}: entry {found} has another text"
        due = found + 1
    if not before <= due <= after and max(before, due) > 0:
        yield f"load:{number} ends before {due}; {before} were acknowledged, {after} sent"


# The run


@dataclass
class Run:
    """The figures of a run. Rates are appends per second in a sample."""

    port: int
    folder: Path
    connections: int
    kill_every: int
    chance: random.Random
    sent: Any
    acked: Any
    rates: dict[str, list[float]] = field(default_factory=lambda: {"alone": [], "backup": []})
    faults: list[str] = field(default_factory=list)
    complete: int = 0
    killed: int = 0
    seconds: list[float] = field(default_factory=list)
    _last: tuple[float, int] = (0.0, 0)

    def begin_samples(self) -> None:
        self._last = time.monotonic(), sum(self.acked[:])

    def sample(self, kind: str) -> None:
        """Wait for a moment, and note the rate in it."""
        time.sleep(SAMPLE_S)
        now_s, count = time.monotonic(), sum(self.acked[:])
        self.rates[kind].append((count - self._last[1]) / (now_s - self._last[0]))
        self._last = now_s, count

    def backup(self, number: int) -> None:
        """One backup, perhaps a killed one."""
        dest = self.folder / f"backup-{number}"
        url = f"redis://127.0.0.1:{self.port}"
        words = [PROGRAMS / "millstream", "backup", "--url", url, dest, "--json"]
        before, begun_s = list(self.acked[:]), time.monotonic()
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        is_killed = number % self.kill_every == self.kill_every - 1
        most_s = self.chance.uniform(0.1, 1) * (statistics.median(self.seconds or [2.0]))
        self.begin_samples()
        while process.poll() is None:
            self.sample("backup")
            if is_killed and time.monotonic() - begun_s > most_s:
                process.send_signal(signal.SIGKILL)
                process.wait()
        output, errors = process.communicate()
        after = [*self.sent[: self.connections], 0]
        if process.returncode == -signal.SIGKILL:
            self.killed += 1
            if dest.exists():
                self.faults.append(f"{dest} exists after a kill")
            shutil.rmtree(f"{dest}.partial", ignore_errors=True)
            return
        if process.returncode:
            self.faults.append(f"a backup ended with {process.returncode}: {errors}")
            return
        self.complete += 1
        self.seconds.append(time.monotonic() - begun_s)
        size_bytes, took_s = json.loads(output)["bytes"], self.seconds[-1]
        print(
            f"backup {number}: {size_bytes:,} bytes, {took_s:.1f} s, {self.rates_so_far()}",
            flush=True,
        )
        self.faults += faults_of(dest, before, after, self.connections)
        shutil.rmtree(dest)

    def rates_so_far(self) -> str:
        alone, during = (statistics.mean(self.rates[kind] or [0]) for kind in ("alone", "backup"))
        ratio = f"{during / alone:.3f}" if alone else "unknown"
        return f"{alone:,.0f} appends/s without a backup, {during:,.0f} during one, ratio {ratio}"

    def report(self) -> int:
        seconds = statistics.median(self.seconds or [0])
        print(f"complete: {self.complete}, killed: {self.killed}, median {seconds:.1f} s each")
        print(self.rates_so_far())
        for fault in self.faults[:50]:
            print(f"WRONG: {fault}")
        return 1 if self.faults or not self.complete else 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--every", type=float, default=60, help="seconds between two backups")
    options.add_argument("--kill-every", type=int, default=10, help="which backups are killed")
    options.add_argument("--connections", type=int, default=8)
    options.add_argument("--fsync", default="everysec", choices=["always", "everysec", "no"])
    options.add_argument("--dir", type=Path, help="where the folders are made (default: /tmp)")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millstream-backups-", dir=given.dir))
    sent = multiprocessing.Array("Q", given.connections + 1, lock=False)
    acked = multiprocessing.Array("Q", given.connections + 1, lock=False)
    port = free_port()
    process = server(folder / "data", port, given.fsync)
    writer = multiprocessing.Process(
        target=load, args=(port, given.connections, sent, acked), daemon=True
    )
    chance = random.Random(given.seed)
    run = Run(port, folder, given.connections, given.kill_every, chance, sent, acked)
    try:
        keep_few(port, [*(f"load:{number}" for number in range(given.connections)), *PAIR])
        writer.start()
        os.nice(19)
        play(run, given.minutes * 60, given.every, writer, process)
    finally:
        if writer.is_alive():
            writer.kill()
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return run.report()


def keep_few(port: int, keys: Sequence[str]) -> None:
    """Make empty streams that keep their newest entries."""
    with redis.Redis(port=port) as client:
        for key in keys:
            client.xgroup_create(key, "g", mkstream=True)
            client.xgroup_destroy(key, "g")
            client.execute_command("TPOLICY", key, "MAXLEN", KEPT)


def play(
    run: Run,
    total_s: float,
    every_s: float,
    writer: multiprocessing.Process,
    process: subprocess.Popen[bytes],
) -> None:
    """A backup each `every_s`, until the time is over. Between them, the rate without one is
    measured."""
    end_s = time.monotonic() + total_s
    first_s = time.monotonic() + min(every_s, total_s) / 2
    run.begin_samples()
    while time.monotonic() < first_s:
        run.sample("alone")
    number = 0
    while time.monotonic() < end_s:
        next_s = time.monotonic() + every_s
        run.backup(number)
        number += 1
        run.begin_samples()
        while time.monotonic() < min(next_s, end_s):
            run.sample("alone")
        if not writer.is_alive() or process.poll() is not None:
            run.faults.append("the load or the server has ended")
            return


if __name__ == "__main__":
    sys.exit(main())
