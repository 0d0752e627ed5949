"""`millstream export --format rdb`: a real Redis loads the file and shows the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.client import RawClient
from tests.support.server import Server, redis_program
from tests.wire.test_tools import run, url_of

from millstream.server.moving.compared_sides import FileSide
from millstream.server.moving.key_states import Filters

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


def test_an_export_has_keys_of_any_database(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server("data", {"databases": "100"}).start()
    with server.client() as client:
        client.call("SELECT", 90)
        client.call("XADD", "small", "5-5", "n", "-7")
        client.call("SELECT", 99)
        client.call("XADD", "large", "5-5", "n", "v" * 100_000)
        client.call("SET", "text", "hello")
        client.call("SAVE")
    server.kill()
    output = tmp_path / "dump.rdb"
    done = run("export", str(server.directory), "--format", "rdb", "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert sorted(FileSide(output).states(Filters())) == [
        (90, b"small"), (99, b"large"), (99, b"text")
    ]  # fmt: skip


def test_an_export_that_is_ended_leaves_no_file(new_server: NewServer, tmp_path: Path) -> None:
    """SIGTERM while the file is written; a reader that closed the pipe."""
    server = new_server("data").start()
    with server.client() as client:
        client.call("SET", "large", os.urandom(400_000))
        client.call("SAVE")
    server.kill()
    output = tmp_path / "out" / "dump.rdb"
    output.parent.mkdir()
    fifo = f"{output}.tmp"
    os.mkfifo(fifo)
    words = [sys.executable, "-m", "millstream", "export", str(server.directory)]
    words += ["--format", "rdb", "--output"]
    program = subprocess.Popen([*words, str(output)], stdout=subprocess.DEVNULL)
    with open(fifo, "rb", buffering=0) as reader:
        assert reader.read(9) == b"REDIS0010"  # it waits in the middle of the value
        program.send_signal(signal.SIGTERM)
        assert program.wait() == 128 + signal.SIGTERM
    assert list(output.parent.iterdir()) == []
    end, start = os.pipe()
    os.close(end)
    done = subprocess.run([*words, "-"], stdout=start, stderr=subprocess.PIPE, check=False)
    os.close(start)
    assert (done.returncode, done.stderr) == (1, b"")


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
