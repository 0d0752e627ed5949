"""A disk that is really full: writes are refused before they execute, reads continue, no confirmed
write is lost, and writes are accepted automatically once there is space again.

On a small tmpfs. What cannot be timed there (full at this very write of the manifest) is tried in
`tests/unit/test_persistence.py` on a simulated disk.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.rounds import what_is_left
from tests.support.client import RawClient, as_list
from tests.support.history import History
from tests.support.resp import Error, Reply, Simple
from tests.support.server import Server
from tests.support.small_disk import MEGABYTE, CannotMount, SmallDisk
from tests.support.waiting import wait_until

FULL = Error("MISCONF Errors writing to the AOF file: No space left on device")
DISK_BYTES = 8 * MEGABYTE
RESERVED = {"journal-reserve-size": "256kb", "auto-aof-rewrite-percentage": "0"}
OK = Simple("OK")
NewServer = Callable[..., Server]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk", DISK_BYTES)
    except CannotMount as problem:
        warnings.warn(f"no real full disk was tried: {problem}", stacklevel=1)
        pytest.skip(str(problem))
    yield disk
    disk.unmount()


@pytest.fixture
def server_on(disk: SmallDisk, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(**directives: str) -> Server:
        words = {name.replace("_", "-"): value for name, value in directives.items()}
        server = Server(tmp_path / "disk" / "data", {**RESERVED, **words}, wrapper=disk.wrapper)
        server.log_path = tmp_path / "server.log"  # the log is kept elsewhere
        (disk.here / "data").mkdir(exist_ok=True)
        servers.append(server)
        return server

    yield make
    for server in servers:
        if server.is_alive():
            server.kill()


class Writer:
    """Appends what does not compress, on record."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.history = History()
        self._chance = random.Random(1)

    def append(self, size_bytes: int = 20_000) -> Reply:
        words = [b"TAPPEND", b"s", b"v", self._chance.randbytes(size_bytes)]
        operation = self.history.ask(0, words, 0)
        reply = self.client.call(*words)
        self.history.answer(operation, reply, 0)
        return reply

    def append_until_full(self) -> Reply:
        for _ in range(2 * DISK_BYTES // 20_000):
            reply = self.append()
            if isinstance(reply, Error):
                return reply
        raise AssertionError("the disk is never full")

    def check_after_a_kill(self, server: Server) -> None:
        server.kill()
        server.start()
        self.client.close()
        self.client = server.client()
        self.history.check(what_is_left(self.client))


def info(client: RawClient, name: str) -> str:
    return client.info("persistence")[name]


def wait_writable(writer: Writer) -> None:
    wait_until(writer.append, lambda reply: not isinstance(reply, Error), "an accepted append")


@pytest.mark.parametrize("mode", ["always", "everysec"])
def test_appends_are_refused_before_they_run_and_later_accepted(
    disk: SmallDisk, server_on: NewServer, mode: str
) -> None:
    server = server_on(appendfsync=mode).start()
    writer = Writer(server.client())
    disk.fill(leave_bytes=MEGABYTE)
    assert writer.append_until_full() == FULL
    client = writer.client
    # A smaller one may fit until the journal's worker reports that there is no more space.
    wait_until(lambda: writer.append(10), lambda reply: reply == FULL, "a refusal")
    length = client.call("XLEN", "s")
    for line in ("SET x 1", "TREAD s 0 1 GROUP g 0 RETRY 1 0", "XGROUP CREATE s g 0",
                 "TAPPEV s COUNT 0 f v", "XACK s g 1-1", "EXPIRE s 100"):  # fmt: skip
        assert client.call(*line.split()) == FULL, line
    assert client.call("MULTI") == OK
    assert client.call("SET", "x", "1") == FULL
    assert client.call("DISCARD") == OK
    assert client.call("XLEN", "s") == length, "what was refused was done"
    assert isinstance(client.call("TRANGE", "s", "-", "+", "COUNT", "3"), list)
    assert info(client, "aof_last_write_status") == "err"
    disk.free()
    wait_writable(writer)
    assert info(client, "aof_last_write_status") == "ok"
    writer.check_after_a_kill(server)


@pytest.mark.parametrize("mode", ["always", "everysec"])
def test_a_request_too_large_for_the_disk_is_refused_alone(
    disk: SmallDisk, server_on: NewServer, mode: str
) -> None:
    server = server_on(appendfsync=mode).start()
    writer = Writer(server.client())
    client = writer.client
    disk.fill(leave_bytes=MEGABYTE)
    value = bytes(2 * MEGABYTE)
    assert writer.append(2 * MEGABYTE) == FULL
    assert client.call("SET", "x", value) == FULL
    assert client.call("MULTI") == OK
    for _ in range(4):
        assert client.call("SET", "x", value[: MEGABYTE // 2]) == Simple("QUEUED")
    aborted = client.call("EXEC")
    assert isinstance(aborted, Error)
    assert aborted.text == f"EXECABORT Transaction discarded because of: {FULL.text}"
    assert client.call("EXISTS", "x", "s") == 0, "what was refused was done"
    assert not isinstance(writer.append(MEGABYTE // 2), Error)
    assert writer.append(2 * MEGABYTE) == FULL
    assert not isinstance(writer.append(100), Error)
    disk.free()
    assert not isinstance(writer.append(2 * MEGABYTE), Error), "there is space at once"
    writer.check_after_a_kill(server)


@pytest.mark.parametrize("mode", ["always", "everysec"])
def test_a_journal_that_fills_the_disk_is_freed_by_a_rewrite(
    disk: SmallDisk, server_on: NewServer, mode: str
) -> None:
    server = server_on(appendfsync=mode).start()
    client = server.client()
    # The space left is less than the journal would have reserved: the base needs a part of it.
    disk.fill(leave_bytes=disk.free_bytes() - MEGABYTE // 2)
    value = random.Random(2).randbytes(3000).hex()
    for _ in range(2 * DISK_BYTES // len(value)):
        reply = client.call("XADD", "s", "MAXLEN", "10", "*", "v", value)
        if reply == FULL:
            break
    assert reply == FULL
    wait_until(lambda: client.call("SET", "x", "1"), lambda reply: reply == FULL, "a refusal")
    left = client.call("XRANGE", "s", "-", "+")
    disk.free()
    assert attempt(client, "BGREWRITEAOF") == "ok"
    wait_until(lambda: client.call("SET", "x", "1"), lambda reply: reply == OK, "an accepted SET")
    server.kill()
    server.start()
    client.close()
    with server.client() as client:
        assert client.call("XRANGE", "s", "-", "+") == left
        assert client.call("GET", "x") == b"1"


@pytest.mark.parametrize(
    ("mode", "removal", "left"),
    [
        ("always", ["DEL s"], 0),
        ("always", ["XTRIM s MAXLEN 5"], 5),
        ("everysec", ["FLUSHALL"], 0),
        ("everysec", ["TPOLICY s MAXLEN 5 EXACT"], 5),
        ("no", ["TAPPEV s COUNT 5"], 5),
        # A base of the first result does not fit.
        ("always", ["XTRIM s MAXLEN 150", "MULTI", "XTRIM s MAXLEN 5", "UNLINK other", "EXEC"], 5),
    ],
)
def test_what_is_removed_from_a_full_disk_makes_room(
    disk: SmallDisk, server_on: NewServer, mode: str, removal: list[str], left: int
) -> None:
    """A volume that the journal alone has filled: nothing else can be freed on it."""
    server = server_on(appendfsync=mode).start()
    client = Writer(server.client())
    client.append_until_full()
    wait_until(lambda: client.append(10), lambda reply: reply == FULL, "a refusal")
    connection = client.client
    assert connection.call("MULTI") == OK
    assert connection.call("DEL", "s") == Simple("QUEUED")
    assert connection.call("SET", "x", "1") == FULL
    assert isinstance(connection.call("EXEC"), Error)
    assert connection.call("EXISTS", "s") == 1, "what was refused was done"
    for number, line in enumerate(removal):
        if number == 1:
            wait_until(lambda: info(connection, "aof_last_bgrewrite_status"), lambda s: s == "err")
            assert connection.call("SET", "x", "1") == FULL
        assert not isinstance(connection.call(*line.split()), Error), line
    wait_until(lambda: connection.call("SET", "x", "1"), lambda reply: reply == OK, "a write")
    assert info(connection, "aof_last_bgrewrite_status") == "ok"
    entries = connection.call("XRANGE", "s", "-", "+")
    assert isinstance(entries, list)
    assert len(entries) == left
    assert disk.free_bytes() > DISK_BYTES // 2
    server.kill()
    server.start()
    connection.close()
    with server.client() as connection:
        assert connection.call("XRANGE", "s", "-", "+") == entries
        assert connection.call("GET", "x") == b"1"


def test_a_removal_on_a_full_disk_survives_a_kill(disk: SmallDisk, server_on: NewServer) -> None:
    """Also if no rewrite fits, because the rest is too large."""
    server = server_on().start()
    writer = Writer(server.client())
    writer.append_until_full()
    wait_until(lambda: writer.append(10), lambda reply: reply == FULL, "a refusal")
    left = writer.client.call("XLEN", "s")
    assert isinstance(left, int)
    first = [
        entry[0] for entry in as_list(writer.client.call("XRANGE", "s", "-", "+", "COUNT", 20))
    ]
    for entry in first:
        assert writer.client.call("XDEL", "s", entry) == 1
    assert writer.client.call("SET", "x", "1") == FULL
    server.kill()
    server.start()
    writer.client.close()
    with server.client() as client:
        assert client.call("XLEN", "s") == left - 20
        # A small write may fit until the journal's worker reports that there is no space.
        wait_until(lambda: client.call("SET", "x", "1"), lambda reply: reply == FULL, "a refusal")


def test_a_full_disk_without_a_journal_can_be_emptied(
    disk: SmallDisk, server_on: NewServer
) -> None:
    server = server_on(appendonly="no", save="1 1").start()
    client = server.client()
    value = random.Random(3).randbytes(100_000)
    for number in range(60):
        assert client.call("SET", f"k{number}", value) == OK
    assert client.call("SAVE") == OK
    for number in range(60, 120):
        client.call("SET", f"k{number}", value)
    wait_until(lambda: client.call("SET", "x", "1"), lambda reply: isinstance(reply, Error))
    for number in range(118):
        assert client.call("DEL", f"k{number}") == 1
    wait_until(lambda: client.call("SET", "x", "1"), lambda reply: reply == OK, "a write")
    assert info(client, "rdb_last_bgsave_status") == "ok"
    assert disk.free_bytes() > DISK_BYTES // 2


def test_the_pages_four_commands_end_a_full_disk(disk: SmallDisk, server_on: NewServer) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "durability.md").read_text()
    block = page.split("### A full volume")[1].split("```")[1]
    lines = [line.removeprefix("redis-cli -p 6455 ") for line in block.strip().splitlines()]
    server = server_on().start()
    writer = Writer(server.client())
    writer.append_until_full()
    wait_until(lambda: writer.append(10), lambda reply: reply == FULL, "a refusal")
    client = writer.client
    for line in lines:
        reply = client.call(*("" if word == '""' else word for word in line.split()))
        assert not isinstance(reply, Error), line
        wait_until(lambda: info(client, "rdb_bgsave_in_progress"), lambda found: found == "0")
    wait_until(lambda: client.call("SET", "x", "1"), lambda reply: reply == OK, "a write")
    wait_until(lambda: info(client, "aof_rewrite_in_progress"), lambda found: found == "0")
    assert client.call("SET", "x", "2") == OK
    entries = client.call("XRANGE", "s", "-", "+")
    server.kill()
    server.start()
    client.close()
    with server.client() as client:
        assert client.call("GET", "x") == b"2"
        assert client.call("XRANGE", "s", "-", "+") == entries


def test_a_replica_on_a_full_disk_removes_with_its_primary(
    disk: SmallDisk, server_on: NewServer, new_server: NewServer
) -> None:
    primary = new_server("primary").start()
    replica = server_on(replicaof=f"127.0.0.1 {primary.port}").start()
    with primary.client() as client, replica.client() as reader:
        wait_until(lambda: reader.info("replication")["master_link_status"], lambda up: up == "up")
        value = random.Random(4).randbytes(100_000)
        for _ in range(DISK_BYTES // len(value) + 5):
            client.call("XADD", "s", "*", "v", value)
        wait_until(lambda: info(reader, "aof_last_write_status"), lambda found: found == "err")
        assert client.call("XTRIM", "s", "MAXLEN", "2") > 0  # type: ignore[operator]
        wait_until(lambda: info(reader, "aof_last_write_status"), lambda found: found == "ok")
        client.call("SET", "x", "1")
        wait_until(lambda: reader.call("GET", "x"), lambda found: found == b"1")
        assert reader.call("XLEN", "s") == 2
        replica.kill()
        replica.start()
    with replica.client() as reader:
        assert reader.call("XLEN", "s") == 2


@pytest.mark.parametrize("act", ["BGSAVE", "BGREWRITEAOF"])
def test_a_snapshot_without_space_changes_no_file(
    disk: SmallDisk, server_on: NewServer, act: str
) -> None:
    server = server_on().start()
    writer = Writer(server.client())
    client = writer.client
    for _ in range(40):
        writer.append()
    assert client.call("SAVE") == OK
    for _ in range(40):
        writer.append()

    def bases() -> list[str]:
        return [path.name for path in (disk.here / "data").glob("base-*")]

    base = bases()
    disk.fill(leave_bytes=MEGABYTE)
    free_bytes = disk.free_bytes()
    for attempted in (act, act, "SAVE", act):
        ended = attempt(client, attempted)
        assert ended == "err"
        assert not isinstance(writer.append(100), Error), "the journal has its space"
    wait_until(bases, lambda now: now == base, "the unfinished one gone")  # after the answer
    # The snapshot's thread gives back what earlier journals reserved, also after the answer.
    wait_until(
        disk.free_bytes,
        lambda left_bytes: left_bytes > free_bytes - MEGABYTE // 2,
        "the space that the attempts took",
    )
    writer.check_after_a_kill(server)
    disk.free()
    assert attempt(writer.client, act) == "ok"
    writer.check_after_a_kill(server)


def attempt(client: RawClient, act: str) -> str:
    """The result of a fill."""
    status = "aof_last_bgrewrite_status" if act == "BGREWRITEAOF" else "rdb_last_bgsave_status"
    reply = client.call(act)
    if act == "SAVE":
        assert isinstance(reply, Error) or reply == OK
    running = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress")
    facts = wait_until(
        lambda: client.info("persistence"),
        lambda facts: all(facts[name] == "0" for name in running),
    )
    return facts[status]


def test_a_start_on_a_full_disk_serves_reads_and_later_writes(
    disk: SmallDisk, server_on: NewServer
) -> None:
    server = server_on().start()
    writer = Writer(server.client())
    for _ in range(20):
        writer.append()
    server.kill()
    with (disk.here / "data" / "journal-1.log").open("r+b") as journal:
        journal.truncate(journal.seek(0, 2))  # the kill left the reserved space
    disk.fill()
    server.start()
    writer.client = server.client()
    assert writer.append() == FULL
    writer.history.check(what_is_left(writer.client))
    disk.free()
    wait_writable(writer)
    writer.check_after_a_kill(server)


def test_a_first_start_on_a_full_disk_is_reported_and_retried(
    disk: SmallDisk, server_on: NewServer
) -> None:
    server = server_on()
    disk.fill()
    with pytest.raises(AssertionError, match="No space left on device"):
        server.start()
    disk.free()
    assert not isinstance(Writer(server.start().client()).append(), Error)


def test_save_points_refuse_writes_until_a_snapshot_works(
    disk: SmallDisk, server_on: NewServer
) -> None:
    server = server_on(appendonly="no", save="1 1").start()
    writer = Writer(server.client())
    for _ in range(100):
        writer.append()
    wait_until(lambda: info(writer.client, "rdb_saves"), lambda count: count != "0")
    disk.fill(leave_bytes=MEGABYTE // 2)
    writer.append()
    refused = wait_until(writer.append, lambda reply: isinstance(reply, Error), "a refusal")
    assert isinstance(refused, Error)
    assert refused.text.startswith("MISCONF Redis is configured to save RDB snapshots")
    client = writer.client
    assert isinstance(client.call("TRANGE", "s", "-", "+", "COUNT", "1"), list)
    # Each setting applies to the next request, even of the same batch.
    for off, on in [
        ("stop-writes-on-bgsave-error no", "stop-writes-on-bgsave-error yes"),
        ('save ""', 'save "1 1"'),
    ]:
        client.send_raw(f"CONFIG SET {off}\r\nSET x 1\r\nCONFIG SET {on}\r\nSET x 2\r\n".encode())
        assert [client.read() for _ in range(4)] == [OK, OK, OK, refused]
    disk.free()
    assert client.call("BGSAVE") == Simple("Background saving started")
    wait_writable(writer)
