"""Lists of groups and consumers: by name, of one moment, in slices when they are long; and what is
kept of groups, which are copied, captured and freed without a look at each name."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import msgpack
import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Map, Null, Reply, encode_command
from tests.support.storage_access import (
    acknowledge_id,
    check_group,
    deliver_id,
    next_event_ms,
)
from tests.unit.test_long_replies import SLICE_MAX_BYTES, Listener, listener

from millstream.commands.xstream import xinfo as inspect
from millstream.storage.blocks.lazyfree import defer, free_step
from millstream.storage.groups.group import Group
from millstream.storage.groups.group_snapshot import dump_group, load_group
from millstream.storage.groups.pending_sweeps import delete_consumer
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import copy_stream, dump_stream

MANY = 4000
SORTED_IN_STEPS = 20_000
ENTRIES = 300


def names(count: int, prefix: str, seed: int = 1) -> list[str]:
    """Names of different lengths, shuffled."""
    made = [f"{prefix}{number:x}" for number in range(count)]
    random.Random(seed).shuffle(made)
    return made


def fields(reply: Reply) -> dict[bytes, Reply]:
    if isinstance(reply, Map):
        return dict(reply.pairs)  # type: ignore[arg-type]
    assert isinstance(reply, list)
    return dict(zip(reply[::2], reply[1::2], strict=True))  # type: ignore[arg-type]


def ask(in_process: InProcessServer, player: InProcessClient, line: str) -> None:
    """Let a command run; its reply is not sent yet."""
    in_process.executor.feed(player, encode_command(line.split()))
    in_process.executor.end_tick()


def run_lines(in_process: InProcessServer, *lines: str) -> None:
    """Run commands of another client between two slices."""
    other = in_process.player()
    for line in lines:
        in_process.executor.feed(other, encode_command(line.split()))


def crowd(in_process: InProcessServer, count: int, readers: int = 40) -> list[str]:
    """A group of many consumers, some of which own pending entries."""
    player = in_process.player()
    for number in range(1, ENTRIES + 1):
        player.call(f"XADD s {number}-1 a b")
    player.call("XGROUP CREATE s g 0")
    found = names(count, "c")
    for name in found:
        player.call(f"XGROUP CREATECONSUMER s g {name}")
    for name in found[:readers]:
        player.call(f"XREADGROUP GROUP g {name} COUNT 5 STREAMS s >")
    return found


@pytest.mark.parametrize("resp", [2, 3])
def test_a_long_list_of_consumers_is_sent_in_slices_unchanged(
    in_process: InProcessServer, resp: int
) -> None:
    found = crowd(in_process, MANY)
    reader = listener(in_process, resp)
    in_process.wall_ms += 7
    ask(in_process, reader, "XINFO CONSUMERS s g")
    run_lines(
        in_process,
        f"XGROUP DELCONSUMER s g {found[0]}",
        "XGROUP CREATECONSUMER s g zz",
        "XACK s g 6-1",
    )
    in_process.settle()
    rows = [fields(row) for row in reader.read()]  # type: ignore[union-attr, arg-type]
    assert [row[b"name"] for row in rows] == sorted(name.encode() for name in found)
    pending = {row[b"name"].decode(): row[b"pending"] for row in rows}  # type: ignore[union-attr]
    assert pending == dict.fromkeys(found, 0) | dict.fromkeys(found[:40], 5)
    assert {row[b"inactive"] for row in rows if not row[b"pending"]} == {-1}
    assert not reader.unread
    assert len(reader.sizes) > 1
    assert max(reader.sizes) < SLICE_MAX_BYTES


@pytest.mark.parametrize("count", [0, 1, 2, 3, 200, 201, 777])
def test_lists_of_all_lengths_are_in_order(in_process: InProcessServer, count: int) -> None:
    player = in_process.player()
    player.call("XGROUP CREATE s g 0 MKSTREAM")
    found = names(count, "n", seed=count)
    for name in found:
        player.call(f"XGROUP CREATECONSUMER s g {name}")
        player.call(f"XGROUP CREATE s {name} 0")
    in_order = sorted(name.encode() for name in found)
    consumers = player.call("XINFO CONSUMERS s g")
    groups = player.call("XINFO GROUPS s")
    full = fields(player.call("XINFO STREAM s FULL"))[b"groups"]
    assert [fields(row)[b"name"] for row in consumers] == in_order  # type: ignore[union-attr, arg-type]
    for reply in (groups, full):
        got = [fields(row)[b"name"] for row in reply]  # type: ignore[union-attr, arg-type]
        assert got == sorted([*in_order, b"g"])
    assert fields(player.call("XINFO STREAM s"))[b"groups"] == count + 1


def test_a_long_summary_of_pending_entries_is_consistent(in_process: InProcessServer) -> None:
    player = in_process.player()
    for number in range(1, 1001):
        player.call(f"XADD s {number}-1 a b")
    player.call("XGROUP CREATE s g 0")
    found = names(1000, "c")
    for name in found:
        player.call(f"XREADGROUP GROUP g {name} COUNT 1 STREAMS s >")
    player.call("XREADGROUP GROUP g idle STREAMS s >")
    reader = listener(in_process)
    ask(in_process, reader, "XPENDING s g")
    run_lines(in_process, f"XGROUP DELCONSUMER s g {found[5]}", "XACK s g 1-1 1000-1")
    in_process.settle()
    owners = [[name.encode(), b"1"] for name in sorted(found)]
    assert reader.read() == [1000, b"1-1", b"1000-1", owners]
    assert not reader.unread


def test_a_long_list_in_exec_precedes_later_commands(
    in_process: InProcessServer,
) -> None:
    found = crowd(in_process, MANY)
    reader = listener(in_process)
    for line in ("MULTI", "XINFO CONSUMERS s g", "XGROUP DESTROY s g", "XINFO GROUPS s", "EXEC"):
        in_process.executor.feed(reader, encode_command(line.split()))
    in_process.settle()
    for _ in range(4):
        reader.read()
    consumers, destroyed, groups = reader.read()  # type: ignore[misc]
    assert len(consumers) == len(found)  # type: ignore[arg-type]
    assert (destroyed, groups) == (1, [])
    assert not reader.unread


# ---------------------------------------------------------------- XINFO STREAM FULL


def shown_groups(stream: Stream, limit: int | None) -> dict[bytes, object]:
    """Groups as FULL shows them, from their pending entries."""
    shown: dict[bytes, object] = {}
    for name in sorted(stream.groups):
        group = stream.groups[name]
        rows = group.pending.rows()
        consumers = {}
        for owner, consumer in sorted(group.pending.consumers.items()):
            own = [[b"%d-%d" % row[:2], row[3], row[4]] for row in rows if row[2] == owner]
            consumers[owner] = (consumer.pending, own[:limit])
        pending = [[b"%d-%d" % row[:2], row[2], row[3], row[4]] for row in rows][:limit]
        shown[name] = (len(rows), pending, consumers)
    return shown


def shown_reply(reply: Reply) -> dict[bytes, object]:
    found: dict[bytes, object] = {}
    groups = fields(reply)[b"groups"]
    for row in map(fields, groups):  # type: ignore[arg-type]
        consumers = {
            one[b"name"]: (one[b"pel-count"], one[b"pending"])
            for one in map(fields, row[b"consumers"])  # type: ignore[arg-type]
        }
        found[row[b"name"]] = (row[b"pel-count"], row[b"pending"], consumers)  # type: ignore[index]
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limit", ["", " COUNT 3", " COUNT 0"])
def test_full_shows_each_group_and_consumer_as_it_was(
    in_process: InProcessServer, seed: int, limit: str
) -> None:
    chance = random.Random(seed)
    player = in_process.player()
    for number in range(1, 601):
        player.call(f"XADD s {number}-1 a b")
    for group in range(chance.choice([1, 5, 210])):
        player.call(f"XGROUP CREATE s g{group} 0")
        if chance.random() < 0.5:
            continue
        for number in range(chance.choice([0, 1, 9])):
            count = chance.choice([1, 7, 90])
            player.call(f"XREADGROUP GROUP g{group} c{number} COUNT {count} STREAMS s >")
    player.call("TREAD s 0 5 GROUP shared 0 RETRY 100 1000")
    for name in names(chance.choice([0, 500]), "extra", seed):
        player.call(f"XGROUP CREATECONSUMER s g0 {name}")
    player.call("XREADGROUP GROUP g0 all COUNT 500 STREAMS s >")
    for number in chance.sample(range(1, 600), 80):
        player.call(f"XACK s g0 {number}-1")
    most = {"": 10, " COUNT 3": 3, " COUNT 0": None}[limit]
    expected = shown_groups(in_process.stream(), most)
    reader = listener(in_process, 2 + seed % 2)
    ask(in_process, reader, f"XINFO STREAM s FULL{limit}")
    run_lines(
        in_process, "XGROUP DELCONSUMER s g0 all", "XGROUP DESTROY s g0", "XTRIM s MAXLEN 5 DELREF"
    )
    in_process.settle()
    assert shown_reply(reader.read()) == expected
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES


# ---------------------------------------------------------------- groups that end


def test_counting_groups_examines_none(
    in_process: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = in_process.player()
    player.call("XADD s 1-1 a b")
    for number in range(50):
        player.call(f"XGROUP CREATE s g{number} 0")

    def looked_at(*_: object) -> None:
        raise AssertionError("a group was looked at")

    monkeypatch.setattr(inspect, "live_group", looked_at)
    for line in ("XINFO STREAM s", "TINFO s"):
        assert fields(player.call(line))[b"groups"] == 50


@pytest.mark.parametrize("may_delete", [True, False])
def test_groups_whose_time_has_ended_are_not_listed(
    in_process: InProcessServer, may_delete: bool
) -> None:
    player = in_process.player()
    player.call("XADD s 1-1 a b")
    player.call("TREAD s 0 5 GROUP short 1000")
    player.call("TREAD s 0 5 GROUP long 5000")
    player.call("XGROUP CREATE s plain 0")
    in_process.wall_ms += 2000
    if not may_delete:
        in_process.executor.pauses.start(in_process.wall_ms + 10_000, True)
    assert fields(player.call("XINFO STREAM s"))[b"groups"] == 2
    groups = player.call("XINFO GROUPS s")
    assert [fields(row)[b"name"] for row in groups] == [b"long", b"plain"]  # type: ignore[union-attr, arg-type]
    assert list(shown_reply(player.call("XINFO STREAM s FULL"))) == [b"long", b"plain"]


# ---------------------------------------------------------------- the kept parts of a group


def populated(consumers: int, pending: int, seed: int = 0) -> Group:
    chance = random.Random(seed)
    group = Group(b"g", 5, 6)
    for number in range(consumers):
        group.pending.make_consumer(b"c%d" % number, number)
    for number in range(0, consumers, 3):
        delete_consumer(group, b"c%d" % number)
    owners = [b"", *group.pending.consumers]
    for number in range(pending):
        retry = chance.choice([None, (5, 500), (7, 0)])
        deliver_id(group, number, 0, number, chance.choice(owners), retry)
    return group


SHAPES = [(0, 0), (1, 0), (0, 5), (3, 3), (9, 100), (50, 1000), (2000, 3000)]


def test_a_group_without_entries_is_small() -> None:
    group = Group(b"g")
    assert sys.getsizeof(group) + sys.getsizeof(group.pending) <= 176


@pytest.mark.parametrize(("consumers", "pending"), SHAPES)
def test_a_copied_group_is_independent(consumers: int, pending: int) -> None:
    stream = Stream(1)
    stream.load_group(populated(consumers, pending))
    before = dump_group(stream.groups[b"g"])
    copy = copy_stream(stream, 2, 100).groups[b"g"]
    check_group(copy)
    assert {**dump_group(copy), "consumers": []} == {**before, "consumers": []}
    named = [row for row in before["consumers"] if row is not None]
    assert [row for row in dump_group(copy)["consumers"] if row is not None] == named
    assert copy.pending.rows() == stream.groups[b"g"].pending.rows()
    assert next_event_ms(copy) == next_event_ms(stream.groups[b"g"])
    copy.pending.make_consumer(b"new", 1)
    deliver_id(copy, 10**6, 0, 5, b"new", (1, 2))
    for number in range(0, pending, 2):
        acknowledge_id(copy, number, 0)
    check_group(copy)
    check_group(stream.groups[b"g"])
    assert dump_group(stream.groups[b"g"]) == before


@pytest.mark.parametrize(("consumers", "pending"), SHAPES)
def test_captured_groups_are_packed_in_parts_as_they_were(consumers: int, pending: int) -> None:
    stream = Stream(1)
    for number in range(250):
        stream.make_group(b"empty%d" % number, number, 0)
    group = populated(consumers, pending)
    stream.load_group(group)
    expected = dump_stream(stream)[0]["groups"]
    captured = dump_stream(stream, shared=True)[0]["groups"]
    for number in range(pending):
        acknowledge_id(group, number, 0)
    for name in list(group.pending.consumers):
        delete_consumer(group, name)
    stream.drop_group(b"empty7")
    parts = list(captured.packed())
    assert len(parts) > 2
    assert msgpack.unpackb(b"".join(parts)) == expected
    assert list(captured) == expected
    loaded = [load_group(meta, 100) for meta in msgpack.unpackb(b"".join(parts))]
    for one in loaded:
        check_group(one)
    assert [dump_group(one) for one in loaded] == expected


# ---------------------------------------------------------------- freed in turns


@pytest.fixture
def deferring() -> Iterator[None]:
    defer(True)
    yield
    defer(False)


@pytest.mark.usefixtures("deferring")
@pytest.mark.parametrize("kind", ["groups", "consumers", "pending"])
def test_the_groups_of_a_deleted_stream_are_freed_in_turns(
    in_process: InProcessServer, kind: str
) -> None:
    player = in_process.player()
    if kind == "groups":
        for number in range(5000):
            player.call(f"XGROUP CREATE s g{number} 0 MKSTREAM")
    else:
        player.call("XGROUP CREATE s g 0 MKSTREAM")
        group = in_process.group()
        for number in range(5000 if kind == "consumers" else 40_000):
            if kind == "consumers":
                group.pending.make_consumer(b"%d" % number, 0)
            else:
                deliver_id(group, number, 0, 0)
        del group
    player.call("DEL s")
    turns = 0
    while free_step(500):
        turns += 1
    assert turns >= (2 if kind == "pending" else 5)


def test_a_listener_that_leaves_during_a_list_leaves_nothing(
    in_process: InProcessServer,
) -> None:
    crowd(in_process, SORTED_IN_STEPS)
    reader: Listener = listener(in_process)
    ask(in_process, reader, "XINFO CONSUMERS s g")
    in_process.executor.detach(reader)
    in_process.settle()
    assert reader.sizes == []
    assert in_process.player().call("XGROUP DESTROY s g") == 1
    assert in_process.player().call("XPENDING s g") is not Null.BULK
