"""`millstream serve --shards`: real clients of a cluster, nodes that end, and directories that are
refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from redis.cluster import RedisCluster
from tests.support.node import Program
from tests.support.resp import Error, Null, Simple
from tests.support.server import PROGRAM
from tests.support.shards import Shards, free_range
from tests.support.waiting import wait_until

from millstream.__main__ import main
from millstream.server.cluster.slot_map import read_map
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import read_manifest, store_manifest
from millstream.tools import node_surveys

KEYS = [f"k{number}" for number in range(60)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    shards = Shards(
        tmp_path_factory.mktemp("shards") / "data", {"maxmemory": "300mb", "appendfsync": "no"}
    )
    shards.start()
    yield shards
    if shards.is_alive():
        assert shards.stop() == 0


@pytest.fixture
def cluster(shards: Shards) -> Iterator[RedisCluster]:
    with RedisCluster("127.0.0.1", shards.ports()[0], protocol=3) as client:
        client.flushall(target_nodes=RedisCluster.PRIMARIES)
        yield client


def health(shards: Shards, number: int) -> str:
    """The health of a node as the supervisor knows it."""
    return str(shards.status()["nodes"][str(number)]["health"])


def redis_cli(*words: str) -> str:
    done = subprocess.run(["redis-cli", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def refusal(*words: str) -> str:
    """The last line of a start that is refused. With --shards, no process is started before."""
    if "--shards" in words:
        done = CliRunner().invoke(main, ["serve", *words])
        assert done.exit_code == 1, done.output
        return done.output.splitlines()[-1]
    program = subprocess.run([PROGRAM, "serve", *words], capture_output=True, text=True, timeout=60)
    assert program.returncode == 1, program
    return program.stderr.splitlines()[-1]


def test_a_tool_names_the_node_of_a_key(shards: Shards) -> None:
    other = f"redis://127.0.0.1:{shards.ports()[0]}"
    done = CliRunner().invoke(main, ["tail", "foo", "--url", other])
    assert done.exit_code == 1
    assert (
        f"belongs to another node of the cluster, at 127.0.0.1:{shards.ports()[2]}" in done.output
    )


def test_redis_py_uses_streams_on_all_nodes(shards: Shards, cluster: RedisCluster) -> None:
    for key in KEYS:
        cluster.xgroup_create(key, "g", mkstream=True)
        assert cluster.xadd(key, {"f": key}) is not None
    for key in KEYS:
        [[(entry_id, fields)]] = cluster.xreadgroup("g", "c", {key: ">"})[key.encode()]
        assert fields == {b"f": key.encode()}
        assert cluster.xack(key, "g", entry_id) == 1
    sizes = []
    for number in range(1, 4):
        with shards.node(number) as node:
            sizes.append(node.call("DBSIZE"))
    assert sum(sizes) == len(KEYS)
    assert all(sizes)
    assert set(map(bytes.decode, cluster.keys(target_nodes=RedisCluster.PRIMARIES))) == set(KEYS)
    assert {key.decode() for key in cluster.scan_iter()} == set(KEYS)
    pipe = cluster.pipeline()
    for key in KEYS:
        pipe.xlen(key)
    assert pipe.execute() == [1] * len(KEYS)


def test_redis_cli_follows_and_checks(shards: Shards, cluster: RedisCluster) -> None:
    first = str(shards.ports()[0])
    assert redis_cli("-c", "-p", first, "SET", "foo", "v").strip() == "OK"
    assert redis_cli("-c", "-p", first, "GET", "foo").strip() == "v"
    checked = redis_cli("--cluster", "check", f"127.0.0.1:{first}")
    assert "[OK] All nodes agree about slots configuration." in checked
    assert "[OK] All 16384 slots covered." in checked


@pytest.mark.parametrize("library", ["ioredis", "redis"])
def test_clients_for_node_js_use_all_nodes(shards: Shards, library: str) -> None:
    with Program("cluster.cjs", library, shards.ports()[0], 20) as program:
        assert program.hear() == 20


def test_shard_channels_belong_to_a_slot(shards: Shards, cluster: RedisCluster) -> None:
    with shards.node(3) as owner, shards.node(1) as other:
        assert owner.line("SSUBSCRIBE foo")
        moved = Error(f"MOVED 12182 127.0.0.1:{shards.ports()[2]}")
        assert other.line("SPUBLISH foo m") == moved
        assert owner.line("SUNSUBSCRIBE foo")


def test_messages_reach_the_subscribers_of_all_nodes(shards: Shards) -> None:
    with shards.node(1) as first, shards.node(2) as second, shards.node(3) as third:
        assert second.line("SUBSCRIBE news")
        assert third.line("PSUBSCRIBE n*")
        assert first.line("PUBLISH news hello") == 0
        assert second.read() == [b"message", b"news", b"hello"]
        assert third.read() == [b"pmessage", b"n*", b"news", b"hello"]


def test_top_shows_the_streams_of_all_nodes(
    shards: Shards, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a node or the gateway. A node that hangs costs a moment, and its streams."""
    for key in KEYS:
        cluster.xadd(key, {"f": "v"})
    monkeypatch.setattr(node_surveys, "NODE_S", 0.3)
    for port in (shards.port, shards.ports()[0]):
        seen = top(port)
        assert sorted(stream["key"] for stream in seen["streams"]) == sorted(KEYS)
        assert [(node["address"], node["health"]) for node in seen["nodes"]] == [
            (f"127.0.0.1:{port}", "online") for port in shards.ports()
        ]
    gone = [key for key in KEYS if cluster.keyslot(key) > 10922]
    os.kill(pid := shards.pid_of(3), signal.SIGSTOP)
    try:
        seen = top(shards.ports()[0])
        assert sorted(s["key"] for s in seen["streams"]) == sorted({*KEYS} - {*gone})
        assert seen["nodes"][2]["health"] in ("unreachable", "failed")
        assert f"{shards.ports()[2]}: " in seen["nodes"][2]["problem"]
    finally:
        os.kill(pid, signal.SIGCONT)
    text = CliRunner().invoke(main, top_words(shards.ports()[2], "--once", "--streams-max", "7"))
    assert "3 of 3 nodes are online" in text.output
    assert "only the first 7 streams" in text.output


def top_words(port: int, *words: str) -> list[str]:
    return ["top", "--url", f"redis://127.0.0.1:{port}", "--interval", "0.1", *words]


def top(port: int) -> Any:
    done = CliRunner().invoke(main, top_words(port, "--json"))
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_users_are_those_of_all_nodes(shards: Shards) -> None:
    with shards.node(1) as first, shards.node(2) as second, shards.node(3) as third:
        assert first.line("ACL SETUSER ann on >secret ~a* +get") == Simple("OK")
        line = wait_until(lambda: third.line("ACL GETUSER ann"), lambda found: bool(found), "ann")
        assert line == first.line("ACL GETUSER ann")
        second.line("AUTH ann secret")
        assert first.line("ACL SETUSER ann ~c*") == Simple("OK")
        wait_until(lambda: third.line("ACL GETUSER ann"), lambda found: found != line, "the change")
        wait_until(lambda: second.line("GET c"), lambda reply: reply is Null.BULK, "a read of c")
        assert third.line("ACL DELUSER ann") == 1
        wait_until(lambda: first.line("ACL USERS"), lambda names: names == [b"default"], "no ann")
    assert (shards.directory / "users.acl").stat().st_mode & 0o777 == 0o600


def test_each_node_has_its_share_of_the_memory(shards: Shards) -> None:
    for number in range(1, 4):
        with shards.node(number) as node:
            assert node.line("CONFIG GET maxmemory") == [b"maxmemory", b"%d" % (100 << 20)]
            assert node.info("server")["redis_mode"] == "cluster"
            assert node.info("cluster")["cluster_enabled"] == "1"


def test_a_node_that_dies_is_started_again(shards: Shards, cluster: RedisCluster) -> None:
    cluster.set("foo", "v")  # node 3
    killed = shards.pid_of(3)
    os.kill(killed, signal.SIGKILL)
    with shards.node(1) as other:
        wait_until(
            lambda: other.line("CLUSTER NODES"), lambda text: b",fail" in text, "the failed node"
        )
        assert other.line("SET bar v") == Simple("OK")  # its own slots are served
        wait_until(lambda: health(shards, 3), lambda seen: seen == "online", "its restart")
        wait_until(
            lambda: other.line("CLUSTER NODES"), lambda text: b",fail" not in text, "the news"
        )
    assert shards.pid_of(3) != killed
    assert "node 0003 has ended by SIGKILL: it is started again in 1 s" in shards.log
    assert cluster.get("foo") in (b"v", None)  # appendfsync no


def test_directories_are_refused_with_what_to_do(shards: Shards, tmp_path: Path) -> None:
    folder = str(shards.directory)
    port = str(free_range(5))
    assert f"{folder} is a directory of 3 nodes" in refusal("--dir", folder, "--port", port)
    whose = refusal("--dir", f"{folder}/0001", "--port", port)
    assert "another server" in whose or "node of a cluster" in whose
    single = tmp_path / "single"
    shutil.copytree(
        shards.directory / "0001", single, ignore=shutil.ignore_patterns("*.sock", "lock")
    )
    text = refusal("--dir", str(single), "--port", port, "--shards", "2")
    assert f"`millstream cluster split {single} OUT --shards 2`" in text
    assert "node of a cluster" in refusal("--dir", str(single), "--port", port)
    assert "needs a port" in refusal("--dir", folder, "--port", "0", "--shards", "3")
    assert "65532 is the highest" in refusal("--dir", folder, "--port", "65533", "--shards", "3")
    assert "cluster-announce-port" in refusal(
        "--dir", folder, "--port", port, "--shards", "3", "--cluster-announce-port", "7"
    )
    assert "no cluster.json" in refusal(
        "--dir", str(single), "--port", port, "--cluster-enabled", "yes"
    )


def test_nodes_end_with_the_supervisor_and_keep_their_data(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "data", count=2)
    shards.start()
    with shards.node(1) as first, shards.node(2) as second:
        assert first.line("SET bar 1") == Simple("OK")
        assert second.line("SET foo 2") == Simple("OK")
        pids = [shards.pid_of(1), shards.pid_of(2)]
        ids = first.line("CLUSTER MYID"), second.line("CLUSTER MYID")
    shards.kill()
    for pid in pids:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), what="the end of the nodes")
    assert "is a directory of 2 nodes" in refusal(
        "--dir", str(shards.directory), "--port", str(shards.port), "--shards", "4"
    )
    disk = SystemDisk(shards.directory / "0001")
    manifest = read_manifest(disk)
    assert manifest is not None
    store_manifest(disk, manifest._replace(node=""))  # as in a backup
    shards.start()
    assert read_manifest(disk) == manifest
    with shards.node(1) as first, shards.node(2) as second:
        assert (first.line("GET bar"), second.line("GET foo")) == (b"1", b"2")
        assert isinstance(first.line("GET foo"), Error)
        assert (first.line("CLUSTER MYID"), second.line("CLUSTER MYID")) == ids
        # A node that is shut down is started again, as one that has crashed.
        second.send("SHUTDOWN")
    wait_until(lambda: "node 0002 has ended with code 0" in shards.log, what="the end of node 2")
    assert shards.stop() == 0
    split = CliRunner().invoke(
        main, ["cluster", "split", str(shards.directory), str(tmp_path / "three"), "--shards", "3"]
    )
    assert split.exit_code == 0, split.output
    three = Shards(tmp_path / "three", count=3)
    three.start()
    with three.node(1) as first, three.node(3) as third:
        assert (first.line("GET bar"), third.line("GET foo")) == (b"1", b"2")
    status = CliRunner().invoke(main, ["cluster", "status", "--dir", str(three.directory)])
    assert status.exit_code == 0
    assert [line.split()[2] for line in status.output.splitlines()] == ["health", *["online"] * 4]
    assert status.output.splitlines()[4].startswith(f"gateway    -      online  {three.port}")
    assert three.stop() == 0
    status = CliRunner().invoke(main, ["cluster", "status", "--dir", str(three.directory)])
    assert status.exit_code == 1
    assert status.output.count("not running") == 3
    found = read_map(shards.directory)
    assert found is not None
    assert [shard.node.encode() for shard in found.shards] == list(ids)


def test_a_node_that_cannot_start_stops_all(tmp_path: Path) -> None:
    port = free_range(4)
    words = ["--dir", str(tmp_path / "data"), "--port", str(port), "--shards", "3"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 2))
        taken.listen()
        done = subprocess.run(
            [PROGRAM, "serve", *words], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert f"port {port + 2} on 127.0.0.1" in done.stderr
    assert "node 0002 could not be started: all nodes are stopped" in done.stdout


def test_sighup_is_for_all_processes(tmp_path: Path) -> None:
    """The log file is opened again, and the nodes share the memory of the configuration file."""
    log, file = tmp_path / "all.log", tmp_path / "millstream.conf"
    file.write_text(f"maxmemory 200mb\nappendfsync no\nlogfile {log}\n")
    shards = Shards(tmp_path / "data", {}, count=2, options=["--config", str(file)])
    first_metrics = free_range(3)
    shards.log_path = log
    shards.directives = {"metrics-port": str(first_metrics)}
    shards.start()
    try:
        with shards.node(0) as client:
            assert client.pipeline([["SET", key, "v"] for key in "abcd"]) == [Simple("OK")] * 4
        page = urlopen(f"http://127.0.0.1:{first_metrics}/metrics").read().decode()
        assert "millstream_gateway_requests_total 4\n" in page
        assert "millstream_gateway_nodes_failed 0\n" in page
        assert b"ready" in urlopen(f"http://127.0.0.1:{first_metrics}/readyz").read()
        log.rename(tmp_path / "old.log")
        file.write_text(f"maxmemory 300mb\nappendfsync no\nlogfile {log}\n")
        shards.signal(signal.SIGHUP)
        for number in (1, 2):
            with shards.node(number) as node:
                wait_until(
                    partial(node.line, "CONFIG GET maxmemory"),
                    lambda found: found[1] == b"%d" % (150 << 20),
                    "the share of the memory",
                )
        os.kill(shards.pid_of(2), signal.SIGKILL)
        wait_until(lambda: log.exists() and "node 0002 has ended" in log.read_text(), what="a line")
    finally:
        shards.stop()
    lines = (tmp_path / "old.log").read_text() + log.read_text()
    for process, words in [
        ("supervisor", "ready "),
        ("supervisor", "node 0002 has ended"),
        ("supervisor", "stopping: "),
        ("node 0001", "ready "),
        ("node 0002", "ready "),
    ]:
        assert f"[{process}] {words}" in lines
    names = re.findall(r"^\S+ \S+ \w+ +(?:\[(.*?)\])?", lines, re.MULTILINE)
    assert set(names) <= {"supervisor", "gateway", "node 0001", "node 0002"}
