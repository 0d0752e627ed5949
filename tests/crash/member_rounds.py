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

import random
import signal
import sys
import time
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
from tests.support.namespaces import cut
from tests.support.resp import Error, Simple
from tests.support.waiting import wait_until

FAULT_S = (0.5, 4.0)
QUIET_S = 40.0  # until all members follow one primary
CLIENTS = 4


class HistoryClient(Background):
    """Appends and reads at servers that it chooses at random, until it is stopped."""

    def __init__(self, servers: MemberServers, stream: str, number: int, seed: str) -> None:
        self.appends: list[Append] = []
        self.reads: list[Read] = []
        self.refused = 0
        self._servers = servers.servers
        self._stream = stream
        self._number = number
        self._chance = random.Random(seed)
        super().__init__()

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
            if reads_replica or self._chance.random() < 0.2:
                shown = send_read(client, self._stream, of_primary=not reads_replica)
                if isinstance(shown, Error):
                    self.refused += 1
                    return
                self.reads.append(shown)
            else:
                value = b"%d-%d" % (self._number, len(self.appends) + self.refused)
                appended = send_append(client, self._stream, value)
                if isinstance(appended, Error):
                    self.refused += 1
                    return
                self.appends.append(appended)


class MemberRounds(MachineRounds):
    """The shard, and what happens to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.shard = MemberServers(folder, self.etcd, machines=self.machines)
        self.shards = (self.shard,)

    def play(self, number: int) -> None:
        """One round."""
        stream = f"s{number}"  # a new one: a replica may still show what was trimmed
        clients = [
            HistoryClient(self.shard, stream, index, f"{number}-{index}")
            for index in range(CLIENTS)
        ]
        time.sleep(0.5)
        fault = self.chance.choice(FAULTS)
        self.count(fault.__name__)
        mend = fault(self)
        time.sleep(self.chance.uniform(*FAULT_S))
        mend()
        self.heal()
        self.shard.wait_for_followers(QUIET_S)
        for client in clients:
            client.stop()
        appends = [one for client in clients for one in client.appends]
        reads = [one for client in clients for one in client.reads]
        self.check_stream(appends, reads, self._entries(stream))

    def _entries(self, stream: str) -> dict[EntryId, bytes]:
        """Of the primary: it may change once more, after a request of a member from before."""
        rows = wait_until(
            lambda: ask(self.shard.wait_for_followers(QUIET_S), "XRANGE", stream, "-", "+"),
            lambda reply: isinstance(reply, list),
            "the entries",
        )
        assert isinstance(rows, list)
        return entries_of(rows)

    # Faults. Each returns what ends it.

    def kill_the_primary(self) -> Mend:
        server = self.shard.wait_for_primary()
        server.kill()
        return server.launch

    def kill_a_server(self) -> Mend:
        server = self.chance.choice(self.servers)
        server.kill()
        return server.launch

    def suspend_the_primary(self) -> Mend:
        server = self.shard.wait_for_primary()
        server.signal(signal.SIGSTOP)
        return lambda: server.signal(signal.SIGCONT)

    def cut_the_primary_from_members(self) -> Mend:
        return self._cut_from_machines(self.shard.wait_for_primary())

    def cut_the_primary_from_one(self) -> Mend:
        alone = self._machine(self.shard.wait_for_primary())
        cut(alone, self.chance.choice([one for one in self.machines if one is not alone]))
        return nothing

    def cut_the_primary_from_etcd(self) -> Mend:
        return self._cut_from_etcd(self.shard.wait_for_primary())

    def cut_the_primary_from_all(self) -> Mend:
        self.cut_the_primary_from_members()
        return self.cut_the_primary_from_etcd()

    def kill_etcd(self) -> Mend:
        self.etcd.kill()
        return self.etcd.start

    def kill_etcd_and_the_primary(self) -> Mend:
        self.etcd.kill()
        launch = self.kill_the_primary()

        def mend() -> None:
            self.etcd.start()
            launch()

        return mend

    def change_the_primary(self) -> Mend:
        server = self.chance.choice(self.servers)
        words = self.chance.choice(FAILOVERS)
        with RawClient(server.port, host=server.host) as client:
            client.call(*words)
        return nothing


FAULTS = (
    MemberRounds.kill_the_primary, MemberRounds.kill_a_server, MemberRounds.suspend_the_primary,
    MemberRounds.cut_the_primary_from_members, MemberRounds.cut_the_primary_from_one,
    MemberRounds.cut_the_primary_from_etcd, MemberRounds.cut_the_primary_from_all,
    MemberRounds.cut_a_pair, MemberRounds.kill_etcd, MemberRounds.kill_etcd_and_the_primary,
    MemberRounds.change_the_primary,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(play_rounds("member_rounds", MemberRounds))
