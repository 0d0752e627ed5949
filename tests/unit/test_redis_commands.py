"""Effects as commands of Redis: every effect has a translation, and the commands lead to the same
data. Another server of this kind runs them in place of a Redis."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.client import as_bytes
from tests.support.effort import examples
from tests.support.in_process import InProcessServer, Journal
from tests.support.mixed_changes import Changes, Words
from tests.support.resp import Error, encode_command, read_reply

from millstream.commands.runtime.effects import APPLY, CODES
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
    """A journal that also translates each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.translation: Translation | None = None
        self.commands: list[bytes] = []

    def commit(self, payload: bytes) -> int:
        seq = super().commit(payload)
        assert self.translation is not None
        self.commands.append(self.translation.commands(payload))
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
            feed.take(b"command", Mark(number * 7, number, number))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert client.sent_bytes == 7 * 99_999
    assert kept_bytes < 3_000_000
    feed.acknowledge(7 * 99_999)
    assert feed.acked.seq == 99_999
