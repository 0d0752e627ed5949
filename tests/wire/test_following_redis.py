"""A server that follows a real Redis: full sync, the commands after it, cuts, restarts, and errors.

A Redis replica of the same Redis, or `millstream compare`, says what is right.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.proxy import Proxy
from tests.support import rdb_files
from tests.support.client import RawClient
from tests.support.resp import Simple, encode_command
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.wire.test_import import fill
from tests.wire.test_tools import run, url_of

from millstream.commands.later.foreign import foreign_keys
from millstream.server.replication.redis_obeyed import OBEYED

# Redis sends others in place of these.
NOT_REPLICATED = {b"migrate", b"xreadgroup", b"xautoclaim"}


@pytest.fixture
def source(redis_server: Server) -> Server:
    """A Redis that begins a full sync without delay."""
    with redis_server.client() as client:
        client.call("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    return redis_server


def follow(ours: RawClient, port: int) -> None:
    ours.call("REPLICAOF", "127.0.0.1", port)


def is_even(ours: RawClient, theirs: RawClient) -> bool:
    """True if everything that the Redis has done is applied here."""
    mine = ours.info("replication")
    return (
        mine.get("master_link_status") == "up"
        and mine["source_spool_bytes"] == "0"
        and int(mine["source_offset"]) >= int(theirs.info("replication")["master_repl_offset"])
    )


def assert_same(redis: Server, server: Server) -> None:
    done = run("compare", url_of(redis), url_of(server), "--as-replica")
    assert done.returncode == 0, done.stdout + done.stderr + server.log


def change_everything(client: RawClient) -> None:
    """Commands of each kind, as a source sends them."""
    client.call("SELECT", 0)
    for i in range(2000, 2200):
        client.call("XADD", "orders", f"{i}-*", "n", i)
    client.call("XADD", "orders", "MAXLEN", "~", 300, "*", "a", "b")
    client.call("XADD", "other", "NOMKSTREAM", "*", "a", "b")
    client.call("XDEL", "orders", "2100-0")
    client.call("XTRIM", "orders", "MINID", "2010-0")
    client.call("XGROUP", "CREATE", "orders", "g2", "2020-0", "ENTRIESREAD", 5)
    client.call("XGROUP", "CREATECONSUMER", "orders", "g2", "eve")
    client.call("XREADGROUP", "GROUP", "g2", "ann", "COUNT", 7, "STREAMS", "orders", ">")
    client.call("XREADGROUP", "GROUP", "g2", "bob", "COUNT", 7, "NOACK", "STREAMS", "orders", ">")
    client.call("XCLAIM", "orders", "g2", "bob", 0, "2021-0", "2022-0")
    client.call("XAUTOCLAIM", "orders", "g2", "eve", 0, "-", "COUNT", 2)
    client.call("XACK", "orders", "g2", "2023-0")
    client.call("XGROUP", "DELCONSUMER", "orders", "g", "bob")
    client.call("XGROUP", "SETID", "orders", "g", "2050-0")
    client.call("XGROUP", "CREATE", "fresh", "g", "$", "MKSTREAM")
    client.call("XSETID", "fresh", "77-7")
    client.call("XGROUP", "DESTROY", "empty", "g")
    for words in (
        ("SET", "a", "1", "EX", 1000), ("INCR", "a"), ("APPEND", "b", "text"),
        ("SETRANGE", "b", 2, "xyz"), ("INCRBYFLOAT", "f", "1.5"), ("MSET", "m", 1, "n", 2),
        ("GETSET", "m", "5"), ("GETDEL", "n"), ("SETEX", "s", 500, "v"), ("PERSIST", "s"),
        ("EXPIRE", "b", 700), ("GETEX", "f", "EX", 90), ("COPY", "orders", "copied"),
        ("COPY", "b", "b", "DB", 5), ("RENAME", "fresh", "renamed"), ("MOVE", "m", 6),
        ("RPUSH", "list", "x"), ("SADD", "set", "y"), ("RENAME", "list", "f"),
        ("UNLINK", "number"), ("SWAPDB", 3, 4), ("SELECT", 7), ("XADD", "x7", "5-5", "a", "b"),
        ("FLUSHDB",), ("XADD", "x7", "6-6", "a", "b"), ("SELECT", 0),
        ("PUBLISH", "news", "hello"), ("SET", "large", "x" * 5_000_000),
    ):  # fmt: skip
        client.call(*words)
    payload = client.call("DUMP", "copied")
    client.call("RESTORE", "restored", 0, payload)
    client.call("RESTORE", "copied", 0, client.call("DUMP", "set"), "REPLACE")
    client.call("MULTI")
    client.call("XADD", "orders", "*", "in", "multi")
    client.call("SET", "in", "multi")
    client.call("EXEC")


@pytest.fixture
def follower(new_server: Callable[..., Server]) -> Server:
    return new_server("follower").start()


@pytest.mark.parametrize("diskless", ["no", "yes"])
def test_a_server_follows_a_redis(source: Server, follower: Server, diskless: str) -> None:
    with source.client() as theirs, follower.client() as ours:
        theirs.call("CONFIG", "SET", "repl-diskless-sync", diskless)
        fill(theirs)
        theirs.call("SELECT", 0)
        follow(ours, source.port)
        wait_until(lambda: is_even(ours, theirs), what="the full sync")
        assert_same(source, follower)
        change_everything(theirs)
        wait_until(lambda: is_even(ours, theirs), what="the commands")
        assert_same(source, follower)
        facts = ours.info("replication")
        assert facts["master_kind"] == "redis"
        assert facts["master_version"] == theirs.info("server")["redis_version"]
        assert facts["slave_priority"] == "0"
        assert "rpush=1" in facts["source_ignored_names"]
        assert int(facts["source_ignored"]) == 4
        assert ours.call("SET", "a", "1").text.startswith("READONLY")
        role = ours.call("ROLE")
        assert role[0] == b"slave"
        assert role[3] == b"connected"
        assert role[4] >= int(facts["source_offset"])
        assert theirs.call("WAIT", 1, 2000) == 1
        wait_until(
            lambda: (
                f"offset={ours.info('replication')['source_offset']},"
                in theirs.info("replication")["slave0"]
            ),
            what="the acknowledgement",
        )
        assert ours.call("REPLICAOF", "NO", "ONE") == Simple("OK")
        assert ours.call("SET", "mine", "1") == Simple("OK")
        assert ours.info("replication")["role"] == "master"


def test_each_command_is_applied_once_over_cuts_and_kills(source: Server, follower: Server) -> None:
    """INCR would count a command twice. The link is cut, the server killed and stopped."""
    proxy = Proxy(source.port)
    counted = 0

    def change(client: RawClient, times: int) -> None:
        nonlocal counted
        for _ in range(times):
            counted += 1
            client.call("MULTI")
            client.call("INCR", "count")
            client.call("XADD", "s", "*", "n", counted)
            client.call("EXEC")

    try:
        with source.client() as theirs:
            theirs.call("CONFIG", "RESETSTAT")
            change(theirs, 20)
            with follower.client() as ours:
                follow(ours, proxy.port)
                wait_until(lambda: is_even(ours, theirs), what="the full sync")
                for _ in range(4):
                    change(theirs, 25)
                    proxy.cut_all()
                    change(theirs, 5)
                wait_until(lambda: is_even(ours, theirs), what="the commands after cuts")
            follower.directives["replicaof"] = f"127.0.0.1 {proxy.port}"
            for way in ("SIGKILL", "BGREWRITEAOF and SIGKILL", "SIGTERM"):
                change(theirs, 30)
                follower.restart(way)
                change(theirs, 30)
                with follower.client() as ours:
                    wait_until(lambda: is_even(ours, theirs), what=f"the commands after {way}")
                    assert ours.call("GET", "count") == b"%d" % counted
                    assert ours.call("XLEN", "s") == counted
            assert theirs.info("stats")["sync_full"] == "1"
            assert_same(source, follower)
    finally:
        proxy.close()


def test_an_import_is_continued_by_the_commands_after_it(
    source: Server, new_server: Callable[..., Server]
) -> None:
    """Also after a cut when there is no journal."""
    server = new_server("imported")
    with source.client() as theirs:
        theirs.call("XADD", "s", "1-1", "a", "b")
        done = run("import", url_of(source), "--dir", str(server.directory))
        assert done.returncode == 0, done.stderr
        theirs.call("XADD", "s", "2-1", "a", "b")
        theirs.call("CONFIG", "RESETSTAT")
        server.start()
        with server.client() as ours:
            follow(ours, source.port)
            wait_until(lambda: is_even(ours, theirs), what="the commands after the import")
            ours.call("CONFIG", "SET", "appendonly", "no")
            for _ in range(2):
                theirs.call("CLIENT", "KILL", "TYPE", "replica")
                theirs.call("XADD", "s", "*", "a", "b")
                wait_until(lambda: is_even(ours, theirs), what="the commands after a cut")
            assert ours.call("XLEN", "s") == 4
            assert theirs.info("stats")["sync_full"] == "0"
            # What this server writes itself, no source knows.
            ours.call("REPLICAOF", "NO", "ONE")
            ours.call("XADD", "s", "*", "own", "entry")
            follow(ours, source.port)
            wait_until(lambda: is_even(ours, theirs), what="a full sync")
            assert ours.call("XLEN", "s") == 4


def test_a_restarted_redis_with_less_data_replaces_nothing(
    source: Server, follower: Server
) -> None:
    with source.client() as theirs, follower.client() as ours:
        theirs.call("XADD", "s", "1-1", "a", "b")
        theirs.call("XADD", "s", "2-1", "a", "b")
        follow(ours, source.port)
        wait_until(lambda: is_even(ours, theirs), what="the full sync")
        theirs.call("DEBUG", "CHANGE-REPL-ID")
        theirs.call("MULTI")
        theirs.call("DEL", "s")
        theirs.call("XADD", "s", "1-1", "a", "b")
        theirs.call("CLIENT", "KILL", "TYPE", "replica")
        theirs.call("DEBUG", "CHANGE-REPL-ID")
        theirs.call("EXEC")
        wait_until(
            lambda: ours.info("replication")["repl_kept_data"] == "1", what="the refused full sync"
        )
        facts = ours.info("replication")
        assert facts["master_link_status"] == "down"
        assert 'the source has added 1 entries to the stream "s"' in facts["repl_last_error"]
        assert ours.call("XLEN", "s") == 2
        follow(ours, source.port)
        wait_until(lambda: is_even(ours, theirs), what="the full sync that was ordered")
        assert ours.call("XLEN", "s") == 1


class FakeSource:
    """Acts as a Redis towards one replica after the other: each gets an empty RDB and the same
    commands."""

    def __init__(self, *commands: str) -> None:
        self._stream = b"".join(encode_command(words.split()) for words in commands)
        self._rdb = rdb_files.file(rdb_files.key(b"base", b"\x00\x01x"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.syncs = 0
        self.acknowledged = b""
        self.questions = 0  # requests for an acknowledgement, each sent after the last answer
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                replica, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(replica,), daemon=True).start()

    def _talk(self, replica: socket.socket) -> None:
        with replica, contextlib.suppress(OSError):
            while data := replica.recv(1 << 16):
                if b"PSYNC" in data:
                    self.syncs += 1
                    replica.sendall(b"+FULLRESYNC %s 100\r\n" % (b"a" * 40))
                    replica.sendall(b"\n$%d\r\n" % len(self._rdb) + self._rdb + self._stream)
                elif b"FACK" in data or b"ACK" in data:
                    self.acknowledged = data
                    if self.questions:
                        self.questions -= 1
                        replica.sendall(encode_command(["REPLCONF", "GETACK", "*"]))
                elif b"databases" in data:
                    replica.sendall(b"-ERR Unrecognized REPLCONF option: databases\r\n")
                elif b"INFO" in data:
                    replica.sendall(b"$24\r\nvalkey_version:9.1.2\r\nx:\r\n")
                else:
                    replica.sendall(b"+OK\r\n")


@pytest.mark.parametrize(
    ("command", "reason", "syncs"),
    [
        ("EVALSHA abc 0", "lua-replicate-commands yes", 1),
        ("XADD s 1-1 a b", 'XADD of the key "s" failed: ERR The ID specified', 2),
    ],
)
def test_a_command_that_cannot_run_ends_the_link(
    follower: Server, command: str, reason: str, syncs: int
) -> None:
    """At once, or after one more full sync; the data is kept, and the reason is shown."""
    fake = FakeSource("SELECT 0", "XADD s 5-1 a b", command)
    try:
        with follower.client() as ours:
            follow(ours, fake.port)
            wait_until(
                lambda: "stays down" in follower.log and fake.syncs == syncs,
                what="the end of the link",
            )
            facts = ours.info("replication")
            assert reason in facts["repl_last_error"].replace(";", ",")
            assert "offset 1" in facts["repl_last_error"]
            assert facts["master_link_status"] == "down"
            assert facts["master_kind"] == "valkey"
            assert facts["master_version"] == "9.1.2"
            assert ours.call("XLEN", "s") == 1
            assert ours.call("GET", "base") == b"x"
    finally:
        fake.close()


def test_what_cannot_run_is_counted_or_dropped(follower: Server) -> None:
    """Commands on other types, strings that are changed in other ways, and repeats of producers."""
    stream = (
        "SELECT 0", f"SET large {'x' * 5_000_000}",
        "XADD s 5-1 a b", "XADD s IDMP p i * a b", "XADD s IDMP p j 6-1 a *",
        "SET bits abc", "SETBIT bits 1 1", "APPEND bits more",
        "RENAME bits moved", "APPEND moved x",
        "PFADD hll a", "INCR hll", "SET hll 7", "INCR hll",
        "SET target x", "ZUNIONSTORE target 1 z", "SET sorted x", "SORT l STORE sorted",
        "JSON.SET j $ 1", "FUNCTION LOAD x", "CONFIG SET port 1", "SHUTDOWN",
        "SET here 1", "RENAME gone here",
        "MULTI", "SET in 1", "INCR in", "EXEC", "REPLCONF GETACK *", "MULTI", "SET never 1",
    )  # fmt: skip
    fake = FakeSource(*stream)
    try:
        with follower.client() as ours:
            follow(ours, fake.port)
            wait_until(lambda: ours.call("GET", "in") == b"2", what="the commands")
            assert ours.call("XRANGE", "s", "-", "+")[1] == [b"6-1", [b"a", b"*"]]
            assert ours.call("XLEN", "s") == 2
            assert ours.call("STRLEN", "large") == 5_000_000
            for key in ("bits", "moved", "target", "sorted", "here", "never"):
                assert ours.call("EXISTS", key) == 0, key
            assert ours.call("GET", "hll") == b"8"
            facts = ours.info("replication")
            assert facts["source_dropped_strings"] == "1"
            names = dict(one.split("=") for one in facts["source_ignored_names"].split())
            assert names["append"] == "2"
            assert int(facts["source_ignored"]) == 14
            assert 'PFADD has changed the string "hll"' in follower.log
            offset = int(facts["source_offset"])
            assert b"$%d\r\n%d" % (len(str(offset)), offset) in fake.acknowledged
            follower.directives["replicaof"] = f"127.0.0.1 {fake.port}"
    finally:
        fake.close()
    follower.restart("SIGKILL")
    with follower.client() as ours:
        assert ours.call("GET", "hll") == b"8"
        assert ours.call("XINFO", "STREAM", "s")


def test_a_conversion_that_is_given_up_leaves_nothing(follower: Server) -> None:
    """Neither files nor descriptors. The next link answers each request for an acknowledgement."""
    fake = FakeSource("SELECT 0")

    def has_base() -> bool:
        return any(follower.directory.glob("base-*.msnap.tmp"))

    def descriptors() -> list[str]:
        found = Path(f"/proc/{follower.pid}/fd").iterdir()
        names = [os.readlink(one) for one in found if one.exists() or one.is_symlink()]
        return [name for name in names if "msnap" in name or "deleted" in name]

    try:
        with follower.client() as ours:
            before = descriptors()
            for _ in range(3):
                follow(ours, fake.port)
                wait_until(has_base, what="a base")
                assert ours.call("REPLICAOF", "NO", "ONE") == Simple("OK")
                wait_until(lambda: not has_base(), what="the end of the file")
                wait_until(lambda: descriptors() == before, what="the end of the descriptors")
            assert ours.call("DBSIZE") == 0
            follow(ours, fake.port)
            wait_until(lambda: ours.info("replication")["master_link_status"] == "up")
            fake.questions = 30  # without a write that would have to be stored
            wait_until(lambda: fake.questions == 0, what="answers before the next second")
    finally:
        fake.close()


def test_a_replica_of_a_follower_is_promoted_without_its_redis(
    source: Server, follower: Server, new_server: Callable[..., Server]
) -> None:
    """A Redis is not asked for last frames, which it would never send."""
    replica = new_server("replica").start()
    with source.client() as theirs, follower.client() as ours, replica.client() as other:
        theirs.call("XADD", "s", "1-1", "a", "b")
        follow(ours, source.port)
        wait_until(lambda: is_even(ours, theirs), what="the full sync")
        follow(other, follower.port)
        wait_until(lambda: other.call("XLEN", "s") == 1, what="the replica")
        assert other.call("REPLICAOF", "NO", "ONE") == Simple("OK")
        assert other.info("replication")["role"] == "master"
        assert "may be missing: it is a replica itself" in replica.log
        theirs.call("XADD", "s", "2-1", "a", "b")
        wait_until(lambda: ours.call("XLEN", "s") == 2, what="the commands after it")


def test_every_write_command_of_redis_is_known(redis_server: Server) -> None:
    """A command that is not known drops strings, or ends the link."""
    with redis_server.client() as redis:
        names = redis.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "write")
    names = {name for name in names if b"|" not in name}  # their first words count
    unknown = {name for name in names if foreign_keys(name, [name, b"k", b"l"]) is None}
    assert len(names) > 90
    assert unknown - OBEYED == NOT_REPLICATED
