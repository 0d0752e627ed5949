"""`python -m tests.crash.failover_rounds --rounds 50`: kill -9 of the primary, again and again.

A primary and its replica have the load of `rounds` (mode durable) or of `writer_rounds` (mode
reservations), with `replicas-durable 1`. After a random number of answers the primary is killed,
its replica becomes the primary, and the old one comes back as a replica. Then everything that any
client was answered must be true on the new primary: entries, groups, pending entries, retries,
numbers of producers, reservations. A retention policy must still trim. Both servers must be equal,
and the old primary must be back without a full sync.

In the mode wait, replies do not wait for the replica. Clients append, send WAIT 1, and take a reply
as an answer only if WAIT has confirmed it.

In the mode planned, no server is killed: real Sentinel promotes a replica of a primary that works
(`planned_rounds`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.crash.planned_rounds import PlannedRounds
from tests.crash.rounds import DIRECTIVES, Client, Producer, Request, Rounds, Sender
from tests.crash.writer_rounds import KEEPING, WriterRounds
from tests.support.client import ConnectionClosed, RawClient, as_bytes, as_list
from tests.support.resp import Error, Reply, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

BACK_DEADLINE_S = 60.0
POLICY = (b"TPOLICY", b"limited", b"MAXLEN", b"20", b"EXACT")


class FailoverPair:
    """Two servers, one of which follows the other. `kill` ends the primary, `start` makes the other
    one the primary and brings the killed server back as its replica."""

    def __init__(self, folder: Path, replicas_durable: int, **directives: str) -> None:
        given = {name.replace("_", "-"): value for name, value in directives.items()}
        given |= {"replicas-durable": str(replicas_durable), "appendfsync": "always"}
        self.primary = Server(folder / "a", given).start()
        self.replica = Server(folder / "b", {**given, **self._follows()}).start()
        self.full_syncs = 0
        self.rewinds = 0
        self._given = given
        self._wait_until_equal()

    def _follows(self) -> dict[str, str]:
        return {"replicaof": f"127.0.0.1 {self.primary.port}"}

    def client(self) -> RawClient:
        return self.primary.client()

    def kill(self) -> int:
        return self.primary.kill()

    def start(self) -> None:
        old, self.primary = self.primary, self.replica
        self.replica = old
        with self.client() as client:
            before = _count(client, "sync_full")
            assert not isinstance(client.call("REPLICAOF", "NO", "ONE"), Error)
            old.directives.clear()
            old.directives.update({**self._defaults(), **self._follows()})
            old.start()
            self._wait_until_equal()
            self.full_syncs += _count(client, "sync_full") - before
        with old.client() as client:
            self.rewinds += _count(client, "sync_rewinds")

    def _defaults(self) -> dict[str, str]:
        return {"enable-debug-command": "local", **self._given}

    def _wait_until_equal(self) -> None:
        def are_equal() -> bool:
            with self.primary.client() as one, self.replica.client() as other:
                facts, followed = one.info("replication"), other.info("replication")
            return (
                followed.get("master_link_status") == "up"
                and "state=online" in facts.get("slave0", "")
                and facts["master_repl_offset"] == followed["slave_repl_offset"]
            )

        wait_until(are_equal, what="a replica that is back", deadline_s=BACK_DEADLINE_S)

    def stop(self) -> None:
        for server in (self.primary, self.replica):
            if server.is_alive():
                server.kill()


def _count(client: RawClient, name: str) -> int:
    return int(client.info("stats")[name])


class FailoverRounds:
    """Rounds of one kind of load on one pair."""

    def __init__(self, pair: FailoverPair, load: Rounds | WriterRounds) -> None:
        self.pair = pair
        self.load = load

    def play(self) -> str:
        with self.pair.client() as client:
            _check_policy(client)
        played = self.load.play()
        assert self.pair.full_syncs == 0, "the old primary needed a full sync"
        with self.pair.client() as client:
            _check_policy(client)
        with self.pair.client() as one, self.pair.replica.client() as other:
            wait_until(
                lambda: _digest(one) == _digest(other),
                what="equal data",
                deadline_s=BACK_DEADLINE_S,
            )
        return f"{played}; {self.pair.rewinds} rewinds so far"


def _check_policy(client: RawClient) -> None:
    """The policy of a stream trims it on every primary."""
    if client.call("EXISTS", "limited") == 0:
        client.call("XADD", "limited", "*", "n", "0")
        client.call(*POLICY)
    client.pipeline([("XADD", "limited", "*", "n", str(number)) for number in range(30)])
    wait_until(lambda: client.call("XLEN", "limited"), lambda length: length == 20, "a trim")


def _digest(client: RawClient) -> list[Reply]:
    """The entries and groups of all streams, except for values that time alone changes."""
    found: list[Reply] = []
    for key in sorted(map(as_bytes, as_list(client.call("KEYS", "*")))):
        found.append(key)
        if client.call("TYPE", key) == Simple("stream"):
            found += [client.call("XRANGE", key, "-", "+"), client.call("XINFO", "GROUPS", key)]
    return found


class ConfirmedProducer(Producer):
    """Takes an answer only if WAIT confirms it."""

    def call(self, *words: bytes) -> Reply:
        operations = self.record.ask([words])
        reply = confirmed(self.connection, [words])[0]
        self.record.answer(operations, [reply])
        return reply

    def at_once(self, requests: list[Request]) -> None:
        operations = self.record.ask(requests)
        self.record.answer(operations, confirmed(self.connection, requests))


class ConfirmedSender(Sender):
    at_once = ConfirmedProducer.at_once


def confirmed(connection: RawClient, requests: list[Request]) -> list[Reply]:
    """The replies, when the replica has the changes."""
    *replies, count = connection.pipeline([*requests, (b"WAIT", b"1", b"0")])
    if count != 1:
        raise ConnectionClosed("not confirmed")
    return replies


class ConfirmedRounds(Rounds):
    """Only clients that do not read: a reader could see entries that are lost later."""

    crew: tuple[type[Client], ...] = (ConfirmedProducer,) * 5 + (ConfirmedSender,) * 3


MODES: dict[str, tuple[int, Callable[[FailoverPair, int], Rounds | WriterRounds]]] = {
    "durable": (1, Rounds),
    "reservations": (1, lambda pair, seed: WriterRounds(pair, seed, keeping=KEEPING[:2])),
    "wait": (0, ConfirmedRounds),
}


def failover_rounds(folder: Path, mode: str, seed: int) -> FailoverRounds:
    """Rounds of a mode in MODES."""
    durable, load = MODES[mode]
    pair = FailoverPair(folder, durable, **{k.replace("-", "_"): v for k, v in DIRECTIVES.items()})
    return FailoverRounds(pair, load(pair, seed))


def play_planned(folder: Path, count: int) -> None:
    rounds = PlannedRounds(folder, answers=2000)
    try:
        for number in range(1, count + 1):
            print(f"round {number}: {rounds.play()}", flush=True)
        print(rounds.finish())
    finally:
        rounds.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.failover_rounds")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", default="durable", choices=[*MODES, "planned"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.mode == "planned":
            play_planned(Path(folder), options.rounds)
            return 0
        rounds = failover_rounds(Path(folder), options.mode, options.seed)
        try:
            for count in range(1, options.rounds + 1):
                print(f"round {count}: {rounds.play()}", flush=True)
            print(rounds.load.finish())
        finally:
            rounds.pair.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
