"""TREDRIVE: entries go back from a dead letter stream to their group."""

from __future__ import annotations

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Null, Reply, Simple

OK = Simple("OK")
FULL = "OOM command not allowed when used memory > 'maxmemory'."
SYNTAX = "ERR syntax error"


@pytest.fixture
def s(player: InProcessClient) -> InProcessClient:
    """A client; the entries 1-1 to 3-1 of `s` were copied from group `g` to `d`, 4-1 is new."""
    for number in range(1, 5):
        player.call(f"XADD s {number}-1 n {number}")
    assert player.call("TGROUP s g START 0 TIMEOUT 100 MAXDELIVER 2 DEADLETTER d") == OK
    player.call("XGROUP CREATE s other 0")
    player.call("XREADGROUP GROUP g a COUNT 3 STREAMS s >")
    assert player.call("TNACK s g a FATAL ALL") == 3
    return player


def ids(player: InProcessClient, key: str = "d") -> list[bytes]:
    reply = player.call(f"XRANGE {key} - +")
    assert isinstance(reply, list)
    return [row[0] for row in reply]  # type: ignore[index, misc]


def dotted(entry_id: bytes) -> bytes:
    return entry_id.replace(b"-", b".")


def entry(number: int) -> list[Reply]:
    return [b"%d-1" % number, [b"n", b"%d" % number]]


def replayed(in_process: InProcessServer) -> None:
    again = in_process.replayed()
    for key in (b"s", b"d"):
        mine, other = in_process.stream(key), again.databases[0].stream(key)
        assert other is not None
        assert len(other) == len(mine)
        for name, group in mine.groups.items():
            assert other.groups[name].pending.rows() == group.pending.rows()


def test_entries_come_again_in_this_group_only(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    last = ids(s)[1]
    reader = in_process.player()
    reader.send("XREADGROUP GROUP g b BLOCK 0 STREAMS s >")
    assert reader.read() == [[b"s", [entry(4)]]]
    reader.send("XREADGROUP GROUP g b BLOCK 0 STREAMS s >")
    assert s.call("TREDRIVE d s g 2") == [dotted(last), 2, 0, 0]
    assert reader.read() == [[b"s", [entry(1), entry(2)]]]
    assert s.call("XPENDING s g - + 2") == [[b"1-1", b"b", 0, 1], [b"2-1", b"b", 0, 1]]
    assert len(ids(s)) == 1
    assert s.call("XREADGROUP GROUP other c COUNT 1 STREAMS s >") == [[b"s", [entry(1)]]]
    replayed(in_process)


def test_looking_continues_after_an_id(s: InProcessClient) -> None:
    first, second, third = ids(s)
    assert s.call(f"TREDRIVE d s g 1 AFTER {first.decode()}") == [dotted(second), 1, 0, 0]
    assert s.call(f"TREDRIVE d s g 10 AFTER {third.decode()}") == [Null.BULK, 0, 0, 0]
    assert ids(s) == [first, third]
    assert s.call("TREDRIVE none s g 10") == [Null.BULK, 0, 0, 0]


def test_what_is_no_copy_from_this_group_is_left(s: InProcessClient) -> None:
    s.call("XADD d * x y")
    s.call("TGROUP s h START 0 TIMEOUT 100 DEADLETTER d")
    s.call("XREADGROUP GROUP h a COUNT 1 STREAMS s >")
    s.call("TNACK s h a FATAL ALL")
    s.call("XGROUP SETID s g 2-1")
    s.call("XCLAIM s g a 0 1-1 FORCE JUSTID")
    last = dotted(ids(s)[-1])
    assert s.call("TREDRIVE d s g 100") == [last, 1, 0, 4], "pending, after the offset, other"
    assert len(ids(s)) == 4


def test_an_entry_that_is_gone_is_appended_only_with_append(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XDEL s 1-1 2-1")
    last = dotted(ids(s)[-1])
    assert s.call("TREDRIVE d s g 10") == [last, 1, 0, 2]
    last = dotted(ids(s)[-1])
    assert s.call("TREDRIVE d s g 10 APPEND") == [last, 0, 2, 0]
    reply = s.call("XRANGE s 5 +")
    assert [row[1] for row in reply] == [[b"n", b"1"], [b"n", b"2"]]  # type: ignore[union-attr, index]
    assert ids(s) == []
    replayed(in_process)


def test_a_renamed_source_is_named_by_from(s: InProcessClient) -> None:
    s.call("RENAME s t")
    last = dotted(ids(s)[-1])
    assert s.call("TREDRIVE d t g 10") == [last, 0, 0, 3]
    assert s.call("TREDRIVE d t g 10 FROM s") == [last, 3, 0, 0]


@pytest.mark.parametrize("block", ["TSEAL s", "full"])
def test_a_refused_append_changes_nothing(
    in_process: InProcessServer, s: InProcessClient, block: str
) -> None:
    s.call("XDEL s 2-1")
    if block == "full":
        in_process.executor.admission.set_memory(full=True, lacking=False)
    else:
        s.call(block)
    assert isinstance(s.call("TREDRIVE d s g 10 APPEND"), Error)
    assert len(ids(s)) == 3
    assert s.call("XPENDING s g") == [0, Null.BULK, Null.BULK, Null.ARRAY]
    last = dotted(ids(s)[-1])
    assert s.call("TREDRIVE d s g 10") == [last, 2, 0, 1]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("TREDRIVE d s g 0", "ERR count must be from 1 to 10000"),
        ("TREDRIVE d s g 10001", "ERR count must be from 1 to 10000"),
        ("TREDRIVE d s g x", "ERR count must be from 1 to 10000"),
        ("TREDRIVE d s g", "ERR wrong number of arguments for 'tredrive' command"),
        ("TREDRIVE d s g 1 AFTER", SYNTAX),
        ("TREDRIVE d s g 1 NOW", SYNTAX),
        ("TREDRIVE d s g 1 AFTER 0 AFTER 0", f"{SYNTAX}, AFTER is given twice"),
        ("TREDRIVE d s g 1 FROM s FROM t", f"{SYNTAX}, FROM is given twice"),
        ("TREDRIVE d s g 1 APPEND APPEND", f"{SYNTAX}, APPEND is given twice"),
        ("TREDRIVE d s g 1 AFTER x", "ERR Invalid stream ID specified as stream command argument"),
        ("TREDRIVE d s no 1", "NOGROUP No such key 's' or consumer group 'no'"),
        ("TREDRIVE d no g 1", "NOGROUP No such key 'no' or consumer group 'g'"),
        ("TREDRIVE d s other 1", "ERR the group has no TIMEOUT: set one with TGROUP"),
        (
            "TREDRIVE str s g 1",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
    ],
)
def test_malformed_requests_are_refused(s: InProcessClient, line: str, error: str) -> None:
    s.call("SET str x")
    refusal = s.call(line)
    assert isinstance(refusal, Error)
    assert refusal.text.split(", the syntax is: ")[0] == error
    assert len(ids(s)) == 3


def test_entries_that_come_again_are_lost_by_a_trim(
    in_process: InProcessServer, s: InProcessClient
) -> None:
    s.call("XDEL d " + " ".join(one.decode() for one in ids(s)[1:]))
    s.call("XREADGROUP GROUP g a STREAMS s >")
    s.call("XACK s g 4-1")
    s.call("XADD s 9-1 n 9")
    s.call("XTRIM s MAXLEN 5")
    [copy] = ids(s)
    assert s.call("TREDRIVE d s g 10") == [dotted(copy), 1, 0, 0]
    s.call("XTRIM s MAXLEN 1")
    facts = s.call("TINFO s GROUP g")
    assert isinstance(facts, list)
    assert facts[facts.index(b"lost") + 1] == 1


def test_an_append_without_an_id_left_changes_nothing(s: InProcessClient) -> None:
    s.call("XDEL s 2-1 3-1")
    s.call(f"XADD s {2**64 - 1}-{2**64 - 2} n 5")
    copies = ids(s)
    assert s.call("TREDRIVE d s g 10 APPEND") == Error(
        "ERR The stream has exhausted the last possible ID, unable to add more items"
    )
    assert ids(s) == copies
    assert s.call("XPENDING s g")[0] == 0  # type: ignore[index]
