"""The limit of deliveries and the dead letter stream of a group: MAXDELIVER, DEADLETTER, FATAL.

After every test, the effects must lead to the same groups as the commands did, and so must a dump.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.managed import check_effects, facts, pending, read
from tests.support.resp import Error, Null, Simple

from millstream.storage.groups.dead_entries import dead_count
from millstream.storage.groups.group_snapshot import dump_group, load_group

OK = Simple("OK")
SYNTAX = Error("ERR syntax error")
NEEDS_TIMEOUT = "ERR BACKOFF, MAXDELIVER, DEADLETTER, MAXINFLIGHT and ORDER need a TIMEOUT"
FULL = "OOM command not allowed when used memory > 'maxmemory'."
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@pytest.fixture(autouse=True)
def _is_replayed(in_process: InProcessServer) -> Iterator[None]:
    yield
    check_effects(in_process)


@pytest.fixture
def s(in_process: InProcessServer, player: InProcessClient) -> InProcessClient:
    """A client; stream `s` has the entries 1-1 to 4-1, and group `g` a timeout of 100 ms, two
    deliveries at most, and the dead letter stream `d`."""
    for number in range(1, 5):
        player.call(f"XADD s {number}-1 n {number}")
    assert player.call("TGROUP s g START 0 TIMEOUT 100 MAXDELIVER 2 DEADLETTER d") == OK
    return player


def copies(player: InProcessClient, key: str = "d") -> list[dict[bytes, bytes]]:
    """The fields of the entries of the dead letter stream."""
    reply = player.call(f"XRANGE {key} - +")
    assert isinstance(reply, list)
    words = [row[1] for row in reply]  # type: ignore[index]
    return [dict(zip(row[::2], row[1::2], strict=True)) for row in words]  # type: ignore[index, arg-type]


def copy(number: int, **changed: object) -> dict[bytes, bytes]:
    """The copy of an entry of `s`, without its time."""
    found: dict[str, object] = {
        "n": number, "dead_stream": "s", "dead_id": f"{number}-1", "dead_group": "g",
        "dead_consumer": "a", "dead_deliveries": 2, "dead_reason": "timeout", "dead_text": "",
        "dead_hops": 1, **changed,
    }  # fmt: skip
    return {name.encode(): str(value).encode() for name, value in found.items()}


def without_time(found: list[dict[bytes, bytes]]) -> list[dict[bytes, bytes]]:
    return [{k: v for k, v in row.items() if k != b"dead_time"} for row in found]


def deliver(
    in_process: InProcessServer, player: InProcessClient, times: int, count: int = 1
) -> None:
    """Deliver the first entries of `s` this number of times to consumer `a`; the last delivery is
    not over."""
    for number in range(times):
        if number:
            in_process.wait_ms(100)
        player.call(f"XREADGROUP GROUP g a COUNT {count} STREAMS s >")
    player.call("XGROUP SETID s g 9-9")


# Rules


def test_tinfo_shows_the_rules_and_what_became_of_entries(s: InProcessClient) -> None:
    assert facts(s) == {
        b"timeout": 100, b"backoff": [], b"maxdeliver": 2, b"deadletter": b"d", b"maxinflight": 0,
        b"order": b"NONE", b"order-field": b"", b"run": 1, b"where": [],
        b"consumer-ttl": 0, b"ttl": 0, b"pause": 0, b"in-flight": 0, b"waiting": 0, b"parked": 0,
        b"dead": 0, b"dead-letters": 0, b"lost": 0,
    }  # fmt: skip
    assert s.call("TGROUP s g MAXDELIVER 0 DEADLETTER nil") == OK
    assert s.call('TGROUP s g DEADLETTER ""') == OK
    assert facts(s) == {**facts(s), b"maxdeliver": 0, b"deadletter": b""}
    assert s.call("TGROUP s g TIMEOUT 0") == OK


def test_a_stream_without_a_name_may_have_a_managed_group(s: InProcessClient) -> None:
    assert s.call('TGROUP "" g START 0 TIMEOUT 1000') == OK
    assert s.call('DEL ""') == 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("TGROUP s new START 0 MAXDELIVER 5", NEEDS_TIMEOUT),
        ("TGROUP s new START 0 DEADLETTER d", NEEDS_TIMEOUT),
        ("TGROUP s new START 0 BACKOFF 1 5", NEEDS_TIMEOUT),
        ("TGROUP s g TIMEOUT 0", NEEDS_TIMEOUT),
        ("TGROUP s new START 0 TIMEOUT 5 MAXDELIVER 5", "ERR MAXDELIVER needs a DEADLETTER stream"),
        ('TGROUP s g DEADLETTER ""', "ERR MAXDELIVER needs a DEADLETTER stream"),
        ("TGROUP s g DEADLETTER s", "ERR a stream cannot be its own dead letter stream"),
        ("TGROUP s g MAXDELIVER -1", "ERR MAXDELIVER must be from 0 to 1000000"),
        ("TGROUP s g MAXDELIVER x", "ERR MAXDELIVER must be from 0 to 1000000"),
        ("TGROUP s g DEADLETTER", "ERR syntax error, DEADLETTER needs a value"),
        (
            "TNACK s g a FATAL DELAY 5 IDS 1 1-1",
            "ERR syntax error, DELAY cannot be used with FATAL",
        ),
        (f"TNACK s g a REASON {'x' * 1025} ALL", "ERR REASON must have at most 1024 bytes"),
        ("TNACK s g a REASON", "ERR Unrecognized TNACK option 'REASON'"),
        ("TNACK s plain a FATAL ALL", "ERR the group has no TIMEOUT: set one with TGROUP"),
    ],
)
def test_refused_requests_change_nothing(
    in_process: InProcessServer, s: InProcessClient, line: str, error: str
) -> None:
    s.call("XGROUP CREATE s plain 0")
    deliver(in_process, s, 1)
    before = facts(s), pending(s), s.call("XINFO GROUPS s")
    refusal = s.call(line)
    assert isinstance(refusal, Error)
    assert refusal.text.split(", the syntax is: ")[0] == error
    assert (facts(s), pending(s), s.call("XINFO GROUPS s")) == before
    assert s.call("EXISTS d") == 0


# The end of the last delivery


def test_the_last_delivery_that_times_out_leaves_a_copy(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2)
    in_process.wait_ms(99)
    assert s.call("EXISTS d") == 0
    in_process.wait_ms(1)
    [found] = copies(s)
    assert list(found) == [
        b"n", b"dead_stream", b"dead_id", b"dead_group", b"dead_consumer", b"dead_deliveries",
        b"dead_reason", b"dead_text", b"dead_time", b"dead_hops",
    ]  # fmt: skip
    assert int(found[b"dead_time"]) == in_process.wall_ms
    assert without_time([found]) == [copy(1)]
    assert pending(s) == []
    assert facts(s) == {**facts(s), b"dead": 0, b"dead-letters": 1}
    assert s.call("XREADGROUP GROUP g b STREAMS s >") == Null.ARRAY


def test_the_last_failure_gives_code_2_and_its_text(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 1)
    assert s.call("TNACK s g a REASON first DELAY 0 IDS 1 1-1") == [1]
    assert s.call("XREADGROUP GROUP g b STREAMS s >") == read(1)
    assert s.call("TNACK s g b REASON no-address DELAY 5000 IDS 2 1-1 1-1") == [2, -1]
    expected = copy(1, dead_reason="failed", dead_text="no-address", dead_consumer="b")
    assert without_time(copies(s)) == [expected]


def test_fatal_ends_an_entry_whatever_its_deliveries(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TREAD s 0 2 GROUP g 0")
    assert s.call('TNACK s g "" FATAL REASON broken IDS 3 1-1 2.1 9-9') == [2, 2, -1]
    expected = {"dead_consumer": "", "dead_deliveries": 1, "dead_reason": "fatal"}
    assert without_time(copies(s)) == [
        copy(1, **expected, dead_text="broken"), copy(2, **expected, dead_text="broken")
    ]  # fmt: skip
    s.call("XREADGROUP GROUP g a STREAMS s >")
    assert s.call("TNACK s g a FATAL ALL") == 2
    assert facts(s)[b"dead-letters"] == len(copies(s)) == 4


def test_a_timeout_after_a_failure_has_no_text(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 1)
    s.call("TNACK s g a REASON first IDS 1 1-1")
    s.call("XREADGROUP GROUP g a STREAMS s >")
    in_process.wait_ms(100)
    assert without_time(copies(s)) == [copy(1)]


def test_silent_takes_a_delivery_back_from_the_limit(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2)
    assert s.call("TNACK s g a SILENT IDS 1 1-1") == [1]
    assert pending(s) == [(1, b"", -1, 1)]
    assert s.call("XREADGROUP GROUP g a STREAMS s >") == read(1)
    in_process.wait_ms(100)
    assert without_time(copies(s)) == [copy(1)]


def test_a_lowered_limit_lets_deliveries_in_flight_end(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g MAXDELIVER 9")
    deliver(in_process, s, 3, 3)
    s.call("TNACK s g a DELAY 50 IDS 1 2-1")
    s.call("TNACK s g a DELAY 0 IDS 1 3-1")
    s.call("TGROUP s g MAXDELIVER 2")
    in_process.wait_ms(0)
    assert [row[0] for row in pending(s)] == [1, 2]
    assert s.call("XREADGROUP GROUP g b STREAMS s >") == Null.ARRAY
    in_process.wait_ms(50)
    in_process.wait_ms(50)
    waited = {"dead_consumer": "", "dead_deliveries": 3, "dead_reason": "failed"}
    assert without_time(copies(s)) == [
        copy(3, **waited), copy(2, **waited), copy(1, dead_deliveries=3)
    ]  # fmt: skip


def test_a_raised_limit_delivers_again(in_process: InProcessServer, s: InProcessClient) -> None:
    deliver(in_process, s, 2)
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g b BLOCK 0 STREAMS s >")
    s.call("TGROUP s g MAXDELIVER 3")
    in_process.wait_ms(100)
    assert waiting.read() == read(1)
    assert s.call("XAUTOCLAIM s g c 0 0 JUSTID") == [b"0-0", [], []]
    s.call("TGROUP s g MAXDELIVER 4")
    assert s.call("XAUTOCLAIM s g c 0 0 JUSTID") == [b"0-0", [b"1-1"], []]


def test_a_deleted_entry_ends_without_a_copy(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2, 3)
    s.call("XDEL s 1-1 2-1 3-1")
    assert s.call("TNACK s g a IDS 1 1-1") == [1]
    assert s.call("TNACK s g a FATAL IDS 1 2-1") == [1]
    in_process.wait_ms(100)
    assert pending(s) == []
    assert s.call("EXISTS d") == 0


def test_an_expiry_leaves_a_copy(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TREAD s 0 2 GROUP g 0 RETRY 40 60")
    s.call('TNACK s g "" DELAY 500 IDS 1 1-1')
    in_process.wait_ms(40)
    assert s.call("TREAD s 0 1 GROUP g 0 RETRY 40 30") == [[b"2.1", b"n", b"2"]]
    expected = {"dead_consumer": "", "dead_reason": "expired"}
    assert without_time(copies(s)) == [copy(2, **expected)]
    in_process.wait_ms(20)
    assert without_time(copies(s))[1:] == [copy(1, **expected, dead_deliveries=1)]


def test_without_a_dead_letter_stream_an_expiry_drops(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call('TGROUP s g MAXDELIVER 0 DEADLETTER ""')
    s.call("TREAD s 0 2 GROUP g 0 RETRY 40 60")
    in_process.wait_ms(60)
    assert pending(s) == []
    assert s.call("EXISTS d") == 0


def test_a_reader_with_retry_0_ends_the_last_delivery(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TREAD s 0 1 GROUP g 0 RETRY 0 0")
    assert s.call("TREAD s 0 1 GROUP g 0 RETRY 0 0") == [[b"1.1", b"n", b"1"]]
    in_process.wait_ms(1000)
    assert s.call("EXISTS d") == 0
    assert s.call("TREAD s 0 1 GROUP g 0 RETRY 0 0") == [[b"2.1", b"n", b"2"]]
    assert without_time(copies(s)) == [copy(1, dead_consumer="")]


# XNACK and claims


def test_xnack_fatal_copies_the_real_count(in_process: InProcessServer, s: InProcessClient) -> None:
    deliver(in_process, s, 1, 3)
    s.call("TNACK s g a DELAY 900 IDS 1 3-1")
    assert s.call("XNACK s g FATAL IDS 3 1-1 3-1 9-9") == 1
    assert s.call("XNACK s g FATAL IDS 1 2-1 RETRYCOUNT 7") == 1
    assert s.call("XNACK s g FATAL IDS 2 4-1 4-1 FORCE") == 1
    assert without_time(copies(s)) == [
        copy(1, dead_reason="fatal", dead_deliveries=1),
        copy(2, dead_reason="fatal", dead_deliveries=7),
        copy(4, dead_reason="fatal", dead_deliveries=0, dead_consumer=""),
    ]
    assert pending(s) == [(3, b"", -1, 1)]


def test_xnack_fail_ends_an_entry_at_the_limit(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 1, 2)
    assert s.call("XNACK s g FAIL IDS 1 1-1 RETRYCOUNT 2") == 1
    assert s.call("XNACK s g SILENT IDS 1 2-1 RETRYCOUNT 3") == 1
    in_process.wait_ms(0)
    assert without_time(copies(s)) == [
        copy(1, dead_reason="failed"),
        copy(2, dead_reason="failed", dead_consumer=""),
    ]


def test_claims_take_nothing_at_the_limit(in_process: InProcessServer, s: InProcessClient) -> None:
    deliver(in_process, s, 2)
    in_process.wait_ms(50)
    assert s.call("XCLAIM s g b 0 1-1") == []
    assert s.call("XCLAIM s g b 0 1-1 JUSTID FORCE") == []
    assert s.call("XAUTOCLAIM s g b 0 0") == [b"0-0", [], []]
    assert s.call("XREADGROUP GROUP g b CLAIM 0 STREAMS s >") == Null.ARRAY
    assert s.call("XPENDING s g IDLE 10 - + 10") == [[b"1-1", b"a", 50, 2]]
    assert s.call("XCLAIM s g b 0 1-1 RETRYCOUNT 0 JUSTID") == [b"1-1"]
    assert pending(s) == [(1, b"b", 0, 0)]


# Dead entries


@pytest.mark.parametrize("place", [2, 3, 4])
@pytest.mark.parametrize("wrong", [None, 7, "text", [b"x"]])
def test_dead_entries_with_malformed_reasons_do_not_load(
    in_process: InProcessServer, s: InProcessClient, place: int, wrong: object
) -> None:
    s.call('TGROUP s g MAXDELIVER 0 DEADLETTER ""')
    deliver(in_process, s, 1, 3)
    s.call("TNACK s g a FATAL REASON bad IDS 2 1-1 2-1")
    meta = dump_group(in_process.group())
    dead = [list(row) for row in meta["dead"]]
    assert len(dead) == dead_count(load_group({**meta, "dead": dead}, 0).pending) == 2
    dead[0][place] = wrong
    with pytest.raises(ValueError, match="malformed"):
        load_group({**meta, "dead": dead}, 0)
    with pytest.raises(ValueError, match="has no reason"):
        load_group({**meta, "dead": dead[1:] * 2}, 0)


def test_fatal_without_a_stream_leaves_the_entry_dead(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call('TGROUP s g MAXDELIVER 0 DEADLETTER ""')
    deliver(in_process, s, 1, 3)
    assert s.call("TNACK s g a FATAL REASON bad IDS 3 1-1 2-1 3-1") == [3, 3, 3]
    assert facts(s) == {**facts(s), b"in-flight": 0, b"waiting": 0, b"dead": 3}
    assert pending(s) == [(1, b"", -1, 1), (2, b"", -1, 1), (3, b"", -1, 1)]
    in_process.wait_ms(5000)
    assert s.call("XREADGROUP GROUP g b STREAMS s >") == Null.ARRAY
    assert s.call("XCLAIM s g b 0 1-1 JUSTID") == []
    assert s.call("XAUTOCLAIM s g b 0 0 JUSTID") == [b"0-0", [], []]
    assert s.call("XNACK s g FATAL IDS 1 1-1") == 0
    assert in_process.keyspace.dead_letters.count_dead(in_process.keyspace.databases) == 3
    assert s.call("XACK s g 1-1") == 1
    assert s.call("XCLAIM s g b 0 2-1 RETRYCOUNT 0 JUSTID") == [b"2-1"]
    assert facts(s) == {**facts(s), b"in-flight": 1, b"dead": 1}
    s.call("TGROUP s g DEADLETTER d")
    in_process.wait_ms(0)
    expected = copy(3, dead_reason="fatal", dead_text="bad", dead_deliveries=1)
    assert without_time(copies(s)) == [expected]
    assert facts(s) == {**facts(s), b"dead": 0, b"dead-letters": 1}
    assert in_process.keyspace.dead_letters.count_dead(in_process.keyspace.databases) == 0


def block_type(in_process: InProcessServer, player: InProcessClient) -> None:
    player.call("SET d x")


def block_sealed(in_process: InProcessServer, player: InProcessClient) -> None:
    player.call("XADD d 1-1 x y")
    player.call("TSEAL d")


def block_held(in_process: InProcessServer, player: InProcessClient) -> None:
    in_process.keyspace.held_max_bytes = 1
    player.call("TRESERVE d w LEASE 60000")
    player.call("XADD d * x y")


def block_memory(in_process: InProcessServer, player: InProcessClient) -> None:
    in_process.executor.admission.set_memory(full=True, lacking=False)


@pytest.mark.parametrize("block", [block_type, block_sealed, block_held, block_memory])
def test_a_stream_that_takes_no_copies_is_tried_each_second(
    in_process: InProcessServer, s: InProcessClient, block: object
) -> None:
    deliver(in_process, s, 2, 2)
    block(in_process, s)  # type: ignore[operator]
    assert s.call("TNACK s g a IDS 1 2-1") == [3]
    in_process.wait_ms(100)
    assert facts(s) == {**facts(s), b"dead": 2, b"dead-letters": 0}
    assert any("is dead in group 'g'" in line for line in in_process.logged)
    assert s.call("XREADGROUP GROUP g b STREAMS s >") == Null.ARRAY
    in_process.executor.admission.set_memory(full=False, lacking=False)
    in_process.keyspace.held_max_bytes = 1 << 20
    s.call("TABORT d w")
    s.call("DEL d")
    in_process.wait_ms(800)
    assert s.call("EXISTS d") == 0
    in_process.wait_ms(200)
    assert without_time(copies(s)) == [copy(2, dead_reason="failed"), copy(1)]
    assert facts(s) == {**facts(s), b"dead": 0, b"dead-letters": 2}


def test_a_copy_of_a_copy_replaces_the_nine_fields(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2)
    in_process.wait_ms(100)
    s.call("TGROUP d g START 0 TIMEOUT 50 MAXDELIVER 1 DEADLETTER e")
    assert s.call("XREADGROUP GROUP g w STREAMS d >") != Null.ARRAY
    in_process.wait_ms(50)
    [first], [second] = copies(s), copies(s, "e")
    assert list(second) == list(first)
    assert second[b"dead_stream"] == b"d"
    assert (second[b"n"], second[b"dead_hops"], second[b"dead_deliveries"]) == (b"1", b"2", b"1")


def test_a_cycle_ends_after_8_copies(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TGROUP d g START 0 TIMEOUT 50 MAXDELIVER 1 DEADLETTER s")
    s.call("TGROUP s g MAXDELIVER 1")
    s.call("XGROUP SETID s g 3-1")
    for _ in range(20):
        s.call("XREADGROUP GROUP g w STREAMS s >")
        s.call("XREADGROUP GROUP g w STREAMS d >")
        in_process.wait_ms(100)
    hops = [int(row.get(b"dead_hops", 0)) for key in ("s", "d") for row in copies(s, key)]
    assert sorted(hops) == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert facts(s)[b"dead"] == 1
    in_process.wait_ms(5000)
    assert facts(s)[b"dead"] == 1
    [(_, _, _, deliveries)] = pending(s)
    assert deliveries == 1


def test_a_stream_renamed_to_its_dead_letter_stream_keeps_them(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2)
    s.call("RENAME s d")
    in_process.wait_ms(1100)
    assert facts(s, key="d") == {**facts(s, key="d"), b"dead": 1}
    assert s.call("XLEN d") == 4
    s.call("RENAME d s")
    in_process.wait_ms(1000)
    assert without_time(copies(s)) == [copy(1)]


def test_a_renamed_source_keeps_its_rules(in_process: InProcessServer, s: InProcessClient) -> None:
    deliver(in_process, s, 2)
    s.call("RENAME s t")
    in_process.wait_ms(100)
    assert without_time(copies(s)) == [copy(1, dead_stream="t")]


def test_a_dead_letter_stream_that_was_deleted_is_created_again(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2, 2)
    s.call("TNACK s g a IDS 1 1-1")
    s.call("DEL d")
    in_process.wait_ms(100)
    assert without_time(copies(s)) == [copy(2)]


def test_many_copies_are_made_in_turns(in_process: InProcessServer, s: InProcessClient) -> None:
    for number in range(5, 605):
        s.call(f"XADD s {number}-1 n {number}")
    s.call("TGROUP s g MAXDELIVER 1")
    s.call("XREADGROUP GROUP g a STREAMS s >")
    reader = in_process.player()
    reader.send("XREADGROUP GROUP g b BLOCK 0 STREAMS s >")
    in_process.wait_ms(100)
    in_process.wait_ms(0)
    in_process.wait_ms(0)
    assert reader.unread == b""
    assert [row[b"n"] for row in copies(s)] == [b"%d" % n for n in range(1, 605)]
    assert s.call("XREADGROUP GROUP g b STREAMS s >") == Null.ARRAY


def test_a_copy_wakes_a_reader_of_the_dead_letter_stream(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2)
    reader = in_process.player()
    reader.send("XREAD BLOCK 0 STREAMS d 0")
    in_process.wait_ms(100)
    assert reader.read() not in (None, Null.ARRAY)


def test_acknowledging_the_last_delivery_leaves_no_copy(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2)
    in_process.wait_ms(99)
    assert s.call("XACK s g 1-1") == 1
    in_process.wait_ms(1000)
    assert s.call("EXISTS d") == 0


def test_dead_entries_survive_a_copy_of_the_stream(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    deliver(in_process, s, 2)
    s.call("SET d x")
    s.call("TNACK s g a FATAL REASON why IDS 1 1-1")
    s.call("COPY s t")
    assert facts(s, key="t")[b"dead"] == 1
    s.call("DEL d")
    in_process.wait_ms(1000)
    assert sorted(row[b"dead_stream"] for row in copies(s)) == [b"s", b"t"]
