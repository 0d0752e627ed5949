"""Consumer groups as Redis has them: XGROUP, XREADGROUP, XACK, XPENDING, XINFO.

The executor runs here without sockets, with a clock set by hand and a journal that only collects
what it is given, so that every test can ask whether the effects lead to the same state.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.journals import as_resp
from tests.support.resp import Error, Map, Null, Reply, Simple
from tests.support.storage_access import check_group, check_stream

from millstream.commands.table.keyspecs import key_positions
from millstream.commands.table.registry import COMMANDS
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream_snapshot import dump_stream

OK = Simple("OK")
SYNTAX = Error("ERR syntax error")
WRONG_TYPE = Error("WRONGTYPE Operation against a key holding the wrong kind of value")
INVALID_ID = Error("ERR Invalid stream ID specified as stream command argument")
NO_GROUP = Error("NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option")


def filled(player: InProcessClient, count: int = 4, key: str = "s") -> None:
    """Entries 1-1, 2-1, ... with their number as the value of n."""
    for number in range(1, count + 1):
        player.call(f"XADD {key} {number}-1 n {number}")


def entry(number: int) -> list[Reply]:
    return [b"%d-1" % number, [b"n", b"%d" % number]]


def read(*numbers: int, key: bytes = b"s") -> list[Reply]:
    """RESP2's reply of XREADGROUP with these entries of one stream."""
    return [[key, [entry(number) for number in numbers]]]


def ids_pending(player: InProcessClient, group: str = "g") -> list[tuple[bytes, bytes, int]]:
    """(id, consumer, deliveries) of all pending entries."""
    reply = player.call(f"XPENDING s {group} - + 1000")
    assert isinstance(reply, list)
    return [(row[0], row[1], row[3]) for row in reply]  # type: ignore[index, misc]


def fields(reply: Reply) -> dict[bytes, Reply]:
    assert isinstance(reply, list)
    return dict(zip(reply[::2], reply[1::2], strict=True))  # type: ignore[arg-type]


def groups_of(player: InProcessClient, key: str = "s") -> dict[bytes, dict[bytes, Reply]]:
    reply = player.call(f"XINFO GROUPS {key}")
    assert isinstance(reply, list)
    rows = [fields(row) for row in reply]
    return {row[b"name"]: row for row in rows}  # type: ignore[misc]


# XGROUP


def test_a_group_begins_at_an_id_at_the_end_or_in_a_new_stream(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player)
    assert player.call("XGROUP CREATE s from 2") == OK
    assert player.call("XGROUP CREATE s end $ ENTRIESREAD 4") == OK
    assert player.call("XGROUP CREATE new g $ MKSTREAM") == OK
    assert (in_process.group(b"from").offset_ms, in_process.group(b"from").offset_seq) == (2, 0)
    assert in_process.group(b"from").entries_read == -1
    assert (in_process.group(b"end").offset_ms, in_process.group(b"end").offset_seq) == (4, 1)
    assert in_process.group(b"end").entries_read == 4
    assert in_process.group(b"g", b"new").ttl_ms == 0
    assert player.call("XLEN new") == 0


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("XGROUP CREATE s g 0", "BUSYGROUP Consumer Group name already exists"),
        ("XGROUP CREATE s g", "ERR wrong number of arguments for 'xgroup|create' command"),
        ("XGROUP CREATE s h x", INVALID_ID.text),
        ("XGROUP CREATE s h -", INVALID_ID.text),
        ("XGROUP CREATE s h 1.1", INVALID_ID.text),
        ("XGROUP CREATE str h 0 MKSTREAM", WRONG_TYPE.text),
        ("XGROUP CREATE s h 0 ENTRIESREAD -2", "ERR value for ENTRIESREAD must be positive or -1"),
        ("XGROUP CREATE s h 0 ENTRIESREAD x", "ERR value is not an integer or out of range"),
        (
            "XGROUP Create s h 0 FOO",
            "ERR unknown subcommand or wrong number of arguments for 'Create'. Try XGROUP HELP.",
        ),
        (
            "XGROUP SETID s g 0 MKSTREAM",
            "ERR unknown subcommand or wrong number of arguments for 'SETID'. Try XGROUP HELP.",
        ),
        ("XGROUP SETID s no 0", "NOGROUP No such consumer group 'no' for key name 's'"),
        ("XGROUP CREATECONSUMER s no c", "NOGROUP No such consumer group 'no' for key name 's'"),
        ("XGROUP DELCONSUMER s no c", "NOGROUP No such consumer group 'no' for key name 's'"),
        ("XGROUP NOSUCH", "ERR unknown subcommand 'NOSUCH'. Try XGROUP HELP."),
    ],
)
def test_xgroup_refuses_in_the_words_of_redis(
    player: InProcessClient, line: str, error: str
) -> None:
    filled(player, 1)
    player.call("SET str x")
    player.call("XGROUP CREATE s g 0")
    assert player.call(line) == Error(error)
    assert list(groups_of(player)) == [b"g"]


@pytest.mark.parametrize(
    "line",
    [
        "CREATE no g $",
        "CREATE no g bad-id",
        "SETID no g 0",
        "DESTROY no g",
        "CREATECONSUMER no g c",
        "DELCONSUMER no g c",
    ],
)
def test_xgroup_needs_the_key(player: InProcessClient, line: str) -> None:
    reply = player.call(f"XGROUP {line}")
    assert isinstance(reply, Error)
    assert reply.text.startswith("ERR The XGROUP subcommand requires the key to exist. Note that")
    assert player.call("EXISTS no") == 0


def test_destroy_answers_whether_there_was_a_group(player: InProcessClient) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    assert player.call("XGROUP DESTROY s g") == 1
    assert player.call("XGROUP DESTROY s g") == 0
    assert player.call("XINFO GROUPS s") == []


def test_consumers_are_deleted_with_their_pending_entries(player: InProcessClient) -> None:
    filled(player)
    player.call("XGROUP CREATE s g 0")
    assert player.call("XGROUP CREATECONSUMER s g alice") == 1
    assert player.call("XGROUP CREATECONSUMER s g alice") == 0
    player.call("XREADGROUP GROUP g alice COUNT 3 STREAMS s >")
    player.call("XREADGROUP GROUP g bob STREAMS s >")
    assert player.call("XGROUP DELCONSUMER s g alice") == 3
    assert player.call("XGROUP DELCONSUMER s g alice") == 0
    assert ids_pending(player) == [(b"4-1", b"bob", 1)]


def test_a_consumer_needs_a_name(player: InProcessClient) -> None:
    filled(player)
    player.call("XGROUP CREATE s g 0")
    for line in (
        'XGROUP CREATECONSUMER s g ""',
        'XREADGROUP GROUP g "" STREAMS s >',
    ):
        reply = player.call(line)
        assert isinstance(reply, Error)
        assert reply.text.startswith("ERR The consumer name must not be empty")
    assert player.call("XINFO CONSUMERS s g") == []


def test_after_setid_entries_are_read_again_by_a_new_owner(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g alice STREAMS s >")
    player.call("XREADGROUP GROUP g alice STREAMS s 0")
    assert ids_pending(player) == [(b"1-1", b"alice", 2), (b"2-1", b"alice", 2)]
    assert player.call("XGROUP SETID s g 1-1 ENTRIESREAD 1") == OK
    assert groups_of(player)[b"g"][b"entries-read"] == 1
    assert player.call("XREADGROUP GROUP g bob STREAMS s >") == read(2)
    assert ids_pending(player) == [(b"1-1", b"alice", 2), (b"2-1", b"bob", 1)]
    assert player.call("XGROUP SETID s g -") == OK
    assert player.call("XREADGROUP GROUP g bob STREAMS s >") == read(1, 2)
    assert player.call("XGROUP SETID s g $") == OK
    assert player.call("XREADGROUP GROUP g bob STREAMS s >") == Null.ARRAY
    check_group(in_process.group())


# XREADGROUP


def test_new_entries_are_delivered_once(player: InProcessClient) -> None:
    filled(player)
    player.call("XGROUP CREATE s g 0")
    assert player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s >") == read(1)
    assert player.call("XREADGROUP GROUP g bob COUNT 0 STREAMS s >") == read(2, 3, 4)
    assert player.call("XREADGROUP GROUP g alice STREAMS s >") == Null.ARRAY
    assert ids_pending(player) == [
        (b"1-1", b"alice", 1),
        (b"2-1", b"bob", 1),
        (b"3-1", b"bob", 1),
        (b"4-1", b"bob", 1),
    ]
    assert player.call("XACK s g 2-1 9-1 2-1") == 1
    assert player.call("XACK s g 2.1") == INVALID_ID
    assert [row[0] for row in ids_pending(player)] == [b"1-1", b"3-1", b"4-1"]


def test_streams_without_new_entries_are_left_out(player: InProcessClient) -> None:
    filled(player, 1)
    filled(player, 2, "t")
    for key in ("s", "t"):
        player.call(f"XGROUP CREATE {key} g 0")
    player.call("XREADGROUP GROUP g alice STREAMS s >")
    line = "XREADGROUP GROUP g alice STREAMS s t > >"
    assert player.call(line) == read(1, 2, key=b"t")
    assert player.call(line) == Null.ARRAY
    mixed = player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s t > 0")
    assert mixed == read(1, key=b"t")


def test_resp3_answers_a_map(in_process: InProcessServer) -> None:
    player = in_process.player(resp=3)
    filled(player, 2)
    filled(player, 1, "t")
    for key in ("s", "t"):
        player.call(f"XGROUP CREATE {key} g 0")
    assert player.call("XREADGROUP GROUP g alice STREAMS s t > >") == Map(
        [(b"s", [entry(1), entry(2)]), (b"t", [entry(1)])]
    )
    assert player.call("XREADGROUP GROUP g alice STREAMS s >") == Null.RESP3
    player.call("XDEL s 1-1")
    assert player.call("XREADGROUP GROUP g alice STREAMS s 0") == Map(
        [(b"s", [[b"1-1", Null.RESP3], entry(2)])]
    )


@pytest.mark.parametrize("resp", [2, 3])
def test_an_empty_history_has_the_key_and_makes_the_consumer(
    in_process: InProcessServer, resp: int
) -> None:
    player = in_process.player(resp=resp)
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    empty = Map([(b"s", [])]) if resp == 3 else [[b"s", []]]
    assert player.call("XREADGROUP GROUP g alice STREAMS s 0") == empty
    assert player.call("XREADGROUP GROUP g alice BLOCK 0 STREAMS s 1-1") == empty
    assert in_process.group().pending.consumer(b"alice") is not None
    player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s >")
    assert player.call("XREADGROUP GROUP g alice STREAMS s 1-1") == empty
    assert player.call("XREADGROUP GROUP g alice STREAMS s 0") != empty
    assert player.call("XREADGROUP GROUP g bob STREAMS s 0") == empty
    # The largest ID means new entries.
    new = player.call(f"XREADGROUP GROUP g bob STREAMS s {2**64 - 1}-{2**64 - 1}")
    assert new == (Map([(b"s", [entry(2)])]) if resp == 3 else read(2))
    again = in_process.replayed().databases[0].stream(b"s")
    assert again is not None
    group = again.group(b"g")
    assert group is not None
    assert group.pending.consumer(b"bob") is not None


def test_noack_leaves_nothing_pending(player: InProcessClient) -> None:
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    assert player.call("XREADGROUP GROUP g alice NOACK COUNT 1 STREAMS s >") == read(1)
    assert ids_pending(player) == []
    consumers = player.call("XINFO CONSUMERS s g")
    assert isinstance(consumers, list)
    assert fields(consumers[0])[b"inactive"] == -1
    assert player.call("XREADGROUP GROUP g alice STREAMS s >") == read(2)


def test_history_is_the_consumers_own_and_counts_as_a_delivery(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player)
    player.call("TREAD s 0 1 GROUP g 0 RETRY 1000000 0")
    player.call("XREADGROUP GROUP g alice COUNT 2 STREAMS s >")
    player.call("XREADGROUP GROUP g bob STREAMS s >")
    in_process.wall_ms += 50
    assert player.call("XREADGROUP GROUP g alice STREAMS s 0") == read(2, 3)
    assert player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s 0") == read(2)
    assert player.call("XREADGROUP GROUP g alice STREAMS s 2-1") == read(3)
    assert player.call("XREADGROUP GROUP g bob STREAMS s 4-1") == read()
    assert player.call("XREADGROUP GROUP g carol BLOCK 0 STREAMS s 0") == read()
    rows = player.call("XPENDING s g - + 10")
    assert rows == [
        [b"1-1", b"", 50, 1],
        [b"2-1", b"alice", 0, 3],
        [b"3-1", b"alice", 0, 3],
        [b"4-1", b"bob", 50, 1],
    ]
    check_group(in_process.group())


def test_history_shows_a_deleted_entry_with_a_null(player: InProcessClient) -> None:
    filled(player, 2)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g alice STREAMS s >")
    player.call("XDEL s 1-1")
    assert player.call("XREADGROUP GROUP g alice STREAMS s 0") == [
        [b"s", [[b"1-1", Null.ARRAY], entry(2)]]
    ]
    assert ids_pending(player) == [(b"1-1", b"alice", 1), (b"2-1", b"alice", 2)]


def test_history_of_many_entries_among_those_of_others(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 600)
    player.call("XGROUP CREATE s g 0")
    for number in range(600):
        player.call(f"XREADGROUP GROUP g c{number % 3} COUNT 1 STREAMS s >")
    reply = player.call("XREADGROUP GROUP g c1 STREAMS s 300-1")
    assert reply == read(*range(302, 601, 3))
    assert in_process.group().pending.consumers[b"c1"].pending == 200
    check_group(in_process.group())


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("GROUP g a STREAMS str >", WRONG_TYPE.text),
        ("GROUP g a STREAMS s str x >", INVALID_ID.text),
        ("GROUP no a STREAMS s x", "NOGROUP No such key 's' or consumer group 'no' in XREADGROUP "
                                   "with GROUP option"),
        ("GROUP g a STREAMS s no > >", "NOGROUP No such key 'no' or consumer group 'g' in "
                                       "XREADGROUP with GROUP option"),
        ("GROUP g a STREAMS s s >", "ERR Unbalanced 'xreadgroup' list of streams: for each stream "
                                    "key an ID or '>' must be specified."),
        ("GROUP g a FOO STREAMS s >", SYNTAX.text),
        ("GROUP g a COUNT 1 BLOCK 1", SYNTAX.text),
        ("GROUP g a NOACK NOACK STREAMS", SYNTAX.text),
        ("COUNT 1 NOACK STREAMS s >", "ERR Missing GROUP option for XREADGROUP"),
        ("GROUP g a COUNT x STREAMS s >", "ERR value is not an integer or out of range"),
        ("GROUP g a BLOCK x STREAMS s >", "ERR timeout is not an integer or out of range"),
        ("GROUP g a BLOCK -1 STREAMS s >", "ERR timeout is negative"),
        ("GROUP g a BLOCK 9223372036854775807 STREAMS s >", "ERR timeout is out of range"),
        ("GROUP g a STREAMS s", "ERR wrong number of arguments for 'xreadgroup' command"),
    ],
)  # fmt: skip
def test_xreadgroup_refuses_and_delivers_nothing(
    player: InProcessClient, line: str, error: str
) -> None:
    filled(player, 1)
    player.call("SET str x")
    player.call("XGROUP CREATE s g 0")
    assert player.call("XREADGROUP " + line) == Error(error)
    assert player.call("XINFO CONSUMERS s g") == []
    assert ids_pending(player) == []


def test_keys_of_xreadgroup_are_found() -> None:
    line = "XREADGROUP group g streams COUNT 1 BLOCK 0 noack STREAMS a b 0 >"
    specs = COMMANDS[b"xreadgroup"].key_specs
    assert key_positions(specs, line.encode().split()) == [10, 11]
    for wrong in ("XREADGROUP GROUP g c STREAMS a", "XREADGROUP GROUP g c"):
        with pytest.raises(ValueError, match=r"not in list|keys"):
            key_positions(specs, wrong.encode().split())


# XREADGROUP BLOCK


def test_a_blocked_consumer_gets_the_next_entry(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XGROUP CREATE s g $ MKSTREAM")
    for resp, wanted in ((2, read(1)), (3, Map([(b"s", [entry(2)])]))):
        waiting = in_process.player(resp)
        waiting.send("XREADGROUP GROUP g alice BLOCK 0 STREAMS s >")
        assert in_process.executor.blocked_count == 1
        number = 1 if resp == 2 else 2
        player.call(f"XADD s {number}-1 n {number}")
        assert waiting.read() == wanted
    assert in_process.executor.blocked_count == 0
    assert in_process.group().pending.blocked_clients == 0
    assert ids_pending(player) == [(b"1-1", b"alice", 1), (b"2-1", b"alice", 1)]


def test_a_consumer_of_several_streams_gets_the_first_entry(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    for key in ("s", "t"):
        player.call(f"XGROUP CREATE {key} g $ MKSTREAM")
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g alice BLOCK 0 STREAMS s t > >")
    assert (
        in_process.group().pending.blocked_clients,
        in_process.group(key=b"t").pending.blocked_clients,
    ) == (
        1,
        1,
    )
    player.call("XADD t 1-1 n 1")
    assert waiting.read() == read(1, key=b"t")
    assert (
        in_process.group().pending.blocked_clients,
        in_process.group(key=b"t").pending.blocked_clients,
    ) == (
        0,
        0,
    )
    player.call("XADD s 1-1 n 1")
    assert waiting.unread == b""
    assert waiting.call("XREADGROUP GROUP g alice STREAMS s t > >") == read(1)


def test_both_dialects_wait_in_one_queue(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XGROUP CREATE s g $ MKSTREAM")
    waiting = [in_process.player() for _ in range(4)]
    for number, client in enumerate(waiting):
        if number % 2:
            client.send('TREAD s "" 1 BLOCK 0 GROUP g 0')
        else:
            client.send(f"XREADGROUP GROUP g c{number} COUNT 1 BLOCK 0 STREAMS s >")
    for number, client in enumerate(waiting, 1):
        player.call(f"XADD s {number}-1 n {number}")
        came = client.read()
        text = b"%d" % number
        assert came == (read(number) if number % 2 else [[text + b".1", b"n", text]])
        assert [other.unread for other in waiting] == [b""] * 4


def test_a_due_retry_passes_a_waiting_consumer_by(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 1)
    player.call("TREAD s 0 1 GROUP g 0 RETRY 100 0")
    consumer, reader = in_process.player(), in_process.player()
    consumer.send("XREADGROUP GROUP g alice BLOCK 0 STREAMS s >")
    assert (
        in_process.group().pending.blocked_clients,
        in_process.group().pending.retry_waiters,
    ) == (1, 0)
    reader.send('TREAD s "" 1 BLOCK 0 GROUP g 0')
    in_process.wait_ms(100)
    assert reader.read() == [[b"1.1", b"n", b"1"]]
    assert consumer.unread == b""
    player.call("XADD s 2-1 n 2")
    assert consumer.read() == read(2)


def test_a_wait_times_out_with_a_null(in_process: InProcessServer, player: InProcessClient) -> None:
    player.call("XGROUP CREATE s g $ MKSTREAM")
    for resp, null in ((2, Null.ARRAY), (3, Null.RESP3)):
        waiting = in_process.player(resp)
        waiting.send("XREADGROUP GROUP g alice BLOCK 100 STREAMS s >")
        in_process.wait_ms(99)
        assert waiting.unread == b""
        in_process.wait_ms(1)
        assert waiting.read() == null
    assert in_process.group().pending.blocked_clients == 0


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("XGROUP DESTROY s g", NO_GROUP),
        ("DEL s", NO_GROUP),
        ("FLUSHALL", NO_GROUP),
        ("SET s x", WRONG_TYPE),
    ],
)
def test_the_end_of_its_group_ends_a_wait(
    in_process: InProcessServer, player: InProcessClient, ending: str, error: Error
) -> None:
    player.call("XGROUP CREATE s g $ MKSTREAM")
    player.call("XGROUP CREATE t g $ MKSTREAM")
    waiting = [in_process.player(), in_process.player()]
    waiting[0].send("XREADGROUP GROUP g alice BLOCK 0 STREAMS s >")
    waiting[1].send("XREADGROUP GROUP g bob BLOCK 0 STREAMS s t > >")
    player.call(ending)
    assert [client.read() for client in waiting] == [error, error]
    assert in_process.executor.blocked_count == 0


def test_an_earlier_tread_does_not_save_a_wait_in_its_new_group(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XGROUP CREATE s g $ MKSTREAM")
    reader, consumer = in_process.player(), in_process.player()
    reader.send('TREAD s "" 1 BLOCK 0 GROUP g 0')
    consumer.send("XREADGROUP GROUP g alice BLOCK 0 STREAMS s >")
    assert player.call("XGROUP DESTROY s g") == 1
    assert consumer.read() == NO_GROUP
    assert in_process.group().pending.blocked_clients == 1
    player.call("XADD s 1-1 n 1")
    assert reader.read() == [[b"1.1", b"n", b"1"]]
    assert in_process.group().pending.blocked_clients == 0


def test_a_consumer_deleted_during_its_wait_is_created_again(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XGROUP CREATE s g $ MKSTREAM")
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g alice BLOCK 0 STREAMS s >")
    player.call("XGROUP DELCONSUMER s g alice")
    player.call("XADD s 1-1 n 1")
    assert waiting.read() == read(1)
    assert ids_pending(player) == [(b"1-1", b"alice", 1)]


# The groups' time to live


def test_a_waiting_consumer_keeps_its_group_alive(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call('TREAD s "" 1 GROUP g 1000')
    waiting = in_process.player()
    waiting.send("XREADGROUP GROUP g alice BLOCK 5000 STREAMS s >")
    in_process.wait_ms(4999)
    assert list(groups_of(player)) == [b"g"]
    in_process.wait_ms(1)
    assert waiting.read() == Null.ARRAY
    in_process.wait_ms(999)
    assert list(groups_of(player)) == [b"g"]
    in_process.wait_ms(1)
    assert groups_of(player) == {}


@pytest.mark.parametrize(
    ("line", "refreshes"),
    [
        ("XREADGROUP GROUP g alice STREAMS s >", True),
        ("XREADGROUP GROUP g alice STREAMS s 0", True),
        ("XACK s g 1-1", True),
        ("XPENDING s g", True),
        ("XPENDING s g - + 1", True),
        ("XGROUP SETID s g 0", True),
        ("XGROUP SETID s g x", False),
        ("XGROUP SETID s g 0 ENTRIESREAD 1 ENTRIESREAD 1", False),
        ("XGROUP CREATECONSUMER s g alice", True),
        ('XGROUP CREATECONSUMER s g ""', False),
        ("XGROUP DELCONSUMER s g alice", True),
        ("XINFO GROUPS s", False),
        ("XINFO CONSUMERS s g", False),
        ("XINFO STREAM s", False),
    ],
)
def test_commands_that_refresh_the_time_to_live(
    in_process: InProcessServer, player: InProcessClient, line: str, refreshes: bool
) -> None:
    player.call('TREAD s "" 1 GROUP g 1000')
    in_process.wall_ms += 600
    player.call(line)
    in_process.wall_ms += 600  # no timer has rung: looking is enough to see that a group is over
    assert list(groups_of(player)) == ([b"g"] if refreshes else [])


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("XREADGROUP GROUP g alice STREAMS s >", NO_GROUP),
        ("XACK s g 1-1", 0),
        ("XPENDING s g", Error("NOGROUP No such key 's' or consumer group 'g'")),
        ("XGROUP DESTROY s g", 0),
        ("XGROUP CREATE s g 0", OK),
        (
            "XGROUP CREATECONSUMER s g c",
            Error("NOGROUP No such consumer group 'g' for key name 's'"),
        ),
        ("XINFO CONSUMERS s g", Error("NOGROUP No such consumer group 'g' for key name 's'")),
    ],
)
def test_a_group_expires_on_time_without_a_timer(
    in_process: InProcessServer, player: InProcessClient, line: str, reply: Reply
) -> None:
    player.call('TREAD s "" 1 GROUP g 1000')
    in_process.wall_ms += 1000
    assert player.call(line) == reply


# Look-ups


@pytest.mark.parametrize(
    ("line", "looks"),
    [
        ("XLEN {}", 1),
        ("XRANGE {} - +", 1),
        ("XREVRANGE {} + -", 1),
        ("TRANGE {} - +", 1),
        ("TREAD {} 0 10", 1),
        # As in Redis: once for the group or `$`, once for the entries.
        ("XREAD STREAMS {} 0", 2),
        ("XREAD STREAMS {} $", 2),
        ("XREAD STREAMS {0} {0} 0 0", 4),
        ("XREADGROUP GROUP g c STREAMS {} >", 2),
        ("XREADGROUP GROUP g c STREAMS {} 0", 2),
        ("XREADGROUP GROUP nog c STREAMS {} 0", 1),
        ("XREADGROUP GROUP g c STREAMS {} $", 1),
        ("XPENDING {} g", 1),
        ("XPENDING {} g - + 10", 1),
        ("XPENDING {} nog", 1),
        ("XACK {} g 9-9", 1),
        ("XACK {} nog x", 1),
        ("TACK {} g 9.9", 1),
        ("XCLAIM {} g c 0 1-1", 1),
        ("XCLAIM {} nog c 0 1-1", 1),
        ("XAUTOCLAIM {} g c 0 0", 1),
        ("XINFO STREAM {}", 1),
        ("XINFO STREAM {} FULL", 1),
        ("XINFO GROUPS {}", 1),
        ("XINFO CONSUMERS {} g", 1),
        ("XINFO CONSUMERS {} nog", 1),
        ("XADD {} NOMKSTREAM 9-9 a b", 0),
        ("XDEL {} 9-9", 0),
        ("XTRIM {} MAXLEN 100", 0),
        ("XSETID {} 9-9", 0),
        ("XGROUP CREATE {} g 0", 0),
        ("XGROUP SETID {} g 0", 0),
        ("XGROUP DESTROY {} g", 0),
        ("XGROUP CREATECONSUMER {} g c", 0),
    ],
)
def test_look_ups_and_misses_are_counted_as_in_redis(
    in_process: InProcessServer, player: InProcessClient, line: str, looks: int
) -> None:
    audience = Audience()
    in_process.pubsub = audience  # type: ignore[attr-defined]
    filled(player)
    player.call("SET str v")
    player.call("XGROUP CREATE s g 0")
    in_process.executor.context.events = b"m"
    keyspace = in_process.keyspace

    def counted(key: str) -> tuple[int, int]:
        before = keyspace.hits, keyspace.misses
        player.call(line.format(key))
        return keyspace.hits - before[0], keyspace.misses - before[1]

    assert counted("s") == (looks, 0)
    # A key of another type is found, and then the command ends.
    assert counted("str") == (min(looks, 1), 0)
    assert audience.heard == []
    if "STREAMS" in line and "GROUP" in line:
        looks = min(looks, 1)  # without a group it ends here
    assert counted("none") == (0, looks)
    assert audience.heard == [b"keymiss none"] * looks


class Audience:
    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def keyspace_event(self, kind: bytes, event: bytes, key: bytes, db_index: int) -> None:
        self.heard.append(event + b" " + key)


def test_replaying_effects_counts_no_look_ups(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player)
    assert in_process.replayed().hits == 0


# XPENDING


def test_the_summary_counts_unowned_entries_and_sorts_owners(
    player: InProcessClient,
) -> None:
    filled(player, 5)
    player.call("XGROUP CREATE s g 0")
    assert player.call("XPENDING s g") == [0, Null.BULK, Null.BULK, Null.ARRAY]
    player.call("TREAD s 0 1 GROUP g 0 RETRY 0 0")
    assert player.call("XPENDING s g") == [1, b"1-1", b"1-1", []]
    player.call("XREADGROUP GROUP g zoe COUNT 1 STREAMS s >")
    player.call("XREADGROUP GROUP g bob COUNT 2 STREAMS s >")
    player.call("XREADGROUP GROUP g alf COUNT 1 STREAMS s >")
    player.call("XACK s g 5-1")
    assert player.call("XPENDING s g") == [
        4,
        b"1-1",
        b"4-1",
        [[b"bob", b"2"], [b"zoe", b"1"]],
    ]


def test_pending_entries_by_range_idle_time_and_consumer(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player)
    player.call("TREAD s 0 1 GROUP g 0 RETRY 1000000 0")
    player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s >")
    in_process.wall_ms += 100
    player.call("XREADGROUP GROUP g bob COUNT 1 STREAMS s >")
    player.call("XREADGROUP GROUP g alice STREAMS s >")
    in_process.wall_ms += 7
    one, two, three, four = rows = [
        [b"1-1", b"", 107, 1],
        [b"2-1", b"alice", 107, 1],
        [b"3-1", b"bob", 7, 1],
        [b"4-1", b"alice", 7, 1],
    ]
    for arguments, wanted in {
        "- + 10": rows,
        "- + 2": [one, two],
        "- + 0": [],
        "- + -3": [],
        "(2-1 + 10": [three, four],
        "2 (4-1 10": [two, three],
        "4 2 10": [],
        "- + 10 alice": [two, four],
        "- + 1 bob": [three],
        "- + 10 absent": [],
        '- + 10 ""': [],
        "IDLE 107 - + 10": [one, two],
        "IDLE 108 - + 10": [],
        "IDLE -5 - + 10": rows,
        "idle 100 - + 1 alice": [two],
    }.items():
        assert player.call(f"XPENDING s g {arguments}") == wanted, arguments


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("s no", "NOGROUP No such key 's' or consumer group 'no'"),
        ("no g - + 1", "NOGROUP No such key 'no' or consumer group 'g'"),
        ("str g", WRONG_TYPE.text),
        ("s g - +", SYNTAX.text),
        ("s g IDLE 1 - +", SYNTAX.text),
        ("s g IDLE x - + 1", "ERR value is not an integer or out of range"),
        ("s g x + y", "ERR value is not an integer or out of range"),
        ("s g x + 1", INVALID_ID.text),
        ("s g - (0-0 1", "ERR invalid end ID for the interval"),
        ("s g - + 1 a b c d", SYNTAX.text),
    ],
)
def test_xpending_refuses_in_the_words_of_redis(
    player: InProcessClient, arguments: str, error: str
) -> None:
    filled(player, 1)
    player.call("SET str x")
    player.call("XGROUP CREATE s g 0")
    assert player.call(f"XPENDING {arguments}") == Error(error)


# XINFO


def test_xinfo_stream(in_process: InProcessServer, player: InProcessClient) -> None:
    filled(player, 3)
    player.call("XGROUP CREATE s g 0")
    player.call("XDEL s 2-1")
    assert fields(player.call("XINFO STREAM s")) == {
        b"length": 2,
        b"radix-tree-keys": 1,
        b"radix-tree-nodes": 2,
        b"last-generated-id": b"3-1",
        b"max-deleted-entry-id": b"2-1",
        b"entries-added": 3,
        b"recorded-first-entry-id": b"1-1",
        b"idmp-duration": 100,
        b"idmp-maxsize": 100,
        b"pids-tracked": 0,
        b"iids-tracked": 0,
        b"iids-added": 0,
        b"iids-duplicates": 0,
        b"groups": 1,
        b"first-entry": entry(1),
        b"last-entry": entry(3),
    }
    player.call("XDEL s 1-1 3-1")
    emptied = fields(player.call("XINFO STREAM s"))
    assert (emptied[b"length"], emptied[b"first-entry"], emptied[b"last-entry"]) == (
        0,
        Null.BULK,
        Null.BULK,
    )
    assert emptied[b"recorded-first-entry-id"] == b"0-0"
    assert isinstance(in_process.player(resp=3).call("XINFO STREAM s"), Map)


def test_consumers_with_few_pending_entries_are_small(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 3000)
    player.call("XGROUP CREATE s g 0")
    for number in range(20):
        player.call(f"XGROUP CREATECONSUMER s g idle{number}")
    player.call("XREADGROUP GROUP g bob COUNT 2 STREAMS s >")
    player.call("XREADGROUP GROUP g alice STREAMS s >")
    group = in_process.group()

    def steps(line: str) -> tuple[int, Reply]:
        before = group.pending.work_counter
        reply = player.call(line)
        return group.pending.work_counter - before, reply

    assert steps("XPENDING s g - + 10 idle1") == (0, [])
    looked_at, reply = steps("XPENDING s g - + 10 bob")
    assert (looked_at, len(reply)) == (2, 2)  # type: ignore[arg-type]
    looked_at, reply = steps("XINFO STREAM s FULL")
    assert looked_at < 50
    looked_at, reply = steps("XINFO STREAM s FULL COUNT 0")
    assert looked_at < 7000
    consumers = fields(fields(reply)[b"groups"][0])[b"consumers"]  # type: ignore[index]
    shown = {row[1]: len(row[9]) for row in consumers}  # type: ignore[union-attr, index, misc, arg-type]
    assert (shown[b"alice"], shown[b"bob"], shown[b"idle7"]) == (2998, 2, 0)


def test_xinfo_refuses_in_the_words_of_redis(player: InProcessClient) -> None:
    filled(player, 1)
    player.call("SET str x")
    for line, error in {
        "STREAM no": "ERR no such key",
        "STREAM no FOO": "ERR no such key",
        "STREAM str": WRONG_TYPE.text,
        "STREAM s FOO": "ERR unknown subcommand or wrong number of arguments for 'STREAM'. "
        "Try XINFO HELP.",
        "GROUPS no": "ERR no such key",
        "CONSUMERS no g": "ERR no such key",
        "CONSUMERS s no": "NOGROUP No such consumer group 'no' for key name 's'",
        "CONSUMERS s": "ERR wrong number of arguments for 'xinfo|consumers' command",
        "NOSUCH": "ERR unknown subcommand 'NOSUCH'. Try XINFO HELP.",
    }.items():
        assert player.call(f"XINFO {line}") == Error(error), line


def test_xinfo_consumers_has_times_of_requests_and_deliveries(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 1)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g bob STREAMS s >")
    in_process.wall_ms += 10
    player.call("XREADGROUP GROUP g alice STREAMS s >")
    player.call("XREADGROUP GROUP g bob STREAMS s >")
    in_process.wall_ms += 5
    reply = player.call("XINFO CONSUMERS s g")
    assert isinstance(reply, list)
    names = (b"name", b"pending", b"idle", b"inactive")
    assert [[fields(row)[name] for name in names] for row in reply] == [
        [b"alice", 0, 5, -1],
        [b"bob", 1, 5, 15],
    ]


def lag(player: InProcessClient) -> tuple[Reply, Reply]:
    row = groups_of(player)[b"g"]
    return row[b"entries-read"], row[b"lag"]


def test_no_group_has_read_more_than_there_was(player: InProcessClient) -> None:
    player.call("XADD s 1-1 a b")
    player.call("XGROUP CREATE s g 1-1 ENTRIESREAD 100")
    assert lag(player) == (1, 0)
    player.call("XGROUP SETID s g 0 ENTRIESREAD 0")
    assert lag(player) == (0, 1)
    player.call("XGROUP SETID s g 0 ENTRIESREAD 2")
    assert lag(player) == (1, 1)


def test_entries_read_and_lag_of_an_unbroken_stream(player: InProcessClient) -> None:
    filled(player, 5)
    player.call("XGROUP CREATE s g 0")
    assert lag(player) == (Null.BULK, 5)
    player.call("XREADGROUP GROUP g alice COUNT 2 STREAMS s >")
    assert lag(player) == (2, 3)
    player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s >")
    assert lag(player) == (3, 2)
    player.call("XREADGROUP GROUP g alice STREAMS s >")
    assert lag(player) == (5, 0)
    player.call("XADD s 6-1 n 6")
    assert lag(player) == (5, 1)


def test_entries_read_and_lag_ahead_of_a_deleted_entry(player: InProcessClient) -> None:
    filled(player, 6)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s >")
    player.call("XDEL s 3-1")
    assert lag(player) == (1, Null.BULK)
    player.call("XREADGROUP GROUP g alice COUNT 3 STREAMS s >")
    assert lag(player) == (Null.BULK, Null.BULK)
    player.call("XREADGROUP GROUP g alice STREAMS s >")
    assert lag(player) == (6, 0)


def test_entries_read_and_lag_of_a_trimmed_stream(player: InProcessClient) -> None:
    filled(player, 6)
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s >")
    player.call("XTRIM s MAXLEN 2")
    assert lag(player) == (1, 2)
    player.call("XREADGROUP GROUP g alice COUNT 1 STREAMS s >")
    assert lag(player) == (5, 1)
    player.call("XTRIM s MAXLEN 0")
    assert lag(player) == (5, 0)


# Effects


def state(keyspace: Keyspace) -> dict[bytes, Any]:
    """Streams as they would be saved."""
    database = keyspace.databases[0]
    found: dict[bytes, Any] = {}
    for key in sorted(database.keys()):
        stream = database.stream(key)
        assert stream is not None
        check_stream(stream)
        meta, _ = dump_stream(stream)
        found[key] = meta
    return found


def test_effects_lead_to_the_same_groups(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    filled(player, 8)
    waiting = in_process.player()
    for line in (
        "XGROUP CREATE s g 0",
        "XGROUP CREATE s h $ ENTRIESREAD 8",
        "XGROUP CREATE new g $ MKSTREAM",
        "XGROUP CREATE s gone 0",
        "XREADGROUP GROUP gone alice STREAMS s >",
        "XGROUP DESTROY s gone",
        "XGROUP CREATECONSUMER s g idle",
        "XREADGROUP GROUP g alice COUNT 3 STREAMS s >",
        "TREAD s 0 1 GROUP g 0 RETRY 100 0",
        "XREADGROUP GROUP g bob COUNT 1 NOACK STREAMS s >",
        "XREADGROUP GROUP g bob COUNT 2 STREAMS s >",
        "XREADGROUP GROUP g alice COUNT 2 STREAMS s 0",
        "XACK s g 1-1 4-1",
        "XGROUP DELCONSUMER s g bob",
        "XREADGROUP GROUP g carol COUNT 1 STREAMS s >",
        "XTRIM s MAXLEN 4",
        "XGROUP SETID s h 0 ENTRIESREAD 2",
        "XREADGROUP GROUP h alice COUNT 1 STREAMS s >",
    ):
        in_process.wall_ms += 3
        assert not isinstance(player.call(line), Error), line
    in_process.wall_ms += 3
    waiting.send("XREADGROUP GROUP g dave BLOCK 0 STREAMS new >")
    in_process.wall_ms += 3
    player.call("XADD new 1-1 n 1")
    assert waiting.read() == read(1, key=b"new")
    assert state(in_process.replayed()) == state(in_process.keyspace)
    in_process.persistence.payloads = list(map(as_resp, in_process.persistence.payloads))
    assert state(in_process.replayed()) == state(in_process.keyspace)


def test_a_consumer_that_only_waits_is_recorded(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XGROUP CREATE s g $ MKSTREAM")
    in_process.player().send("XREADGROUP GROUP g alice BLOCK 0 STREAMS s >")
    assert state(in_process.replayed()) == state(in_process.keyspace)
    assert list(in_process.group().pending.consumers) == [b"alice"]
