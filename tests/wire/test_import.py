"""`millstream import` as a program: files of a real Redis, the directory that appears at the end,
the process that converts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.client.proxy import Proxy
from tests.support import rdb_files
from tests.support.client import ConnectionClosed
from tests.support.payloads import Entry, Stream
from tests.support.server import Server, redis_program
from tests.support.waiting import wait_until
from tests.wire.test_tools import run, url_of

from millstream.server.moving.compared_sides import open_side
from millstream.server.moving.comparing import Comparison
from millstream.server.moving.key_states import Filters
from millstream.storage.files.manifest import NAME


def fill(client: ConnectionClosed) -> None:
    """Write keys that are kept, and a key of each type that is not."""
    for i in range(1, 1200):
        client.call("XADD", "orders", f"{i}-1", "sensor", i % 7, "value", "v" * (i % 90))
    client.call("XGROUP", "CREATE", "orders", "g", "0")
    for name, count in (("ann", 40), ("bob", 4)):
        client.call("XREADGROUP", "GROUP", "g", name, "COUNT", count, "STREAMS", "orders", ">")
    client.call("XACK", "orders", "g", "3-1", "5-1")
    client.call("XDEL", "orders", "700-1")
    client.call("XTRIM", "orders", "MINID", "2-1")
    client.call("XGROUP", "CREATE", "empty", "g", "$", "MKSTREAM")
    client.call("XGROUP", "CREATE", "nameless", "g", "$", "MKSTREAM")
    client.call("XGROUP", "CREATECONSUMER", "nameless", "g", "")
    client.call("SET", "text", "hello")
    client.call("SET", "number", "12345", "PXAT", 4_000_000_000_000)
    client.call("RPUSH", "list", "a", "b")
    client.call("HSET", "hash", "f", "v")
    client.call("SELECT", 3)
    client.call("XADD", "third", "5-5", "a", "b")
    client.call("PEXPIREAT", "third", 4_000_000_000_000)


@pytest.fixture
def dump(redis_server: Server) -> Path:
    """The file of a Redis with these keys."""
    with redis_server.client() as client:
        fill(client)
        client.call("SAVE")
    return redis_server.directory / "dump.rdb"


def shown(client: ConnectionClosed) -> dict[str, Any]:
    """The kept keys as a client sees them."""
    found: dict[str, Any] = {}
    for key in ("orders", "empty"):
        found[key] = client.call("XRANGE", key, "-", "+")
        found[f"{key} pending"] = [
            row[:2] + row[3:] for row in client.call("XPENDING", key, "g", "-", "+", 100)
        ]
        found[f"{key} groups"] = client.call("XINFO", "GROUPS", key)
    found["strings"] = client.call("GET", "text"), client.call("GET", "number")
    found["expiries"] = [client.call("PEXPIRETIME", "number")]
    client.call("SELECT", 3)
    found["third"] = client.call("XRANGE", "third", "-", "+")
    found["expiries"].append(client.call("PEXPIRETIME", "third"))
    client.call("SELECT", 0)
    return found


def test_a_server_shows_what_redis_showed(
    redis_server: Server, dump: Path, new_server: Any, tmp_path: Path
) -> None:
    server = new_server("data")
    report = tmp_path / "report.json"
    done = run("import", str(dump), "--dir", str(server.directory), "--report", str(report))
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["source"]["size"] == dump.stat().st_size
    assert found["source"]["checksum"] == "right"
    assert {facts["key"] for facts in found["streams"]} == {
        "orders", "empty", "nameless", "third"
    }  # fmt: skip
    assert found["left_out"]["list"]["names"] == ["list"]
    assert found["left_out"]["hash"]["names"] == ["hash"]
    assert found["totals"]["pending"] == 42
    assert "dump.rdb: version" in done.stdout
    same = run("compare", str(dump), str(server.directory))
    assert same.returncode == 0, same.stdout + same.stderr
    with redis_server.client() as theirs, server.start().client() as ours:
        same = run("compare", url_of(redis_server), url_of(server))
        assert same.returncode == 0, same.stdout + same.stderr
        assert same.stdout.startswith("6 keys: equal")
        assert "not compared" in same.stdout
        assert "consumers with an empty name" in same.stdout
        assert [row["length"] for row in found["streams"] if row["key"] == "orders"] == [1197]
        mine, redis = shown(ours), shown(theirs)
        for part, value in redis.items():
            assert mine[part] == value, part
        ours.call("XADD", "orders", "2000-1", "a", "b")
        other = run("compare", str(dump), url_of(server), "--settle", "0", "--json")
        assert other.returncode == 1
        [found] = json.loads(other.stdout)["different"]
        assert found["key"] == "orders"
        assert "entry 2000-1 is only in" in found["difference"]
        assert run("compare", str(dump), "absent.rdb").returncode == 2
    server.kill()
    assert run("check", str(server.directory), "--json").returncode == 0


def test_an_aof_of_a_real_redis_is_imported(new_server: Any, tmp_path: Path) -> None:
    """Its base, what came after the rewrite, and the whole as one file, as Redis 6 has it."""
    aof = {"appendonly": "yes", "aof-timestamp-enabled": "yes", "save": '""'}
    redis = new_server("redis", aof, redis_program()).start()
    folder = redis.directory / "appendonlydir"
    with redis.client() as client:
        fill(client)
        client.call("SELECT", 0)
        client.call("BGREWRITEAOF")
        wait_until(lambda: b"aof_rewrite_in_progress:0" in client.call("INFO", "persistence"))
        wait_until(lambda: any(".2.base" in name for name in os.listdir(folder)))
        change(client)
    live = open_side(url_of(redis))
    report = tmp_path / "report.json"
    done = run("import", str(folder), "--dir", str(tmp_path / "data"), "--report", str(report))
    assert done.returncode == 0, done.stderr
    assert "no times of consumers" in done.stdout
    found = json.loads(report.read_text())
    assert [file["name"][-8:] for file in found["source"]["files"]] == ["base.rdb", "incr.aof"]
    assert {what: one["names"] for what, one in found["left_out"].items()} == {
        "list": ["list", "pushed"], "hash": ["hash2"]
    }  # fmt: skip
    names = sorted(os.listdir(folder))[:2]
    single = tmp_path / "appendonly.aof"
    single.write_bytes(b"".join((folder / name).read_bytes() for name in names))
    for path in (tmp_path / "data", folder, single):
        result = Comparison(live, open_side(str(path))).run(Filters(), 0)
        assert result.different == {}, path
        assert result.not_compared >= {"seen times", "entries read"}
    redis.kill()
    size = single.stat().st_size
    single.write_bytes(single.read_bytes() + b"xx")
    done = run("import", str(single), "--dir", str(tmp_path / "single"), "--db", "3:1")
    assert done.returncode == 1
    assert f"appendonly.aof cannot be replayed at offset {size}: b'xx' in place" in done.stderr
    assert not list(tmp_path.glob("single*"))


def change(client: ConnectionClosed) -> None:
    """Change the keys of `fill` in every way that Redis 7.0 knows."""

    def call(line: str) -> None:
        client.call(*line.split())

    for line in (
        "XREADGROUP GROUP g cat COUNT 4 STREAMS orders >",
        "XREADGROUP GROUP g dog COUNT 4 NOACK STREAMS orders >",
        "XREADGROUP GROUP g ann STREAMS orders 0",
        "XCLAIM orders g eve 0 6-1 7-1 IDLE 500", "XAUTOCLAIM orders g fay 0 0 COUNT 2",
        "XDEL orders 300-1 8-1", "XADD orders MAXLEN ~ 1000 * a b", "XADD orders MAXLEN 990 * a b",
        "XTRIM orders MINID ~ 70-0", "XADD other * a b", "XADD absent NOMKSTREAM * a b",
        "XSETID other 9999999999999-5 ENTRIESADDED 7 MAXDELETEDID 1-1", "XGROUP CREATE other k $",
        "XGROUP DESTROY other k", "XGROUP CREATE other k2 $", "XGROUP SETID other k2 0-0",
        "XGROUP CREATECONSUMER other k2 idle", "XGROUP DELCONSUMER orders g bob",
        "SETEX short 50000 v", "APPEND short more", "SET gone x PX 1", "INCRBY n 5",
        "INCRBYFLOAT f 1.5", "GETEX n EX 70000", "MSET a 1 b 2", "SETRANGE a 5 zz", "GETDEL b",
        "EXPIRE text 90000", "PERSIST n", "RENAME hash hash2", "RPUSH pushed a", "MULTI",
        "XADD tx * a b", "SET t 1", "EXEC", "SELECT 3", "XADD third * a b", "SET moved 1",
        "MOVE moved 5", "SWAPDB 5 6", "SELECT 0",
    ):  # fmt: skip
        call(line)
    script = "redis.call('xadd', 'script', '*', 'a', 'b') return redis.call('set', 'e', '1')"
    client.call("EVAL", script, 0)
    wait_until(lambda: client.call("EXISTS", "gone") == 0)


def test_a_directory_with_files_is_not_touched(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_bytes(b"x")
    done = run("import", str(dump), "--dir", str(tmp_path / "data"))
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert os.listdir(tmp_path / "data") == ["mine"]
    assert run("import", "absent.rdb", "--dir", str(tmp_path / "new")).returncode == 1
    assert run("import", "--dir", str(tmp_path / "new")).returncode == 2
    for wrong in (["3:16"], ["16"], ["3:x"], ["3:0", "3:1"]):
        options = [word for one in wrong for word in ("--db", one)]
        done = run("import", str(dump), "--dir", str(tmp_path / "new"), *options)
        assert (done.returncode, "--db" in done.stderr) == (2, True), wrong
    done = run("import", str(dump), "--dir", str(tmp_path / "new"), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "nothing was written (--dry-run)" in done.stdout
    assert not (tmp_path / "new").exists()


def test_a_damaged_file_leaves_no_directory(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.rdb").write_bytes(dump.read_bytes()[:-40])
    words = ("import", str(tmp_path / "cut.rdb"), "--dir", str(tmp_path / "data"))
    done = run(*words)
    assert done.returncode == 1
    assert "cut.rdb is damaged at offset" in done.stderr
    assert not list(tmp_path.glob("data*"))
    done = run(*words, "--salvage")
    assert done.returncode == 0, done.stderr
    assert "lost: cut.rdb is damaged" in done.stdout
    assert "checksum: not read, because the file ends" in done.stdout
    assert run("check", str(tmp_path / "data")).returncode == 0


def test_a_killed_import_leaves_no_directory(tmp_path: Path) -> None:
    """The program is killed while the file arrives."""
    entries = [[Entry((i, 1), [b"n", b"v" * 900])] for i in range(1, 3000)]
    data = rdb_files.file(rdb_files.key(b"s", Stream(entries).body(19)))
    words = ["import", "-", "--dir", str(tmp_path / "data")]
    program = subprocess.Popen(
        [sys.executable, "-m", "millstream", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert program.stdin is not None
    program.stdin.write(data[: len(data) // 2])
    program.stdin.flush()
    base = tmp_path / "data.partial" / "base-1.msnap"
    wait_until(lambda: base.exists() and base.stat().st_size > 0)
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdin.close()
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "data.partial" / NAME).exists()
    (tmp_path / "whole.rdb").write_bytes(data)
    wait_until(lambda: run(words[0], str(tmp_path / "whole.rdb"), *words[2:]).returncode == 0)
    assert not (tmp_path / "data.partial").exists()


def test_a_file_that_needs_too_much_memory_ends_the_import(tmp_path: Path) -> None:
    large = rdb_files.key(b"s", rdb_files.string(b"x" * (20 << 20)))
    (tmp_path / "large.rdb").write_bytes(rdb_files.file(large, checksum=0))
    words = ("import", str(tmp_path / "large.rdb"), "--dir", str(tmp_path / "data"))
    done = run(*words, "--memory", "10mb")
    assert done.returncode == 1
    assert "need more memory than --memory" in done.stderr
    assert not list(tmp_path.glob("data*"))


def test_a_running_redis_is_imported_by_a_full_sync(redis_server: Server, tmp_path: Path) -> None:
    """With an RDB of a known size and with one that ends with a mark, as a user with a password."""
    with redis_server.client() as client:
        fill(client)
        client.call("ACL", "SETUSER", "mover", "on", ">secret:/x", "+psync", "+replconf", "+ping")
        client.call("ACL", "SETUSER", "other", "on", ">secret", "+ping", "~*")
        client.call("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        for number, diskless in enumerate(("no", "yes")):
            client.call("CONFIG", "SET", "repl-diskless-sync", diskless)
            url = f"redis://mover:secret%3A%2Fx@127.0.0.1:{redis_server.port}"
            data, report = tmp_path / f"data{number}", tmp_path / "report.json"
            done = run("import", url, "--dir", str(data), "--report", str(report))
            assert done.returncode == 0, done.stderr
            found = json.loads(report.read_text())
            assert found["totals"]["pending"] == 42
            assert found["left_out"]["hash"]["names"] == ["hash"]
            assert found["source"]["checksum"] == "right"
            assert "secret" not in done.stdout + report.read_text()
            same = run("compare", url_of(redis_server), str(data))
            assert same.returncode == 0, same.stdout + same.stderr
            assert not list(tmp_path.glob("*.partial"))
        other = f"redis://other:secret@127.0.0.1:{redis_server.port}"
        done = run("import", other, "--dir", str(tmp_path / "none"))
        assert done.returncode == 1
        assert "its user needs +psync +replconf +ping" in done.stderr
        done = run("import", url_of(redis_server), "--dry-run", "--dir", str(tmp_path / "none"))
        assert done.returncode == 0, done.stderr
        client.call("ACL", "SETUSER", "default", "resetpass", ">much")
        locked = [
            run("import", url_of(redis_server) + database, "--dir", str(tmp_path / "none"))
            for database in ("", "/3")  # the second one needs a request to connect
        ]
        client.call("ACL", "SETUSER", "default", "nopass")
        client.call("ACL", "DELUSER", "mover", "other")
        for done in locked:
            assert "needs a password: redis://user:password@host:port" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_full_sync_that_is_cut_leaves_no_directory(redis_server: Server, tmp_path: Path) -> None:
    with redis_server.client() as client:
        client.call("CONFIG", "SET", "repl-diskless-sync", "no")
        for i in range(1, 200):
            client.call("XADD", "s", f"{i}-1", "n", os.urandom(500))
    proxy = Proxy(redis_server.port)
    proxy.cutting = 60_000, 60_000
    try:
        done = run("import", proxy.url, "--dir", str(tmp_path / "data"))
    finally:
        proxy.close()
    assert done.returncode == 1
    assert "nothing was written" in done.stderr
    assert os.listdir(tmp_path) == []
