"""Groups with a filter (WHERE) or an order by key (ORDER, RUN), in both dialects.

After every test, the effects and a dump must lead to the same groups as the commands did.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.managed import check_effects, facts, pending
from tests.support.resp import Error, Null, Simple, facts_of

from millstream.storage.groups.picking import set_parked_max
from millstream.storage.streams.head_eviction import lost_by

OK = Simple("OK")
USED = Error("ERR ORDER can change only while the group has no pending and no parked entries")
READ = "XREADGROUP GROUP g {} COUNT {} STREAMS s >"


@pytest.fixture(autouse=True)
def _is_replayed(in_process: InProcessServer) -> Iterator[None]:
    yield
    check_effects(in_process)


def add(client: InProcessClient, keys: str, first: int = 1) -> None:
    """Entries 1-1, 2-1 and so on, whose field k is a letter of `keys`; `-`: they do not have it."""
    for number, key in enumerate(keys, first):
        field = f"n {number}" if key == "-" else f"k {key}"
        client.call(f"XADD s {number}-1 {field}")


def take(client: InProcessClient, consumer: str = "a", count: int = 100, *words: str) -> list[int]:
    """The numbers of the entries that an XREADGROUP gets."""
    options = " ".join(words)
    reply = client.call(f"XREADGROUP GROUP g {consumer} COUNT {count} {options} STREAMS s >")
    return numbers(reply)


def numbers(reply: object) -> list[int]:
    if reply is Null.ARRAY:
        return []
    assert isinstance(reply, list), reply
    rows = reply[0][1] if reply and len(reply[0]) == 2 and reply[0][0] == b"s" else reply
    return [int(row[0].replace(b".", b"-").partition(b"-")[0]) for row in rows]


def ids(client: InProcessClient) -> list[int]:
    return numbers(client.call("XRANGE s - +"))


def copied(client: InProcessClient) -> list[tuple[bytes, bytes, bytes]]:
    """The source, the consumer and the reason of each copy in `d`."""
    reply = client.call("XRANGE d - +")
    assert isinstance(reply, list)
    rows = [dict(zip(row[1][::2], row[1][1::2], strict=True)) for row in reply]  # type: ignore[index]
    return [(row[b"dead_id"], row[b"dead_consumer"], row[b"dead_reason"]) for row in rows]


@pytest.fixture
def s(player: InProcessClient) -> InProcessClient:
    assert player.call("TGROUP s g START 0 TIMEOUT 100 ORDER FIELD k") == OK
    return player


# WHERE


def test_a_group_delivers_what_its_filter_matches(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TGROUP s g START 0 WHERE 1 k in 2 a b")
    add(player, "axbxxa")
    assert facts(player)[b"where"] == [b"k", b"IN", b"2", b"a", b"b"]
    assert take(player, "c", 2) == [1, 3]
    assert numbers(player.call("TREAD s 0 10 GROUP g 0")) == [6]
    assert take(player) == []
    add(player, "xx", 7)
    assert player.call("XINFO GROUPS s")[0][-1] == 2  # type: ignore[index]
    assert take(player) == []
    assert player.call("XINFO GROUPS s")[0][-1] == 0  # type: ignore[index]
    in_process.wait_ms(1000)
    player.call("TGROUP s g WHERE 0")
    add(player, "x", 9)
    assert take(player) == [9]


def test_a_match_wakes_a_blocked_reader(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TGROUP s g START 0 TIMEOUT 100 WHERE 1 k EQ a")
    first, second = in_process.player(), in_process.player()
    first.send("XREADGROUP GROUP g x BLOCK 0 STREAMS s >")
    second.send("TREAD s 0 1 BLOCK 0 GROUP g 0")
    add(player, "xxa")
    assert numbers(first.read()) == [3]
    add(player, "xxa", 4)
    assert numbers(second.read()) == [6]


def test_a_long_search_finds_its_match(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TGROUP s g START 0 WHERE 1 k EQ a")
    for number in range(1, 30_001):
        player.send(f"XADD s {number}-1 k b")
        player.unread = b""
    add(player, "a", 30_001)
    assert player.call("XLEN s") == 30_001
    for line in (READ.format("a", 1), "TREAD s 0 1 GROUP g 0"):
        player.send(line)
        for _ in range(100):
            if player.unread:
                break
            in_process.wait_ms(1)
        reply = player.read()
        assert numbers(reply) == ([30_001] if line.startswith("X") else [])


def test_evicted_entries_do_not_match(player: InProcessClient) -> None:
    player.call("TGROUP s g START 0 WHERE 1 k EQ a")
    add(player, "axaaxa")
    player.call("XTRIM s MINID 4")
    assert take(player) == [4, 6]


def test_a_gap_is_shown_although_nothing_matches(player: InProcessClient) -> None:
    player.call("TGROUP s g START 0 WHERE 1 k EQ a")
    add(player, "xxxx")
    player.call("XTRIM s MINID 3")
    assert player.call("TREAD s 0 10 GROUP g 0") == [Null.BULK]
    assert player.call("TREAD s 0 10 GROUP g 0") == []


# ORDER


def test_entries_of_one_key_come_one_after_the_other(s: InProcessClient) -> None:
    add(s, "aabab-c")
    assert take(s) == [1, 3, 6, 7]
    assert facts(s)[b"parked"] == 3
    assert s.call("XINFO GROUPS s")[0][-1] == 3  # type: ignore[index]
    assert take(s, "b") == []
    assert s.call("XACK s g 2-1") == 0
    assert s.call("XACK s g 1-1") == 1
    assert take(s, "b") == [2]
    assert s.call("TACK s g 3.1") == 1
    assert s.call("TACK s g 2.1") == 1
    assert numbers(s.call("TREAD s 0 10 GROUP g 0")) == [4, 5]
    assert facts(s)[b"parked"] == 0


def test_order_all_has_a_single_active_consumer(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g ORDER ALL RUN 2")
    add(s, "abcd")
    assert take(s, "x") == [1, 2]
    assert take(s, "y") == []
    in_process.wait_ms(100)
    assert take(s, "y") == [1]
    assert pending(s) == [(1, b"y", 0, 2)]
    s.call("XACK s g 1-1")
    assert take(s, "y") == [2, 3]


def test_a_run_comes_in_one_reply(s: InProcessClient) -> None:
    s.call("TGROUP s g RUN 2")
    add(s, "aabaaab")
    assert take(s) == [1, 2, 3, 7]
    s.call("XACK s g 1-1")
    assert take(s) == []
    s.call("XACK s g 2-1 7-1")
    assert take(s) == [4, 5]
    assert facts(s)[b"parked"] == 1


def test_a_freed_key_wakes_readers_in_turn(in_process: InProcessServer, s: InProcessClient) -> None:
    add(s, "aaa")
    assert take(s) == [1]
    first, second = in_process.player(), in_process.player()
    first.send("TREAD s 0 5 BLOCK 0 GROUP g 0")
    second.send("XREADGROUP GROUP g b BLOCK 0 STREAMS s >")
    assert first.unread == b"" == second.unread
    s.call("XACK s g 1-1")
    assert numbers(first.read()) == [2]
    assert second.unread == b""
    s.call('TNACK s g "" SILENT ALL')
    assert numbers(second.read()) == [2]


def test_a_failure_stops_its_key_and_takes_the_run_back(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g RUN 3 BACKOFF 1 50")
    add(s, "aaaab")
    assert take(s) == [1, 2, 3, 5]
    assert s.call("TNACK s g a IDS 1 2-1") == [1]
    assert [row[0] for row in pending(s)] == [1, 2, 5]
    assert facts(s)[b"parked"] == 2
    in_process.wait_ms(50)
    assert take(s, "b") == []  # 1-1 is still with its reader
    s.call("XACK s g 1-1")
    assert take(s, "b") == [2]
    assert pending(s)[0] == (2, b"b", 0, 2)
    s.call("XACK s g 2-1")
    assert take(s, "b") == [3, 4]


@pytest.mark.parametrize("failure", ["TNACK s g a IDS 1 1-1", "a timeout", "TNACK s g a ALL"])
def test_entries_taken_back_come_before_a_later_one_that_failed(
    in_process: InProcessServer, s: InProcessClient, failure: str
) -> None:
    s.call("TGROUP s g RUN 4")
    add(s, "aaaa")
    assert take(s) == [1, 2, 3, 4]
    assert s.call("TNACK s g a IDS 1 3-1") == [1]
    if failure == "a timeout":
        in_process.wait_ms(100)
    else:
        assert s.call(failure) == (2 if failure.endswith("ALL") else [1])
    assert take(s, "b") == [1]
    assert [(row[0], row[1], row[3]) for row in pending(s)][1:] == [(2, b"", 0), (3, b"", 1)]
    assert facts(s)[b"parked"] == 1
    reader = in_process.player()
    reader.send(READ.format("c", "9 BLOCK 0"))
    s.call("XACK s g 1-1")
    assert numbers(reader.read()) == [2]
    assert take(s, "d") == []
    s.call("XACK s g 2-1")
    assert take(s, "d") == [3]
    s.call("XACK s g 3-1")
    assert take(s, "d") == [4]


def test_a_run_that_times_out_costs_one_delivery_of_its_first(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g RUN 3")
    add(s, "aaa")
    assert take(s) == [1, 2, 3]
    in_process.wait_ms(100)
    assert take(s, "b") == [1]
    assert pending(s) == [(1, b"b", 0, 2)]
    assert s.call("XACK s g 3-1") == 0
    s.call("XACK s g 1-1")
    assert take(s, "b") == [2, 3]
    assert [row[3] for row in pending(s)] == [1, 1]


def test_an_entry_of_a_run_waits_for_earlier_ones(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g RUN 2")
    add(s, "aa")
    assert take(s) == [1, 2]
    s.call("TEXTEND s g a 1000 IDS 1 1-1")
    in_process.wait_ms(100)
    assert take(s, "b") == []
    s.call("XACK s g 1-1")
    assert take(s, "b") == [2]
    assert pending(s) == [(2, b"b", 0, 2)]


def test_all_that_was_held_counts_as_given_back(s: InProcessClient) -> None:
    s.call("TGROUP s g RUN 3")
    add(s, "aaab")
    assert take(s) == [1, 2, 3, 4]
    assert s.call("TNACK s g a IDS 3 1-1 2-1 9-9") == [1, 1, -1]
    assert facts(s)[b"parked"] == 2
    assert take(s) == [1]
    assert s.call("TNACK s g a ALL") == 2
    assert take(s) == [1, 4]
    s.call("XACK s g 1-1")
    assert take(s) == [2, 3]
    assert s.call("XGROUP DELCONSUMER s g a") == 3


def test_claims_take_the_first_entry_of_a_key(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g RUN 2")
    add(s, "aaab")
    assert take(s) == [1, 2, 4]
    assert s.call("XCLAIM s g b 0 1-1 2-1 3-1 4-1 FORCE JUSTID") == [b"4-1"]
    in_process.wait_ms(100)
    assert s.call("XCLAIM s g b 0 2-1 JUSTID") == []
    assert s.call("XAUTOCLAIM s g b 0 0 JUSTID")[1] == [b"1-1", b"4-1"]  # type: ignore[index]
    assert facts(s)[b"parked"] == 2
    in_process.wait_ms(100)
    assert take(s, "c", 9, "CLAIM", "100") == [1, 4]
    s.call("XACK s g 1-1")
    assert take(s, "c") == [2, 3]


def test_noack_settles_and_run_limits_it(s: InProcessClient) -> None:
    s.call("TGROUP s g RUN 2")
    add(s, "aaaaab")
    assert take(s, "a", 100, "NOACK") == [1, 2, 6]
    assert take(s, "a", 100, "NOACK") == [3, 4]
    assert take(s, "a", 100, "NOACK") == [5]
    assert pending(s) == []
    assert facts(s)[b"parked"] == 0


def test_gone_entries_are_dropped_when_their_turn_comes(s: InProcessClient) -> None:
    add(s, "aaaa")
    assert take(s) == [1]
    s.call("XDEL s 2-1 3-1")
    assert facts(s)[b"parked"] == 3
    s.call("XACK s g 1-1")
    assert take(s) == [4]
    assert facts(s)[b"parked"] == 0


def test_an_entry_that_expires_frees_its_key(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g START 0 TIMEOUT 1000 ORDER FIELD k")
    add(s, "aab")
    assert numbers(s.call("TREAD s 0 9 GROUP g 0 RETRY 60 100")) == [1, 3]
    s.call('TNACK s g "" SILENT IDS 1 3-1')
    in_process.wait_ms(100)
    assert take(s) == [2]


def test_an_acknowledged_entry_that_is_gone_frees_its_key(s: InProcessClient) -> None:
    add(s, "aa")
    assert take(s) == [1]
    s.call("XDEL s 1-1")
    assert s.call("XACK s g 1-1") == 1
    assert take(s) == [2]


def test_setid_forgets_parked_entries(s: InProcessClient) -> None:
    add(s, "aab")
    assert take(s) == [1, 3]
    s.call("XGROUP SETID s g 1")
    assert facts(s)[b"parked"] == 0
    assert take(s) == []
    assert facts(s)[b"parked"] == 1
    s.call("XACK s g 1-1")
    assert take(s) == [2]


def test_xclaim_with_lastid_keeps_parked_entries(s: InProcessClient) -> None:
    add(s, "aab")
    assert take(s, "a", 1) == [1]
    assert take(s, "a", 1) == [3]
    s.call("XCLAIM s g a 0 1-1 LASTID 7-7")
    assert facts(s)[b"parked"] == 1


def test_at_the_limit_only_parked_keys_move_on(s: InProcessClient) -> None:
    set_parked_max(2)
    try:
        add(s, "aaaabb")
        assert take(s) == [1]
        assert facts(s)[b"parked"] == 2
        assert take(s) == []
        s.call("XACK s g 1-1")
        assert take(s) == [2, 5]
        assert facts(s)[b"parked"] == 2
        s.call("XACK s g 2-1")
        assert take(s) == [3]
    finally:
        set_parked_max(100_000)


def test_a_run_that_fails_for_the_last_time_is_taken_back(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g RUN 3 MAXDELIVER 1 DEADLETTER d")
    add(s, "aaaabb")
    assert take(s) == [1, 2, 3, 5, 6]
    in_process.wait_ms(100)
    assert copied(s) == [(b"1-1", b"a", b"timeout"), (b"5-1", b"a", b"timeout")]
    assert pending(s) == []
    assert facts(s)[b"parked"] == 4
    assert take(s, "b") == [2, 3, 4, 6]
    assert s.call("TNACK s g b IDS 2 2-1 3-1") == [2, 1]
    assert copied(s)[2:] == [(b"2-1", b"b", b"failed")]
    assert take(s, "c") == [3, 4]
    assert s.call("TNACK s g c FATAL IDS 1 3-1") == [2]
    assert s.call("XACK s g 4-1") == 1  # a handler that calls an entry fatal continues with the run


def test_an_entry_is_copied_after_earlier_ones_of_its_run(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g RUN 3 MAXDELIVER 1 DEADLETTER d")
    add(s, "aaab")
    assert take(s) == [1, 2, 3, 4]
    s.call("TEXTEND s g a 1000 IDS 1 1-1")
    in_process.wait_ms(100)
    assert copied(s) == [(b"4-1", b"a", b"timeout")]
    for _ in range(3):
        in_process.wait_ms(100)
    assert [row[0] for row in pending(s)] == [1, 2, 3]
    s.call("XACK s g 1-1")
    in_process.wait_ms(100)
    assert copied(s)[1:] == [(b"2-1", b"a", b"timeout")]
    assert take(s, "b") == [3]


def test_a_redriven_entry_comes_when_its_key_is_free(s: InProcessClient) -> None:
    s.call("TGROUP s g RUN 2 MAXDELIVER 3 DEADLETTER d")
    add(s, "aaaab")
    assert take(s) == [1, 2, 5]
    assert s.call("TNACK s g a FATAL IDS 2 1-1 5-1") == [2, 2]
    assert s.call("XACK s g 2-1") == 1
    assert take(s) == [3, 4]
    assert s.call("TREDRIVE d s g 10")[1:] == [2, 0, 0]  # type: ignore[index]
    assert take(s, "b") == [5]
    assert facts(s) == {**facts(s), b"waiting": 1, b"in-flight": 3, b"parked": 0}
    add(s, "a", 6)
    assert take(s, "b") == []
    assert s.call("XACK s g 3-1 4-1") == 2  # they stay with their reader
    assert take(s, "b") == [1]
    assert take(s, "b") == []
    s.call("XACK s g 1-1")
    assert take(s, "b") == [6]


def test_tredrive_leaves_an_entry_that_is_parked(s: InProcessClient) -> None:
    s.call("TGROUP s g MAXDELIVER 3 DEADLETTER d")
    add(s, "aa")
    for number in (1, 2):
        assert take(s) == [number]
        s.call("TNACK s g a FATAL ALL")
    s.call("XGROUP SETID s g 0")
    assert take(s) == [1]
    assert s.call("TREDRIVE d s g 10")[1:] == [0, 0, 2]  # type: ignore[index]
    assert facts(s)[b"parked"] == 1


# What a group holds


def test_evict_done_keeps_parked_entries(s: InProcessClient) -> None:
    s.call("TPOLICY s EVICT DONE")
    add(s, "aabab")
    assert take(s) == [1, 3]
    assert s.call("XACK s g 1-1 3-1") == 2
    assert ids(s) == [2, 3, 4, 5]
    shown = facts_of(s.call("TINFO s"))
    assert (shown[b"held-by"], shown[b"held-id"]) == (b"g", b"2.1")
    assert take(s) == [2, 5]
    assert s.call("XACK s g 5-1 2-1") == 2
    assert ids(s) == [4, 5]
    assert take(s) == [4]
    assert s.call("XACK s g 4-1") == 1
    assert ids(s) == []


def test_commands_with_acked_keep_parked_entries(s: InProcessClient) -> None:
    add(s, "aab")
    assert take(s) == [1, 3]
    assert s.call("XACK s g 1-1 3-1") == 2
    assert s.call("XDELEX s ACKED IDS 1 2-1") == [2]
    assert s.call("XTRIM s MAXLEN = 0 ACKED") == 2
    assert ids(s) == [2]


def test_settled_blocks_leave_around_parked_entries(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    in_process.keyspace.node_entries = 2  # a block has four nodes
    s.call("TPOLICY s EVICT DONE")
    add(s, "a" + 40 * "-" + "a" + 40 * "-")
    assert take(s) == [number for number in range(1, 83) if number != 42]
    s.call("XACK s g " + " ".join(f"{number}-1" for number in range(2, 83)))
    in_process.wait_ms(1000)
    assert {1, 42} < set(ids(s))
    assert len(ids(s)) < 30
    s.call("XACK s g 1-1")
    assert ids(s)[0] == 42
    assert take(s) == [42]


def test_parked_entries_that_are_evicted_count_as_lost(s: InProcessClient) -> None:
    add(s, "aaab")
    assert take(s) == [1, 4]
    s.call("XDEL s 2-1")
    s.call("XTRIM s MINID 4")
    assert facts(s)[b"lost"] == 2  # 1-1 is pending, 3-1 parked; 2-1 was deleted
    s.call("TPOLICY s EVICT ACKED HARDLEN 1 EXACT")
    add(s, "bb", 5)
    assert take(s) == []
    add(s, "c", 7)
    assert facts(s)[b"lost"] == 5  # and 4-1, 5-1, 6-1
    s.call("XACK s g 4-1")
    assert take(s) == [7]


def test_what_a_filter_passed_over_is_not_lost(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TGROUP s g START 0 WHERE 1 k EQ a")
    player.call("TPOLICY s EVICT DONE")
    add(player, "xxxaxx")
    assert take(player) == [4]
    assert ids(player) == [4, 5, 6]
    player.call("XACK s g 4-1")
    assert take(player) == []
    assert ids(player) == []
    assert facts(player)[b"lost"] == 0
    again = in_process.replayed().databases[0].stream(b"s")
    assert again is not None
    assert lost_by(again, again.groups[b"g"]) == 0


@pytest.mark.parametrize(
    "trim",
    ["XTRIM s MAXLEN 1", "XTRIM s MINID 4-0", "XADD s MAXLEN 1 9-0 k x", "TAPPEV s COUNT 1",
     "TPOLICY s MAXLEN 1 EXACT", "XTRIM s MAXLEN 0", "XTRIM s MAXLEN 1 ACKED"],
)  # fmt: skip
def test_a_trim_records_how_far_a_filter_has_come(
    in_process: InProcessServer, player: InProcessClient, trim: str
) -> None:
    player.call("TGROUP s g START 0 WHERE 1 k EQ a")
    add(player, "xxxx")
    assert take(player) == []
    player.call(trim)
    assert facts(player)[b"lost"] == 0
    again = in_process.replayed().databases[0].stream(b"s")
    assert again is not None
    assert lost_by(again, again.groups[b"g"]) == 0


def test_evict_done_keeps_exactly_what_an_ordered_group_holds(s: InProcessClient) -> None:
    chance = random.Random(4)
    s.call("TGROUP s g RUN 2")
    s.call("TPOLICY s EVICT DONE")
    added = 0
    held: set[int] = set()
    in_flight: set[int] = set()
    for _ in range(600):
        step = chance.randrange(4)
        if step == 0:
            added += 1
            held.add(added)
            add(s, chance.choice("aab-"), added)
        elif step == 1:
            in_flight.update(take(s, "a", chance.randrange(1, 4)))
        elif in_flight:
            number = chance.choice(sorted(in_flight))
            if step == 2:
                assert s.call(f"XACK s g {number}-1") == 1
                held.remove(number)
            else:
                assert s.call(f"TNACK s g a SILENT IDS 1 {number}-1") == [1]
            in_flight = {row[0] for row in pending(s) if row[1] == b"a"}  # type: ignore[misc]
        there = ids(s)
        assert held <= set(there)
        assert there == [] or there[0] == min(held)


def test_order_changes_only_while_nothing_is_held(s: InProcessClient) -> None:
    add(s, "aa")
    assert take(s) == [1]
    assert s.call("TGROUP s g ORDER FIELD k RUN 5") == OK
    for order in ("ALL", "NONE", "FIELD x"):
        assert s.call(f"TGROUP s g ORDER {order}") == USED
    s.call("XACK s g 1-1")
    assert s.call("TGROUP s g ORDER NONE") == USED  # 2-1 is parked
    assert take(s) == [2]
    s.call("XACK s g 2-1")
    assert s.call("TGROUP s g ORDER NONE") == OK
    assert facts(s) == {**facts(s), b"order": b"NONE", b"order-field": b"", b"run": 5}


def test_a_filter_and_an_order_work_together(s: InProcessClient) -> None:
    s.call("TGROUP s g WHERE 1 k PREFIX b MAXINFLIGHT 2")
    add(s, "abbcb")
    assert take(s) == [2]
    assert facts(s)[b"parked"] == 2
    s.call("TGROUP s g WHERE 1 k EQ a")
    s.call("XACK s g 2-1")
    assert take(s) == [3]  # parked entries come although WHERE has changed


def test_a_copy_has_the_order_and_the_parked_entries(s: InProcessClient) -> None:
    add(s, "aab")
    assert take(s) == [1, 3]
    assert s.call("COPY s t") == 1
    assert s.call("TINFO t GROUP g") == s.call("TINFO s GROUP g")
    s.call("XACK t g 1-1")
    reply = s.call("XREADGROUP GROUP g a STREAMS t >")
    assert reply == [[b"t", [[b"2-1", [b"k", b"a"]]]]]
    assert take(s) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("RUN 0", "ERR RUN must be from 1 to 1000"),
        ("RUN 1001", "ERR RUN must be from 1 to 1000"),
        ("RUN x", "ERR RUN must be from 1 to 1000"),
        ("ORDER", "ERR syntax error, ORDER needs a value"),
        ("ORDER SOME", "ERR syntax error, ORDER must be NONE, ALL or FIELD, not 'SOME'"),
        ("ORDER FIELD", "ERR syntax error, ORDER FIELD needs a value"),
        ("WHERE 9", "ERR WHERE must have from 0 to 8 conditions"),
        ("WHERE x", "ERR WHERE must have from 0 to 8 conditions"),
        ("WHERE 1 k EQ", "ERR syntax error, a condition of WHERE is not complete"),
        ("WHERE 1 k IN 2 x", "ERR syntax error, a condition of WHERE is not complete"),
        ("WHERE 1 k NE x", "ERR syntax error, WHERE has no operator 'NE'"),
        ("WHERE 1 k IN 0", "ERR IN must have from 1 to 1000 values"),
        ("WHERE 1 k BETWEEN 1 x", "ERR min or max is not a float"),
        (
            "TIMEOUT 0 ORDER ALL",
            "ERR BACKOFF, MAXDELIVER, DEADLETTER, MAXINFLIGHT and ORDER need a TIMEOUT",
        ),
    ],
)
def test_bad_rules_are_refused(s: InProcessClient, options: str, error: str) -> None:
    before = facts(s)
    refusal = s.call(f"TGROUP s g {options}")
    assert isinstance(refusal, Error)
    assert refusal.text.split(", the syntax is: ")[0] == error
    assert facts(s) == before
