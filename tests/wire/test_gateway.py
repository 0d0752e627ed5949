"""The gateway of `millstream serve --shards`: clients that do not know clusters use all nodes."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from tests.support.client import ConnectionClosed
from tests.support.resp import Error, Map, Null, Push, Reply, Simple
from tests.support.server import PROGRAM, Server
from tests.support.shards import NodeClient, Shards
from tests.support.waiting import DEADLINE_S, wait_until

from millstream.client import connect
from millstream.server.cluster.gateway_socket import NAME
from millstream.server.cluster.unix_sockets import connected_socket

UNIT = Path(__file__).parents[2] / "deploy" / "millstream-gateway.service"
# foo: node 3, bar: node 1, a: node 3, b: node 1, c: node 2
OK, QUEUED = Simple("OK"), Simple("QUEUED")
CROSSSLOT = Error("CROSSSLOT Keys in request don't hash to the same slot")
ABORTED = Error("EXECABORT Transaction discarded because of previous errors.")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    shards = Shards(tmp_path_factory.mktemp("gateway") / "data", {"appendfsync": "no"})
    shards.start()
    yield shards
    if shards.is_alive():
        assert shards.stop() == 0


def blocked(node: NodeClient) -> int:
    return int(node.info("clients")["blocked_clients"])


@pytest.fixture(params=[2, 3])
def client(shards: Shards, request: pytest.FixtureRequest) -> Iterator[NodeClient]:
    with shards.node(0, request.param) as client:
        assert client.line("FLUSHALL") == OK
        yield client


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("single") / "data", {"appendfsync": "no"})
    server.start()
    yield server
    server.stop()


def any_request(chance: random.Random) -> list[str]:
    """A request whose reply is the same on any server with the same data."""
    keys = chance.sample("abcdefghij", chance.randrange(1, 4))
    key, entry = keys[0], f"{chance.randrange(1, 99)}-1"
    starts = [chance.choice(["0", "5-0", "50-0"]) for _ in keys]
    news = [">"] * len(keys)
    group = ["GROUP", "g", "c"]
    return chance.choice(
        [
            ["XADD", f"s{key}", entry, "f", "v" * chance.choice([1, 9, 3000])],
            ["XADD", f"s{key}", entry, "f", "v"],
            ["XRANGE", f"s{key}", "-", "+"],
            ["XLEN", f"s{key}"],
            ["XREAD", "COUNT", "2", "STREAMS", *(f"s{one}" for one in keys), *starts],
            ["XGROUP", "CREATE", f"s{key}", "g", "0"],
            ["XREADGROUP", *group, "COUNT", "2", "STREAMS", *(f"s{one}" for one in keys), *news],
            ["XREADGROUP", *group, "STREAMS", f"s{key}", ">"],
            ["TREAD", f"s{key}", "", "3"],
            ["SET", key, "v" * chance.choice([0, 5, 70_000])],
            ["GET", key],
            ["INCR", f"n{key}"],
            ["MGET", *keys, f"s{key}"],
            ["DEL", *keys],
            ["EXISTS", *keys, key],
            ["TOUCH", *keys],
            ["MSET", f"{{{key}}}1", "v", f"{{{key}}}2", "w"],
            ["DBSIZE"],
            ["PING"],
            ["ECHO", key],
            ["GET"],
            ["NOSUCH", key],
            ["XADD", f"s{key}", "1-0"],
            ["XREAD", "STREAMS", key, "0"],
            ["TYPE", f"s{key}"],
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_replies_are_those_of_one_server(
    shards: Shards, single: Server, client: NodeClient, seed: int
) -> None:
    chance = random.Random(seed)
    with NodeClient(single.port, client.protocol) as other:
        assert other.line("FLUSHALL") == OK
        for key in "abcdefghij":  # one missing group would end a read of several streams
            for one in (client, other):
                assert one.line(f"XGROUP CREATE s{key} g 0 MKSTREAM") == OK
        for _ in range(10):
            requests = [any_request(chance) for _ in range(60)]
            assert client.pipeline(requests) == other.pipeline(requests)
        assert sorted(client.line("KEYS *")) == sorted(other.line("KEYS *"))


def test_a_transaction_is_for_one_slot(client: NodeClient) -> None:
    lines = ["MULTI", "PING", "SET {a}1 x", "ECHO y", "GET {a}1", "EXEC"]
    assert client.pipeline([line.split() for line in lines]) == [
        OK, *[QUEUED] * 4, [Simple("PONG"), OK, b"y", b"x"],
    ]  # fmt: skip
    assert client.line("MULTI") == OK
    assert client.line("MULTI") == Error("ERR MULTI calls can not be nested")
    assert client.line("SET a 1") == QUEUED
    assert client.line("SET b 1") == CROSSSLOT
    assert client.line("EXEC") == ABORTED
    assert client.line("GET a") is (Null.BULK if client.protocol == 2 else Null.RESP3)
    for lines in (["MULTI", "PING", "EXEC"], ["MULTI", "EXEC"]):
        assert client.pipeline([[line] for line in lines])[-1] in ([Simple("PONG")], [])
    assert client.line("EXEC") == Error("ERR EXEC without MULTI")
    assert client.line("MULTI") == OK
    assert client.line("DISCARD") == OK
    assert client.line("MULTI") == OK
    assert isinstance(client.line("SET a"), Error)
    assert client.line("EXEC") == ABORTED
    for line in ("GET", "TIME a", "DBSIZE a"):  # before a key has named the node
        assert client.line("MULTI") == OK
        name = line.split()[0].lower()
        assert client.line(line) == Error(f"ERR wrong number of arguments for '{name}' command")
        assert client.line("SET a 1") == QUEUED
        assert client.line("EXEC") == ABORTED
    assert client.line("MULTI") == OK
    assert client.line("CONFIG GET port") == Error(
        "ERR CONFIG is not served by the gateway: connect to a node"
    )
    assert client.line("EXEC") == ABORTED


def test_watched_keys_are_in_the_slot_of_the_transaction(
    shards: Shards, client: NodeClient
) -> None:
    with shards.node(0) as other:
        for is_changed in (True, False):
            assert client.line("WATCH a") == OK
            assert client.line("WATCH b") == CROSSSLOT
            assert client.line("GET b") in (Null.BULK, Null.RESP3)
            if is_changed:
                assert other.line("SET a changed") == OK
            assert client.line("MULTI") == OK
            assert client.line("SET a mine") == QUEUED
            reply = client.line("EXEC")
            assert reply in (Null.ARRAY, Null.RESP3) if is_changed else reply == [OK]
        assert client.line("WATCH b") == OK
        assert client.line("UNWATCH") == OK
        assert client.line("WATCH a") == OK


def test_a_read_waits_and_later_replies_keep_their_order(
    shards: Shards, client: NodeClient
) -> None:
    client.send("XREAD", "BLOCK", "0", "STREAMS", "a", "$")
    client.send("SET", "b", "v")
    client.send("MSET", "a", "1", "b", "2")
    with shards.node(0) as other, shards.node(1) as first, shards.node(3) as owner:
        wait_until(lambda: first.line("EXISTS b"), what="the later request")
        owner.wait_blocked(1)
        assert not client.has_input()
        assert other.line("XADD a 1-1 f v") == b"1-1"
    rows: Reply = [[b"1-1", [b"f", b"v"]]]
    assert client.read() == ([[b"a", rows]] if client.protocol == 2 else Map([(b"a", rows)]))
    assert client.read() == OK
    assert client.read() == CROSSSLOT


def test_a_wrong_time_to_wait_is_an_error_of_reads_of_all_nodes(client: NodeClient) -> None:
    for key in "abc":
        client.line(f"XADD s{key} * f v")
    for words, error in (
        ("-1", "ERR timeout is negative"),
        ("x", "ERR timeout is not an integer or out of range"),
    ):
        assert client.line(f"XREAD BLOCK {words} STREAMS sa sb sc 0 0 0") == Error(error)


def test_a_group_of_all_nodes_waits_and_loses_no_entry(shards: Shards, client: NodeClient) -> None:
    """Entries arrive at all nodes while the gateway ends the waits of a read."""
    keys, count = "abcdef", 300
    for key in keys:
        assert client.line(f"XGROUP CREATE {key} g $ MKSTREAM") == OK
    read = ["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", *keys, *[">"] * len(keys)]
    assert client.call(*read[:5], "1", *read[6:]) in (Null.ARRAY, Null.RESP3)
    chance = random.Random(client.protocol)
    sent: set[tuple[bytes, bytes]] = set()
    got: list[tuple[bytes, bytes]] = []
    with shards.node(0) as other:
        while len(sent) < count:
            burst = [
                (chance.choice(keys), f"{len(sent) + n + 1}-1")
                for n in range(chance.randrange(1, 5))
            ]
            client.send(*read)
            if chance.random() < 0.5:
                with shards.node(1) as first:
                    wait_until(lambda: blocked(first) > 0, what="a node that waits")
            other.pipeline([["XADD", key, entry, "f", "v"] for key, entry in burst])
            sent |= {(key.encode(), entry.encode()) for key, entry in burst}
            while len(got) < len(sent):
                reply = client.read()
                pairs = reply.pairs if isinstance(reply, Map) else reply
                got += [(key, row[0]) for key, rows in pairs for row in rows]
                if len(got) < len(sent):
                    client.send(*read)
        assert sorted(got) == sorted(sent)
        pending = [other.line(f"XPENDING {key} g - + 9999") for key in keys]
        assert sum(map(len, pending)) == len(sent)
    for number in range(1, 4):
        with shards.node(number) as node:
            node.wait_blocked(0)
    assert client.line("XREADGROUP GROUP none c BLOCK 0 STREAMS a b > >")


@pytest.mark.parametrize("starts", ["$ $ $", "0 0 0"])
def test_reads_of_all_nodes_wait_together(shards: Shards, client: NodeClient, starts: str) -> None:
    rows: Reply = [[b"1-1", [b"f", b"v"]]]
    with shards.node(0) as other, shards.node(3) as third, shards.node(2) as second:
        client.send("XREAD", "BLOCK", "0", "STREAMS", "a", "b", "c", *starts.split())
        third.wait_blocked(1)
        second.wait_blocked(1)
        assert other.line("XADD c 1-1 f v") == b"1-1"
        pairs = [(b"c", rows)]
        assert client.read() == ([list(pairs[0])] if client.protocol == 2 else Map(pairs))
        third.wait_blocked(0)
        assert client.line("XREAD BLOCK 0 STREAMS a c 0 0") is not None
        # A node that has nothing sends its position, so that TMREAD can be continued.
        client.send("TMREAD", "10", "BLOCK", "0", "STREAMS", "a", "b", "e", "0", "0", "0")
        third.wait_blocked(1)
        assert other.line("TAPPEND b f v") is not None
        reply = client.read()
        assert [row[0] for row in reply] == [b"a", b"b", b"e"]
        assert [len(row[3]) for row in reply] == [0, 1, 0]
        assert client.line("TMREAD 10 BLOCK 1 STREAMS a e 0 0") is not None
        third.wait_blocked(0)
    assert client.line("SET a 1") == OK


def test_the_python_client_follows_streams_of_all_nodes(shards: Shards) -> None:
    names = [f"orders:{number}" for number in range(8)]
    with connect(f"redis://127.0.0.1:{shards.port}") as ms:
        ms.flushall()
        with ms.stream(names, "trim_horizon") as stream:
            for name in names:
                with ms.writer(name, "till") as till:
                    till.append({"item": name})
            records = [stream.read(timeout=10) for _ in names]
            assert {record["item"] for record in records if record is not None} == set(names)
            token = stream.token
        for name in names:
            ms.xadd(name, {"item": "more"})
        with ms.stream(names, token) as stream:
            later = [stream.read(timeout=10) for _ in names]
            assert [record["item"] for record in later if record] == ["more"] * len(names)


def test_a_client_that_ends_while_it_waits_leaves_nothing(shards: Shards) -> None:
    with shards.node(3) as owner:
        for streams in (["{a}s", "$"], ["{a}s", "{b}s", "$", "$"]):
            with shards.node(0) as client:
                client.send("XREAD", "BLOCK", "0", "STREAMS", *streams)
                owner.wait_blocked(1)
            owner.wait_blocked(0)
        with shards.node(0) as client:
            client.send("SET", "a", "1")
            client.send("GET", "none")
            client.half_close()
            assert client.read_to_end() == b"+OK\r\n$-1\r\n"


def test_all_keys_are_scanned_and_counted(client: NodeClient) -> None:
    keys = {b"k%d" % number for number in range(200)}
    client.pipeline([["SET", key, "v"] for key in keys])
    assert client.line("DBSIZE") == 200
    found: list[Reply] = []
    cursor: Reply = b"0"
    while True:
        reply = client.call("SCAN", cursor, "COUNT", "20")
        assert isinstance(reply, list)
        cursor, some = reply
        assert isinstance(some, list)
        found += some
        if cursor == b"0":
            break
    assert (len(found), set(found)) == (200, keys)
    assert client.line("RANDOMKEY") in keys
    assert client.call("UNLINK", *keys) == 200
    assert client.line("SCAN x") == Error("ERR invalid cursor")


def test_messages_reach_subscribers_of_the_gateway(shards: Shards, client: NodeClient) -> None:
    kind = Push if client.protocol == 3 else list
    assert client.line("SUBSCRIBE news") == kind([b"subscribe", b"news", 1])
    client.send("PSUBSCRIBE", "n*", "x*")
    assert [client.read(), client.read()] == [
        kind([b"psubscribe", b"n*", 2]), kind([b"psubscribe", b"x*", 3]),
    ]  # fmt: skip
    with shards.node(0) as other, shards.node(2) as node:
        for publisher in (other, node):
            assert publisher.line("PUBLISH news hello") in (0, 1, 2)
            messages = [client.read(), client.read()]
            assert kind([b"message", b"news", b"hello"]) in messages
            assert kind([b"pmessage", b"n*", b"news", b"hello"]) in messages
        assert other.line("PUBSUB NUMSUB news") == [b"news", 1]
        assert other.line("PUBSUB CHANNELS") == [b"news"]
    if client.protocol == 3:  # replies and messages on one connection
        assert client.line("SET a 1") == OK
    client.send("PUNSUBSCRIBE")
    assert {client.read().items[1] if client.protocol == 3 else client.read()[1] for _ in "12"} == {
        b"n*", b"x*",
    }  # fmt: skip
    assert client.line("UNSUBSCRIBE news") == kind([b"unsubscribe", b"news", 0])
    assert client.line("SET a 2") == OK
    assert client.line("SSUBSCRIBE foo") == kind([b"ssubscribe", b"foo", 1])
    with shards.node(3) as owner:
        assert owner.line("SPUBLISH foo m") == 1
    assert client.read() == kind([b"smessage", b"foo", b"m"])
    assert client.line("SUNSUBSCRIBE") == kind([b"sunsubscribe", b"foo", 0])


def test_users_are_known_to_later_nodes(shards: Shards, client: NodeClient) -> None:
    assert client.line("ACL SETUSER ann on >secret ~* &* +@all -flushall") == OK
    for number in (1, 2, 3):
        with shards.node(number) as node:
            wait_until(lambda node=node: node.line("ACL GETUSER ann"), what="ann")
    assert client.line("GET b") in (Null.BULK, Null.RESP3)  # this node is connected before
    assert client.pipeline([["AUTH", "ann", "secret"], ["SET", "a", "1"], ["ACL", "WHOAMI"]]) == [
        OK, OK, b"ann",
    ]  # fmt: skip
    assert isinstance(client.line("FLUSHALL"), Error)
    assert client.line("AUTH ann wrong") == Error(
        "WRONGPASS invalid username-password pair or user is disabled."
    )
    assert client.line("SET c 1") == OK
    assert client.line("CLIENT SETNAME worker") == OK
    assert client.line("CLIENT GETNAME") == b"worker"
    with shards.node(2) as node:  # which this client has used for c
        lines = node.line("CLIENT LIST")
        text = getattr(lines, "data", lines).decode()
        assert any("name=worker" in line and "user=ann" in line for line in text.splitlines())
    # A node that is first used after the password has changed refuses the old one.
    with shards.node(0) as late, shards.node(1) as node:
        assert late.line("AUTH ann secret") == OK
        assert node.line("ACL SETUSER ann resetpass >other") == OK
        changed = node.line("ACL GETUSER ann")
        for number in (2, 3):
            with shards.node(number) as further:
                wait_until(
                    lambda further=further: further.line("ACL GETUSER ann"),
                    lambda line: line == changed,
                    "the change",
                )
        for key in "abc":
            late.send("GET", key)
        replies = [late.read() for _ in "abc"]
        assert {one.text.split()[0] for one in replies if isinstance(one, Error)} == {"WRONGPASS"}
        assert node.line("ACL DELUSER ann") == 1
    for number in (2, 3):  # a later test makes this user again
        with shards.node(number) as node:
            wait_until(lambda node=node: not node.line("ACL GETUSER ann"), what="the removal")
    with shards.node(0) as again:
        assert again.line("RESET") == Simple("RESET")
        assert again.line("ACL WHOAMI") == b"default"


def test_clients_see_one_server(shards: Shards, client: NodeClient) -> None:
    assert client.info("server")["redis_mode"] == "standalone"
    cluster = client.info("cluster")
    assert (cluster["cluster_enabled"], cluster["cluster_gateway"]) == ("0", "1")  # for tools
    hello = client.call("HELLO", str(client.protocol))
    pairs = (
        hello.pairs if isinstance(hello, Map) else list(zip(hello[::2], hello[1::2], strict=True))
    )
    assert (b"mode", b"standalone") in pairs
    slots = client.line("CLUSTER SLOTS")
    assert [row[2][1] for row in slots] == shards.ports()  # a client of clusters finds the nodes
    assert client.line("QUIT") == OK
    assert client.read_to_end() == b""


def own_lines(shards: Shards, number: int, name: str) -> list[dict[str, str]]:
    """The clients with this name in CLIENT LIST of a node."""
    with shards.node(number) as node:
        found = node.line("CLIENT LIST")
    assert isinstance(found, bytes)
    lines = [
        dict(word.split("=", 1) for word in line.split()) for line in found.decode().splitlines()
    ]
    return [line for line in lines if line["name"] == name]


def test_nodes_see_the_address_of_the_client(shards: Shards) -> None:
    with socket.create_connection(
        ("127.0.0.1", shards.port), timeout=DEADLINE_S, source_address=("127.0.0.2", 0)
    ) as client:
        own = "{}:{}".format(*client.getsockname())
        client.sendall(b"CLIENT SETNAME visitor\r\nMGET foo bar c\r\n")
        replies = b"+OK\r\n*3\r\n" + b"$-1\r\n" * 3
        with client.makefile("rb") as reading:
            assert reading.read(len(replies)) == replies
        for number in (1, 2, 3):
            [line] = own_lines(shards, number, "visitor")
            assert (line["addr"], line["laddr"]) == (own, f"127.0.0.1:{shards.port + number}")
        with shards.node(2) as node:
            assert node.line(f"CLIENT KILL ADDR {own} LADDR 127.0.0.1:{shards.port + 2}") == 1
        assert own_lines(shards, 2, "visitor") == []


class LocalClient(NodeClient):
    """A connection to the Unix socket of a node, as a gateway makes it."""

    def __init__(self, folder: Path, line: str) -> None:
        self._buffer = bytearray()
        self._socket = connected_socket(folder, NAME)
        self._socket.settimeout(DEADLINE_S)
        self._socket.sendall(line.encode())


def test_a_node_treats_a_client_of_a_gateway_as_one_of_its_port(shards: Shards) -> None:
    folder = shards.directory / "0002"
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    port = shards.port + 2
    for line, address in (
        ("127.0.0.1:9 10.0.0.3\n", "10.0.0.3"),
        ("[::1]:9 fe80::3%eth0\n", "fe80::3"),
    ):
        with LocalClient(folder, line) as client:
            shown = f"[{address}]" if ":" in address else address
            assert f"laddr={shown}:{port} ".encode() in client.line("CLIENT INFO")
            assert client.line("CLUSTER SLOTS")[1][2][:2] == [address.encode(), port]
            assert client.line("GET foo") == Error(f"MOVED 12182 {address}:{port + 1}")
    for line in ("192.0.2.7:9 127.0.0.1\n", "[2001:db8::7]:9 ::1\n"):  # it is on another machine
        with LocalClient(folder, line) as client:
            assert client.read_to_end().startswith(b"-DENIED Redis is running in protected mode")
    for line in ("PING\r\n", "\n", "x" * 300):
        with LocalClient(folder, line) as client, suppress(ConnectionResetError):
            assert client.read_to_end() == b""


def test_a_gateway_uses_tcp_without_the_socket_of_a_node(shards: Shards) -> None:
    path = shards.directory / "0001" / NAME
    path.rename(path.with_suffix(".away"))
    try:
        with shards.node(0) as client:
            assert client.pipeline([["CLIENT", "SETNAME", "far"], ["GET", "b"], ["GET", "c"]])[0]
            lines = [own_lines(shards, number, "far")[0] for number in (1, 2)]
    finally:
        path.with_suffix(".away").rename(path)
    assert lines[0]["addr"] != lines[1]["addr"]  # the first one is that of the gateway
    assert lines[0]["laddr"] == f"127.0.0.1:{shards.port + 1}"


def test_redis_py_uses_it_as_one_server(shards: Shards) -> None:
    with redis.Redis(port=shards.port, protocol=3, decode_responses=True) as one:
        one.flushall()
        pipe = one.pipeline(transaction=False)
        for number in range(100):
            pipe.xadd(f"s{number}", {"f": str(number)})
        assert len(pipe.execute()) == 100
        streams = {f"s{number}": "0" for number in range(100)}
        assert list(one.xread(streams)) == list(streams)
        assert one.mget([f"x{number}" for number in range(5)]) == [None] * 5
        with one.pipeline() as transaction:
            transaction.watch("{t}a")
            transaction.multi()
            transaction.incr("{t}a").incr("{t}b")
            assert transaction.execute() == [1, 1]


def test_a_slow_reader_does_not_fill_the_gateway(shards: Shards) -> None:
    with shards.node(0) as slow, shards.node(0) as other:
        assert other.call("SET", "a", "v" * 1_000_000) == OK
        assert other.call("SET", "b", "v" * 1_000_000) == OK
        before = rss_bytes(gateway_pid(shards))
        for _ in range(100):
            slow.send("GET", "a")
            slow.send("GET", "b")
        for _ in range(50):
            assert other.line("SET c 1") == OK
        assert rss_bytes(gateway_pid(shards)) - before < 60_000_000
        for _ in range(200):
            assert len(slow.read()) == 1_000_000


def test_replies_that_wait_do_not_fill_the_gateway(shards: Shards) -> None:
    """The first reply waits, and those after it are of several nodes or merged."""
    with shards.node(0) as waiting, shards.node(0) as other:
        assert other.line("FLUSHALL") == OK
        for key in "bc":
            assert other.call("SET", key, key * 900_000) == OK
        before = rss_bytes(gateway_pid(shards))
        requests = [["GET", "b"], ["GET", "c"], ["MGET", "b", "c"]] * 100
        waiting.send("XREAD", "BLOCK", "0", "STREAMS", "a", "$")
        for request in requests:
            waiting.send(*request)
        with shards.node(3) as owner:
            owner.wait_blocked(1)
        for _ in range(50):
            assert other.line("MGET b c")
        assert rss_bytes(gateway_pid(shards)) - before < 60_000_000
        assert other.line("XADD a 1-1 f v") == b"1-1"
        assert waiting.read() == [[b"a", [[b"1-1", [b"f", b"v"]]]]]
        values = [b"b" * 900_000, b"c" * 900_000]
        for request in requests:
            wanted = values if request[0] == "MGET" else values[request[1] == "c"]
            assert waiting.read() == wanted


def test_a_client_that_ends_at_once_leaves_nothing(shards: Shards) -> None:
    with shards.node(3) as owner:
        for _ in range(20):
            with shards.node(0) as client:
                client.send("XREAD", "BLOCK", "0", "STREAMS", "{a}s", "$")
            with shards.node(0) as client:
                client.send("XREAD", "BLOCK", "0", "STREAMS", "{a}s", "{b}s", "$", "$")
        wait_until(
            lambda: owner.info("clients")["connected_clients"],
            lambda count: count == "1",
            "its end",
        )


def test_what_is_about_all_nodes_is_refused_in_a_transaction(client: NodeClient) -> None:
    for line in ("FLUSHALL", "DBSIZE", "KEYS *", "SCAN 0"):
        assert client.line("SET b 1") == OK
        assert client.line("MULTI") == OK
        name = line.split()[0]
        assert client.line(line) == Error(
            f"ERR {name} in a transaction is not served by the gateway"
        )
        assert client.line("EXEC") == ABORTED
    assert client.line("GET b") == b"1"
    assert client.pipeline([["MULTI"], ["SET", "b", "2"], ["WAIT", "0", "0"], ["EXEC"]]) == [
        OK, QUEUED, QUEUED, [OK, 0],
    ]  # fmt: skip


def test_a_reply_that_looks_like_a_message_is_a_reply(shards: Shards) -> None:
    with shards.node(0, 3) as client:
        assert client.line("SUBSCRIBE channel") == Push([b"subscribe", b"channel", 1])
        for tag in "abc":  # one of them is on the node of the subscription
            assert client.call("SET", f"{{{tag}}}said", "message") == OK
            assert client.line(f"MGET {{{tag}}}said {{{tag}}}none") == [
                    b"message", Null.RESP3,
                ]  # fmt: skip
            assert client.line("PING") == Simple("PONG")
        assert client.line("PUBLISH channel text") in (0, 1)
        assert client.read() == Push([b"message", b"channel", b"text"])


def test_refused_subscriptions_have_no_channels(client: NodeClient) -> None:
    kind = list if client.protocol == 2 else Push
    null = Null.BULK if client.protocol == 2 else Null.RESP3
    refused = client.line("SSUBSCRIBE a {a}1 b")
    assert isinstance(refused, Error)
    assert client.line("SUNSUBSCRIBE") == kind([b"sunsubscribe", null, 0])
    assert client.line("PING") == Simple("PONG")
    for count, channel in enumerate("abc", 1):  # at three nodes
        confirmed = kind([b"ssubscribe", channel.encode(), count])
        assert client.line(f"SSUBSCRIBE {channel}") == confirmed
    client.send("SUNSUBSCRIBE")
    ended = [client.read() for _ in "abc"]
    counts = {b"a": 2, b"b": 1, b"c": 0}
    assert ended == [kind([b"sunsubscribe", *one]) for one in counts.items()]
    assert client.line("PING") == Simple("PONG")


def gateway_pid(shards: Shards) -> int:
    return int(shards.status()["gateways"][0]["pid"])


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_several_gateways_share_a_port(tmp_path: Path) -> None:
    options, directives = ["--gateways", "2"], {"appendfsync": "no"}
    shards = Shards(tmp_path / "data", directives, count=2, options=options)
    shards.start()
    for at in (0, 1):
        killed = kill_gateway(shards, at)
        for number in range(10):  # while one of them does not run, the other one has all clients
            with shards.node(0) as client:
                assert client.line(f"SET foo {number}") == OK
        await_gateway(shards, at, killed)
    log = tmp_path / "gateway.log"
    ours = Server(  # not of the supervisor
        shards.directory, {"logfile": str(log)}, program=[PROGRAM, "gateway"]
    )
    ours.log_path = tmp_path / "gateway.out"
    ours.start()
    with NodeClient(ours.port) as client:
        assert client.line("MSET foo 1") == OK
        assert client.line("SET bar 2") == OK
        assert client.line("MGET foo bar") == [b"1", b"2"]
    assert shards.stop() == 0
    shards.port += 100
    shards.start()
    wait_until(lambda: fetched(ours, "foo"), lambda reply: reply == b"1", "the nodes")
    (reload,) = re.findall(r"^ExecReload=/bin/kill -(\w+) \$MAINPID$", UNIT.read_text(), re.M)
    log.rename(tmp_path / "gateway.log.1")
    ours.signal(signal.Signals[f"SIG{reload}"])
    wait_until(log.exists, what="a new log file")
    assert fetched(ours, "foo") == b"1"
    ours.signal(signal.SIGUSR2)
    wait_until(lambda: not ours.is_alive(), what="the stop")
    assert ours.exit_code == 0
    assert shards.stop() == 0


def kill_gateway(shards: Shards, at: int) -> int:
    pid = int(shards.status()["gateways"][at]["pid"])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: shards.status()["gateways"][at]["pid"] != pid, what="its end")
    return pid


def await_gateway(shards: Shards, at: int, ended: int) -> None:
    """Wait until another process serves in place of the one that has ended."""
    wait_until(
        lambda: shards.status()["gateways"][at],
        lambda gateway: gateway["health"] == "online" and gateway["pid"] != ended,
        "its restart",
    )


def fetched(server: Server, key: str) -> Reply:
    try:
        with NodeClient(server.port) as client:
            return client.line(f"GET {key}")
    except ConnectionClosed as problem:
        return Error(str(problem))


def test_requests_for_a_dead_node_get_errors(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "data", {"appendfsync": "no"})
    shards.start()
    pid = shards.pid_of(3)
    with shards.node(0) as client, shards.node(0) as waiting, shards.node(0) as other:
        assert client.line("SET b 1") == OK
        waiting.send("XREAD", "BLOCK", "0", "STREAMS", "a", "$")
        with shards.node(3) as owner:
            owner.wait_blocked(1)
        os.kill(pid, signal.SIGSTOP)  # it hangs
        waiting_s = time.monotonic()
        with pytest.raises(ConnectionClosed):
            waiting.read()
        assert time.monotonic() - waiting_s < 30
        down = Error("CLUSTERDOWN Hash slot not served: node 0003 cannot be reached")
        assert other.pipeline([["SET", "b", "2"], ["SET", "a", "1"], ["MGET", "a", "b"]]) == [
            OK, down, down,
        ]  # fmt: skip
        # WATCH was refused, so there is no transaction: neither for UNWATCH nor for EXEC.
        for line, reply in (
            ("UNWATCH", OK),
            ("EXEC", Error("ERR EXEC without MULTI")),
            ("DISCARD", Error("ERR DISCARD without MULTI")),
        ):
            assert other.line("WATCH a") == down
            assert other.line(line) == reply
            assert other.line("PING") == Simple("PONG")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: other.line("SET a 1"), lambda reply: reply == OK, "its restart")
        assert other.line("GET b") == b"2"
        told = [own_lines(shards, number, "") for number in (1, 3)]
        both = {one["addr"] for one in told[0]} & {one["addr"] for one in told[1]}
        assert both  # it is at the Unix socket again: over TCP each connection has its own port
    # The gateway is started again, too.
    killed = gateway_pid(shards)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: "the gateway has ended by SIGKILL" in shards.log, what="its end")
    wait_until(lambda: gateway_answers(shards), what="its restart")
    with shards.node(0) as idle:
        assert idle.line("PING") == Simple("PONG")
        assert shards.stop() == 0
    assert not list(shards.directory.glob(f"*/{NAME}"))


def gateway_answers(shards: Shards) -> bool:
    try:
        with shards.node(0) as client:
            return client.line("PING") == Simple("PONG")
    except OSError:
        return False
