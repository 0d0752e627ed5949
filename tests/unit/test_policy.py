"""Entries that a policy keeps: exactly or in whole blocks, by length, age and bytes.

Random streams are trimmed by random policies and compared with a naive implementation of the rule
on the blocks' lists of entries. Then the command, the appends and the timer apply policies in an
in-process server, and the journal leads to the same state without evaluating a policy.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.in_process import NOW_MS, InProcessClient, InProcessServer, Journal
from tests.support.resp import Error, Map, Null, Simple
from tests.support.storage_access import check_stream, cut_of, due_moment_ms

from millstream.errors import WRONG_TYPE
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.retention_schedule import NEVER, RetentionSchedule
from millstream.storage.streams.head_eviction import evict_before
from millstream.storage.streams.retention import bytes_of
from millstream.storage.streams.stream import RetentionPolicy, Stream
from millstream.storage.streams.stream_snapshot import dump_stream, load_stream

HEADER_BYTES = 64  # docs/formats.md
OK = Simple("OK")
NO_LIMIT = "ERR syntax error, EXACT and APPROX need a MAXLEN, MAXAGE or MAXBYTES limit"
TOP = 2**64 - 1

Row = tuple[int, int, list[bytes]]


# ---------------------------------------------------------------- where a stream is cut


def random_stream(chance: random.Random, is_packed: bool = True) -> Stream:
    """Ids from 1 ms on, two entries to a node, some deleted, some evicted from the head. Random
    values are not packed."""
    stream = Stream(1)
    ms = 1
    for _ in range(chance.randint(0, 60)):
        ms += chance.choice([0, 0, 1, 2, 3])
        seq = stream.last_seq + 1 if stream.last_ms == ms else 0
        size = chance.randint(0, 40)
        value = b"v" * size if is_packed else chance.randbytes(size)
        stream.append_entry(ms, seq, [b"field", value], 2, 4096)
    ids = [row[:2] for row in stream.range()]
    for entry_id in chance.sample(ids, min(len(ids), chance.choice([0, 0, 3, 10, 50]))):
        stream.delete_id(*entry_id)
    if ids and chance.random() < 0.5:
        evict_before(stream, *chance.choice(ids[:20]))
    return stream


def copy_of(stream: Stream) -> Stream:
    meta, blocks = dump_stream(stream)
    return load_stream(meta, blocks, 0)


def block_rows(stream: Stream) -> list[tuple[list[Row], tuple[int, int], int]]:
    """Of each block: the entries that are kept, its last id, its bytes without the header."""
    _, blocks = dump_stream(stream)
    kept = {row[:2] for row in stream.range()}
    return [
        ([row for row in block.entries() if row[:2] in kept], block.last_id,
         len(block.to_bytes()) - HEADER_BYTES)
        for block in blocks
    ]  # fmt: skip


def whole_blocks_gone(
    stream: Stream, policy: RetentionPolicy, now_ms: int
) -> list[tuple[int, int]]:
    """The rule for APPROX, naively: ids that go."""
    gone: list[tuple[int, int]] = []
    blocks = block_rows(stream)
    for number, (rows, last_id, _) in enumerate(blocks):
        rest = blocks[number + 1 :]
        entries_after = sum(len(rows) for rows, _, _ in rest)
        bytes_after = sum(size for _, _, size in rest)
        if not (
            (policy.max_len and entries_after >= policy.max_len)
            or (policy.max_bytes and bytes_after >= policy.max_bytes)
            or (policy.max_age_ms and now_ms - last_id[0] >= policy.max_age_ms)
        ):
            break
        gone += [row[:2] for row in rows]
    return gone


def cut(stream: Stream, now_ms: int) -> None:
    """As the commands do it."""
    first, more = cut_of(stream, now_ms)
    assert not more
    if first == "all":
        evict_before(stream, TOP, TOP)
    elif first is not None:
        assert evict_before(stream, *first) > 0, "a cut that evicts nothing"  # type: ignore[misc]
    check_stream(stream)


def limit(chance: random.Random, most: int) -> int:
    return chance.choice([0, chance.randint(1, most)])


PLAYS = 100


@pytest.fixture(params=range(4))
def chance(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def test_approx_drops_the_whole_blocks_that_are_over_a_limit(chance: random.Random) -> None:
    for _ in range(PLAYS):
        stream, now_ms = random_stream(chance), chance.randint(0, 150)
        policy = stream.policy = RetentionPolicy(
            limit(chance, 40), limit(chance, 90), limit(chance, 1500)
        )
        before = [row[:2] for row in stream.range()]
        gone = whole_blocks_gone(stream, policy, now_ms)
        cut(stream, now_ms)
        assert [row[:2] for row in stream.range()] == before[len(gone) :]
        assert cut_of(stream, now_ms) == (None, False)


def test_exact_keeps_only_entries_within_length_and_age(chance: random.Random) -> None:
    for _ in range(PLAYS):
        stream, now_ms = random_stream(chance), chance.randint(0, 150)
        length, age = limit(chance, 40), limit(chance, 90)
        stream.policy = RetentionPolicy(length, age, 0, True)
        kept = [row[:2] for row in stream.range() if not age or now_ms - row[0] < age]
        cut(stream, now_ms)
        assert [row[:2] for row in stream.range()] == (kept[-length:] if length else kept)


def test_exact_keeps_as_many_entries_as_the_bytes_allow(chance: random.Random) -> None:
    for _ in range(PLAYS):
        stream, size = random_stream(chance), chance.randint(1, 1500)
        before = copy_of(stream)
        stream.policy = RetentionPolicy(0, 0, size, True)
        cut(stream, 0)
        assert bytes_of(stream) <= size
        rows, kept = before.range(), len(stream)
        assert stream.range() == rows[len(rows) - kept :]
        if kept < len(rows):
            evict_before(before, *rows[len(rows) - kept - 1][:2])
            assert bytes_of(before) > size, "one entry more would have been within the limit"


def test_bytes_are_those_of_blocks_from_the_first_kept_entry_on(chance: random.Random) -> None:
    for _ in range(PLAYS):
        stream = random_stream(chance, is_packed=False)
        whole = sum(size for _, _, size in block_rows(stream))
        if len(stream) == 0:
            assert bytes_of(stream) == whole == 0
            continue
        first = dump_stream(stream)[1][0].to_bytes()[HEADER_BYTES:]
        hidden = whole - bytes_of(stream)
        assert hidden >= 0
        kept = stream.range(limit=1)[0]
        # Its value follows its id, which is short here, and maybe the names.
        place = first.rindex(kept[2][1]) if kept[2][1] else len(first)
        assert place >= hidden


def test_entries_are_evicted_at_the_noted_time_and_not_before(
    chance: random.Random,
) -> None:
    for _ in range(PLAYS):
        stream = random_stream(chance)
        stream.policy = RetentionPolicy(0, chance.randint(1, 90), 0, chance.random() < 0.5)
        moment_ms = due_moment_ms(stream)
        if moment_ms is None:
            assert len(stream) == 0
            continue
        assert cut_of(stream, moment_ms - 1) == (None, False)
        assert cut_of(stream, moment_ms)[0] is not None


def test_the_work_of_one_trim_is_bounded_and_the_rest_reported() -> None:
    stream = Stream(1)
    for ms in range(1, 101):
        stream.append_entry(ms, 0, [b"f", b"v"], 1, 0)  # 25 blocks of 4 nodes of one entry
    stream.policy = RetentionPolicy(1, 0, 0, True)
    assert cut_of(stream, 0, 10) == ((40, 1), True)
    assert cut_of(stream, 0, 24) == ((100, 0), False)


def test_the_entry_with_the_last_possible_id_is_deleted_too() -> None:
    stream = Stream(1)
    stream.append_entry(TOP, TOP, [b"f", b"v"])
    stream.policy = RetentionPolicy(0, 0, 1, True)
    assert cut_of(stream, 0) == ("all", False)


# ---------------------------------------------------------------- the retention schedule


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 20))))
def test_every_key_is_due_within_half_a_second_after_its_time(
    noted: list[tuple[int, int]],
) -> None:
    retention_schedule = RetentionSchedule()
    want: dict[tuple[int, bytes], int] = {}
    for moment_ms, number in noted:
        key = b"%d" % number
        rounded = retention_schedule.note(moment_ms, 0, key)
        assert moment_ms <= rounded < moment_ms + 500
        want[rounded, key] = 1
    for now_ms in range(0, 6000, 250):
        due = set()
        while (place := retention_schedule.pop_due(now_ms)) is not None:
            due.add(place[1])
        assert due == {key for at, key in want if at <= now_ms}
        want = {pair: 1 for pair in want if pair[0] > now_ms}
    assert len(retention_schedule) == 0
    assert retention_schedule.next() == NEVER


def test_a_place_noted_repeatedly_takes_no_memory() -> None:
    retention_schedule = RetentionSchedule()
    for _ in range(1000):
        retention_schedule.note(1700, 3, b"key")
    assert len(retention_schedule) == 1


# ---------------------------------------------------------------- the command and the appends


def policy_of(player: InProcessClient, key: str = "s") -> Any:
    """TPOLICY's answer as a dict; None when there is none."""
    reply = player.call(f"TPOLICY {key}")
    if not isinstance(reply, list):
        return None
    return dict(zip(reply[::2], reply[1::2], strict=True))


def ids(player: InProcessClient, key: str = "s") -> list[bytes]:
    return [entry[0] for entry in player.call(f"XRANGE {key} - +")]  # type: ignore[union-attr, index, misc]


def fill(player: InProcessClient, count: int, key: str = "s") -> None:
    for number in range(1, count + 1):
        player.call(f"XADD {key} {number}-1 n {number}")


def shown(keyspace: Keyspace) -> dict[bytes, Any]:
    found = {}
    for db in keyspace.databases:
        for key in db.keys():  # noqa: SIM118
            meta, blocks = dump_stream(db.stream(key))  # type: ignore[union-attr]
            for group in meta["groups"]:
                while group["consumers"] and group["consumers"][-1] is None:
                    group["consumers"].pop()  # the numbers of consumers that left
            found[db.index, key] = meta, [block.to_bytes() for block in blocks]
    return found  # type: ignore[return-value]


def replays(in_process: InProcessServer) -> None:
    """The journal leads to the same state, though no policy is asked and no clock read."""
    again = in_process.replayed()
    again.now_ms = 0
    here, there = shown(in_process.keyspace), shown(again)
    for key, (meta, _) in here.items():  # type: ignore[misc]
        assert {**there[key][0], "open": None} == {**meta, "open": None}
    assert here.keys() == there.keys()


@pytest.mark.parametrize("append", ["TAPPEND s f v", "XADD s * f v", "TAPPEV s COUNT 100 f v"])
def test_an_append_of_either_dialect_keeps_the_policy(
    in_process: InProcessServer, player: InProcessClient, append: str
) -> None:
    fill(player, 5)
    assert player.call("TPOLICY s MAXLEN 3 EXACT") == OK
    assert ids(player) == [b"3-1", b"4-1", b"5-1"]
    player.call(append)
    assert ids(player)[:2] == [b"4-1", b"5-1"]
    assert player.call("XLEN s") == 3
    assert in_process.stream().max_evicted_id == (3, 1)
    replays(in_process)


def test_appends_within_a_transaction_keep_the_policy(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    fill(player, 2)
    player.call("TPOLICY s MAXLEN 2 EXACT")
    player.call("MULTI")
    for _ in range(3):
        player.call("TAPPEND s f v")
    player.call("XLEN s")
    assert player.call("EXEC")[3] == 2  # type: ignore[index]
    replays(in_process)


def test_limits_not_named_stay_and_zero_removes_one(player: InProcessClient) -> None:
    fill(player, 1)
    assert policy_of(player) is None
    player.call("TPOLICY s MAXLEN 7 EXACT")
    player.call("tpolicy s maxage 5000000000000 maxbytes 9000")
    assert policy_of(player) == {
        b"maxlen": 7, b"maxage": 5_000_000_000_000, b"maxbytes": 9000, b"trim": b"exact"
    }  # fmt: skip
    player.call("TPOLICY s MAXBYTES 0 MAXAGE 1 APPROX MAXAGE 0")
    assert policy_of(player) == {b"maxlen": 7, b"maxage": 0, b"maxbytes": 0, b"trim": b"approx"}
    assert player.call("TPOLICY s MAXLEN 0") == OK
    assert policy_of(player) is None
    assert player.call("TPOLICY s MAXLEN 0 EXACT") == OK
    assert policy_of(player) is None


SYNTAX_ERROR = (
    "ERR syntax error, the syntax is: TPOLICY key [MAXLEN n] [MAXAGE ms] [MAXBYTES n] "
    "[EXACT|APPROX] [EVICT ANY|ACKED|DONE] [HARDLEN n] [HARDAGE ms] [HARDBYTES n]"
)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("TPOLICY", "ERR wrong number of arguments for 'tpolicy' command"),
        ("TPOLICY nokey", "ERR no such key"),
        ("TPOLICY nokey MAXLEN 5", "ERR no such key"),
        ("TPOLICY nokey MAXLEN x", "ERR value is not an integer or out of range"),
        ("TPOLICY str", WRONG_TYPE),
        ("TPOLICY str MAXLEN 5", WRONG_TYPE),
        ("TPOLICY s MAXLEN", SYNTAX_ERROR),
        ("TPOLICY s MAXLEN -1", "ERR The MAXLEN argument must be >= 0."),
        ("TPOLICY s MAXAGE -1", "ERR The MAXAGE argument must be >= 0."),
        ("TPOLICY s MAXBYTES -1", "ERR The MAXBYTES argument must be >= 0."),
        ("TPOLICY s MAXLEN 1.5", "ERR value is not an integer or out of range"),
        ("TPOLICY s MAXLEN 9223372036854775808", "ERR value is not an integer or out of range"),
        ("TPOLICY s MAXLEN 5 TWICE", SYNTAX_ERROR),
        ("TPOLICY s 5", SYNTAX_ERROR),
        ("TPOLICY s EXACT", NO_LIMIT),
    ],
)  # fmt: skip
def test_errors_are_reported_and_change_nothing(
    player: InProcessClient, line: str, error: str
) -> None:
    fill(player, 3)
    player.call("SET str value")
    assert player.call(line) == Error(error)
    assert policy_of(player) is None
    assert player.call("XLEN s") == 3
    assert player.call("EXISTS nokey") == 0


def test_a_map_in_resp3(in_process: InProcessServer) -> None:
    player = in_process.player(3)
    player.call("XADD s 1-1 f v")
    player.call("TPOLICY s MAXLEN 1")
    assert isinstance(player.call("TPOLICY s"), Map)


# ---------------------------------------------------------------- automatic trimming


def test_old_entries_are_evicted_within_a_second_without_clients(
    in_process: InProcessServer,
) -> None:
    player = in_process.player()
    player.call("TAPPEND s n 1")
    player.call("TPOLICY s MAXAGE 5000 EXACT")
    in_process.wait_ms(1000)
    player.call("TAPPEND s n 2")
    in_process.wait_ms(3999)
    assert player.call("XLEN s") == 2
    in_process.wait_ms(501)
    assert player.call("XLEN s") == 1
    in_process.wait_ms(499)
    assert player.call("XLEN s") == 1
    in_process.wait_ms(1)
    assert player.call("XLEN s") == 0
    assert in_process.stream().max_evicted_id == in_process.stream().last_id
    replays(in_process)


def test_a_block_is_evicted_when_its_newest_entry_is_too_old(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call("TAPPEND s n 1")
    player.call("TPOLICY s MAXAGE 5000")
    in_process.wait_ms(4000)
    player.call("TAPPEND s n 2")
    in_process.wait_ms(4999)
    assert player.call("XLEN s") == 2
    in_process.wait_ms(501)
    assert player.call("XLEN s") == 0


def test_an_entry_too_old_from_the_start_is_evicted_at_once(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call("XADD s 1-1 n 1")
    player.call("TPOLICY s MAXAGE 1000")
    assert player.call("XLEN s") == 0
    assert player.call("XADD s 2-1 n 2") == b"2-1"
    assert player.call("XLEN s") == 0


def test_ids_ahead_of_the_clock_are_young(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call(f"XADD s {NOW_MS + 10_000}-1 n 1")
    player.call("TPOLICY s MAXAGE 1000 EXACT")
    in_process.wait_ms(10_999)
    assert player.call("XLEN s") == 1
    in_process.wait_ms(501)
    assert player.call("XLEN s") == 0


def test_a_group_gets_a_nil_for_a_gap_and_keeps_pending_entries(
    in_process: InProcessServer,
) -> None:
    player = in_process.player()
    player.call("TAPPEND s n 1")
    player.call("XGROUP CREATE s g 0")
    (entry,) = player.call("TREAD s 0 1 GROUP g 0 RETRY 60000 0")  # type: ignore[misc]
    player.call("TAPPEND s n 2")
    player.call("TPOLICY s MAXAGE 1000 EXACT")
    in_process.wait_ms(2000)
    player.call("TAPPEND s n 3")
    reply = player.call("TREAD s 0 10 GROUP g 0")
    assert reply[0] is not None  # type: ignore[index]
    assert player.call("XPENDING s g")[0] == 1  # type: ignore[index]
    assert len(reply) == 2  # type: ignore[arg-type]
    assert player.call(f"TACK s g {entry[0].decode()}") == 1
    replays(in_process)


@pytest.mark.parametrize(
    ("line", "db", "key"),
    [
        ("RENAME s t", 0, "t"),
        ("COPY s t", 0, "t"),
        ("MOVE s 1", 1, "s"),
        ("SWAPDB 0 1", 1, "s"),
    ],
)
def test_a_policy_moves_with_its_stream_and_is_applied_there(
    in_process: InProcessServer, line: str, db: int, key: str
) -> None:
    player = in_process.player()
    player.call("TAPPEND s n 1")
    player.call("TPOLICY s MAXAGE 5000 MAXLEN 10")
    in_process.wait_ms(1000)
    player.call(line)
    player.call(f"SELECT {db}")
    assert policy_of(player, key)[b"maxage"] == 5000
    replays(in_process)
    in_process.wait_ms(0)
    in_process.wait_ms(5000)
    assert player.call(f"XLEN {key}") == 0
    replays(in_process)


def test_a_recreated_key_has_no_policy(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call("TAPPEND s n 1")
    player.call("TPOLICY s MAXAGE 1000")
    player.call("DEL s")
    player.call("TAPPEND s n 1")
    assert policy_of(player) is None
    in_process.wait_ms(5000)
    assert player.call("XLEN s") == 1


@pytest.mark.parametrize("gone", ["DEL {}", "UNLINK {}", "RENAME {0} {0}b", "FLUSHDB", "FLUSHALL"])
def test_deleted_keys_leave_the_schedule_before_they_are_due(
    in_process: InProcessServer, gone: str
) -> None:
    """Streams that are made and deleted all day, with a limit of a week, cost nothing."""
    player = in_process.player()
    for number in range(20):
        player.call(f"XADD s{number} * f v")
        player.call(f"TPOLICY s{number} MAXAGE 604800000")
        player.call(gone.format(f"s{number}"))
        player.call(f"DEL s{number}b")
        in_process.wait_ms(1000)
    assert len(in_process.keyspace.retention_schedule) == 0


def test_a_loaded_stream_is_checked_without_an_append(in_process: InProcessServer) -> None:
    """From the journal alone: entries that the effects put in after the policy."""
    player = in_process.player()
    player.call("TAPPEND s n 1")
    player.call("TPOLICY s MAXAGE 5000 EXACT")
    player.call("TAPPEND s n 2")
    again = InProcessServer()
    again.keyspace = in_process.replayed()
    assert again.keyspace.retention_schedule.next() == 0
    assert len(again.keyspace.databases[0].stream(b"s")) == 2  # type: ignore[arg-type]


def test_a_huge_stream_is_trimmed_in_turns(in_process: InProcessServer) -> None:
    player = in_process.player()
    in_process.keyspace.node_entries = 1  # four entries a block
    stream = Stream(1)
    for ms in range(1, 20_001):
        stream.append_entry(ms, 0, [b"f", b"v"], 1, 0)
    in_process.keyspace.databases[0].set(b"s", stream)
    player.call("TPOLICY s MAXLEN 1 EXACT")
    left = [len(stream)]
    while left[-1] > 1 and len(left) < 20:
        in_process.wait_ms(0)
        left.append(len(stream))
    assert left == [16_000, 12_000, 8_000, 4_000, 1]


def test_very_many_streams_are_examined_in_turns(in_process: InProcessServer) -> None:
    player = in_process.player()
    for number in range(2500):
        player.call(f"TAPPEND s{number} n 1")
        player.call(f"TPOLICY s{number} MAXAGE 60000")
    in_process.wait_ms(61_000)
    turns = 1
    while in_process.keyspace.retention_schedule.next() != NEVER and turns < 20:
        in_process.wait_ms(0)
        turns += 1
    assert turns == 5  # a look and a block each: 500 in a turn
    assert all(len(in_process.stream(b"s%d" % number)) == 0 for number in range(2500)), (
        "a stream was passed over"
    )


def test_nothing_is_trimmed_while_writes_are_refused() -> None:
    journal = Journal()
    in_process = InProcessServer(journal)
    player = in_process.player()
    player.call("TAPPEND s n 1")
    player.call("TPOLICY s MAXAGE 1000")
    journal.error = b"MISCONF no"
    in_process.wait_ms(5000)
    assert player.call("XLEN s") == 1
    journal.error = None
    in_process.wait_ms(0)
    assert player.call("XLEN s") == 0


def test_trimming_by_the_timer_is_no_use_of_the_key(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call("TAPPEND s n 1")
    player.call("TPOLICY s MAXAGE 1000")
    in_process.wait_ms(30_000)
    assert player.call("XLEN s") == 0
    in_process.wait_ms(10_000)
    player.call("TAPPEND t n 1")
    assert player.call("OBJECT IDLETIME s") == 10


def test_clients_that_watch_the_key_notice_the_trim(in_process: InProcessServer) -> None:
    player, other = in_process.player(), in_process.player()
    other.call("TAPPEND s n 1")
    other.call("TPOLICY s MAXAGE 1000")
    player.call("WATCH s")
    in_process.wait_ms(5000)
    player.call("MULTI")
    player.call("PING")
    assert player.call("EXEC") is Null.ARRAY


@pytest.mark.parametrize("row", [[2**64, 0, 0, False], [0, -1, 0, True]])
def test_a_policy_that_no_server_wrote_is_no_policy(row: list[int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        RetentionPolicy.load(row)


@pytest.mark.parametrize("act", ["SET s v", "RENAME t s", "COPY t s REPLACE", "DEL s", "FLUSHALL"])
def test_a_deleted_stream_is_in_no_schedule(in_process: InProcessServer, act: str) -> None:
    player = in_process.player()
    player.call("SET t v")
    player.call("TAPPEND s n 1")
    player.call("TPOLICY s MAXAGE 100000000")
    assert len(in_process.keyspace.retention_schedule) == 1
    player.call(act)
    assert len(in_process.keyspace.retention_schedule) == 0
