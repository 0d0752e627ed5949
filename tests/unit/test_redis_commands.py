"""Effects as commands of Redis: every effect has a translation, and the commands lead to the same
data. Another server of this kind runs them in place of a Redis."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.client import as_bytes
from tests.support.effort import examples
from tests.support.in_process import InProcessServer, Journal
from tests.support.mixed_changes import Changes, Words
from tests.support.resp import Error, encode_command, read_reply

from millstream.commands.runtime.effects import APPLY, CODES, EffectError
from millstream.server.replication.frequent_effects import FrequentEffects
from millstream.server.replication.redis_commands import (
    LEFT_OUT,
    TABLE,
    WHOLE,
    Translation,
)
from millstream.server.replication.redis_feed import RedisFeed, Wanted
from millstream.server.replication.redis_stream import Mark
from millstream.storage.dump.digests import GroupRow, group_row, stream_digest
from millstream.storage.dump.rdb import UNOWNED
from millstream.storage.groups.group import Group
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream


def test_every_effect_has_a_translation_or_is_left_out() -> None:
    known = set(CODES) | set(APPLY)
    assert known - {b"SELECT"} == set(TABLE) | LEFT_OUT | WHOLE
    assert not set(TABLE) & LEFT_OUT
    assert not set(TABLE) & WHOLE
    assert not LEFT_OUT & WHOLE


class Translated(Journal):
    """A journal that also translates each frame, in both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.translation: Translation | None = None
        self.commands: list[bytes] = []

    def commit(self, payload: bytes) -> int:
        seq = super().commit(payload)
        translation = self.translation
        assert translation is not None
        before = translation.database
        data = translation.commands(payload)
        after, translation.database = translation.database, before
        assert translation.commands_of_any(payload) == data
        assert translation.database == after
        self.commands.append(data)
        return seq


class Pair:
    """A server, and another one that runs the commands that follow from its frames."""

    def __init__(self) -> None:
        self.journal = Translated()
        self.server = InProcessServer(self.journal)
        self.journal.translation = Translation(self.server.keyspace, lambda: 0)
        self.follower = InProcessServer()
        self.player, self.link = self.server.player(), self.follower.player()

    def change(self, requests: list[Words]) -> list[object]:
        """Run requests in one tick, and their commands there."""
        self.server.executor.feed(self.player, b"".join(map(encode_command, requests)))
        self.server.settle()
        replies = [self.player.read() for _ in requests]
        self.follow()
        return replies

    def follow(self) -> None:
        self.follower.wall_ms = self.server.wall_ms
        commands, self.journal.commands = self.journal.commands, []
        for data in commands:
            self.follower.executor.feed(self.link, data)
            self.follower.settle()
            while self.link.unread:
                reply = self.link.read()
                for one in reply if isinstance(reply, list) else [reply]:
                    assert not isinstance(one, Error), (one, data)

    def assert_same(self) -> None:
        assert shown(self.follower.keyspace) == shown(self.server.keyspace)


def shown(keyspace: Keyspace) -> dict[tuple[int, bytes], Any]:
    found: dict[tuple[int, bytes], Any] = {}
    for number, database in enumerate(keyspace.databases):
        database.settle_all()
        for key, value in database.table.items():
            state: Any = value
            if isinstance(value, Stream):
                state = {
                    "entries": stream_digest(value),
                    "counters": (value.length, value.last_id, value.entries_added),
                    "deleted": value.max_deleted_id,
                    "groups": sorted(owned(group, value) for group in value.groups.values()),
                }
            found[number, key] = state, database.expiries.get(key)
    return found


def owned(group: Group, stream: Stream) -> GroupRow:
    """A group as Redis has it: every pending entry has an owner, that consumer comes and goes, and
    repeated deliveries of removed entries are not known."""
    row = group_row(group)
    pending = []
    for one in row.pending:
        one = one._replace(owner=one.owner or UNOWNED)
        if group.pending.is_waiting(one.ms, one.seq):
            one = one._replace(delivered_ms=0)
        if not stream.has_entry(one.ms, one.seq):
            one = one._replace(delivered_ms=0, deliveries=0)
        pending.append(one)
    return row._replace(pending=pending, consumers=sorted(set(row.consumers) - {UNOWNED}))


@pytest.mark.parametrize("seed", range(examples(16)))
def test_the_commands_lead_to_the_same_data(seed: int) -> None:
    pair = Pair()
    changes = Changes(seed)
    pair.change(changes.begin())
    for turn in range(60):
        requests = changes.draw(1 + (seed + turn) % 9)
        for words, reply in zip(requests, pair.change(requests), strict=True):
            changes.learn(words, reply)
        pair.server.wait_ms(7)
        pair.follow()
        pair.assert_same()


FREQUENT = ("_append", "_read", "_settle", "_remove")


@pytest.mark.parametrize("seed", range(examples(8)))
def test_frequent_effects_become_the_same_commands_in_both_ways(seed: int) -> None:
    """Frames of few requests, so that many have frequent effects only; also changed bytes."""
    pair, chance = Pair(), random.Random(seed)
    changes = Changes(seed)
    pair.change([words for words in changes.begin() if words[0] == "XGROUP"])
    pair.server.keyspace.has_ordering = seed % 2 == 1
    frequent = FrequentEffects(pair.server.keyspace, LEFT_OUT, 1000 if seed % 3 else 2)
    found = 0
    for turn in range(120):
        if turn % 20 == 10:  # a group that is moved back delivers entries that are pending
            pair.change([("SELECT", turn % 3), ("XGROUP", "SETID", "s", "g", "0")])
        ways = chance.choices(FREQUENT, k=chance.randint(1, 3))
        requests = [getattr(changes, way)() for way in ways]
        for words, reply in zip(requests, pair.change(requests), strict=True):
            changes.learn(words, reply)
        pair.server.wait_ms(chance.choice((0, 7)))
        pair.follow()
        payload = pair.journal.payloads[-1]
        found += frequent.commands(payload, chance.choice((0, -5, 5000)), -1) is not None
        for _ in range(20):
            assert_same_or_refused(pair, changed_bytes(payload, chance))
    assert found > 30


def changed_bytes(payload: bytes, chance: random.Random) -> bytes:
    made = bytearray(payload)
    at = chance.randrange(len(made))
    way = chance.randrange(3)
    if way == 0:
        del made[at:]
    elif way == 1:
        made[at] = chance.randrange(256)
    else:
        made[at:at] = payload[at : at + chance.randint(1, 9)]
    return bytes(made)


def assert_same_or_refused(pair: Pair, payload: bytes) -> None:
    """A payload may be damaged: then nothing else happens than an error."""
    translation = Translation(pair.server.keyspace, lambda: 100)
    results = []
    for way in (translation.commands, translation.commands_of_any):
        translation.database = 1
        with contextlib.suppress(EffectError, ValueError, IndexError, TypeError):
            results.append((way(payload), translation.database))
    assert results[:1] == results[-1:]


def test_an_effect_with_many_ids_becomes_several_commands() -> None:
    """Redis would stop meanwhile, and so would this server."""
    pair = Pair()
    pair.change([("XADD", "s", f"{i}-1", "a", "b") for i in range(1, 2501)])
    for words in (("CREATE", "s", "g", "0"), ("CREATECONSUMER", "s", "g", "ann")):
        pair.change([("XGROUP", *words)])
    for line in ("XREADGROUP GROUP g ann STREAMS s >", "XACK s g {}", "XDEL s {}"):
        ids = " ".join(f"{i}-1" for i in range(1, 2201))
        pair.server.executor.feed(pair.player, encode_command(line.format(ids).split()))
        pair.server.settle()
    sizes = [[len(one.split()) for one in requests_in(data)] for data in pair.journal.commands]
    assert sizes == [
        [1, 1011, 1011, 511, 7, 1],
        [1, 1003, 1003, 203, 1],
        [1, 1002, 1002, 202, 1],
    ]
    pair.follow()
    pair.assert_same()


def test_a_frame_with_several_commands_is_a_transaction() -> None:
    pair = Pair()
    for line in ("SELECT 2", "SET a 1", "APPEND a 2", "SWAPDB 2 3"):
        pair.server.executor.feed(pair.player, encode_command(line.split()))
        pair.server.settle()
    assert [requests_in(data) for data in pair.journal.commands] == [
        ["MULTI", "SELECT 2", "SET a 1", "EXEC"],
        ["APPEND a 2"],
        ["SWAPDB 2 3"],
    ]


def requests_in(data: bytes) -> list[str]:
    found, at = [], 0
    while at < len(data):
        reply, at = read_reply(bytearray(data), at)
        assert isinstance(reply, list)
        found.append(b" ".join(map(as_bytes, reply)).decode())
    return found


def test_a_repeated_delivery_of_a_deleted_entry_keeps_it_pending() -> None:
    """Redis forgets such an entry when it is claimed."""
    pair = Pair()
    for line in (
        "XADD s 1-1 a b", "XGROUP CREATE s g 0", "XREADGROUP GROUP g ann STREAMS s >", "XDEL s 1-1",
        "XREADGROUP GROUP g ann STREAMS s 0",
    ):  # fmt: skip
        pair.change([tuple(line.split())])
    assert pair.follower.group().pending.has(1, 1)
    pair.change([("XNACK", "s", "g", "SILENT", "IDS", 1, "1-1")])
    pair.assert_same()


def test_a_change_of_a_deleted_entry_does_not_send_a_long_stream() -> None:
    """That would stop the server meanwhile. Redis keeps the entry pending as it was."""
    pair = Pair()
    pair.change([("XADD", "s", f"{i}-1", "a", "b") for i in range(1, 2001)])
    for line in (
        "XGROUP CREATE s g 0", "XREADGROUP GROUP g ann COUNT 2 STREAMS s >", "XDEL s 1-1",
        "XNACK s g FAIL IDS 2 1-1 2-1",
    ):  # fmt: skip
        pair.server.executor.feed(pair.player, encode_command(line.split()))
        pair.server.settle()
    assert not [data for data in pair.journal.commands if b"RESTORE" in data]
    pair.follow()
    there = {row[:2]: row[2] for row in pair.follower.group().pending.rows(0, 0, (9, 9))}
    assert there == {(1, 1): b"ann", (2, 1): UNOWNED}
    pair.change([("XACK", "s", "g", "1-1", "2-1")])
    pair.assert_same()


def test_a_sweep_names_the_entries_that_it_deletes() -> None:
    """Redis cannot delete a range; the stream as a whole may be as large as the memory."""
    pair = Pair()
    pair.server.keyspace.names_deleted = True
    pair.change([("XADD", "s", f"{i}-1", "field", "v" * 50) for i in range(1, 6501)])
    for line in (
        "XGROUP CREATE s g 0", "XREADGROUP GROUP g ann COUNT 6500 STREAMS s >",
        "TPOLICY s EVICT DONE",
    ):  # fmt: skip
        pair.change([tuple(line.split())])
    pair.change([("XACK", "s", "g", *(f"{i}-1" for i in range(2, 6500)))])
    stream = pair.server.stream()
    for _ in range(10):
        pair.server.wait_ms(500)
        assert not [data for data in pair.journal.commands if b"RESTORE" in data]
        pair.follow()
    assert stream.length < 400
    pair.assert_same()


class _Client:
    """A connection that only counts what it is sent."""

    id, address, feed, closed, paused, output_bytes = 1, "127.0.0.1:1", None, False, False, 0

    def __init__(self) -> None:
        self.sent_bytes = 0

    def transmit(self, data: bytes) -> None:
        self.sent_bytes += len(data)


def test_a_link_without_acknowledgements_needs_no_memory() -> None:
    """After SYNC, which `redis-cli --replica` sends, nothing is ever acknowledged."""
    machine: Any = SimpleNamespace(steady_clock=lambda: 0)
    wanted = Wanted("7.0", with_keys=True, uses_psync=False, stays=True)
    client = _Client()
    feed = RedisFeed(machine, client, "host", 1, wanted, lambda client: None)
    feed.go_online(Mark(0, 0, 0))
    tracemalloc.start()
    try:
        for number in range(1, 100_000):
            feed.take(b"command", Mark(number * 7, number, number), 1)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert client.sent_bytes == 7 * 99_999
    assert kept_bytes < 3_000_000
    feed.acknowledge(7 * 99_999)
    assert feed.acked.seq == 99_999
