"""SYNC and PSYNC of programs that want all data as an RDB, such as `redis-cli --rdb`."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.server import Server, redis_program
from tests.support.waiting import wait_until
from tests.wire.test_import import fill
from tests.wire.test_tools import run, url_of

from millstream.server.moving.base_conversion import BaseDumper
from millstream.server.replication.redis_dump import DumpOrder

DEADLINE_S = 60


def call_tool(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def fill_without_lists(client: RawClient) -> None:
    """Only keys of types that exist here."""

    class Kept:
        def call(self, *words: object) -> None:
            if words[0] not in ("RPUSH", "HSET"):
                client.call(*words)

    fill(Kept())  # type: ignore[arg-type]
    client.call("SELECT", 0)


def fetch(server: Server, target: Path, *options: str) -> str:
    return call_tool("redis-cli", "-p", str(server.port), *options, str(target))


def assert_equal(one: str, other: str) -> None:
    done = run("compare", one, other)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def rdb(tmp_path: Path) -> Path:
    return tmp_path / "dump.rdb"


@pytest.mark.parametrize("appendonly", ["yes", "no"])
def test_redis_cli_fetches_a_file_that_redis_loads(
    new_server: Callable[..., Server], rdb: Path, appendonly: str
) -> None:
    server = new_server("data", {"appendonly": appendonly}).start()
    with server.client() as client:
        fill_without_lists(client)
        client.call("TPOLICY", "orders", "MAXLEN", 100_000)
    fetch(server, rdb, "--rdb")
    assert "\\o/ RDB looks OK! \\o/" in call_tool("redis-check-rdb", str(rdb))
    assert_equal(str(rdb), url_of(server))
    assert "leaves out parts of 1 stream" in server.log
    assert "its policy (TPOLICY MAXLEN 100000)" in server.log
    redis = new_server("redis", {"appendonly": "no"}, redis_program())
    redis.directory.mkdir()
    shutil.copy(rdb, redis.directory / "dump.rdb")
    assert_equal(url_of(redis.start()), url_of(server))


def test_the_file_is_a_point_in_time(durable_server: Server, rdb: Path) -> None:
    """A writer changes two keys in each transaction: the file has the same number in both."""
    is_over = threading.Event()

    def write() -> None:
        with durable_server.client() as client:
            while not is_over.is_set():
                client.call("MULTI")
                client.call("INCR", "count")
                client.call("XADD", "s", "*", "a", "b")
                client.call("EXEC")

    with durable_server.client() as client:
        for i in range(200):
            client.call("XADD", f"s{i}", "1-1", "f", "v" * 500)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_until(lambda: int(client.call("GET", "count") or 0) > 20, what="the writer")
            for _ in range(3):
                fetch(durable_server, rdb, "--rdb")
                with_counts = count_of(rdb)
                assert with_counts[0] == with_counts[1] > 0
        finally:
            is_over.set()
            writer.join()


def count_of(rdb: Path) -> tuple[int, int]:
    """The value of the string `count`, and the length of `s`, in a file."""
    from millstream.server.moving.compared_sides import open_side
    from millstream.server.moving.key_states import Filters, string_digest

    states = open_side(str(rdb)).states(Filters())
    length = states[0, b"s"].length
    value = states[0, b"count"].value
    number = next(n for n in range(length + 100) if string_digest(b"%d" % n) == value)
    return number, length


def test_keys_that_are_due_are_in_the_file(new_server: Callable[..., Server], rdb: Path) -> None:
    """Some became due after the capture, and the next command may give them more time."""
    server = new_server("data").start()
    with server.client() as client:
        client.call("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        client.call("SET", "a", "b")
        client.call("PEXPIRE", "a", 1)
        client.call("MULTI")
        client.call("XADD", "s", "1-1", "a", "b")
        client.call("PEXPIRE", "s", 1)
        client.call("EXEC")
    fetch(server, rdb, "--rdb")
    assert "gets 1 stream with 1 entry, and 1 string" in server.log


def test_functions_are_an_empty_file(server: Server, rdb: Path) -> None:
    with server.client() as client:
        client.call("SET", "a", "b")
    fetch(server, rdb, "--functions-rdb")
    assert "\\o/ RDB looks OK! \\o/" in call_tool("redis-check-rdb", str(rdb))
    assert b"REDIS0010" in rdb.read_bytes()
    assert len(rdb.read_bytes()) < 100


def rdb_in(data: bytes) -> bytes:
    """The RDB in what a server has sent: perhaps the answer to PSYNC, empty lines, and the RDB."""
    head, _, rest = data.lstrip(b"\n").partition(b"\r\n")
    if head.startswith(b"+FULLRESYNC "):
        head, _, rest = rest.lstrip(b"\n").partition(b"\r\n")
    assert head == b"$%d" % len(rest)
    return rest


@pytest.mark.parametrize(
    ("version", "written"),
    [("", b"0010"), ("6.2.14", b"0009"), ("7.4.1", b"0011"), ("8.6.3", b"0013"),
     ("8.1.1", b"0011"), ("9.1.2", b"0011"), ("9.2.0", b"0011"), ("12", b"0010")],
)  # fmt: skip
def test_the_version_decides_the_format(server: Server, version: str, written: bytes) -> None:
    with server.client() as client:
        client.call("XADD", "s", "1-1", "a", "b")
    with server.client() as client:
        client.call("REPLCONF", "rdb-only", 1, "capa", "eof")
        if version:
            client.call("REPLCONF", "version", version)
        client.send("PSYNC", "?", "-1")
        data = client.read_to_end()
    assert b"+FULLRESYNC " in data[:100]
    assert rdb_in(data)[5:9] == written


@pytest.fixture
def small(server: Server) -> Iterator[RawClient]:
    with server.client() as client:
        client.call("SET", "a", "b")
        yield client


def test_refusals(small: RawClient) -> None:
    assert "rdb-filter-only" in small.call("REPLCONF", "rdb-filter-only", "keys").text
    assert "between 0 and 1" in small.call("REPLCONF", "rdb-only", "2").text
    small.call("MULTI")
    assert "not allowed" in small.call("SYNC").text


def test_the_process_that_makes_it_has_a_memory_limit(small: RawClient) -> None:
    small.call("SET", "large", bytes(64 << 20))
    small.call("CONFIG", "SET", "import-memory-limit", "64mb")
    small.send("SYNC")
    assert small.read_to_end().strip() == (
        b"-ERR the RDB cannot be made: it needs more memory than import-memory-limit 67108864"
    )


def test_a_client_that_leaves_early(durable_server: Server) -> None:
    """Nothing is left of its sync, and others can begin."""
    with durable_server.client() as client:
        for i in range(2000):
            client.send("XADD", f"s{i % 20}", "*", "f", os.urandom(2000).hex())
        for _ in range(2000):
            client.read()
        for _ in range(12):
            with durable_server.client() as leaving:
                leaving.call("REPLCONF", "rdb-only", 1)
                leaving.send("SYNC")
        wait_until(
            lambda: not client.call("CLIENT", "LIST", "TYPE", "replica"),
            what="the end of the syncs",
        )
        with durable_server.client() as last:
            last.call("REPLCONF", "rdb-only", 1)
            last.send("SYNC")
            assert rdb_in(last.read_to_end()).startswith(b"REDIS")


def test_modules_in_the_current_folder_are_not_used(
    tmp_path: Path, rdb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "millstream"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    with rdb.open("w+b") as file, (tmp_path / "base").open("w+b") as base:
        order = DumpOrder(
            base.fileno(), file.fileno(), "7.0", 0, with_keys=False, memory_bytes=1 << 30
        )
        assert BaseDumper().dump(order).streams == 0
    done = run("import", str(rdb), "--dir", str(tmp_path / "data"))
    assert done.returncode == 0, done.stdout + done.stderr
