"""Pending entries that change hands: XCLAIM, XAUTOCLAIM, XNACK, XREADGROUP CLAIM.

A random conversation is held against a naive model, a dict of records; what the model does not
show (words, waits, restarts) has its own tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.effort import examples
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Map, Null, Reply, encode_command
from tests.support.storage_access import check_group

from millstream.errors import CommandError
from millstream.storage.streams.stream_snapshot import dump_stream

LARGEST = 2**63 - 1
IDS = 12
POLL_NOTED_MS = 1000
LOOKS_PER_CLAIM = 10


def filled(player: InProcessClient, count: int = 4, key: str = "s") -> None:
    for number in range(1, count + 1):
        player.call(f"XADD {key} {number}-1 n {number}")


def entry(number: int, *age: int) -> list[Reply]:
    return [b"%d-1" % number, [b"n", b"%d" % number], *age]


def ids(*numbers: int) -> list[Reply]:
    return [b"%d-1" % number for number in numbers]


def pending(player: InProcessClient) -> list[tuple[int, bytes, int, int]]:
    """(number, consumer, idle, deliveries) of all pending entries."""
    reply: Any = player.call("XPENDING s g - + 1000")
    return [(int(row[0].split(b"-")[0]), *row[1:]) for row in reply]


def read_by(player: InProcessClient, consumer: str, count: int = 100, *options: str) -> Reply:
    return player.call(
        " ".join(["XREADGROUP GROUP g", consumer, "COUNT", str(count), *options, "STREAMS s >"])
    )


# ---------------------------------------------------------------- against a naive model


@dataclass(frozen=True)
class Record:
    owner: bytes
    last_ms: int
    deliveries: int
    retried: bool = False  # TREAD delivered it with RETRY, and it was not claimed since


def same_but_for_polls(found: list[Any], wanted: list[Any]) -> bool:
    """True if groups are equal; a request without a result is recorded only once a second."""
    for there, here in zip(found, wanted, strict=True):
        for row, other in zip(there["consumers"], here["consumers"], strict=True):
            if row and other and 0 <= other[1] - row[1] < POLL_NOTED_MS:
                row[1] = other[1]
    return found == wanted


class ClaimMachine(RuleBasedStateMachine):
    """Every entry was delivered or not; entries 1-1 to 12-1 exist until XDEL."""

    def __init__(self) -> None:
        super().__init__()
        self.in_process = InProcessServer()
        self.player = self.in_process.player()
        filled(self.player, IDS)
        self.player.call("XGROUP CREATE s g 0")
        self.records: dict[int, Record] = {}
        self.there = set(range(1, IDS + 1))
        self.offset = 0

    @property
    def now(self) -> int:
        return self.in_process.wall_ms

    numbers = st.lists(st.integers(1, IDS + 1), min_size=1, max_size=4)
    consumers = st.sampled_from(["alice", "bob"])
    idles = st.sampled_from([0, 0, 1, 10, 50])

    def idle(self, record: Record) -> int:
        return -1 if not record.owner and not record.last_ms else self.now - record.last_ms

    @rule(ms=st.sampled_from([1, 5, 10, 60]))
    def wait(self, ms: int) -> None:
        self.in_process.wall_ms += ms

    @rule(consumer=consumers, count=st.integers(1, 4))
    def read(self, consumer: str, count: int) -> None:
        new = sorted(number for number in self.there if number > self.offset)[:count]
        reply = read_by(self.player, consumer, count)
        assert reply == ([[b"s", [entry(number) for number in new]]] if new else Null.ARRAY)
        self.deliver(new, consumer.encode())

    def deliver(self, new: list[int], owner: bytes, retried: bool = False) -> None:
        for number in new:
            self.put_last(number, Record(owner, self.now, 1, retried))
        self.offset = new[-1] if new else self.offset

    @rule(count=st.integers(1, 3))
    def tread(self, count: int) -> None:
        due = [n for n, r in sorted(self.records.items()) if r.retried and not r.last_ms][:count]
        new = sorted(number for number in self.there if number > self.offset)[: count - len(due)]
        reply = self.player.call(f'TREAD s "" {count} GROUP g 0 RETRY 1000000 0')
        assert reply == [
            [b"%d.1" % n, b"n", b"%d" % n] if n in self.there else Null.BULK for n in [*due, *new]
        ]
        for number in due:
            if number in self.there:
                more = min(self.records[number].deliveries + 1, LARGEST)
                self.put_last(number, Record(b"", self.now, more, True))
            else:
                del self.records[number]
        self.deliver(new, b"", True)

    @rule(consumer=consumers, count=st.integers(1, 6), min_idle=idles)
    def read_and_claim(self, consumer: str, count: int, min_idle: int) -> None:
        released = sorted(n for n, record in self.records.items() if not record.last_ms)
        delivered = [n for n, record in self.records.items() if record.last_ms]
        delivered.sort(key=lambda number: self.records[number].last_ms)
        old = [
            number
            for number in released + delivered
            if self.now - self.records[number].last_ms >= min_idle
        ]
        claimed = [number for number in old if number in self.there][:count]
        wanted = [
            entry(number, self.idle(self.records[number]), self.records[number].deliveries)
            for number in claimed
        ]
        new = sorted(number for number in self.there if number > self.offset)
        new = new[: count - len(claimed)]
        wanted += [entry(number, 0, 0) for number in new]
        reply = read_by(self.player, consumer, count, "CLAIM", str(min_idle))
        assert reply == ([[b"s", wanted]] if wanted else Null.ARRAY)
        for number in claimed:
            self.take(number, consumer, None, 1)
        self.deliver(new, consumer.encode())

    def take(self, number: int, consumer: str, set_to: int | None, more: int) -> None:
        record = self.records[number]
        count = min(record.deliveries + more, LARGEST) if set_to is None else set_to
        self.put_last(number, Record(consumer.encode(), self.now, count))

    def put_last(self, number: int, record: Record) -> None:
        """The order of the records is that of their deliveries."""
        self.records.pop(number, None)
        self.records[number] = record

    @rule(
        consumer=consumers,
        numbers=numbers,
        min_idle=idles,
        force=st.booleans(),
        just_id=st.booleans(),
        count=st.none() | st.sampled_from([0, 3, 2**24 - 2, 2**24 - 1, 2**24, LARGEST]),
    )
    def claim(
        self,
        consumer: str,
        numbers: list[int],
        min_idle: int,
        force: bool,
        just_id: bool,
        count: int | None,
    ) -> None:
        claimed = []
        for number in numbers:
            if number not in self.there:
                self.records.pop(number, None)
                continue
            if number in self.records:
                if self.now - self.records[number].last_ms < min_idle:
                    continue
            elif force:
                self.records[number] = Record(b"", self.now, 1)
            else:
                continue
            self.take(number, consumer, count, 0 if just_id else 1)
            claimed.append(number)
        words = ["XCLAIM s g", consumer, str(min_idle), *(f"{number}-1" for number in numbers)]
        words += ["FORCE"] * force + ["JUSTID"] * just_id
        words += [] if count is None else ["RETRYCOUNT", str(count)]
        wanted = ids(*claimed) if just_id else [entry(number) for number in claimed]
        assert self.player.call(" ".join(words)) == wanted

    @rule(
        consumer=consumers,
        start=st.integers(0, IDS),
        min_idle=idles,
        count=st.integers(1, 5),
        just_id=st.booleans(),
    )
    def autoclaim(
        self, consumer: str, start: int, min_idle: int, count: int, just_id: bool
    ) -> None:
        claimed, gone, left = [], [], count
        ahead = [number for number in sorted(self.records) if number >= start]
        looks = count * LOOKS_PER_CLAIM
        while ahead and left and looks:
            looks -= 1
            number = ahead.pop(0)
            if number not in self.there:
                gone.append(number)
                del self.records[number]
                left -= 1
            elif self.now - self.records[number].last_ms >= min_idle:
                self.take(number, consumer, None, 0 if just_id else 1)
                claimed.append(number)
                left -= 1
        line = f"XAUTOCLAIM s g {consumer} {min_idle} {start} COUNT {count}"
        assert self.player.call(line + " JUSTID" * just_id) == [
            b"%d-1" % ahead[0] if ahead else b"0-0",
            ids(*claimed) if just_id else [entry(number) for number in claimed],
            ids(*gone),
        ]

    @rule(
        numbers=numbers,
        mode=st.sampled_from(["SILENT", "FAIL", "FATAL"]),
        count=st.none() | st.sampled_from([0, 2, 2**40]),
        force=st.booleans(),
    )
    def nack(self, numbers: list[int], mode: str, count: int | None, force: bool) -> None:
        released = 0
        for number in numbers:
            if number not in self.records and not (force and number in self.there):
                continue
            old = self.records.get(number, Record(b"", 0, 0))
            was = old.deliveries
            now = {"SILENT": max(was - 1, 0), "FAIL": was, "FATAL": LARGEST}[mode]
            now = now if count is None else count
            self.records[number] = Record(b"", 0, now, old.retried)
            released += 1
        line = f"XNACK s g {mode} IDS {len(numbers)} "
        line += " ".join(f"{number}-1" for number in numbers)
        line += "" if count is None else f" RETRYCOUNT {count}"
        assert self.player.call(line + " FORCE" * force) == released

    @rule(numbers=numbers)
    def acknowledge(self, numbers: list[int]) -> None:
        removed = {number for number in numbers if number in self.records}
        line = "XACK s g " + " ".join(f"{number}-1" for number in numbers)
        assert self.player.call(line) == len(removed)
        for number in removed:
            del self.records[number]

    @rule(number=st.integers(1, IDS))
    def delete(self, number: int) -> None:
        assert self.player.call(f"XDEL s {number}-1") == (number in self.there)
        self.there.discard(number)

    @rule(consumer=consumers)
    def history(self, consumer: str) -> None:
        owner = consumer.encode()
        own = sorted(number for number, r in self.records.items() if r.owner == owner)
        wanted = [
            entry(number) if number in self.there else [b"%d-1" % number, Null.ARRAY]
            for number in own
        ]
        assert self.player.call(f"XREADGROUP GROUP g {consumer} STREAMS s 0") == [[b"s", wanted]]
        for number in own:
            if number in self.there:
                self.take(number, consumer, None, 1)

    @rule(min_idle=idles, consumer=st.none() | consumers)
    def list_pending(self, min_idle: int, consumer: str | None) -> None:
        wanted = [
            [b"%d-1" % number, record.owner, self.idle(record), record.deliveries]
            for number, record in sorted(self.records.items())
            if self.now - record.last_ms >= min_idle
            and (consumer is None or record.owner == consumer.encode())
        ]
        line = f"XPENDING s g IDLE {min_idle} - + 100 {consumer or ''}".strip()
        if consumer is None or consumer.encode() in self.in_process.group().pending.consumers:
            assert self.player.call(line) == wanted

    @invariant()
    def is_the_same(self) -> None:
        check_group(self.in_process.group())
        wanted = [
            (number, r.owner, self.idle(r), r.deliveries)
            for number, r in sorted(self.records.items())
        ]
        assert pending(self.player) == wanted

    def teardown(self) -> None:
        """The effects lead to the same group, also through a snapshot."""
        stream = self.in_process.replayed().databases[0].stream(b"s")
        assert stream is not None
        assert same_but_for_polls(
            dump_stream(stream)[0]["groups"], dump_stream(self.in_process.stream())[0]["groups"]
        )


ClaimMachine.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestClaims = ClaimMachine.TestCase


def test_the_model_is_not_empty() -> None:
    """Different records of the model differ; otherwise the test above shows nothing."""
    record = Record(b"alice", 5, 1)
    assert record != replace(record, deliveries=2) != replace(record, owner=b"")


# ---------------------------------------------------------------- XCLAIM's own


@pytest.mark.parametrize(
    ("option", "idle"),
    [
        ("", 0),
        ("IDLE 70", 70),
        ("IDLE -1", 0),
        ("IDLE 9223372036854775807", 0),
        ("TIME 0", 1_700_000_000_100),
        ("TIME 99999999999999", 0),
        ("TIME -1", 0),
        ("IDLE 5 IDLE 6", 6),
    ],
)
def test_xclaim_sets_the_time_of_the_last_delivery(
    in_process: InProcessServer, player: InProcessClient, option: str, idle: int
) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice")
    in_process.wall_ms += 100
    assert player.call(f"XCLAIM s g bob 0 1-1 {option}") == [entry(1)]
    assert pending(player) == [(1, b"bob", idle, 2)]


def test_lastid_moves_a_group_on_but_never_back(player: InProcessClient) -> None:
    filled(player, 4)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 2)
    player.call("XCLAIM s g bob 0 1-1 LASTID 3-1")
    assert read_by(player, "alice") == [[b"s", [entry(4)]]]
    player.call("XCLAIM s g bob 0 1-1 LASTID 1-1")
    assert read_by(player, "alice") == Null.ARRAY


def test_a_claim_that_finds_no_entry_creates_its_consumer(player: InProcessClient) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    assert player.call("XCLAIM s g alice 0 1-1") == []
    assert player.call("XAUTOCLAIM s g bob 0 0") == [b"0-0", [], []]
    reply: Any = player.call("XINFO CONSUMERS s g")
    assert [(row[1], row[3], row[7]) for row in reply] == [(b"alice", 0, -1), (b"bob", 0, -1)]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("XCLAIM s no c x 1-1", "NOGROUP No such key 's' or consumer group 'no'"),
        ("XCLAIM no g c x 1-1", "NOGROUP No such key 'no' or consumer group 'g'"),
        ("XCLAIM s g c x 1-1", "ERR Invalid min-idle-time argument for XCLAIM"),
        ("XCLAIM s g c 0 x", "ERR Unrecognized XCLAIM option 'x'"),
        ("XCLAIM s g c 0 1-1 IDLE", "ERR Unrecognized XCLAIM option 'IDLE'"),
        ("XCLAIM s g c 0 1-1 idle x", "ERR Invalid IDLE option argument for XCLAIM"),
        ("XCLAIM s g c 0 1-1 TIME x", "ERR Invalid TIME option argument for XCLAIM"),
        ("XCLAIM s g c 0 1-1 RETRYCOUNT x", "ERR Invalid RETRYCOUNT option argument for XCLAIM"),
        (
            "XCLAIM s g c 0 1-1 LASTID x",
            "ERR Invalid stream ID specified as stream command argument",
        ),
        ("XAUTOCLAIM s g c x 0", "ERR Invalid min-idle-time argument for XAUTOCLAIM"),
        ("XAUTOCLAIM s g c 0 x", "ERR Invalid stream ID specified as stream command argument"),
        ("XAUTOCLAIM s g c 0 0 COUNT", "ERR syntax error"),
        ("XAUTOCLAIM s g c 0 0 COUNT 0", "ERR COUNT must be > 0"),
        ("XAUTOCLAIM s g c 0 0 COUNT 576460752303423488", "ERR COUNT must be > 0"),
        ("XAUTOCLAIM s no c 0 0", "NOGROUP No such key 's' or consumer group 'no'"),
        ("XNACK s no FAIL IDS 1 1-1", "NOGROUP No such key 's' or consumer group 'no'"),
        ("XNACK no g FAIL IDS 1 1-1", "NOGROUP No such key 'no' or consumer group 'g'"),
        ("XNACK s g MILD IDS 1 1-1", "ERR mode must be SILENT, FAIL, or FATAL"),
        ("XNACK s g FAIL ID 1 1-1", "ERR Unrecognized XNACK option 'ID'"),
        ("XNACK s g FAIL IDS 1 1-1 MORE", "ERR Unrecognized XNACK option 'MORE'"),
        ("XNACK s g FAIL IDS 0 1-1", "ERR numids must be a positive integer"),
        (
            "XNACK s g FAIL IDS 2 1-1",
            "ERR number of IDs doesn't match numids",
        ),
        ("XNACK s g FAIL IDS 1 x", "ERR Invalid stream ID specified as stream command argument"),
        (
            "XREADGROUP GROUP g c CLAIM -1 STREAMS s >",
            "ERR min-idle-time must be a positive integer",
        ),
        (
            "XREADGROUP GROUP g c CLAIM x STREAMS s >",
            "ERR min-idle-time is not an integer or out of range",
        ),
    ],
)
def test_refusals_change_nothing(
    in_process: InProcessServer, player: InProcessClient, line: str, error: str
) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    recorded = len(in_process.persistence.payloads)
    assert player.call(line) == Error(error)
    assert len(in_process.persistence.payloads) == recorded
    assert in_process.group().pending.consumers == {}


# ---------------------------------------------------------------- XREADGROUP CLAIM


def test_released_entries_precede_the_longest_idle_ones(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 5)
    player.call("XGROUP CREATE s g 0")
    for consumer in ("a", "b", "c", "d"):
        read_by(player, consumer, 1)
        in_process.wall_ms += 10
    player.call("XCLAIM s g b 0 2-1 JUSTID")
    player.call("XNACK s g FAIL IDS 1 4-1")
    in_process.wall_ms += 5
    assert read_by(player, "e", 4, "CLAIM", "5") == [
        [b"s", [entry(4, -1, 1), entry(1, 45, 1), entry(3, 25, 1), entry(2, 5, 1)]]
    ]
    assert read_by(player, "e", 4, "CLAIM", "5") == [[b"s", [entry(5, 0, 0)]]]


def test_noack_is_about_new_entries_only(player: InProcessClient) -> None:
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 1)
    reply = read_by(player, "bob", 10, "NOACK", "CLAIM", "0")
    assert reply == [[b"s", [entry(1, 0, 1), entry(2, 0, 0)]]]
    assert pending(player) == [(1, b"bob", 0, 2)]


def test_claim_does_not_touch_a_history(player: InProcessClient) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice")
    assert player.call("XREADGROUP GROUP g bob CLAIM 0 STREAMS s 0") == [[b"s", []]]
    assert player.call("XREADGROUP GROUP g alice CLAIM 0 STREAMS s 0") == [[b"s", [entry(1)]]]


def test_a_claim_skips_deleted_entries_and_leaves_them_pending(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 300)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 300)
    player.call("XTRIM s MAXLEN 1")
    assert read_by(player, "bob", 1, "CLAIM", "0") == [[b"s", [entry(300, 0, 1)]]]
    assert [row[:2] for row in pending(player)] == [
        (number, b"bob" if number == 300 else b"alice") for number in range(1, 301)
    ]
    player.call("XTRIM s MAXLEN 0")
    assert read_by(in_process.player(resp=3), "bob", 1, "CLAIM", "0") == Null.RESP3
    assert len(pending(player)) == 300


def test_deleted_entries_are_examined_by_one_claim_only(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 500)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 500)
    player.call("XTRIM s MAXLEN 0")
    in_process.wait_ms(10)
    assert read_by(player, "bob", 1, "CLAIM", "5") == Null.ARRAY
    before = in_process.group().pending.work_counter
    assert read_by(player, "bob", 1, "CLAIM", "5") == Null.ARRAY
    assert in_process.group().pending.work_counter - before < 10


def deliver_and_delete(player: InProcessClient, count: int, kept: int) -> None:
    """All are delivered within one millisecond; only the last ones are not deleted."""
    filled(player, count)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", count)
    player.call(f"XTRIM s MAXLEN {kept}")


def work_of(in_process: InProcessServer, player: InProcessClient, *numbers: int) -> int:
    """Records that a claim of one entry looks at; `numbers`: the entry that it gets, or none."""
    before = in_process.group().pending.work_counter
    reply: Any = read_by(player, "bob", 1, "CLAIM", "5")
    assert [row[0] for row in reply[0][1]] == ids(*numbers) if numbers else reply == Null.ARRAY
    return in_process.group().pending.work_counter - before


def test_deleted_entries_delivered_together_are_examined_once(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    deliver_and_delete(player, 1000, kept=3)
    in_process.wait_ms(10)
    first = work_of(in_process, player, 998)
    assert first > 900
    assert work_of(in_process, player, 999) < first / 4
    assert work_of(in_process, player, 1000) < first / 4
    in_process.wait_ms(10)
    assert work_of(in_process, player, 998) < first / 4


@pytest.mark.parametrize(
    "again",
    ["XNACK s g FAIL IDS 1 999-1", "XCLAIM s g c 0 999-1 TIME 1", "XNACK s g FAIL IDS 1 5-1"],
)
def test_an_older_time_does_not_repeat_the_search(
    in_process: InProcessServer, player: InProcessClient, again: str
) -> None:
    deliver_and_delete(player, 1000, kept=3)
    in_process.wait_ms(10)
    first = work_of(in_process, player, 998)
    player.call(again)
    assert work_of(in_process, player, 999) < first / 4


def test_one_claim_examines_few_deleted_entries(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    deliver_and_delete(player, 30_000, kept=1)
    in_process.wait_ms(10)
    work = []
    while in_process.group().pending.consumers[b"alice"].pending == 30_000:
        before = in_process.group().pending.work_counter
        read_by(player, "bob", 1, "CLAIM", "5")
        work.append(in_process.group().pending.work_counter - before)
    assert len(work) > 2
    assert max(work) < 20_000


@pytest.mark.parametrize("count", ["", "COUNT 1"])
def test_a_waiting_claim_passes_any_number_of_deleted_entries(
    in_process: InProcessServer, player: InProcessClient, count: str
) -> None:
    deliver_and_delete(player, 30_000, kept=1)
    in_process.wait_ms(10)
    waiting = in_process.player()
    waiting.send(f"XREADGROUP GROUP g bob {count} BLOCK 0 CLAIM 5 STREAMS s >")
    for _ in range(10):
        in_process.wait_ms(1)
    [[_, [found]]] = waiting.read()  # type: ignore[misc]
    assert found[0] == b"30000-1"  # type: ignore[index]


def test_a_waiting_claim_without_journal_space_is_retried(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 1)
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g bob BLOCK 0 CLAIM 5 STREAMS s >")
    tries = []

    def no_room(payload_bytes: int) -> int:
        tries.append(payload_bytes)
        raise CommandError("MISCONF no room")

    in_process.executor.effects.make_room = no_room
    in_process.executor.effects.forget_room()
    for _ in range(200):
        in_process.wait_ms(1)
    assert 0 < len(tries) < 20
    in_process.executor.effects.make_room = lambda payload_bytes: payload_bytes + 10_000
    in_process.wait_ms(1000)
    [[_, [found]]] = waiting.read()  # type: ignore[misc]
    assert found[0] == b"1-1"  # type: ignore[index]


def test_a_claim_waits_for_entries_delivered_after_deleted_ones(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 3)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 2)
    player.call("XDEL s 1-1 2-1")
    player.call("XNACK s g FAIL IDS 1 1-1")
    in_process.wait_ms(60)
    read_by(player, "alice", 1)
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g bob BLOCK 0 CLAIM 50 STREAMS s >")
    in_process.wait_ms(49)
    assert waiting.unread == b""
    in_process.wait_ms(1)
    assert waiting.read() == [[b"s", [entry(3, 50, 1)]]]


def test_a_waiting_claim_skips_a_deleted_entry_and_waits_on(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 1)
    player.call("XDEL s 1-1")
    in_process.wait_ms(20)
    read_by(player, "alice", 1)
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g bob BLOCK 0 CLAIM 50 STREAMS s >")
    in_process.wait_ms(49)
    assert waiting.unread == b""
    in_process.wait_ms(1)
    assert waiting.read() == [[b"s", [entry(2, 50, 1)]]]
    assert [row[0] for row in pending(player)] == [1, 2]


@pytest.mark.parametrize("again", ["XCLAIM s g alice 0 3-1 TIME 1", "XNACK s g FAIL IDS 1 3-1"])
def test_a_claim_finds_entries_older_than_deleted_ones(
    in_process: InProcessServer, player: InProcessClient, again: str
) -> None:
    filled(player, 3)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 2)
    player.call("XDEL s 1-1 2-1")
    in_process.wait_ms(10)
    assert read_by(player, "bob", 1, "CLAIM", "5") == [[b"s", [entry(3, 0, 0)]]]
    assert read_by(player, "bob", 1, "CLAIM", "5") == Null.ARRAY
    player.call(again)
    [[_, [found]]] = read_by(player, "bob", 1, "CLAIM", "5")  # type: ignore[misc]
    assert found[0] == b"3-1"  # type: ignore[index]


def test_a_claim_finds_an_id_that_was_added_again(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 2)
    player.call("XTRIM s MAXLEN 0")
    in_process.wait_ms(10)
    assert read_by(player, "bob", 1, "CLAIM", "5") == Null.ARRAY
    player.call("XSETID s 1-0")
    player.call("XADD s 1-1 n 1")
    assert read_by(player, "bob", 1, "CLAIM", "5") == [[b"s", [entry(1, 10, 1)]]]


@pytest.mark.parametrize("resp", [2, 3])
def test_a_waiting_claim_wakes_when_an_entry_is_idle_long_enough(
    in_process: InProcessServer, player: InProcessClient, resp: int
) -> None:
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 1)
    in_process.wait_ms(10)
    read_by(player, "alice", 1)
    late, early = in_process.player(resp), in_process.player(resp)
    late.send("XREADGROUP GROUP g late BLOCK 0 CLAIM 100 STREAMS s >")
    early.send("XREADGROUP GROUP g early BLOCK 0 CLAIM 50 STREAMS s >")
    assert in_process.group().pending.claim_idle_ms == 50
    in_process.wait_ms(39)
    assert (early.unread, late.unread) == (b"", b"")
    in_process.wait_ms(1)
    wanted = [entry(1, 50, 1)]
    assert early.read() == ([[b"s", wanted]] if resp == 2 else Map([(b"s", wanted)]))
    assert late.unread == b""
    in_process.wait_ms(60)
    wanted = [entry(2, 100, 1)]
    assert late.read() == ([[b"s", wanted]] if resp == 2 else Map([(b"s", wanted)]))
    assert in_process.group().pending.claim_idle_ms == 2**64 - 1
    assert [row[:2] for row in pending(player)] == [(1, b"early"), (2, b"late")]


def test_a_burst_is_spread_over_waiting_claims(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 3)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 3)
    waiting = [in_process.player() for _ in range(3)]
    for number, client in enumerate(waiting):
        client.send(f"XREADGROUP GROUP g c{number} COUNT 2 BLOCK 0 CLAIM 50 STREAMS s >")
    in_process.wait_ms(50)
    assert waiting[0].read() == [[b"s", [entry(1, 50, 1), entry(2, 50, 1)]]]
    assert waiting[1].read() == [[b"s", [entry(3, 50, 1)]]]
    assert waiting[2].unread == b""
    player.call("XADD s 4-1 n 4")
    assert waiting[2].read() == [[b"s", [entry(4, 0, 0)]]]


def test_a_release_wakes_a_waiting_claim(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice")
    plain, claiming = in_process.player(), in_process.player()
    plain.send("XREADGROUP GROUP g plain BLOCK 0 STREAMS s >")
    claiming.send("XREADGROUP GROUP g bob BLOCK 0 CLAIM 100000 STREAMS s >")
    assert player.call("XNACK s g SILENT IDS 1 1-1") == 1
    assert claiming.read() == [[b"s", [entry(1, -1, 0)]]]
    assert plain.unread == b""


def test_a_claim_by_an_older_time_wakes_a_waiting_claim(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice")
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g bob BLOCK 0 CLAIM 100 STREAMS s >")
    in_process.wait_ms(50)
    player.call("XCLAIM s g alice 0 1-1 IDLE 90")
    assert waiting.unread == b""
    in_process.wait_ms(10)
    assert waiting.read() == [[b"s", [entry(1, 100, 2)]]]


def test_a_waiting_claim_that_timed_out_is_forgotten(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice")
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g bob BLOCK 20 CLAIM 50 STREAMS s >")
    in_process.wait_ms(20)
    assert waiting.read() == Null.ARRAY
    in_process.wait_ms(30)
    assert waiting.unread == b""
    assert in_process.group().pending.claim_idle_ms == 2**64 - 1


# ---------------------------------------------------------------- MAXCOUNT, MAXSIZE


@pytest.fixture
def three(player: InProcessClient) -> InProcessClient:
    for key in ("a", "b", "c"):
        filled(player, 3, key)
        player.call(f"XGROUP CREATE {key} g 0")
    return player


READS = ["XREAD {} STREAMS a b c 0 0 0", "XREADGROUP GROUP g x {} STREAMS a b c > > >"]


def lengths(reply: Reply) -> list[tuple[bytes, int]]:
    pairs: Any = reply.pairs if isinstance(reply, Map) else reply
    return [(key, len(entries)) for key, entries in pairs]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ("MAXCOUNT 1", [(b"a", 1)]),
        ("MAXCOUNT 3", [(b"a", 3)]),
        ("MAXCOUNT 4", [(b"a", 3), (b"b", 1)]),
        ("COUNT 2 MAXCOUNT 3", [(b"a", 2), (b"b", 1)]),
        ("COUNT 1 MAXCOUNT 100", [(b"a", 1), (b"b", 1), (b"c", 1)]),
        ("MAXSIZE 1", [(b"a", 1)]),
        ("MAXSIZE 1000000", [(b"a", 3), (b"b", 3), (b"c", 3)]),
        ("MAXSIZE 1000000 COUNT 2", [(b"a", 2), (b"b", 2), (b"c", 2)]),
        ("MAXSIZE 1 MAXCOUNT 2", [(b"a", 1)]),
    ],
)
@pytest.mark.parametrize("resp", [2, 3])
def test_limits_over_all_streams(
    in_process: InProcessServer,
    three: InProcessClient,
    read: str,
    limits: str,
    wanted: list[tuple[bytes, int]],
    resp: int,
) -> None:
    assert lengths(in_process.player(resp).call(read.format(limits))) == wanted


@pytest.mark.parametrize("read", READS)
def test_maxsize_ends_a_reply_with_the_entry_that_reaches_it(
    in_process: InProcessServer, three: InProcessClient, read: str
) -> None:
    found = []
    for size in range(1, 400, 3):
        client = in_process.player()
        for key in ("a", "b", "c"):
            three.call(f"XGROUP SETID {key} g 0")
        client.send(read.format(f"MAXSIZE {size}"))
        found.append((size, len(client.unread), sum(n for _, n in lengths(client.read()))))
    for size, sent, count in found:
        assert count == 9 or sent >= size
        assert count == 1 or sent < size + 60  # an entry and the beginning of a stream
    assert {count for *_, count in found} == set(range(1, 10))


def test_entries_above_maxcount_are_not_delivered(three: InProcessClient) -> None:
    reply = three.call("XREADGROUP GROUP g x MAXCOUNT 4 STREAMS a b c > > >")
    assert lengths(reply) == [(b"a", 3), (b"b", 1)]
    reply = three.call("XREADGROUP GROUP g x STREAMS a b c > > >")
    assert lengths(reply) == [(b"b", 2), (b"c", 3)]
    assert lengths(three.call("XREADGROUP GROUP g x MAXCOUNT 5 STREAMS a b c 0 0 0")) == [
        (b"a", 3),
        (b"b", 2),
    ]


def test_claims_count_for_the_limits(in_process: InProcessServer, three: InProcessClient) -> None:
    three.call("XREADGROUP GROUP g x COUNT 2 STREAMS a b c > > >")
    reply = three.call("XREADGROUP GROUP g y CLAIM 0 MAXCOUNT 5 STREAMS a b c > > >")
    assert lengths(reply) == [(b"a", 3), (b"b", 2)]
    assert in_process.group(key=b"b").pending.consumers[b"x"].pending == 0
    assert in_process.group(key=b"c").pending.consumers[b"x"].pending == 2


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ("MAXCOUNT 0", "ERR MAXCOUNT must be a positive integer"),
        ("MAXCOUNT x", "ERR MAXCOUNT must be a positive integer"),
        ("MAXSIZE -1", "ERR MAXSIZE must be a positive integer"),
        ("COUNT 3 MAXCOUNT 2", "ERR MAXCOUNT must be greater than or equal to COUNT"),
        ("MAXCOUNT", "ERR syntax error"),
    ],
)
def test_limits_that_are_refused(
    three: InProcessClient, read: str, limits: str, error: str
) -> None:
    reply = three.call(read.format(limits))
    if limits == "MAXCOUNT":  # its number is the next word
        error = "ERR MAXCOUNT must be a positive integer"
    assert reply == Error(error)


def test_a_claim_examines_no_more_than_it_needs(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 5000)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 5000)
    player.call("XDEL s 2-1 130-1")
    before = in_process.group().pending.work_counter
    reply = player.call("XREADGROUP GROUP g bob CLAIM 0 MAXSIZE 200 STREAMS s >")
    assert lengths(reply)[0][1] < 10
    assert in_process.group().pending.work_counter - before < 1500
    reply = player.call("XREADGROUP GROUP g carol CLAIM 0 MAXSIZE 10000 STREAMS s >")
    claimed = lengths(reply)[0][1]
    assert 128 < claimed < 400
    assert in_process.group().pending.consumers[b"carol"].pending == claimed
    reply = player.call("XREADGROUP GROUP g dave CLAIM 0 STREAMS s >")
    assert lengths(reply) == [(b"s", 4998)]


# ---------------------------------------------------------------- XNACK of what TREAD delivered


@pytest.mark.parametrize("retry_ms", [50, 2**62])
def test_entries_released_by_xnack_are_due_at_once_for_tread(
    in_process: InProcessServer, player: InProcessClient, retry_ms: int
) -> None:
    filled(player, 2)
    player.call(f"TREAD s 0 2 GROUP g 0 RETRY {retry_ms} 0")
    assert player.call("XNACK s g FAIL IDS 1 1-1") == 1
    again = [[b"1.1", b"n", b"1"]]
    assert player.call('TREAD s "" 9 GROUP g 0') == again
    assert player.call('TREAD s "" 9 GROUP g 0') == []
    assert pending(player) == [(1, b"", 0, 2), (2, b"", 0, 1)]
    waiting = in_process.player()
    waiting.send('TREAD s "" 9 GROUP g 0 BLOCK 0')
    assert waiting.unread == b""
    player.call("XNACK s g SILENT IDS 1 1-1")
    assert waiting.read() == again


def test_a_release_leaves_the_expiry_and_survives(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 2)
    player.call("TREAD s 0 2 GROUP g 0 RETRY 50 1000")
    in_process.wait_ms(100)
    player.call("XNACK s g FAIL IDS 2 1-1 2-1")
    replayed = in_process.replayed().databases[0].stream(b"s")
    assert replayed is not None
    assert dump_stream(replayed)[0]["groups"] == dump_stream(in_process.stream())[0]["groups"]
    assert player.call("XCLAIM s g alice 0 2-1 JUSTID") == [b"2-1"]
    in_process.wait_ms(900)
    assert pending(player) == [(2, b"alice", 900, 1)]


# ---------------------------------------------------------------- what else is noticed


class Audience:
    def __init__(self) -> None:
        self.heard: list[tuple[bytes, bytes, bytes, int]] = []

    def keyspace_event(self, kind: bytes, event: bytes, key: bytes, db_index: int) -> None:
        self.heard.append((kind, event, key, db_index))


def test_events_are_those_of_redis(in_process: InProcessServer, player: InProcessClient) -> None:
    audience = Audience()
    in_process.pubsub = audience  # type: ignore[attr-defined]
    in_process.executor.context.events = b"tn"
    for line, events in {
        "XGROUP CREATE s g $ MKSTREAM": [b"new", b"xgroup-create"],
        "XGROUP CREATECONSUMER s g alice": [b"xgroup-createconsumer"],
        "XGROUP CREATECONSUMER s g alice ": [],
        "XREADGROUP GROUP g bob STREAMS s >": [b"xgroup-createconsumer"],
        "XCLAIM s g carol 0 1-1": [b"xgroup-createconsumer"],
        "XAUTOCLAIM s g dave 0 0": [b"xgroup-createconsumer"],
        "XAUTOCLAIM s g dave 0 0 JUSTID": [],
        "XACK s g 1-1": [],
        "XGROUP SETID s g 0": [b"xgroup-setid"],
        "XGROUP DELCONSUMER s g dave": [b"xgroup-delconsumer"],
        "XGROUP DELCONSUMER s g absent": [],
        "XGROUP DESTROY s g": [b"xgroup-destroy"],
        "XGROUP DESTROY s g ": [],
        "TREAD s 0 1 GROUP h 5": [b"xgroup-create"],
    }.items():
        audience.heard.clear()
        assert not isinstance(player.call(line), Error), line
        assert [event for _, event, _, _ in audience.heard] == events, line
    in_process.wall_ms += 10
    audience.heard.clear()
    player.call("XPENDING s h")
    assert audience.heard == [(b"t", b"xgroup-destroy", b"s", 0)]


def test_changes_are_counted_as_redis_does(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    for line, changes in {
        "XGROUP CREATE s g 0 MKSTREAM": 1,
        "XADD s 1-1 n 1": 1,
        "XADD s 2-1 n 2": 1,
        "XADD s 3-1 n 3": 1,
        "XADD s 4-1 n 4": 1,
        "XGROUP CREATECONSUMER s g alice": 1,
        "XREADGROUP GROUP g alice COUNT 3 STREAMS s >": 1,
        "XREADGROUP GROUP g alice STREAMS s 0": 0,
        "XREADGROUP GROUP g alice NOACK COUNT 1 STREAMS s >": 1,
        "XREADGROUP GROUP g alice STREAMS s >": 0,
        "XCLAIM s g alice 0 1-1 2-1 9-9": 2,
        "XCLAIM s g alice 1000 1-1": 0,
        "XAUTOCLAIM s g alice 0 0": 3,
        "XDEL s 1-1": 1,
        "XCLAIM s g alice 0 1-1": 1,
        "XNACK s g FAIL IDS 2 2-1 3-1": 2,
        "XACK s g 2-1 3-1 9-9": 2,
        "XGROUP SETID s g 0": 1,
        "XGROUP DELCONSUMER s g absent": 0,
        "XGROUP DELCONSUMER s g alice": 1,
        "XGROUP DESTROY s g": 1,
    }.items():
        before = in_process.keyspace.dirty
        assert not isinstance(player.call(line), Error), line
        assert in_process.keyspace.dirty - before == changes, line


def test_the_times_of_a_consumers_requests_survive(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 3)
    player.call("XGROUP CREATE s g 0")
    for line in (
        "XREADGROUP GROUP g alice COUNT 2 STREAMS s >",
        "XREADGROUP GROUP g alice STREAMS s 0",
        "XREADGROUP GROUP g bob NOACK COUNT 1 STREAMS s >",
        "XREADGROUP GROUP g bob STREAMS s >",
        "XCLAIM s g carol 0 1-1",
        "XCLAIM s g carol 1000 1-1",
        "XAUTOCLAIM s g dave 1000 0",
        "XREADGROUP GROUP g dave CLAIM 0 COUNT 1 STREAMS s >",
        "XREADGROUP GROUP g dave CLAIM 1000 COUNT 1 STREAMS s >",
    ):
        in_process.wall_ms += POLL_NOTED_MS
        player.call(line.replace("1000", "1000000"))
        again = in_process.replayed().databases[0].stream(b"s")
        assert again is not None
        expected = dump_stream(in_process.stream())[0]["groups"]
        assert dump_stream(again)[0]["groups"] == expected, line


def test_of_empty_polls_one_a_second_is_recorded(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g $")
    poll = "XREADGROUP GROUP g alice STREAMS s >"
    player.call(poll)
    frames = len(in_process.persistence.payloads)
    for _ in range(30):
        in_process.wall_ms += 100
        player.call(poll)
    assert len(in_process.persistence.payloads) - frames == 3
    assert in_process.group().pending.consumers[b"alice"].seen_ms == in_process.wall_ms


# ---------------------------------------------------------------- long reads


@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("noack", ["", "NOACK"])
def test_a_long_delivery_is_recorded_at_once_and_sent_in_slices(
    in_process: InProcessServer, player: InProcessClient, resp: int, noack: str
) -> None:
    many = 20_000
    for key in ("s", "t"):
        stream_filled(in_process, key, many)
        player.call(f"XGROUP CREATE {key} g 0")
    player.call("XDEL s 5-1")
    reader = in_process.player(resp)
    reader.send(f"XREADGROUP GROUP g alice {noack} STREAMS s t > >")
    reply: Any = reader.read()
    pairs = reply.pairs if resp == 3 else reply
    numbers = [[int(row[0].split(b"-")[0]) for row in rows] for _, rows in pairs]
    assert numbers == [[n for n in range(1, many + 1) if n != 5], list(range(1, many + 1))]
    assert reader.unread == b""
    group = in_process.group()
    assert (group.offset_ms, group.offset_seq) == (many, 1)
    assert group.pending.count == (0 if noack else many - 1)
    assert group.entries_read == many - 1 or group.entries_read == many
    again = in_process.replayed().databases[0].stream(b"s")
    assert again is not None
    assert dump_stream(again)[0]["groups"] == dump_stream(in_process.stream())[0]["groups"]


def test_a_long_read_of_some_of_the_entries(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    stream_filled(in_process, "s", 10_000)
    player.call("XGROUP CREATE s g 0")
    for first, count in ((1, 4000), (4001, 5000), (9001, 1000)):
        reply: Any = read_by(player, "alice", count if count != 1000 else 100_000)
        assert [row[0] for row in reply[0][1]] == [b"%d-1" % n for n in range(first, first + count)]
    assert read_by(player, "alice") == Null.ARRAY
    assert in_process.group().pending.count == 10_000


def stream_filled(in_process: InProcessServer, key: str, count: int) -> None:
    """Entries `1-1`, `2-1` and so on, appended by a few thousand requests at once."""
    player = in_process.player()
    for first in range(1, count + 1, 5000):
        numbers = range(first, min(first + 5000, count + 1))
        requests = (encode_command(["XADD", key, f"{n}-1", "n", n]) for n in numbers)
        in_process.executor.feed(player, b"".join(requests))
        in_process.settle()
    player.unread = b""
    assert player.call(f"XLEN {key}") == count


def test_xautoclaim_claims_the_largest_id(player: InProcessClient) -> None:
    largest = f"{2**64 - 1}-{2**64 - 1}"
    player.call("XADD s 1-1 n 1")
    player.call(f"XADD s {largest} n 2")
    player.call("XGROUP CREATE s g 0")
    read_by(player, "one")
    assert player.call("XAUTOCLAIM s g other 0 1-1 COUNT 1") == [largest.encode(), [entry(1)], []]
    last = [largest.encode(), [b"n", b"2"]]
    assert player.call(f"XAUTOCLAIM s g other 0 {largest}") == [b"0-0", [last], []]
    assert [row[1] for row in pending(player)] == [b"other", b"other"]


def test_an_entry_that_a_claim_found_deleted_is_listed_as_idle(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    read_by(player, "alice", 1)
    player.call("XDEL s 1-1")
    in_process.wall_ms += 5
    assert read_by(player, "bob", 1, "CLAIM 1") == [[b"s", [entry(2, 0, 0)]]]
    assert player.call("XPENDING s g IDLE 5 - + 10") == [[b"1-1", b"alice", 5, 1]]
