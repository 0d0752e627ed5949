"""Backups of one stream, and restoring one stream into a running server: `--stream`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.gate import Gate
from tests.support.resp import Error, Simple
from tests.support.server import PROGRAM, Server
from tests.support.waiting import wait_until
from tests.wire.test_backup import failed, write_everything
from tests.wire.test_tools import run, url_of

from millstream.server.backup import restore_cli
from millstream.server.backup.backup_cli import Outcome

NewServer = Callable[..., Server]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A whole backup, and in `one` a backup of its stream `s`."""
    folder = tmp_path_factory.mktemp("backups")
    server = Server(folder / "data").start()
    with server.client() as client:
        write_everything(client)
        for reply in client.pipeline(
            [
                ["XDEL", "s", *ids_of(client, "s")[3:5]],
                ["TSCHEDULE", "s", "AT", "99999999999999", "later", "a", "b"],
                ["SELECT", "5"],
                ["XADD", "long", "1-1", "a", "b"],
                ["XDEL", "long", "1-1"],
                ["XADD", "long", "18446744073709551615-18446744073709551615", "a", "b"],
                ["PEXPIREAT", "other", "99999999999999"],
            ]
        ):
            assert not isinstance(reply, Error), reply
        shutil.rmtree(folder / "one", ignore_errors=True)
        done = run("backup", "--stream", "s", str(folder / "one"), url=url_of(server))
        assert "1 key, 298 entries" in done.stdout, done
        done = run("backup", str(folder / "all"), url=url_of(server))
        assert done.returncode == 0, done.stderr
    yield folder
    server.kill()


def ids_of(client: RawClient, key: str) -> list[bytes]:
    entries = client.call("XRANGE", key, "-", "+")
    assert isinstance(entries, list)
    return [
        entry[0] for entry in entries if isinstance(entry, list) and isinstance(entry[0], bytes)
    ]


def value_digest(server: Server, key: str, db: int = 0) -> object:
    """Everything that shows whether two streams are the same, times excepted."""
    with server.client() as client:
        client.call("SELECT", str(db))
        return client.pipeline(
            [
                ["DEBUG", "DIGEST-VALUE", key],
                ["TPOLICY", key],
                ["TSCHEDULED", key, "-", "+"],
                ["TPOSITION", key, "WRITERS"],
                ["XINFO", "GROUPS", key],
                ["XPENDING", key, "r"],
                ["XADD", key, "IDMP", "p", "m", "*", "n", "held"],  # sent before: the same ID
            ]
        )


def original(folder: Path, key: str, db: int = 0) -> object:
    """The digest of a key in the backup."""
    copied = folder / "original"
    shutil.copytree(folder / "all", copied)
    server = Server(copied).start()
    try:
        return value_digest(server, key, db)
    finally:
        server.kill()
        shutil.rmtree(copied)


@pytest.mark.parametrize("backup", ["one", "all"])
def test_a_stream_is_restored_with_everything(
    durable_server: Server, source: Path, backup: str
) -> None:
    url = url_of(durable_server)
    done = run("restore", str(source / backup), "--stream", "s", "--as", "t", "--json", url=url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["entries"] == 298
    expected = original(source, "s")
    assert value_digest(durable_server, "t") == expected
    with durable_server.client() as client:
        assert client.call("KEYS", "*") == [b"t"]
        policy = client.call("TPOLICY", "t")
        pending = client.call("XPENDING", "t", "r")
        assert isinstance(pending, list)
        assert pending[0] == 5
    durable_server.restart("SIGKILL")  # the same from the journal
    assert value_digest(durable_server, "t") == expected
    with durable_server.client() as client:
        assert client.call("TPOLICY", "t") == policy


def test_a_stream_of_another_database_keeps_its_expiry(server: Server, source: Path) -> None:
    url = f"{url_of(server)}/3"
    words = ["restore", str(source / "all"), "--db", "5", "--stream"]
    assert run(*words, "other", url=url).returncode == 0
    assert run(*words, "long", url=url).returncode == 0
    with server.client() as client:
        client.call("SELECT", "3")
        assert client.call("PEXPIRETIME", "other") == 99999999999999
        assert client.call("XLEN", "long") == 1
    assert value_digest(server, "long", 3) == original(source, "long", 5)


def test_a_key_that_exists_is_kept_without_replace(server: Server, source: Path) -> None:
    words = ["restore", str(source / "one"), "--stream", "s"]
    with server.client() as client:
        client.call("SET", "s", "mine")
        done = run(*words, url=url_of(server))
        assert "BUSYKEY" in failed(done, Outcome.REFUSED)
        assert client.call("GET", "s") == b"mine"
        assert run(*words, "--replace", url=url_of(server)).returncode == 0
        assert client.call("XLEN", "s") == 298
        assert client.call("KEYS", "*") == [b"s"]


def test_a_restore_that_fails_leaves_nothing(server: Server, source: Path, tmp_path: Path) -> None:
    words = ["restore", str(source / "one"), "--stream", "s", "--as", "t"]
    with server.client() as admin:
        rules = ["on", ">p", "~t*", "+xadd", "+pexpire", "+del", "+exists", "+info"]
        admin.call("ACL", "SETUSER", "u", *rules)
        try:
            url = f"redis://u:p@127.0.0.1:{server.port}"
            assert "'trestore' command" in failed(run(*words, url=url), Outcome.REFUSED)
            assert admin.call("DBSIZE") == 0
            admin.call("ACL", "SETUSER", "u", "+trestore", "-info")
            done = run(*words, url=url)
            assert done.returncode == 0
            assert "cannot be checked without INFO: User u has no permissions" in done.stderr
            admin.call("FLUSHALL")
            admin.call("CONFIG", "SET", "maxmemory", "1")
            assert "used memory > 'maxmemory'" in failed(
                run(*words, url=url_of(server)), Outcome.REFUSED
            )
            assert admin.call("DBSIZE") == 0
        finally:
            admin.call("CONFIG", "SET", "maxmemory", "0")
            admin.call("ACL", "DELUSER", "u")
    done = run("restore", str(source / "one"), "--stream", "none", url=url_of(server))
    assert "has no such stream in database 0" in failed(done, Outcome.REFUSED)
    done = run("restore", str(tmp_path), "--stream", "s", url=url_of(server))
    assert "holds no data of a server" in failed(done, Outcome.REFUSED)


def test_a_restore_evicts_no_other_stream(server: Server, source: Path) -> None:
    words = ["restore", str(source / "one"), "--stream", "s", "--as", "t"]
    with server.client() as admin:
        admin.call("XADD", "other", "*", "n", "1")
        admin.call("CONFIG", "SET", "maxmemory-policy", "allstreams-oldest")
        admin.call("CONFIG", "SET", "maxmemory", "1")
        try:
            done = run(*words, url=url_of(server))
            assert "would evict entries of other streams" in failed(done, Outcome.REFUSED)
            assert admin.call("KEYS", "*") == [b"other"]
        finally:
            admin.call("CONFIG", "SET", "maxmemory", "0")
            admin.call("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_entries_that_a_policy_evicts_at_once_can_be_kept(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backup = str(tmp_path / "aged")
    with server.client() as client:
        client.call("XADD", "aged", "1-1", "n", "1")
        client.call("XADD", "aged", "*", "n", "2")
        client.call("TPOLICY", "aged", "MAXAGE", "99999999999999")
        assert run("backup", backup, url=url_of(server)).returncode == 0
        words = ["restore", backup, "--stream", "aged", "--as", "t", "--replace"]
        assert run(*words, url=url_of(server)).stderr == ""
        assert isinstance(client.call("TPOLICY", "t"), list)
        late_ms = 10**15  # for the program: the policy evicts all entries
        monkeypatch.setattr(restore_cli, "_now_ms", lambda: late_ms)
        warning = "has a MAXAGE policy, which evicts its entries from before"
        restore_cli.restore.main([*words[1:], "--url", url_of(server)], standalone_mode=False)
        assert warning in capsys.readouterr().err
        more = ["--without-policy", "--url", url_of(server)]
        restore_cli.restore.main([*words[1:], *more], standalone_mode=False)
        assert capsys.readouterr().err == ""
        assert run(*words, "--without-policy", url=url_of(server)).returncode == 0
        assert client.call("XLEN", "t") == 2
        assert not isinstance(client.call("TPOLICY", "t"), list)


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_wrong_password_is_refused(
    server: Server, source: Path, tmp_path: Path, command: str
) -> None:
    place = source / "one" if command == "restore" else tmp_path / "copy"
    url = f"redis://u:wrong@127.0.0.1:{server.port}"
    done = run(command, "--stream", "s", str(place), url=url)
    assert "invalid username-password pair" in failed(done, Outcome.REFUSED)
    assert os.listdir(tmp_path) == []


def test_a_user_without_the_right_gets_no_stream(server: Server, tmp_path: Path) -> None:
    with server.client() as admin:
        admin.call("XADD", "s", "*", "a", "b")
        admin.call("ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "-backup")
        try:
            url = f"redis://u:p@127.0.0.1:{server.port}"
            done = run("backup", "--stream", "s", str(tmp_path / "copy"), url=url)
            assert "permissions to run the 'backup' command" in failed(done, Outcome.REFUSED)
        finally:
            admin.call("ACL", "DELUSER", "u")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_connection_that_breaks_ends_a_restore(
    server: Server, source: Path, is_executed: bool
) -> None:
    """Before TRESTORE is sent, nothing is restored; after that, the result is unknown."""
    gate = Gate(server.port)
    if is_executed:  # its reply is the last one, and is lost
        gate.requests.hold(b"TRESTORE")
    else:
        gate.requests.hold(b"PEXPIRE")
    words = [PROGRAM, "restore", str(source / "one"), "--stream", "s"]
    url = ["--url", f"redis://127.0.0.1:{gate.port}"]
    program = subprocess.Popen([*words, *url], stderr=subprocess.PIPE, text=True)
    try:
        gate.requests.wait_held()
        with server.client() as client:
            if is_executed:
                gate.replies.hold()
                gate.requests.release()
                wait_until(lambda: client.call("EXISTS", "s") == 1, what="TRESTORE")
            gate.cut()
            gate.replies.release()
            gate.requests.release()
            _, text = program.communicate(timeout=60)
            assert program.returncode == Outcome.BROKEN, text
            assert ("it is unknown if the stream was restored" in text) == is_executed
            assert client.call("EXISTS", "s") == is_executed
            wait_until(
                lambda: client.call("KEYS", "s.restoring-*") == [], what="the rest to be removed"
            )
    finally:
        program.kill()
        program.communicate()
        gate.close()


def test_a_killed_restore_shows_nothing_and_expires(server: Server, source: Path) -> None:
    gate = Gate(server.port)
    gate.requests.hold(b"TRESTORE")
    words = [PROGRAM, "restore", str(source / "one"), "--stream", "s"]
    program = subprocess.Popen([*words, "--url", f"redis://127.0.0.1:{gate.port}"])
    gate.requests.wait_held()
    program.send_signal(signal.SIGKILL)
    program.wait()
    gate.cut()
    gate.close()
    with server.client() as client:
        assert client.call("EXISTS", "s") == 0
        keys = client.call("KEYS", "s.restoring-*")
        assert isinstance(keys, list)
        (left,) = keys
        assert isinstance(left, bytes)
        expires_ms = client.call("PTTL", left)
        assert isinstance(expires_ms, int)
        assert 0 < expires_ms <= 3_600_000


def test_a_state_that_does_not_fit_changes_nothing(client: RawClient) -> None:
    client.call("XADD", "s", "1-1", "a", "b")
    for state in (b"", b"\xc1", b"\x01", b"\x80", b"\x81\xa6length\x05", b"\x81\xa6groups\x05"):
        reply = client.call("TRESTORE", "s", "t", state)
        assert isinstance(reply, Error)
        assert reply.text.startswith("ERR the state does not belong to the entries"), state
    assert client.call("XLEN", "s") == 1
    assert client.call("EXISTS", "t") == 0


def test_a_stream_that_is_not_there_has_no_backup(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        client.call("SET", "string", "x")
    for key, db in (("none", "0"), ("string", "0"), ("none", "99")):
        done = run("backup", "--stream", key, "--db", db, str(tmp_path / "c"), url=url_of(server))
        sentence = failed(done, Outcome.REFUSED)
        assert "no such stream in database" in sentence or "out of range" in sentence
    assert os.listdir(tmp_path) == []
    with server.client() as client:
        assert client.call("BACKUP", "STREAM", "0") != Simple("OK")
        assert isinstance(client.call("BACKUP", "EVERYTHING"), Error)
