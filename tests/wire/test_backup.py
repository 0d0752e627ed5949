"""`millstream backup` from a running server: the copy, its right, and how it can end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.gate import Gate
from tests.support.replicas import Replicas, fill, has_same, is_up
from tests.support.resp import Error, Simple
from tests.support.server import PROGRAM, Server, free_port
from tests.support.small_disk import SmallDisk
from tests.support.waiting import wait_until
from tests.wire.test_tools import refused, run, url_of

from millstream.server.backup.backup_cli import Outcome

NewServer = Callable[..., Server]
PADDING = "x" * 1000


def write_everything(client: RawClient) -> None:
    """Streams in two databases, with everything that no dump in Redis' format has."""
    requests = [
        *(f"XADD s * n {number} text {PADDING}" for number in range(300)),
        "TPOLICY s MAXLEN 1000",
        "XGROUP CREATE s g 0",
        "TREAD s 0 5 GROUP r 60000 RETRY 60000 600000",
        "XREADGROUP GROUP g c COUNT 7 STREAMS s >",
        "TRESERVE s writer COUNT 3 LEASE 600000",
        "XADD s IDMP p m * n held",
        "SET k v EX 1000",
        "SELECT 5",
        "XADD other * a b",
        "SELECT 0",
    ]
    for reply in client.pipeline([request.split() for request in requests]):
        assert not isinstance(reply, Error), reply


def digest(server: Server) -> object:
    with server.client() as client:
        return client.call("DEBUG", "DIGEST")


def backups_of(server: Server) -> list[str]:
    """The clients that get a backup now."""
    with server.client() as client:
        lines = as_bytes(client.call("CLIENT", "LIST")).decode().splitlines()
    return [line for line in lines if "cmd=backup" in line]


def open_files(server: Server) -> set[str]:
    """The files of the data directory that the server has open, removed ones included."""
    folder = Path(f"/proc/{server.pid}/fd")
    names = set()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            names.add(os.readlink(path))
    return {name for name in names if name.startswith(str(server.directory))}


def failed(done: subprocess.CompletedProcess[str], outcome: Outcome) -> str:
    """The sentence with which a backup has failed."""
    assert (done.returncode, done.stdout) == (outcome, ""), done
    (line,) = done.stderr.splitlines()
    return line.removeprefix("millstream: ")


@pytest.fixture
def gate(server: Server) -> Iterator[Gate]:
    made = Gate(server.port)
    yield made
    made.close()


def through(gate: Gate) -> str:
    return f"redis://127.0.0.1:{gate.port}"


@pytest.mark.parametrize(("options", "full_syncs"), [([], 0), (["--stream", "s"], 1)])
def test_a_replica_can_start_on_a_restored_backup(
    replicas: Replicas, tmp_path: Path, options: list[str], full_syncs: int
) -> None:
    primary = replicas.start("a")
    fill(primary, 50)
    fill(primary, 5, "other")
    url = f"redis://127.0.0.1:{replicas.servers['a'].port}"
    assert run("backup", *options, str(tmp_path / "copy"), url=url).returncode == 0
    assert run("restore", str(tmp_path / "copy"), str(tmp_path / "b")).returncode == 0
    fill(primary, 10)
    replicas.servers["b"] = Server(tmp_path / "b", {"replicaof": replicas.address("a")}).start()
    replica = replicas.client("b")
    wait_until(lambda: is_up(replica) and replica.xlen("s") == 60)
    assert has_same(primary, replica, "s", "other")()
    assert primary.info("stats")["sync_full"] == full_syncs


@pytest.mark.parametrize("appendonly", ["yes", "no"])
def test_a_server_on_a_backup_has_the_same_data(
    new_server: NewServer, tmp_path: Path, appendonly: str
) -> None:
    server = new_server("data", {"appendonly": appendonly, "save": ""}).start()
    with server.client() as client:
        write_everything(client)
        if appendonly == "yes":
            server.rewrite_journal()  # a base, and frames after it
            client.call("XADD", "s", "*", "n", "last")
        settings = client.call("CONFIG", "GET", "*")
        files = sorted(os.listdir(server.directory))
        done = run("backup", str(tmp_path / "copy"), "--json", url=url_of(server))
        assert done.returncode == 0, done.stderr
        assert client.call("CONFIG", "GET", "*") == settings
        time_s = json.loads(done.stdout)["time_ms"] // 1000
        assert f"last_backup_time:{time_s}\r\n".encode() in as_bytes(
            client.call("INFO", "persistence")
        )
        assert sorted(os.listdir(server.directory)) == files
    facts = json.loads(done.stdout)
    assert (facts["keys"], facts["checked"], facts["role"]) == (3, "all", "master")
    assert facts["entries"] == 301  # those after the reservation are held
    described = json.loads((tmp_path / "copy/backup.json").read_text())
    of_files = {name: described[name] for name in ("files", "directory_id")}
    assert {**described, "removed": []} == {**facts, **of_files}
    before = digest(server)
    server.stop()
    assert digest(new_server("copy").start()) == before


def test_a_backup_of_an_empty_server_is_one(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server("data").start()
    done = run("backup", str(tmp_path / "copy"), url=url_of(server))
    assert "0 keys, 0 entries" in done.stdout
    with new_server("copy").start().client() as client:
        assert client.call("DBSIZE") == 0


def test_a_replica_can_be_copied(replicas: Replicas, tmp_path: Path) -> None:
    fill(replicas.start("a"), 50)
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica) and replica.xlen("s") == 50)
    url = f"redis://127.0.0.1:{replicas.servers['b'].port}"
    facts = json.loads(run("backup", str(tmp_path / "copy"), "--json", url=url).stdout)
    assert (facts["role"], facts["entries"]) == ("slave", 50)
    replicas.servers["copy"] = Server(tmp_path / "copy").start()
    assert replicas.client("copy").role()[0] == "master"
    assert replicas.client("copy").xlen("s") == 50


def test_a_backup_of_a_server_with_tls(new_server: NewServer, tmp_path: Path) -> None:
    authority, port = Authority(tmp_path), free_port()
    given = {"tls-port": str(port), "tls-auth-clients": "no"}
    server = new_server("data", {**authority.directives(), **given}).start()
    with server.client() as client:
        client.call("XADD", "s", "*", "a", "b")
    url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority.file}"
    assert "1 key, 1 entry" in run("backup", str(tmp_path / "copy"), url=url).stdout


# The right


def requests_of(client: RawClient) -> Iterator[list[str]]:
    """A request of the right length for each command and subcommand."""
    rows = [as_list(row) for row in as_list(client.call("COMMAND"))]
    for row in rows:
        for one in [as_list(sub) for sub in as_list(row[9])] or [row]:
            words = as_bytes(one[0]).decode().split("|")
            assert isinstance(one[1], int)
            yield words + ["0"] * (abs(one[1]) - len(words))


def test_a_user_who_makes_backups_can_do_nothing_else(server: Server, tmp_path: Path) -> None:
    open_to_all = {"auth", "hello", "reset", "quit", "backup"}
    with server.client() as admin, server.client() as client:
        admin.call("ACL", "SETUSER", "b", "on", ">secret", "+backup")
        admin.call("XADD", "s", "*", "a", "b")
        try:
            assert client.call("AUTH", "b", "secret") == Simple("OK")
            tried = 0
            for words in requests_of(admin):
                if words[0] not in open_to_all:
                    reply = client.call(*words)
                    assert isinstance(reply, Error), words
                    refusals = ("User b has no permissions", "ERR unknown subcommand")
                    assert reply.text.startswith(refusals) or refusals[0] in reply.text, words
                    tried += 1
            assert tried > 200
            url = f"redis://b:secret@127.0.0.1:{server.port}"
            assert run("backup", str(tmp_path / "copy"), url=url).returncode == 0
            assert ", user b\n" in server.log
            assert "secret" not in (tmp_path / "copy/backup.json").read_text()
        finally:
            admin.call("ACL", "DELUSER", "b")


def test_a_user_without_the_right_gets_no_backup(server: Server, tmp_path: Path) -> None:
    with server.client() as admin:
        admin.call("ACL", "SETUSER", "u", "on", ">secret", "~*", "+@all", "-@dangerous")
        try:
            url = f"redis://u:secret@127.0.0.1:{server.port}"
            done = run("backup", str(tmp_path / "copy"), url=url)
            assert "no permissions to run the 'backup' command" in failed(done, Outcome.REFUSED)
        finally:
            admin.call("ACL", "DELUSER", "u")
    assert os.listdir(tmp_path) == []


def test_a_wrong_password_is_reported(server: Server, tmp_path: Path) -> None:
    url = f"redis://b:wrong@127.0.0.1:{server.port}"
    assert "invalid username-password pair" in refused(run("backup", str(tmp_path / "c"), url=url))


def test_a_request_during_a_backup_ends_it(server: Server) -> None:
    with server.client() as client:
        client.pipeline([])
        client.send_raw(b"*1\r\n$6\r\nBACKUP\r\n*1\r\n$4\r\nPING\r\n")
        wait_until(lambda: "it sent a request on the link" in server.log)
    wait_until(lambda: not backups_of(server))


# Ends that are not successes


def test_a_folder_with_files_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/mine").write_text("mine")
    done = run("backup", str(tmp_path / "copy"), url=url_of(server))
    assert "is not empty" in failed(done, Outcome.DESTINATION)
    assert os.listdir(tmp_path / "copy") == ["mine"]
    done = run("backup", str(tmp_path / "no/copy"), url=url_of(server))
    assert "is not a folder: make it first" in failed(done, Outcome.DESTINATION)


def test_a_broken_connection_leaves_nothing(server: Server, gate: Gate, tmp_path: Path) -> None:
    with server.client() as client:
        write_everything(client)
    gate.replies.hold(after_bytes=100_000)
    program = start(gate, tmp_path / "copy")
    gate.replies.wait_held()
    gate.cut()
    output, errors = program.communicate(timeout=60)
    assert (program.returncode, output) == (Outcome.BROKEN, "")
    assert "Traceback" not in errors
    assert os.listdir(tmp_path) == []
    wait_until(lambda: not backups_of(server))


def start(gate: Gate, place: Path, *options: str) -> subprocess.Popen[str]:
    words = [PROGRAM, "backup", "--url", through(gate), str(place), *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("after_bytes", [0, 250_000])
def test_a_killed_backup_is_never_taken_for_one(
    server: Server, gate: Gate, tmp_path: Path, after_bytes: int
) -> None:
    with server.client() as client:
        write_everything(client)
    before = open_files(server)
    gate.replies.hold(after_bytes=after_bytes)
    program = start(gate, tmp_path / "copy")
    gate.replies.wait_held()
    program.send_signal(signal.SIGKILL)
    program.wait()
    gate.cut()
    assert not (tmp_path / "copy").exists()
    wait_until(lambda: not backups_of(server))
    wait_until(lambda: open_files(server) == before)
    # The next one finds what is left, and replaces it.
    assert run("backup", str(tmp_path / "copy"), url=url_of(server)).returncode == 0
    assert os.listdir(tmp_path) == ["copy"]


def test_a_stopped_backup_removes_what_it_wrote(server: Server, gate: Gate, tmp_path: Path) -> None:
    gate.replies.hold(after_bytes=0)
    program = start(gate, tmp_path / "copy")
    gate.replies.wait_held()
    wait_until(lambda: os.listdir(tmp_path) == ["copy.partial"])
    done = run("backup", str(tmp_path / "copy"), url=url_of(server))
    assert "another program writes to it" in failed(done, Outcome.DESTINATION)
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []


def test_a_damaged_byte_on_the_way_is_found(server: Server, gate: Gate, tmp_path: Path) -> None:
    with server.client() as client:
        write_everything(client)
    gate.replies.damage(PADDING[:100].encode())
    done = run("backup", str(tmp_path / "copy"), url=through(gate))
    assert "checksum" in failed(done, Outcome.BROKEN)
    assert os.listdir(tmp_path) == []


def test_a_server_that_dies_ends_a_backup(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server("data").start()
    with server.client() as client:
        write_everything(client)
    gate = Gate(server.port)
    gate.replies.hold(after_bytes=100_000)
    (tmp_path / "backups").mkdir()
    program = start(gate, tmp_path / "backups/copy")
    gate.replies.wait_held()
    server.kill()
    gate.close()
    _, errors = program.communicate(timeout=60)
    assert program.returncode == Outcome.BROKEN, errors
    assert os.listdir(tmp_path / "backups") == []
    server.start()
    done = run("backup", str(tmp_path / "backups/copy"), url=url_of(server))
    assert "3 keys, 301 entries" in done.stdout, done


def test_a_full_disk_ends_a_backup(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        write_everything(client)
    disk = SmallDisk(tmp_path / "disk", 200_000)
    try:
        done = subprocess.run(
            [*disk.wrapper, PROGRAM, "backup", "--url", url_of(server), str(disk.path / "copy")],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert "No space left on device" in failed(done, Outcome.DESTINATION)
        assert [name for name in os.listdir(disk.here) if name != "mounted"] == []
    finally:
        disk.unmount()


def test_the_root_of_a_file_system_gets_the_copy_itself(server: Server, tmp_path: Path) -> None:
    """It cannot be renamed: volumes of containers are such roots."""
    with server.client() as client:
        write_everything(client)
    disk = SmallDisk(tmp_path / "disk", 2_000_000)
    try:
        if disk.wrapper:
            (disk.here / "mounted").unlink()
        words = [*disk.wrapper, PROGRAM, "backup", "--url", url_of(server), str(disk.path)]
        assert subprocess.run(words, capture_output=True, timeout=60).returncode == 0
        names = sorted(os.listdir(disk.here))
        assert names[0] == "backup.json"
        assert "manifest" in names
        assert not [name for name in names if name.endswith(".tmp")]
        again = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert "is not empty" in failed(again, Outcome.DESTINATION)
        assert sorted(os.listdir(disk.here)) == names
    finally:
        disk.unmount()


def test_a_server_that_is_not_there_or_not_ours_is_named(
    redis_server: Server, tmp_path: Path
) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    assert "Connection refused" in refused(run("backup", str(tmp_path / "c"), url=url))
    done = run("backup", str(tmp_path / "c"), url=url_of(redis_server))
    assert "does not know BACKUP" in failed(done, Outcome.REFUSED)
    assert os.listdir(tmp_path) == []


def test_a_server_that_says_nothing_ends_a_backup(
    server: Server, gate: Gate, tmp_path: Path
) -> None:
    gate.replies.hold(b"+BACKUP")
    done = run("backup", str(tmp_path / "copy"), "--timeout", "0.3", url=through(gate))
    assert "timed out" in failed(done, Outcome.BROKEN).lower()


def test_a_server_that_stops_ends_its_backups(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server("data").start()
    with server.client() as client:
        write_everything(client)
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.sendall(b"*1\r\n$6\r\nBACKUP\r\n")
        wait_until(lambda: "a backup begins" in server.log)
        assert server.stop() == 0


# A slow client


def test_a_client_that_reads_nothing_costs_little_and_ends(
    new_server: NewServer, tmp_path: Path
) -> None:
    server = new_server("data", {"repl-timeout": "1"}).start()
    with server.client() as client:
        for _ in range(200):
            client.call("XADD", "s", "*", "text", "y" * 100_000)
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", server.port))
        with silent:
            silent.sendall(b"*1\r\n$6\r\nBACKUP\r\n")
            wait_until(lambda: backups_of(server))
            (line,) = backups_of(server)
            fields = dict(word.split("=", 1) for word in line.split())
            assert int(fields["omem"]) < 4 << 20
            assert client.call("PING") == Simple("PONG")
            wait_until(lambda: "it has read nothing for 1 seconds" in server.log)
            wait_until(lambda: not backups_of(server))
