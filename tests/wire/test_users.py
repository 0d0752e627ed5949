"""Users in real processes: files, restarts, and secrets that are shown nowhere."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.client import ConnectionClosed, RawClient
from tests.support.resp import Error, Simple, show
from tests.support.server import Server
from tests.support.waiting import wait_until

NewServer = Callable[..., Server]
OK = Simple("OK")


def do(client: RawClient, line: str) -> object:
    reply = client.call(*line.split())
    assert not isinstance(reply, Error), (line, reply)
    return reply


def is_closed(client: RawClient) -> bool:
    """True if the server has closed the connection."""
    try:
        client.call("PING")
    except (ConnectionClosed, ConnectionError):
        return True
    return False


def test_loading_disconnects_clients_of_changed_users(
    tmp_path: Path, new_server: NewServer
) -> None:
    file = tmp_path / "users.acl"
    file.write_text("user same on nopass +@all\nuser other on nopass +@all\nuser gone on nopass\n")
    server = new_server("data", {"aclfile": str(file)}).start()
    clients = {}
    for name in ("same", "other", "gone"):
        clients[name] = server.client()
        do(clients[name], f"AUTH {name} x")
    file.write_text("user same on nopass +@all\nuser other on nopass +@all -get\n")
    with server.client() as admin:
        do(admin, "ACL LOAD")
        assert do(admin, "ACL USERS") == [b"default", b"other", b"same"]
        file.write_text("user same on nopass\nnonsense\n")
        reply = admin.call("ACL", "LOAD")
        assert isinstance(reply, Error)
        assert f"{file}:2 should start with user keyword" in show(reply)
        assert do(admin, "ACL USERS") == [b"default", b"other", b"same"]
    assert {name for name, client in clients.items() if is_closed(client)} == {"other", "gone"}
    assert do(clients["same"], "ACL WHOAMI") == b"same"
    for client in clients.values():
        client.close()


def own_rules(client: RawClient, file: Path) -> object:
    return client.call("ACL", "SETUSER", "u", "resetchannels")


def own_file(client: RawClient, file: Path) -> object:
    file.write_text("user u on nopass +@all\n")
    return client.call("ACL", "LOAD")


@pytest.mark.parametrize("forbid", [own_rules, own_file])
def test_a_subscriber_that_forbids_its_own_channel_gets_a_reply(
    tmp_path: Path, new_server: NewServer, forbid: Callable[[RawClient, Path], object]
) -> None:
    file = tmp_path / "users.acl"
    file.write_text("user u on nopass +@all &news\n")
    server = new_server("data", {"aclfile": str(file)}).start()
    with server.client() as client:
        client.call("HELLO", "3", "AUTH", "u", "x")
        client.call("SUBSCRIBE", "news")
        assert forbid(client, file) == OK
        assert is_closed(client)


def test_a_file_with_a_user_twice_changes_nothing(tmp_path: Path, new_server: NewServer) -> None:
    file = tmp_path / "users.acl"
    file.write_text("# users\nuser alice on nopass +@all\n")
    server = new_server("data", {"aclfile": str(file)}).start()
    for name in ("alice", "default"):
        file.write_text(f"user {name} on nopass +@all\nuser {name} on nopass -@all\n")
        with server.client() as client:
            reply = client.call("ACL", "LOAD")
            assert isinstance(reply, Error)
            assert f"{file}:2: Duplicate user '{name}' found" in show(reply)
            assert do(client, "ACL USERS") == [b"alice", b"default"]
            assert do(client, "ACL DRYRUN alice PING") == OK


def test_a_wrong_file_prevents_the_start(tmp_path: Path, new_server: NewServer) -> None:
    file = tmp_path / "users.acl"
    file.write_text("user bob on +nothing\n")
    server = new_server("data", {"aclfile": str(file)})
    with pytest.raises(AssertionError, match=rf"{file}:1: Error in applying operation '\+nothing'"):
        server.start()
    assert server.exit_code == 1


def test_users_and_password_after_a_restart(tmp_path: Path, new_server: NewServer) -> None:
    file = tmp_path / "users.acl"
    file.write_text("")
    server = new_server("data", {"aclfile": str(file)}).start()
    with server.client() as client:
        do(client, "ACL SETUSER bob on >secret ~b* +@all")
        do(client, "ACL SAVE")
    server.restart("SIGKILL")
    with server.client() as client:
        do(client, "AUTH bob secret")
        assert do(client, "SET b v") == OK
        assert isinstance(client.call("SET", "c", "v"), Error)
    assert b"secret" not in file.read_bytes()


def test_a_password_for_default_is_required_at_once(server: Server) -> None:
    with server.client() as admin:
        do(admin, "ACL SETUSER default >secret")
        try:
            with server.client() as client:
                reply = client.call("GET", "k")
                assert show(reply).startswith("-NOAUTH Authentication required.")
                do(client, "AUTH secret")
                do(client, "GET k")
                do(admin, "ACL SETUSER default off")
                do(client, "GET k")
                with server.client() as late:
                    reply = late.call("AUTH", "default", "secret")
                    assert show(reply).startswith("-WRONGPASS")
        finally:
            do(admin, "ACL SETUSER default on nopass")


def test_secrets_are_shown_nowhere(server: Server) -> None:
    with server.client() as admin, server.client() as monitor, server.client() as client:
        do(admin, "CONFIG SET slowlog-log-slower-than 0")
        try:
            do(monitor, "MONITOR")
            do(admin, "ACL SETUSER bob on >hidden1 +@all")
            assert isinstance(client.call("AUTH", "bob", "hidden2"), Error)
            do(client, "AUTH bob hidden1")
            do(client, "HELLO 2 AUTH bob hidden1")
            assert isinstance(admin.call("ACL", "SETUSER", "bob", ">hidden3", "nonsense"), Error)
            do(client, "ECHO end")
            seen = [monitor.read()]
            while "end" not in repr(seen[-1]):
                seen.append(monitor.read())
            for shown in (*seen, do(admin, "SLOWLOG GET -1"), do(admin, "ACL LOG"), server.log):
                assert "hidden" not in (shown if isinstance(shown, str) else repr(shown))
        finally:
            do(admin, "CONFIG SET slowlog-log-slower-than 10000")
            do(admin, "ACL DELUSER bob")


def test_a_replica_logs_in_as_a_user_with_few_permissions(new_server: NewServer) -> None:
    primary = new_server("primary").start()
    with primary.client() as admin:
        do(admin, "SET k v")
        do(admin, "ACL SETUSER replica on >secret +psync +replconf +ping")
        do(admin, "ACL SETUSER default off")
        login = {"masteruser": "replica", "masterauth": "secret"}
        replica = new_server("replica", {**login, "replicaof": f"127.0.0.1 {primary.port}"}).start()
        with replica.client() as client:
            wait_until(lambda: client.call("GET", "k") == b"v", what="the data")
            assert "user=replica" in repr(do(admin, "CLIENT LIST"))
        assert do(admin, "ACL LOG") == []


def test_only_a_user_with_psync_may_report_a_promotion(server: Server) -> None:
    """The primary follows the server that reports it."""
    with server.client() as admin, server.client() as client:
        do(admin, "ACL SETUSER u on nopass +replconf")
        try:
            do(client, "AUTH u x")
            reply = client.call("REPLCONF", "capa", "millstream-1", "promoted", "1")
            assert show(reply) == "-NOPERM User u has no permissions to run the 'psync' command"
            assert show(do(client, "REPLCONF capa millstream-1")) == "+OK"
        finally:
            do(admin, "ACL DELUSER u")


def test_the_lock_scripts_require_the_rights_of_their_commands(server: Server) -> None:
    release = """
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        redis.call('del', KEYS[1])
        return 1
    """
    with server.client() as admin, server.client() as client:
        do(admin, "SET lock token")
        do(admin, "ACL SETUSER u on nopass ~lock +eval +get")
        try:
            do(client, "AUTH u x")
            reply = client.call("EVAL", release, "1", "lock", "token")
            assert show(reply) == (
                "-NOPERM ACL failure in script: User u has no permissions to run the 'del' command"
            )
            assert do(admin, "EXISTS lock") == 1
            do(admin, "ACL SETUSER u +del")
            assert client.call("EVAL", release, "1", "lock", "token") == 1
        finally:
            do(admin, "ACL DELUSER u")


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_while_saving_leaves_a_whole_file(
    tmp_path: Path, new_server: NewServer, seed: int
) -> None:
    """The file is always the one before or the one after a save."""
    file = tmp_path / "users.acl"
    file.write_text("")
    server = new_server("data", {"aclfile": str(file)}).start()
    chance = random.Random(seed)
    saved = 0
    with server.client() as client:
        rules = [f"~key{number}:*" for number in range(2000)]
        do(client, "ACL SETUSER bob on >pw +@all " + " ".join(rules))
        for number in range(chance.randrange(1, 20)):
            do(client, f"ACL SETUSER user{number} on")
            do(client, "ACL SAVE")
            saved = number + 1
        client.send("ACL", "SETUSER", f"user{saved}", "on")
        client.send("ACL", "SAVE")
        server.signal(signal.SIGKILL)
        server.wait()
    server.launch()
    wait_until(lambda: can_connect(server), what="the server")
    with server.client() as client:
        names = do(client, "ACL USERS")
        assert isinstance(names, list)
        assert len(names) - 2 in (saved, saved + 1)
        do(client, "AUTH bob pw")


def can_connect(server: Server) -> bool:
    assert server.is_alive(), server.log
    try:
        with server.client() as client:
            return client.call("PING") == Simple("PONG")
    except (ConnectionClosed, OSError):
        return False
