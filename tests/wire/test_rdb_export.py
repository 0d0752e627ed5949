"""`millstream export --format rdb`: a real Redis loads the file and shows the same."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.client import RawClient
from tests.support.server import Server, redis_program
from tests.wire.test_tools import run, url_of

from millstream.server.moving.compared_sides import FileSide, Filters

NewServer = Callable[..., Server]


def fill(client: RawClient) -> None:
    for i in range(1, 300):
        client.call("XADD", "orders", f"{i}-1", "sensor", i % 7, "value", "v" * (i % 90))
    client.call("XGROUP", "CREATE", "orders", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "ann", "COUNT", 9, "STREAMS", "orders", ">")
    client.call("XDEL", "orders", "20-1")
    client.call("TPOLICY", "orders", "MAXLEN", 1000)
    client.call("XADD", "small", "5-5", "n", "-7")
    client.call("SET", "text", "hello")
    client.call("PEXPIREAT", "text", 4_000_000_000_000)
    client.call("SELECT", 3)
    client.call("XGROUP", "CREATE", "empty", "g", "$", "MKSTREAM")


def test_a_redis_loads_an_export(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server("data").start()
    with server.client() as client:
        fill(client)
        client.call("SAVE")
    output = tmp_path / "redis" / "dump.rdb"
    output.parent.mkdir()
    words = ("export", str(server.directory), "--format", "rdb", "--output", str(output))
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert 'key "orders" loses its policy (TPOLICY MAXLEN 1000' in done.stdout
    assert "3 streams with 299 entries, 1 string" in done.stdout
    program = shutil.which("redis-check-rdb")
    assert program is not None
    subprocess.run([program, str(output)], check=True, capture_output=True)
    redis = new_server("redis", {"appendonly": "no"}, redis_program()).start()
    same = run("compare", url_of(redis), url_of(server))
    assert same.returncode == 0, same.stdout
    assert same.stdout.startswith("4 keys: equal")
    again = run("compare", str(output), url_of(server))
    assert again.returncode == 0, again.stdout


def test_exports_for_every_version_are_read_again(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server("data").start()
    with server.client() as client:
        fill(client)
        client.call("SELECT", 0)
        client.call("XADD", "orders", "IDMP", "p", "m1", "*", "a", "b")
        client.call("TREAD", "orders", "0", 2, "GROUP", "t", 0, "RETRY", 1000, 9_000_000)
        client.call("SAVE")
    server.kill()
    for version in ("6.2", "7.0", "7.2", "8.6", "8.8"):
        output = tmp_path / f"{version}.rdb"
        words = ("export", str(server.directory), "--format", "rdb", "--redis", version)
        done = run(*words, "--unowned", "nn", "--output", str(output))
        assert done.returncode == 0, done.stderr
        assert ("messages of producers" in done.stdout) == (version < "8.6")
        state = FileSide(output).states(Filters())[0, b"orders"]
        assert state.length == 299
        owners = {row.owner for row in state.groups[b"t"].pending}
        assert owners == {b"nn" if version < "8.8" else None}
        assert {row.owner for row in state.groups[b"g"].pending} == {b"ann"}
        assert (state.entries_added is None) == (version == "6.2")
        assert state.producers == (None if version < "8.6" else [b"p"])
    for option in ("--redis", "5.0"), ("--from", "0"):
        assert run(*words[:4], *option).returncode == 2
