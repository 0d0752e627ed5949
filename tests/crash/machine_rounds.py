"""The common part of the rounds of clusters: the history of clients, machines, the program.

Each member of a shard is on a machine of its own (`tests/support/namespaces`), and the map is in a
real etcd. `python -m tests.crash.member_rounds` and `python -m tests.crash.move_rounds` play many
rounds, as root.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers
from tests.support.namespaces import BRIDGE, Machine, cut, enter
from tests.support.resp import Error
from tests.support.server import Server

from millstream.server.cluster.cluster_view import ClusterView
from millstream.server.cluster.store.store import Refused, Unreachable

STALE_S = 5.0  # cluster-lease and the node timeout
LOG_LETTERS = 12_000  # of each server, after a failure
FAILOVERS = [("CLUSTER", "FAILOVER"), ("CLUSTER", "FAILOVER", "FORCE")]

EntryId = tuple[int, int]
Mend = Callable[[], object]


class Append(NamedTuple):
    value: bytes
    id: EntryId
    sent_s: float
    answered_s: float


class Read(NamedTuple):
    ids: frozenset[EntryId]
    of_primary: bool
    sent_s: float


def parsed(text: object) -> EntryId:
    assert isinstance(text, bytes)
    ms, seq = text.split(b"-")
    return int(ms), int(seq)


def send_append(client: RawClient, stream: str, value: bytes) -> Append | Error:
    sent_s = time.monotonic()
    reply = client.call("XADD", stream, "*", "v", value)
    if isinstance(reply, Error):
        return reply
    return Append(value, parsed(reply), sent_s, time.monotonic())


def send_read(client: RawClient, stream: str, *, of_primary: bool) -> Read | Error:
    sent_s = time.monotonic()
    reply = client.call("XREVRANGE", stream, "+", "-", "COUNT", "50")
    if isinstance(reply, Error):
        return reply
    assert isinstance(reply, list)
    ids = frozenset(parsed(row[0]) for row in reply if isinstance(row, list))
    return Read(ids, of_primary, sent_s)


def check(appends: Sequence[Append], reads: Sequence[Read], found: dict[EntryId, bytes]) -> None:
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


def entries_of(rows: list[object]) -> dict[EntryId, bytes]:
    """The values of the entries in a reply to XRANGE."""
    return {parsed(row[0]): row[1][1] for row in rows}  # type: ignore[index]


def nothing() -> None:
    """The end of a fault that heals when all machines find each other again."""


class MachineRounds:
    """Three machines and etcd, and what happens to the servers of these shards on them."""

    shards: Sequence[MemberServers]

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machines = [Machine(number) for number in (1, 2, 3)]
        self.etcd = Etcd(folder / "etcd", host=BRIDGE).start()
        self.counts: dict[str, int] = {}
        self.gaps_s: list[float] = []  # between two confirmed appends to a stream

    @property
    def servers(self) -> list[Server]:
        return [server for shard in self.shards for server in shard.servers]

    def start(self) -> None:
        for shard in self.shards:
            shard.start()

    def close(self) -> None:
        for shard in self.shards:
            shard.kill()
        self.etcd.kill()
        for machine in self.machines:
            machine.close()

    def view(self) -> ClusterView:
        return self.shards[0].view()

    def count(self, name: str, more: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + more

    def play(self, number: int) -> None:
        """One round."""
        raise NotImplementedError

    def heal(self) -> None:
        """All machines find each other, and etcd."""
        for machine in self.machines:
            for address in (BRIDGE, *(other.address for other in self.machines)):
                if address != machine.address:
                    machine.find(address)

    def check_stream(
        self, appends: Sequence[Append], reads: Sequence[Read], found: dict[EntryId, bytes]
    ) -> None:
        check(appends, reads, found)
        ends = sorted(append.answered_s for append in appends)
        self.gaps_s.append(max((b - a for a, b in pairwise(ends)), default=0))
        self.count("appends", len(appends))
        self.count("reads", len(reads))

    def summary(self) -> str:
        gaps_s = sorted(self.gaps_s)
        middle_s = gaps_s[len(gaps_s) // 2]
        return f"{self.counts}, gap median {middle_s:.2f} s, longest {gaps_s[-1]:.2f} s"

    def show_failure(self) -> None:
        print(self.counts, flush=True)
        with suppress(Unreachable, Refused):
            print(self.view(), flush=True)
        for server in self.servers:
            print(f"{server.log_path}\n{server.log[-LOG_LETTERS:]}", flush=True)

    # Faults. Each returns what ends it.

    def _machine(self, server: Server) -> Machine:
        return next(one for one in self.machines if one.address == server.host)

    def _cut_from_machines(self, server: Server) -> Mend:
        alone = self._machine(server)
        for machine in self.machines:
            if machine is not alone:
                cut(alone, machine)
        return nothing

    def _cut_from_etcd(self, server: Server) -> Mend:
        """Clients are there, too."""
        self._machine(server).lose(BRIDGE)
        return nothing

    def cut_a_pair(self) -> Mend:
        cut(*self.chance.sample(self.machines, 2))
        return nothing


def play_rounds(program: str, make: Callable[[Path, int], MachineRounds]) -> int:
    """The program of this name: rounds on machines of its own, with the history of each checked."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parser = argparse.ArgumentParser(prog=f"python -m tests.crash.{program}")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    enter()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix=program) as folder:
        rounds = make(Path(folder), options.seed)
        try:
            rounds.start()
            for number in range(options.rounds):
                rounds.play(number)
                print(f"round {number}: {rounds.summary()}", flush=True)
        except AssertionError:
            rounds.show_failure()
            raise
        finally:
            rounds.close()
    return 0
