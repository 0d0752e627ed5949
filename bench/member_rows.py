"""A shard of a cluster on many machines, against a single server: both with appendfsync always.

The members and etcd run on this machine, on the core of the servers. So the rates of three members
also pay for the two replicas, which have machines of their own elsewhere.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.datasets import KEY, SENSOR_ENTRY
from bench.figures import OURS, BenchError, Lanes, Reading, alone
from bench.harness import Harness, Side
from bench.load import Load
from bench.load import run as run_load
from bench.persistence_rows import LOOK_S, journal_of
from bench.server import Server, free_port
from bench.wire import Client

NAME = "bench"
TIMEOUT_S = 30.0
APPEND = ("XADD", KEY, "*", *SENSOR_ENTRY)
READ = ("XRANGE", KEY, "-", "+", "COUNT", "1")


class Member(Server):
    """One server of the shard. It answers with an error until there is a primary."""

    def _is_ready(self) -> bool:
        with Client(self.port) as client:
            client.call("CLUSTER", "MYID")
            return True

    def is_primary(self) -> bool:
        with Client(self.port) as client, contextlib.suppress(BenchError):
            return bool(client.call("SET", "probe", "1") == "OK")
        return False


@contextlib.contextmanager
def etcd() -> Iterator[str]:
    """A new etcd; its URL."""
    program = shutil.which("etcd")
    if program is None:
        raise BenchError("etcd is missing: apt-get install etcd-server")
    url, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
    words = [
        *(program, "--data-dir", str(folder / "data"), "--listen-client-urls", url),
        *("--advertise-client-urls", url, "--listen-peer-urls", peer),
        *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


@contextlib.contextmanager
def primary_of(harness: Harness, members: int, durable: int) -> Iterator[Server]:
    """The primary of a new shard, all of whose members serve."""
    made: list[Member] = []
    with etcd() as url:
        create(harness, url, members, durable)
        directives = [
            *journal_of("always"),
            *("--cluster-name", NAME, "--cluster-etcd", url, "--cluster-shard", "s1"),
        ]
        try:
            for _ in range(members):
                made.append(Member(harness.ours_command, directives, harness.server_core))
            yield wait_for_primary(made)
        finally:
            for one in made:
                one.stop()


def create(harness: Harness, url: str, members: int, durable: int) -> None:
    program = Path(harness.ours_command[0]).with_name("millstream")
    words = [
        *(str(program), "cluster", "init", "--name", NAME, "--etcd", url, "--shards", "1"),
        *("--members", str(members), "--durable", str(durable)),
    ]
    deadline = time.monotonic() + TIMEOUT_S
    while (done := subprocess.run(words, capture_output=True, text=True)).returncode:
        if time.monotonic() > deadline:
            raise BenchError(f"the cluster was not created: {done.stderr[-300:]}")
        time.sleep(LOOK_S)


def wait_for_primary(members: list[Member]) -> Server:
    """The primary, once the others follow it."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for one in members:
            if one.is_primary() and replicas_of(one) == len(members) - 1:
                return one
        time.sleep(LOOK_S)
    raise BenchError("the shard has no primary that all others follow")


def replicas_of(primary: Server) -> int:
    with Client(primary.port) as client:
        return str(client.call("INFO", "replication")).count("state=online")


def appends(harness: Harness, pipeline: int, full: int, quick: int) -> Lanes:
    """The time of an append that two of three members have on their disks, as a multiple of one on
    the disk of a single server."""
    side = harness.pair("durable", journal_of("always"))[OURS]
    load = Load(harness.plan.size(full, quick), pipeline)
    found = []
    with primary_of(harness, members=3, durable=1) as primary:
        run_load(primary.port, load, APPEND)
        for _ in range(harness.plan.rounds):
            single = side.drive(load, APPEND).ops_per_s
            assert single
            found.append(Reading(single / run_load(primary.port, load, APPEND)))
    side.empty()
    return alone(found)


def cpu(harness: Harness, words: tuple[str, ...], full: int, quick: int) -> Lanes:
    """The CPU time of a request at the only member of a shard, as a multiple of that at a single
    server."""
    side = harness.pair("durable", journal_of("always"))[OURS]
    load = Load(harness.plan.size(full, quick), 16)

    found = []
    with primary_of(harness, members=1, durable=0) as primary:
        member = Side(primary, "X")
        for one in (member, side):
            one.drive(load, APPEND)
        for _ in range(harness.plan.rounds):
            single = side.drive(load, words)
            found.append(Reading(member.drive(load, words).cost / single.cost))
    side.empty()
    return alone(found)
