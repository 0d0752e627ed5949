"""Long replies are sent in slices and show the data at the time of the request."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable, Iterator
from copy import copy

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Map, Null, Reply, Simple, encode_command
from tests.support.storage_access import check_group, deliver_ids, shared_chunks

from millstream.commands.runtime.replies import PAUSE, ArrayHead, LongReply
from millstream.commands.table.registry import COMMANDS
from millstream.encoding import encode_request
from millstream.storage.groups.group_snapshot import dump_group
from millstream.storage.log.log_ranges import blocks_between

SLICE_MAX_BYTES = 3 * 262_144
COUNT = 300
LONG = 1500  # entries that make a group's reply a long one
VALUE = b"v" * 2000
MANY_KEYS = 6000  # KEYS looks for them in turns


class Listener(InProcessClient):
    """Notes the size of everything it is sent at once, and whether it is closed."""

    def __init__(self, in_process: InProcessServer, resp: int) -> None:
        super().__init__(in_process, resp)
        self.sizes: list[int] = []
        self.is_ended = False

    def end(self, after_reply: bool) -> int:
        self.is_ended = True
        self.in_process.executor.detach(self)
        return 0

    def transmit(self, data: bytes) -> int:
        self.sizes.append(len(data))
        return super().transmit(data)


def listener(in_process: InProcessServer, resp: int = 2) -> Listener:
    made = Listener(in_process, resp)
    in_process.players.append(made)
    in_process.executor.attach(made)
    return made


def fill(in_process: InProcessServer, key: str, count: int) -> None:
    player = in_process.player()
    for number in range(1, count + 1):
        in_process.executor.feed(
            player, encode_command(["XADD", key, f"{number}-1", "n", VALUE.decode()])
        )
    in_process.settle()
    player.unread = b""


def entries(first: int, last: int) -> list[Reply]:
    return [[b"%d-1" % number, [b"n", VALUE]] for number in range(first, last + 1)]


@pytest.mark.parametrize("resp", [2, 3])
def test_xread_of_several_long_streams_is_sent_in_slices(
    in_process: InProcessServer, resp: int
) -> None:
    for key, count in (("a", COUNT), ("few", 3), ("b", COUNT), ("c", COUNT)):
        fill(in_process, key, count)
    reader = listener(in_process, resp)
    other = in_process.player()
    command = ["XREAD", "STREAMS", "a", "few", "none", "b", "c", "0", "1-1", "0", "5-1", "0"]
    in_process.executor.feed(reader, encode_command(command))
    in_process.executor.end_tick()
    # What happens to the streams between two slices does not change the reply.
    in_process.executor.feed(other, encode_command(["XDEL", "b", "7-1"]))
    in_process.executor.feed(other, encode_command(["XADD", "b", "*", "n", "late"]))
    in_process.executor.feed(other, encode_command(["DEL", "c"]))
    in_process.settle()
    wanted: list[tuple[bytes, list[Reply]]] = [
        (b"a", entries(1, COUNT)),
        (b"few", entries(2, 3)),
        (b"b", entries(6, COUNT)),
        (b"c", entries(1, COUNT)),
    ]
    reply = reader.read()
    if resp == 3:
        assert reply == Map(wanted)
    else:
        assert reply == [[key, found] for key, found in wanted]
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES


def test_xread_of_several_long_streams_stops_at_its_count(in_process: InProcessServer) -> None:
    for key in ("a", "b", "c"):
        fill(in_process, key, COUNT)
    reader = listener(in_process)
    reply = reader.call(f"XREAD COUNT {COUNT - 1} STREAMS a b c 0 0 2-1")
    assert reply == [
        [b"a", entries(1, COUNT - 1)],
        [b"b", entries(1, COUNT - 1)],
        [b"c", entries(3, COUNT)],
    ]
    assert max(reader.sizes) < SLICE_MAX_BYTES
    assert reader.call("PING") is not None


def test_xread_of_many_small_streams_is_sent_in_slices(in_process: InProcessServer) -> None:
    keys = [f"key-{number}" for number in range(200)]
    for key in keys:
        fill(in_process, key, 4)
    reader = listener(in_process)
    reply = reader.call(f"XREAD STREAMS {' '.join(keys)} {' '.join('0' for _ in keys)}")
    assert reply == [[key.encode(), entries(1, 4)] for key in keys]
    assert max(reader.sizes) < SLICE_MAX_BYTES


# ---------------------------------------------------------------- ranges


class Log:
    """A stream and the numbers of its entries, changed at random by another client. Entry n has the
    ID n-1 and a value of its own size."""

    def __init__(self, in_process: InProcessServer, seed: int) -> None:
        self.in_process = in_process
        self.chance = random.Random(seed)
        self.player = in_process.player()
        self.numbers: list[int] = []
        self.next = 1
        while self.next < 2500:
            self.append()
        for _ in range(40):
            self.change()

    def ask(self, line: str) -> None:
        self.in_process.executor.feed(self.player, encode_command(line.split()))

    def append(self) -> None:
        self.ask(f"XADD a {self.next}-1 n {value_of(self.next)}")
        self.numbers.append(self.next)
        self.next += 1

    def change(self) -> None:
        kind = self.chance.randrange(10)
        if kind < 6 and self.numbers:
            at = self.chance.randrange(len(self.numbers))
            gone = self.numbers[at : at + self.chance.choice([1, 1, 30])]
            self.ask("XDEL a " + " ".join(f"{number}-1" for number in gone))
            self.numbers = [number for number in self.numbers if number not in set(gone)]
        elif kind == 6:
            self.ask(f"XTRIM a MAXLEN {max(len(self.numbers) - 20, 0)}")
            self.numbers = self.numbers[-max(len(self.numbers) - 20, 0) :]
        else:
            self.append()

    def rows(self, low: int, high: int, count: int, *, reverse: bool) -> list[Reply]:
        found = [number for number in self.numbers if low <= number <= high]
        found = found[::-1][:count] if reverse else found[:count]
        return [[b"%d-1" % n, [b"n", value_of(n).encode()]] for n in found]


def value_of(number: int) -> str:
    return f"{number}" + "v" * (number * 7919 % 1500)


@pytest.mark.parametrize("seed", range(3))
def test_ranges_in_slices_are_those_of_the_request(in_process: InProcessServer, seed: int) -> None:
    log = Log(in_process, seed)
    chance = log.chance
    turns = 0
    for _ in range(12):
        low = chance.choice([0, 0, chance.randrange(log.next)])
        high = chance.choice([10**9, 10**9, chance.randrange(log.next)])
        count = chance.choice([1, 100, 300, 1000, 10**9, 10**9])
        reverse, within = chance.random() < 0.5, chance.random() < 0.4
        request = f"XREVRANGE a {high} {low}" if reverse else f"XRANGE a {low} {high}"
        lines = [f"{request} COUNT {count}"]
        expected: list[Reply] = [log.rows(low, high, count, reverse=reverse)]
        if within:  # several long elements of one reply
            after = chance.randrange(log.next)
            lines.append(f"XREAD COUNT {count} STREAMS a a {after} 0")
            found = [log.rows(first, 10**9, count, reverse=False) for first in (after, 0)]
            expected.append([[b"a", rows] for rows in found if rows] or Null.ARRAY)
            lines = ["MULTI", *lines, "EXEC"]
        reader = listener(in_process)
        for line in lines:
            in_process.executor.feed(reader, encode_command(line.split()))
        turns += disturbed(in_process, reader, log.change)
        replies = [reader.read() for _ in lines]
        assert (replies[-1] if within else replies) == expected
        assert not reader.unread
        assert max(reader.sizes) < SLICE_MAX_BYTES
    assert turns > 5, "too few of them were long"


@pytest.mark.parametrize(
    "request_line", ["XRANGE a - + COUNT 300", "XREVRANGE a + - COUNT 300", "XRANGE a 500 799"]
)
def test_a_long_range_keeps_only_the_blocks_of_its_entries(
    in_process: InProcessServer, request_line: str
) -> None:
    fill(in_process, "a", LONG)
    stream = in_process.stream(b"a")
    blocks = blocks_between(stream, 0, 0, 10**9, 0)
    holders = list(map(sys.getrefcount, blocks))
    reader = listener(in_process)
    in_process.executor.feed(reader, encode_command(request_line.split()))
    in_process.executor.end_tick()
    kept = sum(map(operator.ne, map(sys.getrefcount, blocks), holders))
    assert 0 < kept <= len(blocks) * 300 // LONG + 2
    in_process.settle()
    assert list(map(sys.getrefcount, blocks)) == holders
    assert isinstance(reply := reader.read(), list)
    assert len(reply) == 300


def deliver(in_process: InProcessServer, key: str, count: int) -> None:
    """A group to which all of a stream's entries are delivered, the first two then removed."""
    player = in_process.player()
    player.call(f"XGROUP CREATE {key} g 0")
    player.call(f"XREADGROUP GROUP g one COUNT {count} STREAMS {key} >")
    player.call(f"XDEL {key} 2-1")
    player.call(f"XTRIM {key} MINID 2-1")


def disturb(in_process: InProcessServer) -> None:
    """Changes of the stream between two slices."""
    other = in_process.player()
    for request in ("XDEL a 1400-1", "XACK a g 1401-1", "XTRIM a MAXLEN 0", "SET long short"):
        in_process.executor.feed(other, encode_command(request.split()))


def history(resp: int) -> list[Reply]:
    gone: list[Reply] = [Null.ARRAY if resp == 2 else Null.RESP3]
    return [[b"1-1", *gone], [b"2-1", *gone], *entries(3, LONG)]


@pytest.mark.parametrize("resp", [2, 3])
def test_a_long_history_is_sent_in_slices_unchanged(in_process: InProcessServer, resp: int) -> None:
    for key in ("a", "b"):
        fill(in_process, key, LONG)
        deliver(in_process, key, LONG)
    reader = listener(in_process, resp)
    request = "XREADGROUP GROUP g one STREAMS a b 0 0"
    in_process.executor.feed(reader, encode_command(request.split()))
    in_process.executor.end_tick()
    disturb(in_process)
    in_process.settle()
    wanted: list[tuple[bytes, list[Reply]]] = [(b"a", history(resp)), (b"b", history(resp))]
    reply = reader.read()
    assert reply == (Map(wanted) if resp == 3 else [[key, found] for key, found in wanted])
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES
    # Each of those that were there has been delivered once more.
    rows = in_process.player().call("XPENDING b g 1-1 4-1 9")
    assert isinstance(rows, list)
    assert [(row[0], row[3]) for row in rows if isinstance(row, list)] == [
        (b"1-1", 1), (b"2-1", 1), (b"3-1", 2), (b"4-1", 2)
    ]  # fmt: skip


def test_a_long_claim_is_sent_in_slices_unchanged(in_process: InProcessServer) -> None:
    fill(in_process, "a", LONG)
    deliver(in_process, "a", LONG)
    reader = listener(in_process)
    request = f"XAUTOCLAIM a g two 0 0 COUNT {LONG - 100}"
    in_process.executor.feed(reader, encode_command(request.split()))
    in_process.executor.end_tick()
    disturb(in_process)
    in_process.settle()
    last = LONG - 100
    assert reader.read() == [b"%d-1" % (last + 1), entries(3, last), [b"1-1", b"2-1"]]
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES


def test_a_long_claim_by_id_is_sent_in_slices_in_its_order(in_process: InProcessServer) -> None:
    fill(in_process, "a", LONG)
    deliver(in_process, "a", LONG)
    reader = listener(in_process)
    numbers = [*range(1, LONG - 100, 2), 7, *range(LONG - 100, 0, -2)]
    ids = [f"{number}-1" for number in numbers]
    in_process.executor.feed(reader, encode_command(["XCLAIM", "a", "g", "two", "0", *ids]))
    in_process.executor.end_tick()
    disturb(in_process)
    in_process.settle()
    wanted = [row for number in numbers if number > 2 for row in entries(number, number)]
    assert reader.read() == wanted
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES


@pytest.mark.parametrize("resp", [2, 3])
def test_all_of_a_stream_is_shown_in_slices(in_process: InProcessServer, resp: int) -> None:
    fill(in_process, "a", LONG)
    deliver(in_process, "a", LONG)
    reader = listener(in_process, resp)
    in_process.executor.feed(reader, encode_command(["XINFO", "STREAM", "a", "FULL", "COUNT", "0"]))
    in_process.executor.end_tick()
    disturb(in_process)
    in_process.settle()
    reply = reader.read()
    fields = dict(reply.pairs if isinstance(reply, Map) else pairs_of(reply))
    assert fields[b"entries"] == entries(3, LONG)
    assert fields[b"length"] == LONG - 2
    groups = fields[b"groups"]
    assert isinstance(groups, list)
    group = dict(groups[0].pairs if isinstance(groups[0], Map) else pairs_of(groups[0]))
    assert group[b"name"] == b"g"
    pending = group[b"pending"]
    assert isinstance(pending, list)
    assert [row[:2] for row in pending] == [[b"%d-1" % n, b"one"] for n in range(1, LONG + 1)]
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES


def pairs_of(reply: Reply) -> list[tuple[Reply, Reply]]:
    assert isinstance(reply, list)
    return list(zip(reply[::2], reply[1::2], strict=True))


def test_very_many_writers_are_listed_in_slices_as_they_were(in_process: InProcessServer) -> None:
    names = [f"writer-{number:05}" for number in range(9000)]
    player = in_process.player()
    ids = [player.call(f"TRESERVE a {name}") for name in reversed(names)]
    reader = listener(in_process)
    in_process.executor.feed(reader, encode_command(["TPOSITION", "a", "WRITERS"]))
    in_process.executor.end_tick()
    in_process.player().call("TABORT a writer-08999")
    in_process.player().call(f"TABORT a {names[0]}")
    in_process.settle()
    reply = reader.read()
    assert isinstance(reply, list)
    assert [row[0] for row in reply if isinstance(row, list)] == [name.encode() for name in names]
    assert reply[0] == [names[0].encode(), ids[-2], b"0.0", 1, ids[-1]]
    assert reply[-1] == [names[-1].encode(), b"0.0", b"0.0", 1, ids[0]]
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES


@pytest.mark.parametrize("size", [262_145, 786_432, 524_288, 1_000_000])
def test_a_long_value_is_sent_in_slices_unchanged(in_process: InProcessServer, size: int) -> None:
    value = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    reader = listener(in_process)
    for request in (["SET", "long", value], ["MULTI"], ["GET", "long"], ["PING"], ["EXEC"]):
        in_process.executor.feed(reader, encode_command(request))
    in_process.executor.feed(reader, encode_command(["GET", "long"]))
    in_process.executor.end_tick()
    disturb(in_process)
    in_process.settle()
    ok, queued = Simple("OK"), Simple("QUEUED")
    assert [reader.read() for _ in range(4)] == [ok, ok, queued, queued]
    assert reader.read() == [value, Simple("PONG")]
    assert reader.read() == b"short", "the request after a long reply runs when that is done"
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES


def disturbed(
    in_process: InProcessServer, reader: InProcessClient, change: Callable[[], object]
) -> int:
    """Run the server turn by turn, with a change by others before each, until a reader has
    its reply; how many turns."""
    turns = 0
    in_process.executor.end_tick()
    while reader.is_stopped():
        change()
        for _ in range(len(in_process.loop.ready)):
            in_process.loop.ready.popleft()()
        turns += 1
    in_process.settle()
    return turns


# ---------------------------------------------------------------- KEYS


def with_keys(in_process: InProcessServer, count: int = MANY_KEYS) -> None:
    for number in range(count):
        in_process.keyspace.databases[0].set(b"key:%d" % number, b"v")


class Meddler:
    """Another client that makes keys come and go."""

    def __init__(self, in_process: InProcessServer, seed: int = 1) -> None:
        self.in_process = in_process
        self.player = in_process.player()
        self.chance = random.Random(seed)

    def __call__(self) -> None:
        number = self.chance.randrange(MANY_KEYS)
        for request in (
            f"DEL key:{number} key:{number + 1}",
            f"SET key:{number + MANY_KEYS} v",
            f"SET key:{number} v",
            f"RENAME key:{number} key:{number + 2 * MANY_KEYS}",
        ):
            self.in_process.executor.feed(self.player, encode_command(request.split()))


@pytest.mark.parametrize("act", ["PING", "SWAPDB 0 1", "FLUSHDB"])
@pytest.mark.parametrize("pattern", ["*", "key:*7"])
def test_keys_of_a_large_database_are_those_of_the_request(
    in_process: InProcessServer, pattern: str, act: str
) -> None:
    with_keys(in_process)
    reader, meddler = listener(in_process), Meddler(in_process)
    in_process.executor.feed(reader, encode_command(["KEYS", pattern]))
    in_process.executor.feed(meddler.player, encode_command(act.split()))
    assert disturbed(in_process, reader, meddler) > 10
    reply = reader.read()
    assert isinstance(reply, list)
    numbers = [n for n in range(MANY_KEYS) if pattern == "*" or n % 10 == 7]
    assert sorted(reply) == sorted(b"key:%d" % n for n in numbers)  # type: ignore[type-var]
    assert not reader.unread
    assert reader.call("PING") == Simple("PONG")


def test_keys_of_a_large_database_omits_due_keys(in_process: InProcessServer) -> None:
    with_keys(in_process)
    player = in_process.player()
    player.call("DEBUG SET-ACTIVE-EXPIRE 0")
    player.call("PEXPIRE key:1 10")
    player.call("PEXPIRE key:2 1000")
    in_process.wall_ms += 10
    reader = listener(in_process)
    in_process.executor.feed(reader, encode_command(["KEYS", "key:?"]))
    in_process.wall_ms += 1000
    disturbed(in_process, reader, lambda: None)
    assert sorted(reader.read()) == [b"key:%d" % n for n in range(10) if n != 1]  # type: ignore[arg-type, type-var]


def test_keys_in_a_transaction_precedes_later_commands(
    in_process: InProcessServer,
) -> None:
    with_keys(in_process)
    reader = listener(in_process)
    for request in ("MULTI", "KEYS *", "DEL key:1", "KEYS key:?", "DBSIZE", "EXEC", "KEYS key:2"):
        in_process.executor.feed(reader, encode_command(request.split()))
    assert disturbed(in_process, reader, Meddler(in_process)) > 10
    for _ in range(5):
        reader.read()
    everything, gone, few, left = reader.read()  # type: ignore[misc]
    assert (len(everything), gone, left) == (MANY_KEYS, 1, MANY_KEYS - 1)  # type: ignore[arg-type]
    assert sorted(few) == [b"key:%d" % n for n in range(10) if n != 1]  # type: ignore[arg-type, type-var]
    assert isinstance(reader.read(), list)
    assert not reader.unread


def test_keys_without_waiting_readers_are_not_searched(in_process: InProcessServer) -> None:
    with_keys(in_process)
    leaving, silent = listener(in_process), listener(in_process)
    in_process.executor.feed(leaving, encode_command(["KEYS", "*"]))
    in_process.executor.end_tick()
    assert in_process.keyspace.is_walked()
    in_process.executor.detach(leaving)
    assert not in_process.keyspace.is_walked()
    in_process.executor.feed(silent, encode_command(["CLIENT", "REPLY", "SKIP"]))
    in_process.executor.feed(silent, encode_command(["KEYS", "*"]))
    assert not in_process.keyspace.is_walked()
    assert silent.call("PING") == Simple("PONG")


def test_keys_are_collected_while_the_client_does_not_read(in_process: InProcessServer) -> None:
    # Until then, flushed data cannot be freed.
    with_keys(in_process)
    reader = listener(in_process)
    in_process.executor.feed(reader, encode_command(["KEYS", "*"]))
    reader.paused = True
    in_process.settle()
    assert not in_process.keyspace.is_walked()
    assert not reader.unread
    reader.paused = False
    in_process.executor.outbox.on_writable(reader)
    in_process.settle()
    reply = reader.read()
    assert isinstance(reply, list)
    assert len(reply) == MANY_KEYS


# ---------------------------------------------------------------- XPENDING

Row = tuple[bytes, bytes, int, int]


class Pending:
    """A group of very many pending entries, of two consumers or without owner."""

    def __init__(self, in_process: InProcessServer, seed: int) -> None:
        self.in_process = in_process
        self.chance = random.Random(seed)
        self.player = in_process.player()
        self.player.call("XGROUP CREATE s g 0 MKSTREAM")
        self.group = in_process.group()
        for name in (b"one", b"two"):
            self.group.pending.make_consumer(name, in_process.wall_ms)
        self.next_ms = 1
        for _ in range(60):
            self.deliver(self.chance.randrange(1, 800))
        for _ in range(100):
            self.change()

    def ask(self, line: str) -> None:
        """A request of another client, without a turn for others."""
        self.in_process.executor.feed(self.player, encode_command(line.split()))

    def deliver(self, count: int) -> None:
        owner = self.chance.choice([b"one", b"one", b"one", b"two", b""])
        if owner and self.group.pending.consumer(owner) is None:
            self.ask(f"XGROUP CREATECONSUMER s g {owner.decode()}")
        ids = [(self.next_ms + number, 1) for number in range(count)]
        deliver_ids(self.group, ids, self.in_process.wall_ms, owner)
        self.next_ms += count
        self.in_process.wall_ms += self.chance.choice([0, 1, 5])

    def change(self) -> None:
        number = self.chance.randrange(1, self.next_ms)
        ids = " ".join(f"{number + n}-1" for n in range(self.chance.choice([1, 5, 200])))
        self.ask(f"XACK s g {ids}")
        kind = self.chance.randrange(60)
        if kind == 0:
            self.ask("XGROUP DELCONSUMER s g two")
        elif kind < 20:
            near = f"{min(number + 300, self.next_ms)}-1"
            mode = self.chance.choice(["FATAL", "SILENT"])
            self.ask(f"XNACK s g {mode} IDS 1 {near}")
        elif kind < 40:
            self.ask(f"XGROUP CREATECONSUMER s g {self.next_ms}")
            self.deliver(self.chance.randrange(1, 300))

    def rows(self, low: int, high: int, idle_ms: int, limit: int, owner: bytes | None) -> list[Row]:
        """The reply of XPENDING, found one by one."""
        found = []
        for ms, seq, name, last_ms, deliveries, *_ in self.group.pending.rows():
            idle = max(self.in_process.wall_ms - last_ms, 0)
            if last_ms == 0 and not name:
                idle = -1
            fits = low <= ms <= high and (idle >= idle_ms or idle < 0)
            if fits and owner in (None, name):
                found.append((b"%d-%d" % (ms, seq), name, idle, deliveries))
        return found[:limit]


@pytest.mark.parametrize("seed", range(4))
def test_pending_entries_in_slices_are_those_of_the_request(
    in_process: InProcessServer, seed: int
) -> None:
    pending = Pending(in_process, seed)
    chance = pending.chance
    turns = 0
    for _ in range(12):
        low = chance.choice([0, 0, 0, chance.randrange(pending.next_ms)])
        high = chance.choice([10**9, 10**9, 10**9, chance.randrange(pending.next_ms)])
        idle_ms = chance.choice([0, 0, 0, 1, 20, 60, 10**15])
        limit = chance.choice([10, 5000, 5001, 9000, 10**9, 10**9])
        owner = chance.choice([None, None, "one", "one", "two", "absent"])
        request = f"XPENDING s g IDLE {idle_ms} {low} {high} {limit} {owner or ''}"
        expected = pending.rows(low, high, idle_ms, limit, owner.encode() if owner else None)
        reader = listener(in_process)
        within = chance.random() < 0.2
        for line in ("MULTI", request, "XPENDING s g", "EXEC") if within else (request,):
            in_process.executor.feed(reader, encode_command(line.split()))
        turns += disturbed(in_process, reader, pending.change)
        for _ in range(3 if within else 0):
            reader.read()
        reply = reader.read()
        rows = reply[0] if within and isinstance(reply, list) else reply
        assert [tuple(row) for row in rows] == expected  # type: ignore[union-attr, arg-type]
        assert not reader.unread
        assert max(reader.sizes) < SLICE_MAX_BYTES
        check_group(pending.group)
    assert turns > 5, "too few of them were long"


def test_pending_entries_shared_with_a_reply_are_released(in_process: InProcessServer) -> None:
    pending = Pending(in_process, 1)
    reader = listener(in_process)
    for gone in (False, True):
        request = encode_command(["XPENDING", "s", "g", "-", "+", "100000", "one"])
        in_process.executor.feed(reader, request)
        in_process.executor.end_tick()
        assert shared_chunks(pending.group) > 0
        if gone:
            in_process.executor.detach(reader)
        in_process.settle()
        assert shared_chunks(pending.group) == 0


# ---------------------------------------------------------------- deliveries


@pytest.mark.parametrize("options", ["", "RETRY 50 0"])
@pytest.mark.parametrize("count", [1001, 1024, 1025, 1151, 1152, 1153])
def test_a_long_delivery_has_the_requested_count(
    in_process: InProcessServer, options: str, count: int
) -> None:
    fill(in_process, "a", LONG)
    reader = listener(in_process)
    in_process.executor.feed(
        reader, encode_command(f"TREAD a 0 {count} GROUP g 0 {options}".split())
    )
    in_process.settle()
    reply = reader.read()
    assert isinstance(reply, list)
    assert [entry[0] for entry in reply] == [b"%d.1" % n for n in range(1, count + 1)]  # type: ignore[index]
    group = in_process.group(key=b"a")
    check_group(group)
    assert (group.offset_ms, group.offset_seq) == (count, 1)
    assert group.pending.count == (count if options else 0)


@pytest.mark.parametrize("options", ["", "RETRY 50 0", "WITHINFO", "RETRY 50 1000 WITHINFO"])
def test_a_long_delivery_in_slices_equals_many_short_ones(
    in_process: InProcessServer, options: str
) -> None:
    fill(in_process, "a", LONG)
    other = in_process.player()
    for group in ("g", "h"):
        other.call(f"TREAD a 0 30 GROUP {group} 0 RETRY 10 0")
    other.call("XDEL a 7-1 1000-1")
    in_process.wall_ms += 10
    short: list[Reply] = []
    with_info: list[Reply] = []
    for _ in range(LONG // 500 + 1):
        part = other.call(f"TREAD a 0 500 GROUP h 0 {options}")
        assert isinstance(part, list)
        with_info, part = (part[:1], part[1:]) if "WITHINFO" in options else ([], part)
        short += part
    reader = listener(in_process)
    in_process.executor.feed(
        reader, encode_command(f"TREAD a 0 999999 GROUP g 0 {options}".split())
    )
    in_process.executor.end_tick()
    disturb(in_process)
    in_process.settle()
    assert reader.read() == with_info + short
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES
    check_group(in_process.group(key=b"a"))
    left, right = (in_process.group(name, b"a") for name in (b"g", b"h"))
    assert (left.offset_ms, left.offset_seq) == (right.offset_ms, right.offset_seq)
    assert left.entries_read == right.entries_read
    again = in_process.replayed().databases[0].stream(b"a")
    assert again is not None
    assert dump_group(again.group(b"g"))["pending"] == dump_group(left)["pending"]


@pytest.mark.parametrize("count", [LONG - 100, LONG + 100])
def test_a_long_read_without_acks_moves_only_the_group(
    in_process: InProcessServer, count: int
) -> None:
    fill(in_process, "a", LONG)
    other = in_process.player()
    other.call("XDEL a 1-1 70-1 1200-1")
    left = [number for number in range(1, LONG + 1) if number not in (1, 70, 1200)][:count]
    other.call("XGROUP CREATE a g 0")
    reader = listener(in_process)
    request = f"XREADGROUP GROUP g one COUNT {count} NOACK STREAMS a >"
    in_process.executor.feed(reader, encode_command(request.split()))
    in_process.executor.end_tick()
    disturb(in_process)
    in_process.settle()
    assert reader.read() == [[b"a", [[b"%d-1" % n, [b"n", VALUE]] for n in left]]]
    group = in_process.group(key=b"a")
    assert (group.pending.count, group.offset_ms, group.offset_seq) == (0, left[-1], 1)


# ---------------------------------------------------------------- replies that Python makes


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """DBSIZE answers with a LongReply; what its generator did."""
    done: list[str] = []

    def parts() -> Iterator[object]:
        try:
            for number in range(3):
                done.append(f"counted {number}")
                yield PAUSE
            yield ArrayHead(40)
            for number in range(40):
                done.append(f"made {number}")
                yield VALUE * 50
                if number % 10 == 5:
                    yield PAUSE
            done.append("complete")
        finally:
            done.append("closed")

    command = COMMANDS[b"dbsize"]
    answering = copy(command)
    answering.handler = lambda ctx, args: LongReply(parts())
    monkeypatch.setitem(COMMANDS, b"dbsize", answering)
    return done


def test_a_long_reply_of_a_generator_is_sent_in_slices(in_steps: list[str]) -> None:
    in_process = InProcessServer()
    reader = listener(in_process)
    in_process.executor.feed(reader, encode_command(["DBSIZE"]) + encode_command(["PING"]))
    assert "made 0" not in in_steps
    in_process.settle()
    assert len(reader.sizes) > 2
    assert reader.read() == [VALUE * 50] * 40
    assert reader.read() == Simple("PONG")
    assert in_steps[-2:] == ["complete", "closed"]
    assert max(reader.sizes) < SLICE_MAX_BYTES


def test_a_disconnect_closes_the_generator_of_a_long_reply(
    in_steps: list[str],
) -> None:
    in_process = InProcessServer()
    reader = listener(in_process)
    in_process.executor.feed(reader, encode_command(["DBSIZE"]))
    in_process.executor.detach(reader)
    assert "made 0" not in in_steps
    assert in_steps[-1] == "closed"


@pytest.mark.parametrize("failing_at", [0, 1, 5, 9, 10])
def test_an_error_in_a_long_reply_ends_only_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing_at: int
) -> None:
    def parts() -> Iterator[object]:
        yield PAUSE
        yield ArrayHead(20)
        for number in range(10):
            if number == failing_at:
                raise MemoryError
            yield VALUE * 200
            yield PAUSE
            yield VALUE
        raise MemoryError

    command = COMMANDS[b"dbsize"]
    failing = copy(command)
    failing.handler = lambda ctx, args: LongReply(parts())
    monkeypatch.setitem(COMMANDS, b"dbsize", failing)
    in_process = InProcessServer()
    reader = listener(in_process)
    others = [in_process.player() for _ in range(3)]
    in_process.executor.feed(reader, encode_command(["DBSIZE"]))
    for other in others:
        in_process.executor.feed(other, encode_command(["PING"]))
    in_process.settle()
    assert reader.is_ended
    assert "a long reply failed" in caplog.text
    assert [other.read() for other in others] == [Simple("PONG")] * 3
    assert [other.call("PING") for other in others] == [Simple("PONG")] * 3


@pytest.mark.parametrize("size", [0, 65_400, 65_536, 65_537, 262_144, 1_000_000])
def test_a_long_buffer_becomes_an_ordinary_bytes_object(size: int) -> None:
    word = random.Random(size).randbytes(size)
    expected = b"*1\r\n$%d\r\n%b\r\n" % (size, word)
    taken = encode_request([word])
    assert (taken, hash(taken), sys.getsizeof(taken)) == (
        expected,
        hash(expected),
        sys.getsizeof(expected),
    )
