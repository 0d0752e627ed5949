"""`python -m tests.crash.member_rounds --rounds 50`: partitions and kills of a shard, as root.

Three servers, each on a machine of its own (`tests/support/namespaces`), are the members of a shard
whose map is in a real etcd. Clients append to a stream, and read it, all the time, each at any of
the servers, also at one that is cut off from the others. In each round something fails for a while:
a server is killed or suspended, machines lose each other or etcd, etcd is killed, an operator
changes the primary. Then everything works again, and all members follow one primary.

The history of all requests is checked at the end of each round:

* each append that was answered is in the stream, with the ID of its reply;
* what any read has shown is in the stream, also a read of a replica;
* of two appends, the one that was sent after the reply to the other has the greater ID;
* a read of a primary lacks no append that was answered STALE_S before it was sent.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.client import ConnectionClosed, RawClient
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask
from tests.support.namespaces import BRIDGE, Machine, cut, enter
from tests.support.resp import Error, Reply, Simple
from tests.support.waiting import wait_until

STALE_S = 5.0  # cluster-lease and the node timeout
FAULT_S = (0.5, 4.0)
QUIET_S = 40.0  # until all members follow one primary
CLIENTS = 4
LOG_LETTERS = 4000  # of each server, after a failure


class Append(NamedTuple):
    value: bytes
    id: tuple[int, int]
    sent_s: float
    answered_s: float


class Read(NamedTuple):
    ids: frozenset[tuple[int, int]]
    of_primary: bool
    sent_s: float


def parsed(text: object) -> tuple[int, int]:
    assert isinstance(text, bytes)
    ms, seq = text.split(b"-")
    return int(ms), int(seq)


class HistoryClient:
    """Appends and reads at servers that it chooses at random, until it is stopped."""

    def __init__(self, servers: MemberServers, stream: str, number: int, seed: str) -> None:
        self.appends: list[Append] = []
        self.reads: list[Read] = []
        self.refused = 0
        self._servers = servers.servers
        self._stream = stream
        self._number = number
        self._chance = random.Random(seed)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            server = self._chance.choice(self._servers)
            try:
                with RawClient(server.port, timeout_s=1.0, host=server.host) as client:
                    self._talk(client)
            except (OSError, ConnectionClosed):
                self.refused += 1
            self._is_stopped.wait(0.01)

    def _talk(self, client: RawClient) -> None:
        """Up to 30 requests on one connection, as long as they are not refused."""
        reads_replica = self._chance.random() < 0.3
        if reads_replica:
            assert client.call("READONLY") == Simple("OK")
        for _ in range(30):
            if self._is_stopped.is_set():
                return
            sent_s = time.monotonic()
            if reads_replica or self._chance.random() < 0.2:
                reply: Reply = client.call("XREVRANGE", self._stream, "+", "-", "COUNT", "50")
                if isinstance(reply, Error):
                    self.refused += 1
                    return
                assert isinstance(reply, list)
                ids = frozenset(parsed(row[0]) for row in reply if isinstance(row, list))
                self.reads.append(Read(ids, not reads_replica, sent_s))
            else:
                value = b"%d-%d" % (self._number, len(self.appends) + self.refused)
                reply = client.call("XADD", self._stream, "*", "v", value)
                if isinstance(reply, Error):
                    self.refused += 1
                    return
                self.appends.append(Append(value, parsed(reply), sent_s, time.monotonic()))


def check(appends: list[Append], reads: list[Read], found: dict[tuple[int, int], bytes]) -> None:
    """AssertionError if the history of the clients and the stream do not fit together."""
    for append in appends:
        assert found.get(append.id) == append.value, f"{append} was confirmed, and is lost"
    for read in reads:
        lost = read.ids - found.keys()
        assert not lost, f"a read has shown {sorted(lost)[:3]}, which are lost"
    by_end = sorted(appends, key=lambda one: one.answered_s)
    newest, at = (0, 0), 0
    for append in sorted(appends, key=lambda one: one.sent_s):
        while at < len(by_end) and by_end[at].answered_s < append.sent_s:
            newest, at = max(newest, by_end[at].id), at + 1
        assert append.id > newest, f"{append} was sent after the reply {newest}"
    newest, at = (0, 0), 0
    for read in sorted((one for one in reads if one.of_primary), key=lambda one: one.sent_s):
        while at < len(by_end) and by_end[at].answered_s < read.sent_s - STALE_S:
            newest, at = max(newest, by_end[at].id), at + 1
        shown = max(read.ids, default=(0, 0))
        assert shown >= newest, f"a read of a primary shows {shown}, and not {newest}"


class MemberRounds:
    """The shard, its machines, and what happens to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machines = [Machine(number) for number in (1, 2, 3)]
        self.etcd = Etcd(folder / "etcd", host=BRIDGE).start()
        self.servers = MemberServers(folder, self.etcd, machines=self.machines)
        self.counts: dict[str, int] = {}
        self.gaps_s: list[float] = []  # between two confirmed appends

    def close(self) -> None:
        self.servers.kill()
        self.etcd.kill()
        for machine in self.machines:
            machine.close()

    def play(self, number: int) -> None:
        """One round."""
        stream = f"s{number}"  # a new one: a replica may still show what was trimmed
        clients = [
            HistoryClient(self.servers, stream, index, f"{number}-{index}")
            for index in range(CLIENTS)
        ]
        time.sleep(0.5)
        fault = self.chance.choice(FAULTS)
        self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
        mend = fault(self)
        time.sleep(self.chance.uniform(*FAULT_S))
        mend()
        for machine in self.machines:
            for address in (BRIDGE, *(other.address for other in self.machines)):
                if address != machine.address:
                    machine.find(address)
        self.servers.wait_for_followers(QUIET_S)
        for client in clients:
            client.stop()
        rows = self._entries(stream)
        found = {parsed(row[0]): row[1][1] for row in rows}
        appends = [append for client in clients for append in client.appends]
        check(appends, [read for client in clients for read in client.reads], found)
        ends = sorted(append.answered_s for append in appends)
        self.gaps_s.append(max((b - a for a, b in pairwise(ends)), default=0))
        self.counts["appends"] = self.counts.get("appends", 0) + len(appends)
        self.counts["reads"] = self.counts.get("reads", 0) + sum(len(c.reads) for c in clients)

    def _entries(self, stream: str) -> list[Any]:
        """Of the primary: it may change once more, after a request of a member from before."""
        rows = wait_until(
            lambda: ask(self.servers.wait_for_followers(QUIET_S), "XRANGE", stream, "-", "+"),
            lambda reply: isinstance(reply, list),
            "the entries",
        )
        assert isinstance(rows, list)
        return rows

    # Faults. Each returns what ends it.

    def _machine(self, server: object) -> Machine:
        return self.machines[[*self.servers.servers].index(server)]  # type: ignore[arg-type]

    def kill_the_primary(self) -> Callable[[], object]:
        server = self.servers.wait_for_primary()
        server.kill()
        return server.launch

    def kill_a_server(self) -> Callable[[], object]:
        server = self.chance.choice(self.servers.servers)
        server.kill()
        return server.launch

    def suspend_the_primary(self) -> Callable[[], object]:
        server = self.servers.wait_for_primary()
        server.signal(signal.SIGSTOP)
        return lambda: server.signal(signal.SIGCONT)

    def cut_the_primary_from_members(self) -> Callable[[], object]:
        alone = self._machine(self.servers.wait_for_primary())
        for machine in self.machines:
            if machine is not alone:
                cut(alone, machine)
        return lambda: None

    def cut_the_primary_from_one(self) -> Callable[[], object]:
        alone = self._machine(self.servers.wait_for_primary())
        cut(alone, self.chance.choice([one for one in self.machines if one is not alone]))
        return lambda: None

    def cut_the_primary_from_etcd(self) -> Callable[[], object]:
        # Clients are there, too.
        self._machine(self.servers.wait_for_primary()).lose(BRIDGE)
        return lambda: None

    def cut_the_primary_from_all(self) -> Callable[[], object]:
        self.cut_the_primary_from_members()
        return self.cut_the_primary_from_etcd()

    def cut_a_pair(self) -> Callable[[], object]:
        cut(*self.chance.sample(self.machines, 2))
        return lambda: None

    def kill_etcd(self) -> Callable[[], object]:
        self.etcd.kill()
        return self.etcd.start

    def kill_etcd_and_the_primary(self) -> Callable[[], object]:
        self.etcd.kill()
        launch = self.kill_the_primary()

        def mend() -> None:
            self.etcd.start()
            launch()

        return mend

    def change_the_primary(self) -> Callable[[], object]:
        server = self.chance.choice(self.servers.servers)
        words = self.chance.choice([("CLUSTER", "FAILOVER"), ("CLUSTER", "FAILOVER", "FORCE")])
        with RawClient(server.port, host=server.host) as client:
            client.call(*words)
        return lambda: None


FAULTS = (
    MemberRounds.kill_the_primary, MemberRounds.kill_a_server, MemberRounds.suspend_the_primary,
    MemberRounds.cut_the_primary_from_members, MemberRounds.cut_the_primary_from_one,
    MemberRounds.cut_the_primary_from_etcd, MemberRounds.cut_the_primary_from_all,
    MemberRounds.cut_a_pair, MemberRounds.kill_etcd, MemberRounds.kill_etcd_and_the_primary,
    MemberRounds.change_the_primary,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.member_rounds")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    enter()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="member-rounds") as folder:
        rounds = MemberRounds(Path(folder), options.seed)
        try:
            rounds.servers.start()
            for number in range(options.rounds):
                rounds.play(number)
                shown = sorted(rounds.gaps_s)[len(rounds.gaps_s) // 2]
                print(f"round {number}: {rounds.counts}, gap {rounds.gaps_s[-1]:.2f} s, "
                      f"median {shown:.2f} s", flush=True)  # fmt: skip
        except AssertionError:
            for server in rounds.servers.servers:
                print(f"{server.log_path}\n{server.log[-LOG_LETTERS:]}", flush=True)
            raise
        finally:
            rounds.close()
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
