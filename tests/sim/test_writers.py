"""Writers with reservations on a simulated server: crashes, full disks, and a clock that jumps.

Writers complete late, abort, renew and vanish; others append, also with IDs of their own. Readers
follow with TREAD, TMREAD (with and without CLOCK) and TPEEK. Some leases are so short that they
end, and some streams hold so little that they stall. The rules that hold for any outcome are in
`tests/support/writers.py`; after each crash they are checked.
`python -m tests.sim.test_writers --seeds 300` looks for more.
"""

from __future__ import annotations

import argparse
import random
import sys

import pytest
from tests.sim.data import Data
from tests.sim.players import Player as SimPlayer
from tests.sim.players import Profile
from tests.sim.test_full_disk import FULL, heard
from tests.sim.world import SimClient, World
from tests.support.fakedisk import FakeDisk
from tests.support.resp import Reply, encode_command
from tests.support.writers import (
    Appender,
    Asking,
    Explicit,
    Keeper,
    Player,
    Reading,
    Record,
    Writer,
    all_readers,
    check,
    finish,
)

START_MS = 1_700_000_000_000
STEPS = 1500
HOUR_MS = 3_600_000
JUMPS_MS = [-HOUR_MS, -1000, -10, -1, 10, 5000, HOUR_MS]
SHORT_LEASE_MS = b"80"
KEEPING = (b"BGREWRITEAOF",), (b"BGSAVE",), (b"PING",)


class FreeWorld(World):
    """A world without a check of its effects: only the replies to its clients are checked."""

    def frame(self, seq: int, payload: bytes) -> None:
        pass

    def log(self, sentence: str) -> None:
        pass


class Talk:
    """A player and its connection to one run of the server."""

    def __init__(self, asking: Asking, client: SimClient) -> None:
        self.asking = asking
        self.client = client
        self.request: tuple[bytes, ...] | None = None
        self.waits = False
        self.ended = False

    def say(self) -> None:
        if self.request is None:
            self.request = next(self.asking)
        self.waits = True
        self.client.world.executor.feed(self.client, encode_command(list(self.request)))

    def listen(self) -> None:
        """Process the received replies."""
        assert not self.client.ended, "a connection was closed"
        for reply in heard(self.client):
            self.hear(reply)

    def hear(self, reply: Reply) -> None:
        assert self.waits, f"a reply that nothing asked for: {reply!r}"
        self.waits = False
        try:
            self.request = self.asking.send(reply)
        except StopIteration:
            self.ended = True


class Play:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.disk = FakeDisk(seed)
        self.fsync = self.chance.choice(["always", "always", "everysec", "no"])
        self.node_entries = self.chance.choice([1, 3, 100])
        self.held_max_bytes = self.chance.choice([0, 256 << 20, 500, 3000])
        self.reservations_max = self.chance.choice([10_000, 10_000, 12])
        self.writers_max = self.chance.choice([1, 3, 1000])
        self.fills = self.chance.random() < 0.3
        self.jumps = self.chance.random() < 0.5
        self.has_explicit = self.chance.random() < 0.5
        self.record = Record(self.chance.choice([2, 6, 12]))
        for mine in self.record.writers:
            if self.chance.random() < 0.3:
                mine.lease_ms = SHORT_LEASE_MS
        self.readers = all_readers()
        self.crashes = 0
        self.wall_ms = START_MS
        self.talks: list[Talk] = []
        self.begin_life()

    # ---------------------------------------------------------------- one run of the server

    def begin_life(self) -> None:
        profile = Profile(
            fsync=self.fsync, refuses_large=True, node_entries=self.node_entries,
            rewrite_bytes=self.chance.choice([64 << 20, 4000]),
        )  # fmt: skip
        self.world = FreeWorld(self.disk, profile, self.chance, self.wall_ms, Data())
        self.world.keyspace.held_max_bytes = self.held_max_bytes
        self.world.keyspace.reservations_max = self.reservations_max
        self.world.keyspace.writers_max = self.writers_max
        self.world.start()
        self.run_alone(check(self.record, self.readers))
        self.talks = [Talk(player.play(), self.new_client()) for player in self.players()]

    def players(self) -> list[Player]:
        name, record, full = f"{self.seed}/{self.crashes}", self.record, (FULL,)
        players: list[Player] = [
            *(Writer(record, f"{name}/{one.name!r}", one, full) for one in record.writers),
            Appender(record, f"{name}/a", full),
            *(Reading(record, name, reader) for reader in self.readers),
            Keeper(record, name, KEEPING),
        ]
        if self.has_explicit:
            players.append(Explicit(record, f"{name}/e", self.world.now_ms, full))
        return players

    def new_client(self) -> SimClient:
        player = SimPlayer(self.chance, self.world.profile, self.world.now_ms)
        client = SimClient(self.world, player, len(self.world.clients) + 1, 2)
        self.world.executor.attach(client)
        self.world.clients[client.id] = client
        return client

    def crash(self) -> None:
        """The process dies; with `always` sometimes the power fails."""
        self.crashes += 1
        self.wall_ms = self.world.now_ms() + self.chance.choice([0, 1, 1000])
        self.disk.mend()
        if self.fsync == "always" and self.chance.random() < 0.5:
            self.disk = self.disk.after_crash(self.chance.randrange(2**32))
        self.disk.locked = False
        self.world.abandon()
        self.begin_life()

    # ---------------------------------------------------------------- events

    def run(self) -> None:
        for _ in range(STEPS):
            roll = self.chance.random()
            if roll < 0.4:
                talk = self.chance.choice(self.talks)
                if not talk.waits:
                    talk.say()
            elif roll < 0.41 and self.fills:
                self.disk.fill_or_free(self.chance.choice([0, 500, 5000]))
            elif roll < 0.45:
                self.world.loop.time_ms += self.chance.choice([1, 5, 30, 300])
            elif roll < 0.455 and self.jumps:
                self.world.wall_ms += self.chance.choice(JUMPS_MS)
            elif roll < 0.459:
                self.crash()
            else:
                self.world.step()
            self.listen()
        self.crash()
        self.run_alone(finish(self.readers))

    def listen(self) -> None:
        for talk in self.talks:
            talk.listen()

    def run_alone(self, asking: Asking) -> None:
        """Run a player to its end, without other events."""
        talk = Talk(asking, self.new_client())
        while not talk.ended:
            if not talk.waits:
                talk.say()
            if not self.world.step():
                self.world.loop.time_ms += 10
            talk.listen()


def play(seed: int) -> Play:
    one = Play(seed)
    try:
        one.run()
    except AssertionError as failure:
        raise AssertionError(f"seed {seed}: {failure}") from failure
    return one


@pytest.mark.parametrize("batch", range(4))
def test_writers_and_readers_agree_after_any_fault(batch: int) -> None:
    plays = [play(seed) for seed in range(batch * 6, batch * 6 + 6)]
    books = [book for one in plays for book in one.record.books.values()]
    assert sum(one.crashes for one in plays) > 10
    assert sum(len(book.completed) for book in books) > 300
    assert sum(len(book.given_up) for book in books) > 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.test_writers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    failures = crashes = completed = refused = 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            one = play(seed)
        except Exception as failure:
            failures += 1
            print(f"seed {seed}: {type(failure).__name__} {failure}", flush=True)
        else:
            crashes += one.crashes
            completed += sum(len(book.completed) for book in one.record.books.values())
            refused += one.record.refused
    print(f"{failures} failed; {crashes} crashes, {completed} completed, {refused} refused")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
