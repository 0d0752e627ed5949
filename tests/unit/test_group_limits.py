"""MAXINFLIGHT, PAUSE and CONSUMERTTL of TGROUP, in both dialects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.managed import check_effects, facts, pending, read
from tests.support.resp import Error, Null, Simple

OK = Simple("OK")
NEEDS_TIMEOUT = Error("ERR BACKOFF, MAXDELIVER, DEADLETTER, MAXINFLIGHT and ORDER need a TIMEOUT")
NUMBERS = f"ERR {{}} must be from {{}} to {2**63 - 1}"
READ_A = "XREADGROUP GROUP g a STREAMS s >"
READ_B = "XREADGROUP GROUP g b STREAMS s >"
BLOCK_A = "XREADGROUP GROUP g a BLOCK 0 STREAMS s >"
BLOCK_B = "XREADGROUP GROUP g b BLOCK 0 STREAMS s >"
TREAD = "TREAD s 0 10 GROUP g 0"


@pytest.fixture(autouse=True)
def _is_replayed(in_process: InProcessServer) -> Iterator[None]:
    yield
    check_effects(in_process)


@pytest.fixture
def s(in_process: InProcessServer, player: InProcessClient) -> InProcessClient:
    """A client; stream `s` has the entries 1-1 to 5-1, and group `g` a timeout of 100 ms."""
    for number in range(1, 6):
        player.call(f"XADD s {number}-1 n {number}")
    assert player.call("TGROUP s g START 0 TIMEOUT 100") == OK
    return player


def flat(*numbers: int) -> list[list[bytes]]:
    return [[b"%d.1" % number, b"n", b"%d" % number] for number in numbers]


# MAXINFLIGHT


def test_reads_bring_at_most_maxinflight_entries_to_readers(s: InProcessClient) -> None:
    s.call("TGROUP s g MAXINFLIGHT 3")
    assert s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >") == read(1, 2)
    assert s.call(TREAD) == flat(3)
    assert s.call(READ_B) is Null.ARRAY
    assert s.call(TREAD) == []
    assert s.call("XACK s g 2-1") == 1
    assert s.call(TREAD) == flat(4)
    assert facts(s)[b"in-flight"] == 3
    s.call("TGROUP s g MAXINFLIGHT 0")
    assert s.call(READ_B) == read(5)


def test_a_timed_out_entry_keeps_its_place(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TGROUP s g MAXINFLIGHT 2")
    assert s.call(READ_A) == read(1, 2)
    in_process.wait_ms(100)
    assert s.call(READ_B) == read(1, 2)
    in_process.wait_ms(100)
    s.call("TGROUP s g MAXINFLIGHT 1")
    assert s.call(TREAD) == flat(1, 2)


def test_an_entry_that_waits_has_no_place(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TGROUP s g MAXINFLIGHT 2")
    s.call(READ_A)
    s.call("TNACK s g a DELAY 50 IDS 1 1-1")
    assert s.call(READ_B) == read(3)
    in_process.wait_ms(50)
    assert s.call(READ_B) is Null.ARRAY
    in_process.wait_ms(50)
    # 2-1 and 3-1 are held, 1-1 is due since 50 ms.
    assert s.call(READ_A) == read(2, 3)
    assert s.call("XACK s g 2-1") == 1
    assert s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >") == read(1)


def test_places_of_one_read_are_its_limit_without_acks_too(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g MAXINFLIGHT 2")
    s.call(READ_A)
    s.call("TNACK s g a SILENT IDS 1 1-1")
    assert s.call("XREADGROUP GROUP g a NOACK STREAMS s >") == read(1)
    assert s.call("XREADGROUP GROUP g a NOACK STREAMS s >") == read(3)
    assert [row[0] for row in pending(s)] == [2]


def test_claims_are_not_limited(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TGROUP s g MAXINFLIGHT 1")
    s.call(READ_A)
    s.call("TNACK s g a DELAY 5000 ALL")
    assert s.call(READ_B) == read(2)
    assert s.call("XCLAIM s g c 0 1-1 JUSTID") == [b"1-1"]
    assert facts(s)[b"in-flight"] == 2
    in_process.wait_ms(20)
    reply = s.call("XREADGROUP GROUP g d CLAIM 10 STREAMS s >")
    assert isinstance(reply, list)
    assert len(reply[0][1]) == 2  # type: ignore[index, arg-type]


@pytest.mark.parametrize(
    "free",
    [
        "XACK s g 1-1",
        "TACK s g 1.1",
        "TNACK s g a DELAY 90000 ALL",
        "XACKDEL s g IDS 1 1-1",
        "XDELEX s DELREF IDS 1 1-1",
        "XTRIM s MINID 2 DELREF",
        "XGROUP DELCONSUMER s g a",
        "TGROUP s g MAXINFLIGHT 2",
    ],
)
def test_a_free_place_wakes_readers_in_turn(
    in_process: InProcessServer, s: InProcessClient, free: str
) -> None:
    s.call("TGROUP s g MAXINFLIGHT 1")
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    first, second = in_process.player(), in_process.player()
    first.send("TREAD s 0 1 BLOCK 0 GROUP g 0")
    second.send(BLOCK_B)
    s.call(free)
    if free.startswith("XGROUP DELCONSUMER"):
        assert first.read() == flat(1)
    else:
        assert first.read() == flat(2)
    assert second.unread == b""


def test_many_entries_come_up_to_the_limit(s: InProcessClient) -> None:
    for number in range(6, 3006):
        s.call(f"XADD s {number}-1 n {number}")
    s.call("TGROUP s g MAXINFLIGHT 1500")
    assert s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >") == read(1)
    assert s.call("XREADGROUP GROUP g a COUNT 5000 STREAMS s >") == read(*range(2, 1501))
    assert s.call(READ_A) is Null.ARRAY
    s.call("TNACK s g a SILENT ALL")
    reply = s.call("TREAD s 0 5000 GROUP g 0")
    assert isinstance(reply, list)
    assert len(reply) == 1500


# PAUSE


def test_a_paused_group_answers_nothing(in_process: InProcessServer, s: InProcessClient) -> None:
    assert s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >") == read(1)
    s.call("TGROUP s g PAUSE 500")
    assert facts(s)[b"pause"] == 500
    in_process.wait_ms(150)
    assert facts(s)[b"pause"] == 350
    for line in (READ_A, "XREADGROUP GROUP g b CLAIM 10 STREAMS s >"):
        assert s.call(line) is Null.ARRAY
    assert s.call(TREAD) == []
    assert s.call("XREADGROUP GROUP g a STREAMS s 0") == read(1)
    assert s.call("TEXTEND s g a 1000 IDS 1 1-1") == [1]
    assert s.call("XCLAIM s g c 0 1-1 JUSTID") == [b"1-1"]
    assert s.call("TNACK s g c IDS 1 1-1") == [1]
    assert s.call("XACK s g 1-1") == 1
    in_process.wait_ms(350)
    assert facts(s)[b"pause"] == 0
    assert s.call(READ_A) == read(2, 3, 4, 5)


def test_a_pause_without_end_lasts_until_it_is_ended(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g PAUSE -1")
    assert facts(s)[b"pause"] == -1
    first, second = in_process.player(), in_process.player()
    first.send("XREADGROUP GROUP g a BLOCK 0 COUNT 2 STREAMS s >")
    second.send("TREAD s 0 1 BLOCK 0 GROUP g 0")
    in_process.wait_ms(10**9)
    assert first.unread == b"" == second.unread
    s.call("TGROUP s g PAUSE 0")
    assert first.read() == read(1, 2)
    assert second.read() == flat(3)


def test_blocked_readers_are_served_at_the_end_of_a_pause(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    s.call("TGROUP s g PAUSE 300")
    clients = [in_process.player() for _ in range(3)]
    clients[0].send("TREAD s 0 2 BLOCK 0 GROUP g 0")
    clients[1].send("XREADGROUP GROUP g b BLOCK 200 STREAMS s >")
    clients[2].send(BLOCK_B)
    in_process.wait_ms(200)  # 1-1 is due meanwhile
    assert clients[1].read() is Null.ARRAY  # the time of BLOCK continues
    s.call("XADD s 6-1 n 6")
    in_process.wait_ms(99)
    assert clients[0].unread == b"" == clients[2].unread
    in_process.wait_ms(1)
    assert clients[0].read() == flat(1, 2)
    assert clients[2].read() == read(3, 4, 5, 6)


def test_a_pause_needs_no_timeout(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("XGROUP CREATE s plain 0")
    s.call("TGROUP s plain PAUSE 100")
    assert s.call("XREADGROUP GROUP plain a STREAMS s >") is Null.ARRAY
    reading = in_process.player()
    reading.send("XREADGROUP GROUP plain a BLOCK 0 COUNT 1 STREAMS s >")
    in_process.wait_ms(100)
    assert reading.read() == read(1)
    s.call("TGROUP s plain PAUSE 0")
    assert facts(s, "plain")[b"pause"] == 0


# CONSUMERTTL


def consumers(player: InProcessClient) -> list[object]:
    reply = player.call("XINFO CONSUMERS s g")
    assert isinstance(reply, list)
    return [row[1] for row in reply]  # type: ignore[index, misc]


def test_idle_consumers_without_entries_are_removed(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g TIMEOUT 86400000 CONSUMERTTL 3000")
    s.call("XREADGROUP GROUP g holds COUNT 1 STREAMS s >")
    s.call("XGROUP CREATECONSUMER s g idle")
    blocked = in_process.player()
    s.call("XACK s g 2-1")
    s.call("TREAD s 0 10 GROUP g 0")
    blocked.send("XREADGROUP GROUP g blocked BLOCK 9000 STREAMS s >")
    in_process.wait_ms(2999)
    s.call("XREADGROUP GROUP g polls STREAMS s >")
    assert consumers(s) == [b"blocked", b"holds", b"idle", b"polls"]
    for _ in range(3):
        in_process.wait_ms(500)
    assert consumers(s) == [b"blocked", b"holds", b"polls"]
    for _ in range(6):
        in_process.wait_ms(500)
    assert consumers(s) == [b"blocked", b"holds"]
    s.call("XACK s g 1-1")
    for _ in range(2):
        in_process.wait_ms(500)
    assert consumers(s) == [b"blocked"]
    in_process.wait_ms(501)  # its wait ends: the time begins now
    assert blocked.read() is Null.ARRAY
    assert consumers(s) == [b"blocked"]
    for _ in range(7):
        in_process.wait_ms(500)
    assert consumers(s) == []


def test_many_idle_consumers_are_removed_over_several_turns(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    for number in range(2500):
        s.call(f"XGROUP CREATECONSUMER s g c{number}")
    s.call("TGROUP s g CONSUMERTTL 10")
    in_process.wait_ms(10)
    s.call("XREADGROUP GROUP g new COUNT 1 STREAMS s >")
    for _ in range(40):
        in_process.wait_ms(20)
    assert consumers(s) == [b"new"]


# Rules


def test_the_rules_are_shown_and_stay(s: InProcessClient) -> None:
    assert s.call("TGROUP s g MAXINFLIGHT 5 CONSUMERTTL 7 PAUSE -1") == OK
    assert s.call("TGROUP s g TIMEOUT 50") == OK
    expected = {b"timeout": 50, b"maxinflight": 5, b"consumer-ttl": 7, b"pause": -1}
    assert facts(s) == {**facts(s), **expected}
    assert s.call("COPY s t") == 1
    copied = s.call("TINFO t GROUP g")
    assert copied == s.call("TINFO s GROUP g")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("MAXINFLIGHT -1", Error(NUMBERS.format("MAXINFLIGHT", 0))),
        ("MAXINFLIGHT x", Error(NUMBERS.format("MAXINFLIGHT", 0))),
        ("CONSUMERTTL -1", Error(NUMBERS.format("CONSUMERTTL", 0))),
        ("PAUSE -2", Error(NUMBERS.format("PAUSE", -1))),
        ("PAUSE x", Error(NUMBERS.format("PAUSE", -1))),
        ("TIMEOUT 0 MAXINFLIGHT 1", NEEDS_TIMEOUT),
    ],
)
def test_bad_rules_are_refused(s: InProcessClient, options: str, error: Error) -> None:
    before = facts(s)
    assert s.call(f"TGROUP s g {options}") == error
    assert facts(s) == before
