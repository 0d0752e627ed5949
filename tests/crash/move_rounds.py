"""`python -m tests.crash.move_rounds --rounds 50`: slots move while machines fail, as root.

Three machines (`tests/support/namespaces`) have a member of each of two shards; the map is in a
real etcd. Clients append to streams of several slots, and read them, all the time. Meanwhile slots
move to and fro, also the same ones at once, and some moves are canceled. In each round something
fails, mostly while a move is in a certain step: a server is killed or suspended, machines lose each
other or etcd, etcd is killed, an operator changes a primary. Then everything works again, and all
moves end.

The history of each stream is checked at the end of a round, as that of `member_rounds`: what was
answered is there once, with the ID of its reply, in order; what any read has shown is there.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.crash.machine_rounds import (
    FAILOVERS,
    Append,
    EntryId,
    MachineRounds,
    Mend,
    Read,
    entries_of,
    nothing,
    play_rounds,
    send_append,
    send_read,
)
from tests.support.background import Background
from tests.support.client import ConnectionClosed, RawClient
from tests.support.member_servers import MemberServers, ask
from tests.support.resp import Error, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.cli_error import CliError
from millstream.server.cluster.cluster_view import view_of
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
STEPS = (Step.COPYING, Step.HANDING, Step.MOVED, Step.DONE)


class MovingClient(Background):
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
        super().__init__()

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

    def _ask(self, client: RawClient, stream: str, reads_replica: bool) -> Append | Read | Error:
        if reads_replica or self._chance.random() < 0.2:
            shown = send_read(client, stream, of_primary=not reads_replica)
            if not isinstance(shown, Error):
                self.reads.setdefault(stream, []).append(shown)
            return shown
        self._sent += 1
        appended = send_append(client, stream, b"%d-%d" % (self._number, self._sent))
        if not isinstance(appended, Error):
            self.appends.setdefault(stream, []).append(appended)
        return appended


class Mover(Background):
    """Orders and cancels moves all the time, until it is stopped."""

    def __init__(self, rounds: MoveRounds, seed: str) -> None:
        self._rounds = rounds
        self._chance = random.Random(seed)
        super().__init__()

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
            await order_moves(store, ranges_of(slots), target, lambda sentence: None)

    async def _cancel(self, store: Store) -> None:
        for move, found in view_of(await store.read()).moves.items():
            record = canceled(found.record, int(time.time() * 1000))
            if record is not None:
                change = Change(MOVE + move, encode(record))
                await store.commit([Compare(MOVE + move, found.version)], [change])
                return


class MoveRounds(MachineRounds):
    """The two shards, their moves, and what happens to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        given = {"enable-debug-command": "yes"}
        first = MemberServers(
            folder / "a", self.etcd, machines=self.machines, shards=2, given=given
        )
        second = MemberServers(
            folder / "b", self.etcd, machines=self.machines, neighbour=first, given=given
        )
        self.shards = (first, second)
        self.ended: dict[str, Step] = {}
        self.failures: set[str] = set()
        self.retries: dict[str, int] = {}
        self._is_etcd_killed = False
        self._known: dict[str, Server] = {}

    def start(self) -> None:
        for shard in self.shards:
            shard.start()
            shard.probe = ""

    def use_store(self, use: Callable[[Store], object]) -> None:
        asyncio.run(use(open_store(self.shards[0].settings)))  # type: ignore[arg-type]

    def summary(self) -> str:
        return f"{super().summary()} {self.failures or ''}"

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
        self.heal()
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
                self.check_stream(appends, reads, self._entries(stream, primaries))
            except AssertionError as problem:
                raise AssertionError(f"{stream}: {problem}") from None
        moves = self.view().moves
        self.ended |= {move: found.record.step for move, found in moves.items()}
        self.failures |= {
            found.record.reason for found in moves.values() if found.record.step is Step.FAILED
        }
        steps = list(self.ended.values())
        self.counts |= {step: steps.count(step) for step in set(steps)}
        self.retries |= {move: found.record.retries for move, found in moves.items()}
        self.counts["taken back"] = sum(self.retries.values())

    def _entries(self, stream: str, primaries: list[Server]) -> dict[EntryId, bytes]:
        for server in primaries:
            with RawClient(server.port, host=server.host) as client:
                rows = client.call("XRANGE", stream, "-", "+")
            if isinstance(rows, list):
                return entries_of(rows)
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

    def kill_a_primary(self) -> Mend:
        return self._killed(self._primary())

    def _killed(self, server: Server) -> Mend:
        """Kill a server, if it runs."""
        if not server.is_alive():
            return nothing
        server.kill()
        return server.launch

    def kill_both_primaries(self) -> Mend:
        return _all([self._killed(server) for server in self._primaries()])

    def kill_a_primary_shortly(self) -> Mend:
        self._killed(self._primary())()
        return nothing

    def kill_a_server(self) -> Mend:
        return self._killed(self.chance.choice(self.servers))

    def suspend_a_primary(self) -> Mend:
        server = self._primary()
        if not server.is_alive():
            return nothing
        server.signal(signal.SIGSTOP)
        return lambda: server.is_alive() and server.signal(signal.SIGCONT)

    def cut_a_primary_from_machines(self) -> Mend:
        return self._cut_from_machines(self._primary())

    def cut_a_primary_from_etcd(self) -> Mend:
        return self._cut_from_etcd(self._primary())

    def cut_a_primary_from_all(self) -> Mend:
        self.cut_a_primary_from_machines()
        return self.cut_a_primary_from_etcd()

    def kill_etcd(self) -> Mend:
        if self._is_etcd_killed:
            return nothing
        self._is_etcd_killed = True
        self.etcd.kill()

        def mend() -> None:
            self.etcd.start()
            self._is_etcd_killed = False

        return mend

    def change_a_primary(self) -> Mend:
        server = self.chance.choice(self.servers)
        ask(server, *self.chance.choice(FAILOVERS))
        return nothing


def _all(mends: list[Mend]) -> Mend:
    return lambda: [mend() for mend in mends]


FAULTS = (
    MoveRounds.kill_a_primary, MoveRounds.kill_both_primaries, MoveRounds.kill_a_primary_shortly,
    MoveRounds.kill_a_server, MoveRounds.suspend_a_primary, MoveRounds.cut_a_primary_from_machines,
    MoveRounds.cut_a_primary_from_etcd, MoveRounds.cut_a_primary_from_all, MoveRounds.cut_a_pair,
    MoveRounds.kill_etcd, MoveRounds.change_a_primary, MoveRounds.change_a_primary,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(play_rounds("move_rounds", MoveRounds))
