"""Real programs with the users of the table of roles in docs/security.md: each can do its work, and
nothing harmful. The programs of the dashboard, of Spark, of change data capture, Sentinel and the
exporter are started in the tests of their folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from tests.support.roles import ROLES, user_of
from tests.support.server import Server
from tests.wire.test_tools import run

from millstream.client import Sealed, connect

NewServer = Callable[..., Server]


def url_of(server: Server, login: str) -> str:
    return f"redis://{login}127.0.0.1:{server.port}"


def redis_of(server: Server, login: str) -> Redis:
    return Redis.from_url(url_of(server, login), decode_responses=True)


def write(ms: Any, key: str) -> None:
    """The work of a writer of the client library."""
    with ms.writer(key, "w", take_over=True) as writer:
        writer.append({"n": 1})
        with writer.fact(lease=30) as fact:
            fact["n"] = 2
        with writer.fact():
            pass  # given up
        facts = writer.facts(2)
        writer.heartbeat()
        for fact in facts:
            with fact:
                fact["n"] = 3
        assert writer.position() <= facts[1].id
    with ms.writer("app:sealed", "w") as writer, pytest.raises(Sealed):
        writer.append({"n": 1})


def consume(ms: Any, key: str) -> None:
    with ms.consumer(key, "g", retry=60, position="trim_horizon") as consumer:
        record = consumer.read(timeout=10)
        consumer.heartbeat()
        assert consumer.ack(record) == 1
        assert consumer.lag() is not None


def follow(ms: Any, key: str) -> None:
    with ms.stream([key, f"{key}:new"], "trim_horizon") as stream:
        assert stream.read(timeout=10)["n"] == "1"
        stream.heartbeat()
        stream.lag()
        token = stream.token
    with ms.stream([key, f"{key}:new"], token, create=False) as stream:
        assert stream.read(timeout=10)["n"] == "2"


@pytest.mark.parametrize(
    "role", ["writer of the client library", "consumer of the client library",
             "stream of the client library"],
)  # fmt: skip
def test_the_client_library(role: str, server: Server) -> None:
    work = {"writer": write, "consumer": consume, "stream": follow}[role.partition(" ")[0]]
    with connect(url_of(server, "")) as ms:
        ms.tappend("app:sealed", {"n": 1})
        ms.tseal("app:sealed", "app:child")
        if work is not write:
            write(ms, "app:s")
    with user_of(server, role) as login, connect(url_of(server, login)) as ms:
        work(ms, "app:s")


def test_applications(server: Server) -> None:
    """With redis-py, which stands for every client of Redis."""
    with user_of(server, "deployment that creates groups") as login, redis_of(server, login) as db:
        db.xgroup_create("app:s", "g", "0", mkstream=True)
        assert db.xinfo_groups("app:s")[0]["name"] == "g"
    with user_of(server, "application that only appends") as login, redis_of(server, login) as db:
        db.xadd("app:s", {"n": 1})
        db.execute_command("TAPPEND", "app:s", "n", 2)
        db.execute_command("TAPPENDONCE", "app:s", "PRODUCER", "p", 1, "n", 3)
        db.execute_command("TAPPENDMANY", 1, "app:s", "PRODUCER", "q", 1, 1, 1, "n", 4)
    with user_of(server, "consumer of groups that exist") as login, redis_of(server, login) as db:
        [[_, [(first, _), (second, _)]]] = db.xreadgroup("g", "c", {"app:s": ">"}, count=2)
        db.xclaim("app:s", "g", "d", 0, [first])
        db.xautoclaim("app:s", "g", "d", 0)
        assert db.xpending("app:s", "g")["pending"] == 2
        assert db.xack("app:s", "g", first, second) == 2
        assert db.xinfo_stream("app:s")["length"] == 4
    role = "application that only reads, without groups"
    with user_of(server, role) as login, redis_of(server, login) as db:
        assert len(db.xrange("app:s")) == 4
        assert db.xread({"app:s": 0}) != []
        assert db.get("app:text") is None
    role = "application that reads and writes"
    with user_of(server, role) as login, redis_of(server, login) as db:
        with db.pubsub() as channels, db.pipeline(transaction=True) as pipe:
            channels.subscribe("app:c")
            pipe.xadd("app:s", {"n": 5}).set("app:text", "x").expire("app:text", 100)
            pipe.publish("app:c", "m").delete("app:text")
            assert len(pipe.execute()) == 5
        [[_, [(entry, _)]]] = db.xreadgroup("g", "c", {"app:s": ">"}, count=1)
        assert db.xack("app:s", "g", entry) == 1


def test_tail_and_top(server: Server) -> None:
    with server.client() as client:
        client.call("XADD", "app:s", "1-0", "n", "1")
        client.call("XGROUP", "CREATE", "app:s", "g", "0")
        client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "app:s", ">")
        client.call("SELECT", "3")
        client.call("XADD", "app:s", "1-0", "n", "1")
    with user_of(server, "`millstream tail` and `top`") as login:
        url = url_of(server, login)
        assert "n=1" in run("tail", "app:s", "--from", "0", "--count", "1", url=url).stdout
        found = json.loads(run("top", "--json", "--interval", "0.1", url=url).stdout)
        assert (len(found["streams"]), found["left_out"]) == (2, 0)
        assert run("health", url=url).returncode == 0


def test_backup_and_restore(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        client.call("XADD", "app:s", "1-0", "n", "1")
    with user_of(server, "backup") as login:
        done = run("backup", str(tmp_path / "all"), url=url_of(server, login))
        assert done.returncode == 0, done.stderr
    with user_of(server, "`millstream restore --stream`") as login:
        words = ("restore", str(tmp_path / "all"), "--stream", "app:s")
        for more in (("--as", "app:t"), ("--replace",)):
            done = run(*words, *more, url=url_of(server, login))
            assert done.returncode == 0, done.stderr


def test_every_role_is_tried_with_its_program() -> None:
    tests = Path(__file__).parents[1]
    texts = [path.read_text() for path in tests.rglob("test_*.py") if path.parent.name != "unit"]
    assert [role for role in ROLES if not any(f'"{role}' in text for text in texts)] == []
