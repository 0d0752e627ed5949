"""The gateway without sockets: requests by node, the ends of replies, and merged replies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.resp import encode_command

from millstream.commands.runtime.replies import Push, Simple, Verbatim
from millstream.commands.table.keyspecs import key_positions
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS
from millstream.server.cluster.slot_map import new_map
from millstream.server.gateway import request_policies
from millstream.server.gateway.gateway_cli import gateway
from millstream.server.gateway.machine_nodes import MachineNodes
from millstream.server.gateway.merging import (
    as_standalone,
    joined_cursor,
    merge_of,
    split,
    split_cursor,
)
from millstream.server.gateway.reply_scanner import ReplyError, ReplyScanner, elements_of
from millstream.server.gateway.routing import (
    ENDED,
    INVALID,
    SPREAD,
    WORDS,
    RequestReader,
    Routes,
)
from millstream.server.gateway.told_ports import with_ports
from millstream.server.gateway.waiting_reads import may_wait
from millstream.server.protocol.resp import Limits, encode_reply
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

load_table()
NODES = new_map(3).indices()


def pieces(data: bytes, chance: random.Random) -> list[bytes]:
    """The same bytes, cut at random places."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


# ---------------------------------------------------------------- requests


def any_request(chance: random.Random) -> list[str]:
    keys = [f"k{chance.randrange(40)}" for _ in range(chance.randrange(1, 4))]
    return chance.choice(
        [
            ["SET", keys[0], "v" * chance.choice([0, 1, 500])],
            ["XADD", keys[0], "*", "f", "v"],
            ["XREAD", "COUNT", "1", "STREAMS", keys[0], "0"],
            ["XREAD", "STREAMS", *keys, *["0"] * len(keys)],
            ["MGET", *keys],
            ["DEL", *keys],
            ["MSET", *(word for key in keys for word in (key, "v"))],
            ["PING"],
            ["GET"],
            ["NOSUCH", "x"],
            ["CONFIG", "GET", "maxmemory"],
            ["MEMORY", "USAGE", keys[0]],
        ]
    )


def expected_node(words: list[str]) -> int | None:
    """The node of a request; None if its words need a decision."""
    encoded = [word.encode() for word in words]
    row = COMMANDS.get(encoded[0].lower())
    row = (
        row if row is None else row.subcommands.get(encoded[1].lower() if encoded[1:] else b"", row)
    )
    if row is None or request_policies.kind_of(row) > request_policies.SPLIT:
        return None
    try:
        slots = [cluster_slot_of(encoded[at]) for at in key_positions(row.key_specs, encoded)]
    except (IndexError, ValueError):
        return None
    if request_policies.kind_of(row) == request_policies.SPLIT and len(set(slots)) > 1:
        return None
    return NODES[slots[0]]


@pytest.mark.parametrize("seed", range(30))
def test_requests_are_for_the_node_of_their_first_key(seed: int) -> None:
    chance = random.Random(seed)
    reader = RequestReader(Routes(NODES), Limits())
    requests = [any_request(chance) for _ in range(200)]
    data = b"".join(map(encode_command, requests))
    left = iter(requests)
    sent = b""
    for piece in pieces(data, chance):
        reader.feed(piece)
        while (node := reader.next()) != ENDED:
            if node == WORDS:
                words = next(left)
                assert reader.words == [word.encode() for word in words]
                assert expected_node(words) is None
                sent += reader.raw
                continue
            one_run = [(node, reader.count, reader.raw, b"")]
            for one, count, raw, held in reader.spread.runs() if node == SPREAD else one_run:
                assert [expected_node(next(left)) for _ in range(count)] == [one] * count
                assert held == b""
                sent += raw
    assert next(left, None) is None
    assert sent == data


def test_inline_requests_are_sent_as_others() -> None:
    reader = RequestReader(Routes(NODES), Limits())
    reader.feed(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nset a 'b c'\r\n\r\nping\r\n")
    assert reader.next() >= 0
    assert reader.next() == WORDS
    assert reader.raw == encode_command(["set", "a", "b c"])
    assert reader.next() == WORDS
    assert reader.words == [b"ping"]
    assert reader.next() == ENDED
    reader.feed(b"*1\r\n+\r\n")
    assert reader.next() == INVALID
    assert reader.error == "Protocol error: expected '$', got '+'"


def test_in_a_transaction_all_requests_need_a_decision() -> None:
    reader = RequestReader(Routes(NODES), Limits())
    reader.keeps_together = False
    reader.feed(encode_command(["GET", "a"]))
    assert (reader.next(), reader.words) == (WORDS, [b"GET", b"a"])


# ---------------------------------------------------------------- replies


def any_reply(chance: random.Random, depth: int = 3) -> Any:
    kind = chance.randrange(9 if depth else 6)
    if kind == 0:
        return chance.randrange(-5, 10**12)
    if kind == 1:
        return None
    if kind == 2:
        return Simple(b"OK")
    if kind == 3:
        return bytes(chance.randrange(256) for _ in range(chance.choice([0, 3, 300])))
    if kind == 4:
        return Verbatim(b"text\r\n*3\r\n")
    if kind == 5:
        return b"\r\n$5\r\n"
    children = [any_reply(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 8:
        return {b"%d" % at: child for at, child in enumerate(children)}
    return Push(tuple(children)) if kind == 7 and depth == 3 and children else children


@pytest.mark.parametrize("seed", range(30))
def test_the_ends_of_replies_are_found(seed: int) -> None:
    chance = random.Random(seed)
    replies = [encode_reply(any_reply(chance), chance.choice([2, 3])) for _ in range(50)]
    scanner, rest, found, whole = ReplyScanner(), b"", b"", 0
    for piece in pieces(b"".join(replies), chance):
        data, at = rest + piece, 0
        while True:
            end = scanner.scan(data, at, limit := chance.randrange(1, 4))
            assert scanner.complete <= limit
            whole += scanner.complete
            found += data[at:end]
            if end == at:
                break
            at = end
            if scanner.is_between:
                assert found == b"".join(replies[:whole])
        rest = data[at:]
    assert (found, whole, rest) == (b"".join(replies), len(replies), b"")


@pytest.mark.parametrize("resp", [2, 3])
def test_elements_are_as_they_were_received(resp: int) -> None:
    children = [1, b"a\r\n", [b"b", [None]], {b"c": []}]
    assert elements_of(encode_reply(children, resp)) == [
        encode_reply(one, resp) for one in children
    ]
    assert elements_of(encode_reply({b"a": [1], b"b": 2}, 3)) == [
        encode_reply(one, 3) for one in (b"a", [1], b"b", 2)
    ]
    assert elements_of(b"_\r\n") == elements_of(b"*-1\r\n") == elements_of(b"*0\r\n") == []


@pytest.mark.parametrize("data", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"x" * (1 << 21)])
def test_what_is_no_reply_is_refused(data: bytes) -> None:
    with pytest.raises(ReplyError):
        ReplyScanner().scan(data, 0, 1)


# ---------------------------------------------------------------- requests for several nodes


def parts_of(words: Sequence[str]) -> tuple[list[list[bytes]], Any]:
    encoded = [word.encode() for word in words]
    parts, merge = split(COMMANDS[encoded[0].lower()], encoded, NODES.__getitem__)
    requests = []
    for part in parts:
        found = [one.split(b"\r\n")[1] for one in elements_of(part.request)]
        assert cluster_slot_of(found[-1]) >= 0
        requests.append(found)
    return requests, merge


def test_counts_are_added_and_values_keep_their_places() -> None:
    requests, merge = parts_of(["DEL", "a", "b", "a", "c"])
    assert sorted(requests) == [[b"DEL", b"a", b"a"], [b"DEL", b"b"], [b"DEL", b"c"]]
    assert merge([b":1\r\n", b":0\r\n", b":1\r\n"]) == b":2\r\n"
    requests, merge = parts_of(["MGET", "a", "b", "a", "c"])
    replies = [encode_reply([b"v" + key for key in one[1:]]) for one in requests]
    assert merge(replies) == encode_reply([b"va", b"vb", b"va", b"vc"])


@pytest.mark.parametrize("resp", [2, 3])
def test_rows_of_reads_keep_the_order_of_the_request(resp: int) -> None:
    words = ["XREADGROUP", "GROUP", "g", "c", "COUNT", "2", "STREAMS", "a", "b", "c", "d"]
    requests, merge = parts_of([*words, *"1234"])
    assert [one[:7] for one in requests] == [[word.encode() for word in words[:7]]] * 4
    assert [one[7:] for one in requests] == [[b"a", b"1"], [b"b", b"2"], [b"c", b"3"], [b"d", b"4"]]

    def reply(key: bytes) -> bytes:
        rows = [[b"1-1", [b"f", b"v"]]]
        return encode_reply({key: rows} if resp == 3 else [[key, rows]], resp)

    null = encode_reply(None, 3) if resp == 3 else b"*-1\r\n"
    merged = merge([reply(b"a"), null, reply(b"c"), reply(b"d")])
    rows = [[b"1-1", [b"f", b"v"]]]
    names = (b"a", b"c", b"d")
    assert merged == encode_reply(
        dict.fromkeys(names, rows) if resp == 3 else [[name, rows] for name in names], resp
    )
    assert merge([null] * 4) == null


def test_tmread_is_split_by_node() -> None:
    requests, merge = parts_of(["TMREAD", "10", "STREAMS", *"abcdef", *"000000"])
    assert len(requests) == 3
    replies = [
        encode_reply([[key, b"0", b"1", []] for key in one[3 : 3 + (len(one) - 3) // 2]])
        for one in requests
    ]
    assert elements_of(merge(replies)) == [
        encode_reply([name.encode(), b"0", b"1", []]) for name in "abcdef"
    ]


def test_a_read_that_waits_is_recognized() -> None:
    assert may_wait(b"XREAD COUNT 2 block 0 STREAMS a 0".split())
    assert not may_wait(b"XREAD STREAMS BLOCK 0".split())
    for wrong in (b"-1", b"x", b"1.5"):  # the nodes refuse it
        assert not may_wait([b"XREAD", b"BLOCK", wrong, b"STREAMS", b"a", b"0"])
    assert not may_wait(b"TMREAD 1 WHERE 1 BLOCK EQ x STREAMS a 0".split())


def test_replies_of_all_nodes_become_one() -> None:
    merged = merge_of(COMMANDS[b"dbsize"])([b":1\r\n", b":2\r\n"])
    assert merged == b":3\r\n"
    keys = merge_of(COMMANDS[b"keys"])([encode_reply([b"a"]), encode_reply([b"b", b"c"])])
    assert keys == encode_reply([b"a", b"b", b"c"])
    least = merge_of(COMMANDS[b"waitaof"])([encode_reply([1, 2]), encode_reply([0, 3])])
    assert least == encode_reply([0, 2])
    numsub = merge_of(COMMANDS[b"pubsub"].subcommands[b"numsub"])
    assert numsub([encode_reply([b"x", 1]), encode_reply([b"x", 2])]) == encode_reply([b"x", 3])


def test_a_cursor_goes_through_all_nodes() -> None:
    seen, word = [], b"0"
    cursors = iter([b"5", b"0", b"0", b"18446744073709551615", b"0"])
    while True:
        found = split_cursor(word, 3)
        assert found is not None
        node, cursor = found
        seen.append((node, cursor))
        reply = joined_cursor(encode_reply([next(cursors), [b"k"]]), node, 3)
        word = reply.split(b"\r\n")[2]
        if word == b"0":
            break
    assert seen == [
        (0, b"0"), (0, b"5"), (1, b"0"), (2, b"0"), (2, b"18446744073709551615"),
    ]  # fmt: skip
    assert split_cursor(b"x", 3) is None


def test_the_mode_is_that_of_one_server() -> None:
    hello = encode_reply({b"mode": b"cluster", b"role": b"master"}, 3)
    assert as_standalone(hello) == encode_reply({b"mode": b"standalone", b"role": b"master"}, 3)
    info = Verbatim(b"redis_mode:cluster\r\ncluster_enabled:1\r\n")
    told = Verbatim(b"redis_mode:standalone\r\ncluster_enabled:0\r\ncluster_gateway:1\r\n")
    assert as_standalone(encode_reply(info, 2)) == encode_reply(told, 2)


def test_each_command_has_a_kind() -> None:
    rows = [
        *COMMANDS.values(),
        *(sub for row in COMMANDS.values() for sub in row.subcommands.values()),
    ]
    kinds = {row.name: request_policies.kind_of(row) for row in rows}
    split_commands = {name for name, kind in kinds.items() if kind == request_policies.SPLIT}
    assert split_commands == {
        "del", "exists", "mget", "touch", "unlink", "xread", "xreadgroup", "tmread",
    }  # fmt: skip
    unkeyed = {
        row.name for row in rows if kinds[row.name] == request_policies.ONE and not row.key_specs
    }
    assert not unkeyed
    assert kinds["config|get"] == kinds["monitor"] == request_policies.REFUSED
    assert kinds["dbsize"] == kinds["flushall"] == kinds["wait"] == request_policies.ALL


def test_a_random_key_may_be_of_any_node() -> None:
    merge = merge_of(COMMANDS[b"randomkey"])
    first, last, null = b"$1\r\na\r\n", b"$1\r\nb\r\n", b"$-1\r\n"
    assert {merge([first, null, last]) for _ in range(200)} == {first, last}
    assert merge([null, null]) == null


@pytest.mark.parametrize("protocol", [2, 3])
def test_ports_of_the_other_kind_are_told(protocol: int) -> None:
    """Slots that are equal to ports stay, and so do nodes without another port. Nodes of different
    machines may have one port, and different other ones."""

    def slots(first: int, second: int) -> list[object]:
        extra: dict[bytes, bytes] = {b"hostname": b"n1"}
        return [
            [0, 6456, [b"10.0.0.1", first, b"a" * 40, extra], [None, second, b"b" * 40, {}]],
            [6457, 16383, [b"", 6456, b"c" * 40, {}]],
        ]

    def nodes(first: int, second: int) -> Verbatim:
        line, other = b"%b 10.0.0.1:%d@%d,n1 master", b"%b ::1:%d@%d slave\n"
        return Verbatim(
            b"%b\n%b" % (line % (b"a" * 40, first, first), other % (b"b" * 40, second, second))
        )

    ports = {b"a" * 40: 10456, b"b" * 40: 9}
    for told in (slots, nodes, lambda *pair: [bytes(nodes(*pair))] * 2):
        before, after = (encode_reply(told(*pair), protocol) for pair in ((6456, 6456), (10456, 9)))
        assert with_ports(before, ports) == after
        assert with_ports(before, {}) == before


def test_clients_with_tls_are_told_the_ports_for_tls() -> None:
    slot_map = new_map(2)
    first, second = (one.node.encode() for one in slot_map.shards)
    nodes = MachineNodes(slot_map, 6455, 7000)
    assert nodes.ports_for(is_tls=True) == {first: 7001, second: 7002}
    assert nodes.ports_for(is_tls=False) == {}
    assert MachineNodes(new_map(2), 6455).ports_for(is_tls=True) == {}


@pytest.mark.parametrize("words", ["--name n --etcd http://h:1", "--name n"])
def test_a_gateway_is_for_one_machine_or_for_many(tmp_path: Path, words: str) -> None:
    found = CliRunner().invoke(gateway, ["--dir", str(tmp_path), *words.split()])
    assert found.exit_code == 1
    assert "a gateway takes --dir for the nodes of this machine, or --name and" in found.output
