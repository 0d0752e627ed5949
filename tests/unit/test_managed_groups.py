"""Groups with a TIMEOUT: TGROUP, TNACK, TEXTEND, and the reads and claims of both dialects.

After every test, the effects must lead to the same groups as the commands did, and so must a dump.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgpack
import pytest
from tests.support.fakedisk import FakeDisk
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.managed import check_effects, entry, facts, pending, read
from tests.support.resp import Error, Map, Null, Simple, encode_command
from tests.support.small_data import CREATED_MS, ID, write_base
from tests.support.storage_access import check_group, rounded_span

from millstream.commands.engine.given_options import quoted
from millstream.server.repair.inspecting import inspect_directory
from millstream.storage.files.manifest import Manifest, store_manifest
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.groups.group_snapshot import dump_group, load_group
from millstream.storage.groups.shared_groups import shared_groups
from millstream.storage.streams.stream_snapshot import stream_has_rules

OK = Simple("OK")
DAY_MS = 86_400_000
NOT_MANAGED = Error("ERR the group has no TIMEOUT: set one with TGROUP")
NO_GROUP = Error("NOGROUP No such key 's' or consumer group 'g'")
SYNTAX = Error("ERR syntax error")
NEEDS_TIMEOUT = "ERR BACKOFF, MAXDELIVER, DEADLETTER, MAXINFLIGHT and ORDER need a TIMEOUT"


@pytest.fixture(autouse=True)
def _is_replayed(in_process: InProcessServer) -> Iterator[None]:
    yield
    check_effects(in_process)


@pytest.fixture
def s(in_process: InProcessServer, player: InProcessClient) -> InProcessClient:
    """A client; stream `s` has the entries 1-1 to 4-1, and group `g` a timeout of 100 ms."""
    for number in range(1, 5):
        player.call(f"XADD s {number}-1 n {number}")
    assert player.call("TGROUP s g START 0 TIMEOUT 100") == OK
    return player


# TGROUP and TINFO


def test_tgroup_creates_what_is_missing_only_with_start(player: InProcessClient) -> None:
    assert player.call("TGROUP s g TIMEOUT 100") == NO_GROUP
    assert player.call("EXISTS s") == 0
    assert player.call("TGROUP s g START 0 TIMEOUT 100") == OK
    assert player.call("TGROUP s h TIMEOUT 100") == Error(NO_GROUP.text.replace("'g'", "'h'"))
    player.call("XADD s 1-1 n 1")
    assert player.call("TGROUP s h START $") == OK
    assert player.call("XREADGROUP GROUP g a STREAMS s >") == read(1)
    assert player.call("XREADGROUP GROUP h a STREAMS s >") == Null.ARRAY


def test_tgroup_of_every_worker_changes_nothing(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    frames = len(in_process.persistence.payloads)
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    for _ in range(3):
        assert s.call("TGROUP s g START $ TIMEOUT 100") == OK
    assert len(in_process.persistence.payloads) == frames + 1
    assert s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >") == read(2)


def test_rules_that_are_not_given_stay(s: InProcessClient) -> None:
    assert s.call("TGROUP s g BACKOFF 2 1 10 TTL 5000") == OK
    assert s.call("TGROUP s g TIMEOUT 200") == OK
    expected = {b"timeout": 200, b"backoff": [1, 10], b"ttl": 5000}
    assert facts(s) == {**facts(s), **expected, b"in-flight": 0, b"waiting": 0}
    assert s.call("TGROUP s g BACKOFF 0") == OK
    assert facts(s)[b"backoff"] == []
    assert s.call("TGROUP s g TIMEOUT 0") == OK
    assert s.call("TGROUP s g") == OK
    assert facts(s) == {**facts(s), b"timeout": 0, b"ttl": 5000}


def test_tinfo_counts_entries_in_flight_and_waiting(s: InProcessClient) -> None:
    s.call("XREADGROUP GROUP g a COUNT 3 STREAMS s >")
    s.call("TNACK s g a DELAY 500 IDS 2 1-1 2-1")
    assert facts(s) == {**facts(s), b"in-flight": 1, b"waiting": 2}
    assert s.call("TINFO s GROUP none") is Null.BULK
    assert s.call("TINFO none GROUP g") is Null.BULK
    s.send("HELLO 3")
    s.read()
    assert isinstance(s.call("TINFO s GROUP g"), Map)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("TGROUP s", "ERR wrong number of arguments for 'tgroup' command"),
        ("TGROUP s g TIMEOUT", "ERR syntax error, TIMEOUT needs a value"),
        ("TGROUP s g TIMEOUT x NONE", "ERR Unrecognized TGROUP option 'NONE'"),
        ("TGROUP s g MAXDELIVERIES 3", "ERR Unrecognized TGROUP option 'MAXDELIVERIES'"),
        (f"TGROUP s g {'x' * 41}", f"ERR Unrecognized TGROUP option '{'x' * 40}...'"),
        ("TGROUP s g timeout 5 TTL 1 Timeout 5", "ERR syntax error, TIMEOUT is given twice"),
        ("TGROUP s g TIMEOUT -1", f"ERR TIMEOUT must be from 0 to {DAY_MS}"),
        ("TGROUP s g TIMEOUT x", f"ERR TIMEOUT must be from 0 to {DAY_MS}"),
        (f"TGROUP s g TIMEOUT {DAY_MS + 1}", f"ERR TIMEOUT must be from 0 to {DAY_MS}"),
        ("TGROUP s g BACKOFF 17", "ERR BACKOFF must have from 0 to 16 values"),
        ("TGROUP s g BACKOFF x", "ERR BACKOFF must have from 0 to 16 values"),
        ("TGROUP s g BACKOFF 2 1", "ERR syntax error, BACKOFF 2 needs 2 values"),
        ("TGROUP s g BACKOFF 1 x", "ERR a BACKOFF value must be from 0 to 2592000000"),
        ("TGROUP s g TTL x", f"ERR TTL must be from 0 to {2**63 - 1}"),
        ("TGROUP s g START x", "ERR Invalid stream ID specified as stream command argument"),
        ("TGROUP s g START >", "ERR Invalid stream ID specified as stream command argument"),
        ("TGROUP s g TIMEOUT 0 BACKOFF 1 5", NEEDS_TIMEOUT),
        ("TGROUP s new START 0 BACKOFF 1 5", NEEDS_TIMEOUT),
        (
            "TGROUP str g START 0",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        ("TNACK s g a", "ERR wrong number of arguments for 'tnack' command"),
        ("TNACK s no a ALL", NO_GROUP.text.replace("'g'", "'no'")),
        ("TNACK s g a SILENT", "ERR syntax error, expected IDS keyword"),
        ("TNACK s g a FATALLY ALL", "ERR Unrecognized TNACK option 'FATALLY'"),
        ("TNACK s g a SILENT FATAL ALL", "ERR syntax error, FATAL cannot be used with SILENT"),
        ("TNACK s g a FAIL FAIL ALL", "ERR syntax error, FAIL is given twice"),
        ("TNACK s g a IDS 1 1-1 ALL", "ERR syntax error, ALL cannot be used with IDS"),
        ("TNACK s g a ALL IDS 1 1-1", "ERR syntax error, IDS cannot be used with ALL"),
        ("TNACK s g a IDS 1 1-1 IDS 1 1-1", "ERR syntax error, IDS is given twice"),
        ("TNACK s g a DELAY 1 DELAY 1 ALL", "ERR syntax error, DELAY is given twice"),
        ("TNACK s g a REASON a REASON b ALL", "ERR syntax error, REASON is given twice"),
        ("TNACK s g a IDS 2 1-1", "ERR number of IDs doesn't match numids"),
        ("TNACK s g a IDS 0 1-1", "ERR numids must be a positive integer"),
        ("TNACK s g a DELAY -1 ALL", "ERR DELAY must be from 0 to 2592000000"),
        ("TNACK s plain a ALL", NOT_MANAGED.text),
        ("TEXTEND s plain a 5 IDS 1 1-1", NOT_MANAGED.text),
        ("TEXTEND s g a 0 IDS 1 1-1", f"ERR the time must be from 1 to {DAY_MS}"),
        ("TEXTEND s g a 5 IDS 2 1-1", "ERR number of IDs doesn't match numids"),
        ("TEXTEND s g a 5 IDS 1 1-1 x", SYNTAX.text),
        ("TEXTEND s g a 5 IDS 1 1-1 IDS 1 1-1", SYNTAX.text),
        ("TEXTEND s g a 5 IDX 1 1-1", "ERR syntax error, expected IDS keyword"),
        ("TINFO s GROUP", SYNTAX.text),
        ("TINFO s GROUPS g", SYNTAX.text),
        ("TINFO s GROUP g GROUP g", SYNTAX.text),
    ],
)
def test_refused_requests_change_nothing(s: InProcessClient, line: str, error: str) -> None:
    s.call("XGROUP CREATE s plain 0")
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    s.call("SET str x")
    before = facts(s), pending(s), s.call("XINFO GROUPS s")
    refusal = s.call(line)
    assert isinstance(refusal, Error)
    # The syntax errors of T commands show the syntax.
    assert refusal.text.split(", the syntax is: ")[0] == error
    assert (facts(s), pending(s), s.call("XINFO GROUPS s")) == before
    s.call("DEL str")


def test_start_needs_memory_only_for_what_it_creates(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    full = "OOM command not allowed when used memory > 'maxmemory'."
    in_process.executor.admission.set_memory(full=True, lacking=False)
    assert s.call("TGROUP s g START 0 TIMEOUT 50") == OK
    assert s.call("TGROUP s new START 0") == Error(full)
    assert s.call("TGROUP new g START 0") == Error(full)
    assert s.call("EXISTS new") == 0


# Delivering again


def test_a_timed_out_entry_goes_to_the_next_reader(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    assert s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >") == read(1, 2)
    in_process.wait_ms(99)
    assert s.call("XREADGROUP GROUP g b COUNT 1 STREAMS s >") == read(3)
    in_process.wait_ms(1)
    assert s.call("XREADGROUP GROUP g b COUNT 3 STREAMS s >") == read(1, 2, 4)
    assert pending(s) == [(1, b"b", 0, 2), (2, b"b", 0, 2), (3, b"b", 1, 1), (4, b"b", 0, 1)]
    in_process.wait_ms(99)
    assert s.call("XREADGROUP GROUP g a STREAMS s >") == read(3)


def test_due_entries_come_by_due_time_then_id(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a STREAMS s >")
    s.call("TEXTEND s g a 30 IDS 1 4-1")
    s.call("TEXTEND s g a 20 IDS 2 3-1 2-1")
    in_process.wait_ms(100)
    assert s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >") == read(2)
    assert s.call("XREADGROUP GROUP g a STREAMS s >") == read(3, 4, 1)


def test_an_owner_settles_a_due_entry_until_its_next_delivery(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 3 STREAMS s >")
    in_process.wait_ms(500)
    assert s.call("XACK s g 1-1") == 1
    assert s.call("TEXTEND s g a 100 IDS 1 2-1") == [1]
    assert s.call("XREADGROUP GROUP g b COUNT 1 STREAMS s >") == read(3)
    assert s.call("TEXTEND s g a 100 IDS 2 2-1 3-1") == [1, -1]
    assert s.call("TNACK s g a IDS 1 3-1") == [-1]


def test_both_dialects_read_due_entries_of_each_other(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    assert s.call("TREAD s 0 1 GROUP g 0") == [[b"2.1", b"n", b"2"]]
    in_process.wait_ms(100)
    assert s.call("TREAD s 0 1 GROUP g 0") == [[b"1.1", b"n", b"1"]]
    assert s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >") == read(2)
    assert pending(s) == [(1, b"", 0, 2), (2, b"a", 0, 2)]


def test_tread_with_retry_has_its_own_timeout(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TREAD s 0 1 GROUP g 0 RETRY 10 0")
    in_process.wait_ms(10)
    assert s.call("TREAD s 0 1 GROUP g 0 RETRY 20 15") == [[b"1.1", b"n", b"1"]]
    in_process.wait_ms(5)
    assert pending(s) == []


def test_a_deleted_entry_is_dropped_when_its_turn_comes(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("TREAD s 0 1 GROUP g 0")
    s.call("XDEL s 1-1 3-1")
    s.call('TEXTEND s g "" 200 IDS 1 3-1')
    in_process.wait_ms(100)
    assert s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >") == read(2)
    assert [row[0] for row in pending(s)] == [2, 3]
    in_process.wait_ms(100)
    assert s.call("TREAD s 0 3 GROUP g 0") == [
        [b"2.1", b"n", b"2"],
        Null.BULK,
        [b"4.1", b"n", b"4"],
    ]
    assert [row[0] for row in pending(s)] == [2, 4]


def test_due_entries_that_no_longer_exist_are_no_reply(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a STREAMS s >")
    s.call("XTRIM s MAXLEN 0")
    in_process.wait_ms(100)
    assert s.call("XREADGROUP GROUP g a STREAMS s >") == Null.ARRAY
    assert pending(s) == []


def test_noack_settles_due_entries_too(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    in_process.wait_ms(100)
    assert s.call("XREADGROUP GROUP g b NOACK STREAMS s >") == read(1, 2, 3, 4)
    assert pending(s) == []


def test_claim_comes_first_and_shows_age(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("TEXTEND s g a 1000 IDS 1 2-1")
    in_process.wait_ms(150)
    reply = s.call("XREADGROUP GROUP g b COUNT 3 CLAIM 9223372036854775807 STREAMS s >")
    assert reply == [
        [b"s", [[*entry(1), 150, 1], [*entry(3), 0, 0], [*entry(4), 0, 0]]],
    ]
    in_process.wait_ms(120)
    reply = s.call("XREADGROUP GROUP g b COUNT 2 CLAIM 200 STREAMS s >")
    assert reply == [[b"s", [[*entry(2), 270, 1], [*entry(1), 120, 2]]]]


def test_history_changes_neither_count_nor_deadline(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    in_process.wait_ms(60)
    assert s.call("XREADGROUP GROUP g a STREAMS s 0") == read(1)
    assert pending(s) == [(1, b"a", 60, 1)]
    in_process.wait_ms(40)
    assert s.call("XREADGROUP GROUP g b COUNT 1 STREAMS s >") == read(1)


@pytest.mark.parametrize(
    "block", ["XREADGROUP GROUP g b BLOCK 0 STREAMS s >", "TREAD s 0 1 BLOCK 0 GROUP g 0"]
)
def test_a_due_entry_wakes_a_blocked_reader(
    in_process: InProcessServer, s: InProcessClient, block: str
) -> None:
    s.call("XREADGROUP GROUP g a STREAMS s >")
    s.call("XACK s g 2-1 3-1 4-1")
    waiting = in_process.player()
    waiting.send(block)
    in_process.wait_ms(99)
    assert waiting.unread == b""
    in_process.wait_ms(1)
    assert waiting.read() in (read(1), [[b"1.1", b"n", b"1"]])


def test_due_entries_go_to_blocked_readers_in_turn(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a STREAMS s >")
    waiting = [in_process.player() for _ in range(4)]
    for number, client in enumerate(waiting):
        client.send(
            "TREAD s 0 1 BLOCK 0 GROUP g 0"
            if number % 2
            else f"XREADGROUP GROUP g c{number} COUNT 1 BLOCK 0 STREAMS s >"
        )
    in_process.wait_ms(100)
    for number, client in enumerate(waiting, 1):
        assert client.read() in (read(number), [[b"%d.1" % number, b"n", b"%d" % number]])


def test_new_rules_serve_readers_that_wait(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("XGROUP CREATE s h 0")
    s.call("TREAD s 0 4 GROUP h 0 RETRY 30 0")
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP h a BLOCK 0 COUNT 3 STREAMS s >")
    in_process.wait_ms(40)
    assert waiting.unread == b""
    s.call("TGROUP s h TIMEOUT 100")
    assert waiting.read() == read(1, 2, 3)
    waiting.send("XREADGROUP GROUP h a BLOCK 0 STREAMS s >")
    assert waiting.read() == read(4)


def test_a_changed_timeout_counts_for_later_deliveries(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    s.call("TGROUP s g TIMEOUT 10")
    in_process.wait_ms(50)
    assert s.call("XREADGROUP GROUP g b COUNT 1 STREAMS s >") == read(2)
    in_process.wait_ms(10)
    assert s.call("XREADGROUP GROUP g b COUNT 1 STREAMS s >") == read(2)


def test_a_word_in_an_error_is_printable() -> None:
    assert quoted(b"a\r\n\xff" + "é".encode()) == r"a\r\n\xffé"


# TNACK, XNACK, TEXTEND


def test_fail_waits_for_the_backoff_of_the_delivery(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g BACKOFF 2 10 50")
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    s.call("XGROUP SETID s g 9-9")
    for delay_ms in (10, 50, 50):
        assert s.call("TNACK s g a IDS 1 1-1") == [1]
        assert s.call("TNACK s g a IDS 1 1-1") == [-1]
        in_process.wait_ms(delay_ms - 1)
        assert s.call("XREADGROUP GROUP g a STREAMS s >") == Null.ARRAY
        in_process.wait_ms(1)
        assert s.call("XREADGROUP GROUP g a STREAMS s >") == read(1)
    assert pending(s) == [(1, b"a", 0, 4)]


def test_a_waiting_entry_has_no_owner_and_no_idle_time(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("TNACK s g a SILENT DELAY 40 IDS 1 1-1")
    s.call("TNACK s g a DELAY 40 IDS 1 2-1")
    in_process.wait_ms(20)
    assert pending(s) == [(1, b"", -1, 0), (2, b"", -1, 1)]
    assert s.call("XPENDING s g") == [2, b"1-1", b"2-1", []]
    assert s.call("XPENDING s g IDLE 5000 - + 10") == s.call("XPENDING s g - + 10")
    in_process.wait_ms(20)
    assert pending(s) == [(1, b"", -1, 0), (2, b"", -1, 1)], "due, not delivered yet"


def test_silent_takes_the_delivery_back_and_is_due_at_once(s: InProcessClient) -> None:
    s.call("TGROUP s g BACKOFF 1 1000")
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    for _ in range(3):
        assert s.call("TNACK s g a SILENT IDS 1 1-1") == [1]
        assert s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >") == read(1)
    assert pending(s) == [(1, b"a", 0, 1)]


def test_a_given_back_entry_wakes_a_blocked_reader(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a STREAMS s >")
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g b BLOCK 0 STREAMS s >")
    s.call("TNACK s g a IDS 2 1-1 3-1")
    assert waiting.read() == read(1, 3)
    waiting.send("XREADGROUP GROUP g b BLOCK 0 STREAMS s >")
    s.call("TNACK s g a DELAY 30 IDS 1 2-1")
    in_process.wait_ms(29)
    assert waiting.unread == b""
    in_process.wait_ms(1)
    assert waiting.read() == read(2)


def test_tnack_all_gives_back_what_the_consumer_holds(s: InProcessClient) -> None:
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("XREADGROUP GROUP g b COUNT 1 STREAMS s >")
    s.call("TREAD s 0 1 GROUP g 0")
    assert s.call("TNACK s g a SILENT ALL") == 2
    assert s.call("TNACK s g a SILENT ALL") == 0
    assert s.call("TNACK s g other ALL") == 0
    assert s.call('TNACK s g "" ALL') == 1
    assert [row[1] for row in pending(s)] == [b"", b"", b"b", b""]


@pytest.mark.parametrize("delay_ms", [1, 1000, 1001, 1999, 5000, 12_345, 2_591_999_999])
def test_a_delay_is_rounded_up_by_at_most_two_percent(
    in_process: InProcessServer, s: InProcessClient, delay_ms: int
) -> None:
    rounded = rounded_span(delay_ms)
    assert delay_ms <= rounded <= (delay_ms if delay_ms <= 1000 else delay_ms * 1.02)
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    s.call("XGROUP SETID s g 9-9")
    s.call(f"TNACK s g a DELAY {delay_ms} IDS 1 1-1")
    in_process.wait_ms(delay_ms - 1)
    assert s.call("XREADGROUP GROUP g a STREAMS s >") == Null.ARRAY
    in_process.wait_ms(rounded - delay_ms + 1)
    assert s.call("XREADGROUP GROUP g a STREAMS s >") == read(1)


def test_textend_moves_the_deadline_and_restarts_the_idle_time(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    s.call("XGROUP SETID s g 9-9")
    in_process.wait_ms(90)
    assert s.call("TEXTEND s g a 50 IDS 3 1-1 2-1 1-1") == [1, -1, 1]
    assert pending(s) == [(1, b"a", 0, 1)]
    in_process.wait_ms(49)
    assert s.call("XREADGROUP GROUP g b STREAMS s >") == Null.ARRAY
    in_process.wait_ms(1)
    assert s.call("XREADGROUP GROUP g b STREAMS s >") == read(1)


def test_xnack_is_tnack_for_any_owner(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("TGROUP s g BACKOFF 3 10 20 30")
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("XREADGROUP GROUP g b COUNT 1 STREAMS s >")
    s.call("XGROUP SETID s g 9-9")
    assert s.call("XNACK s g FAIL IDS 2 1-1 3-1") == 2
    assert s.call("XNACK s g FAIL IDS 2 1-1 3-1") == 0, "it passes over entries that wait"
    assert s.call("XNACK s g SILENT IDS 1 2-1 RETRYCOUNT 3") == 1
    assert s.call("XNACK s g FAIL IDS 2 4-1 8-1 FORCE") == 1
    assert pending(s) == [(1, b"", -1, 1), (2, b"", -1, 2), (3, b"", -1, 1), (4, b"", -1, 0)]
    assert s.call("XREADGROUP GROUP g a STREAMS s >")[0][1][0] == entry(2)  # type: ignore[index]
    in_process.wait_ms(10)
    assert s.call("XREADGROUP GROUP g a STREAMS s >") == read(1, 3, 4)


# Claims, consumers


def test_claims_restart_the_deadline(in_process: InProcessServer, s: InProcessClient) -> None:
    s.call("XREADGROUP GROUP g a COUNT 3 STREAMS s >")
    s.call("XGROUP SETID s g 9-9")
    in_process.wait_ms(60)
    assert s.call("XCLAIM s g b 0 1-1 JUSTID") == [b"1-1"]
    assert s.call("XCLAIM s g b 0 2-1 IDLE 50 JUSTID") == [b"2-1"]
    assert s.call("XAUTOCLAIM s g b 60 0 JUSTID") == [b"0-0", [b"3-1"], []]
    in_process.wait_ms(99)
    assert s.call("XREADGROUP GROUP g c STREAMS s >") == Null.ARRAY
    in_process.wait_ms(1)
    assert s.call("XREADGROUP GROUP g c STREAMS s >") == read(1, 2, 3)


def test_only_xclaim_takes_an_entry_that_waits(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("TNACK s g a DELAY 900 IDS 1 1-1")
    in_process.wait_ms(50)
    assert s.call("XAUTOCLAIM s g b 0 0 JUSTID") == [b"0-0", [b"2-1"], []]
    reply = s.call("XREADGROUP GROUP g b COUNT 1 CLAIM 0 STREAMS s >")
    assert reply == [[b"s", [[*entry(2), 0, 1]]]]
    assert s.call("XCLAIM s g b 5000 1-1 JUSTID") == [b"1-1"]
    assert facts(s)[b"waiting"] == 0


def test_delconsumer_gives_its_entries_back(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 3 STREAMS s >")
    s.call("XREADGROUP GROUP g b STREAMS s >")
    s.call("TNACK s g a IDS 1 2-1")
    s.call("XREADGROUP GROUP g a STREAMS s >")
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g b BLOCK 0 STREAMS s >")
    assert s.call("XGROUP DELCONSUMER s g a") == 3
    assert waiting.read() == read(1, 2, 3)
    assert [row[3] for row in pending(s)] == [1, 2, 1, 1]


def test_acknowledging_works_in_every_state(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a STREAMS s >")
    s.call("TNACK s g a DELAY 500 IDS 1 1-1")
    s.call("TNACK s g a IDS 1 2-1")
    in_process.wait_ms(100)
    assert s.call("XACK s g 1-1 2-1 3-1") == 3
    assert s.call("TACK s g 4.1") == 1
    assert facts(s) == {**facts(s), b"in-flight": 0, b"waiting": 0}


def test_an_expiry_ends_an_entry_that_waits(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TREAD s 0 1 GROUP g 0 RETRY 20 60")
    s.call('TNACK s g "" DELAY 500 IDS 1 1-1')
    in_process.wait_ms(59)
    assert [row[0] for row in pending(s)] == [1]
    in_process.wait_ms(1)
    assert pending(s) == []


# Copies


def test_a_copied_or_renamed_stream_keeps_its_rules(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("TGROUP s g BACKOFF 1 30")
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("TNACK s g a IDS 1 1-1")
    s.call("COPY s t")
    s.call("RENAME s u")
    for key in (b"t", b"u"):
        group = in_process.group(b"g", key)
        check_group(group)
        assert (group.timeout_ms, group.backoff_ms, group.pending.waiting_count) == (100, (30,), 1)
    in_process.wait_ms(30)
    assert s.call("XREADGROUP GROUP g b COUNT 1 STREAMS t >") == [[b"t", [entry(1)]]]
    assert s.call("XREADGROUP GROUP g b COUNT 1 STREAMS u >") == [[b"u", [entry(1)]]]


def test_a_dump_for_redis_has_waiting_entries_as_released(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("TNACK s g a DELAY 900 IDS 1 1-1")
    dumped = s.call("DUMP s")
    assert isinstance(dumped, bytes)
    in_process.executor.feed(s, encode_command(["RESTORE", "t", "0", dumped]))
    in_process.settle()
    assert s.read() == OK
    rows = s.call("XPENDING t g - + 10")
    assert rows == [[b"1-1", b"", -1, 1], [b"2-1", b"a", 0, 1]]
    assert in_process.group(b"g", b"t").timeout_ms == 0


@pytest.mark.parametrize("has_rules", [False, True])
def test_only_a_base_with_rules_has_version_5(player: InProcessClient, has_rules: bool) -> None:
    player.call("XADD s 1-1 n 1")
    player.call("XGROUP CREATE s g 0")
    if has_rules:
        player.call("TGROUP s g TIMEOUT 100 BACKOFF 2 5 6")
        player.call("XREADGROUP GROUP g a STREAMS s >")
        player.call("TNACK s g a IDS 1 1-1")
    disk = FakeDisk()
    write_base(disk, "base-1.msnap", player.in_process.keyspace, 0)
    store_manifest(disk, Manifest("base-1.msnap", (), 2, ID))
    header = SnapshotReader(disk.read("base-1.msnap")).read_header()
    assert header.version == (5 if has_rules else 4)
    # One way reads the index, the other loads the data.
    for journals in (False, True):
        [row] = inspect_directory(
            disk, journals=journals, pattern=None, limit=9, now_ms=CREATED_MS
        ).rows
        assert row.rules == ({b"g": "TIMEOUT 100 BACKOFF 2 5 6"} if has_rules else {})


def test_entries_that_wait_need_rules_until_they_are_delivered(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    s.call("TNACK s g a DELAY 20 IDS 2 1-1 2-1")
    s.call("TGROUP s g TIMEOUT 0")
    assert stream_has_rules(in_process.stream())
    assert pending(s) == [(1, b"", -1, 1), (2, b"", -1, 1)]
    in_process.wait_ms(20)
    assert s.call("TREAD s 0 1 GROUP g 0") == [[b"1.1", b"n", b"1"]]
    assert s.call("XCLAIM s g b 0 2-1 JUSTID") == [b"2-1"]
    assert not stream_has_rules(in_process.stream())


@pytest.mark.parametrize(
    "change",
    [
        {"rules": {"timeout_ms": -1, "backoff_ms": []}},
        {"rules": {"timeout_ms": 5, "backoff_ms": ["x"]}},
        {"policies": [None]},
    ],
)
def test_malformed_rules_of_a_dump_are_refused(
    in_process: InProcessServer, s: InProcessClient, change: dict[str, object]
) -> None:
    s.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    s.call("TNACK s g a DELAY 20 IDS 1 1-1")
    with pytest.raises(ValueError, match="of group b'g'"):
        load_group({**dump_group(in_process.group()), **change}, 0)


def test_a_first_timeout_counts_for_what_is_pending(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    for number in range(1, 4):
        player.call(f"XADD s {number}-1 n {number}")
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    in_process.wait_ms(60)
    player.call("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    player.call("XNACK s g FAIL IDS 1 2-1")
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g b COUNT 1 BLOCK 0 STREAMS s >")
    player.call("TGROUP s g TIMEOUT 100")
    assert waiting.read() == read(2)  # released, so due at once
    in_process.wait_ms(39)
    assert player.call("XREADGROUP GROUP g b STREAMS s >") == Null.ARRAY
    in_process.wait_ms(1)
    assert player.call("XREADGROUP GROUP g b STREAMS s >") == read(1)
    player.call("XACK s g 1-1 2-1")
    player.call("TGROUP s g TIMEOUT 300 MAXDELIVER 1 DEADLETTER dead")
    player.call("COPY s t")
    in_process.wait_ms(259)
    assert player.call("XREADGROUP GROUP g b STREAMS s t > >") == Null.ARRAY
    assert player.call("EXISTS dead") == 0
    in_process.wait_ms(1)
    assert player.call("XREADGROUP GROUP g b STREAMS s t > >") == Null.ARRAY
    assert player.call("XLEN dead") == 2  # 3-1 of each, after its only delivery


def test_a_copy_continues_after_what_the_filter_has_passed(in_process: InProcessServer) -> None:
    player = in_process.player()
    player.call("XADD s 1-0 kind other")
    player.call("TGROUP s g START 0 TIMEOUT 1000 WHERE 1 kind EQ wanted")
    for number in (2, 3):  # the second pass is not recorded at once
        player.call("XREADGROUP GROUP g ann STREAMS s >")
        player.call(f"XADD s {number}-0 kind other")
    player.call("XREADGROUP GROUP g ann STREAMS s >")
    player.call("COPY s t")
    live, replayed = (
        dump_group(keyspace.databases[0].get(b"t").group(b"g"))
        for keyspace in (in_process.keyspace, in_process.replayed())
    )
    replayed["policies"] = live["policies"]  # made by the read, which delivered nothing
    assert live == replayed


@pytest.mark.parametrize("consumers", [1, 600])
def test_a_snapshot_has_the_offset_that_is_recorded(
    in_process: InProcessServer, consumers: int
) -> None:
    """Otherwise a server that begins with it is ahead of the others, and misses fewer entries."""
    player = in_process.player()
    player.call("TGROUP s g START 0 TIMEOUT 1000 WHERE 1 kind EQ wanted")
    for number in range(consumers):
        player.call(f"XGROUP CREATECONSUMER s g {number}")
    for number in range(1, 4):  # the later passes are not recorded at once
        player.call(f"XADD s {number}-0 kind other")
        player.call("XREADGROUP GROUP g ann STREAMS s >")
    group = in_process.group()
    again = in_process.replayed().databases[0].stream(b"s")
    assert again is not None
    recorded = again.group(b"g")
    assert [group.offset_ms, group.entries_read] == [3, 3]
    assert [recorded.offset_ms, recorded.entries_read] == [1, 1]
    shared = shared_groups({b"g": group}, True, 0)
    [packed] = msgpack.unpackb(b"".join(shared.packed()), strict_map_key=False)
    for meta in (dump_group(group), packed, next(iter(shared))):
        loaded = load_group(meta, 0)
        assert [loaded.offset_ms, loaded.entries_read] == [1, 1]
    player.call("XADD s 4-0 kind wanted")
    player.call("XREADGROUP GROUP g ann STREAMS s >")
    assert dump_group(group)["offset"] == [4, 0]
