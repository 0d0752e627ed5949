"""The dashboard of a cluster: nodes on one machine, of which one hangs, and members of a shard, of
which another one becomes the primary."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.dashboard.conftest import Board, Visit
from tests.support.etcd import Etcd
from tests.support.http import fetch
from tests.support.member_servers import MemberServers
from tests.support.resp import Simple
from tests.support.roles import PASSWORD
from tests.support.roles import rules as rules_of
from tests.support.server import Server
from tests.support.shards import Shards
from tests.support.waiting import wait_until

from millstream.node_figures import (
    FoundNode,
    NodeFigures,
    read_shards,
    slot_nodes,
    totals_of,
)
from millstream.server_url import url_of_node
from millstream.slot_routing import Address

Boards = Callable[..., Board]
Visits = Callable[..., Visit]
KEYS = [f"orders:{number}" for number in range(9)]  # on all three nodes


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    shards = Shards(tmp_path_factory.mktemp("shards") / "data", {"appendfsync": "no"})
    shards.start()
    with shards.node(0) as gateway:
        for key in KEYS:
            gateway.call("XADD", key, "1-1", "f", key)
            gateway.call("XGROUP", "CREATE", key, "g", "0")
            gateway.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", key, ">")
    yield shards
    if shards.is_alive():
        assert shards.stop() == 0


def body(board: Board, path: str) -> str:
    answer = fetch(board.port, path)
    assert answer.status == 200, answer
    return answer.body.decode()


def listed(board: Board) -> list[str]:
    return sorted(set(re.findall(r"key=(orders%3A\d)", body(board, "/?sort=lag"))))


def as_server(port: int) -> Server:
    """A server with this port as the URL of a dashboard."""
    server = Server(Path("/nowhere"))
    server.port = port
    return server


@pytest.mark.parametrize("number", [0, 2], ids=["gateway", "node"])
def test_all_streams_are_listed_and_read(shards: Shards, new_board: Boards, number: int) -> None:
    with shards.node(1) as node:
        rules = [*rules_of("dashboard"), "+cluster|shards", "+cluster|info"]
        assert node.call("ACL", "SETUSER", "board", *rules) == Simple("OK")
    board = new_board(as_server(shards.port + number), login=f"board:{PASSWORD}@")
    assert len(listed(board)) == len(KEYS)
    for key in KEYS:
        assert f"<td>{key}</td>" in body(board, f"/stream?db=0&key={key}")
        assert "ann" in body(board, f"/group?db=0&key={key}&name=g")
    for port in shards.ports():
        assert f"127.0.0.1:{port}</td>" in body(board, "/clients")
        assert f"<td>{port}</td>" in body(board, f"/server?node=127.0.0.1:{port}")
    assert fetch(board.port, "/server?node=127.0.0.1:1").status == 404
    with shards.node(1) as node:
        node.call("ACL", "DELUSER", "board")


def test_actions_reach_the_node_of_the_stream(
    shards: Shards, new_board: Boards, visit: Visits
) -> None:
    board = new_board(as_server(shards.ports()[0]), "--actions")
    page = visit().page
    with shards.node(0) as gateway:
        for key in KEYS[:2]:  # on other nodes than the one that the dashboard was given
            page.goto(board.path("/group", key.encode(), name=b"g"))
            page.get_by_role("link", name="Acknowledge").click()
            page.get_by_role("button", name="Acknowledge").click()
            page.get_by_text("1 entry was acknowledged").wait_for()
            page.goto(board.path("/group/pause", key.encode(), name=b"g"))
            page.get_by_role("button", name="Pause").click()
            page.get_by_text("paused until it is resumed").wait_for()
            page.goto(board.path("/stream", key.encode()))
            page.get_by_role("button", name="Follow live").click()
            page.get_by_text("Following, 0 new").wait_for()
            gateway.call("XADD", key, "2-1", "f", "followed")
            page.get_by_text("Following, 1 new").wait_for()
            assert page.get_by_role("cell", name="followed").is_visible()


def test_the_page_of_nodes_is_accessible(shards: Shards, new_board: Boards, visit: Visits) -> None:
    board = new_board(as_server(shards.ports()[0]))
    seen = visit(400, "dark")
    for path in ("/nodes", "/server"):
        seen.page.goto(board.address + path)
        assert seen.serious_findings() == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 400
    seen.page.get_by_role("link", name="Nodes").click()
    rows = seen.page.get_by_role("row")
    assert [row.split("\t")[1:5] for row in rows.all_inner_texts()[1:]] == [
        ["online", "primary", "1", "0-5460"],
        ["online", "primary", "2", "5461-10922"],
        ["online", "primary", "3", "10923-16383"],
    ]


def test_a_node_that_hangs_does_not_stop_the_others(
    shards: Shards, new_board: Boards, visit: Visits
) -> None:
    board = new_board(as_server(shards.ports()[2]))
    with shards.node(0) as gateway:
        slots = {key: gateway.call("CLUSTER", "KEYSLOT", key) for key in KEYS}
    gone = [key for key, slot in slots.items() if int(str(slot)) <= 5460]
    assert gone
    pid = shards.pid_of(1)
    page = visit().page
    page.goto(board.address + "/nodes")
    os.kill(pid, signal.SIGSTOP)
    try:
        page.get_by_text("it has not answered within 2 s").first.wait_for(timeout=20_000)
        assert page.get_by_text("2 of 3").is_visible()
        page.goto(board.address + "/")
        assert page.get_by_text("The streams of a node are not listed").is_visible()
        assert len(listed(board)) == len(KEYS) - len(gone)
        answer = fetch(board.port, f"/stream?db=0&key={gone[0]}")
        assert answer.status == 503
        assert f"127.0.0.1:{shards.port + 1}: it has not answered" in answer.body.decode()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: len(listed(board)), lambda count: count == len(KEYS), "all streams", 20)


def test_one_server_has_no_nodes(ours: Server, new_board: Boards) -> None:
    board = new_board(ours)
    assert "Nodes" not in body(board, "/")
    assert fetch(board.port, "/nodes").status == 404


# ---------------------------------------------------------------- members of a shard


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberServers]:
    folder = tmp_path_factory.mktemp("members")
    etcd = Etcd(folder / "etcd").start()
    with ThreadPoolExecutor(1) as thread:  # in this one, the browser's event loop may run
        members = thread.submit(MemberServers, folder, etcd).result().start()
    yield members
    members.kill()
    etcd.kill()


def test_a_failover_is_followed(members: MemberServers, new_board: Boards, visit: Visits) -> None:
    """The dashboard has the URL of the primary that ends. A page that follows a stream has the
    entries of the next one, too."""
    before = members.wait_for_primary()
    with before.client() as client:
        client.call("XADD", "orders:1", "1-1", "f", "v")
    board = new_board(before)
    nodes, followed = visit(), visit()
    nodes.page.goto(board.address + "/nodes")
    texts = nodes.page.get_by_role("row").all_inner_texts()[1:]
    assert sorted(text.split("\t")[2] for text in texts) == ["primary", "replica", "replica"]
    assert [text.split("\t")[8] for text in texts if "replica" in text] == ["0 B", "0 B"]
    followed.page.goto(board.path("/stream", b"orders:1"))
    followed.page.get_by_role("button", name="Follow live").click()
    followed.page.get_by_text("Following, 0 new").wait_for()
    nodes.expects_errors = followed.expects_errors = True
    before.kill()
    after = members.wait_for_primary(before)
    with after.client() as client:
        client.call("XADD", "orders:1", "2-1", "f", "later")
    followed.page.get_by_role("cell", name="later").wait_for(timeout=20_000)
    wait_until(lambda: fetch(board.port, "/stream?db=0&key=orders:1").status == 200, what="a page")
    row = nodes.page.get_by_role("row").filter(has_text=f":{after.port}")
    row.get_by_text("primary").wait_for(timeout=20_000)
    row.get_by_text("online").wait_for(timeout=20_000)
    dead = nodes.page.get_by_role("row").filter(has_text=f":{before.port}")
    dead.get_by_text("replica").wait_for(timeout=20_000)
    dead.get_by_text(re.compile("^(failed|unreachable)")).wait_for(timeout=20_000)


# ---------------------------------------------------------------- replies


def shard(slots: list[int], *nodes: list[object]) -> list[object]:
    return [b"slots", slots, b"nodes", list(nodes)]


def row(name: bytes, role: bytes, port: int, health: bytes = b"online", **more: object) -> list:  # type: ignore[type-arg]
    words = [word for key, value in more.items() for word in (key.encode(), value)]
    return [b"id", name, b"port", port, b"tls-port", port + 1, b"ip", b"10.0.0.1", *words,
            b"role", role, b"replication-offset", 1, b"health", health]  # fmt: skip


def test_shards_are_in_the_order_of_their_slots() -> None:
    reply = [
        shard([100, 200], row(b"c", b"master", 3, endpoint=b"host.example")),
        shard([], row(b"d", b"replica", 5, endpoint=b"::1")),
        shard(
            [0, 9, 20, 20],
            row(b"b", b"replica", 2, endpoint=None),
            row(b"x", b"master", 7, b"failed", endpoint=b"?"),
            row(b"a", b"master", 1, endpoint=b""),
        ),
    ]
    found = read_shards(reply, Address("asked", 9), uses_tls=False)
    assert [(one.id, one.shard, one.name) for one in found] == [
        ("a", 1, "asked:1"), ("x", 1, "asked:7"), ("b", 1, "asked:2"),
        ("c", 2, "host.example:3"), ("d", 3, "[::1]:5"),
    ]  # fmt: skip
    assert found[0].ranges == ((0, 9), (20, 20))
    served = slot_nodes(found)
    assert [served.node_of(slot) for slot in (20, 21, 150)] == [
        ("asked", 1), None, ("host.example", 3)
    ]  # fmt: skip
    assert read_shards(reply, Address("asked", 9), uses_tls=True)[0].address.port == 2


def test_the_lag_is_that_which_the_primary_knows() -> None:
    def figures(port: int, is_primary: bool, **info: str) -> NodeFigures:
        role = {"role": "master" if is_primary else "slave", "used_memory": "5"}
        address = Address("10.0.0.1", port)
        ranges = ((0, 9),) if is_primary else ()
        node = FoundNode(str(port), address, 1, is_primary, ranges, "online")
        return NodeFigures(node, role | info, {"cluster_my_epoch": "7"})

    known = "ip=10.0.0.1,port=2,state=online,offset=90,lag=0"
    all_nodes = [
        figures(1, True, master_repl_offset="100", slave0=known, aof_last_write_status="err"),
        figures(2, False, slave_repl_offset="95"),
        figures(3, False, slave_repl_offset="97", master_link_status="down"),
        NodeFigures(figures(4, False).node, {}, {}, "no answer"),
    ]
    for one in all_nodes:
        one.set_lag(all_nodes)
    assert [one.lag_bytes for one in all_nodes] == [None, 10, 3, None]
    assert [one.health for one in all_nodes] == ["online", "online", "no link", "unreachable"]
    assert totals_of(all_nodes) == (4, 2, 10, 15, 0, 0, 1)


def test_urls_of_other_nodes_have_the_same_user_and_options() -> None:
    options = "?ssl_ca_certs=ca.pem&db=0"
    assert url_of_node(f"rediss://u:p%40@a:1/0{options}", "b", 2) == (
        "rediss://u:p%40@b:2?ssl_ca_certs=ca.pem"
    )
    assert url_of_node("unix://u:p@/run/x.sock?db=0", "::1", 2) == "redis://u:p@[::1]:2"
