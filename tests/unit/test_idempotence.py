"""A message that a producer sends again is answered with its first id and changes nothing else.

The window of remembered messages is held against a plain list, then through commands: what XADD
answers, trims, events, counters and the journal.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.support import payloads
from tests.support.effort import examples
from tests.support.in_process import NOW_MS, InProcessClient, InProcessServer
from tests.support.resp import Error, Null, Reply, Simple, encode_command

from millstream.commands.engine.idempotent_messages import name_of
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.idempotence import PRODUCERS_MAX, SharedWindow, Window
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream, load_stream

OK = Simple("OK")

producers = st.sampled_from([b"p", b"q", b"r"])
names = st.sampled_from([b"%d" % i for i in range(8)])


class WindowMachine(RuleBasedStateMachine):
    """All that was ever added since the window was last cleared, in order."""

    @initialize(duration_s=st.sampled_from([1, 2, 100]), maxsize=st.integers(1, 5))
    def start(self, duration_s: int, maxsize: int) -> None:
        self.window = Window(duration_s, maxsize)
        self.duration_s, self.maxsize = duration_s, maxsize
        self.sent: list[tuple[bytes, bytes, tuple[int, int], int]] = []
        self.now_ms = 1_000_000
        self.added = 0
        self.shared: list[tuple[SharedWindow, dict[str, Any]]] = []

    def known(self, producer: bytes, name: bytes) -> tuple[int, int] | None:
        newest: list[tuple[bytes, tuple[int, int], int]] = []
        for _, one, entry_id, at_ms in reversed([row for row in self.sent if row[0] == producer]):
            if one not in [row[0] for row in newest]:
                newest.append((one, entry_id, at_ms))
        for one, entry_id, at_ms in newest[: self.maxsize]:
            if one == name and at_ms + self.duration_s * 1000 > self.now_ms:
                return entry_id
        return None

    @rule(producer=producers, name=names)
    def send(self, producer: bytes, name: bytes) -> None:
        known = self.known(producer, name)
        assert self.window.find(producer, name, self.now_ms) == known
        if known is None:
            entry_id = (self.now_ms, len(self.sent))
            self.window.add(producer, name, entry_id, self.now_ms)
            self.sent.append((producer, name, entry_id, self.now_ms))
            self.added += 1

    @rule(span_ms=st.sampled_from([1, 999, 1000, 1001, 100_000]))
    def wait(self, span_ms: int) -> None:
        self.now_ms += span_ms

    @rule(duration_s=st.sampled_from([1, 2, 100]), maxsize=st.integers(1, 5))
    def configure(self, duration_s: int, maxsize: int) -> None:
        self.window.configure(duration_s, maxsize)
        if (duration_s, maxsize) != (self.duration_s, self.maxsize):
            self.sent.clear()
        self.duration_s, self.maxsize = duration_s, maxsize

    @rule()
    def expire(self) -> None:
        self.window.expire(self.now_ms)
        known = {
            (producer, name)
            for producer, name, *_ in self.sent
            if self.known(producer, name) is not None
        }
        assert self.window.tracked() == (len({producer for producer, _ in known}), len(known))

    @rule()
    def reload(self) -> None:
        self.window = Window.load(msgpack.unpackb(msgpack.packb(self.window.dump())))

    @rule()
    def share(self) -> None:
        self.shared.append((self.window.share(), self.window.dump()))

    @precondition(lambda self: self.shared)
    @rule(first=st.booleans())
    def write_what_was_shared(self, first: bool) -> None:
        shared, wanted = self.shared.pop(0 if first else -1)
        assert b"".join(shared.packed()) == msgpack.packb(wanted)

    @invariant()
    def is_bounded(self) -> None:
        self.window.check()
        assert self.window.added == self.added
        assert all(len(rows) <= self.maxsize for rows in self.window.producers.values())


WindowMachine.TestCase.settings = settings(max_examples=examples(100), deadline=None)
TestWindow = WindowMachine.TestCase


def test_producers_that_come_once_do_not_pile_up() -> None:
    window = Window(duration_s=1, maxsize=100)
    for number in range(5000):
        window.add(b"%d" % number, b"only", (number, 0), at_ms=number)
    assert window.tracked() == (1000, 1000)


def test_the_producer_idle_longest_is_dropped_at_the_limit() -> None:
    window = Window()
    for number in range(PRODUCERS_MAX):
        window.add(b"%d" % number, b"first", (number + 1, 0), at_ms=1000)
    window.add(b"0", b"second", (20_000, 0), at_ms=1000)
    window.add(b"late", b"first", (20_001, 0), at_ms=1000)
    assert window.tracked() == (PRODUCERS_MAX, PRODUCERS_MAX + 1)
    assert window.find(b"1", b"first", 1000) is None
    assert window.find(b"0", b"first", 1000) == (1, 0)


def test_sharing_copies_no_names() -> None:
    window = Window(maxsize=2000)
    for number in range(2000):
        window.add(b"p", b"%d" % number, (number + 1, 0), at_ms=1000)
        window.add(b"q", b"%d" % number, (number + 1, 1), at_ms=1000)
    before = dict(window.producers)
    wanted = msgpack.packb(window.dump())
    shared = window.share()
    assert window.producers[b"p"] is before[b"p"]
    window.add(b"p", b"more", (3000, 0), at_ms=1000)
    assert window.producers[b"p"] is not before[b"p"]
    assert window.producers[b"q"] is before[b"q"]
    parts = list(shared.packed())
    assert b"".join(parts) == wanted
    assert max(map(len, parts)) < len(wanted) // 4
    del shared
    now = window.producers[b"q"]
    window.add(b"q", b"more", (3000, 1), at_ms=1000)
    assert window.producers[b"q"] is now


@pytest.mark.parametrize(
    "change",
    [
        {"maxsize": 0},
        {"maxsize": 10_001},
        {"duration_s": 86_401},
        {"duration_s": "1"},
        {"added": -1},
        {"duplicates": 2**64},
        {"producers": [[b"p", []]]},
        {"producers": [[b"p", [[b"a", 1, 1, 1], [b"a", 2, 2, 2]]]]},
        {"producers": [[b"p", [[b"a", 1, 1, 1]]], [b"p", [[b"b", 1, 1, 1]]]]},
        {"producers": [[b"p", [[b"a", -1, 1, 1]]]]},
        {"producers": [["p", [[b"a", 1, 1, 1]]]]},
        {"maxsize": 1, "producers": [[b"p", [[b"a", 1, 1, 1], [b"b", 2, 2, 2]]]]},
    ],
)
def test_a_malformed_window_is_not_loaded(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"malformed|twice"):
        Window.load(Window().dump() | change)


def test_a_stream_of_a_version_without_windows_is_loaded() -> None:
    meta, blocks = dump_stream(Stream())
    assert "idempotence" not in meta
    assert load_stream(meta, blocks, 0).idempotence is None


# ---------------------------------------------------------------- through commands


def facts(player: InProcessClient, key: str = "s") -> dict[bytes, Reply]:
    reply: Any = player.call(f"XINFO STREAM {key}")
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    return {name: fields[name] for name in fields if name[:3] in (b"idm", b"pid", b"iid")}


def tracked(player: InProcessClient) -> tuple[Reply, ...]:
    names = (b"pids-tracked", b"iids-tracked", b"iids-added", b"iids-duplicates")
    found = facts(player)
    return tuple(found[name] for name in names)


def is_replayed(in_process: InProcessServer) -> None:
    """The journal leads to the same streams, except for expired parts."""
    again: Keyspace = in_process.replayed()
    for keyspace in (in_process.keyspace, again):
        for stream in map(keyspace.databases[0].stream, keyspace.databases[0].keys()):
            if stream is not None and stream.idempotence is not None:
                stream.idempotence.expire(in_process.wall_ms)
    for key in in_process.keyspace.databases[0].keys():  # noqa: SIM118 - a Database is no dict
        lived, replayed = (
            in_process.keyspace.databases[0].stream(key),
            again.databases[0].stream(key),
        )
        assert lived is not None
        assert replayed is not None
        assert dump_stream(replayed)[0] == dump_stream(lived)[0]
        assert replayed.range() == lived.range()


def test_a_repeat_is_the_first_entry_again(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    first = player.call("XADD s IDMP p 1 * f v")
    in_process.wait_ms(50)
    assert player.call("XADD s IDMP p 1 * f v") == first
    assert player.call("XADD s IDMP p 1 * other words") == first
    assert player.call("XLEN s") == 1
    assert player.call("XADD s IDMP q 1 * f v") != first
    assert player.call("XADD s IDMP p 2 * f v") != first
    assert player.call("XLEN s") == 3
    assert tracked(player) == (2, 3, 3, 2)
    is_replayed(in_process)


def test_a_repeat_does_not_trim(in_process: InProcessServer, player: InProcessClient) -> None:
    for number in range(5):
        player.call(f"XADD s IDMP p {number} * f v")
    player.call("XADD s IDMP p 4 MAXLEN 1 * f v")
    assert player.call("XLEN s") == 5
    player.call("XADD s IDMP p 5 MAXLEN 1 * f v")
    assert player.call("XLEN s") == 1
    is_replayed(in_process)


def test_a_repeat_is_recognized_after_its_entry_was_deleted(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    first = player.call("XADD s IDMP p 1 * f v")
    assert isinstance(first, bytes)
    assert player.call(f"XDEL s {first.decode()}") == 1
    assert player.call("XADD s IDMP p 1 * f v") == first
    assert player.call("XLEN s") == 0
    is_replayed(in_process)


def test_the_same_contents_are_the_same_message(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    first = player.call("XADD s IDMPAUTO p * a 1 b 2")
    for again in ("a 1 b 2", "b 2 a 1"):
        assert player.call(f"XADD s IDMPAUTO p * {again}") == first
    others = ("a 2 b 1", "a 1", "a 1 b 2 b 2", "b 2 b 2", "a1 b 2 2", "ab 12", "1 a 2 b")
    replies = [player.call(f"XADD s IDMPAUTO p * {words}") for words in others]
    replies.append(player.call("XADD s IDMPAUTO q * a 1 b 2"))
    assert len({str(reply) for reply in (first, *replies)}) == len(replies) + 1
    assert player.call("XLEN s") == len(replies) + 1
    is_replayed(in_process)


def redis_name(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """The name that Redis 8.6 gives a message."""
    sum_low = sum_high = xor_low = xor_high = 0
    for field, value in pairs:
        state = xxhash.xxh3_128()
        state.update(field)
        state.update(struct.pack("<q", len(field)))
        state.update(value)
        high, low = struct.unpack(">QQ", state.digest())
        sum_low, sum_high = (sum_low + low) % 2**64, (sum_high + high) % 2**64
        xor_low, xor_high = xor_low ^ low, xor_high ^ high
    low = sum_low ^ (xor_high * 2 % 2**64 + xor_high // 2**63)
    high = sum_high ^ (xor_low * 2 % 2**64 + xor_low // 2**63)
    return struct.pack("<QQ", low, high)


def test_a_message_restored_from_redis_is_recognized(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    pairs = [(b"a", b"1"), (b"long" * 30, b"v" * 300), (b"", b""), (b"a", b"1")]
    ms = in_process.wall_ms
    words = [word for pair in pairs for word in pair]
    stream = payloads.Stream([[payloads.Entry((ms, 0), words)]])
    stream.producers = [(b"p", [(redis_name(pairs), (ms, 0))])]
    restore = ["RESTORE", "s", "0", payloads.sealed(stream.body(26))]
    add = ["XADD", "s", "IDMPAUTO", "p", "*", *words]
    in_process.executor.feed(player, encode_command(restore) + encode_command(add))
    in_process.settle()
    assert [player.read(), player.read()] == [Simple("OK"), b"%d-0" % ms]
    assert player.call("XLEN s") == 1


@given(
    pairs=st.lists(
        st.tuples(st.sampled_from(["a", "ab", "1", "2"]), st.sampled_from(["", "1", "b1", "2 1"])),
        min_size=1,
        max_size=5,
    ),
    data=st.data(),
)
@settings(max_examples=examples(60), deadline=None)
def test_the_order_of_fields_makes_no_other_message(
    pairs: list[tuple[str, str]], data: st.DataObject
) -> None:
    player = InProcessServer().player()
    shuffled = data.draw(st.permutations(pairs))
    other = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=5))
    auto = ["IDMPAUTO", "p", "*"]

    def send(some: list[tuple[str, str]]) -> Reply:
        words = [word for pair in some for word in pair]
        player.in_process.executor.feed(player, encode_command(["XADD", "s", *auto, *words]))
        player.in_process.settle()
        return player.read()

    first = send(pairs)
    assert send(shuffled) == first
    assert (send(other) == first) == (sorted(other) == sorted(pairs))


def test_a_message_is_forgotten_when_its_time_is_over(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    first = player.call("XADD s IDMP p 1 * f v")
    in_process.wait_ms(99_999)
    assert player.call("XADD s IDMP p 1 * f v") == first
    in_process.wait_ms(1)
    assert tracked(player) == (0, 0, 1, 1)
    assert player.call("XADD s IDMP p 1 * f v") != first
    is_replayed(in_process)


def test_ids_ahead_of_the_clock_do_not_keep_messages_longer(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call(f"XADD s {NOW_MS + 10**9}-0 f v")
    first = player.call("XADD s IDMP p 1 * f v")
    in_process.wait_ms(100_000)
    assert player.call("XADD s IDMP p 1 * f v") != first
    is_replayed(in_process)


def test_only_the_newest_of_a_producer_are_known(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    assert player.call("XADD s * f v") is not None
    assert player.call("XCFGSET s IDMP-MAXSIZE 2") == OK
    ids = [player.call(f"XADD s IDMP p {number} * f v") for number in range(3)]
    assert player.call("XADD s IDMP p 2 * f v") == ids[2]
    assert player.call("XADD s IDMP p 1 * f v") == ids[1]
    assert player.call("XADD s IDMP p 0 * f v") != ids[0]
    assert tracked(player) == (1, 2, 4, 2)
    is_replayed(in_process)


def test_new_bounds_forget_and_the_same_do_not(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    first = player.call("XADD s IDMP p 1 * f v")
    assert player.call("XCFGSET s IDMP-DURATION 100") == OK
    assert player.call("XADD s IDMP p 1 * f v") == first
    assert player.call("XCFGSET s IDMP-MAXSIZE 7 IDMP-DURATION 9") == OK
    assert facts(player)[b"idmp-duration"] == 9
    assert facts(player)[b"idmp-maxsize"] == 7
    assert tracked(player) == (0, 0, 1, 1)
    assert player.call("XADD s IDMP p 1 * f v") != first
    is_replayed(in_process)


def test_new_streams_take_over_the_configured_bounds(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XADD old * f v")
    in_process.keyspace.idmp_duration_s, in_process.keyspace.idmp_maxsize = 7, 8
    for line in ("XADD s * f v", "XGROUP CREATE t g $ MKSTREAM", "TAPPEND u f v"):
        player.call(line)
    for key in "stu":
        found = facts(player, key)
        assert (found[b"idmp-duration"], found[b"idmp-maxsize"]) == (7, 8)
    assert facts(player, "old")[b"idmp-duration"] == 100
    is_replayed(in_process)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("XADD s IDMP p 1 5-1 f v", "can be used only with auto-generated IDs"),
        ("XADD s IDMP p 1 5-* f v", "can be used only with auto-generated IDs"),
        ("XADD s IDMP p 1 IDMP p 2 * f v", "specified multiple times"),
        ("XADD s IDMPAUTO p IDMPAUTO p * f v", "specified multiple times"),
        ('XADD s IDMP "" 1 * f v', "IDMP requires a non-empty producer ID"),
        ('XADD s IDMP p "" * f v', "IDMP requires a non-empty idempotent ID"),
        ('XADD s IDMPAUTO "" * f v', "IDMPAUTO requires a non-empty producer ID"),
        ("XADD s IDMP p * f v", "Invalid stream ID"),
        ("XADD s IDMPAUTO * f v", "Invalid stream ID"),
        ("XADD s IDMP p 1 * f", "wrong number of arguments"),
        ("XCFGSET s", "At least one parameter must be specified"),
        ("XCFGSET s IDMP-DURATION", "syntax error"),
        ("XCFGSET s IDMP-DURATION x", "value is not an integer or out of range"),
        ("XCFGSET s IDMP-DURATION 86401", "must be between 1 and 86400 seconds"),
        ("XCFGSET s IDMP-MAXSIZE 10001", "must be between 1 and 10000 entries"),
        ("XCFGSET s FOO 1", "syntax error"),
        ("XCFGSET nokey IDMP-MAXSIZE 1", "no such key"),
        ("XIDMPRECORD nokey p 1 1-1", "no such key"),
        ("XIDMPRECORD s p 1 9-9", "ERR No such message in stream"),
        ("XIDMPRECORD s p 1 abc", "Invalid stream ID"),
        ('XIDMPRECORD s "" 1 1-1', "ERR producer ID must be non-empty"),
        ('XIDMPRECORD s p "" 1-1', "ERR idempotent ID must be non-empty"),
    ],
)
def test_a_refused_command_changes_nothing(player: InProcessClient, line: str, words: str) -> None:
    player.call("XADD s 1-1 f v")
    before = facts(player)
    reply = player.call(line)
    assert isinstance(reply, Error)
    assert words in reply.text
    assert facts(player) == before
    assert player.call("XLEN s") == 1


def test_a_message_can_be_noted_afterwards(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    entry_id = b"%d-1" % NOW_MS
    player.call(f"XADD s {entry_id.decode()} f v")
    player.call(f"XADD s {NOW_MS}-2 f v")
    assert player.call(f"XIDMPRECORD s p 1 {NOW_MS}-1") == OK
    assert player.call(f"XIDMPRECORD s p 1 {NOW_MS}-1") == OK
    refused = player.call(f"XIDMPRECORD s p 1 {NOW_MS}-2")
    assert isinstance(refused, Error)
    assert "with a different stream ID" in refused.text
    assert player.call("XADD s IDMP p 1 * f v") == entry_id
    assert tracked(player) == (1, 1, 1, 1)
    is_replayed(in_process)


def test_nomkstream_creates_no_key(in_process: InProcessServer, player: InProcessClient) -> None:
    assert player.call("XADD s NOMKSTREAM IDMP p 1 * f v") == Null.BULK
    assert player.call("EXISTS s") == 0
    assert not in_process.keyspace.databases[0].keys()


def test_a_repeat_is_answered_even_where_no_id_is_left(player: InProcessClient) -> None:
    first = player.call("XADD s IDMP p 1 * f v")
    player.call("XADD s 18446744073709551615-18446744073709551615 f v")
    assert player.call("XADD s IDMP p 1 * f v") == first
    refused = player.call("XADD s IDMP p 2 * f v")
    assert isinstance(refused, Error)
    assert tracked(player)[:2] == (1, 1)


# ---------------------------------------------------------------- requests of a source


class Obeyed(InProcessClient):
    """A source that this server follows."""

    is_obeyed = True


def test_a_source_names_the_entries_of_its_messages(in_process: InProcessServer) -> None:
    source = Obeyed(in_process, 2)
    in_process.executor.attach(source)
    assert source.call(f"XADD s IDMP p m1 {NOW_MS}-1 f v") == b"%d-1" % NOW_MS
    assert source.call(f"XADD s IDMPAUTO p {NOW_MS}-2 f v") == b"%d-2" % NOW_MS
    window = in_process.stream().idempotence
    assert window.find(b"p", b"m1", in_process.wall_ms) == (NOW_MS, 1)
    assert window.find(b"p", name_of([b"f", b"v"]), in_process.wall_ms) == (NOW_MS, 2)
    assert source.call("XADD s IDMP p m1 * f v") == b"%d-1" % NOW_MS
    assert source.call("XADD s IDMP p unknown * f v") == Null.BULK
    assert in_process.stream().length == 2
    # The source has forgotten the name, and given it to another entry.
    assert source.call(f"XADD s IDMP p m1 {NOW_MS}-3 f v") == b"%d-3" % NOW_MS
    assert window.find(b"p", b"m1", in_process.wall_ms) == (NOW_MS, 3)
    is_replayed(in_process)
