"""A node of a cluster: which requests it refuses, and what it tells clients about the others."""

from __future__ import annotations

import random
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from tests.support.fakedisk import FakeDisk
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Map, Null, Simple, encode_command

from millstream.commands.table.keyspecs import key_positions
from millstream.commands.table.registry import COMMANDS
from millstream.errors import DataError, StartError
from millstream.server.cluster.node import ClusterNode
from millstream.server.cluster.slot_map import new_map
from millstream.server.cluster.states import NodeState
from millstream.server.config.directives import Config
from millstream.server.durability.data_files import DataFiles
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.replication.write_refusals import READONLY
from millstream.storage.files.manifest import read_manifest
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_states import Import
from millstream.storage.streams.stream_snapshot import dump_stream

PORT = 7000
MAP = new_map(3)


class Node(InProcessServer):
    """Node 2 of 3, with the slots 5461 to 10922."""

    def __init__(self, slot_map: Any = MAP, **directives: Any) -> None:
        super().__init__(clustered=True)
        config = Config(port=PORT + 2, **directives)
        self.node = self.cluster = ClusterNode(
            config, slot_map, slot_map.shards[1], lambda: self.executor.loading, lambda: 7
        )
        self.executor.admission.set_slots(self.node.slots)

    def player(self, resp: int = 2, local: str = "10.0.0.3:7002") -> InProcessClient:
        player = super().player(resp)
        player.local_address = local
        return player


def error(reply: Any) -> str:
    assert isinstance(reply, Error), reply
    return reply.text


def plain(reply: Any) -> Any:
    """A reply with dicts and None."""
    if isinstance(reply, Map):
        return {name: plain(value) for name, value in reply.pairs}
    if isinstance(reply, list):
        return [plain(one) for one in reply]
    return None if isinstance(reply, Null) else reply


@pytest.fixture
def node() -> Node:
    return Node()


# foo: 12182, bar: 5061, hello: 866, b: 3300, a: 15495, c: 7365, key: 12539, mine: see below
MINE, OTHER_OF_MINE, FIRSTS, LASTS = "c", "x7", "bar", "foo"
assert 5461 <= cluster_slot_of(MINE.encode()) <= 10922
OTHER_OF_MINE = next(
    name
    for name in (f"x{n}" for n in range(100))
    if 5461 <= cluster_slot_of(name.encode()) <= 10922
)


def test_foreign_keys_are_moved(node: Node) -> None:
    client = node.player()
    assert error(client.call(f"XADD {LASTS} * f v")) == "MOVED 12182 10.0.0.3:7003"
    assert error(client.call(f"GET {FIRSTS}")) == "MOVED 5061 10.0.0.3:7001"
    assert client.call(f"SET {MINE} v") == Simple("OK")
    assert client.call(f"GET {MINE}") == b"v"
    assert (node.node.slots.moved, node.node.slots.crossed) == (2, 0)


def test_keys_of_two_slots_are_refused_even_if_both_are_here(node: Node) -> None:
    client = node.player()
    crossed = "CROSSSLOT Keys in request don't hash to the same slot"
    for line in (
        f"DEL {MINE} {OTHER_OF_MINE}",
        f"XREAD STREAMS {MINE} {OTHER_OF_MINE} 0 0",
        f"XREAD COUNT 1 STREAMS {LASTS} {MINE} 0 0",
        f"MSETEX 2 {MINE} v {OTHER_OF_MINE} v",
        f"RENAME {MINE} {LASTS}",
        f"SSUBSCRIBE {MINE} {OTHER_OF_MINE}",
        f"TGROUP {MINE} g DEADLETTER {OTHER_OF_MINE}",
    ):
        assert error(client.call(line)) == crossed, line
    assert client.call(f"DEL {{{MINE}}}1 {{{MINE}}}2") == 0


def test_tmread_takes_all_slots_of_the_node(node: Node) -> None:
    client = node.player()
    client.call(f"XADD {MINE} 1-1 f v")
    client.call(f"XADD {OTHER_OF_MINE} 1-1 f v")
    assert not isinstance(client.call(f"TMREAD 10 STREAMS {MINE} {OTHER_OF_MINE} 0.0 0.0"), Error)
    assert error(client.call(f"TMREAD 10 STREAMS {MINE} {LASTS} {FIRSTS} 0.0 0.0 0.0")).startswith(
        "MOVED 12182 "
    )


def test_the_order_of_checks(node: Node) -> None:
    client = node.player()
    assert "wrong number" in error(client.call("GET"))
    node.executor.begin_loading()
    assert error(client.call(f"GET {LASTS}")).startswith("MOVED")
    assert error(client.call(f"GET {MINE}")).startswith("LOADING")
    node.executor.end_loading()
    node.executor.admission.set_memory(full=True, lacking=False)
    assert error(client.call(f"SET {LASTS} v")).startswith("MOVED")
    assert error(client.call(f"SET {MINE} v")).startswith("OOM")
    # Options are read only then: this is no valid XADD.
    assert error(client.call(f"XADD {LASTS} MAXLEN x y")).startswith("MOVED")
    # Without an order of keys, the handler's error comes.
    assert "Unbalanced" in error(client.call(f"XREAD STREAMS {LASTS} {MINE} 0"))


class Demoted(Node):
    """A node that leads no term any more, and has not looked at the map since: its slots pass."""

    def __init__(self) -> None:
        super().__init__()
        self.node.is_primary_of_term = lambda: False  # type: ignore[method-assign]
        self.elsewhere = f"MOVED {cluster_slot_of(MINE.encode())} there:1"
        self.node.foreign_slot = lambda session, slot: self.elsewhere  # type: ignore[method-assign]

    def demote(self) -> None:
        self.executor.admission.set_role(READONLY, None)


@pytest.mark.parametrize("elsewhere", ["MOVED 7365 there:1", "CLUSTERDOWN The cluster is down"])
def test_writes_at_a_replica_go_to_the_primary(elsewhere: str) -> None:
    node = Demoted()
    node.elsewhere = elsewhere
    client, queuing, watching = node.player(), node.player(), node.player()
    assert client.call(f"XADD {MINE} 1-1 f v") == b"1-1"
    client.call(f"XGROUP CREATE {MINE} g 0")
    for words in ("MULTI", f"XADD {MINE} * f v"):
        queuing.call(words)
    for words in ("MULTI", f"XLEN {MINE}"):
        watching.call(words)
    node.demote()
    for line in (
        f"XADD {MINE} * f v",
        f"XREADGROUP GROUP g me STREAMS {MINE} >",
        f'TREAD {MINE} "" 9 GROUP g 0',
        f"DEL {MINE}",
    ):
        assert error(client.call(line)) == elsewhere, line
    assert error(queuing.call("EXEC")) == elsewhere
    assert error(queuing.call("EXEC")) == "ERR EXEC without MULTI"
    assert watching.call("EXEC") == [1]
    assert error(client.call("FLUSHALL")) == READONLY  # it has no slot
    assert client.call(f"XLEN {MINE}") == 1
    moved = elsewhere.startswith("MOVED")
    assert (node.node.slots.moved, node.node.slots.unserved) == ((5, 0) if moved else (0, 5))


def test_refusals_in_a_transaction(node: Node) -> None:
    client = node.player()
    assert client.call("MULTI") == Simple("OK")
    assert error(client.call(f"SET {LASTS} v")).startswith("MOVED")
    assert client.call(f"SET {MINE} v") == Simple("QUEUED")
    assert error(client.call("EXEC")) == (
        "EXECABORT Transaction discarded because of previous errors."
    )
    client.call("MULTI")
    client.call(f"SET {MINE} v")
    client.call(f"SET {OTHER_OF_MINE} v")
    assert error(client.call("EXEC")).startswith("CROSSSLOT")
    assert error(client.call("EXEC")) == "ERR EXEC without MULTI"
    assert client.call(f"EXISTS {MINE}") == 0
    client.call("MULTI")
    client.call("PING")
    client.call(f"SET {MINE} v")
    assert client.call("EXEC") == [Simple("PONG"), Simple("OK")]


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("SELECT 1", "ERR SELECT is not allowed in cluster mode"),
        ("SELECT 99", "ERR SELECT is not allowed in cluster mode"),
        ("SWAPDB 0 1", "ERR SWAPDB is not allowed in cluster mode"),
        (f"MOVE {MINE} 1", "ERR MOVE is not allowed in cluster mode"),
        (f"MOVE {LASTS} 1", "MOVED 12182 10.0.0.3:7003"),
        (
            f"COPY {MINE} {{{MINE}}}2 DB 1",
            "ERR Copying to another database is not allowed in cluster mode",
        ),
        ("REPLICAOF NO ONE", "ERR REPLICAOF not allowed in cluster mode."),
        ("SLAVEOF NO ONE", "ERR REPLICAOF not allowed in cluster mode."),
        (
            "FAILOVER",
            "ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead.",
        ),
        ("CLUSTER FAILOVER", "ERR You should send CLUSTER FAILOVER to a replica"),
        (
            "CLUSTER MEET 10.0.0.4 7000",
            "ERR CLUSTER MEET does not change this cluster: see millstream cluster --help",
        ),
        (
            "CLUSTER SET-CONFIG-EPOCH 7",
            "ERR CLUSTER SET-CONFIG-EPOCH does not change this cluster: "
            "see millstream cluster --help",
        ),
        (
            "MIGRATE 10.0.0.4 7000 k 0 100",
            "ERR MIGRATE does not change this cluster: see millstream cluster --help",
        ),
        ("CLUSTER COUNTKEYSINSLOT 16384", "ERR Invalid slot"),
        ("CLUSTER GETKEYSINSLOT 0 -1", "ERR Invalid slot or number of keys"),
        ("CLUSTER REPLICAS abc", "ERR Unknown node abc"),
        ("CLUSTER COPYSLOTS", "ERR unknown subcommand 'COPYSLOTS'. Try CLUSTER HELP."),
        ("CLUSTER PEER", "ERR unknown subcommand 'PEER'. Try CLUSTER HELP."),
        ("CLUSTER SEEN x", "ERR unknown subcommand 'SEEN'. Try CLUSTER HELP."),
        ("CLUSTER SYNCSLOTS x", "ERR unknown subcommand 'SYNCSLOTS'. Try CLUSTER HELP."),
    ],
)
def test_refusals(node: Node, line: str, reply: str) -> None:
    assert error(node.player().call(line)) == reply


def test_slots_without_an_owner() -> None:
    first, mine, last = MAP.shards
    node = Node(MAP._replace(shards=(first, mine, last._replace(ranges=((10923, 12181),)))))
    client = node.player()
    unserved = "CLUSTERDOWN Hash slot not served"
    assert error(client.call(f"GET {LASTS}")) == unserved
    assert error(client.call(f"DEL {LASTS} {MINE}")) == unserved
    assert error(client.call(f"DEL {MINE} {LASTS}")).startswith("CROSSSLOT")
    assert b"cluster_slots_assigned:12182\r\n" in client.call("CLUSTER INFO")


# ---------------------------------------------------------------- every command


def test_no_request_reaches_a_foreign_key() -> None:
    """Random words after every command: what runs changes only keys of the node's slots, and a
    request is refused exactly if COMMAND's key specs find such a key."""
    chance = random.Random(3)
    node = Node()
    client = node.player()
    rows = [
        row
        for container in COMMANDS.values()
        for row in ([*container.subcommands.values()] or [container])
        if row.key_specs and row.name not in ("subscribe",)
    ]
    vocabulary = (
        [MINE, OTHER_OF_MINE, LASTS, FIRSTS, f"{{{MINE}}}2", f"{{{LASTS}}}2"] * 2
        + [
            "0",
            "1",
            "2",
            "3",
            "0-0",
            "1-1",
            "*",
            "$",
            ">",
            "g",
            "c",
            "f",
            "v",
            "STREAMS",
            "COUNT",
            "BLOCK",
            "GROUP",
            "NOACK",
            "WHERE",
            "DB",
            "REPLACE",
        ]
        + [
            "CHILDREN",
            "DEADLETTER",
            "TIMEOUT",
            "MAXLEN",
            "NX",
            "XX",
            "KEEPTTL",
            "RETRY",
            "=",
            "CREATE",
            "MKSTREAM",
        ]
    )
    refused = ran = 0
    for _ in range(6000):
        row = chance.choice(rows)
        words = row.name.split("|") + chance.choices(vocabulary, k=chance.randint(1, 7))
        if words[0] in ("xread", "xreadgroup", "tmread", "tread"):
            words = ["1" if word == "0" and words[at - 1] == "BLOCK" else word
                     for at, word in enumerate(words)]  # fmt: skip
        encoded = [word.encode() for word in words]
        node.executor.feed(client, encode_command(words))
        node.settle()
        if not client.unread:
            node.executor.unblock_client(client, False)
            node.settle()
        reply = client.read()
        client.unread = b""
        if row.name.endswith("subscribe"):
            client.call("RESET")
            client.unread = b""
        is_refused = isinstance(reply, Error) and reply.text.startswith(("MOVED", "CROSSSLOT"))
        refused += is_refused
        ran += not isinstance(reply, Error)
        try:
            keys = [encoded[at] for at in key_positions(row.key_specs, encoded)]
        except (ValueError, IndexError):
            keys = []
        foreign = [key for key in keys if not node.node.owns(cluster_slot_of(key))]
        if is_refused:
            assert foreign or len({cluster_slot_of(key) for key in keys}) > 1, words
        elif foreign:
            assert isinstance(reply, Error), words
    node.node.check_keys(node.keyspace)
    assert refused > 1000
    assert ran > 100


def test_a_foreign_key_on_the_disk_is_noticed() -> None:
    node = Node().node
    keyspace = Keyspace(clustered=True)
    keyspace.databases[0].set(MINE.encode(), b"v")
    node.check_keys(keyspace)
    keyspace.databases[0].set(LASTS.encode(), b"v")
    with pytest.raises(StartError, match="keys of slots of other nodes, for example b'foo'"):
        node.check_keys(keyspace)
    keyspace = Keyspace(clustered=True)
    keyspace.databases[3].set(MINE.encode(), b"v")
    with pytest.raises(StartError, match="keys of database 3"):
        node.check_keys(keyspace)


def test_moves_end_in_data_that_was_restored_here() -> None:
    """The backup of a cluster on many machines may have slots that were moving."""
    node = Node()
    mine, first = cluster_slot_of(MINE.encode()), cluster_slot_of(LASTS.encode())
    for key in (MINE, LASTS):
        node.keyspace.databases[0].set(key.encode(), b"v")
    for move, slot in (("1", mine), ("2", first), ("3", mine + 1), ("4", first + 1)):
        if move < "3":
            node.keyspace.slot_states.leave(move, ((slot, slot),), "s2")
        else:
            made = Import(move, ((slot, slot),), "s1", "ab" * 20, 7, -1)
            node.keyspace.slot_states.begin_import(made)
    node.node.check_keys(node.keyspace)
    node.node.end_moves(node.executor)
    node.settle()
    assert not node.keyspace.slot_states
    assert node.player().call("KEYS *") == [MINE.encode()]


def test_data_without_the_id_of_a_node_is_adopted_once() -> None:
    disk = FakeDisk()
    single = DataFiles(disk)
    single.open(LoadReport())
    files = DataFiles(disk)
    files.node = "a" * 40
    files.open(LoadReport())
    files.publish(files.manifest)  # before the keys are checked
    assert read_manifest(disk).node == ""
    files.adopt()
    assert read_manifest(disk).node == "a" * 40
    other = DataFiles(disk)
    other.node = "b" * 40
    with pytest.raises(DataError, match=f"that of the node {'a' * 40}, but cluster.json expects"):
        other.open(LoadReport())


def test_a_restored_stream_keeps_its_dead_letters_in_its_slot(node: Node) -> None:
    client = node.player()
    client.call(f"XADD {MINE} 1-0 f v")
    client.call(f"TGROUP {MINE} g START 0 TIMEOUT 1000 MAXDELIVER 3 DEADLETTER {{{MINE}}}dead")
    meta, _ = dump_stream(node.keyspace.databases[0].get(MINE.encode()))
    source, restored = f"{{{MINE}}}1", f"{{{MINE}}}2"
    client.call(f"XADD {source} 1-0 f v")
    for target, slot in ((LASTS, "foreign"), (f"{{{MINE}}}dead", "own")):
        meta["groups"][0]["rules"]["dead_letter"] = target.encode()
        state = msgpack.packb(meta)
        node.executor.feed(client, encode_command(["TRESTORE", source, restored, state]))
        node.settle()
        if slot == "foreign":
            assert error(client.read()).startswith("CROSSSLOT the dead letter stream 'foo' of")
        else:
            assert client.read() == Simple("OK")


# ---------------------------------------------------------------- what clients are told


def ids() -> list[bytes]:
    return [shard.node.encode() for shard in MAP.shards]


def test_slots_in_both_protocols(node: Node) -> None:
    rows = [(0, 5460, 7001), (5461, 10922, 7002), (10923, 16383, 7003)]
    expected = [
        [first, last, [b"10.0.0.3", port, node_id, meta]]
        for (first, last, port), node_id, meta in zip(rows, ids(), [[]] * 3, strict=True)
    ]
    assert node.player().call("CLUSTER SLOTS") == expected
    assert plain(node.player(3).call("CLUSTER SLOTS")) == [
        [first, last, [*address, {}]] for first, last, [*address, _] in expected
    ]


@pytest.mark.parametrize(
    ("kind", "endpoint", "meta", "moved"),
    [
        ("ip", b"192.0.2.7", {b"hostname": b"db.example"}, "192.0.2.7:7003"),
        ("hostname", b"db.example", {b"ip": b"192.0.2.7"}, "db.example:7003"),
        ("unknown-endpoint", None, {b"ip": b"192.0.2.7", b"hostname": b"db.example"}, ":7003"),
    ],
)
def test_announced_addresses(kind: str, endpoint: Any, meta: Any, moved: str) -> None:
    node = Node(
        **{
            "cluster-announce-ip": "192.0.2.7",
            "cluster-announce-hostname": "db.example",
            "cluster-preferred-endpoint-type": kind,
        }
    )
    client = node.player(3)
    assert plain(client.call("CLUSTER SLOTS"))[1][2] == [endpoint, 7002, ids()[1], meta]
    assert error(client.call(f"GET {LASTS}")) == f"MOVED 12182 {moved}"
    [details] = plain(client.call("CLUSTER SHARDS"))[0][b"nodes"]
    assert details == {
        b"id": ids()[0], b"port": 7001, b"ip": b"192.0.2.7", b"endpoint": endpoint,
        b"hostname": b"db.example", b"role": b"master", b"replication-offset": 0,
        b"health": b"online",
    }  # fmt: skip
    assert list(details)[:4] == [b"id", b"port", b"ip", b"endpoint"]
    line = client.call("CLUSTER NODES").data.splitlines()[0].removeprefix(b"txt:")
    assert line == ids()[0] + b" 192.0.2.7:7001@7001,db.example master - 0 0 1 connected 0-5460"


def test_tls_connections_get_tls_ports() -> None:
    node = Node(**{"tls-port": 8002})
    assert node.player(local="10.0.0.3:8002").call("CLUSTER SLOTS")[0][2][1] == 8001
    assert node.player().call("CLUSTER SLOTS")[0][2][1] == 7001
    details = plain(node.player(3).call("CLUSTER SHARDS"))[2][b"nodes"][0]
    assert (details[b"port"], details[b"tls-port"]) == (7003, 8003)


@pytest.mark.parametrize(
    ("local", "host"),
    [
        ("[2001:db8::1]:7002", "2001:db8::1"),
        ("/tmp/socket:0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("10.0.0.9:7002", "10.0.0.9"),
    ],
)
def test_clients_are_told_the_address_that_they_know(node: Node, local: str, host: str) -> None:
    reply = node.player(local=local).call(f"GET {LASTS}")
    assert error(reply) == f"MOVED 12182 {host}:7003"


def test_failed_nodes_are_shown(node: Node) -> None:
    node.node.note_states({1: NodeState("failed", 123456, 42), 3: NodeState("loading", 9, 1)})
    client = node.player()
    lines = client.call("CLUSTER NODES").decode().splitlines()
    assert lines[0].endswith(" master,fail - 0 123456 1 disconnected 0-5460")
    assert lines[1].endswith(" myself,master - 0 0 1 connected 5461-10922")
    assert lines[2].endswith(" master - 0 9 1 connected 10923-16383")
    info = client.call("CLUSTER INFO").decode()
    assert "cluster_state:ok\r\n" in info
    assert "cluster_slots_fail:5461\r\n" in info
    assert "cluster_slots_ok:10923\r\n" in info
    shards = plain(node.player(3).call("CLUSTER SHARDS"))
    assert [shard[b"nodes"][0][b"health"] for shard in shards] == [b"failed", b"online", b"loading"]
    assert [shard[b"nodes"][0][b"replication-offset"] for shard in shards] == [42, 7, 1]


def test_keys_of_a_slot(node: Node) -> None:
    client = node.player()
    slot = cluster_slot_of(MINE.encode())
    names = {f"{{{MINE}}}{n}" for n in range(5000)}
    for name in names:
        client.call(f"SET {name} v")
    assert client.call(f"CLUSTER KEYSLOT {MINE}") == slot
    assert client.call(f"CLUSTER COUNTKEYSINSLOT {slot}") == 5000
    assert client.call("CLUSTER COUNTKEYSINSLOT 1") == 0
    assert len(client.call(f"CLUSTER GETKEYSINSLOT {slot} 10")) == 10
    client.send(f"CLUSTER GETKEYSINSLOT {slot} 9999")
    node.loop.run()
    assert {key.decode() for key in client.read()} == names
    assert client.call("CLUSTER GETKEYSINSLOT 1 10") == []

    states = node.keyspace.slot_states
    states.leave("1f", ((slot, slot),), "s2")
    assert client.call(f"CLUSTER COUNTKEYSINSLOT {slot}") == 0
    assert client.call(f"CLUSTER GETKEYSINSLOT {slot} 10") == []
    states.stay("1f")
    assert client.call(f"CLUSTER COUNTKEYSINSLOT {slot}") == 5000


def test_small_replies(node: Node) -> None:
    client = node.player()
    shard = MAP.shards[1]
    assert client.call("CLUSTER MYID") == shard.node.encode()
    assert client.call("CLUSTER MYSHARDID") == shard.id.encode()
    assert client.call(f"CLUSTER REPLICAS {shard.node}") == []
    assert client.call(f"CLUSTER COUNT-FAILURE-REPORTS {shard.node}") == 0
    assert client.call("CLUSTER LINKS") == []
    assert client.call("CLUSTER BUMPEPOCH") == Simple("STILL 1")
    for line in ("CLUSTER SAVECONFIG", "ASKING", "READONLY", "READWRITE", "SELECT 0"):
        assert client.call(line) == Simple("OK"), line
    assert client.call("CLUSTER HELP")[0] == Simple(
        "CLUSTER <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    )
    assert dict(zip(*[iter(client.call("HELLO"))] * 2, strict=True))[b"mode"] == b"cluster"


def test_without_a_cluster_there_is_none() -> None:
    client = InProcessServer().player()
    for line in (
        "CLUSTER INFO", "CLUSTER HELP", "CLUSTER MEET a 1", "CLUSTER MIGRATION STATUS ID x",
        "ASKING", "CLUSTER KEYSLOT k", "READONLY",
    ):  # fmt: skip
        assert error(client.call(line)) == "ERR This instance has cluster support disabled", line
    assert error(client.call("MIGRATE a 1 k 0 1")).startswith("ERR unknown command 'MIGRATE'")
    assert client.call("SELECT 1") == Simple("OK")


def test_dead_letters_of_another_slot_are_not_written(node: Node) -> None:
    """Rules of earlier data may name such a stream; TGROUP refuses it."""
    client = node.player()
    client.call(f"XADD {MINE} 1-1 f v")
    client.call(f"TGROUP {MINE} g START 0 TIMEOUT 1000 MAXDELIVER 1 DEADLETTER {{{MINE}}}dead")
    group = node.keyspace.databases[0].table[MINE.encode()].groups[b"g"]
    group.set_rules(dead_letter=LASTS.encode())
    assert len(client.call(f'TREAD {MINE} "" 1 GROUP g 0')) == 1
    node.wait_ms(2000)
    client.call(f'TREAD {MINE} "" 1 GROUP g 0')
    assert LASTS.encode() not in node.keyspace.databases[0].table
    assert client.call(f"XPENDING {MINE} g")[0] == 1
    group.set_rules(dead_letter=f"{{{MINE}}}dead".encode())
    node.wait_ms(2000)
    client.call(f'TREAD {MINE} "" 1 GROUP g 0')
    assert client.call(f"XLEN {{{MINE}}}dead") == 1


DOWN = "CLUSTERDOWN The cluster is down"
DOWN_TO_WRITES = "CLUSTERDOWN The cluster is down and only accepts read commands"


def configured(node: Node, **directives: bool) -> None:
    for name, value in directives.items():
        setattr(node.node._config.cluster, name, value)
    node.node.look_at_state()


def test_a_node_that_does_not_run_lets_the_others_serve() -> None:
    node = Node()
    node.node.note_states({3: NodeState("failed", 0, 0)})
    client = node.player()
    assert client.call(f"SET {MINE} v") == Simple("OK")
    assert error(client.call(f"GET {LASTS}")).startswith("MOVED")
    configured(node, allow_reads_when_down=True)
    assert client.call(f"SET {MINE} v") == Simple("OK")


def test_full_coverage_is_required() -> None:
    """The replies are those of Redis 7.0."""
    node = Node()
    node.node.coverage.start(node.executor, {})
    configured(node, require_full_coverage=True)
    client = node.player()
    assert client.call(f"SET {MINE} v") == Simple("OK")
    client.call("MULTI")
    client.call(f"SET {MINE} w")
    assert node.node.is_serving

    node.node.note_states({3: NodeState("failed", 0, 0)})
    assert not node.node.is_serving
    assert error(client.call("EXEC")) == DOWN
    for request in (f"GET {MINE}", f"SET {MINE} v", f"GET {LASTS}", f"GET {FIRSTS}"):
        assert error(client.call(request)) == DOWN, request
    assert error(client.call(f"MGET {MINE} {LASTS}")).startswith("CROSSSLOT")
    assert client.call("PING") == Simple("PONG")
    assert client.call("DBSIZE") == 1
    client.call("MULTI")
    assert error(client.call(f"GET {MINE}")) == DOWN
    assert error(client.call("EXEC")).startswith("EXECABORT")
    assert "cluster_state:fail" in client.call("CLUSTER INFO").decode()

    configured(node, allow_reads_when_down=True)
    assert client.call(f"GET {MINE}") == b"v"
    assert error(client.call(f"GET {LASTS}")).startswith("MOVED")
    assert error(client.call(f"SET {MINE} v")) == DOWN_TO_WRITES
    assert error(client.call(f"XREADGROUP GROUP g c STREAMS {MINE} >")) == DOWN_TO_WRITES
    client.call("MULTI")
    client.call(f"GET {MINE}")
    assert client.call("EXEC") == [b"v"]
    assert "cluster_state:fail" in client.call("CLUSTER INFO").decode()

    node.node.note_states({3: NodeState("loading", 0, 0)})
    assert node.node.is_serving
    assert client.call(f"SET {MINE} w") == Simple("OK")


def test_a_transaction_is_queued_before_the_cluster_is_down() -> None:
    node = Node()
    configured(node, require_full_coverage=True, allow_reads_when_down=True)
    client = node.player()
    client.call("MULTI")
    client.call(f"SET {MINE} w")
    node.node.note_states({1: NodeState("failed", 0, 0)})
    assert error(client.call("EXEC")) == DOWN_TO_WRITES
    assert client.call(f"EXISTS {MINE}") == 0


def test_a_slot_without_an_owner_and_full_coverage() -> None:
    """As in Redis, its own error comes first."""
    shards = [MAP.shards[0]._replace(ranges=((0, 5000),)), *MAP.shards[1:]]
    node = Node(MAP._replace(shards=tuple(shards)))
    client = node.player()
    assert client.call(f"SET {MINE} v") == Simple("OK")
    configured(node, require_full_coverage=True)
    assert error(client.call(f"GET {MINE}")) == DOWN
    assert error(client.call(f"GET {FIRSTS}")) == "CLUSTERDOWN Hash slot not served"
    configured(node, require_full_coverage=False)
    assert client.call(f"GET {MINE}") == b"v"


def test_blocked_reads_end_when_the_cluster_is_down() -> None:
    node = Node()
    client = node.player()
    node.node.coverage.start(node.executor, {client.id: client})
    configured(node, require_full_coverage=True, allow_reads_when_down=True)
    node.executor.feed(client, encode_command(["XREAD", "BLOCK", "0", "STREAMS", MINE, "$"]))
    node.settle()
    assert not client.unread
    node.node.note_states({1: NodeState("failed", 0, 0)})
    node.settle()
    assert error(client.read()) == DOWN
