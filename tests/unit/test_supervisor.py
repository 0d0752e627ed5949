"""The supervisor of the nodes of one machine, with small programs in place of the nodes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from millstream.errors import StartError
from millstream.server.cluster import supervisor as module
from millstream.server.cluster.node_settings import check_directives, check_ports, directives_of
from millstream.server.cluster.relay import NAME as PEER
from millstream.server.cluster.relay import Peer, Relay
from millstream.server.cluster.shared_users import NAME, SharedUsers, open_users
from millstream.server.cluster.supervisor import NodeProcess, Supervisor
from millstream.server.cluster.unix_sockets import ask_supervisor, listening_socket
from millstream.server.config.directives import Config
from millstream.server.config.lines import Line
from millstream.server.config.loading import load
from millstream.server.protocol.outbox import Client

# A node: it becomes ready, notes what it receives, and ends at SIGTERM, or at once with the code
# that a file next to the notes has.
NODE = """
import os, pathlib, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
notes = pathlib.Path(sys.argv[1])
end = socket.socket(fileno=int(os.environ["MILLSTREAM_SUPERVISOR"]))
failure = notes.with_suffix(".fails")
if failure.exists():
    sys.exit(int(failure.read_text()))
end.send(b'{"health": "online", "frame": 7}\\n')
if sys.argv[1].endswith("1"):
    end.send(b'{"change": 1, "user": "ann", "line": "user ann on"}\\n')
lines = end.makefile("rb")
for line in lines:
    with notes.open("ab") as file:
        file.write(line)
"""


def command(tmp_path: Path, number: int) -> list[str]:
    return [sys.executable, "-c", NODE, str(tmp_path / f"notes{number}")]


def notes(tmp_path: Path, number: int) -> list[dict[str, object]]:
    path = tmp_path / f"notes{number}"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    config = Config(dir=tmp_path, port=7000)
    users = SharedUsers(tmp_path / NAME)
    return Supervisor(config, [command(tmp_path, number) for number in (1, 2)], users)


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


def test_nodes_are_restarted_told_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> int:
        one = supervise(tmp_path, monkeypatch)
        task = asyncio.create_task(one.run())
        await until(lambda: all(node.health == "online" for node in one._nodes))
        second = one._nodes[1]
        first_pid = second.pid
        assert first_pid is not None
        os.kill(first_pid, signal.SIGKILL)
        await until(lambda: second.pid not in (None, first_pid) and second.health == "online")
        found = await asyncio.to_thread(ask_supervisor, tmp_path)
        assert found is not None
        assert found["nodes"]["2"] == {
            "health": "online", "port": 7002, "pid": second.pid, "frame": 7,
        }  # fmt: skip
        await until(lambda: {"users": 1, "loaded": False} in notes(tmp_path, 1))
        monkeypatch.setattr(module, "SILENT_S", 0)
        assert second.state().health == "failed"  # it hangs
        assert second.note({"health": "online", "frame": 8})
        monkeypatch.setattr(module, "SILENT_S", 1000)
        assert second.state().health == "online"
        os.kill(os.getpid(), signal.SIGTERM)
        return await task

    assert asyncio.run(run()) == 0
    assert ask_supervisor(tmp_path) is None
    states = [line["nodes"] for line in notes(tmp_path, 1) if "nodes" in line]
    seen = {state["2"][0] for state in states}  # type: ignore[index]
    assert {"failed", "online"} <= seen
    assert (tmp_path / NAME).read_bytes() == b"user ann on\n"


def test_a_node_that_cannot_start_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes2.fails").write_text("1")

    async def run() -> int:
        async with asyncio.timeout(10):
            return await supervise(tmp_path, monkeypatch).run()

    assert asyncio.run(run()) == 1


def test_a_slow_stop_is_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemctl kill -s SIGUSR2 sends it to all processes of the unit."""

    async def run() -> int:
        one = supervise(tmp_path, monkeypatch)
        task = asyncio.create_task(one.run())
        await until(lambda: all(node.health == "online" for node in one._nodes))
        os.kill(os.getpid(), signal.SIGUSR2)
        return await task

    assert asyncio.run(run()) == 0


def test_nodes_that_are_stopped_before_they_run_end_well(tmp_path: Path) -> None:
    async def run() -> int:
        sleeping = [sys.executable, "-c", "import time; time.sleep(1000)"]
        one = Supervisor(Config(dir=tmp_path, port=7000), [sleeping], SharedUsers(tmp_path / NAME))
        task = asyncio.create_task(one.run())
        await asyncio.sleep(0)  # the supervisor begins
        await until(lambda: len(asyncio.all_tasks()) > 2)  # the node is being started
        one._stop(signal.SIGTERM)
        async with asyncio.timeout(10):
            return await task

    assert asyncio.run(run()) == 0


def test_a_gateway_that_hangs_does_not_keep_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATEWAY_STOP_S", 0.1)

    async def run() -> int:
        users = SharedUsers(tmp_path / NAME)
        config = Config(dir=tmp_path, port=7000)
        one = Supervisor(config, [command(tmp_path, 1)], users, [command(tmp_path, 0)])
        task = asyncio.create_task(one.run())
        await until(lambda: all(node.health == "online" for node in one._all()))
        (gateway,) = one._gateways
        assert gateway.pid is not None
        os.kill(gateway.pid, signal.SIGSTOP)
        one._stop(signal.SIGTERM)
        async with asyncio.timeout(10):
            return await task

    assert asyncio.run(run()) == 1  # not all have ended well


@pytest.mark.parametrize("is_late", [False, True])
def test_a_gateway_is_started_after_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Unless a node takes too long."""
    monkeypatch.setattr(module, "GATEWAY_START_S", 0.01 if is_late else 1000)
    sleeping = [sys.executable, "-c", "import time; time.sleep(1000)"]

    async def run() -> int:
        users = SharedUsers(tmp_path / NAME)
        first = sleeping if is_late else command(tmp_path, 1)
        one = Supervisor(Config(dir=tmp_path, port=7000), [first], users, [command(tmp_path, 0)])
        (node,), (gateway,) = one._nodes, one._gateways
        found: list[str] = []
        monkeypatch.setattr(gateway, "run", partial(noted, found, node, gateway.run))
        task = asyncio.create_task(one.run())
        await until(lambda: gateway.health == "online")
        assert found == ["loading" if is_late else "online"]
        one._stop(signal.SIGTERM)
        async with asyncio.timeout(10):
            return await task

    assert asyncio.run(run()) == 0


async def noted(found: list[str], node: NodeProcess, start: Callable[[], Awaitable[int]]) -> int:
    """Start a gateway, and note the health of a node before."""
    found.append(node.health)
    return await start()


def test_a_gateway_that_still_waits_for_nodes_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "notes1.fails").write_text("1")

    async def run() -> int:
        users, nodes = SharedUsers(tmp_path / NAME), [command(tmp_path, 1)]
        one = Supervisor(Config(dir=tmp_path, port=7000), nodes, users, [command(tmp_path, 0)])
        async with asyncio.timeout(4):
            return await one.run()

    assert asyncio.run(run()) == 1
    assert not notes(tmp_path, 0)


# ---------------------------------------------------------------- users


def test_changes_of_users_are_merged_by_user(tmp_path: Path) -> None:
    users = SharedUsers(tmp_path / NAME)
    users.path.write_bytes(b"# comment\nuser default on nopass\nuser ann off\n")
    assert users.change(1, 1, b"bob", b"user bob on")
    assert users.change(2, 1, b"ann", b"user ann on")
    assert users.change(1, 2, b"default", None)
    assert users.path.read_bytes() == b"# comment\nuser bob on\nuser ann on\n"
    assert users.path.stat().st_mode & 0o777 == 0o600
    assert users.seen == {1: 2, 2: 1}
    users.forget(1)
    assert users.seen[1] == 0
    users.path.unlink()
    users.path.mkdir()
    assert not users.change(2, 2, b"ann", None)
    assert users.seen[2] == 1


def test_without_an_aclfile_there_is_one(tmp_path: Path) -> None:
    found = open_users(Config(dir=tmp_path))
    assert found.path == tmp_path / NAME
    assert found.path.read_bytes() == b""
    given = open_users(Config(dir=tmp_path, aclfile="my.acl"))
    assert given.path == tmp_path / "my.acl"
    assert not given.path.exists()
    config = Config(dir=tmp_path)
    config.user_lines.append(Line("a.conf, line 3", "user", ["ann", "on"]))
    with pytest.raises(StartError, match=r"a\.conf, line 3: `user` lines cannot be given"):
        open_users(config)


# ---------------------------------------------------------------- directives


def test_directives_of_a_node(tmp_path: Path) -> None:
    config = Config(dir=tmp_path, port=7000, maxmemory=1000, unixsocket="/run/m")
    config.tls.port, config.metrics.port = 8000, 9000
    words = directives_of(config, 2, tmp_path / NAME)
    own = dict(zip(words[::2], words[1::2], strict=True))
    assert own == {
        "--dir": f"{tmp_path}/0002", "--cluster-enabled": "yes", "--pidfile": "",
        "--supervised": "no",
        "--port": "7002", "--tls-port": "8002", "--metrics-port": "9002",
        "--unixsocket": "/run/m.2", "--aclfile": f"{tmp_path}/{NAME}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("port", "tls", "metrics", "reason"),
    [
        (7000, 0, 65532, "metrics-port 65532 is too high for 3 nodes.*65531 is the highest"),
        (0, 0, 0, "--shards needs a port"),
        (65533, 0, 0, "port 65533 is too high for 3 nodes.*65532 is the highest"),
        (7000, 65534, 0, "tls-port 65534 is too high"),
        (7000, 7003, 0, "port 7000 and tls-port 7003 are too close"),
        (7000, 8000, 7998, "tls-port 8000 and metrics-port 7998 are too close"),
    ],
)
def test_ports_that_nodes_cannot_have(port: int, tls: int, metrics: int, reason: str) -> None:
    config = Config(port=port)
    config.tls.port, config.metrics.port = tls, metrics
    with pytest.raises(StartError, match=reason):
        check_ports(config, 3, gateways=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("cluster-announce-port", 7), ("cluster-announce-tls-port", 7), ("replicaof", "a 1")],
)
def test_directives_that_nodes_cannot_share(name: str, value: object) -> None:
    with pytest.raises(StartError, match=f"{name} cannot be given with --shards"):
        check_directives(Config(**{name: value}))


@pytest.mark.parametrize("words", ["--cluster-name prod", "--cluster-name p --cluster-etcd x:1"])
def test_nodes_of_one_machine_are_not_in_etcd(words: str) -> None:
    with pytest.raises(StartError, match="cluster-name and cluster-etcd cannot be given"):
        check_directives(load(None, words.split()))


# ---------------------------------------------------------------- messages


class AtOnce:
    """An outbox whose frames are always on the disk."""

    def attach(self, client: Client) -> None: ...

    def push_encoded(self, client: Client, data: bytes) -> None:
        client.transmit(data)


class Waiting(AtOnce):
    """One whose frames are not on the disk yet."""

    def __init__(self) -> None:
        self.held: list[bytes] = []

    def push_encoded(self, client: Client, data: bytes) -> None:
        self.client = client
        self.held.append(data)


def test_a_message_waits_for_the_journal(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    found: list[tuple[bytes, bytes]] = []

    async def run() -> None:
        loop, outbox = asyncio.get_running_loop(), Waiting()
        one = Relay(folders[0], [folders[1]], lambda *words: None, loop, outbox)
        other = Relay(folders[1], [], lambda *words: found.append(words), loop, AtOnce())
        one.publish(b"news", b"early")
        await asyncio.sleep(0)
        assert not found
        outbox.client.transmit_all(outbox.held, 0)
        await until(lambda: found)
        outbox.held.clear()
        for _ in range(3):
            one.publish(b"", b"v" * 500_000)
        assert (len(outbox.held), one.dropped) == (2, 1)
        outbox.client.end(False)  # the journal has failed
        assert one.dropped == 2
        one.publish(b"news", b"again")
        assert len(outbox.held) == 3
        one.close()
        other.close()

    asyncio.run(run())
    assert found == [(b"news", b"early")]


def test_messages_reach_the_other_nodes_or_are_counted(tmp_path: Path) -> None:
    folders = [tmp_path / ("x" * 100 + str(number)) for number in (1, 2, 3)]
    for folder in folders:
        folder.mkdir()
    found: dict[int, list[tuple[bytes, bytes]]] = {0: [], 1: []}

    async def run() -> None:
        loop = asyncio.get_running_loop()
        relays = [
            Relay(
                folders[at],
                [folder for folder in folders if folder != folders[at]],
                lambda channel, message, at=at: found[at].append((channel, message)),
                loop,
                AtOnce(),
            )
            for at in (0, 1)
        ]
        large = b"v" * 500_000
        for relay in relays:
            relay.publish(b"news", b"")
            relay.publish(b"", large)
        await until(lambda: all(len(one) == 2 for one in found.values()))
        assert found[0] == found[1] == [(b"news", b""), (b"", large)]
        assert relays[0].dropped == 2  # node 3 does not run
        relays[0].publish(b"", b"v" * (1 << 20))
        assert relays[0].dropped == 4  # too large for any node
        relays[1].close()
        await until(lambda: drops_another(relays[0]))
        again = Relay(folders[1], [], lambda *words: found[1].append(words), loop, AtOnce())
        relays[0].publish(b"news", b"again")
        await until(lambda: (b"news", b"again") in found[1])
        again.close()
        relays[0].close()

    asyncio.run(run())


def test_messages_flow_again_after_a_slow_node_has_died(tmp_path: Path) -> None:
    found: list[tuple[bytes, bytes]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        slow = listening_socket(tmp_path, PEER)
        peer = Peer(tmp_path, loop)
        frame = b"v" * 500_000
        sent = 0
        while not peer.dropped:
            peer.send(frame)
            sent += 1
        slow.close()
        await until(lambda: peer.dropped == sent)  # none of them has arrived as a whole
        (tmp_path / PEER).unlink()
        again = Relay(tmp_path, [], lambda *words: found.append(words), loop, AtOnce())
        peer.send(struct.pack("<II", 0, 1 << 19) + b"v" * (1 << 19))
        await until(lambda: found)
        again.close()
        peer.close()
        assert peer.dropped == sent

    asyncio.run(run())


def drops_another(relay: Relay) -> bool:
    """True if neither of the two other nodes gets a message now."""
    before = relay.dropped
    relay.publish(b"news", b"lost")
    return relay.dropped == before + 2
