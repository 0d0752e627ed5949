"""`millstream import URL --to URL`: keys of a running Redis, copied by DUMP and RESTORE."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.client import RawClient
from tests.support.server import Server, free_port, redis_program
from tests.support.waiting import wait_until
from tests.wire.test_import import fill
from tests.wire.test_tools import run, url_of

from millstream.server.moving import import_cli, live_following, promoting
from millstream.server.moving.comparing import Comparison, Result
from millstream.server.moving.key_copying import Copied, Copy, CopyOptions
from millstream.server.moving.key_states import Filters
from millstream.server.moving.server_side import ServerSide

NewServer = Callable[..., Server]


def compared(a: Server, b: Server, *, as_replica: bool = False) -> Result:
    sides = ServerSide(url_of(a)), ServerSide(url_of(b))
    return Comparison(*sides, as_replica=as_replica).run(Filters(), 0)


def copied(a: Server, b: Server, **options: object) -> Copied:
    sides = ServerSide(url_of(a)), ServerSide(url_of(b))
    return Copy(*sides, CopyOptions(**options)).run(lambda done, total: None)  # type: ignore[arg-type]


def numbers(result: Copied) -> tuple[int, int, int]:
    return result.streams, result.strings, result.unchanged


def test_a_running_redis_is_copied_and_copied_back(
    redis_server: Server, new_server: NewServer, tmp_path: Path
) -> None:
    server = new_server("data").start()
    report = tmp_path / "report.json"
    words = ("import", url_of(redis_server), "--to", url_of(server))
    with redis_server.client() as redis, server.client() as ours:
        redis.call("FLUSHALL")
        fill(redis)
        redis.call("SELECT", 0)
        done = run(*words, "--report", str(report))
        assert done.returncode == 0, done.stderr
        assert "4 streams and 2 strings copied" in done.stdout
        assert "This is not a point in time" in done.stdout
        found = json.loads(report.read_text())
        assert {what: one["names"] for what, one in found["left_out"].items()} == {
            "list": ["list"], "hash": ["hash"]
        }  # fmt: skip
        assert compared(redis_server, server).different == {}
        again = run(*words)
        assert again.returncode == 1
        assert "of database 0 exists at" in again.stderr
        assert "--replace replaces it" in again.stderr
        assert numbers(copied(redis_server, server, replace=True)) == (4, 2, 0)
        assert numbers(copied(redis_server, server, changed=True)) == (0, 2, 4)
        change(redis, ours)
        result = copied(redis_server, server, changed=True)
        assert (numbers(result), result.gone) == ((2, 2, 2), [(0, b"gone"), (3, b"far")])
        result = copied(redis_server, server, changed=True, delete=True)
        assert (numbers(result), result.deleted) == ((0, 2, 4), 2)
        assert compared(redis_server, server).different == {}
        # The other way, into other databases.
        back = {0: 5, 3: 6}
        result = copied(server, redis_server, databases=back, patterns=(b"orders", b"third"))
        assert numbers(result) == (2, 0, 0)
        redis.call("SELECT", 5)
        assert redis.call("XLEN", "orders") == 1198
        redis.call("FLUSHALL")


def change(redis: RawClient, ours: RawClient) -> None:
    """Changes that --changed has to find: an entry, an owner; two keys that only the target has."""
    redis.call("XADD", "orders", "5000-1", "a", "b")
    redis.call("XGROUP", "CREATECONSUMER", "empty", "g", "new")
    redis.call("SET", "text", "other")
    ours.call("SET", "gone", "x")
    ours.call("SELECT", 3)
    ours.call("XADD", "far", "1-1", "a", "b")


def test_only_copied_databases_lose_keys(redis_server: Server, new_server: NewServer) -> None:
    """The databases are those of the URLs, those of --db, or all that have keys."""
    server = new_server("data").start()
    source, target = url_of(redis_server), url_of(server)
    again = ("--changed", "--delete")
    with redis_server.client() as redis, server.client() as ours:
        redis.call("FLUSHALL")
        for number in (0, 3):
            redis.call("SELECT", number)
            redis.call("XADD", "s", "1-1", "a", "b")
        for number in (0, 3, 5, 7):
            ours.call("SELECT", number)
            ours.call("XADD", "own", "1-1", "a", "b")
        assert run("import", f"{source}/3", "--to", target, *again).returncode == 0
        assert streams(ours) == {0: [b"own"], 3: [b"s"], 5: [b"own"], 7: [b"own"]}
        done = run("import", f"{source}/3", "--to", f"{target}/5")
        assert done.returncode == 0, done.stderr
        assert streams(ours) == {0: [b"own"], 3: [b"s"], 5: [b"own", b"s"], 7: [b"own"]}
        for words in (
            (source, "--to", f"{target}/5"), (f"{source}/3", "--to", target, "--db", "0:3"),
            (source, "--to", f"{target}/5", "--db", "3"),
        ):  # fmt: skip
            wrong = run("import", *words, *again)
            assert wrong.returncode == 2, words
            assert "database" in wrong.stderr
        # Other keys than those that were chosen stay.
        done = run("import", f"{source}/3", "--to", f"{target}/5", "--key", "o?", *again)
        assert streams(ours)[5] == [b"own", b"s"], done.stdout
        # A key at which the source does not let the user look is not known to be gone.
        redis.call("ACL", "SETUSER", "part", "on", ">pass", "~s", "+@all")
        part = source.replace("redis://", "redis://part:pass@")
        done = run("import", f"{part}/3", "--to", f"{target}/5", "--key", "ow*", *again)
        assert done.returncode == 1
        assert "NOPERM" in done.stderr or "permission" in done.stderr, done.stderr
        assert streams(ours)[5] == [b"own", b"s"]
        redis.call("ACL", "DELUSER", "part")
        done = run("import", source, "--to", target, *again)
        assert 'gone at the source: key "own" of database 0: deleted' in done.stdout
        assert "database 5 has keys only at" in done.stdout
        assert streams(ours) == {0: [b"s"], 3: [b"s"], 5: [b"own", b"s"], 7: [b"own"]}
        done = run("import", source, "--to", target, "--db", "3:5", "--db", "7", *again)
        assert done.returncode == 0, done.stderr
        assert streams(ours) == {0: [b"s"], 3: [b"s"], 5: [b"s"]}
        redis.call("FLUSHALL")


def streams(client: RawClient) -> dict[int, list[bytes]]:
    """The keys of each database that has any."""
    found = {}
    for number in range(16):
        client.call("SELECT", number)
        found[number] = sorted(client.call("KEYS", "*"))
    return {number: keys for number, keys in found.items() if keys}


def test_a_second_copy_finds_expiries_and_types(
    redis_server: Server, new_server: NewServer
) -> None:
    server = new_server("data").start()
    at_ms = 4_000_000_000_000
    with redis_server.client() as redis, server.client() as ours:
        redis.call("FLUSHALL")
        for key in ("kept", "later", "new", "other", "text", "gone"):
            redis.call("XADD", key, "1-1", "a", "b")
        for key in ("kept", "later"):
            redis.call("PEXPIREAT", key, at_ms)
        assert numbers(copied(redis_server, server)) == (6, 0, 0)
        redis.call("PERSIST", "kept")
        redis.call("PEXPIREAT", "later", at_ms + 1)
        redis.call("PEXPIREAT", "new", at_ms)
        redis.call("DEL", "other", "text")
        redis.call("RPUSH", "other", "a")
        redis.call("SET", "text", "x")
        sides = ServerSide(url_of(redis_server)), ServerSide(url_of(server))
        of_stream = sides[0].stream

        def deleted_meanwhile(key: bytes) -> object:
            if key == b"gone":
                redis.call("DEL", key)
            return of_stream(key)

        sides[0].stream = deleted_meanwhile  # type: ignore[assignment, method-assign]
        result = Copy(*sides, CopyOptions(changed=True)).run(lambda done, total: None)
        assert (numbers(result), result.expiries) == ((0, 1, 0), 3)
        assert sorted(result.gone) == [(0, b"gone"), (0, b"other")]
        expiries = [ours.call("PEXPIRETIME", key) for key in ("kept", "later", "new")]
        assert expiries == [-1, at_ms + 1, at_ms]
        assert sides[0].stream(b"text") is None
        result = copied(redis_server, server, changed=True, delete=True)
        assert (numbers(result), result.expiries, result.deleted) == ((0, 1, 3), 0, 2)
        redis.call("FLUSHALL")


def test_a_copy_that_cannot_be_made_names_the_key(
    redis_server: Server, new_server: NewServer
) -> None:
    server = new_server("data", {"proto-max-bulk-len": "1mb"}).start()
    words = ["import", url_of(redis_server), "--to", url_of(server)]
    with redis_server.client() as redis:
        redis.call("FLUSHALL")
        redis.call("SET", "large", os.urandom(1_300_000))
        done = run(*words)
        assert done.returncode == 1
        assert 'the dump of key "large" of database 0 has 1300' in done.stderr
        assert "proto-max-bulk-len" in done.stderr
        redis.call("FLUSHALL")
        redis.call("SET", "gone", "x", "PX", 1)
        redis.call("SADD", "members", "a")
        done = run(*words, "--other", "fail")
        assert done.returncode == 1
        assert 'key "members" of database 0, which is a set' in done.stderr
        redis.call("FLUSHALL")
    for wrong in (
        ["import", "dump.rdb", "--to", url_of(server)], [*words, "--replace", "--changed"],
        [*words, "--delete"], [*words, "--dir", "data"], [*words, "--salvage"], words[:2],
        ["import", "dump.rdb", "--dir", "data", "--replace"],
    ):  # fmt: skip
        assert run(*wrong).returncode == 2, wrong
    same = run("import", url_of(server), "--to", url_of(server))
    assert same.returncode == 1
    assert "are the same server" in same.stderr


def test_a_copy_into_one_node_of_a_cluster_says_what_to_do(new_server: NewServer) -> None:
    server = new_server("data").start()
    directives = {
        "save": '""', "cluster-enabled": "yes", "cluster-require-full-coverage": "no",
        "cluster-port": str(free_port()),
    }  # fmt: skip
    node = new_server("node", directives, redis_program()).start()
    with server.client() as ours, node.client() as theirs:
        theirs.call("CLUSTER", "ADDSLOTSRANGE", 0, 99)
        wait_until(lambda: b"cluster_state:ok" in theirs.call("CLUSTER", "INFO"))
        ours.call("XADD", "elsewhere", "1-1", "a", "b")
        for option in ("--replace", "--changed"):
            done = run("import", url_of(server), "--to", url_of(node), option)
            assert done.returncode == 1
            assert 'key "elsewhere"' in done.stderr
            assert "belongs to another node of the cluster" in done.stderr
            assert "gateway of `millstream serve --shards`" in done.stderr
            assert "millstream cluster split" in done.stderr


def test_an_old_redis_does_not_load_new_types(new_server: NewServer) -> None:
    """Pending entries without an owner, which Redis 7 does not have."""
    server = new_server("data").start()
    redis = new_server("redis", {"save": '""'}, redis_program()).start()
    with server.client() as ours:
        ours.call("XADD", "s", "1-1", "a", "b")
        ours.call("TREAD", "s", "0", 1, "GROUP", "t", 0, "RETRY", 1000, 9_000_000)
    done = run("import", url_of(server), "--to", url_of(redis))
    assert done.returncode == 1
    assert 'does not load key "s" of database 0' in done.stderr


@pytest.mark.parametrize(
    ("module", "part", "option"),
    [
        (import_cli, "copy", "--replace"),
        (live_following, "follow", "--follow"),
        (promoting, "promote", "--promote"),
    ],
)
def test_a_signal_ends_each_way_to_a_server_cleanly(
    module: ModuleType, part: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each can undo what it has begun: it gets an exception."""
    undone = []

    def work(*words: object, **options: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:
            undone.append(part)
            raise

    monkeypatch.setattr(module, part, work)
    earlier = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        done = run("import", "redis://127.0.0.1:1", "--to", "redis://127.0.0.1:2", option)
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert (undone, done.returncode) == ([part], 128 + signal.SIGTERM)
