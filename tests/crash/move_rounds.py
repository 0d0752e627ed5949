"""`python -m tests.crash.move_rounds --rounds 50`: slots move while machines fail, as root.

Three machines (`tests/support/namespaces`) have a member of each of two shards; the map is in a
real etcd. Clients append to streams of several slots, and read them, all the time. Meanwhile slots
move to and fro, also the same ones at once, and some moves are canceled. In each round something
fails, mostly while a move is in a certain step: a server is killed or suspended, machines lose each
other or etcd, etcd is killed, an operator changes a primary. Then everything works again, and all
moves end.

The history of each stream is checked at the end of a round, as `member_rounds` does it: what was
answered is there once, with the ID of its reply, in order; what any read has shown is there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from tests.crash.member_rounds import Append, Read, check, parsed
from tests.support.client import ConnectionClosed, RawClient
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask
from tests.support.namespaces import BRIDGE, Machine, cut, enter
from tests.support.resp import Error, Reply, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.cli_error import CliError
from millstream.server.cluster.cluster_view import ClusterView, view_of
from millstream.server.cluster.slot_moves.move_judge import canceled
from millstream.server.cluster.slot_moves.move_orders import order_moves
from millstream.server.cluster.slot_moves.move_rules import ENDED
from millstream.server.cluster.store.records import MOVE, Step, encode
from millstream.server.cluster.store.store import Change, Compare, Refused, Store, Unreachable
from millstream.server.cluster.store.store_opening import open_store
from millstream.storage.keyspace.slot_ranges import ranges_of

FAULT_S = (0.3, 4.0)
STEP_S = 4.0  # until a move is in the step in which something fails
QUIET_S = 60.0
CLIENTS = 5
STREAMS = 8
SLOTS = 16384
LOG_LETTERS = 12_000  # of each server, after a failure
STEPS = (Step.COPYING, Step.HANDING, Step.MOVED, Step.DONE)


class MovingClient:
    """Appends to streams and reads them, where MOVED says, or at any server."""

    def __init__(self, servers: list[Server], round_number: int, number: int) -> None:
        self.appends: dict[str, list[Append]] = {}
        self.reads: dict[str, list[Read]] = {}
        self.refused: dict[str, int] = {}
        self._servers = servers
        self._streams = [f"s{round_number}-{at}" for at in range(STREAMS)]
        self._number = number
        self._sent = 0
        self._chance = random.Random(f"{round_number}-{number}")
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        at = ("", 0)
        while not self._is_stopped.is_set():
            if not at[1] or self._chance.random() < 0.1:
                server = self._chance.choice(self._servers)
                at = server.host, server.port
            try:
                with RawClient(at[1], timeout_s=1.0, host=at[0]) as client:
                    at = self._talk(client)
            except (OSError, ConnectionClosed):
                at = ("", 0)
                self._count("cut")
            self._is_stopped.wait(0.005)

    def _count(self, word: str) -> None:
        self.refused[word] = self.refused.get(word, 0) + 1

    def _talk(self, client: RawClient) -> tuple[str, int]:
        """Some requests for one stream, until one is refused; the address for the next ones."""
        stream = self._chance.choice(self._streams)
        reads_replica = self._chance.random() < 0.15
        if reads_replica:
            assert client.call("READONLY") == Simple("OK")
        for _ in range(20):
            if self._is_stopped.is_set():
                break
            reply = self._ask(client, stream, reads_replica)
            if isinstance(reply, Error):
                word, *rest = reply.text.split()
                self._count(word)
                if word == "MOVED":
                    host, _, port = rest[1].rpartition(":")
                    return host, int(port)
                break
        return ("", 0)

    def _ask(self, client: RawClient, stream: str, reads_replica: bool) -> Reply:
        sent_s = time.monotonic()
        if reads_replica or self._chance.random() < 0.2:
            reply = client.call("XREVRANGE", stream, "+", "-", "COUNT", "50")
            if not isinstance(reply, Error):
                assert isinstance(reply, list)
                ids = frozenset(parsed(row[0]) for row in reply if isinstance(row, list))
                found = Read(ids, not reads_replica, sent_s)
                self.reads.setdefault(stream, []).append(found)
            return reply
        self._sent += 1
        value = b"%d-%d" % (self._number, self._sent)
        reply = client.call("XADD", stream, "*", "v", value)
        if not isinstance(reply, Error):
            append = Append(value, parsed(reply), sent_s, time.monotonic())
            self.appends.setdefault(stream, []).append(append)
        return reply


class Mover:
    """Orders and cancels moves all the time, until it is stopped."""

    def __init__(self, rounds: MoveRounds, seed: str) -> None:
        self._rounds = rounds
        self._chance = random.Random(seed)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._chance.uniform(0.1, 1.0)):
            try:
                self._rounds.use_store(self._order)
            except (CliError, Unreachable, Refused, TimeoutError) as problem:
                self._rounds.count(f"order: {type(problem).__name__}")

    async def _order(self, store: Store) -> None:
        async with asyncio.timeout(3):
            if self._chance.random() < 0.1:
                await self._cancel(store)
                return
            edges = sorted(self._chance.sample(range(SLOTS), 4))
            ranges = ((edges[0], edges[1]), (edges[2], edges[3]))
            slots = [slot for first, last in ranges for slot in range(first, last + 1)]
            target = self._chance.choice(["s1", "s2"])
            await order_moves(store, ranges_of(slots), target)

    async def _cancel(self, store: Store) -> None:
        for move, found in view_of(await store.read()).moves.items():
            record = canceled(found.record, int(time.time() * 1000))
            if record is not None:
                change = Change(MOVE + move, encode(record))
                await store.commit([Compare(MOVE + move, found.version)], [change])
                return


class MoveRounds:
    """The shards, their machines, and what happens to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machines = [Machine(number) for number in (1, 2, 3)]
        self.etcd = Etcd(folder / "etcd", host=BRIDGE).start()
        given = {"enable-debug-command": "yes"}
        first = MemberServers(
            folder / "a", self.etcd, machines=self.machines, shards=2, given=given
        )
        second = MemberServers(
            folder / "b", self.etcd, machines=self.machines, neighbour=first, given=given
        )
        self.shards = (first, second)
        self.servers = first.servers + second.servers
        self.counts: dict[str, int] = {}
        self.ended: dict[str, Step] = {}
        self.failures: set[str] = set()
        self.retries: dict[str, int] = {}
        self._is_etcd_killed = False
        self._known: dict[str, Server] = {}
        self.gaps_s: list[float] = []  # between two confirmed appends to a stream

    def start(self) -> None:
        for shard in self.shards:
            shard.start()
            shard.probe = ""

    def close(self) -> None:
        for shard in self.shards:
            shard.kill()
        self.etcd.kill()
        for machine in self.machines:
            machine.close()

    def use_store(self, use: Callable[[Store], object]) -> None:
        asyncio.run(use(open_store(self.shards[0].settings)))  # type: ignore[arg-type]

    def view(self) -> ClusterView:
        return self.shards[0].view()

    def count(self, name: str, more: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + more

    def play(self, number: int) -> None:
        """One round."""
        clients = [MovingClient(self.servers, number, index) for index in range(CLIENTS)]
        mover = Mover(self, f"{number}")
        time.sleep(0.5)
        mends = []
        for _ in range(self.chance.choice([1, 1, 2])):
            if self.chance.random() < 0.7:
                self._wait_for_step(self.chance.choice(STEPS))
            fault = self.chance.choice(FAULTS)
            self.count(fault.__name__)
            mends.append(fault(self))
            time.sleep(self.chance.uniform(*FAULT_S))
        for mend in reversed(mends):
            mend()
        for machine in self.machines:
            for address in (BRIDGE, *(other.address for other in self.machines)):
                if address != machine.address:
                    machine.find(address)
        mover.stop()
        for shard in self.shards:
            shard.wait_for_followers(QUIET_S)
        wait_until(self._has_ended, what="the end of all moves", deadline_s=QUIET_S)
        time.sleep(0.3)
        for client in clients:
            client.stop()
        self._check(number, clients)
        for client in clients:
            for word, count in client.refused.items():
                self.count(word, count)

    def _wait_for_step(self, step: Step) -> None:
        end_s = time.monotonic() + STEP_S
        while time.monotonic() < end_s and not self._is_etcd_killed:
            moves = self.view().moves.values()
            newest = max(moves, key=lambda one: one.version, default=None)
            if newest is not None and newest.record.step is step:
                self.count(f"at {step}")
                return
            time.sleep(0.01)

    def _has_ended(self) -> bool:
        if any(found.record.step not in ENDED for found in self.view().moves.values()):
            return False
        infos = [ask(server, "CLUSTER", "INFO") for server in self.servers]
        return all(isinstance(one, bytes) and b"cluster_moves:0" in one for one in infos)

    def _check(self, number: int, clients: list[MovingClient]) -> None:
        primaries = [shard.wait_for_primary() for shard in self.shards]
        keys: list[bytes] = []
        for server in primaries:
            found = ask(server, "KEYS", "*")
            assert isinstance(found, list)
            keys += found  # type: ignore[arg-type]
        assert len(keys) == len(set(keys)), "a key is at two shards"
        for at in range(STREAMS):
            stream = f"s{number}-{at}"
            appends = [one for client in clients for one in client.appends.get(stream, ())]
            reads = [one for client in clients for one in client.reads.get(stream, ())]
            try:
                check(appends, reads, self._entries(stream, primaries))
            except AssertionError as problem:
                raise AssertionError(f"{stream}: {problem}") from None
            ends = sorted(append.answered_s for append in appends)
            self.gaps_s += [max((b - a for a, b in pairwise(ends)), default=0)]
            self.count("appends", len(appends))
            self.count("reads", len(reads))
        moves = self.view().moves
        self.ended |= {move: found.record.step for move, found in moves.items()}
        self.failures |= {
            found.record.reason for found in moves.values() if found.record.step is Step.FAILED
        }
        steps = list(self.ended.values())
        self.counts |= {step: steps.count(step) for step in set(steps)}
        self.retries |= {move: found.record.retries for move, found in moves.items()}
        self.counts["taken back"] = sum(self.retries.values())

    def _entries(self, stream: str, primaries: list[Server]) -> dict[tuple[int, int], bytes]:
        for server in primaries:
            with RawClient(server.port, host=server.host) as client:
                rows = client.call("XRANGE", stream, "-", "+")
            if isinstance(rows, list):
                return {parsed(row[0]): row[1][1] for row in rows}  # type: ignore[index, misc]
            assert isinstance(rows, Error), rows
            assert rows.text.startswith("MOVED"), rows.text
        raise AssertionError(f"no primary has {stream}")

    # Faults. Each returns what ends it.

    def _primaries(self) -> list[Server]:
        """The primaries as etcd has them, or has had them: a cut may hide them from here."""
        with suppress(Unreachable, Refused):
            view = self.view()
            for name, found in view.shards.items():
                node = view.nodes.get(found.record.primary)
                for server in self.servers if node is not None else ():
                    if (server.host, server.port) == (node.record.host, node.record.port):
                        self._known[name] = server
        return list(self._known.values())

    def _primary(self) -> Server:
        """The primary of one of the shards."""
        return self.chance.choice(self._primaries())

    def _machine(self, server: Server) -> Machine:
        return next(one for one in self.machines if one.address == server.host)

    def kill_a_primary(self) -> Callable[[], object]:
        return self._killed(self._primary())

    def _killed(self, server: Server) -> Callable[[], object]:
        """Kill a server, if it runs."""
        if not server.is_alive():
            return lambda: None
        server.kill()
        return server.launch

    def kill_both_primaries(self) -> Callable[[], object]:
        return _all([self._killed(server) for server in self._primaries()])

    def kill_a_primary_shortly(self) -> Callable[[], object]:
        self._killed(self._primary())()
        return lambda: None

    def kill_a_server(self) -> Callable[[], object]:
        return self._killed(self.chance.choice(self.servers))

    def suspend_a_primary(self) -> Callable[[], object]:
        server = self._primary()
        if not server.is_alive():
            return lambda: None
        server.signal(signal.SIGSTOP)
        return lambda: server.is_alive() and server.signal(signal.SIGCONT)

    def cut_a_primary_from_machines(self) -> Callable[[], object]:
        alone = self._machine(self._primary())
        for machine in self.machines:
            if machine is not alone:
                cut(alone, machine)
        return lambda: None

    def cut_a_primary_from_etcd(self) -> Callable[[], object]:
        self._machine(self._primary()).lose(BRIDGE)
        return lambda: None

    def cut_a_primary_from_all(self) -> Callable[[], object]:
        self.cut_a_primary_from_machines()
        return self.cut_a_primary_from_etcd()

    def cut_a_pair(self) -> Callable[[], object]:
        cut(*self.chance.sample(self.machines, 2))
        return lambda: None

    def kill_etcd(self) -> Callable[[], object]:
        if self._is_etcd_killed:
            return lambda: None
        self._is_etcd_killed = True
        self.etcd.kill()

        def mend() -> None:
            self.etcd.start()
            self._is_etcd_killed = False

        return mend

    def change_a_primary(self) -> Callable[[], object]:
        server = self.chance.choice(self.servers)
        words = self.chance.choice([("CLUSTER", "FAILOVER"), ("CLUSTER", "FAILOVER", "FORCE")])
        ask(server, *words)
        return lambda: None


def _all(mends: list[Callable[[], object]]) -> Callable[[], object]:
    return lambda: [mend() for mend in mends]


FAULTS = (
    MoveRounds.kill_a_primary, MoveRounds.kill_both_primaries, MoveRounds.kill_a_primary_shortly,
    MoveRounds.kill_a_server, MoveRounds.suspend_a_primary, MoveRounds.cut_a_primary_from_machines,
    MoveRounds.cut_a_primary_from_etcd, MoveRounds.cut_a_primary_from_all, MoveRounds.cut_a_pair,
    MoveRounds.kill_etcd, MoveRounds.change_a_primary, MoveRounds.change_a_primary,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.move_rounds")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    enter()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="move-rounds") as folder:
        rounds = MoveRounds(Path(folder), options.seed)
        try:
            rounds.start()
            for number in range(options.rounds):
                rounds.play(number)
                gaps_s = sorted(rounds.gaps_s)
                middle_s = gaps_s[len(gaps_s) // 2]
                shown = f"{rounds.counts} {rounds.failures or ''}"
                print(f"round {number}: {shown}, gap median {middle_s:.2f} s, longest "
                      f"{gaps_s[-1]:.2f} s", flush=True)  # fmt: skip
        except AssertionError:
            print(f"{rounds.counts}\n{rounds.view()}", flush=True)
            for server in rounds.servers:
                print(f"{server.log_path}\n{server.log[-LOG_LETTERS:]}", flush=True)
            raise
        finally:
            rounds.close()
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
