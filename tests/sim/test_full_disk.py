"""A full disk closes no connection: a request is refused before it changes data, or its effects are
in the journal.

The server has several clients whose requests, alone, in a transaction or through their
consequences, record far more than the space reserved for the journal, on a disk that is sometimes
full. The test does not predict which requests are refused: that depends on the progress of the
journal's worker.
"""

from __future__ import annotations

import contextlib
import random

import pytest
from tests.sim.data import Data
from tests.sim.players import Player, Profile
from tests.sim.world import SimClient, World
from tests.support.fakedisk import FakeDisk
from tests.support.resp import Error, Reply, encode_command, read_reply

START_MS = 1_700_000_000_000
STEPS = 300
FULL = "No space left on device"
SIZES = [10, 1000, 10_000, 40_000, 150_000]
Words = tuple[bytes, ...]


class Play:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = FakeDisk(seed)
        self.fsync = self.chance.choice(["always", "everysec", "no"])
        self.number = 0
        self.asked: dict[int, list[list[bytes]]] = {}  # by client, what each request appends
        self.refused = 0
        self.kept: list[bytes] = []
        self.world = self.new_world(self.disk)
        self.clients = [self.new_client() for _ in range(4)]

    def new_world(self, disk: FakeDisk) -> World:
        profile = Profile(fsync=self.fsync, refuses_large=True)
        world = World(disk, profile, self.chance, START_MS, Data())
        world.start()
        return world

    def new_client(self) -> SimClient:
        player = Player(self.chance, self.world.profile, self.world.now_ms)
        client = SimClient(self.world, player, len(self.world.clients) + 1, 2)
        self.world.executor.attach(client)
        self.world.clients[client.id] = client
        self.asked[client.id] = []
        return client

    # ---------------------------------------------------------------- events

    def run(self) -> None:
        self.send(self.clients[0], [((b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM"), [])])
        for _ in range(STEPS):
            roll = self.chance.random()
            if roll < 0.35:
                self.send(self.chance.choice(self.clients), self.requests())
            elif roll < 0.4:
                self.disk.fill_or_free(self.chance.choice([0, 5000, 50_000, 200_000]))
            elif roll < 0.45:
                self.world.loop.time_ms += 300
            else:
                self.world.step()
            self.look()
        self.disk.mend()
        self.settle()

    def settle(self) -> None:
        for _ in range(3):  # a second each, so that that retried work is
            while self.world.step():
                self.look()
            self.world.loop.time_ms += 1000

    def send(self, client: SimClient, requests: list[tuple[Words, list[bytes]]]) -> None:
        for _, appended in requests:
            self.asked[client.id].append(appended)
        self.world.executor.feed(client, b"".join(encode_command(words) for words, _ in requests))

    # ---------------------------------------------------------------- requests

    def requests(self) -> list[tuple[Words, list[bytes]]]:
        if self.chance.random() < 0.2:
            inner = [self.append() for _ in range(self.chance.randint(1, 4))]
            # A request that is refused when it is queued aborts the transaction.
            return [
                ((b"MULTI",), []),
                *((words, []) for words, _ in inner),
                ((b"EXEC",), [name for _, names in inner for name in names]),
            ]
        return [self.request() for _ in range(self.chance.randint(1, 4))]

    def request(self) -> tuple[Words, list[bytes]]:
        who = (b"g", self.chance.choice([b"alice", b"bob"]))
        roll = self.chance.random()
        if roll < 0.5:
            return self.append()
        return self.chance.choice(
            [
                (b"XREADGROUP", b"GROUP", *who, b"STREAMS", b"s", b">"),
                (b"XREADGROUP", b"GROUP", *who, b"STREAMS", b"s", b"0"),
                (b"XREADGROUP", b"GROUP", *who, b"CLAIM", b"0", b"STREAMS", b"s", b">"),
                (b"XAUTOCLAIM", b"s", *who, b"0", b"0", b"COUNT", b"1000", b"JUSTID"),
                (b"TREAD", b"s", b"0", b"1000", b"GROUP", b"h", b"0", b"RETRY", b"0", b"0"),
                (b"SET", b"k", bytes(self.chance.choice(SIZES))),
                (b"APPEND", b"k", bytes(self.chance.choice(SIZES))),
                (b"BGREWRITEAOF",),
            ]
        ), []

    def append(self) -> tuple[Words, list[bytes]]:
        self.number += 1
        name = b"n%d" % self.number
        return (b"XADD", b"s", b"*", name, bytes(self.chance.choice(SIZES))), [name]

    def start_again(self) -> None:
        """After a kill."""
        self.disk.locked = False
        self.world = self.new_world(self.disk)
        self.clients = [self.new_client()]

    def names(self) -> list[bytes]:
        """The names of all existing entries."""
        client = self.clients[0]
        self.world.executor.feed(client, encode_command([b"XRANGE", b"s", b"-", b"+"]))
        replies: list[Reply] = []
        while not replies:
            assert self.world.step(), "no answer"
            replies = heard(client)
        (entries,) = replies
        assert isinstance(entries, list)
        return sorted(entry[1][0] for entry in entries)  # type: ignore[index, misc]

    # ---------------------------------------------------------------- checks

    def look(self) -> None:
        assert not self.world.journal_failed, "a write has met the full disk"
        for client in self.clients:
            assert not client.ended, "a connection was closed"
            for reply in heard(client):
                self.take(self.asked[client.id].pop(0), reply)

    def take(self, appended: list[bytes], reply: Reply) -> None:
        if isinstance(reply, Error):
            assert FULL in reply.text or "EXECABORT" in reply.text or "in progress" in reply.text
            self.refused += 1
        else:
            assert not isinstance(reply, list) or not any(isinstance(r, Error) for r in reply)
            self.kept += appended


def heard(client: SimClient) -> list[Reply]:
    """The replies since the last call; one that is not whole yet is left."""
    client.unread += b"".join(chunk for chunk, *_ in client.received)
    client.received = []
    replies, at = [], 0
    with contextlib.suppress(EOFError):
        while at < len(client.unread):
            reply, at = read_reply(client.unread, at)
            replies.append(reply)
    client.unread = client.unread[at:]
    return replies


@pytest.mark.parametrize("batch", range(4))
def test_a_full_disk_refuses_changes_that_cannot_be_recorded(batch: int) -> None:
    refused = 0
    for seed in range(batch * 8, batch * 8 + 8):
        play = Play(seed)
        play.run()
        assert play.names() == sorted(play.kept), f"seed {seed}"
        play.start_again()
        assert play.names() == sorted(play.kept), f"seed {seed} after a kill"
        refused += play.refused
    assert refused > 100, "the disk is hardly ever full"
