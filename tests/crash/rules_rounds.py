"""Rounds of kill -9 under the rules of groups: a job queue with a limit of deliveries, a group
that is ordered by key, one with a filter, and scheduled entries.

Producers append and schedule, workers acknowledge, give back, or forget. After a random number of
answers the process is killed and started again on its data. In the end the queues are drained, and
every entry that was confirmed must have ended once.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import NamedTuple

from tests.crash.killing import TalkingClient, play_and_kill
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Error, Null, Reply, Simple, facts_of
from tests.support.server import Server
from tests.support.waiting import wait_until

DIRECTIVES = {"auto-aof-rewrite-min-size": "60kb"}
ANSWERS_MAX = 1500
WORKERS = 4
TIMEOUT_MS = 700
DELIVERIES_MAX = 3
HELD_S = 0.9 * TIMEOUT_MS / 1000  # from the request on, a reader holds an entry at least this long
RULES = (
    f"TGROUP jobs w START 0 TIMEOUT {TIMEOUT_MS} BACKOFF 2 5 20 MAXDELIVER {DELIVERIES_MAX}"
    " DEADLETTER dead",
    f"TGROUP orders w START 0 TIMEOUT {TIMEOUT_MS} ORDER FIELD k RUN 2",
    "TGROUP jobs audit START 0 WHERE 1 t EQ a",
    "TPOLICY orders EVICT DONE",
)


class Hold(NamedTuple):
    """A reader holds an entry of a key between two times."""

    reader: str
    value: bytes
    asked_s: float
    start_s: float
    end_s: float


class Record:
    """The confirmed requests: entries by stream and value, and the times of scheduled values."""

    def __init__(self) -> None:
        self.answers = 0
        self.appended: list[tuple[bytes, bytes]] = []
        self.scheduled: dict[bytes, int] = {}
        self.given: Counter[tuple[bytes, bytes]] = Counter()
        self.taken_back: Counter[tuple[bytes, bytes]] = Counter()
        self.acknowledged: set[tuple[bytes, bytes]] = set()
        self.holds: dict[bytes, list[Hold]] = {}
        self.lock = threading.Lock()
        self._number = 0

    def value(self) -> bytes:
        with self.lock:
            self._number += 1
            return b"%d" % self._number


class Client(TalkingClient):
    def __init__(self, name: str, connection: RawClient, record: Record, seed: int) -> None:
        super().__init__(name, connection)
        self.name = name
        self.record = record
        self.chance = random.Random(f"{seed}/{name}")

    def call(self, *words: bytes) -> Reply:
        reply = self.connection.call(*words)
        assert not isinstance(reply, Error), (words, reply)
        with self.record.lock:
            self.record.answers += 1
        return reply


class Producer(Client):
    def act(self) -> None:
        chance, value = self.chance, self.record.value()
        fields = (b"n", value, b"t", chance.choice([b"a", b"b"]), b"k", chance.choice([b"1", b"2"]))
        if chance.random() < 0.1:
            ticket = as_bytes(self.call(b"TSCHEDULE", b"later", b"IN", b"40", b"", *fields))
            self.record.scheduled[value] = int(ticket.partition(b".")[0])
            return
        key = chance.choice([b"jobs", b"orders"])
        self.call(b"XADD", key, b"*", *fields)
        self.record.appended.append((key, value))


class Worker(Client):
    def act(self) -> None:
        key = self.chance.choice([b"jobs", b"orders"])
        asked_s = time.monotonic()
        lost: set[bytes] = set()  # keys of which an entry has failed: later ones are taken back
        for entry_id, value, order in entries(self._read(key)):
            self.record.given[key, value] += 1
            start_s, roll = time.monotonic(), self.chance.random()
            end_s = asked_s + HELD_S  # if it is forgotten
            is_held = key == b"orders" and order not in lost
            if roll < 0.9:
                end_s = min(time.monotonic(), end_s)
                if not self._end(key, entry_id, value, roll):
                    lost.add(order)
            if is_held:
                hold = Hold(self.name, value, asked_s, start_s, end_s)
                self.record.holds.setdefault(order, []).append(hold)

    def _read(self, key: bytes) -> Reply:
        return self.call(b"XREADGROUP", b"GROUP", b"w", self.name.encode(), b"COUNT", b"2",
                         b"STREAMS", key, b">")  # fmt: skip

    def _end(self, key: bytes, entry_id: bytes, value: bytes, roll: float) -> bool:
        """Acknowledge an entry, or give it back. True if it was acknowledged."""
        if roll < 0.6:
            is_done = self.call(b"XACK", key, b"w", entry_id) == 1
            if is_done:
                self.record.acknowledged.add((key, value))
            return is_done
        mode = self.chance.choice([b"FAIL", b"FAIL", b"SILENT"])
        if mode == b"SILENT":  # before the request, whose reply may be lost
            self.record.taken_back[key, value] += 1
        self.call(b"TNACK", key, b"w", self.name.encode(), mode, b"IDS", b"1", entry_id)
        return False


def entries(reply: Reply) -> list[tuple[bytes, bytes, bytes]]:
    """The ID, the value and the key of each entry of an XREADGROUP's reply."""
    found = []
    for row in as_list(as_list(as_list(reply)[0])[1]) if not isinstance(reply, Null) else []:
        entry_id, words = as_list(row)
        fields = as_list(words)
        found.append((as_bytes(entry_id), as_bytes(fields[1]), as_bytes(fields[5])))
    return found


def fields_in(client: RawClient, key: str) -> list[list[Reply]]:
    """The fields and values of each entry of a stream."""
    return [as_list(as_list(row)[1]) for row in as_list(client.call("XRANGE", key, "-", "+"))]


class RulesRounds:
    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.record = Record()
        self.copies: set[tuple[bytes, bytes]] = set()
        self._chance = random.Random(seed)
        with server.client() as client:
            for line in RULES:
                assert client.call(*line.split()) == Simple("OK")

    def play(self) -> None:
        """Play until there are enough answers, then kill and start the server."""
        seed = self._chance.randrange(2**32)
        clients: list[TalkingClient] = [
            Producer("producer", self.server.client(), self.record, seed)
        ]
        clients += [
            Worker(f"w{number}", self.server.client(), self.record, seed)
            for number in range(WORKERS)
        ]
        enough = self.record.answers + self._chance.randint(50, ANSWERS_MAX)
        play_and_kill(self.server, clients, lambda: self.record.answers, enough, Server.kill)

    def has_dead(self) -> bool:
        """True if an entry has failed as often as it may, and is in the dead letter stream."""
        with self.server.client() as client:
            return client.call("XLEN", "dead") != 0

    def finish(self) -> None:
        """Drain the queues; check that every confirmed entry has ended once."""
        with self.server.client() as client:
            wait_until(lambda: self._drain(client), what="the end of all entries", deadline_s=60)
            self._check_copies(client)
            self._check_filter(client)
            self._check_scheduled(client)
            assert client.call("XLEN", "orders") == 0, "DONE has removed all that ended"
        for key, value in self.record.appended:
            ended = self.record.given[key, value] or (key, value) in self.copies
            assert ended, f"{value!r} of {key!r} was removed and not delivered"
        for (key, value), count in self.record.given.items():
            most = DELIVERIES_MAX + self.record.taken_back[key, value]
            assert key != b"jobs" or count <= most, f"{value!r} was delivered {count} times"
        self._check_order()

    def _drain(self, client: RawClient) -> bool:
        held = 0
        for key in (b"jobs", b"orders"):
            reply = client.call(b"XREADGROUP", b"GROUP", b"w", b"last", b"STREAMS", key, b">")
            given = entries(reply)
            for entry_id, value, _ in given:
                self.record.given[key, value] += 1
                assert client.call(b"XACK", key, b"w", entry_id) == 1
                self.record.acknowledged.add((key, value))
            facts = facts_of(client.call(b"TINFO", key, b"GROUP", b"w"))
            counts = (facts[name] for name in (b"in-flight", b"waiting", b"parked", b"dead"))
            held += sum(counts) + len(given)  # type: ignore[arg-type]
        return held == 0

    def _check_copies(self, client: RawClient) -> None:
        rows = fields_in(client, "dead")
        copies = Counter((as_bytes(row[7]), as_bytes(row[1])) for row in rows)
        self.copies = set(copies)
        assert max(copies.values(), default=1) == 1, "an entry was copied twice"
        both = self.copies & self.record.acknowledged
        assert not both, f"{both} were acknowledged and copied"
        assert copies, "no entry has failed"

    def _check_filter(self, client: RawClient) -> None:
        reply = client.call("XREADGROUP", "GROUP", "audit", "c", "STREAMS", "jobs", ">")
        seen = [value for _, value, _ in entries(reply)]
        assert seen == [row[1] for row in fields_in(client, "jobs") if row[3] == b"a"]

    def _check_scheduled(self, client: RawClient) -> None:
        wait_until(lambda: client.call("TSCHEDULED", "later", "-", "+") == [], what="the firing")
        found: Counter[bytes] = Counter()
        for row in as_list(client.call("XRANGE", "later", "-", "+")):
            entry_id, words = as_list(row)
            value = as_bytes(as_list(words)[1])
            found[value] += 1
            due_ms = self.record.scheduled.get(value, 0)  # 0: its reply was lost
            assert int(as_bytes(entry_id).partition(b"-")[0]) >= due_ms
        assert self.record.scheduled.keys() <= found.keys()
        assert max(found.values()) == 1, "an entry was appended twice"

    def _check_order(self) -> None:
        """A read that began and ended while another reader held an entry of the key got none."""
        for order, holds in self.record.holds.items():
            for one in holds:
                for other in holds:
                    if one.reader == other.reader:
                        continue
                    apart = other.start_s >= one.end_s or other.asked_s <= one.start_s
                    assert apart, f"two readers held entries of {order!r}: {one}, {other}"
