"""`python -m tests.crash.rounds --rounds 50`: kill -9 at random moments under mixed load.

Many clients append, send again what was not answered, trim, delete, read in groups, acknowledge,
claim, rename, set pairs in transactions, and ask for snapshots and rewrites, all at once and on the
same streams. After a random number of answers the process is killed and started again on its data;
then everything any client was ever answered must still be true (`tests/support/history.py`). The
rounds follow one another on the same data and the same history.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.crash.killing import End, TalkingClient, Target, kill, play_and_kill, run
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.history import (
    Found,
    FoundGroup,
    FoundStream,
    History,
    Operation,
    delivered,
    parse_id,
)
from tests.support.resp import Error, Reply, Simple

ANSWERS_MAX = 2500
STREAMS = [b"s0", b"s1", b"s2"]
DIRECTIVES = {"auto-aof-rewrite-min-size": "200kb"}
Request = tuple[bytes, ...]


def number(value: int) -> bytes:
    return b"%d" % value


class Record:
    """The history of all clients, and the one lock around it."""

    def __init__(self) -> None:
        self.history = History(owned_renames=True)
        self.sent: dict[bytes, Sent] = {}
        self._lock = threading.Lock()
        self._token = 0

    def token(self) -> bytes:
        """A value that no other entry or string has."""
        with self._lock:
            self._token += 1
            return number(self._token)

    def ask(self, requests: Sequence[Request]) -> list[Operation]:
        with self._lock:
            return [self.history.ask(0, words, int(time.time() * 1000)) for words in requests]

    def answer(self, operations: Sequence[Operation], replies: Sequence[Reply]) -> None:
        with self._lock:
            now_ms = int(time.time() * 1000) + 1
            for operation, reply in zip(operations, replies, strict=True):
                self.history.answer(operation, reply, now_ms)


class Client(TalkingClient):
    """One connection, with a record of its requests and replies."""

    def __init__(self, name: str, connection: RawClient, record: Record, seed: str) -> None:
        super().__init__(name, connection)
        self.name = name.encode()
        self.record = record
        self.chance = random.Random(seed)
        self.known: list[bytes] = []  # IDs in its replies

    def call(self, *words: bytes) -> Reply:
        operations = self.record.ask([words])
        reply = self.connection.call(*words)
        self.record.answer(operations, [reply])
        return reply

    def at_once(self, requests: list[Request]) -> None:
        """In one write, one after the other."""
        operations = self.record.ask(requests)
        self.record.answer(operations, self.connection.pipeline(requests))

    def transact(self, requests: list[Request]) -> None:
        operations = self.record.ask(requests)
        replies = self.connection.pipeline([(b"MULTI",), *requests, (b"EXEC",)])
        self.record.answer(operations, as_list(replies[-1]))

    def entry(self) -> Request:
        token = self.record.token()
        return b"n", token, b"v", b"v" * self.chance.choice([0, 10, 100, 3000])


class Producer(Client):
    def act(self) -> None:
        key, roll = self.chance.choice(STREAMS), self.chance.random()
        if roll < 0.4:
            self.call(b"TAPPEND", key, *self.entry())
        elif roll < 0.7:
            self.call(b"XADD", key, b"*", *self.entry())
        elif roll < 0.8:
            self.call(b"XADD", key, b"MAXLEN", b"300", b"*", *self.entry())
        elif roll < 0.85:
            self.call(b"TAPPEV", key, b"COUNT", b"250", *self.entry())
        else:
            self.at_once([(b"TAPPEND", key, *self.entry()) for _ in range(5)])


@dataclass(slots=True)
class Sent:
    """A sender's record of its own requests; it outlives the server."""

    last: int = 0
    unanswered: list[Request] = field(default_factory=list)


class Sender(Client):
    """Numbers its entries, and repeats unanswered requests, also those to a server that died."""

    def act(self) -> None:
        sent = self.record.sent.setdefault(self.name, Sent())
        if not sent.unanswered:
            for _ in range(self.chance.randint(1, 5)):
                sent.last += 1
                who = (b"TAPPENDONCE", STREAMS[2], b"PRODUCER", self.name, number(sent.last))
                sent.unanswered.append((*who, *self.entry()))
        some = list(sent.unanswered)
        if self.chance.random() < 0.5:
            self.at_once([many(some)])  # whether or not this is answered, each of them counts once
        self.at_once(some)
        sent.unanswered.clear()
        if self.chance.random() < 0.2:
            self.at_once(some)  # history holds it against the server if one is appended again


def many(singles: Sequence[Request]) -> Request:
    """TAPPENDONCEs of one stream and producer as one TAPPENDMANY."""
    words = [b"TAPPENDMANY", b"1", *singles[0][1:4], number(len(singles))]
    for _, _, _, _, seq, *entry in singles:
        words += [seq, number(len(entry) // 2), *entry]
    return tuple(words)


class Trimmer(Client):
    def act(self) -> None:
        key, roll = self.chance.choice(STREAMS), self.chance.random()
        entries = as_list(self.call(b"XRANGE", key, b"-", b"+", b"COUNT", b"20"))
        ids = [as_bytes(as_list(entry)[0]) for entry in entries]
        if not ids:
            self.call(b"TAPPEND", key, *self.entry())
        elif roll < 0.6:
            self.call(b"XDEL", key, *self.chance.sample(ids, min(len(ids), 2)))
        elif roll < 0.8:
            self.call(b"XTRIM", key, b"MINID", self.chance.choice(ids))
        else:
            self.call(b"XTRIM", key, b"MAXLEN", b"200")


class Worker(Client):
    """Reads as the draft has it: entries without owners, delivered again if forgotten."""

    def act(self) -> None:
        key = self.chance.choice(STREAMS[:2])
        retry_ms = b"30" if key == b"s0" else b"100000000"
        words = (b"TREAD", key, b"0", b"3", b"BLOCK", b"20", b"GROUP", b"draft", b"0",
                 b"RETRY", retry_ms, b"0")  # fmt: skip
        ids = [number(ms) + b"." + number(seq) for _, (ms, seq) in self._read(words)]
        if ids and self.chance.random() < 0.8:
            self.call(b"TACK", key, b"draft", *ids)

    def _read(self, words: Request) -> list[tuple[bytes, tuple[int, int]]]:
        reply = self.call(*words)
        assert not isinstance(reply, Error), reply
        return delivered(words, reply)


class Consumer(Client):
    def act(self) -> None:
        key, roll = self.chance.choice(STREAMS[1:]), self.chance.random()
        if roll < 0.5:
            self._read(key)
        elif roll < 0.7 and self.known:
            self.call(b"XACK", key, b"redis", self.known.pop(0))
        elif roll < 0.8 and self.known:
            who = (b"XCLAIM", key, b"redis", self.name, b"0")
            self.call(*who, *self.chance.sample(self.known, 1))
        elif roll < 0.9:
            self.call(b"XAUTOCLAIM", key, b"redis", self.name, b"5", b"0-0", b"COUNT", b"3")
        else:
            self.call(b"XGROUP", b"CREATE", key, b"redis", b"0", b"MKSTREAM")

    def _read(self, key: bytes) -> None:
        words = (b"XREADGROUP", b"GROUP", b"redis", self.name, b"COUNT", b"3", b"BLOCK", b"20",
                 b"STREAMS", key, b">")  # fmt: skip
        reply = self.call(*words)
        if not isinstance(reply, Error):
            given = delivered(words, reply)
            self.known += [number(ms) + b"-" + number(seq) for _, (ms, seq) in given]


class Pairer(Client):
    """Two strings and an entry that only a transaction changes, always to the same."""

    def act(self) -> None:
        value = self.record.token()
        between = (b"XADD", b"pairs", b"MAXLEN", b"50", b"*", *self.entry())
        self.transact([(b"SET", b"first", value), between, (b"SET", b"second", value)])


class Renamer(Client):
    """Moves its own stream to and fro."""

    def act(self) -> None:
        here, there = self.name + b"-a", self.name + b"-b"
        for _ in range(self.chance.randint(1, 4)):
            self.call(b"TAPPEV", here, b"COUNT", b"30", *self.entry())
        self.call(b"RENAME", here, there)
        self.call(b"SET", self.name + b"-string", self.record.token())
        self.call(b"RENAME", there, here)


class Saver(Client):
    def act(self) -> None:
        self.call(self.chance.choice([b"BGSAVE", b"BGREWRITEAOF"]))
        for _ in range(self.chance.randint(1, 30)):
            self.call(b"PING")


CREW: list[type[Client]] = [
    Producer, Producer, Trimmer, Worker, Worker, Worker, Consumer, Consumer, Pairer, Renamer,
    Saver, Sender, Sender
]  # fmt: skip


def what_is_left(client: RawClient) -> Found:
    """The data as a client reads it."""
    found: dict[tuple[int, bytes], FoundStream | bytes] = {}
    for key in map(as_bytes, as_list(client.call("KEYS", "*"))):
        if client.call("TYPE", key) == Simple("string"):
            found[0, key] = as_bytes(client.call("GET", key))
        else:
            found[0, key] = _stream(client, key)
    return found


def _stream(client: RawClient, key: bytes) -> FoundStream:
    rows = map(as_list, as_list(client.call("XRANGE", key, "-", "+")))
    stream = FoundStream(
        [(parse_id(as_bytes(entry_id)), tuple(map(as_bytes, as_list(f)))) for entry_id, f in rows]
    )
    for row in map(as_list, as_list(client.call("XINFO", "GROUPS", key))):
        facts = dict(zip(map(as_bytes, row[::2]), row[1::2], strict=True))
        name = as_bytes(facts[b"name"])
        pending = as_list(client.call("XPENDING", key, name, "-", "+", "1000000"))
        stream.groups[name] = FoundGroup(
            parse_id(as_bytes(facts[b"last-delivered-id"])),
            {parse_id(as_bytes(as_list(row)[0])) for row in pending},
        )
    return stream


class Rounds:
    """One directory, killed again and again."""

    crew: Sequence[type[Client]] = CREW

    def __init__(self, server: Target, seed: int, end: End = kill):
        self.server = server
        self.record = Record()
        self._end = end
        self._seed = seed
        self._round = 0
        self._chance = random.Random(seed)

    def play(self) -> str:
        """Load, kill, start, check; returns a summary. BrokenHistory if anything is lost."""
        self._round += 1
        before = self.record.history.answered
        enough = before + self._chance.randint(1, ANSWERS_MAX)
        play_and_kill(
            self.server, self._crew(), lambda: self.record.history.answered, enough, self._end
        )
        return f"{self.record.history.answered - before} answers, {self._check()}"

    def finish(self) -> str:
        return f"{self.record.history.answered} answers in all"

    def _crew(self) -> list[Client]:
        return [
            kind(f"{kind.__name__}{place}", self.server.client(), self.record,
                 f"{self._seed}/{self._round}/{place}")
            for place, kind in enumerate(self.crew)
        ]  # fmt: skip

    def _check(self) -> str:
        with self.server.client() as client:
            found = what_is_left(client)
        self.record.history.check(found)
        assert found.get((0, b"first")) == found.get((0, b"second")), "half a transaction is left"
        streams = [one for one in found.values() if isinstance(one, FoundStream)]
        pending = sum(len(g.pending) for s in streams for g in s.groups.values())
        return f"{sum(len(s.entries) for s in streams)} entries, {pending} pending are left"


if __name__ == "__main__":
    sys.exit(run("tests.crash.rounds", __doc__, DIRECTIVES, Rounds))
