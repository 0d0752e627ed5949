"""Streams with reservations on a simulated server, compared with a naive model after every reply.

One client appends, reserves, completes, gives up, trims, deletes, renames, copies and seals; three
readers of every stream follow with TREAD, TPEEK and TMREAD. The process is killed in between, and
with `always` the power fails. Because one request follows another, the model knows every reply.
`python -m tests.sim.test_writers_model --seeds 300` looks for more.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.sim.data import Data
from tests.sim.naive_writers import ZERO, EntryId, NaiveStream, text_of
from tests.sim.players import Player as SimPlayer
from tests.sim.players import Profile
from tests.sim.test_full_disk import heard
from tests.sim.test_writers import START_MS, FreeWorld
from tests.sim.world import SimClient
from tests.support.client import as_bytes, as_list
from tests.support.fakedisk import FakeDisk
from tests.support.resp import Error, Null, Reply, encode_command
from tests.support.writers import id_of

STEPS = 400
KEYS = [b"a", b"b", b"c", b"d"]
WRITERS = [b"w1", b"w2", b"w\r\n3"]
LEASE = (b"LEASE", b"600000")
FIELDS: dict[bytes, Callable[[NaiveStream], object]] = {
    b"length": lambda s: len(s.visible()),
    b"last-id": lambda s: text_of(s.position),
    b"handed-out-id": lambda s: text_of(s.last),
    b"max-evicted-id": lambda s: text_of(s.max_evicted),
    b"reservations": lambda s: len(s.open),
    b"held": lambda s: len(s.entries) - len(s.visible()),
    b"oldest-reservation": lambda s: text_of(min(s.open)) if s.open else None,
    b"writers": lambda s: len(s.writers()),
    b"sealed": lambda s: int(s.sealed),
    b"parents": lambda s: s.parents,
    b"children": lambda s: s.children,
}


@dataclass
class Readers:
    """The entries that the three readers of a stream have received."""

    tread: EntryId = ZERO
    token: bytes = b"0"
    peeked: set[EntryId] = field(default_factory=set)
    gaps_shown: set[EntryId] = field(
        default_factory=set
    )  # evicted, and TPEEK has shown a gap since
    tmread: EntryId = ZERO
    followed: set[EntryId] = field(default_factory=set)


def plain(reply: Reply) -> object:
    """A reply with None for null."""
    if isinstance(reply, Null):
        return None
    return [plain(one) for one in reply] if isinstance(reply, list) else reply


def entries_of(reply: Reply) -> list[tuple[EntryId, bytes]]:
    rows = [as_list(row) for row in as_list(reply) if not isinstance(row, Null)]
    return [(id_of(row[0]), as_bytes(row[2])) for row in rows]


class ModelPlay:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = FakeDisk(seed)
        self.fsync = self.chance.choice(["always", "always", "everysec", "no"])
        self.node_entries = self.chance.choice([1, 3, 100])
        self.wall_ms = START_MS
        self.streams: dict[bytes, NaiveStream] = {}
        self.readers: dict[bytes, Readers] = {}
        self.crashes = self.values = 0
        self.requests: list[tuple[bytes, ...]] = []
        self.begin_life()

    # ---------------------------------------------------------------- the server

    def begin_life(self) -> None:
        profile = Profile(
            fsync=self.fsync, refuses_large=True, node_entries=self.node_entries,
            rewrite_bytes=self.chance.choice([64 << 20, 4000]),
        )  # fmt: skip
        self.world = FreeWorld(self.disk, profile, self.chance, self.wall_ms, Data())
        self.world.start()
        player = SimPlayer(self.chance, profile, self.world.now_ms)
        self.client = SimClient(self.world, player, 1, 2)
        self.world.executor.attach(self.client)
        self.world.clients[1] = self.client

    def crash(self) -> None:
        self.crashes += 1
        self.wall_ms = self.world.now_ms() + self.chance.choice([0, 1, 1000])
        if self.fsync == "always" and self.chance.random() < 0.5:
            self.disk = self.disk.after_crash(self.chance.randrange(2**32))
        self.disk.locked = False
        self.world.abandon()
        self.begin_life()

    def ask(self, *words: bytes) -> Reply:
        self.requests.append(words)
        self.world.executor.feed(self.client, encode_command(list(words)))
        while not (replies := heard(self.client)):
            if not self.world.step():
                self.world.loop.time_ms += 10
        [reply] = replies
        return reply

    def expect(self, wanted: object, *words: bytes) -> None:
        reply = plain(self.ask(*words))
        if isinstance(wanted, str):
            assert isinstance(reply, Error), (reply, wanted)
            assert reply.text.startswith(wanted), (reply, wanted)
        else:
            assert reply == wanted, (reply, wanted)

    # ---------------------------------------------------------------- events

    def run(self) -> None:
        acts = [
            (self.append, 20), (self.reserve, 20), (self.complete, 30), (self.give_up, 8),
            (self.trim, 5), (self.delete, 3), (self.drop, 1), (self.rename, 2), (self.copy, 2),
            (self.seal, 1), (self.keep, 1), (self.read, 30),
        ]  # fmt: skip
        names, weights = zip(*acts, strict=True)
        for step in range(STEPS):
            self.chance.choices(names, weights)[0]()
            self.world.loop.time_ms += self.chance.choice([0, 0, 1, 5])
            if self.chance.random() < 0.02:
                self.crash()
                self.check()
            elif step % 10 == 0:
                self.check()
        self.crash()
        self.check()

    def check(self) -> None:
        """Everything that the server reports about the streams agrees with the model."""
        for key, stream in self.streams.items():
            visible = [(i, stream.entries[i]) for i in stream.visible()]
            assert entries_of(self.ask(b"TRANGE", key, b"-", b"+")) == visible, key
            self.expect(stream.writers(), b"TPOSITION", key, b"WRITERS")
            info = as_list(self.ask(b"TINFO", key))
            said = dict(zip(map(as_bytes, info[::2]), map(plain, info[1::2]), strict=True))
            for name, wanted in FIELDS.items():
                assert said[name] == wanted(stream), (key, name, said[name], wanted(stream))

    def value(self) -> bytes:
        self.values += 1
        return b"%d" % self.values + b"x" * self.chance.choice([0, 0, 100, 3000])

    def known(self, key: bytes) -> NaiveStream:
        self.readers.setdefault(key, Readers())
        return self.streams.setdefault(key, NaiveStream())

    def some_id(self, stream: NaiveStream) -> EntryId:
        return self.chance.choice(
            [*stream.handed[1:], *stream.open, (1, 1), (stream.last[0] + 5, 0)]
        )

    def some_stream(self) -> tuple[bytes, NaiveStream] | None:
        return self.chance.choice(list(self.streams.items())) if self.streams else None

    def append(self) -> None:
        key, value, length = (
            self.chance.choice(KEYS),
            self.value(),
            self.chance.choice([0, 1, 5, 30]),
        )
        words = self.chance.choice(
            [(b"TAPPEND", key), (b"XADD", key, b"*"), (b"TAPPEV", key, b"COUNT", b"%d" % length)]
        )
        if key in self.streams and self.streams[key].sealed:
            return self.expect("SEALED", *words, b"f", value)
        stream = self.known(key)
        stream.append(id_of(self.ask(*words, b"f", value)), value)
        if words[0] == b"TAPPEV":
            stream.trim(length)
        return None

    def reserve(self) -> None:
        key, writer, count = self.chance.choice(KEYS), self.chance.choice(WRITERS), b"3"
        if key in self.streams and self.streams[key].sealed:
            return self.expect("SEALED", b"TRESERVE", key, writer)
        words = self.chance.choice([(), (b"COUNT", count)])
        reply = self.ask(b"TRESERVE", key, writer, *LEASE, *words)
        stream = self.known(key)
        for entry_id in as_list(reply) if words else [reply]:
            stream.reserve(id_of(entry_id), writer)
        return None

    def complete(self) -> None:
        if (found := self.some_stream()) is None:
            return
        key, stream = found
        entry_id, writer, value = self.some_id(stream), self.chance.choice(WRITERS), self.value()
        if stream.open and self.chance.random() < 0.8:
            entry_id = self.chance.choice(list(stream.open))
            writer = stream.open[entry_id]
        if self.chance.random() < 0.5:
            value = stream.entries.get(entry_id, value)
        words = (b"TCOMPLETE", key, writer, text_of(entry_id), b"f", value)
        if stream.open.get(entry_id) == writer:
            stream.settle(entry_id, value)
            self.expect(text_of(stream.position), *words)
        else:
            self.expect(stream.refusal(entry_id, writer, value), *words)

    def give_up(self) -> None:
        if (found := self.some_stream()) is None:
            return
        key, stream = found
        writer, listed = self.chance.choice(WRITERS), [self.some_id(stream) for _ in range(2)]
        mine = [i for i, owner in stream.open.items() if owner == writer]
        words, ended = self.chance.choice(
            [
                ((), mine),
                (tuple(map(text_of, listed)), [i for i in mine if i in listed]),
                ((b"EXCEPT", *map(text_of, listed)), [i for i in mine if i not in listed]),
            ]
        )
        for entry_id in ended:
            stream.settle(entry_id, None)
        self.expect(len(ended), b"TABORT", key, writer, *words)

    def trim(self) -> None:
        if (found := self.some_stream()) is not None:
            length = self.chance.choice([0, 1, 3, 20])
            self.expect(found[1].trim(length), b"XTRIM", found[0], b"MAXLEN", b"%d" % length)

    def delete(self) -> None:
        if (found := self.some_stream()) is not None:
            entry_id = self.some_id(found[1])
            words = (b"XDEL", found[0], text_of(entry_id).replace(b".", b"-"))
            self.expect(int(found[1].delete(entry_id)), *words)

    def drop(self) -> None:
        if (found := self.some_stream()) is not None:
            self.expect(1, b"DEL", found[0])
            del self.streams[found[0]], self.readers[found[0]]

    def rename(self) -> None:
        found, target = self.some_stream(), self.chance.choice(KEYS)
        if found is not None and found[0] != target:
            self.ask(b"RENAME", found[0], target)
            self.streams[target] = self.streams.pop(found[0])
            self.readers[target] = self.readers.pop(found[0])

    def copy(self) -> None:
        found, target = self.some_stream(), self.chance.choice(KEYS)
        if found is not None and found[0] != target:
            self.expect(1, b"COPY", found[0], target, b"REPLACE")
            self.streams[target], self.readers[target] = found[1].copy(), Readers()

    def seal(self) -> None:
        found, child = self.some_stream(), self.chance.choice(KEYS)
        if found is None or found[1].sealed:
            return
        key, stream = found
        words = (b"TSEAL", key, b"CHILDREN", child)
        there = self.streams.get(child)
        if child == key or (there is not None and (there.used or there.sealed)):
            return self.expect("BUSYKEY", *words)
        self.expect(text_of(stream.last), *words)
        stream.sealed, stream.children = True, [child]
        self.known(child).raise_to(stream.last, key)
        return None

    def keep(self) -> None:
        self.ask(self.chance.choice([b"BGREWRITEAOF", b"BGSAVE"]))

    # ---------------------------------------------------------------- readers

    def read(self) -> None:
        if (found := self.some_stream()) is None:
            return
        key, stream = found
        limit = self.chance.choice([1, 2, 50])
        self.chance.choice([self.tread, self.tpeek, self.tmread])(key, stream, limit)

    def tread(self, key: bytes, stream: NaiveStream, limit: int) -> None:
        reader = self.readers[key]
        reply = self.ask(b"TREAD", key, text_of(reader.tread), b"%d" % limit)
        wanted = [i for i in stream.visible() if i > reader.tread][:limit]
        got = [] if isinstance(reply, Null) else entries_of(reply)
        assert got == [(i, stream.entries[i]) for i in wanted], key
        reader.tread = max([reader.tread, *wanted])

    def tpeek(self, key: bytes, stream: NaiveStream, limit: int) -> None:
        reader = self.readers[key]
        token, rows = as_list(self.ask(b"TPEEK", key, reader.token, b"%d" % limit))
        wanted = [i for i in stream.peekable() if i not in reader.peeked][:limit]
        assert entries_of(rows) == [(i, stream.entries[i]) for i in wanted], (key, reader.token)
        missed = stream.evicted - reader.peeked - reader.gaps_shown
        begins = reader.token in (b"0", b"0.0")
        has_gap = any(isinstance(row, Null) for row in as_list(rows))
        assert has_gap or begins or not missed, (key, reader.token, missed)
        waited = as_bytes(reader.token).partition(b"~")[2]
        ids_to_come = {id_of(one) for one in waited.split(b",")} if waited else set()
        assert not has_gap or missed or ids_to_come & (stream.given_up | stream.deleted), (
            key,
            reader.token,
        )
        reader.gaps_shown |= missed
        reader.peeked |= set(wanted)
        reader.token = as_bytes(token)
        if len(stream.entries) == len(stream.visible()) and not stream.open and len(wanted) < limit:
            assert reader.token == text_of(stream.position), key

    def tmread(self, key: bytes, stream: NaiveStream, limit: int) -> None:
        reader = self.readers[key]
        words = (b"TMREAD", b"%d" % limit, b"STREAMS", key, text_of(reader.tmread))
        [row] = as_list(self.ask(*words))
        _, prev, following, rows, ended, _ = as_list(row)
        before = max(reader.tmread, stream.max_evicted)
        newer = [i for i in stream.visible() if i > before]
        wanted = newer[:limit]
        is_cut = len(newer) > limit
        assert id_of(prev) == before, (key, prev, before)
        assert entries_of(rows) == [(i, stream.entries[i]) for i in wanted], key
        assert id_of(following) == (wanted[-1] if is_cut else max(before, stream.watermark)), key
        assert ended == int(stream.sealed and not stream.open and not is_cut), key
        reader.followed |= set(wanted)
        reader.tmread = id_of(following)
        settled = {i for i in stream.entries if stream.max_evicted < i <= reader.tmread}
        assert settled <= reader.followed, f"an entry came into (prev, next] of {key!r}"


def play(seed: int) -> ModelPlay:
    one = ModelPlay(seed)
    try:
        one.run()
    except AssertionError as failure:
        last = "\n".join(map(repr, one.requests[-12:]))
        raise AssertionError(f"seed {seed}: {failure}\n{last}") from failure
    return one


@pytest.mark.parametrize("batch", range(4))
def test_every_reply_agrees_with_a_naive_model(batch: int) -> None:
    plays = [play(seed) for seed in range(batch * 4, batch * 4 + 4)]
    asked = {words[0] for one in plays for words in one.requests}
    assert {b"TSEAL", b"RENAME", b"COPY", b"DEL", b"XTRIM", b"TABORT", b"TPEEK"} <= asked
    assert sum(one.crashes for one in plays) > 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.test_writers_model")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    failures = crashes = requests = 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            one = play(seed)
        except Exception as failure:
            failures += 1
            print(f"seed {seed}: {type(failure).__name__} {failure}", flush=True)
        else:
            crashes += one.crashes
            requests += len(one.requests)
    print(f"{failures} failed; {crashes} crashes, {requests} requests")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
