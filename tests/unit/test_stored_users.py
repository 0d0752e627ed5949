"""Users of a cluster in a store: changes by any node, and nodes and stores that fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sim.store_model import StoreModel
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Reply, Simple
from tests.support.virtual_time import run_at_once

from millstream.commands.admin.acl import IN_TRANSACTION, STILL_CHANGING
from millstream.server.cluster.store.store import Change
from millstream.server.cluster.store.store_follower import LOOK_S, StoreFollower
from millstream.server.cluster.stored_users import UNREACHABLE, StoredUsers
from millstream.server.config.directives import Config
from millstream.server.execution.access import Access
from millstream.server.execution.user_store import UserStore

OK = Simple("OK")


class Node(InProcessServer):
    """A server with an aclfile, whose users are those of a cluster."""

    def __init__(self, model: StoreModel, name: str, folder: Path) -> None:
        super().__init__()
        folder.mkdir(exist_ok=True)
        self.path = folder / "users.acl"
        self.path.touch()
        self.killed: list[object] = []
        self.clients: dict[int, InProcessClient] = {}
        self.access = Access(self.executor, self.clients, self.killed.append)
        self.acl_config = Config(dir=folder, aclfile="users.acl")
        self.user_store = UserStore(self.acl_config, self.access)
        self.user_store.load_first()
        store = model.of_node(name)
        self.users = StoredUsers(store, self.access, self.acl_config)
        follower = StoreFollower(store, self.users.take, lambda problem: None)
        self.task = asyncio.create_task(follower.run())
        self.client: Any = self.player()
        self.client.file_number = self.client.total_bytes_in = self.client.total_bytes_out = 0
        self.clients[self.client.id] = self.client
        self.access.log_in_default(self.client)

    async def ask(self, line: str) -> Reply:
        """The reply to a request that may wait."""
        self.client.send(line)
        while not self.client.unread:
            await asyncio.sleep(0.05)
            self.settle()
        return self.client.read()

    def names(self) -> set[str]:
        return {user.name.decode() for user in self.access.users}

    def line(self, name: str) -> str:
        user = self.access.users.get(name.encode())
        assert user is not None
        return user.line().decode()

    def stop(self) -> None:
        self.task.cancel()
        self.users.stop()


def play(body: Callable[[StoreModel, Callable[[str], Node]], Awaitable[None]], path: Path) -> None:
    async def run() -> None:
        model = StoreModel(random.Random(3))
        nodes: list[Node] = []

        def node(name: str) -> Node:
            nodes.append(Node(model, name, path / name))
            return nodes[-1]

        await body(model, node)
        for one in nodes:
            one.stop()

    run_at_once(run())


def test_a_change_reaches_all_nodes(tmp_path: Path) -> None:
    async def body(model: StoreModel, node: Callable[[str], Node]) -> None:
        a, b = node("a"), node("b")
        await asyncio.sleep(1)
        assert await a.ask("ACL SETUSER ann on >secret +get ~x") == OK
        assert a.names() == {"ann", "default"}  # applied when the reply is here
        await asyncio.sleep(1)
        assert b.line("ann") == a.line("ann")
        assert await b.ask("ACL SETUSER ann +set") == OK
        assert "+get" in b.line("ann")
        await asyncio.sleep(1)
        assert "+set" in a.line("ann")
        assert a.path.read_bytes() == b.path.read_bytes() == model.state.values["users"].data
        assert b"default" not in a.path.read_bytes()
        assert await a.ask("ACL DELUSER ann nosuch") == 1
        await asyncio.sleep(1)
        assert a.names() == b.names() == {"default"}
        version = model.state.values["users"].version
        assert await b.ask("ACL DELUSER ann") == 0
        assert await b.ask("ACL SETUSER default on") == OK
        assert model.state.values["users"].version == version

    play(body, tmp_path)


def test_errors_change_nothing(tmp_path: Path) -> None:
    async def body(model: StoreModel, node: Callable[[str], Node]) -> None:
        a = node("a")
        assert "Syntax error" in str(await a.ask("ACL SETUSER ann nonsense"))
        assert a.client.call("MULTI") == OK
        a.client.call("ACL SETUSER ann on")
        assert a.client.call("EXEC") == [Error(IN_TRANSACTION)]
        (a.path).write_text("nonsense\n")
        assert "should start with user keyword" in str(await a.ask("ACL LOAD"))
        assert await a.ask("ACL DELUSER default") == Error(
            "ERR The 'default' user cannot be removed"
        )
        assert "users" not in model.state.values
        model.state.commit([], [Change("users", b"nonsense\n")])
        model.wake()
        await asyncio.sleep(1)
        assert a.names() == {"default"}
        assert "should start with user keyword" in str(await a.ask("ACL SETUSER ann on"))

    play(body, tmp_path)


def test_an_unreachable_store_refuses_changes(tmp_path: Path) -> None:
    async def body(model: StoreModel, node: Callable[[str], Node]) -> None:
        a, b = node("a"), node("b")
        assert await a.ask("ACL SETUSER ann on") == OK
        await asyncio.sleep(1)
        model.set_cut("a")
        assert await a.ask("ACL SETUSER ann off") == Error(UNREACHABLE)
        assert " on " in a.line("ann")
        assert await b.ask("ACL SETUSER ann off") == OK
        a.client.send("ACL SETUSER ann on")
        assert a.executor.unblock_client(a.client, False)  # CLIENT UNBLOCK
        a.settle()
        assert a.client.read() == Error(STILL_CHANGING)
        a.client.send("XREAD BLOCK 0 STREAMS s $")
        await asyncio.sleep(5)
        assert not a.client.unread  # its reply does not end another wait
        model.set_cut()
        await asyncio.sleep(LOOK_S)
        assert " off " in a.line("ann")

    play(body, tmp_path)


def test_a_node_starts_with_the_users_that_it_had(tmp_path: Path) -> None:
    async def body(model: StoreModel, node: Callable[[str], Node]) -> None:
        a = node("a")
        assert await a.ask("ACL SETUSER default >secret -@dangerous") == OK
        before = a.line("default")
        a.stop()
        model.set_cut(None)
        again = node("a")
        await asyncio.sleep(1)
        assert again.line("default") == before
        new = node("b")
        assert new.line("default") != before
        model.set_cut()
        await asyncio.sleep(3)
        assert new.line("default") == before

    play(body, tmp_path)


def test_acl_load_gives_all_nodes_the_file(tmp_path: Path) -> None:
    async def body(model: StoreModel, node: Callable[[str], Node]) -> None:
        a, b = node("a"), node("b")
        assert await a.ask("ACL SETUSER ann on") == OK
        b.path.write_text("user bob on nopass ~* +@all\n")
        assert await b.ask("ACL LOAD") == OK
        await asyncio.sleep(1)
        assert a.names() == b.names() == {"bob", "default"}

    play(body, tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_no_change_of_another_node_is_lost(seed: int, tmp_path: Path) -> None:
    """Nodes add users at the same time. All stay, and those with an unknown outcome may."""

    async def body(model: StoreModel, node: Callable[[str], Node]) -> None:
        model.chance.seed(seed)
        model.slowest_s, model.lost_replies = 0.3, 0.1
        nodes = [node(name) for name in "abc"]
        added, unknown = set(), set()

        async def add(one: Node, name: str) -> None:
            for number in range(6):
                reply = await one.ask(f"ACL SETUSER {name}{number} on")
                (added if reply == OK else unknown).add(f"{name}{number}")

        await asyncio.gather(*(add(one, name) for one, name in zip(nodes, "abc", strict=True)))
        model.slowest_s, model.lost_replies = 0.01, 0
        await asyncio.sleep(30)
        for one in nodes:
            assert added <= one.names() - {"default"} <= added | unknown
            assert one.names() == nodes[0].names()
        assert len(added) > 5

    play(body, tmp_path)
